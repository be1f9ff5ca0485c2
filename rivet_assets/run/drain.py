"""One run of a change export: its lease, its record, the drain, and what there is to tell of it.

Belongs here: what a drain is told by the configuration, the first copy of a table, drift. Not here: the order of
effects (`rivet_resources/drain/drain.py`), what Dagster is told (`dagster/drain_asset.py`).
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from rivet_assets.modes.protocol import Planning
from rivet_assets.run import interruption
from rivet_assets.run.admit.drained_tables import DrainedTables
from rivet_assets.run.attempt import Tell, new_run_id
from rivet_assets.run.baseline import META_COLUMNS, baseline_of
from rivet_assets.run.drift import Drift, compare, judge
from rivet_assets.run.journal import Journal
from rivet_assets.run.masked_columns import judge_masks, with_remembered
from rivet_assets.run.masked_keys import is_by_tag, refuse_merging
from rivet_assets.run.observation import ObservedRun, ObservedTable, Observer, begun_run, table_of, watched
from rivet_assets.run.progress import Progress
from rivet_assets.run.read_limits import ends_at_closing
from rivet_resources.commit.manifest import window_manifest
from rivet_resources.contracts.change_log import BEFORE, ENVELOPE, Handover, Lag, LogSource, Position
from rivet_resources.contracts.extract import Staged
from rivet_resources.contracts.messages import Registered, is_topic
from rivet_resources.contracts.parts import Measures
from rivet_resources.contracts.settings import pace
from rivet_resources.contracts.source import Session
from rivet_resources.contracts.transform import at_clock
from rivet_resources.drain.checkpoint_book import chain_of
from rivet_resources.drain.drain import drain
from rivet_resources.drain.plan import (
    Drained,
    DrainPlan,
    DrainServices,
    EndWithin,
    never_ends,
    table_run,
    write_finding,
)
from rivet_resources.errors import ConfigError
from rivet_resources.read.meter import refuse_now
from rivet_resources.read.source_cost import log_harm, total
from rivet_resources.shape.shape import schema_of
from rivet_resources.state.checkpoints.stores import Checkpoints, file_checkpoints, state_checkpoints
from rivet_resources.state.runs import RunRecord

if TYPE_CHECKING:
    from rivet_assets.blocks.export import Export
    from rivet_assets.modes.cdc import Cdc
    from rivet_assets.run.schema_agreement import SchemaGate
    from rivet_resources.contracts.destination import Root
    from rivet_resources.contracts.relation import Relation
    from rivet_resources.read.stage import Exporter
    from rivet_resources.state.store import State

OUR_COLUMNS = frozenset({field.name for field in ENVELOPE}) | META_COLUMNS | {BEFORE}
NO_LAG = Lag(unread_bytes=0, seconds=0.0)  # of a drain that found nothing, and asked no more
LEASE = "drain"  # the window key under which a drain holds its export


@dataclass(frozen=True)
class DrainSite:
    """Where one change export works during a run. `exporter` starts Spark when called, so only a first copy does."""

    export: Cdc
    source_name: str
    source: LogSource
    exporter: Callable[[], Exporter]
    state: State
    folder: Path  # of the config; a checkpoint file is named from it
    tell: Tell
    step: Callable[[str], None] = lambda name: None
    is_asked_to_end: Callable[[], bool] = lambda: False
    end_within: EndWithin = never_ends
    is_adopting: bool = False
    drifts: dict[str, Drift] = field(default_factory=dict)  # by table, as they are found
    warnings: list[str] = field(default_factory=list)  # what is worth a word and stops nothing
    costs: list[Mapping[str, float]] = field(default_factory=list)  # of first copies, to the source
    progress: Callable[[Progress], None] = lambda progress: None  # of first copies
    begin_anew: Callable[[Export], None] | None = None  # under the lease; None: go on from the checkpoint
    asked: str = ""  # of this run, by its run config
    observer: Observer | None = None  # hears of each drain
    schemas: Callable[[Export], SchemaGate | None] = lambda export: None  # of one table's messages

    @property
    def roots(self) -> dict[str, Root]:
        """Address the folder of each table."""
        return {t: self.export.destination.root(self.export.folder_of(t)) for t in self.export.captured}


def checkpoints_of(export: Cdc, *, state: State, folder: Path) -> Checkpoints:
    """Return the place where the export's position is kept: a file if it names one, else the state store."""
    if export.cdc.checkpoint is None:
        return state_checkpoints(state)
    # A slash at its end says: a folder.
    return file_checkpoints(os.path.join(folder, export.cdc.checkpoint))


