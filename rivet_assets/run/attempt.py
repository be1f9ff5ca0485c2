"""One window, from its lease to its verdicts: plan, compare the schema, stage, audit. Nothing becomes visible here.

Belongs here: the order of a run before publishing, the same for every mode and without Dagster. Not here: what Dagster
is told of it (`dagster/export_asset.py`), staging (`read/stage.py`), publishing (`commit/publish.py`).
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, cast

from rivet_assets.modes.by_shard import kept_as, naming, shard_of, shard_window, source_of_shard
from rivet_assets.modes.protocol import Mode, Planning, require_name
from rivet_assets.run import interruption
from rivet_assets.run.admit.admission import Admission, last_of_chain, refuse_unproven
from rivet_assets.run.baseline import baseline_of, cursor_drift
from rivet_assets.run.drift import Drift, compare, judge, refuse_reordered
from rivet_assets.run.journal import Journal
from rivet_assets.run.judge.profiles import with_profile
from rivet_assets.run.judge.quality import (
    Verdict,
    blocks,
    rules_of,
)
from rivet_assets.run.judge.verdicts import judge_columns, judge_window, notes_of
from rivet_assets.run.masked_columns import judge_masks
from rivet_assets.run.observation import ObservedRun, ObservedTable, Observer, begun_run, figures_of, table_of, watched
from rivet_assets.run.progress import Progress
from rivet_assets.run.read_limits import budget_notes
from rivet_assets.run.schema_agreement import SchemaGate, SchemaProposal
from rivet_assets.run.topics import finished_in_topic, registered_columns
from rivet_resources.commit.chain import ends_at, resolve_boundary, resolve_cursor
from rivet_resources.commit.manifest import current_manifests, window_manifest
from rivet_resources.commit.publish import discard
from rivet_resources.commit.remembered import Remembered
from rivet_resources.contracts.destination import ReadableRoot
from rivet_resources.contracts.extract import Extract, Staged, Window
from rivet_resources.contracts.messages import Topic
from rivet_resources.contracts.relation import Relation
from rivet_resources.contracts.rows.boundary import Boundary
from rivet_resources.contracts.settings import pace
from rivet_resources.errors import DriftRefused, GateRefused, RivetError
from rivet_resources.shape.shape import planned
from rivet_resources.state.cursors import Cursor
from rivet_resources.state.runs import RunRecord

if TYPE_CHECKING:
    from rivet_assets.blocks.export import Export
    from rivet_resources.contracts.destination import Root
    from rivet_resources.contracts.source import Source
    from rivet_resources.read.stage import Exporter
    from rivet_resources.state.leases import Lease
    from rivet_resources.state.store import State

Tell = Callable[[str], None]  # one line for the log of the run
# Lease of exports that have one window at a time, whatever its key will be.
WHOLE = "all"


@dataclass(frozen=True)
class Site:
    """Where one export works during a run."""

    export: Export
    source_name: str
    source: Source
    exporter: Exporter
    state: State
    root: Root
    tell: Tell
    progress: Callable[[Progress], None] = field(default=lambda progress: None)
    place: str = ""  # the destination as configured, `{date}` not filled; '' where nobody asks
    admission: Admission = field(default_factory=Admission)
    begin_anew: Callable[[Export], None] | None = None  # under the lease, before planning; None: go on
    asked: str = ""  # of this run, by its run config
    observer: Observer | None = None  # hears of each window
    schemas: SchemaGate | None = None  # lets the schema pass; None: it is registered nowhere
    shard: str = ""  # of one window: the database that `source` is then
    warn: Tell | None = None  # of what somebody has to do, which the run's summary shows; None: `tell`

    def at(self, window: Window | None) -> Site:
        """Return where one window is read: of a shard, in its database; else here.

        Raises:
            ConfigError: the export has no such shard.
        """
        shard = shard_of(self.export, window)
        name, source = source_of_shard(self.export, (self.source_name, self.source), shard)
        if not shard:
            return self
        site = replace(self, source_name=name, source=source, shard=shard)
        return site._apart() if self.export.is_apart else site

    def _apart(self) -> Site:
        """Return where a shard works that is an export by itself: its windows lie in a folder below the whole's."""
        one = self.export.alone(self.shard)
        place = self.place and f"{self.place}/{shard_window(self.shard).folder}"
        return replace(self, export=one, root=one.destination.root(one.name), place=place)

    def planned_window(self, window: Window | None) -> Window | None:
        """Return the window that the mode is asked to plan; None where it names its own."""
        return None if self.export.of_shard else window

    @property
    def kept_as(self) -> str:
        """Return the name under which is kept of which database its rows are."""
        return kept_as(self.export, self.shard)


