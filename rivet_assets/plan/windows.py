"""The windows of a planned export: what each covers, in how many chunks, how many rows, and what it replaces.

Belongs here: texts and estimates from what was seen. Not here: seeing (`facts.py`), the plan (`planner.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rivet_assets.modes.by_shard import shard_of
from rivet_assets.modes.cdc import START
from rivet_assets.plan import facts as plan_facts
from rivet_assets.plan.artefact import MOST_RANGES, Computed, PlannedWindow
from rivet_assets.plan.facts import CommittedWindows, PlannedExtract, SourceLook
from rivet_assets.plan.fingerprint import Hidden
from rivet_resources.contracts.extract import CursorMove, Window
from rivet_resources.contracts.messages import is_topic
from rivet_resources.contracts.relation import Chunk, KeyRange
from rivet_resources.contracts.rows.value_windows import BESIDE, EMPTY, NULL, OTHERS, column_of_window, value_part

if TYPE_CHECKING:
    from rivet_assets.blocks.export import Export
    from rivet_resources.commit.manifest import Manifest


def compute_windows(
    export: Export, windows: Sequence[tuple[str, Window]], held: CommittedWindows, looked: SourceLook, hide: Hidden
) -> Computed:
    """Join what is planned of each window with the sums over all of them."""
    planned = tuple(
        _window(export, table, seen, held, looked, hide) for (table, _), seen in zip(windows, looked.seen, strict=True)
    )
    counts = [window.chunk_count for window in planned]
    known = [count for count in counts if count is not None]
    move = looked.seen[0].extract.cursor if looked.seen[0:1] and looked.seen[0].extract else None
    return Computed(
        windows=planned,
        # A sum of those that are known alone would pass for the whole.
        chunk_count=sum(known) if known and len(known) == len(counts) else None,
        chunk_ranges=planned[0].chunk_ranges if len(planned) == 1 else (),
        cursor_snapshot=held.boundary,
        cursor_high=move.high if move else None,
        row_estimate=looked.unread if export.answers.follows_log else _all_rows(planned),
        columns=looked.columns,
        notes=tuple(hide.text(note) for note in looked.notes),
    )


def _all_rows(windows: Sequence[PlannedWindow]) -> int | None:
    """Add the windows up; those that were not looked at are taken to be like the others."""
    estimates = [window.row_estimate for window in windows[: plan_facts.MOST_LOOKED_AT]]
    known = [rows for rows in estimates if rows is not None]
    if not windows:
        return 0
    return round(sum(known) * len(windows) / len(known)) if len(known) == len(estimates) else None


def _window(
    export: Export, table: str, seen: PlannedExtract, held: CommittedWindows, looked: SourceLook, hide: Hidden
) -> PlannedWindow:
    extract, window = seen.extract, seen.window
    manifest = held.manifests.get((table, window.key))
    replaced = None if is_topic(export.destination) else manifest
    ranges = tuple(filter(None, (_range_text(chunk) for chunk in extract.chunks))) if extract else ()
    return PlannedWindow(
        key=window.key,
        table=table,
        text=_text(export, seen) + _in_topic(export, manifest),
        statement=hide.text(seen.explained.statement) if seen.explained else "",
        chunk_count=len(extract.chunks) if extract else None,
        chunk_ranges=ranges[:MOST_RANGES],
        row_estimate=_rows(seen, looked),
        replaces_run_id=replaced.run_id if replaced else None,
        replaces_rows=replaced.row_count if replaced else None,
        replaces_bytes=replaced.size_bytes if replaced else None,
    )


def _in_topic(export: Export, manifest: Manifest | None) -> str:
    """Return what a window that is in a topic means for the run: nothing there can be replaced."""
    if not is_topic(export.destination) or manifest is None or not manifest.row_count:
        return ""
    appends = getattr(export.destination, "on_rerun", "refuse") == "append"
    told = "they will be there once more (on_rerun: append)" if appends else "the run will be refused"
    return f"; its {manifest.row_count:,} rows are in the topic already, and {told}"


def _rows(seen: PlannedExtract, looked: SourceLook) -> int | None:
    """Estimate the rows of one window: the catalog's count for all rows, the planner's for some."""
    extract = seen.extract
    if extract is None:
        return None
    move = extract.cursor
    if move is not None and move.low is not None and move.high in (None, move.low):
        return 0
    is_whole = extract.window.kind in ("all", "snapshot") and BESIDE not in extract.window.key
    # The planner's guess is of one statement, so it stands for the whole only where there is one chunk.
    if is_whole or (move is not None and move.low is None):
        whole = extract.relation.rows_estimate
        return whole if whole is not None or seen.explained is None or len(extract.chunks) > 1 else seen.explained.rows
    return seen.explained.rows if seen.explained else None


def _text(export: Export, seen: PlannedExtract) -> str:
    """Return what one window covers."""
    window, extract = seen.window, seen.extract
    if window.start is not None and window.end is not None:
        beside = f", {value_part(window.key).replace('=', ' ', 1)}" if BESIDE in window.key else ""
        return f"{export.window_column} in [{window.start:%Y-%m-%dT%H:%MZ}, {window.end:%Y-%m-%dT%H:%MZ}){beside}"
    if extract is None:
        return "changes from the beginning" if window.key == START else "changes"
    move = extract.cursor
    if shard := shard_of(export, window):
        return f"{_moved(move)} of shard {shard}"
    if export.by_value is not None:
        told = {NULL: "NULL", OTHERS: "none of the values that have a window", EMPTY: "empty"}
        return f"{column_of_window(window.key)} is {told.get(window.value, window.value)}"
    return _moved(move)


def _moved(move: CursorMove | None) -> str:
    """Return which rows a cursor moves over; all, where there is none."""
    if move is None:
        return "all rows"
    if move.low is None:
        return f"all rows up to {move.column} {move.high}" if move.high else "all rows"
    if move.high in (None, move.low):
        return f"nothing new above {move.column} {move.low}"
    return f"{move.column} in ({move.low}, {move.high}]"


def _range_text(chunk: Chunk) -> str:
    """Spell what a chunk covers, where it can be said in a word: a range of a key, or of heap blocks."""
    if isinstance(chunk.range, KeyRange):
        piece = chunk.range
        left = f"{'[' if piece.low_inclusive else '('}{piece.low}" if piece.low is not None else "(…"
        right = f"{piece.high}{']' if piece.high_inclusive else ')'}" if piece.high is not None else "…)"
        return f"{piece.column}{left},{right}"
    if chunk.reader == "blocks":
        return f"blocks[{chunk.blocks[0]},{chunk.blocks[1]})"
    return chunk.identity