def checkpoint_key(export: Cdc, source_name: str) -> str:
    """Name the export's checkpoint: `<source>.<export>`."""
    return f"{source_name}.{export.name}"


def run_drain(site: DrainSite) -> Drained:
    """Drain once, under the export's lease; keep the record of the run.

    Raises:
        WindowBusy: another drain of the export is running.
        RivetError: whatever draining raises; the next run starts at the last checkpoint.
    """
    export, started_at = site.export, datetime.now(UTC)
    run_id = new_run_id(export.name, started_at)
    with (
        watched(site.observer, _observed(site, run_id, started_at)) as seen,
        # One drain per export, as one position is moved: the lease tells soon, the checkpoint's generation fences for
        # good.
        site.state.lease(export.name, LEASE, run_id) as lease,
        _record_runs(site, RunRecord(run_id, export.name, LEASE, started_at, mode=export.mode)) as (outcome, tables),
    ):
        # Before anything is forgotten or asked of the log: a closed reading window leaves all as it is.
        refuse_now(
            site.source, name=f"Export {export.name}", state=site.state, pace=pace(site.source.tuning, export.tuning),
            at=started_at,
        )  # fmt: skip
        if site.begin_anew is not None:
            site.begin_anew(site.export)
        # Behind `begin_anew`, which forgets the checkpoint that the plan's first step would go on from.
        plan = plan_of(site, run_id, started_at)
        roots = site.roots
        hands = DrainServices(
            state=site.state,
            checkpoints=checkpoints_of(export, folder=site.folder, state=site.state),
            lease=lease,
            roots=roots,
            copy=_Copies(site, plan, roots),
            judge=_Judge(site),
            admit=tables.admit,
            begin=tables.begin,
            is_adopting=site.is_adopting,
            scratch=Path(tempfile.gettempdir()),
            tell=site.tell,
            step=site.step,
            # Between windows only: one that is begun is small, and its end is the next place where nothing is lost.
            is_asked_to_end=ends_at_closing(site.source, site.is_asked_to_end),
            end_within=site.end_within,
            registered=_Registering(site),
            judge_tags=_Tags(site),
        )
        drained = drain(plan, hands)
        site.warnings.extend(warnings_of(drained))
        outcome.update(_figures(site, drained))
        seen |= {"tables": _observed_tables(site, drained), "seconds": _steps(drained)}
        return drained


def _observed(site: DrainSite, run_id: str, started_at: datetime) -> ObservedRun:
    tables = _observed_tables(site, None)
    return begun_run(
        site.export, site.source_name, site.source, run_id=run_id, window=LEASE, started_at=started_at, tables=tables
    )


def _observed_tables(site: DrainSite, drained: Drained | None) -> tuple[ObservedTable, ...]:
    found = []
    for table, root in site.roots.items():
        name = ".".join(filter(None, site.source.lineage_name(table)))
        mine = drained.tables[table] if drained is not None else None
        seen = ObservedTable(name, root.uri) if mine is None or mine.last is None else table_of(
            mine.last, source=name, uri=root.uri
        )  # fmt: skip
        if mine is not None:
            seen = replace(seen, rows=mine.rows, files=mine.files, size_bytes=mine.size_bytes)
        found.append(seen)
    return tuple(found)