@dataclass(frozen=True)
class Attempt:
    """A staged window with everything known about it; publish it or leave the block with an error."""

    staged: Staged
    lease: Lease
    verdicts: tuple[Verdict, ...]
    drift: Drift
    previous_rows: int | None  # of the window's committed manifest; only windows of time look
    seen: Remembered | None = None  # what was read of the place for this window; None: a topic
    shard: str = ""  # whose chain the window is of, where each has its own

    @property
    def window(self) -> Window:
        """Return the window it covers."""
        return self.staged.extract.window

    @property
    def partition(self) -> str:
        """Name Dagster's partition of it, where its export has partitions."""
        return self.shard or self.window.partition

    @property
    def is_skipped(self) -> bool:
        """Return whether there is nothing to publish: no row, and `skip_empty`."""
        return self.staged.is_nothing and not self.is_refused

    @property
    def is_refused(self) -> bool:
        """Return whether the gate refuses it."""
        return blocks(self.verdicts)


@contextmanager
def attempt(site: Site, window: Window | None = None) -> Iterator[Attempt]:
    """Stage and judge one window under its lease; keep the record of the run.

    A block left with an error leaves a run recorded as failed, and nothing staged but what a resumable window may use
    again; one left without has published, or the attempt was skipped.

    Raises:
        WindowBusy: another run works on the window.
        ProvenanceRefused: state or destination are of another database.
        DriftRefused: the schema changed and the policy refuses; no row was read.
        RivetError: whatever planning and reading raise.
    """
    started_at, site = datetime.now(UTC), site.at(window)
    window = site.planned_window(window)
    # Before the lease: a backfill that was told to end must not begin its next window, and has nothing to give back
    # yet.
    interruption.stop_here()
    run_id = new_run_id(site.export.name, started_at)
    # One lease for all windows of a moving cursor: two runs at once would read the same rows, and only one could
    # commit.
    key = window.key if window else WHOLE
    journal = Journal(site.state, run_id, site.export.name, tell=site.tell)
    with (
        # First: it waits for others unleased.
        watched(site.observer, _observed(site, run_id, key, started_at)) as seen,
        # Before the source is asked for anything: who waits in vain must not have cost it a connection.
        site.state.lease(site.export.name, key, run_id) as lease,
        # Behind the lease: a run that finds its window busy leaves no record.
        record_run(site, run_id, key, started_at, journal=journal) as outcome,
        naming(site.shard),
    ):
        if site.begin_anew is not None:
            # Under the lease: to forget a cursor while another run moves it would leave what that run saved.
            site.begin_anew(site.export)
        made = _stage(site, window, run_id, started_at, lease, journal)
        # Before the block: a publish that fails is recorded with the figures of what was read for it.
        outcome.update(figures(made))
        journal.retried(made.staged.measures)
        journal.judged(made.verdicts, made.drift)
        if site.observer is not None:
            seen |= {"window": made.window.key, "tables": (_observed_table(site, made.staged),)}
            seen |= {"seconds": made.staged.seconds_in_order, "figures": figures_of(made.staged)}
        staged_at = time.monotonic()
        try:
            yield made
        except BaseException:
            # What may be used again stays: after a failed publish the next run takes these chunks over and reads
            # nothing. Not so what a rule refused: the rows themselves are wrong, and have to be read again.
            if made.is_refused or not made.staged.extract.resumable:
                forget_after_failure(site, made.staged)
            raise
        if made.is_skipped:
            seen["status"] = "skipped"
            forget_staged(site, made.staged)
        else:
            if site.observer is not None:
                seen["seconds"]["publish"] = time.monotonic() - staged_at
            # Only now, behind the block: of which database the state is counts once something of it is committed.
            remember(site, made.staged.extract)


