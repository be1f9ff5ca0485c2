"""Look at one export as its next run would, without reading a row: windows, chunks, what stands at the destination.

Belongs here: connecting and asking, once per export. Not here: what follows from it (`priority.py`), the entry of a
plan (`planner.py`). Nothing is changed: a state store that does not exist yet is created, as a run would.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any, cast

from rivet_assets.modes.by_shard import chains_of, naming, shard_of, source_of_shard
from rivet_assets.modes.cdc import START, Cdc, drain_of
from rivet_assets.modes.partitions import windows_of
from rivet_assets.modes.protocol import Mode, Planning
from rivet_assets.plan.duration import rate_of
from rivet_assets.plan.priority import RunHistory
from rivet_assets.run.baseline import baseline_of, cursor_drift
from rivet_assets.run.drain import checkpoint_key, checkpoints_of
from rivet_assets.run.drift import Drift, compare
from rivet_assets.run.log_status import LogLook, look, open_for_look, read_position
from rivet_resources.commit.chain import resolve_boundary, resolve_cursor
from rivet_resources.commit.manifest import Manifest, current_manifests
from rivet_resources.contracts.evidence import Explained
from rivet_resources.contracts.extract import Extract, Window
from rivet_resources.contracts.relation import Relation
from rivet_resources.contracts.rows.boundary import Boundary
from rivet_resources.contracts.settings import pace
from rivet_resources.errors import RivetError
from rivet_resources.shape.shape import planned
from rivet_resources.shape.transforms.mask_tags import tagged_columns

if TYPE_CHECKING:
    from pathlib import Path

    from rivet_assets.blocks.export import Export
    from rivet_assets.config.load import RivetConfig
    from rivet_resources.contracts.destination import Root
    from rivet_resources.contracts.source import Session, Source
    from rivet_resources.state.runs import RunRecord
    from rivet_resources.state.store import State

APPLICATION = "rivet plan"
# Someone waits for the plan; `rivet apply`, which proves it, has time.
INTERACTIVE_LIMITS = {"max_retries": 0}
# Windows of one export; further ones are planned by their bounds alone.
MOST_LOOKED_AT = 31
RUNS_LOOKED_AT = 20  # of an export's history


@dataclass(frozen=True)
class PlanContext:
    """Where one export stands: its source, state and destination, as a run at `at` would open them."""

    export: Export
    source_name: str
    source: Source
    state: State
    folder: Path  # of the config
    at: datetime  # aware UTC

    def root(self, table: str = "") -> Root:
        """Address the folder of the export, or of one table of its drain."""
        drain = drain_of(self.export)
        name = drain.folder_of(table) if drain is not None and table else self.export.name
        return self.export.destination.on(self.at.date()).root(name)


@dataclass(frozen=True)
class CommittedWindows:
    """What is committed: the boundary, and for each window (table, key) its manifest; None: nobody committed it."""

    boundary: str | None
    manifests: Mapping[tuple[str, str], Manifest | None]


@dataclass(frozen=True)
class PlannedExtract:
    """What the source said of one window."""

    window: Window
    extract: Extract | None = None  # None: not asked
    explained: Explained | None = None


@dataclass(frozen=True)
class SourceLook:
    """What the source said of the export."""

    columns: tuple[tuple[str, str], ...]
    seen: tuple[PlannedExtract, ...]
    relation: Relation | None = None
    drift: Drift = field(default_factory=Drift)
    cursor_drift: Drift = field(default_factory=Drift)  # with the cursor's type at the source
    notes: tuple[str, ...] = ()
    unread: int | None = None  # changes in a log that a drain would find


def place_of(config: RivetConfig, export: Export, *, state: State, at: datetime) -> PlanContext:
    """Join an export with where it works."""
    name, source = config.source_of(export)
    return PlanContext(export, name, source, state, config.folder, at)


# --- what is committed ---------------------------------------------------------------------------


def boundary_of(place: PlanContext) -> str | None:
    """Read how far the export has committed, and write nothing; None for modes without a boundary, and at the start.

    Raises:
        CheckpointUnusable, ManifestUnreadable, StateError
    """
    export = place.export
    if (drain := drain_of(export)) is not None:
        checkpoints = checkpoints_of(drain, state=place.state, folder=place.folder)
        position = read_position(checkpoints.load(checkpoint_key(drain, place.source_name)))
        return position.key if position else None
    if not export.answers.keeps_cursor:
        return None
    if export.is_apart:
        found = {shard: boundary_of(_at(place, shard)) for shard in export.shards or ()}
        return json.dumps(found) if any(each is not None for each in found.values()) else None
    cursor = place.state.cursor(export.name)
    # The store first, as a run does; where it knows nothing the manifests are asked, and the store is not filled: a
    # plan writes nothing.
    if cursor is not None or not place.root().keeps_manifests:
        return cursor.value if cursor else None
    # The truth, where the store was lost.
    return resolve_cursor(current_manifests(place.root()))


def read_boundary(place: PlanContext) -> Boundary:
    """Read what is remembered of the rows that have the committed cursor's value, and write nothing.

    Raises:
        ManifestUnreadable, StateError
    """
    cursor = place.state.cursor(place.export.name)
    if cursor is not None or not place.root().keeps_manifests:
        return cursor.boundary if cursor else Boundary()
    return resolve_boundary(current_manifests(place.root()))


def windows_to_run(place: PlanContext, keys: Sequence[str] | None, boundary: str | None) -> list[tuple[str, Window]]:
    """Name the windows that a run from `boundary` covers, as (table of a drain or '', window)."""
    export = place.export
    if (drain := drain_of(export)) is not None:
        key = START if boundary is None else f"after={boundary}"
        return [(table, Window(key)) for table in drain.captured]
    if keys is not None:
        return [("", window) for window in windows_of(export, keys)]
    if export.answers.keeps_boundary:
        return [("", Window.after(boundary, read_boundary(place).visit))]
    if export.answers.keeps_cursor:
        return [("", Window.after(boundary))]
    return [("", Window("all"))]


def read_committed(place: PlanContext, windows: Sequence[tuple[str, str]], boundary: str | None) -> CommittedWindows:
    """Read which of these windows, (table, key), are committed, as a reader sees them.

    Raises:
        ManifestUnreadable, DestinationError
    """
    found: dict[tuple[str, str], Manifest | None] = {}
    for table in dict.fromkeys(table for table, _ in windows):
        root = place.root(table)
        current = current_manifests(root) if root.keeps_manifests else {}
        found |= {(table, key): current.get(key) for each, key in windows if each == table}
    return CommittedWindows(boundary, found)


def history_of(place: PlanContext) -> RunHistory:
    """Sum up the newest runs that ended."""
    names = [each.name for each in chains_of(place.export)]
    found = sorted((run for name in names for run in place.state.runs(name, last=RUNS_LOOKED_AT)), key=_start_of)
    runs = [run for run in found[::-1] if run.finished_at is not None][: RUNS_LOOKED_AT * len(names)]
    # Failed runs say how often it fails, and nothing of how long it takes.
    committed = [run for run in runs if run.status == "success" and run.duration_ms is not None]
    seconds = [(run.duration_ms or 0) / 1000 for run in committed]
    return RunHistory(
        runs=len(runs),
        last_failed=bool(runs) and runs[0].status in ("failed", "interrupted"),
        retry_rate=sum(run.retries for run in runs) / len(runs) if runs else 0.0,
        average_seconds=sum(seconds) / len(seconds) if seconds else None,
        rows_per_second=rate_of(committed),
    )


def _start_of(run: RunRecord) -> datetime:
    return run.started_at


# --- what the source says ------------------------------------------------------------------------


def describe(place: PlanContext) -> tuple[tuple[str, str], ...]:
    """Look up the columns of what the export reads; those of a drain of several tables as `table.column`.

    Raises:
        UnknownTable, UnknownColumn, SourceError, ConfigError
    """
    place = _at(place, next(iter(place.export.shards or ("",))))
    with _session(place, snapshot=False) as session:
        return _columns(_relations(place.export, session), place.export)


def look_at(place: PlanContext, windows: Sequence[tuple[str, Window]], boundary: str | None) -> SourceLook:
    """Plan each window as its run would, up to MOST_LOOKED_AT, and ask the planner for its first statement.

    Raises:
        RivetError: whatever planning a run raises.
    """
    if (drain := drain_of(place.export)) is not None:
        return _look_at_log(place, drain, windows, boundary)
    export, asked = place.export.without_comparison()
    seen: list[PlannedExtract] = []
    wanted = [window for _, window in windows[:MOST_LOOKED_AT]]
    # One session per shard and not per window: each is another database, and windows of one follow one another.
    for shard, members in groupby(wanted, key=partial(shard_of, export)) if wanted else [("", iter(()))]:
        here = _at(place, shard)
        ours = here.export if here.export.of_shard else export
        begins_at = boundary_of(here) if here.export.of_shard else boundary
        with naming(shard), _session(here, snapshot=export.shares_snapshot, **INTERACTIVE_LIMITS) as session:
            ((_, relation),) = _relations(ours, session)
            seen += [_plan_window(here, ours, session, relation, window=each, cursor=begins_at) for each in members]
    notes = [note for each in seen if each.extract for note in each.extract.notes]
    drift = _drift(here, relation)
    return SourceLook(
        columns=_columns([("", relation)], export),
        seen=(*seen, *(PlannedExtract(window) for _, window in windows[MOST_LOOKED_AT:])),
        relation=relation,
        drift=drift,
        cursor_drift=cursor_drift(drift, ours, relation, state=here.state, root=here.root()),
        notes=tuple(dict.fromkeys([*asked, *notes])),
    )


def _at(place: PlanContext, shard: str) -> PlanContext:
    """Return where a shard is planned; of '' here."""
    name, source = source_of_shard(place.export, (place.source_name, place.source), shard)
    export = place.export.alone(shard) if shard and place.export.is_apart else place.export
    return replace(place, export=export, source_name=name, source=source)


def _session(place: PlanContext, *, snapshot: bool, **limits: int) -> Any:
    planned_pace = pace(place.source.tuning, place.export.tuning).model_copy(update=limits)
    return place.source.session(application=f"{APPLICATION}:{place.export.name}", pace=planned_pace, snapshot=snapshot)


def _relations(export: Export, session: Session) -> list[tuple[str, Relation]]:
    """Describe what the export reads: (table of a drain or '', relation)."""
    rules = export.type_rules()
    if (drain := drain_of(export)) is not None:
        return [(table, session.describe(table=table, query=None, params={}, rules=rules)) for table in drain.captured]
    return [("", session.describe(table=export.table, query=export.query, params=export.params, rules=rules))]


def _columns(relations: Sequence[tuple[str, Relation]], export: Export) -> tuple[tuple[str, str], ...]:
    """Return names and types; a tag that masks a column counts as a part of its type.

    Raises:
        ColumnTagRefused
    """
    several = len(relations) > 1
    return tuple(
        (f"{table}.{column.name}" if several else column.name, f"{column.arrow}{masks.get(column.name, '')}")
        for table, relation in relations
        for masks in [{e.name: f" masked by {e.tag!r}" for e in tagged_columns(export.steps, relation) or ()}]
        for column in relation.columns
    )


def _plan_window(
    place: PlanContext, export: Export, session: Session, relation: Relation, *, window: Window, cursor: str | None
) -> PlannedExtract:
    extract = cast(Mode, export).extract(
        Planning(
            source=place.source,
            session=session,
            relation=relation,
            window=window if export.has_partitions else None,
            cursor=cursor,
            boundary=read_boundary(place) if export.answers.keeps_boundary else None,
            run_id="plan",
            started_at=place.at,
            tasks=export.parallel,
        )
    )
    return PlannedExtract(window, extract, _explain(session, extract))


def _explain(session: Session, extract: Extract) -> Explained | None:
    """Ask how the first statement would run; a source that refuses to say so is no reason to plan nothing."""
    if not extract.chunks:
        return None
    try:
        # The first statement stands for all: they differ in bounds alone.
        return session.explain(extract.chunks[0], extract.relation.columns, pace=extract.pace)
    except RivetError:
        return None


def _drift(place: PlanContext, relation: Relation) -> Drift:
    """Compare what the relation becomes with the last commit, as a run does."""
    baseline = baseline_of(place.export.name, state=place.state, root=place.root())
    shaped = planned(relation, place.export.steps).schema
    return compare(baseline, [(field.name, str(field.type)) for field in shaped])


# --- change logs ---------------------------------------------------------------------------------


def _look_at_log(
    place: PlanContext, export: Cdc, windows: Sequence[tuple[str, Window]], boundary: str | None
) -> SourceLook:
    """Describe the tables, and ask the log how far behind we are; the log itself is not read."""
    with _session(place, snapshot=False, **INTERACTIVE_LIMITS) as session:
        relations = _relations(export, session)
    looked = SourceLook(
        columns=_columns(relations, export), seen=tuple(PlannedExtract(window) for _, window in windows)
    )
    # No position, nothing to be behind of: the log is not even opened, as a slot may not be there yet.
    if boundary is None:
        copies = export.cdc.initial is not None
        sizes = [relation.rows_estimate for _, relation in relations]
        note = "the first drain copies the tables" if copies else "the first drain begins where the log ends"
        known = copies and None not in sizes
        return replace(looked, notes=(note,), unread=sum(size or 0 for size in sizes) if known else None)
    checkpoints = checkpoints_of(export, state=place.state, folder=place.folder)
    try:
        with open_for_look(export, place.source, deployment=place.state.name) as log:
            found = look(log, checkpoints.load(checkpoint_key(export, place.source_name)))
    except RivetError as error:
        # Another reader may hold the log at this moment; a plan is made all the same.
        return replace(looked, notes=(f"how far it is behind could not be told: {error}",))
    return replace(looked, notes=tuple(_lag_notes(found)), unread=found.lag.unread_changes)


def _lag_notes(found: LogLook) -> Iterator[str]:
    if found.lost is not None:
        yield f"the log behind the position is gone: {found.lost}"
    lag = found.lag
    figures = {
        "changes": lag.unread_changes, "bytes": lag.unread_bytes, "bytes kept for us": lag.held_bytes,
        "seconds behind": None if lag.seconds is None else round(lag.seconds),
    }  # fmt: skip
    told = [f"{figure:,} {name}" for name, figure in figures.items() if figure is not None]
    yield f"unread: {', '.join(told)}" if told else "the source does not say how much is unread"
