"""The state store as the rest of Rivet sees it: `open_state(url)` and the methods of `State`.

Belongs here: which table families take part in one transaction. Not here: the families themselves (`cursors.py`,
`leases.py`, `checkpoint_table.py`, `chunks.py`, `runs.py`, `files.py`, `schemas.py`) and the database's manners
(`database.py`).

The manifests are the truth. What is lost here costs time (a window is read again) or history, never a row.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol, Unpack

import pyarrow as pa
from sqlalchemy import select, union

from rivet_resources.boundary import Boundary
from rivet_resources.errors import StateError
from rivet_resources.extract import ChunkResult
from rivet_resources.state import chunks, cursors, files, journal, leases, runs, schemas, verifications
from rivet_resources.state.checkpoint_table import TableCheckpoints
from rivet_resources.state.chunks import ChunkProgress
from rivet_resources.state.cursors import Cursor
from rivet_resources.state.database import Database, now
from rivet_resources.state.files import FileRecord, Published
from rivet_resources.state.journal import JournalEntry
from rivet_resources.state.leases import Holder, Lease
from rivet_resources.state.migrations import migrate
from rivet_resources.state.runs import Outcome, RunRecord, Status
from rivet_resources.state.schemas import Columns, SchemaRecord
from rivet_resources.state.verifications import Kind, Verification

FILE_NAME = ".rivet_state.db"


def default_url(folder: Path) -> str:
    """Name the SQLite store beside a config: `<folder>/.rivet_state.db`.

    Raises:
        StateError: the folder's name has a `?`, which a URL cannot carry here.
    """
    path = Path(folder).absolute() / FILE_NAME
    if "?" in str(path):
        raise StateError(f"Folder {path.parent} has a '?' in its name; name a store elsewhere in RIVET_STATE_URL.")
    return f"sqlite:///{path}"


def state_url(configured: str | None, *, folder: Path) -> str:
    """Decide where state lies: RIVET_STATE_URL, else the config's `state`, else the file beside the config."""
    return os.environ.get("RIVET_STATE_URL") or configured or default_url(folder)


def open_state(url: str) -> State:
    """Open a store, create or migrate its tables; several processes may do so at once.

    Raises:
        StateError: not a SQLite or PostgreSQL URL; a folder that is missing or not writable; a damaged file; a server
            that cannot be reached or refuses; a store that a newer Rivet wrote. No message holds a password.
    """
    database = Database(url)
    if database.is_sqlite:
        database.use_wal()
    migrate(database)
    return State(database)


class Moved(Protocol):
    """How far an incremental commit went, as a manifest says it."""

    @property
    def low(self) -> str | None: ...
    @property
    def high(self) -> str | None: ...


class Committed(Protocol):
    """What a commit tells the store: `manifest.Manifest` has these, and so may any other object."""

    @property
    def run_id(self) -> str: ...
    @property
    def export_name(self) -> str: ...
    @property
    def window(self) -> str: ...  # the key
    @property
    def started_at(self) -> datetime: ...
    @property
    def finished_at(self) -> datetime: ...
    @property
    def format(self) -> str: ...
    @property
    def compression(self) -> str: ...
    @property
    def row_count(self) -> int: ...
    @property
    def consistency(self) -> str: ...
    @property
    def cursor(self) -> Moved | None: ...
    @property
    def parts(self) -> Sequence[Published]: ...
    @property
    def schema_ipc(self) -> str: ...  # base64