def _observed(site: Site, run_id: str, key: str, started_at: datetime) -> ObservedRun:
    table = ObservedTable(site.export.table or f"query of {site.export.name}", site.root.uri)
    return begun_run(
        site.export, site.source_name, site.source, run_id=run_id, window=key, started_at=started_at, tables=(table,)
    )


def _observed_table(site: Site, staged: Staged) -> ObservedTable:
    relation = staged.extract.relation
    names = site.source.lineage_name(relation.sql) if relation.is_table else (f"query of {site.export.name}",)
    return table_of(staged, source=".".join(filter(None, names)), uri=site.root.uri)


def new_run_id(export: str, started_at: datetime) -> str:
    """Name a run of one window: `orders_20260131T031500.123_a1b2c3`."""
    stamp = f"{started_at:%Y%m%dT%H%M%S}.{started_at.microsecond // 1000:03d}"
    return f"{export.replace('/', '.')}_{stamp}_{secrets.token_hex(3)}"  # it names folders


def committed_cursor(site: Site, root: ReadableRoot | None = None) -> Cursor:
    """Read how far the export has committed; no value before the first run and after a reset.

    A store that knows nothing of an export whose destination has manifests, or less than these, is filled from them:
    they are the truth.

    Args:
        root: the export's, with what was read of it already.
    """
    if not site.export.answers.keeps_cursor:
        return Cursor(None)
    held = site.state.cursor(site.export.name)
    # Of a topic the store's word is not enough: a run may have produced a window and died before it could say so.
    if held is not None and not isinstance(site.root, Topic) and not _is_behind(site, held, root or site.root):
        return held
    if not site.root.keeps_manifests:
        refuse_unproven(site)
        return Cursor(None)
    manifests = current_manifests(site.root)
    cursor = resolve_cursor(manifests)
    # The topic agrees with the store, or holds nothing yet.
    if held is not None and cursor in (None, held.value):
        return held
    # Manifests may be of another file's export of the same name, whose cursor an earlier Rivet took.
    if not site.admission.is_adopting:
        refuse_unproven(site, manifests.values())
    if cursor is None:
        return Cursor(None)
    # With the cursor, so that rows of its very value which are published already are left out, as without the loss.
    boundary = resolve_boundary(manifests) if site.export.answers.keeps_boundary else Boundary()
    site.state.rebuild(site.export.name, manifests.values(), cursor=cursor, boundary=boundary)
    site.tell(f"State of {site.export.name} was rebuilt from {len(manifests)} manifests; its cursor is {cursor!r}.")
    return Cursor(cursor, boundary)


def _is_behind(site: Site, held: Cursor, root: ReadableRoot) -> bool:
    """Return whether runs that the store does not know committed what is there: the store is older than that.

    As one that was restored from a copy is. To read from its cursor again would replace windows by what the source has
    now, and rows that it has no more would be gone; or, where a reset made another chain of windows since, show rows
    twice beside that. A run that died behind its manifest is known, and is done again.
    """
    if held.value is None or not site.root.keeps_manifests:
        return False
    place = (held.value, held.boundary.visit)
    found = window_manifest(root, Window.after(*place))
    if found is not None:
        return site.state.run(found[0].run_id) is None
    last = last_of_chain(site.state, site.export.name)
    before = window_manifest(root, last) if last else None  # read already, when its database was told
    if before is not None and before[0].cursor is not None and ends_at(before[0].cursor) == place:
        return False
    chain = {each.run_id: each.cursor for each in current_manifests(site.root).values() if each.cursor is not None}
    if not chain or place in map(ends_at, chain.values()):
        return False
    return not chain.keys() <= site.state.known_runs(site.export.name)


