"""Pages of PostgreSQL: one statement, read whole through ADBC before a row of it is used.

Belongs here: the three readers (blocks, cursor, keyset), the size of pages, their retry. Not here: cells
(postgres_values.py), SQL text (postgres_sql.py), planning (postgres_session.py).

The throttle sleeps between statements, because the server's timeout counts our pauses too (`engine.md`, trap 6).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from rivet_resources import retry
from rivet_resources.errors import RivetError, SnapshotLost, SourceLost, StatementTimeout, ValueDoesNotFit
from rivet_resources.extract import Chunk
from rivet_resources.settings import Pace
from rivet_resources.sources import postgres_errors as errors
from rivet_resources.sources import postgres_sql as sql
from rivet_resources.sources.postgres_session import pin
from rivet_resources.sources.postgres_values import Cells, items
from rivet_resources.sources.protocol import Page, Wait
from rivet_resources.types import Column

if TYPE_CHECKING:
    from rivet_resources.sources.postgres import Line

MIB = 1024 * 1024
# `engine.md`, section 2: 8-32 MiB of Arrow, a tenth of the timeout, and no statement of a quarter second.
SMALL_BYTES, TARGET_BYTES, LARGE_BYTES = 8 * MIB, 16 * MIB, 32 * MIB
ABORT_BYTES = 96 * MIB  # a page this far off its target is asked again, smaller
LONGEST_SECONDS = 0.25
# A page starts small, since nobody knows how much is in TOAST; it grows eightfold at most.
FIRST_BLOCKS, MOST_BLOCKS, FIRST_ROWS, GROWTH = 8, 65_536, 500, 8
MOST_ROWS_PER_BLOCK = 291  # of a heap page of 8 KB
HINT_BYTES = 8 * MIB  # ADBC's own batches; bounds its buffers
COPY = {"adbc.postgresql.batch_size_hint_bytes": str(HINT_BYTES)}
PLAIN = {"adbc.postgresql.use_copy": "false", **COPY}


def read(
    chunk: Chunk, columns: tuple[Column, ...], *, line: Line, snapshot: str | None, pace: Pace, wait: Wait
) -> Iterator[Page]:
    """Read a chunk page by page; see `Source.pages`. Pages without rows are not shown, but their time is."""
    reader = Reader(line=line, snapshot=snapshot, chunk=chunk, columns=columns, pace=pace, wait=wait)
    longest = 0.0
    try:
        for page in {"blocks": _blocks, "cursor": _cursor, "keyset": _keyset}[chunk.reader](reader):
            longest = max(longest, page.statement_ms)
            if page.table.num_rows:
                yield replace(page, statement_ms=longest)
                longest = 0.0
    finally:
        reader.close()


# --- three readers -------------------------------------------------------------------------------


def _blocks(reader: Reader) -> Iterator[Page]:
    """Pages are ranges of heap blocks, all under one snapshot: an UPDATE would move rows between pages."""
    chunk, pace = reader.chunk, reader.pace
    size = Size(now=FIRST_BLOCKS, most=MOST_BLOCKS, rows=rows_limit(pace, reader.columns), pace=pace)
    if size.rows is not None:
        size = replace(size, now=max(1, min(FIRST_BLOCKS, size.rows // MOST_ROWS_PER_BLOCK)))
    low, end = chunk.blocks
    while low < end:
        high = min(low + size.now, end)
        page = reader.ask(_block_range(reader, low, high), what=f"blocks {low} to {high}", can_shrink=high - low > 1)
        if page is None:
            size = replace(size, now=max(1, (high - low) // 4))
            continue
        size = size.after(high - low, page)
        low = high
        yield page
        if low < end:
            reader.wait(page.table.num_rows)


def _block_range(reader: Reader, low: int, high: int) -> str:
    where = [f"ctid >= '({low},0)' AND ctid < '({high},0)'", reader.chunk.where]
    return sql.select(reader.items, relation=reader.chunk.relation, where=where)


def _cursor(reader: Reader) -> Iterator[Page]:
    """Pages are FETCHes of one cursor, which dies with its connection: then the chunk starts over (SourceLost)."""
    chunk, pace = reader.chunk, reader.pace
    rows = rows_limit(pace, reader.columns) or pace.batch_size
    size = Size(now=min(FIRST_ROWS, rows), most=rows, rows=None, pace=pace)
    query = sql.select(reader.items, relation=chunk.relation, where=[chunk.where], order_by=chunk.order_by)
    retry.call(
        lambda: reader.run(f"DECLARE rivet NO SCROLL CURSOR FOR {query}", doing="opening the cursor"),
        pace=pace,
        on=SourceLost,
        on_retry=lambda error: reader.close(),
    )
    while True:
        page = reader.fetch(f"FETCH {size.now} FROM rivet")
        yield page
        if page.table.num_rows < size.now:
            return
        reader.wait(page.table.num_rows)
        size = size.after(size.now, page)


def _keyset(reader: Reader) -> Iterator[Page]:
    """Pages are `key > last ORDER BY key LIMIT n`; each stands alone, so any can be asked again."""
    chunk, pace = reader.chunk, reader.pace
    rows = rows_limit(pace, reader.columns) or pace.batch_size
    size = Size(now=min(FIRST_ROWS, rows), most=rows, rows=None, pace=pace)
    key = [sql.quote(name) for name in chunk.key]
    columns = [next(c for c in reader.columns if c.name == name) for name in chunk.key]
    after = ""
    while True:
        statement = sql.select(
            reader.items, relation=chunk.relation, where=[chunk.where, after], order_by=key, limit=size.now
        )
        page = reader.ask(statement, what="the next rows by key", can_shrink=size.now > 1)
        if page is None:
            size = replace(size, now=max(1, size.now // 4))
            continue
        yield page
        if page.table.num_rows < size.now:
            return
        last = [page.table.column(c.name)[-1] for c in columns]
        after = sql.after_key(key, [sql.literal(_canonical(cell), c) for cell, c in zip(last, columns, strict=True)])
        reader.wait(page.table.num_rows)
        size = size.after(size.now, page)


def _canonical(cell: pa.Scalar) -> str:
    """Render a key cell; times beyond Python's years by Arrow."""
    if pa.types.is_timestamp(cell.type):
        return str(pc.strftime(cell, format="%Y-%m-%dT%H:%M:%S")) + ("Z" if cell.type.tz else "")
    return sql.canonical(cell.as_py())