class State:
    """What Rivet remembers between runs. Threads may share one; a child process may use its own copy or open `url`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def __repr__(self) -> str:
        return f"State({self._database.name})"

    @property
    def url(self) -> str:
        """Give the URL that opens the same store elsewhere; it may hold a password: never log it."""
        return self._database.url.render_as_string(hide_password=False)

    @property
    def name(self) -> str:
        """Name the store for people, without a password."""
        return self._database.name

    def now(self) -> datetime:
        """Tell the store's own time, aware UTC: a server's clock, or this machine's for a file."""
        with self._database.read() as connection:
            return now(connection)

    def close(self) -> None:
        """Close the connections; a later call opens new ones."""
        self._database.close()

    # --- cursors ---------------------------------------------------------------------------------

    def cursor(self, export: str) -> Cursor | None:
        """Read an export's cursor; None: it never had one. A `value` of None: it was reset."""
        with self._database.read() as connection:
            return cursors.read(connection, export)

    def advance_cursor(
        self, export: str, value: str, *, expected: str | None, visit: int = 0, boundary: Boundary | None = None
    ) -> None:
        """Set the cursor if it still is `expected`, or already is `value`; durable when this returns.

        Args:
            visit: of the boundary that is expected there.
            boundary: what to remember of the rows that have `value`; None: nothing.

        Raises:
            StateError: another run moved it since.
        """
        with self._database.write() as connection:
            cursors.advance(connection, export, value, expected=expected, visit=visit, boundary=boundary)

    def reset_cursor(self, export: str) -> None:
        """Make the next run start from the beginning."""
        with self._database.write() as connection:
            cursors.reset(connection, export)

    # --- leases ----------------------------------------------------------------------------------

    def lease(self, export: str, window: str, run_id: str) -> AbstractContextManager[Lease]:
        """Hold a window until the block ends, so that no second run works on it; take it before `begin_run`.

        Raises:
            WindowBusy: a living run holds it.
        """
        return leases.hold(self._database, export, window, run_id)

    def leases(self, export: str | None = None) -> list[Holder]:
        """List who holds windows right now."""
        with self._database.read() as connection:
            return leases.holders(connection, export)

    # --- checkpoints -----------------------------------------------------------------------------

    def checkpoints(self) -> TableCheckpoints:
        """Give the positions of change logs kept here; `reset` and `rebuild` of an export leave them alone."""
        return TableCheckpoints(self._database)

    # --- runs ------------------------------------------------------------------------------------

    def begin_run(self, run: RunRecord) -> None:
        """Note that a run starts in this process; earlier runs of the export whose process died become `interrupted`.

        A run of another host counts as alive while it holds a lease.
        """
        with self._database.write() as connection:
            runs.begin(connection, run)

    def finish_run(self, run_id: str, status: Status, **outcome: Unpack[Outcome]) -> None:
        """Note how a run ended; called again it adds to, or corrects, what is known.

        Raises:
            StateError: the run never began here.
        """
        with self._database.write() as connection:
            runs.finish(connection, run_id, status, outcome)

    def runs(self, export: str | None = None, last: int = 20) -> list[RunRecord]:
        """Give the newest runs, newest first."""
        with self._database.read() as connection:
            return runs.latest(connection, export, last)

    def run(self, run_id: str) -> RunRecord | None:
        """Give one run; None when there is none of that id."""
        with self._database.read() as connection:
            return runs.find(connection, run_id)

    def live_runs(self, export: str) -> set[str]:
        """Name the runs that may still be working: what they staged must not be swept."""
        with self._database.read() as connection:
            return runs.live(connection, export)

    def known_runs(self, export: str) -> set[str]:
        """Name every run of an export that this store has recorded; runs of other stores are strangers."""
        with self._database.read() as connection:
            return runs.known(connection, export)

    # --- journal and verdicts --------------------------------------------------------------------

    def write_journal(self, run_id: str, export: str, event: str, detail: Mapping[str, Any]) -> None:
        """Add one event to a run's journal; `detail` are plain texts and numbers, no row value and no secret."""
        with self._database.write() as connection:
            journal.write(connection, run_id, export, event, detail)

    def write_journal_of(
        self, run_id: str, export: str, events: Sequence[tuple[datetime, str, Mapping[str, Any]]]
    ) -> None:
        """Add several events to a run's journal in one transaction, each as (when, event, detail)."""
        with self._database.write() as connection:
            journal.write_all(connection, run_id, export, events)

    def journal(self, export: str | None = None, run_id: str | None = None, last: int = 200) -> list[JournalEntry]:
        """Give the newest events, oldest first."""
        with self._database.read() as connection:
            return journal.entries(connection, export, run_id, last)

    def save_verification(self, found: Verification) -> None:
        """Keep a verdict on a window, over an earlier one of its kind."""
        with self._database.write() as connection:
            verifications.save(connection, found)

    def verifications(self, export: str, kind: Kind | None = None) -> list[Verification]:
        """Give the newest verdict of each kind on each window; one of another run's commit says nothing any more."""
        with self._database.read() as connection:
            return verifications.of_export(connection, export, kind)

    # --- chunks ----------------------------------------------------------------------------------

    def save_chunk(
        self, export: str, window: str, fingerprint: str, run_id: str, result: ChunkResult, identity: str
    ) -> None:
        """Note a finished chunk; chunks of this window under another plan are forgotten."""
        row = {"identity": identity, "fingerprint": fingerprint, "run_id": run_id}
        with self._database.write() as connection:
            chunks.save(connection, export, window, row, result)

    def finished_chunks(self, export: str, window: str, fingerprint: str) -> dict[str, tuple[str, ChunkResult]]:
        """Give the finished chunks of exactly this plan: {identity: (run id that staged it, result)}."""
        with self._database.read() as connection:
            return chunks.finished(connection, export, window, fingerprint)

    def forget_chunks(self, export: str, window: str) -> None:
        """Drop the progress of a window; `record_commit` does so by itself."""
        with self._database.write() as connection:
            chunks.forget(connection, export, window)

    def chunk_progress(self, export: str) -> list[ChunkProgress]:
        """Tell how many chunks of each unfinished window lie ready for the next run, by window."""
        with self._database.read() as connection:
            return chunks.progress(connection, export)

    def resumable_runs(self, export: str) -> set[str]:
        """Name the runs whose staged parts a later run may still use: they must not be swept."""
        with self._database.read() as connection:
            return chunks.runs(connection, export)

    # --- files and schemas -----------------------------------------------------------------------

    def record_files(
        self, export: str, run_id: str, window: str, parts: Iterable[Published], format: str, compression: str
    ) -> None:
        """Log published parts; the same run's earlier log of this window is replaced."""
        origin = files.Origin(export, window, run_id, format, compression)
        with self._database.write() as connection:
            files.record(connection, parts, origin=origin)

    def files(self, export: str | None = None, last: int = 50) -> list[FileRecord]:
        """Give the newest published files, newest first; which of them are current only the manifests say."""
        with self._database.read() as connection:
            return files.latest(connection, export, last)

    def schema(self, export: str) -> Columns | None:
        """Give the columns of the last commit as (name, Arrow type text); None before the first."""
        with self._database.read() as connection:
            return schemas.latest(connection, export)

    def schema_history(self, export: str) -> list[SchemaRecord]:
        """Give every version of an export's columns, oldest first."""
        with self._database.read() as connection:
            return schemas.history(connection, export)

    def save_schema(self, export: str, columns: Iterable[tuple[str, str]]) -> bool:
        """Store the columns as the new baseline; True if there was one and, regardless of order, it differs."""
        with self._database.write() as connection:
            return schemas.save(connection, export, columns)

    # --- whole exports ---------------------------------------------------------------------------

    def record_commit(self, manifest: Committed) -> None:
        """Note a published window in one transaction: files, schema, success; its chunks are done with.

        Called by `commit.publish` last; again with the same manifest it changes nothing. The run need not have begun
        here. Figures that a manifest has not (CPU, peaks, checks) come with `finish_run`, before or after.
        """
        with self._database.write() as connection:
            changed = schemas.save(connection, manifest.export_name, _columns(manifest))
            files.record(connection, manifest.parts, origin=_origin(manifest))
            chunks.forget(connection, manifest.export_name, manifest.window)
            runs.commit(connection, _run(manifest, schema_changed=changed))

    def reset(self, export: str) -> None:
        """Forget cursor value, chunk progress and schema baseline of an export; its run and file history stays."""
        with self._database.write() as connection:
            cursors.reset(connection, export)
            chunks.forget(connection, export)
            schemas.forget(connection, export)

    def rebuild(
        self,
        export: str,
        manifests: Iterable[Committed],
        *,
        cursor: str | None = None,
        boundary: Boundary | None = None,
    ) -> None:
        """Write cursor, files and schema as the manifests have them, whatever stood here.

        Args:
            manifests: the current ones of this export, in any order.
            cursor: end of their `after=` chain (`chain.resolve_cursor`); None: no cursor.
            boundary: what they remember of the rows there (`chain.resolve_boundary`).
        """
        with self._database.write() as connection:
            cursors.restore(connection, export, cursor, boundary or Boundary())
            files.forget(connection, export)
            schemas.forget(connection, export)
            for manifest in sorted(manifests, key=lambda manifest: manifest.finished_at):
                files.record(connection, manifest.parts, origin=_origin(manifest))
                schemas.save(connection, export, _columns(manifest))

    def exports(self) -> list[str]:
        """Name the exports that the store knows anything of, sorted."""
        tables = [cursors.export_state, runs.export_metrics, files.file_manifest, schemas.export_schema]
        names = union(*(select(table.c.export_name) for table in [*tables, chunks.chunk_task]))
        with self._database.read() as connection:
            return sorted(connection.execute(names).scalars())


