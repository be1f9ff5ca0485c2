"""The messages of a slot as Arrow batches: through ADBC, or by COPY on the log's own connection.

Belongs here: the one statement that peeks, its two ways to us, closing early. Not here: what messages mean. Peek,
never get: `pg_logical_slot_get_*` empties the slot as it reads, before anything is durable with us.

The settings that decide how values are spelled are pinned inside the statement itself, ahead of the peek: that
holds behind every pooler, and saves a transaction's worth of statements. Measured on 15 and 18.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from rivet_resources.deadlines import MARGIN_SECONDS, Ahead, interruptible
from rivet_resources.engines.postgres.connect import Arrow, ConnectionParams, connect, open_arrow
from rivet_resources.engines.postgres.errors import connect_fault
from rivet_resources.engines.postgres.log.errors import log_fault
from rivet_resources.engines.postgres.log.lsn import lsn_text
from rivet_resources.engines.postgres.sql import quote_text
from rivet_resources.errors import RivetError

if TYPE_CHECKING:
    import psycopg

BATCH_BYTES = 8 << 20
# Of log: not worth a second connection and the types that ADBC asks for when it connects.
SMALL_BYTES = 4 << 20
# upto_nchanges is an int4.
LARGEST_LIMIT = 2**31 - 1
# What the server keeps of an answer before it writes a temporary file.
WORK_MEMORY = "64MB"
LOOK_SECONDS, LOOKS, LOOK_PAUSE_SECONDS = 10, 5, 0.5
# Who waits for its client (state `Client`) has nothing left to do: its answer is lost on the way to us.
AT_WORK = """SELECT EXISTS (SELECT FROM pg_replication_slots AS slot JOIN pg_stat_activity AS worker
    ON worker.pid = slot.active_pid WHERE slot.slot_name = %s AND worker.state = 'active'
    AND worker.wait_event_type IS DISTINCT FROM 'Client')"""
# Before the first row: signature (11 bytes), flags (4), length of an extension (4). Before each row's one field: number
# of fields (2), length (4). The end is a row of -1 fields. Source: PostgreSQL documentation, COPY, "Binary Format".
COPY_HEADER, COPY_ROW, COPY_END = 19, 6, b"\xff\xff"


@dataclass(frozen=True)
class Peek:
    """What to read: up to a place, or until so many messages have come and their transaction is whole."""

    slot: str
    publication: str
    upto: int
    limit: int
    settings: Mapping[str, str]

    @property
    def statement(self) -> str:
        """Write the SELECT; each option hangs on the pinned settings, so they are in force before the first row."""
        pinned = {**self.settings, "work_mem": WORK_MEMORY}
        settings = ", ".join(f"set_config('{name}', {quote_text(value)}, true)" for name, value in pinned.items())
        names = quote_text(quote_list(self.publication))
        return (
            # `nothing` is always '': it is there to make an option of the peek depend on the settings.
            f"WITH pinned AS MATERIALIZED (SELECT left(concat({settings}), 0) AS nothing) "
            f"SELECT data FROM pinned, LATERAL pg_logical_slot_peek_binary_changes({quote_text(self.slot)}, "
            f"'{lsn_text(self.upto)}', {min(self.limit, LARGEST_LIMIT)}, "
            f"'proto_version', '1' || pinned.nothing, 'publication_names', {names})"
        )


def quote_list(name: str) -> str:
    """Write one name as the plugin's list of names takes it."""
    return '"' + name.replace('"', '""') + '"'


