"""The state store as the rest of Rivet sees it: `open_state(url)` and the methods of `State`.

Belongs here: which table families take part in one transaction. Not here: the families themselves (`cursors.py`,
`leases.py`, `checkpoints/table.py`, `chunks.py`, `runs.py`, `files.py`, `schemas.py`) and the database's manners
(`database.py`).

The manifests are the truth. What is lost here costs time (a window is read again) or history, never a row.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar, Unpack

from sqlalchemy import Connection, select, union

from rivet_resources.contracts.audit import Action, AuditEntry
from rivet_resources.contracts.parts import ChunkResult
from rivet_resources.contracts.provenance import Provenance
from rivet_resources.contracts.read_limits import MonthRead, PageCounted
from rivet_resources.contracts.rows.boundary import Boundary
from rivet_resources.contracts.rows.value_windows import SHARD_COLUMN
from rivet_resources.contracts.schema_registry import KnownSchema, RegisteredSchema
from rivet_resources.errors import StateError
from rivet_resources.state import (
    audit,
    chunks,
    cursors,
    files,
    journal,
    leases,
    leftovers,
    masks,
    provenances,
    readings,
    registered_schemas,
    runs,
    schemas,
    verifications,
)
from rivet_resources.state.adoption import Adoptions
from rivet_resources.state.checkpoints.table import TableCheckpoints
from rivet_resources.state.chunks import ChunkProgress
from rivet_resources.state.committed import Committed, columns_of, origin_of, run_of
from rivet_resources.state.cursors import Cursor
from rivet_resources.state.database import Database, now
from rivet_resources.state.files import FileRecord, Published
from rivet_resources.state.journal import JournalEntry
from rivet_resources.state.leases import Holder, Lease
from rivet_resources.state.migrations import migrate
from rivet_resources.state.patience import patient
from rivet_resources.state.provenances import KnownProvenance
from rivet_resources.state.runs import RunEnd, RunRecord, Status
from rivet_resources.state.schemas import Columns, SchemaRecord
from rivet_resources.state.scopes import Scope, name_in
from rivet_resources.state.verifications import Kind, Verification

FILE_NAME = ".rivet_state.db"
NO_SCOPE = Scope()  # names are kept as they are


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
    # At every open, not once per installation: it is also the proof that the store can be written, before hours of
    # reading.
    migrate(database)
    return State(database)


Kept = TypeVar(
    "Kept", AuditEntry, RunRecord, JournalEntry, FileRecord, Holder, ChunkProgress, Verification, SchemaRecord
)


@patient
class State:
    """What Rivet remembers between runs. Threads may share one; a child process may use its own copy or open `url`.

    Its methods take and give the bare names of exports; whose they are says the scope (`of`).
    """

    def __init__(self, database: Database, scope: Scope = NO_SCOPE, actor: str = "") -> None:
        self._database = database
        self._scope = scope
        self._actor = actor

    def of(self, scope: Scope) -> State:
        """Return the same store, in which a name means the export of this project and source."""
        return State(self._database, scope, self._actor)

    def used_by(self, actor: str) -> State:
        """Return the same store, whose audit log names who does what through it."""
        return State(self._database, self._scope, actor)

    def __repr__(self) -> str:
        return f"State({self._database.name})"

    @property
    def url(self) -> str:
        """Return the URL that opens the same store elsewhere; it may hold a password: never log it."""
        return self._database.url.render_as_string(hide_password=False)

    @property
    def file(self) -> Path | None:
        """Return the file of a store that is one; None for a server."""
        return Path(str(self._database.url.database)) if self._database.is_sqlite else None

    @property
    def name(self) -> str:
        """Name the store for people, without a password."""
        return self._database.name

    def now(self) -> datetime:
        """Return the store's own time, aware UTC: a server's clock, or this machine's for a file."""
        with self._database.read() as connection:
            return now(connection)

    def close(self) -> None:
        """Close the connections; a later call opens new ones."""
        self._database.close()

    # --- cursors ---------------------------------------------------------------------------------

    def cursor(self, export: str) -> Cursor | None:
        """Read an export's cursor; None: it never had one. A `value` of None: it was reset."""
        with self._database.read() as connection:
            return cursors.read(connection, self._key(export))

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
            cursors.advance(connection, self._key(export), value, expected=expected, visit=visit, boundary=boundary)

    def reset_cursor(self, export: str) -> None:
        """Make the next run start from the beginning."""
        with self._database.write() as connection:
            cursors.reset(connection, self._key(export))

    # --- leases ----------------------------------------------------------------------------------

    def lease(self, export: str, window: str, run_id: str) -> AbstractContextManager[Lease]:
        """Hold a window until the block ends, so that no second run works on it; take it before `begin_run`.

        Raises:
            WindowBusy: a living run holds it.
        """
        return leases.hold(self._database, self._key(export), window, run_id)

    def leases(self, export: str | None = None) -> list[Holder]:
        """List who holds windows right now."""
        with self._database.read() as connection:
            return _name_rows(leases.holders(connection, None if export is None else self._key(export)))

    # --- checkpoints -----------------------------------------------------------------------------

    def checkpoints(self) -> TableCheckpoints:
        """Return the positions of change logs kept here; `reset` and `rebuild` of an export leave them alone."""
        return TableCheckpoints(self._database, project=self._scope.project)

    # --- runs ------------------------------------------------------------------------------------

    def begin_run(self, run: RunRecord) -> None:
        """Note that a run starts in this process; earlier runs of the export whose process died become `interrupted`.

        A run of another host counts as alive while it holds a lease.
        """
        key = self._key(run.export)
        with self._database.write() as connection:
            runs.begin(connection, replace(run, export=key))
            # In the same transaction: no run is without its entry, also where the process dies behind this line.
            audit.note(connection, "run", key, self._actor, run.run_id, {"window": run.window, "mode": run.mode})

    def finish_run(self, run_id: str, status: Status, **outcome: Unpack[RunEnd]) -> None:
        """Note how a run ended; called again it adds to, or corrects, what is known.

        Raises:
            StateError: the run never began here.
        """
        with self._database.write() as connection:
            runs.finish(connection, run_id, status, outcome)

    def runs(self, export: str | None = None, last: int = 20) -> list[RunRecord]:
        """Return the newest runs, newest first."""
        with self._database.read() as connection:
            chosen = self._scope.chosen(runs.export_metrics.c.export_name, export)
            return _name_rows(runs.latest(connection, chosen, last))

    def statuses(self, export: str, last: int) -> list[str]:
        """Return how the newest runs of an export ended, newest first."""
        with self._database.read() as connection:
            return runs.statuses(connection, self._key(export), last)

    def first_window(self, export: str, head: str) -> str | None:
        """Return the first published window whose name begins with `head`, by name; None: there was none."""
        with self._database.read() as connection:
            return runs.first_window(connection, self._key(export), head)

    def run(self, run_id: str) -> RunRecord | None:
        """Return one run; None when there is none of that id."""
        with self._database.read() as connection:
            found = runs.find(connection, run_id)
            return found if found is None else replace(found, export=name_in(found.export))

    def live_runs(self, export: str) -> set[str]:
        """Name the runs that may still be working: what they staged must not be swept."""
        with self._database.read() as connection:
            return runs.live(connection, self._key(export))

    def known_runs(self, export: str) -> set[str]:
        """Name every run of an export that this store has recorded; runs of other stores are strangers."""
        with self._database.read() as connection:
            return runs.known_runs(connection, self._key(export))

    def failures_to_sweep(self, export: str, place: str) -> int | None:
        """Return how many runs have failed so far, where one of them may have left something; None: none can have."""
        with self._database.read() as connection:
            key = self._key(export)
            return leftovers.failures(connection, key) if leftovers.is_due(connection, key, place) else None

    def note_sweep(self, export: str, place: str, *, failures: int) -> None:
        """Note that what these failed runs left at a place is gone."""
        with self._database.write() as connection:
            leftovers.note_sweep(connection, self._key(export), place, failures=failures)

    def is_look_due(self, export: str) -> bool:
        """Return whether nobody looked at what an export has staged for a day."""
        with self._database.read() as connection:
            return leftovers.is_look_due(connection, self._key(export))

    def note_look(self, export: str) -> None:
        """Note that somebody looks at it now."""
        with self._database.write() as connection:
            leftovers.note_look(connection, self._key(export))

    # --- what was read of sources ----------------------------------------------------------------

    def count_page(self, place: str, page: MonthRead, costs: Mapping[str, float]) -> PageCounted:
        """Add a page to the month of its source, and put each meter off by its cost in seconds; in one transaction."""
        with self._database.write() as connection:
            return readings.count(connection, place, page, costs=costs)

    def read_in_month(self, place: str, at: datetime) -> MonthRead:
        """Return what all runs have read of a source in the month of `at`, failed ones too."""
        with self._database.read() as connection:
            return readings.read_in_month(connection, place, at)

    # --- audit log -------------------------------------------------------------------------------

    def note_action(self, action: Action, export: str, detail: Mapping[str, Any]) -> None:
        """Add an action on an export that is no run to the audit log; `detail` are plain texts and numbers."""
        with self._database.write() as connection:
            audit.note(connection, action, self._key(export), self._actor, detail=detail)

    def audit_log(self, export: str | None = None, action: Action | None = None, last: int = 200) -> list[AuditEntry]:
        """Return the newest actions, oldest first."""
        with self._database.read() as connection:
            chosen = self._scope.chosen(audit.audit_log.c.export_name, export)
            return _name_rows(audit.entries(connection, chosen, action, last))

    # --- journal and verdicts --------------------------------------------------------------------

    def write_journal(self, run_id: str, export: str, event: str, detail: Mapping[str, Any]) -> None:
        """Add one event to a run's journal; `detail` are plain texts and numbers, no row value and no secret."""
        with self._database.write() as connection:
            journal.write(connection, run_id, self._key(export), event, detail)

    def write_journal_of(
        self, run_id: str, export: str, events: Sequence[tuple[datetime, str, Mapping[str, Any]]]
    ) -> None:
        """Add several events to a run's journal in one transaction, each as (when, event, detail)."""
        with self._database.write() as connection:
            journal.write_all(connection, run_id, self._key(export), events)

    def journal(self, export: str | None = None, run_id: str | None = None, last: int = 200) -> list[JournalEntry]:
        """Return the newest events, oldest first."""
        with self._database.read() as connection:
            chosen = self._scope.chosen(journal.run_journal.c.export_name, export)
            return _name_rows(journal.entries(connection, chosen, run_id, last))

    def save_verification(self, found: Verification) -> None:
        """Keep a verdict on a window, over an earlier one of its kind."""
        with self._database.write() as connection:
            verifications.save(connection, replace(found, export=self._key(found.export)))

    def verifications(self, export: str, kind: Kind | None = None) -> list[Verification]:
        """Return the newest verdict of each kind on each window; one of another run's commit says nothing any more."""
        with self._database.read() as connection:
            return _name_rows(verifications.of_export(connection, self._key(export), kind))

    # --- chunks ----------------------------------------------------------------------------------

    def save_chunk(
        self, export: str, window: str, fingerprint: str, run_id: str, result: ChunkResult, identity: str
    ) -> None:
        """Note a finished chunk; those of this window under another plan are forgotten, and their parts due a sweep."""
        row, key = {"identity": identity, "fingerprint": fingerprint, "run_id": run_id}, self._key(export)
        with self._database.write() as connection:
            # Parts of another plan's chunks can never be published any more, so the next run is told to look for
            # leftovers.
            if chunks.save(connection, key, window, row, result):
                leftovers.note_failure(connection, key)

    def finished_chunks(self, export: str, window: str, fingerprint: str) -> dict[str, tuple[str, ChunkResult]]:
        """Return the finished chunks of exactly this plan: {identity: (run id that staged it, result)}."""
        with self._database.read() as connection:
            return chunks.finished_chunks(connection, self._key(export), window, fingerprint)

    def forget_chunks(self, export: str, window: str) -> None:
        """Drop the progress of a window; `record_commit` does so by itself."""
        with self._database.write() as connection:
            chunks.forget(connection, self._key(export), window)

    def chunk_progress(self, export: str) -> list[ChunkProgress]:
        """Return how many chunks of each unfinished window lie ready for the next run, by window."""
        with self._database.read() as connection:
            return _name_rows(chunks.progress(connection, self._key(export)))

    def resumable_runs(self, export: str) -> set[str]:
        """Name the runs whose staged parts a later run may still use: they must not be swept."""
        with self._database.read() as connection:
            return chunks.runs(connection, self._key(export))

    # --- files and schemas -----------------------------------------------------------------------

    def record_files(
        self, export: str, run_id: str, window: str, parts: Iterable[Published], format: str, compression: str
    ) -> None:
        """Log published parts; the same run's earlier log of this window is replaced."""
        origin = files.CommitOrigin(self._key(export), window, run_id, format, compression)
        with self._database.write() as connection:
            files.record(connection, parts, origin=origin)

    def files(self, export: str | None = None, last: int = 50) -> list[FileRecord]:
        """Return the newest published files, newest first; which of them are current only the manifests say."""
        with self._database.read() as connection:
            chosen = self._scope.chosen(files.file_manifest.c.export_name, export)
            return _name_rows(files.latest(connection, chosen, last))

    def schema(self, export: str) -> Columns | None:
        """Return the columns of the last commit as (name, Arrow type text); None before the first."""
        with self._database.read() as connection:
            return schemas.latest(connection, self._key(export))

    def schema_history(self, export: str) -> list[SchemaRecord]:
        """Return every version of an export's columns, oldest first."""
        with self._database.read() as connection:
            return _name_rows(schemas.history(connection, self._key(export)))

    def save_schema(self, export: str, columns: Iterable[tuple[str, str]]) -> bool:
        """Store the columns as the new baseline; True if there was one and, regardless of order, it differs."""
        with self._database.write() as connection:
            return schemas.save(connection, self._key(export), columns)

    def masked_columns(self, export: str) -> dict[str, str] | None:
        """Return the columns that were ever masked by a tag, with their last one; None where nobody looked yet."""
        with self._database.read() as connection:
            return masks.read(connection, self._key(export))

    def remember_masks(self, export: str, masked: Mapping[str, str]) -> None:
        """Add columns that are masked by a tag, {column: tag}; {}: that somebody looked."""
        with self._database.write() as connection:
            masks.save(connection, self._key(export), masked)

    # --- registered schemas ----------------------------------------------------------------------

    def reading_schemas(self) -> AbstractContextManager[Connection]:
        """Open a transaction over the registry's tables that only reads."""
        return self._database.read()

    def writing_schemas(self) -> AbstractContextManager[Connection]:
        """Open a transaction over the registry's tables, alone among those that write them."""
        return self._alone()

    @contextmanager
    def _alone(self) -> Iterator[Connection]:
        with self._database.write() as connection:
            registered_schemas.take_turn(connection)
            yield connection

    def schema_owner(self, export: str) -> str:
        """Name an export as the owner of its subject."""
        return self._key(export)

    def agreed_schema(self, export: str, registry: str, subject: str, columns: str) -> KnownSchema | None:
        """Return what is remembered of a schema that was agreed with a registry; None where it never was.

        Args:
            columns: their identity.
        """
        with self._database.read() as connection:
            return registered_schemas.agreed(connection, self._key(export), registry, subject, columns)

    def agree_schema(self, export: str, registry: str, columns: str, found: RegisteredSchema) -> None:
        """Remember that the schema of columns is this version and id of its subject, from now on."""
        with self._database.write() as connection:
            registered_schemas.agree(connection, self._key(export), registry, columns, found)

    def forget_schemas(self, export: str) -> None:
        """Forget what was agreed for an export; the registry is asked again."""
        with self._database.write() as connection:
            registered_schemas.forget(connection, self._key(export))

    # --- whole exports ---------------------------------------------------------------------------

    def record_commit(self, manifest: Committed) -> None:
        """Note a published window in one transaction: files, schema, success; its chunks are done with.

        Called by `commit.publish` last; again with the same manifest it changes nothing. The run need not have begun
        here. Figures that a manifest has not (CPU, peaks, checks) come with `finish_run`, before or after.
        """
        key = self._key(manifest.export_name)
        with self._database.write() as connection:
            # All in one transaction: a process that dies here leaves either nothing of the commit or everything, and
            # the next one calls again with the same manifest.
            changed = schemas.save(connection, key, columns_of(manifest))
            files.record(connection, manifest.parts, origin=origin_of(manifest, key=key))
            if chunks.forget_committed(connection, key, manifest.window, manifest.run_id):
                # What others had finished is of no use any more.
                leftovers.note_failure(connection, key)
            runs.commit(connection, run_of(manifest, key=key, schema_changed=changed))

    def reset(self, export: str) -> None:
        """Forget cursor value, chunk progress, schema baseline and provenance of an export; its history stays."""
        key = self._key(export)
        with self._database.write() as connection:
            cursors.reset(connection, key)
            chunks.forget(connection, key)
            schemas.forget(connection, key)
            registered_schemas.forget(connection, key)
            provenances.give_up(connection, key)
            leftovers.forget(connection, key)

    def has_files_of(self, export: str, run_id: str, window: str) -> bool:
        """Return whether the files of a run's commit of a window are logged."""
        with self._database.read() as connection:
            return files.is_known(connection, self._key(export), run_id, window)

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
        key = self._key(export)
        with self._database.write() as connection:
            cursors.restore(connection, key, cursor, boundary or Boundary())
            files.forget(connection, key)
            schemas.forget(connection, key)
            # In the order in which they were committed: the newest columns must be the baseline in the end.
            for manifest in sorted(manifests, key=lambda manifest: manifest.finished_at):
                files.record(connection, manifest.parts, origin=origin_of(manifest, key=key))
                schemas.save(connection, key, columns_of(manifest))

    def exports(self) -> list[str]:
        """Name the exports that the store knows anything of, in its scope, sorted."""
        tables = [cursors.export_state, runs.export_metrics, files.file_manifest, schemas.export_schema]
        columns = [table.c.export_name for table in [*tables, chunks.chunk_task]]
        keys = union(*(select(column).where(self._scope.chosen(column, None)) for column in columns))
        with self._database.read() as connection:
            return sorted({name_in(key) for key in connection.execute(keys).scalars()})

    def shards_with_cursor(self, export: str) -> list[str]:
        """Name the shards of an export that have, or had, a cursor of their own, also those that are listed no more."""
        head = f"{SHARD_COLUMN}="
        with self._database.read() as connection:
            names = cursors.below(connection, self._key(export), head)
        return [name.rpartition(head)[2] for name in names]

    # --- whose state it is -----------------------------------------------------------------------

    def provenance(self, export: str) -> KnownProvenance:
        """Read of which database and destination the state of an export is."""
        with self._database.read() as connection:
            return provenances.read(connection, self._key(export))

    def give_up_provenance(self, export: str) -> None:
        """Forget of which database the state of an export is; the next run may replace its windows."""
        with self._database.write() as connection:
            provenances.give_up(connection, self._key(export))

    def remember(
        self, export: str, found: Provenance, *, destination: str, accepted: Sequence[Provenance] = ()
    ) -> None:
        """Keep of which database and destination an export's state is from now on, and what a user took over."""
        with self._database.read() as connection:
            # Read before write: most runs change nothing here, and a SQLite file takes one writer at a time.
            if provenances.is_known(connection, self._key(export), found, destination, accepted):
                return
        with self._database.write() as connection:
            provenances.remember(connection, self._key(export), found, destination, accepted)

    def adoptions(self) -> Adoptions:
        """Return the rows that an earlier Rivet kept under the bare names of the scope's exports."""
        return Adoptions(self._database, self._scope)

    def _key(self, export: str) -> str:
        return self._scope.key(export)


def _name_rows(rows: Iterable[Kept]) -> list[Kept]:
    """Return rows with the bare names of their exports."""
    return [replace(row, export=name_in(row.export)) for row in rows]