def remember(site: Site, extract: Extract) -> None:
    """Keep of which database the export's state is, once it is of any."""
    if extract.provenance is not None:
        site.state.remember(site.kept_as, extract.provenance, destination=site.place)


def forget_staged(site: Site, staged: Staged) -> None:
    """Remove what was staged, and the progress that would bring it back: rows of a refused window are read again."""
    # First: where the store refuses to remove them, a later run must not take them all the same.
    if staged.extract.resumable:
        site.state.forget_chunks(staged.extract.export, staged.extract.window.key)
    discard(staged, root=site.root)


def forget_after_failure(site: Site, staged: Staged) -> None:
    """Do the same behind a failure, which a fault here must not hide; the next run's sweep finds what stays."""
    try:
        forget_staged(site, staged)
    except RivetError as error:
        site.tell(f"What {staged.extract.run_id} staged could not be removed now; the next run does. {error}")


def _stage(
    site: Site, window: Window | None, run_id: str, started_at: datetime, lease: Lease, journal: Journal
) -> Attempt:
    export, began = site.export, time.monotonic()
    # One memory from plan to commit: the window's manifest is read here, and again only if a listing says it has
    # changed.
    seen = None if isinstance(site.root, Topic) else Remembered(site.root)
    planned = pace(site.source.tuning, export.tuning)
    with (
        # Permits before the connection: who has to wait for a share of the source's connections holds none meanwhile.
        site.exporter.permits(site.source, run_id=run_id, pace=planned, on_event=_waiting(site, journal)) as permits,
        ExitStack() as connected,
    ):
        session = connected.enter_context(
            site.source.session(application=f"rivet:{export.name}", pace=planned, snapshot=export.shares_snapshot)
        )
        relation = session.describe(
            table=export.table, query=export.query, params=export.params, rules=export.type_rules()
        )
        # The first thing after the description, and before what may remove anything: a sweep at a place that holds
        # another database's rows would take these for leftovers.
        near = last_of_chain(site.state, export.name) if export.answers.window == "after" and seen else window
        provenance = site.admission.of(site, session, relation, seen=seen or site.root, window=near)
        before = window_manifest(seen or site.root, window) if window and site.root.keeps_manifests else None
        # Before the extract: `fail` must cost the source no more than the catalog.
        drift = _judge_drift(site, relation)
        masked = judge_masks(export, relation, state=site.state, root=site.root)
        agreed = judge_columns(export, relation, window.key if window else WHOLE, journal)
        committed = committed_cursor(site, seen)
        if committed.value is not None and export.cursor is not None:
            ordered = cursor_drift(drift, export, relation, state=site.state, root=seen or site.root)
            refuse_reordered(ordered, export.cursor, export=export.name, relation=relation.name)
        extract = cast(Mode, export).extract(
            Planning(
                source=site.source,
                session=session,
                relation=relation,
                window=window,
                cursor=committed.value,
                boundary=committed.boundary,
                run_id=run_id,
                started_at=started_at,
                tasks=site.exporter.spark.parallelism,
                runs=len(site.state.known_runs(export.name)) if export.answers.counts_runs else 1,
            )
        )
        extract = replace(extract, provenance=provenance, notes=(*extract.notes, *masked))
        if (finished := finished_in_topic(extract, root=site.root, state=site.state, tell=site.tell)) is not None:
            return Attempt(finished, lease, (), drift, None)
        # Agreed before a row is read, registered when the window is ready: a schema that readers cannot take is refused
        # while that costs nothing, and a window that a rule stops leaves no version behind.
        proposal = site.schemas.agree(registered_columns(extract)) if site.schemas is not None else None
        if extract.resumable:  # its finished chunks outlive the run
            remember(site, extract)
        for note in extract.notes:
            site.tell(f"{export.name} {extract.window.key}: {note}.")
        if relation.caution:
            (site.warn or site.tell)(f"{export.name}: {relation.caution}.")
        journal.planned(extract)
        # Readable while it runs; windows of time follow each other quickly, and what is empty has no while.
        if window is None and not all(chunk.is_empty for chunk in extract.chunks):
            journal.write()
        if extract.snapshot is None:
            connected.close()  # nothing rests on it, and its transaction would hold the server back until the last page
        plan_seconds = time.monotonic() - began
        staged = site.exporter.stage(
            extract, on_progress=_progress(site, extract, journal), on_event=journal.add, permits=permits, seen=seen
        )
    staged = replace(staged, seconds={**staged.seconds, "plan": plan_seconds})
    staged = with_profile(staged, root=site.root, journal=journal)
    for note in budget_notes(site.source, export, state=site.state, at=datetime.now(UTC)):
        staged = replace(staged, extract=replace(staged.extract, notes=(*staged.extract.notes, note)))
        journal.add("BudgetWarning", {"text": note})
        site.tell(f"{export.name} {extract.window.key}: {note}.")
    for note in notes_of(staged):
        staged = replace(staged, extract=replace(staged.extract, notes=(*staged.extract.notes, note)))
        journal.warned(note)
        site.tell(f"{export.name} {extract.window.key}: {note}.")
    # From counts of the pass that wrote: nothing is read a second time, and nothing is visible yet.
    verdicts = (*agreed, *judge_window(export, staged, drift, root=site.root, state=site.state))
    # Last before publishing, so that the window's manifest and messages name the id that the registry gave.
    if site.schemas is not None and proposal is not None and not blocks(verdicts) and not staged.is_nothing:
        staged = _registered(site.schemas, proposal, staged, site, journal)
    return Attempt(
        staged,
        lease,
        verdicts,
        drift,
        before[0].row_count if before else None,
        seen,
        shard=export.of_shard,
    )


