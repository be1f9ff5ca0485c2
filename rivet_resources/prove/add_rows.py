"""The manifest of a window whose dead letters alone were read again: its parts as they are, and what came to them.

Belongs here: what adds up, in chunks and over the window. Not here: which rows are read (`rivet_assets/prove/
replay_by_key.py`), the order of effects (`replace_chunks.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from rivet_resources.commit.manifest import Manifest, build_manifest
from rivet_resources.commit.manifest_entries import (
    ColumnChecksum,
    ManifestChunk,
    ManifestMeasures,
    Quarantine,
    RefusingChunk,
)
from rivet_resources.contracts.extract import Staged
from rivet_resources.prove.replace_chunks import measures_of
from rivet_resources.write.checksums.sums import WHOLE


def describe_added(staged: Staged, previous: Manifest) -> Manifest:
    """Describe the window with the rows that its dead letters became, and those that are letters still.

    A letter whose row was not found is gone from both; rows that were left out (`skip`) stay counted.
    """
    fresh, before = build_manifest(staged, staged.parts), previous.quarantine
    assert before is not None
    read = fresh.source.extraction.source_row_count or 0
    parts = [*previous.parts, *(part.model_copy(update={"schema_ipc": None}) for part in fresh.parts)]
    parts.sort(key=lambda part: part.chunk or 0)  # stable: parts of a chunk stay in their order
    extraction = previous.source.extraction
    counted = extraction.source_row_count
    changed = {"source_row_count": None if counted is None else counted - before.rows + read}
    return previous.model_copy(
        update={
            "run_id": fresh.run_id,
            "started_at": fresh.started_at,
            "finished_at": fresh.finished_at,
            "consistency": "resumed",  # the parts that stay are of an earlier instant
            "source": previous.source.model_copy(update={"extraction": extraction.model_copy(update=changed)}),
            "parts": tuple(part.model_copy(update={"part_id": number}) for number, part in enumerate(parts)),
            "part_count": len(parts),
            "row_count": sum(part.rows for part in parts),
            "chunks": _chunks(previous, fresh),
            "measures": _sum_measures(previous.measures, fresh.measures),
            "column_checksums": _sum_checksums(previous.column_checksums, fresh.column_checksums),
            "quarantine": _quarantine(before, fresh.quarantine),
            "masked": fresh.masked,
        }
    )


def _chunks(previous: Manifest, fresh: Manifest) -> tuple[ManifestChunk, ...]:
    """Return the chunks, each with what came to it and without its letters that are gone."""
    assert previous.quarantine is not None
    came = {chunk.chunk: chunk for chunk in fresh.chunks}
    letters = {each.chunk: sum(each.dead.values()) for each in previous.quarantine.chunks}
    return tuple(
        chunk if chunk.chunk not in came else _add(chunk, came[chunk.chunk], letters=letters[chunk.chunk])
        for chunk in previous.chunks
    )


def _add(chunk: ManifestChunk, came: ManifestChunk, *, letters: int) -> ManifestChunk:
    measures = [each for each in (chunk.measures, came.measures) if each is not None]
    return chunk.model_copy(
        update={
            "rows": chunk.rows + came.rows,
            "source_row_count": chunk.source_row_count - letters + came.source_row_count,
            "column_checksums": _sum_checksums(chunk.column_checksums, came.column_checksums),
            "measures": ManifestMeasures(
                nulls=_only_counted(sum((Counter(each.nulls) for each in measures), Counter[str]())),
                special_values=came.measures.special_values if came.measures else {},
            ),
        }
    )


def _only_counted(counts: Mapping[str, int]) -> dict[str, int]:
    return {name: count for name, count in counts.items() if count}


def _sum_measures(one: ManifestMeasures, other: ManifestMeasures) -> ManifestMeasures:
    """Add what was counted over a window; of special values there were none before (`replay_by_key.py`)."""
    names = dict.fromkeys((*one.nulls, *other.nulls))
    nulls = {name: one.nulls.get(name, 0) + other.nulls.get(name, 0) for name in names}
    return ManifestMeasures(nulls=nulls, special_values=other.special_values)


def _sum_checksums(
    one: Iterable[ColumnChecksum] | None, other: Iterable[ColumnChecksum] | None
) -> tuple[ColumnChecksum, ...] | None:
    """Add the sums over the cells; rows without sums there are none here, so None adds nothing."""
    sums: dict[str, int] = {}
    for each in (*(one or ()), *(other or ())):
        sums[each.name] = (sums.get(each.name, 0) + int(each.checksum)) % WHOLE
    return tuple(ColumnChecksum(name=name, checksum=str(value)) for name, value in sums.items()) or None


def _quarantine(before: Quarantine, now: Quarantine | None) -> Quarantine | None:
    """Return the letters that are letters still, and the rows that are left out: those of before, and new ones."""
    found: dict[int, RefusingChunk] = {
        each.chunk: each.model_copy(update={"dead": {}, "parts": ()}) for each in before.chunks if each.skipped
    }
    for each in now.chunks if now is not None else ():
        left = found.get(each.chunk, RefusingChunk(chunk=each.chunk))
        skipped = dict(sorted((Counter(left.skipped) + Counter(each.skipped)).items()))
        found[each.chunk] = each.model_copy(update={"skipped": skipped})
    chunks = tuple(found[number] for number in sorted(found))
    return Quarantine(chunks=chunks, dropped=before.dropped, block=before.block) if chunks or before.dropped else None


def without_specials(manifest: Manifest) -> bool:
    """Return whether no row of a window, nor of its letters, has values that were counted as special."""
    return not any(measures_of(manifest.chunks, ()).special_values) and not manifest.measures.special_values
