"""The history of runs: one row per run and window, from `running` to its end, with what it measured.

Belongs here: the table `export_metrics`. Not here: what a run publishes; a row missing here loses no export's row.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from datetime import datetime
from typing import Any, Literal, TypedDict

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    ColumnElement,
    Connection,
    Double,
    Integer,
    Table,
    Text,
    func,
    select,
    update,
)

from rivet_resources.errors import StateError
from rivet_resources.state import leases, leftovers
from rivet_resources.state.database import METADATA, Instant, now, upsert
from rivet_resources.state.process import Process, is_alive, is_here, this_process

Status = Literal["running", "success", "skipped", "failed", "interrupted"]

export_metrics = Table(
    "export_metrics",
    METADATA,
    Column("run_id", Text, primary_key=True),
    Column("export_name", Text, nullable=False),
    Column("window_key", Text, nullable=False),
    Column("mode", Text, nullable=False),
    Column("status", Text, nullable=False),
    Column("started_at", Instant, nullable=False),
    Column("finished_at", Instant),
    Column("duration_ms", BigInteger),
    Column("total_rows", BigInteger, nullable=False),
    Column("files_produced", BigInteger, nullable=False),
    Column("bytes_written", BigInteger, nullable=False),
    Column("format", Text, nullable=False),
    Column("compression", Text, nullable=False),
    Column("tuning_profile", Text, nullable=False),
    Column("consistency", Text, nullable=False),
    Column("cursor_low", Text),
    Column("cursor_high", Text),
    Column("retries", BigInteger, nullable=False),
    Column("longest_statement_ms", Double, nullable=False),
    Column("cpu_seconds", Double, nullable=False),
    Column("peak_mb", Double, nullable=False),
    Column("validated", Boolean),
    Column("quality_passed", Boolean),
    Column("schema_changed", Boolean),
    Column("degraded", Boolean, nullable=False),
    Column("error_code", Text),
    Column("error_message", Text),
    Column("source_type", Text),
    Column("destination_type", Text),
    Column("rows_read", BigInteger),
    Column("harm", Text),
    Column("host", Text, nullable=False),
    Column("pid", Integer, nullable=False),
    Column("process_start", Double, nullable=False),
    Column("process_space", Text),
)


@dataclass(frozen=True)
class RunRecord:
    """One run of one window; names are those of the table, but for `export` and `window`.

    `validated`, `quality_passed` and `schema_changed` are None while unknown. `degraded`: it succeeded with less
    than was asked for. `host`, `pid`, `process_start` and `process_space` are filled in by `begin_run`.
    """

    run_id: str
    export: str
    window: str
    started_at: datetime
    mode: str = ""
    status: Status = "running"
    finished_at: datetime | None = None
    duration_ms: int | None = None
    total_rows: int = 0
    files_produced: int = 0
    bytes_written: int = 0
    format: str = ""
    compression: str = ""
    tuning_profile: str = ""
    consistency: str = ""
    cursor_low: str | None = None
    cursor_high: str | None = None
    retries: int = 0
    longest_statement_ms: float = 0.0
    cpu_seconds: float = 0.0
    peak_mb: float = 0.0
    validated: bool | None = None
    quality_passed: bool | None = None
    schema_changed: bool | None = None
    degraded: bool = False
    error_code: str | None = None
    error_message: str | None = None
    source_type: str | None = None
    destination_type: str | None = None
    rows_read: int | None = None  # left the source, before filters
    harm: str | None = None  # JSON: what the run cost its source, {name: number}
    host: str = ""
    pid: int = 0
    process_start: float = 0.0
    process_space: str | None = None

    @property
    def process(self) -> Process:
        """Name the process that runs, or ran, it."""
        return Process(self.host, self.pid, self.process_start, self.process_space)


class RunEnd(TypedDict, total=False):
    """What may be learnt about a run after it began: any fields of RunRecord but its identity."""

    mode: str
    finished_at: datetime
    duration_ms: int
    total_rows: int
    files_produced: int
    bytes_written: int
    format: str
    compression: str
    tuning_profile: str
    consistency: str
    cursor_low: str | None
    cursor_high: str | None
    retries: int
    longest_statement_ms: float
    cpu_seconds: float
    peak_mb: float
    validated: bool | None
    quality_passed: bool | None
    schema_changed: bool | None
    degraded: bool
    error_code: str | None
    error_message: str | None
    source_type: str | None
    destination_type: str | None
    rows_read: int | None
    harm: str | None


# What a manifest knows of a run; all else of its row is the begin's or the end's word.
COMMITTED = frozenset({
    "status", "finished_at", "duration_ms", "total_rows", "files_produced", "bytes_written", "format", "compression",
    "consistency", "cursor_low", "cursor_high", "schema_changed", "error_code", "error_message",
})  # fmt: skip


def begin(connection: Connection, run: RunRecord) -> None:
    """Write the row of a run that starts in this process, and mark the export's dead `running` rows `interrupted`."""
    for dead in _running(connection, run.export):
        # Nobody else can: a process that was killed writes nothing, and no daemon looks after runs.
        if dead.run_id != run.run_id and not _lives(connection, dead):
            said = f"Process {dead.pid} on {dead.host} ended without finishing the run."
            _change(connection, dead.run_id, {"status": "interrupted", "error_message": said})
            # A killed run could not count itself, and what it staged would wait for a sweep that is never due.
            leftovers.note_failure(connection, dead.export)
    me = this_process()
    ours = replace(run, host=me.host, pid=me.pid, process_start=me.start, process_space=me.space)
    upsert(connection, export_metrics, _row(ours))