# --- the size of pages ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Size:
    """How much the next page asks for, in blocks or rows, and the limits it adapts within."""

    now: int
    most: int
    rows: int | None  # at most so many rows where `now` counts blocks
    pace: Pace

    @property
    def longest_seconds(self) -> float:
        limit = self.pace.statement_timeout_s
        return min(LONGEST_SECONDS, limit / 10) if limit else LONGEST_SECONDS

    @property
    def target_bytes(self) -> int:
        memory = self.pace.batch_size_memory_mb
        return min(TARGET_BYTES, memory * MIB) if memory else TARGET_BYTES

    def after(self, asked: int, page: Page) -> Size:
        """Adapt to a page that asked for `asked`: towards the target of bytes, down when it took too long."""
        factor = min(
            self.target_bytes / max(page.table.nbytes, 1),
            self.longest_seconds / 2 * 1000 / max(page.statement_ms, 0.01),
        )
        if self.rows is not None:
            factor = min(factor, self.rows / max(page.table.num_rows, 1))
        if 0.8 < factor < 2 and self.rows is None:
            return self
        wanted = int(asked * min(factor, GROWTH))
        return replace(self, now=max(1, min(wanted, self.most)))


# `contract.md`, 5.1: Arrow widths where fixed, decimal 16, text and binary 256, anything else 64, one for validity.
def rows_limit(pace: Pace, columns: tuple[Column, ...]) -> int | None:
    """Give the rows a page may hold by the user's own word, None when they gave none."""
    if pace.batch_size_is_explicit:
        return pace.batch_size
    if pace.batch_size_memory_mb is None:
        return None
    width = sum(_width(column.arrow) + 1 for column in columns)
    return max(1_000, min(500_000, pace.batch_size_memory_mb * MIB // width))


def _width(arrow: pa.DataType) -> int:
    if pa.types.is_decimal(arrow):
        return 16
    if pa.types.is_string(arrow) or pa.types.is_binary(arrow):
        return 256
    try:
        return max(1, int(arrow.bit_width) // 8)
    except ValueError:
        return 64


# --- one connection ------------------------------------------------------------------------------


class _TooLarge(Exception):
    """A page passed ABORT_BYTES; its connection is in mid-statement."""


@dataclass
class Reader:
    """One ADBC connection in one transaction, opened when first needed. Not shared between threads."""

    line: Line
    snapshot: str | None
    chunk: Chunk
    columns: tuple[Column, ...]
    pace: Pace
    wait: Wait
    _connection: Any = None
    _retries: int = 0
    _has_timed_out: bool = False
    _cells: Cells = field(init=False)

    def __post_init__(self) -> None:
        self._cells = Cells(self.columns, chunk=self.chunk.index, strict=frozenset(self.chunk.key))
        self.items = items(self.columns)

    def ask(self, statement: str, *, what: str, can_shrink: bool) -> Page | None:
        """Read one page, again on a fresh connection when the fault may pass; None when a smaller one must do.

        A timeout asks for a smaller page once in a chunk: the same statement would run into it again.
        """
        self._retries = 0
        doing = f"reading {what} of {self.name}"
        try:
            batches, seconds = retry.call(
                lambda: self._whole(statement, COPY, doing=doing, limit=ABORT_BYTES if can_shrink else None),
                pace=self.pace,
                on=SourceLost,
                on_retry=self._again,
            )
        except (_TooLarge, StatementTimeout) as error:
            self.close()
            if isinstance(error, StatementTimeout):
                if self._has_timed_out or not can_shrink:
                    raise
                self._has_timed_out = True
            return None
        return self._page(batches, seconds)

    def fetch(self, statement: str) -> Page:
        """Read one page of the open cursor; a fault ends the cursor, so nothing is asked again."""
        batches, seconds = self._whole(statement, PLAIN, doing=f"reading the cursor of {self.name}", limit=None)
        return self._page(batches, seconds)

    def run(self, statement: str, *, doing: str) -> None:
        """Run a statement that returns no rows."""
        self._whole(statement, PLAIN, doing=f"{doing} of {self.name}", limit=None)

    def close(self) -> None:
        """Close the connection, cancelling what runs on it; safe to call twice."""
        connection, self._connection = self._connection, None
        if connection is not None:
            try:
                connection.close()
            except Exception:  # a broken line cannot be closed in good order, and nobody needs it any more
                return

    @property
    def name(self) -> str:
        return next((c.fact("relation") for c in self.columns if c.fact("relation")), self.chunk.relation)

    def _again(self, error: RivetError) -> None:
        self._retries += 1
        self.close()

    def _page(self, batches: list[pa.RecordBatch], seconds: float) -> Page:
        table, special = self._cells.decode(batches)
        check_cells(table, self.pace.max_value_mb, relation=self.name)
        return Page(table=table, special=special, statement_ms=seconds * 1000, retries=self._retries)

    def _whole(
        self, statement: str, options: Mapping[str, str], *, doing: str, limit: int | None
    ) -> tuple[list[pa.RecordBatch], float]:
        """Run one statement and read all of its batches; gives them and its seconds."""
        if self._connection is None:
            self._open()
        started = time.perf_counter()
        try:
            batches = _statement(self._connection, statement, options, limit)
        except (_TooLarge, RivetError):
            raise
        except Exception as error:
            raise self._fault(error, doing, time.perf_counter() - started) from None
        return batches, time.perf_counter() - started

    def _fault(self, error: Exception, doing: str, seconds: float) -> RivetError:
        """Classify; where neither SQLSTATE nor text tells, ask whether the server still answers us."""
        found = errors.fault(error, doing=doing, user=self.line.user, secrets=self.line.secrets)
        found = errors.changed(found, error, relation=self.name)
        if errors.sqlstate_of(error) or isinstance(found, SourceLost):
            return found
        if self._is_alive():
            return found
        return SourceLost(
            f"While {doing}: the line to PostgreSQL at {self.line.where} broke after {seconds:.1f} s. Run again."
        )

    def _is_alive(self) -> bool:
        """Say whether this very connection still answers: then the fault was the statement's own."""
        try:
            _statement(self._connection, "ROLLBACK", PLAIN, None)
            return True
        except Exception:
            return False

    def _open(self) -> None:
        """Connect, begin, pin and import the snapshot.

        Raises:
            SnapshotLost: its exporter is gone; going on would mix two instants.
            SourceLost, SourceAuth, SourceError
        """
        self._connection = _connect(self.line)
        level = "REPEATABLE READ" if self.snapshot or self.chunk.reader == "cursor" else "READ COMMITTED"
        try:
            _statement(self._connection, f"BEGIN ISOLATION LEVEL {level} READ ONLY", PLAIN, None)
            if self.snapshot:
                self._import()
            _statement(self._connection, pin(self.line.settings), PLAIN, None)
        except RivetError:
            self.close()
            raise
        except Exception as error:
            self.close()
            raise errors.fault(error, doing=f"beginning to read {self.name}", secrets=self.line.secrets) from None

    def _import(self) -> None:
        try:
            _statement(self._connection, f"SET TRANSACTION SNAPSHOT '{self.snapshot}'", PLAIN, None)
        except Exception as error:
            if errors.sqlstate_of(error) in ("22023", "42704", "55000"):
                raise SnapshotLost(
                    f"The shared snapshot ended before {self.name} was read to its end; going on would mix two instants. "
                    f"Nothing is published; run again."
                ) from None
            raise


def _connect(line: Line) -> Any:
    from adbc_driver_postgresql import dbapi

    try:
        try:
            return dbapi.connect(line.conninfo(), autocommit=True)
        except Exception as error:
            if "startup parameter" not in str(error):
                raise
            return dbapi.connect(line.conninfo(options=False), autocommit=True)
    except Exception as error:
        raise errors.connect_fault(error, where=line.where, first=False, secrets=line.secrets) from None


def _statement(connection: Any, statement: str, options: Mapping[str, str], limit: int | None) -> list[pa.RecordBatch]:
    """Run one statement and read its answer whole."""
    cursor = connection.cursor()
    try:
        cursor.adbc_statement.set_options(**options)
        cursor.execute(statement)
        reader = cursor.fetch_record_batch()
        batches, size = [], 0
        for batch in reader:
            batches.append(batch)
            size += batch.nbytes
            if limit is not None and size > limit:
                cursor.adbc_cancel()
                raise _TooLarge
        return batches
    finally:
        cursor.close()


# --- the largest cell ----------------------------------------------------------------------------


class ValueTooLarge(ValueDoesNotFit):
    """One cell is larger than `max_value_mb`."""

    code = "RIVET_VALUE_TOO_LARGE"


def check_cells(table: pa.Table, max_value_mb: int, *, relation: str) -> None:
    """Refuse a cell above the limit; columns smaller than it as a whole are not looked at.

    Raises:
        ValueTooLarge
    """
    if not max_value_mb:
        return
    for name, column in zip(table.column_names, table.columns, strict=True):
        if column.nbytes <= max_value_mb * MIB or not (
            pa.types.is_string(column.type) or pa.types.is_binary(column.type)
        ):
            continue
        largest = pc.max(pc.binary_length(column)).as_py() or 0
        if largest > max_value_mb * MIB:
            raise ValueTooLarge(
                f"`{relation}.{name}` holds a cell of {largest // MIB} MB; `tuning.max_value_mb` allows {max_value_mb}. "
                f"Raise it, or leave the column out."
            )