def _steps(drained: Drained) -> dict[str, float]:
    """Return the steps of a drain in their order; those of several windows are added up."""
    order = ("begin", "read", "write", "publish", "acknowledge")
    return {step: drained.seconds[step] for step in order if step in drained.seconds}


def warnings_of(drained: Drained) -> list[str]:
    """Word what the log warned of: at the first run of its prerequisites, at each of tables that are gone."""
    return [write_finding(finding) for finding in drained.findings if finding.status == "warn"]


def plan_of(site: DrainSite, run_id: str, started_at: datetime) -> DrainPlan:
    """Return what the export's YAML means for a drain."""
    export, block = site.export, site.export.cdc
    return DrainPlan(
        capture=export.capture(deployment=site.state.name),
        source=site.source,
        destination=export.destination,
        format=export.format_settings(),
        pace=pace(site.source.tuning, export.tuning),
        key=checkpoint_key(export, site.source_name),
        source_name=site.source_name,
        run_id=run_id,
        started_at=started_at,
        folders={table: export.folder_of(table) for table in export.captured},
        steps=at_clock(export.steps, started_at),
        exported_at=export.meta_columns.exported_at,
        initial=block.initial == "snapshot",
        until_current=block.until_current,
        as_lines=export.destination.is_stream,
        keys=_message_keys(site) if is_topic(export.destination) else {},
        rollover=block.rollover,
        rollover_bytes=block.rollover_memory_mb << 20,
        window_bytes=block.window_bytes,
        commit_every=block.commit_every,
    )


def _message_keys(site: DrainSite) -> dict[str, tuple[str, ...]]:
    """Return the columns of each table's messages that tell its rows apart.

    Raises:
        UnknownColumn: the configured key is no column.
        ConfigError: a table has no key, and none is configured.
    """
    export = site.export
    given = _given_key(export)
    if given and not is_by_tag(export):
        refuse_merging(export, None, given)
        return dict.fromkeys(export.captured, given)
    keys = {}
    with _session(site) as session:
        for table in export.captured:
            relation = session.describe(table=table, query=None, params={}, rules=export.type_rules())
            # Asked of the catalog: a log tells a row by its replica identity, which may be the whole row.
            keys[table] = given or relation.key
            refuse_merging(export.of_table(table), relation, keys[table])
            if not keys[table]:
                raise ConfigError(
                    f"Export {export.name}: table {table} has no key, so its changes would be of no row. Name the "
                    f"columns that tell its rows apart as `destination: {{key: […]}}`."
                )
    return keys


def _given_key(export: Cdc) -> tuple[str, ...]:
    """Return the columns that the configuration calls the key of a row; () where it leaves that to the table."""
    given: tuple[str, ...] | None = getattr(export.destination, "key", None) or export.key
    return given or ()


def _key_of_table(site: DrainSite, table: str) -> tuple[str, ...]:
    """Ask the catalog for the key: a log tells a row by its replica identity, which may be the whole row."""
    with _session(site) as session:
        return session.describe(table=table, query=None, params={}, rules=site.export.type_rules()).key


def _session(site: DrainSite) -> AbstractContextManager[Session]:
    application, paced = f"rivet:{site.export.name}", pace(site.source.tuning, site.export.tuning)
    return site.source.session(application=application, pace=paced, snapshot=False)


@dataclass(frozen=True)
class _Registering:
    """Registers the schemas of messages, a table's by its own gate."""

    site: DrainSite
    gates: dict[str, Registered | None] = field(default_factory=dict)

    def __call__(self, table: str) -> Registered | None:
        """Return what registers the columns of a table's rows; None where they are plain JSON."""
        if table not in self.gates:
            gate = self.site.schemas(self.site.export.of_table(table))
            # Asked once per table and drain; the gate itself remembers what was agreed.
            self.gates[table] = None if gate is None else lambda schema: gate.register(gate.agree(schema))
        return self.gates[table]


