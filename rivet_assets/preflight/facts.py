"""One export looked at through a session: planned dry, explained, and put into facts for the judge.

Belongs here: the dry plan, and what is taken from it. Not here: sessions and what goes side by side (`check.py`),
judging (`verdict.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, cast

from rivet_assets.modes.cdc import Cdc
from rivet_assets.modes.chunked import Chunked
from rivet_assets.modes.incremental import Incremental
from rivet_assets.modes.poll import Poll
from rivet_assets.modes.protocol import Mode, Planning
from rivet_assets.modes.time_window import TimeWindow
from rivet_assets.preflight.dry_session import DrySession, Ends, dry, made_up
from rivet_assets.preflight.findings import Plan
from rivet_assets.preflight.verdict import Facts
from rivet_resources.contracts.engine_facts import EngineFacts
from rivet_resources.contracts.extract import Extract, Window
from rivet_resources.contracts.relation import Chunk, Relation
from rivet_resources.contracts.source import Session, Source
from rivet_resources.engines.shared.paging import row_width

if TYPE_CHECKING:
    from rivet_assets.blocks.export import Export


@dataclass(frozen=True)
class Place:
    """Where an export is looked at: its source, a session there, and what is known of both from elsewhere."""

    source: Source
    session: Session
    cursor: str | None = None  # committed; None before the first run
    connections: int | None = None
    connections_limit: int | None = None


@dataclass(frozen=True)
class Seen:
    """What one export's plan came to."""

    plan: Plan  # without its access, which the judge decides
    extract: Extract
    ends: Ends | None
    is_empty: bool


def see(export: Export, relation: Relation, place: Place) -> Seen:
    """Plan an export dry and explain the first page of its first chunk; `relation` is what it reads.

    Raises:
        RivetError: what a run would raise while planning; or the source does not explain the statement.
    """
    session, source = dry(place.session, place.source)
    cursor = _later_cursor(export, relation, place.cursor, place.source.facts)
    planning = Planning(
        source=source,
        session=session,
        relation=relation,
        window=_window(export),
        cursor=cursor,
        run_id="check",
        started_at=datetime.now(UTC),
        tasks=export.parallel,
    )
    extract = cast(Mode, export).extract(planning)
    chunk = extract.chunks[0] if extract.chunks else None
    explained = None
    if chunk is not None and chunk.where != "1 = 0":
        explained = session.explain(chunk, extract.relation.columns, pace=extract.pace)
    narrows = export.mode in ("chunked", "time_window") or cursor is not None
    facts = replace(_facts(export, extract, session, chunk, place), explained=explained, narrows=narrows)
    if not is_stored(
        relation, place.source.facts
    ):  # the catalog knows no size: the planner's word on all of it has to do
        whole = session.explain(Chunk(0, "cursor", relation.sql), extract.relation.columns, pace=extract.pace)
        facts = replace(facts, rows=whole.rows)
    return Seen(_plan(export, facts, session.ends), extract, session.ends, session.is_empty)


def _facts(export: Export, extract: Extract, session: DrySession, chunk: Chunk | None, place: Place) -> Facts:
    relation, quote = extract.relation, place.source.quote
    name, is_made = column_of(export, relation)
    column = relation.column(name) if name else None
    is_there, stored = column is not None and not is_made, is_stored(relation, place.source.facts)
    wanted = [name, *(key for key in relation.key if key != name)] if is_there and stored else []
    chunks = len(extract.chunks) if export.mode not in ("chunked", "full") else max(len(extract.chunks), session.pieces)
    if export.mode == "chunked" and session.ends is None and not session.is_empty:
        chunks = 0
    return Facts(
        export=export.name,
        mode=export.mode,
        engine=place.source.facts,
        strategy=strategy_of(export, extract, name, chunks=chunks),
        relation=relation.sql if stored else "",
        pace=extract.pace,
        rows=0 if session.is_empty else relation.rows_estimate,
        size_bytes=relation.bytes_estimate,
        row_bytes=row_width(relation.columns),
        parts=len(relation.leaves) or 1,
        column=name,
        is_indexed=is_there and name in relation.indexed,
        is_nullable=is_there and column is not None and column.nullable and stored,
        index_columns=tuple(quote(each) for each in wanted),
        index_name=quote(f"rivet_{export.name}_{name}"[:60]),
        key=relation.key,
        reader=chunk.reader if chunk is not None else "",
        chunks=chunks,
        parallel=export.parallel,
        connections=place.connections,
        connections_limit=place.connections_limit,
        own_limit=getattr(place.source, "max_connections", None),
    )


def _plan(export: Export, facts: Facts, ends: Ends | None) -> Plan:
    quality: Any = export.quality
    chunked = export if isinstance(export, Chunked) else None
    incremental = export if isinstance(export, Incremental) else None
    is_whole = ends is not None and ends.low.lstrip("-").isdigit() and ends.high.lstrip("-").isdigit()
    return Plan(
        facts,
        "pages",
        widest=int(ends.high) - int(ends.low) + 1 if is_whole and ends is not None else None,
        batch_rows=facts.pace.batch_size if facts.pace.batch_size_is_explicit else None,
        has_checkpoint=bool(chunked and chunked.chunk_checkpoint),
        is_dense=bool(chunked and chunked.chunk_dense),
        has_fallback=bool(incremental and incremental.cursor_fallback_column),
        fails_on_nulls=bool(incremental and incremental.cursor_nulls == "fail"),
        unique_columns=tuple(quality.unique_columns) if quality else (),
        is_stdout=export.destination.is_stream,
    )