def _origin(manifest: Committed) -> files.Origin:
    return files.Origin(
        export=manifest.export_name,
        window=manifest.window,
        run_id=manifest.run_id,
        format=manifest.format,
        compression=manifest.compression,
        created_at=manifest.finished_at,
    )


def _columns(manifest: Committed) -> Columns:
    try:
        schema = pa.ipc.read_schema(pa.BufferReader(base64.b64decode(manifest.schema_ipc, validate=True)))
    except (ValueError, pa.ArrowException) as error:
        raise StateError(
            f"The manifest of window {manifest.window} of export {manifest.export_name} has a schema_ipc that is no "
            f"schema. Restore it from a copy."
        ) from error
    return [(field.name, str(field.type)) for field in schema]


def _run(manifest: Committed, *, schema_changed: bool) -> RunRecord:
    moved = manifest.cursor
    return RunRecord(
        run_id=manifest.run_id,
        export=manifest.export_name,
        window=manifest.window,
        status="success",
        started_at=manifest.started_at,
        finished_at=manifest.finished_at,
        duration_ms=round((manifest.finished_at - manifest.started_at).total_seconds() * 1000),
        total_rows=manifest.row_count,
        files_produced=len(manifest.parts),
        bytes_written=sum(part.size_bytes for part in manifest.parts),
        format=manifest.format,
        compression=manifest.compression,
        consistency=manifest.consistency,
        cursor_low=moved.low if moved else None,
        cursor_high=moved.high if moved else None,
        schema_changed=schema_changed,
    )