@dataclass(frozen=True)
class _Copies:
    """Stages what comes before the first change of each table."""

    site: DrainSite
    plan: DrainPlan
    roots: Mapping[str, Root]

    def __call__(self, table: str, position: Position, handover: Handover | None, *, absent: frozenset[str]) -> Staged:
        """Stage all rows under the handover's instant, or nothing but the schema."""
        if handover is not None:
            tasks = self.site.exporter().spark.parallelism
            extract = self._extract(handover.session, table, position, absent, tasks=tasks)
            for note in extract.notes:
                self.site.tell(f"{extract.export}: {note}.")
            staged = self.site.exporter().stage(extract, on_progress=self._progress(table))
            self.site.costs.append(staged.harm)
            return staged
        application = f"rivet:{self.plan.export}"
        # Without a first copy the window holds no row. It is committed all the same: its manifest is where the chain
        # begins, and its schema what the next window is compared with.
        with self.site.source.session(application=application, pace=self.plan.pace, snapshot=False) as session:
            extract = replace(self._extract(session, table, position, absent, tasks=1), chunks=(), notes=())
        root = self.roots[table]
        standing = window_manifest(root, extract.window) if root.keeps_manifests else None
        return Staged(
            extract=extract,
            parts=(),
            measures=Measures(),
            schema_ipc=schema_of(extract).serialize().to_pybytes(),
            previous=standing[1] if standing else None,
            started_at=self.plan.started_at,
            consistency="log",
        )

    def _progress(self, table: str) -> Callable[[int, int, int], None]:
        """Return what tells watchers how much of a table is copied."""
        export, began = self.site.export, time.monotonic()
        window = table if len(export.captured) > 1 else ""

        def tell(done: int, of: int, rows: int) -> None:
            self.site.progress(Progress(export.name, window, done, of, rows, time.monotonic() - began))

        return tell

    def _extract(self, session: Session, table: str, position: Position, absent: frozenset[str], *, tasks: int) -> Any:
        export = self.site.export.of_table(table)
        relation = session.describe(table=table, query=None, params={}, rules=export.type_rules())
        # Columns that the log does not carry: a copy that has them would show values which no change ever brings up to
        # date.
        kept = tuple(column for column in relation.columns if column.name not in absent)
        relation = _Tags(self.site)(table, replace(relation, columns=kept))
        return export.extract(
            Planning(
                source=self.site.source,
                session=session,
                relation=relation,
                window=None,
                cursor=position.key,
                run_id=self.plan.run_of(table),
                started_at=self.plan.started_at,
                tasks=tasks,
            )
        )


@dataclass(frozen=True)
class _Tags:
    """Judges the tags of a table's columns before any of its rows is written."""

    site: DrainSite

    def __call__(self, table: str, relation: Relation) -> Relation:
        """Return it with what is remembered of columns that are gone; told is which are masked for the first time.

        Raises:
            DriftRefused, ColumnTagRefused: nothing was published, and the position is where it was.
        """
        site, export = self.site, self.site.export.of_table(table)
        root = site.roots[table]
        known = with_remembered(export, relation, state=site.state, root=root)
        for note in judge_masks(export, known, state=site.state, root=root, key=lambda: self._key(table)):
            site.warnings.append(note)
            site.tell(f"{export.name}: {note}.")
        return known

    def _key(self, table: str) -> tuple[str, ...]:
        """Return what tells the rows of a table apart where tables are made of its changes, or messages are."""
        export = self.site.export
        if not export.apply and not is_topic(export.destination):
            return ()
        return _given_key(export) or _key_of_table(self.site, table)


