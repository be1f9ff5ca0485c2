"""One export looked at through a session: planned dry, explained, and put into facts for the judge.

Belongs here: the dry plan, and what is taken from it. Not here: sessions and what goes side by side (`check.py`),
judging (`verdict.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, cast

from rivet_assets.modes.by_shard import shard_window
from rivet_assets.modes.by_value import listed_values, value_window
from rivet_assets.modes.protocol import Mode, Planning
from rivet_assets.preflight.dry_session import DrySession, KeyEnds, dry, make_up_bounds
from rivet_assets.preflight.findings import PreflightPlan
from rivet_assets.preflight.verdict import VerdictFacts
from rivet_resources.contracts.engine_facts import EngineFacts
from rivet_resources.contracts.extract import Extract, Window
from rivet_resources.contracts.relation import Chunk, Relation
from rivet_resources.contracts.rows.value_windows import beside_time, partition_of_value
from rivet_resources.contracts.source import Session, Source
from rivet_resources.engines.shared.paging import row_width

if TYPE_CHECKING:
    from rivet_assets.blocks.export import Export


@dataclass(frozen=True)
class PreflightContext:
    """Where an export is looked at: its source, a session there, and what is known of both from elsewhere."""

    source: Source
    session: Session
    cursor: str | None = None  # committed; None before the first run
    connections: int | None = None
    connections_limit: int | None = None


@dataclass(frozen=True)
class PreflightFacts:
    """What one export's plan came to."""

    plan: PreflightPlan  # without its access, which the judge decides
    extract: Extract
    ends: KeyEnds | None
    is_empty: bool


def see(export: Export, relation: Relation, place: PreflightContext) -> PreflightFacts:
    """Plan an export dry and explain the first page of its first chunk; `relation` is what it reads.

    Raises:
        RivetError: what a run would raise while planning; or the source does not explain the statement.
    """
    # The real planning on a dry session: what is judged are the statements that a run would send, not a copy of its
    # rules.
    session, source = dry(place.session, place.source)
    cursor = export.cursor_for_plan(place.cursor, partial(_later_value, relation, place.source.facts))
    planning = Planning(
        source=source,
        session=session,
        relation=relation,
        window=_window(export, place),
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
    narrows = export.answers.narrows or cursor is not None
    facts = replace(_facts(export, extract, session, chunk, place), explained=explained, narrows=narrows)
    if not is_stored(relation, place.source.facts):
        # The catalog knows no size: the planner's word on all of it has to do.
        whole = session.explain(Chunk(0, "cursor", relation.sql), extract.relation.columns, pace=extract.pace)
        facts = replace(facts, rows=whole.rows)
    return PreflightFacts(_plan(export, facts, session.ends, extract), extract, session.ends, session.is_empty)


def _facts(
    export: Export, extract: Extract, session: DrySession, chunk: Chunk | None, place: PreflightContext
) -> VerdictFacts:
    relation, quote = extract.relation, place.source.quote
    name, is_made = export.deciding_column(relation.key)
    column = relation.column(name) if name else None
    is_there, stored = column is not None and not is_made, is_stored(relation, place.source.facts)
    wanted = [name, *(key for key in relation.key if key != name)] if is_there and stored else []
    chunks = len(extract.chunks) if not export.answers.cuts else max(len(extract.chunks), session.pieces)
    # Bounds were made up, so the number of pieces was as well.
    if export.answers.by_ranges and session.ends is None and not session.is_empty:
        chunks = 0
    return VerdictFacts(
        export=export.name,
        mode=export.mode,
        engine=place.source.facts,
        strategy=export.strategy(_way(extract), name, chunks=chunks),
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
        # PostgreSQL's names have at most 63 bytes, MySQL's 64 characters.
        index_name=quote(f"rivet_{export.name}_{name}"[:60]),
        key=relation.key,
        reader=chunk.reader if chunk is not None else "",
        chunks=chunks,
        parallel=export.parallel,
        connections=place.connections,
        connections_limit=place.connections_limit,
        own_limit=getattr(place.source, "max_connections", None),
    )


def _plan(export: Export, facts: VerdictFacts, ends: KeyEnds | None, extract: Extract) -> PreflightPlan:
    unique = [rules.unique_columns for rules in (export.quality, export.contract) if rules is not None]
    cautions = export.cautions
    is_whole = ends is not None and ends.low.lstrip("-").isdigit() and ends.high.lstrip("-").isdigit()
    return PreflightPlan(
        facts,
        "pages",
        widest=int(ends.high) - int(ends.low) + 1 if is_whole and ends is not None else None,
        batch_rows=facts.pace.batch_size if facts.pace.batch_size_is_explicit else None,
        has_checkpoint=bool(extract.fingerprint),
        is_dense=cautions.is_dense,
        has_fallback=cautions.has_fallback,
        fails_on_nulls=cautions.fails_on_nulls,
        unique_columns=tuple(name for names in unique for name in names),
        is_stdout=export.destination.is_stream,
    )


# --- what decides which rows ---------------------------------------------------------------------


def is_stored(relation: Relation, engine: EngineFacts) -> bool:
    """Return whether the rows lie in a table that could be given an index; views are to be judged as queries are."""
    # A foreign table has an estimate of rows too, but no size; SQLite tells no sizes.
    has_size = relation.bytes_estimate is not None or (not engine.tells_sizes and relation.rows_estimate is not None)
    return relation.is_table and bool(relation.key or relation.indexed or relation.leaves or has_size)


def _later_value(relation: Relation, engine: EngineFacts, column: str) -> str | None:
    """Return a value that a later run might begin at; None: the first run's statement tells all."""
    # Of a query only the planner can tell whether an index serves it, so one that never ran is planned as a later run.
    made = make_up_bounds(relation.column(column), rows=None)
    return made[0] if made and not is_stored(relation, engine) else None


def _window(export: Export, place: PreflightContext) -> Window | None:
    """Return the window to plan: the latest that has ended, or a value's; None for modes that name their own."""
    if not export.has_partitions:
        return None
    if export.shards is not None and not export.has_days:  # of this one: each is looked at by itself
        return shard_window(next(iter(export.shards)))
    first = None
    if export.by_value is not None:
        values = listed_values(export, place.source, place.session)
        first = [beside_time(partition_of_value(next(iter(values), None)))]
        if not export.has_days:
            return value_window(export, first[0])
    from rivet_assets.modes.partitions import latest_window  # Dagster, over a second that other modes need not wait

    return latest_window(export, first)


# --- words ---------------------------------------------------------------------------------------


def _way(extract: Extract) -> str:
    if not extract.chunks:
        return "nothing to read"
    chunk = extract.chunks[0]
    if chunk.reader == "keyset":
        return f"pages by {', '.join(chunk.key)}"
    if chunk.reader == "blocks":
        return "blocks"
    return "cursor" if extract.source.facts.pages_cursors else "one statement"
