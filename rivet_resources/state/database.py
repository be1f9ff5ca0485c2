"""The line to the state store: one engine, short transactions, the store's own clock.

Belongs here: what differs between SQLite and PostgreSQL as a place to keep state. Not here: which tables there are
(one file per family), how they came to be (`migrations.py`), what a refusal means (`errors.py`).
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import (
    URL,
    Connection,
    Dialect,
    Engine,
    MetaData,
    Pool,
    Table,
    Text,
    TypeDecorator,
    create_engine,
    event,
    func,
    make_url,
    select,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import ArgumentError, DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from rivet_resources import extras
from rivet_resources.errors import StateError
from rivet_resources.psycopg_lines import LIVELINESS, watched
from rivet_resources.state.errors import (
    SQLITE_BUSY_SECONDS,
    StateUnavailable,
    explain_line,
    explain_postgres,
    explain_sqlite,
    name_of,
)

T = TypeVar("T")

METADATA = MetaData()

PATIENCE_SECONDS = 60.0  # with a server that is away; leases last as long
PAUSE_SECONDS = 0.5
# A lease must be renewed over a new line before it expires: below their TTL, with room for a beat (10 s) and a second
# try.
POSTGRES_ANSWER_SECONDS = 20.0

# Pools that came through a fork. SQLite forbids even closing a connection in a child ("How To Corrupt An SQLite
# Database File", section 2.6), so they are kept from the garbage collector.
_INHERITED: list[Pool] = []


class Instant(TypeDecorator[datetime]):
    """An aware UTC time as ISO text of fixed width: sorts as text, reads the same in both databases."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> str | None:
        """Render for storing; a naive time is a programming error."""
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError(f"naive time {value!r} in the state store")
        # With microseconds even where they are zero: texts of one width sort as times do.
        return value.astimezone(UTC).isoformat(timespec="microseconds")

    def process_result_value(self, value: str | None, dialect: Dialect) -> datetime | None:
        """Read back, aware UTC."""
        return None if value is None else datetime.fromisoformat(value)