@dataclass(frozen=True)
class _Judge:
    """Compares the columns of a staged window with the last commit's."""

    site: DrainSite

    def __call__(self, table: str, staged: Staged, *, is_between: bool = False) -> None:
        """Judge by the export's policy, and tell; columns that came and went within a window only `fail` refuses.

        Raises:
            DriftRefused: nothing was published, and the position is where it was.
        """
        if self.site.export.destination.is_stream:  # a stream has no columns to be held to
            return
        export, name = self.site.export, staged.extract.export
        baseline = baseline_of(name, state=self.site.state, root=self.site.roots[table], without=OUR_COLUMNS)
        schema = pa.ipc.read_schema(pa.py_buffer(staged.schema_ipc))
        now = [(each.name, str(each.type)) for each in schema if each.name not in OUR_COLUMNS]
        drift = compare(baseline, now)
        # A window that is read again begins with columns older than the baseline, which `evolve` must let pass.
        if is_between and export.on_schema_drift != "fail":
            return
        judge(drift, export.on_schema_drift, export=name, relation=table)
        if drift:
            self.site.drifts[table] = drift
            if export.on_schema_drift != "continue":
                self.site.tell(f"{name}: the columns of {table} changed: {drift}.")


@contextmanager
def _record_runs(site: DrainSite, run: RunRecord) -> Iterator[tuple[dict[str, Any], DrainedTables]]:
    """Keep the run's row: running, then what the drain made of it; tables of several have rows of their own too."""
    outcome: dict[str, Any] = {"status": "success"}
    tables = DrainedTables(
        site.export, site.state, site.roots, run,
        run_of=lambda table: table_run(run.run_id, site.export.folder_of(table), export=site.export.name),
        ends=lambda: _ends(site), tell=site.tell, is_adopting=site.is_adopting,
    )  # fmt: skip
    with ExitStack() as stack:
        site.state.begin_run(run)
        stack.callback(_finish, site, run.run_id, outcome, run.started_at)
        # Callbacks run in reverse: the tables' runs end before the drain's own, whose row says that all is over.
        stack.callback(tables.finish, outcome)
        try:
            yield outcome, tables
        except BaseException as error:
            outcome["status"] = interruption.status_of(error)
            outcome["error_code"], outcome["error_message"] = interruption.code_and_text(error)
            raise


def _ends(site: DrainSite) -> dict[str, str]:
    """Read where the last window of each table ended."""
    kept = checkpoints_of(site.export, state=site.state, folder=site.folder)
    return chain_of(kept.load(checkpoint_key(site.export, site.source_name)))


def _finish(site: DrainSite, run_id: str, outcome: Mapping[str, Any], started_at: datetime) -> None:
    known = dict(outcome)
    finished_at = datetime.now(UTC)
    known["duration_ms"] = round((finished_at - started_at).total_seconds() * 1000)
    status = known.pop("status")
    journal = Journal(site.state, run_id, site.export.name, tell=site.tell)
    for warning in site.warnings:
        journal.warned(warning)
    for table, drift in site.drifts.items():
        journal.drifted(drift, table=table)
    journal.completed(status, known)
    site.state.finish_run(run_id, status, finished_at=finished_at, **known)


def _figures(site: DrainSite, drained: Drained) -> dict[str, Any]:
    tables = drained.tables.values()
    measures = sum((table.measures for table in tables), Measures())
    export, lag = site.export, drained.lag or NO_LAG
    return {
        "total_rows": sum(table.rows for table in tables),
        "files_produced": sum(table.files for table in tables),
        "bytes_written": sum(table.size_bytes for table in tables),
        "format": export.format,
        "compression": export.format_settings().codec,
        "tuning_profile": pace(site.source.tuning, export.tuning).profile,
        "consistency": "log",
        "cursor_low": drained.started_from.text if drained.started_from else None,
        "cursor_high": drained.position.text,
        "retries": measures.retries,
        "longest_statement_ms": measures.longest_statement_ms,
        "cpu_seconds": measures.cpu_seconds,
        "peak_mb": measures.peak_mb,
        # Every part was read back before it was staged.
        "validated": True,
        "schema_changed": bool(site.drifts),
        "degraded": measures.retries > 0,
        "source_type": site.source.type,
        "destination_type": export.destination.type,
        "rows_read": measures.rows_read,
        "harm": json.dumps(total([*site.costs, log_harm(seconds=drained.seconds.get("read", 0.0), lag=lag)])),
    }
