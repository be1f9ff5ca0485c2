"""Reading the rows of a window's dead letters again, and no other row of it, where that gives the same window.

Belongs here: when it does, and what is read. Not here: the manifest that comes of it (`rivet_resources/prove/
add_rows.py`), windows that must be read whole (`repair.py`).

The rows that were exported stay as they are, so they must be those that would be exported again: of the very block and
columns. So after a fix at the source the letters are read by key, and after one of the configuration their window, or
chunks, as a whole.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa

from rivet_assets.modes.block_identity import block_of
from rivet_assets.modes.protocol import Planning, compose
from rivet_assets.modes.reread import Again, chunk_column, key_range, range_predicate
from rivet_assets.run.judge.contract_rules import rules_of_export
from rivet_resources.commit.manifest import Manifest
from rivet_resources.commit.manifest import schema_of as schema_then
from rivet_resources.contracts.extract import Extract, Window
from rivet_resources.contracts.relation import Chunk, KeyRange, Relation
from rivet_resources.contracts.rows.value_windows import OTHERS
from rivet_resources.contracts.types import Column
from rivet_resources.errors import BoundsUnusable, SourceError
from rivet_resources.prove.add_rows import without_specials
from rivet_resources.prove.replace_chunks import can_mend_chunks
from rivet_resources.shape.shape import schema_of as schema_now

if TYPE_CHECKING:
    from rivet_assets.blocks.export import Export
    from rivet_resources.contracts.destination import Root

MOST_KEYS = 10_000  # of a window; beyond, its rows are cheaper to read in their order
KEYS_AT_ONCE = 500  # in one statement

Keys = Mapping[int, Sequence[Mapping[str, Any]]]  # chunk → the keys of its letters


@dataclass(frozen=True)
class _Reading:
    """What is read again, of which window."""

    export: Export
    planning: Planning
    manifest: Manifest
    keys: Keys

    @property
    def relation(self) -> Relation:
        return self.planning.relation


def letters_by_key(export: Export, planning: Planning, manifest: Manifest, *, root: Root) -> Extract | None:
    """Describe the rows of a window's dead letters; None where the window, or its chunks, must be read.

    Raises:
        DestinationError: the letters cannot be read.
    """
    if not _stays(export, manifest) or not _has_block(export, planning, manifest):
        return None
    keys = _keys_of(manifest, planning.relation, root)
    if keys is None:
        return None
    reading = _Reading(export, planning, manifest, keys)
    try:
        chunks = tuple(_chunks(reading))
    except (BoundsUnusable, SourceError, _NoKey):
        return None
    extract = _compose(reading, chunks)
    # With all that is known of the columns: the parts that stay are read by it.
    return extract if schema_now(extract).equals(schema_then(manifest), check_metadata=True) else None


class _NoKey(Exception):
    """A key cannot be sent back to the server as it was read."""


# --- whether ------------------------------------------------------------------------------------


def _stays(export: Export, manifest: Manifest) -> bool:
    """Return whether a window may keep its parts: what is told of it is a sum, and needs no row of them.

    Windows of a cursor do not: which rows with the value of an end are theirs is found by reading all of these.
    """
    form = export.format_settings()
    needs_all = [rule for rule in rules_of_export(export) if rule.kind not in SUMMED_RULES]
    has_sums = manifest.column_checksums is not None or not manifest.row_count
    if manifest.chunks:
        quarantine = manifest.quarantine
        numbers = {each.chunk for each in quarantine.chunks if each.dead} if quarantine else set()
        has_sums = can_mend_chunks(manifest, numbers) or len(numbers) == len(manifest.chunks)
    return (
        not export.answers.keeps_cursor
        and export.first_snapshot is None
        and Window(manifest.window).value != OTHERS
        and (form.type, form.codec) == (manifest.format, manifest.compression)
        and manifest.compacted is None
        and export.profile is None
        and not needs_all
        and has_sums
        and without_specials(manifest)
    )


SUMMED_RULES = ("row_count_min", "row_count_max", "null_ratio_max", "rows_aside")


def _has_block(export: Export, planning: Planning, manifest: Manifest) -> bool:
    quarantine = manifest.quarantine
    return quarantine is not None and quarantine.block != "" and quarantine.block == block_of(export, planning.relation)


def _keys_of(manifest: Manifest, relation: Relation, root: Root) -> Keys | None:
    """Read the keys of the letters; None where one has none, or there are too many."""
    quarantine = manifest.quarantine
    if quarantine is None or not 0 < quarantine.rows <= MOST_KEYS or not relation.key:
        return None
    found: dict[int, list[Mapping[str, Any]]] = {}
    for chunk in quarantine.chunks:
        for part in chunk.parts:
            with closing(root.open(part.path)) as file:
                found.setdefault(chunk.chunk, []).extend(json.loads(line)["key"] for line in file)
    keys = [key for each in found.values() for key in each]
    known = all(isinstance(key, dict) and set(key) == set(relation.key) for key in keys)
    return found if known and len(keys) == quarantine.rows else None


# --- what ---------------------------------------------------------------------------------------


def _chunks(reading: _Reading) -> Iterator[Chunk]:
    """Yield what is read: of a window in ranges, a chunk for each of theirs that has letters; else so many keys each.

    Raises:
        BoundsUnusable, SourceError, _NoKey
    """
    manifest = reading.manifest
    within = cast(Again, reading.export).predicate(reading.planning, manifest)
    if not manifest.chunks:
        everything = [key for each in reading.keys.values() for key in each]
        for index, keys in enumerate(_batches(everything)):
            yield _chunk(reading, index, keys, within)
        return
    column, ranges = chunk_column(manifest, reading.relation), {each.chunk: each for each in manifest.chunks}
    for number, keys in reading.keys.items():
        # A row may have gone to another chunk where its place is no part of its key.
        if number not in ranges or len(keys) > KEYS_AT_ONCE or column.name not in reading.relation.key:
            raise _NoKey
        span = key_range(ranges[number])
        yield _chunk(reading, number, keys, within, range_predicate(span, column, reading.planning), span=span)


def _batches(keys: Sequence[Mapping[str, Any]]) -> Iterator[Sequence[Mapping[str, Any]]]:
    for start in range(0, len(keys), KEYS_AT_ONCE):
        yield keys[start : start + KEYS_AT_ONCE]


def _chunk(
    reading: _Reading, index: int, keys: Sequence[Mapping[str, Any]], *where: str, span: KeyRange | None = None
) -> Chunk:
    relation = reading.relation
    return Chunk(
        index=index,
        reader="keyset" if reading.planning.session.snapshot is None else "cursor",
        relation=relation.sql,
        where=" AND ".join(f"({each})" for each in (*where, _is_one_of(reading, keys)) if each),
        key=relation.key,
        range=span,
    )


def _is_one_of(reading: _Reading, keys: Sequence[Mapping[str, Any]]) -> str:
    """Return the predicate of the rows that have one of these keys."""
    source = reading.planning.source
    columns = [column for name in reading.relation.key if (column := reading.relation.column(name)) is not None]
    if len(columns) == 1:
        (column,) = columns
        values = ", ".join(source.literal(_text(key[column.name], column, reading), column) for key in keys)
        return f"{source.quote(column.name)} IN ({values})"
    rows = [
        " AND ".join(f"{source.quote(c.name)} = {source.literal(_text(key[c.name], c, reading), c)}" for c in columns)
        for key in keys
    ]
    return " OR ".join(f"({each})" for each in rows)


def _text(value: Any, column: Column, reading: _Reading) -> str:
    """Return the canonical text of a key's value, of types whose JSON is that.

    Raises:
        _NoKey
    """
    is_whole = pa.types.is_integer(column.arrow) and isinstance(value, int) and not isinstance(value, bool)
    is_text = pa.types.is_string(column.arrow) and not column.logical and isinstance(value, str)
    if not (is_whole or is_text) or reading.planning.source.no_bound(column, is_paged=False):
        raise _NoKey
    return str(value)


def _compose(reading: _Reading, chunks: tuple[Chunk, ...]) -> Extract:
    export, manifest, planning = reading.export, reading.manifest, reading.planning
    contract = export.contract.of_rows_set_aside() if export.contract is not None else None
    plain = export.model_copy(update={"quality": None, "contract": contract, "profile": None})
    by_value = export.by_value.column if export.by_value is not None else ""
    ranged = {chunk.range.column for chunk in manifest.chunks}
    decisive = tuple(dict.fromkeys(name for name in (export.window_column, by_value, *sorted(ranged)) if name))
    extract = compose(
        plain,
        replace(planning, clock=manifest.clock),
        window=planning.window or Window(manifest.window),
        chunks=chunks,
        decisive=decisive,
    )
    return replace(extract, block=block_of(export, planning.relation))