class Wire:
    """The connection that large answers come through; opened on first use, not shared between threads.

    It has no statement timeout: the server decodes everything since the slot's place before the first row, and a
    limit that one backlog ran into would stop every later attempt as well. So whoever waits for long asks the server,
    over a line of its own, whether it still works at the slot; a server that does not say so is not waited for.
    """

    def __init__(self, conn_params: ConnectionParams) -> None:
        self.conn_params = replace(conn_params, settings={**conn_params.settings, "statement_timeout": "0"})
        self._asked_every = conn_params.patience_seconds if conn_params.limit_seconds else MARGIN_SECONDS
        self._looking = replace(
            conn_params, settings={**conn_params.settings, "statement_timeout": str(LOOK_SECONDS * 1000)}
        )
        self._slot = ""
        self._connection: Arrow | None = None
        self._plain: psycopg.Connection[Any] | None = None

    def batches(self, peek: Peek) -> Iterator[pa.Array]:
        """Yield the messages; closing the iterator early cancels the statement and ends the connection.

        Raises:
            LogBusy, PositionLost, LogSetup, SourceLost, SourceError
        """
        is_whole, self._slot = False, peek.slot
        try:
            yield from (
                self._fetch(peek)
                if has_adbc()
                else copy_messages(self._open_plain(), peek, conn_params=self.conn_params)
            )
            is_whole = True
        finally:
            # Failed, or left early: the server still works on the answer, and only the end of the connection stops
            # it.
            if not is_whole:
                self.close()

    def _fetch(self, peek: Peek) -> Iterator[pa.Array]:
        try:
            connection = self._open()
            with connection.raw.cursor() as cursor:
                options = {"adbc.postgresql.batch_size_hint_bytes": str(BATCH_BYTES)}
                cursor.adbc_statement.set_options(**options)
                # The first wait is the longest: the server decodes the whole answer before its first row.
                with connection.bounded():
                    interruptible(partial(cursor.execute, peek.statement), cursor.adbc_cancel)
                fetch = partial(_next, connection, cursor.fetch_record_batch())
                # The driver reads and copies without the interpreter, so the batch before is decoded meanwhile.
                with Ahead(fetch, cursor.adbc_cancel) as batches:
                    yield from (batch.column(0) for batch in batches if batch.num_rows)
        except RivetError:
            raise
        except Exception as error:
            raise log_fault(error, doing="reading the slot", peek=peek, conn_params=self.conn_params) from None

    def _open(self) -> Arrow:
        if self._connection is None:
            try:
                self._connection = open_arrow(
                    self.conn_params, patience_seconds=self._asked_every, is_at_work=self._is_at_work
                )
            except Exception as error:
                raise connect_fault(error, where=self.conn_params.where, secrets=self.conn_params.secrets) from None
        return self._connection

    def _open_plain(self) -> psycopg.Connection[Any]:
        """Open a connection for COPY, where the wheel of ADBC does not exist for a platform."""
        if self._plain is None:
            self._plain = connect(self.conn_params)
            self._plain.patience_seconds = self._asked_every  # type: ignore[attr-defined]  # of `Watched`
            self._plain.is_at_work = self._is_at_work  # type: ignore[attr-defined]
        return self._plain

    def _is_at_work(self) -> bool:
        """Ask over another line whether the server still works at the slot, and not merely waits for us to read.

        More than once, as it may be at any step for a moment: about to begin, sending, just done.
        """
        # A line of its own, since this one is taken by the statement that is asked about.
        with closing(connect(self._looking)) as other:
            for look in range(LOOKS):
                time.sleep(LOOK_PAUSE_SECONDS if look else 0)
                row = other.execute(AT_WORK, (self._slot,)).fetchone()
                if row is not None and row[0]:
                    return True
        return False

    def close(self) -> None:
        """Close the connection, cancelling what runs on it; safe to call twice."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
        plain, self._plain = self._plain, None
        if plain is not None:
            plain.close()


def _next(connection: Arrow, reader: Any) -> pa.RecordBatch | None:
    """Wait for the next batch, None behind the last; what is done with it does not count."""
    with connection.bounded():
        return next(reader, None)


def has_adbc() -> bool:
    """Return whether the driver for large answers is installed."""
    from importlib.util import find_spec  # start

    return find_spec("adbc_driver_postgresql") is not None


def copy_messages(
    connection: psycopg.Connection[Any], peek: Peek, *, conn_params: ConnectionParams
) -> Iterator[pa.Array]:
    """Yield the messages by COPY BINARY on a connection that is open anyway: the way where ADBC is not worth it.

    Raises:
        LogBusy, PositionLost, LogSetup, SourceLost, SourceError
    """
    import psycopg  # driver

    rows: list[memoryview] = []
    size, ended = 0, False
    try:
        statement = f"COPY ({peek.statement}) TO STDOUT (FORMAT BINARY)".encode()
        with connection.cursor() as cursor, cursor.copy(statement) as copy:
            for number, block in enumerate(copy):
                row = memoryview(block)[COPY_HEADER:] if number == 0 else memoryview(block)
                if row == COPY_END:
                    ended = True
                elif len(row):
                    rows.append(row[COPY_ROW:])
                    size += len(row)
                if size >= BATCH_BYTES:
                    yield pa.array(rows, pa.binary())
                    rows, size = [], 0
    except psycopg.Error as error:
        raise log_fault(error, doing="reading the slot", peek=peek, conn_params=conn_params) from None
    if rows:
        yield pa.array(rows, pa.binary())
    # A connection that closes in good order ends the iteration too; only the end mark says that all rows came.
    if not ended:
        raise log_fault(
            ConnectionError("the copy closed without its end; server closed the connection unexpectedly"),
            doing="reading the slot", peek=peek, conn_params=conn_params,
        )  # fmt: skip