def finish(connection: Connection, run_id: str, status: Status, outcome: RunEnd) -> None:
    """Write how a run ended, over what is known of it; may be called again with more figures.

    Raises:
        StateError: the run never began here.
    """
    run = find(connection, run_id)
    if run is None:
        raise StateError(f"Run {run_id} is not in the state store. Call begin_run before finish_run.")
    if status in ("failed", "interrupted"):
        leftovers.note_failure(connection, run.export)
    finished_at = outcome.get("finished_at") or run.finished_at or now(connection)
    duration_ms = outcome.get("duration_ms", round((finished_at - run.started_at).total_seconds() * 1000))
    _change(connection, run_id, {**outcome, "status": status, "finished_at": finished_at, "duration_ms": duration_ms})


def commit(connection: Connection, run: RunRecord) -> None:
    """Write a run's success from its manifest: over the row that `begin` wrote, or as a row of its own."""
    begun = find(connection, run.run_id)
    if begun is None:
        # Nobody began it in this store, as where that was lost meanwhile: the manifest knows enough for a row.
        return begin(connection, run)
    # Only what a manifest knows: the begin has said more of the run than that, such as its process.
    values = {name: value for name, value in _row(run).items() if name in COMMITTED}
    # Committed a second time, the schema equals the one stored the first time: that is no news.
    values["schema_changed"] = bool(run.schema_changed or begun.schema_changed)
    _change(connection, run.run_id, values)


def find(connection: Connection, run_id: str) -> RunRecord | None:
    """Read one run."""
    row = connection.execute(select(export_metrics).where(export_metrics.c.run_id == run_id)).one_or_none()
    return None if row is None else _record(row._mapping)


def latest(connection: Connection, chosen: ColumnElement[bool], last: int) -> list[RunRecord]:
    """Return the newest `last` runs of the rows that are chosen, newest first."""
    query = (
        select(export_metrics).order_by(export_metrics.c.started_at.desc(), export_metrics.c.run_id.desc()).limit(last)
    )
    return [_record(row._mapping) for row in connection.execute(query.where(chosen))]


def statuses(connection: Connection, export: str, last: int) -> list[str]:
    """Return how the newest `last` runs of an export ended, newest first."""
    query = select(export_metrics.c.status).where(export_metrics.c.export_name == export)
    newest = query.order_by(export_metrics.c.started_at.desc(), export_metrics.c.run_id.desc()).limit(last)
    return list(connection.execute(newest).scalars())


def first_window(connection: Connection, export: str, head: str) -> str | None:
    """Return the first in the order of their names of the windows that were published and begin with `head`."""
    column = export_metrics.c.window_key
    query = select(func.min(column)).where(export_metrics.c.export_name == export, column.startswith(head))
    return connection.execute(query.where(export_metrics.c.status == "success")).scalar()


def live(connection: Connection, export: str) -> set[str]:
    """Name the runs of an export that may still be working: they hold a lease, or their process lives here."""
    leased = {holder.run_id for holder in leases.holders(connection, export)}
    # Either will do: of a run elsewhere only the lease is seen, and one here may be between two leases.
    return leased | {run.run_id for run in _running(connection, export) if _lives(connection, run)}


def known_runs(connection: Connection, export: str) -> set[str]:
    """Name every run of an export that this store has ever recorded."""
    query = select(export_metrics.c.run_id).where(export_metrics.c.export_name == export)
    return set(connection.execute(query).scalars())


def _lives(connection: Connection, run: RunRecord) -> bool:
    if is_here(run.process):
        return is_alive(run.process)
    # Nobody can look at a process of another host or container: its lease speaks for it.
    return any(holder.run_id == run.run_id for holder in leases.holders(connection, run.export))


def _running(connection: Connection, export: str) -> list[RunRecord]:
    query = select(export_metrics).where(export_metrics.c.export_name == export, export_metrics.c.status == "running")
    return [_record(row._mapping) for row in connection.execute(query)]


def _change(connection: Connection, run_id: str, values: dict[str, Any]) -> None:
    connection.execute(update(export_metrics).where(export_metrics.c.run_id == run_id).values(**values))


def _row(run: RunRecord) -> dict[str, Any]:
    values = {field.name: getattr(run, field.name) for field in fields(run)}
    return {"export_name": values.pop("export"), "window_key": values.pop("window"), **values}


def _record(row) -> RunRecord:  # type: ignore[no-untyped-def]  # a row mapping of export_metrics
    values = dict(row)
    return RunRecord(export=values.pop("export_name"), window=values.pop("window_key"), **values)