# --- what decides which rows ---------------------------------------------------------------------


def column_of(export: Export, relation: Relation) -> tuple[str, bool]:
    """Name the column that decides which rows a chunk, window or run reads, '' where all are wanted.

    Returns:
        (name, whether what decides is an expression over it and another one, which no index serves)
    """
    if isinstance(export, Incremental):
        return export.cursor_column, export.cursor_fallback_column is not None
    if isinstance(export, Poll):
        return export.updated_at_column, export.null_policy == "coalesce"
    if isinstance(export, TimeWindow):
        return export.time_column, False
    if isinstance(export, Chunked):
        return export.chunk_by_key or export.chunk_column or next(iter(relation.key), ""), False
    return "", False


def is_stored(relation: Relation, engine: EngineFacts) -> bool:
    """Say whether the rows lie in a table that could be given an index; views are to be judged as queries are."""
    # A foreign table has an estimate of rows too, but no size; SQLite tells no sizes.
    has_size = relation.bytes_estimate is not None or (not engine.tells_sizes and relation.rows_estimate is not None)
    return relation.is_table and bool(relation.key or relation.indexed or relation.leaves or has_size)


def _later_cursor(export: Export, relation: Relation, committed: str | None, engine: EngineFacts) -> str | None:
    """Choose the cursor to plan from.

    A full diff would read every key, so a poll with one is planned as its first run. Of a query only the planner can
    tell whether an index serves it, so one that never ran is planned as a later run, from a value that is made up.
    """
    if isinstance(export, Poll):
        return None if export.delete_detection.type == "full_diff" else committed
    if not isinstance(export, Incremental):
        return None
    made = made_up(relation.column(export.cursor_column), rows=None) if committed is None else None
    return made[0] if made and not is_stored(relation, engine) else committed


def _window(export: Export) -> Window | None:
    """Give the latest window that has ended, else the first one there will be; None for other modes."""
    if not isinstance(export, TimeWindow):
        return None
    from rivet_assets.modes import partitions  # brings Dagster, over a second that other modes need not wait

    keys = partitions.due_keys(export)
    found = partitions.partitions_of(export)
    assert found is not None
    return partitions.window_of(export, keys[-1]) if keys else first_window(export)


def first_window(export: TimeWindow) -> Window:
    """Give a window of an export none of whose windows has ended yet."""
    start = datetime.combine(export.first_day, datetime.min.time(), UTC)
    return Window(export.first_day.isoformat(), start, start.replace(hour=23), "")


# --- words ---------------------------------------------------------------------------------------


def strategy_of(export: Export, extract: Extract, column: str, *, chunks: int) -> str:
    """Write how it is read, such as `chunked-parallel(id, size=50000, p=4)`."""
    parallel = f", p={export.parallel}" if export.parallel > 1 else ""
    if isinstance(export, Chunked):
        kind = "chunked-parallel" if export.parallel > 1 else "chunked-sequential"
        return f"{kind}({column}, {_cutting(export, extract, chunks)}{parallel})"
    way = _way(extract)
    if isinstance(export, TimeWindow):
        return f"time-window({column}, {export.granularity}, {way})"
    if isinstance(export, Incremental | Poll):
        return f"{export.mode}({column}, {way})"
    if isinstance(export, Cdc):
        return f"cdc(initial={export.cdc.initial or 'none'}, {way}{parallel})"
    counted = f", {chunks} chunks" if chunks > 1 else ""
    return f"{export.mode}({way}{counted}{parallel})"


def _cutting(export: Chunked, extract: Extract, chunks: int) -> str:
    if export.chunk_by_key:
        return "by key"
    if export.chunk_by_days:
        return f"days={export.chunk_by_days}"
    if export.chunk_count:
        return f"count={export.chunk_count}"
    size = f"dense, size={export.chunk_size or 100_000}" if export.chunk_dense else f"size={export.chunk_size}"
    return size if export.chunk_dense or export.chunk_size else f"{chunks or 'some'} chunks"


def _way(extract: Extract) -> str:
    if not extract.chunks:
        return "nothing to read"
    chunk = extract.chunks[0]
    if chunk.reader == "keyset":
        return f"pages by {', '.join(chunk.key)}"
    if chunk.reader == "blocks":
        return "blocks"
    return "cursor" if extract.source.facts.pages_cursors else "one statement"


def tables_of(export: Export) -> Sequence[tuple[Export, str | None]]:
    """List what an export reads: its relation, or each table of a drain with the export of that table alone."""
    if isinstance(export, Cdc):
        return [(export.of_table(table), table) for table in export.captured]
    return [(export, export.table)]