def _registered(schemas: SchemaGate, proposal: SchemaProposal, staged: Staged, site: Site, journal: Journal) -> Staged:
    """Register the schema of a window that is about to be published; one that cannot be is discarded.

    Raises:
        SchemaRegistryError, SchemaIncompatible
    """
    try:
        found = schemas.register(proposal)
    except BaseException:
        if not staged.extract.resumable:
            forget_after_failure(site, staged)
        raise
    journal.add("SchemaRegistered", {"subject": found.subject, "version": found.version, "id": found.id})
    return replace(staged, extract=replace(staged.extract, registered=found))


def _waiting(site: Site, journal: Journal) -> Callable[[str, Mapping[str, Any]], None]:
    """Return what tells at once that a run waits for connections, or has them: nothing else happens meanwhile."""

    def tell(event: str, facts: Mapping[str, Any]) -> None:
        journal.add(event, facts)
        journal.write()
        site.tell(f"{site.export.name}: {event}: {', '.join(f'{name} {value}' for name, value in facts.items())}.")

    return tell


def _progress(site: Site, extract: Extract, journal: Journal) -> Callable[[int, int, int], None]:
    """Return what tells watchers that reading begins, of rows and of finished chunks; the journal of chunks alone."""
    began, noted = time.monotonic(), 0

    def tell(done: int, of: int, rows: int) -> None:
        nonlocal noted
        seconds = time.monotonic() - began
        site.progress(Progress(extract.export, extract.window.key, done, of, rows, seconds))
        if done > noted:
            noted = done
            journal.chunk(done, of, rows)

    tell(0, len(extract.chunks), 0)
    return tell