class Database:
    """A state store's connections. Threads may share it; a forked child gets fresh connections by itself."""

    def __init__(self, url: str) -> None:
        self.url = _parse(url)
        self.name = name_of(self.url)
        self._served = False  # a server that answered once is away; one that never did has a wrong address
        self._away_since: float | None = None
        self._place: tuple[int, int] | None = None  # device and inode of the file
        self._pid = os.getpid()
        self._engine = _sqlite(self.url) if self.is_sqlite else _postgres(self.url)
        self._writes = self._engine.execution_options(rivet_write=True)

    @property
    def is_sqlite(self) -> bool:
        """Return whether the store is one file."""
        return self.url.get_backend_name() == "sqlite"

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """Open a transaction that only reads.

        Raises:
            StateUnavailable, StateError
        """
        with self._transaction(self._engine) as connection:
            yield connection

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """Open a transaction that commits when the block ends and rolls back when it raises.

        Raises:
            StateUnavailable, StateError
        """
        with self._transaction(self._writes) as connection:
            yield connection

    def patiently(self, act: Callable[[], T]) -> T:
        """Call what opens a transaction and may be repeated; again when the server goes away amid it.

        Raises:
            StateUnavailable, StateError
        """
        while True:
            try:
                return act()
            except StateUnavailable:
                if not self._may_wait():
                    raise
                time.sleep(PAUSE_SECONDS)

    @contextmanager
    def _transaction(self, engine: Engine) -> Iterator[Connection]:
        """Begin, waiting for a server that is away for a while: a run that is nearly done is not worth losing."""
        # The wait is for the beginning only: once statements have
        # run, a repetition is up to who knows them (`patiently`).
        with self._translate(), ExitStack() as stack:
            connection = self.patiently(lambda: self._begin(engine, stack))
            self._served, self._away_since = True, None
            # Behind the beginning, which may have opened a connection, and with it another file than before.
            self._check_place()
            yield connection

    def _begin(self, engine: Engine, stack: ExitStack) -> Connection:
        with self._translate():
            return stack.enter_context(self._in_this_process(engine).begin())

    def _may_wait(self) -> bool:
        """Return whether to ask a server again that answered before: until the leases of this process have expired."""
        # A file is not away and back; a locked one has waited for SQLITE_BUSY_SECONDS already. A server that never
        # answered has a wrong address or password, and waiting for a minute would only hide that.
        if self.is_sqlite or not self._served:
            return False
        # One clock for all threads: patience is over when the leases are, however many calls wait.
        self._away_since = self._away_since or time.monotonic()
        return time.monotonic() - self._away_since < PATIENCE_SECONDS

    def use_wal(self) -> None:
        """Switch a SQLite file to write-ahead logging, once and for all: readers then never wait for the writer."""
        deadline = time.monotonic() + SQLITE_BUSY_SECONDS
        while True:
            try:
                return self._switch_to_wal()
            except StateUnavailable:
                # The switch needs the file alone and does not wait for it as statements do.
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)

    def _switch_to_wal(self) -> None:
        with self._translate():
            # Below SQLAlchemy, which would begin a transaction first: SQLite cannot change the journal mode inside one.
            raw = self._in_this_process(self._engine).raw_connection()
            try:
                if raw.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
                    raw.execute("PRAGMA journal_mode=WAL").fetchone()
            finally:
                raw.close()

    def close(self) -> None:
        """Close all connections; the next use opens new ones."""
        self._engine.dispose()

    def _in_this_process(self, engine: Engine) -> Engine:
        if self._pid != os.getpid():
            _INHERITED.append(self._engine.pool)
            # The parent goes on using these connections; closing them here would say good-bye to its server.
            self._engine.dispose(close=False)
            self._pid = os.getpid()
        return engine

    def _check_place(self) -> None:
        """Refuse to go on when the file was removed or replaced: SQLite would write into what nobody can find again.

        Raises:
            StateError
        """
        if not self.is_sqlite:
            return
        try:
            found = os.stat(str(self.url.database))
        except FileNotFoundError:
            place = None
        else:
            place = (found.st_dev, found.st_ino)
        # By device and inode: a file put in the place of another has the same name.
        self._place = self._place or place
        if place is None or place != self._place:
            raise StateError(
                f"State store {self.name} was removed or replaced while this process had it open. "
                f"Start again, with `rivet state rebuild` if it was lost."
            )

    @contextmanager
    def _translate(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:  # from `use_wal`, below SQLAlchemy
            raise explain_sqlite(str(error), self.url) from error
        except PoolTimeout as error:
            raise StateUnavailable(
                f"State store {self.name} has no free connection left in this process; run fewer exports at once."
            ) from error
        except DBAPIError as error:
            raise self._explain(error) from error

    def _explain(self, error: DBAPIError) -> StateError:
        """Put a driver's error into our words: which store, why, what to do; no password in it."""
        cause = str(error.orig).strip().partition("\n")[0]
        if self.is_sqlite:
            return explain_sqlite(cause, self.url)
        # libpq's messages may quote the connection string.
        if self.url.password:
            cause = cause.replace(str(self.url.password), "***")
        sqlstate = getattr(error.orig, "sqlstate", None)
        if sqlstate is None:  # libpq could not connect, or lost the line
            return explain_line(cause, self.url, served_before=self._served)
        return explain_postgres(cause, self.url, sqlstate=sqlstate)


def insert(connection: Connection, table: Table) -> sqlite.Insert | postgresql.Insert:
    """Begin an INSERT that offers ON CONFLICT in the words of this connection's database."""
    if connection.dialect.name == "sqlite":
        return sqlite.insert(table)
    return postgresql.insert(table)


def upsert(connection: Connection, table: Table, values: Mapping[str, Any]) -> None:
    """Insert one row, or replace the row of the same primary key."""
    connection.execute(_upsert(table, tuple(values), connection.dialect.name == "sqlite"), dict(values))


@lru_cache(maxsize=64)
def _upsert(table: Table, names: tuple[str, ...], is_sqlite: bool) -> sqlite.Insert | postgresql.Insert:
    """Build the statement for rows of these columns; building one of thirty columns costs as much as running it."""
    key = [column.name for column in table.primary_key.columns]
    statement = sqlite.insert(table) if is_sqlite else postgresql.insert(table)
    rest = {name: statement.excluded[name] for name in names if name not in key}
    return statement.on_conflict_do_update(index_elements=key, set_=rest)


def now(connection: Connection) -> datetime:
    """Return the store's own time, aware UTC: one clock for all hosts that share a server."""
    if connection.dialect.name == "sqlite":
        return datetime.now(UTC)
    # `clock_timestamp`, not `now()`, which stands still at the beginning of its transaction.
    stamp: datetime = connection.execute(select(func.clock_timestamp())).scalar_one()
    return stamp.astimezone(UTC)


def _parse(text: str) -> URL:
    try:
        url = make_url(text)
    except ArgumentError:
        raise StateError(
            "The state URL is not a URL (not shown, it may hold a password). "
            "Write sqlite:////absolute/path.db or postgresql://user@host/database."
        ) from None
    if url.drivername in ("postgres", "postgresql"):
        url = url.set(drivername="postgresql+psycopg")
    if url.drivername in ("sqlite", "sqlite+pysqlite"):
        return _with_absolute_path(url)
    if url.drivername == "postgresql+psycopg":
        return url
    raise StateError(
        f"State store type {url.drivername!r} is not one of sqlite, postgresql. "
        f"Write sqlite:////absolute/path.db or postgresql://user@host/database."
    )


def _with_absolute_path(url: URL) -> URL:
    if not url.database or url.database == ":memory:":
        raise StateError(
            "A state store in memory would be forgotten at once; name a file: sqlite:////absolute/path.db."
        )
    path = Path(url.database).absolute()
    if not path.parent.is_dir():
        raise StateError(
            f"State store {path}: folder {path.parent} does not exist. Create it, or name another in RIVET_STATE_URL."
        )
    if path.is_dir():
        raise StateError(f"State store {path} is a folder. Name a file in it, such as {path / '.rivet_state.db'}.")
    return url.set(database=str(path))


def _sqlite(url: URL) -> Engine:
    # Parameters hold cursors: values of rows, which no traceback may show.
    engine = create_engine(url, connect_args={"timeout": SQLITE_BUSY_SECONDS}, hide_parameters=True)

    @event.listens_for(engine, "connect")
    def settle(connection: Any, _record: Any) -> None:
        # Python's driver would begin transactions by itself, deferred: two writers that both read first would
        # then fail at once instead of waiting. So its own handling is off and `begin` below decides.
        connection.isolation_level = None
        # A cursor must not be forgotten by a power cut.
        connection.execute("PRAGMA synchronous=FULL")

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        write = connection.get_execution_options().get("rivet_write", False)
        # IMMEDIATE takes the store's one write lock now, so that a read in the transaction stays true. A deferred one
        # that read first and then writes gets SQLITE_BUSY at once when another one wrote meanwhile, without any wait.
        # Source: sqlite.org, "Transactions", section 2.1.
        connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")

    return engine


def _postgres(url: URL) -> Engine:
    query = {**LIVELINESS, "application_name": "rivet:state", **url.query}
    try:
        engine = create_engine(
            url.set(query=query),
            # Compare-and-set counts on an UPDATE seeing the latest row.
            isolation_level="READ COMMITTED",
            # Connections lie idle while a window is read for hours, and firewalls forget them.
            pool_pre_ping=True,
            hide_parameters=True,
            # Prepared statements break behind a transaction pooler.
            connect_args={"prepare_threshold": None},
        )
    except ModuleNotFoundError as error:
        raise StateError(f"State store {name_of(url)}: {extras.POSTGRES.error()}.") from error

    @event.listens_for(engine, "do_connect")
    def connect(_dialect: Any, _record: Any, arguments: Any, parameters: Any) -> Any:
        connection = watched().connect(*arguments, **parameters)
        connection.patience_seconds = POSTGRES_ANSWER_SECONDS  # type: ignore[attr-defined]  # of `Watched`
        return connection

    return engine