def _judge_drift(site: Site, relation: Relation) -> Drift:
    """Compare what the relation becomes with the last commit's schema, before the first row is read.

    Raises:
        DriftRefused: by the export's policy.
        ManifestUnreadable: the last commit's columns are known from there alone.
        UnknownColumn: `null_ratio_max` names a column that is not there.
        TransformError: a transform does not fit the relation.
    """
    export = site.export
    shaped = planned(relation, export.steps).schema
    columns = [(field.name, str(field.type)) for field in shaped]
    baseline = baseline_of(export.name, state=site.state, root=site.root)
    # Several at once have no commit to be compared with, the first time.
    if site.shard:
        baseline = baseline or site.admission.first_columns(columns)
    drift = compare(baseline, columns)
    judge(drift, export.on_schema_drift, export=export.name, relation=relation.name)
    if drift and export.on_schema_drift != "continue":
        site.tell(f"{export.name}: the columns of {relation.name} changed since the last run: {drift}.")
    for rule in rules_of(export.quality):
        if rule.kind == "null_ratio_max":
            require_name(shaped, rule.column, key="quality.null_ratio_max")
    return drift


@contextmanager
def record_run(
    site: Site, run_id: str, key: str, started_at: datetime, *, journal: Journal | None = None
) -> Iterator[dict[str, Any]]:
    """Keep the run's row and the end of its journal: running, then what the block made of it.

    Yields the figures to write with the end.
    """
    journal = journal or Journal(site.state, run_id, site.export.name, tell=site.tell)
    outcome: dict[str, Any] = {"status": "success"}
    # Marks earlier runs of the export whose process is dead: nobody else does.
    site.state.begin_run(RunRecord(run_id, site.export.name, key, started_at, mode=site.export.mode))
    try:
        yield outcome
    except BaseException as error:
        # What fails because the process was told to end is no failure of the export: it counts as interrupted.
        outcome["status"] = interruption.status_of(error)
        outcome["error_code"], outcome["error_message"] = interruption.code_and_text(error)
        if isinstance(error, GateRefused):
            outcome["quality_passed"] = False
        if isinstance(error, DriftRefused):
            outcome["schema_changed"] = True
        raise
    finally:
        finished_at = datetime.now(UTC)
        outcome["duration_ms"] = round((finished_at - started_at).total_seconds() * 1000)
        status = outcome.pop("status")
        # The journal first: once the row says that the run has ended, people read what it wrote.
        journal.completed(status, outcome)
        site.state.finish_run(run_id, status, finished_at=finished_at, **outcome)


def figures(made: Attempt) -> dict[str, Any]:
    staged, measures = made.staged, made.staged.measures
    extract: Extract = staged.extract
    published = not (made.is_refused or made.is_skipped)
    return {
        "status": "skipped" if made.is_skipped else "success",
        "total_rows": measures.rows,
        "files_produced": len(staged.parts) if published else 0,
        "bytes_written": sum(part.size_bytes for part in staged.parts) if published else 0,
        "format": extract.format.type,
        "compression": extract.format.codec,
        "tuning_profile": extract.pace.profile,
        "consistency": staged.consistency,
        "retries": measures.retries,
        "longest_statement_ms": measures.longest_statement_ms,
        "cpu_seconds": measures.cpu_seconds,
        "peak_mb": measures.peak_mb,
        # Every part was read back before it was staged.
        "validated": True,
        "quality_passed": not made.is_refused,
        "schema_changed": bool(made.drift),
        "degraded": measures.retries > 0 or staged.harm.get("steps_down", 0) > 0,
        "source_type": getattr(extract.source, "type", None),  # rows of `apply` come from parts
        "destination_type": extract.destination.type,
        "rows_read": staged.rows_read,
        "harm": harm_text(staged),
    }


def harm_text(staged: Staged) -> str | None:
    """Return what the reading cost the source, as JSON for the history of runs; None when nobody measured."""
    return json.dumps({name: round(number, 3) for name, number in staged.harm.items()}) if staged.harm else None
