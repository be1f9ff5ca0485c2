"""A change log in memory: a stand-in for a database's own, so that the drain is proved without a server.

Transactions are lists of (table, op, row). A position is the number of a transaction, ten hex digits; what was
acknowledged is kept, as a slot would. Not a database: types are what Arrow makes of Python's values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from rivet_resources.contracts.change_log import (
    ENVELOPE,
    Capture,
    Changes,
    Commit,
    Lag,
    Position,
    Survey,
    TableComments,
)
from rivet_resources.contracts.evidence import Finding
from rivet_resources.contracts.types import Column
from rivet_resources.errors import PositionLost

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)


def place(number: int) -> Position:
    """Name the place behind a transaction."""
    return Position(f"{number:010x}", f"tx:{number}", "Custom")


@dataclass
class FakeLog:
    """The server's side: its transactions, and how far readers said it may forget."""

    columns: dict[str, tuple[Column, ...]]
    transactions: list[list[tuple[str, str, dict[str, Any]]]] = field(default_factory=list)
    identity: str = "fake:1"
    acknowledged: int = 0
    statements: list[str] = field(default_factory=list)
    findings: tuple[Finding, ...] = ()
    break_after: int | None = None  # changes of a read after which the line breaks
    altered: dict[int, dict[str, tuple[Column, ...]]] = field(default_factory=dict)  # from this transaction on
    comments: dict[str, dict[str, str]] = field(default_factory=dict)  # of the columns that a table has now

    def commit(self, *changes: tuple[str, str, dict[str, Any]]) -> None:
        """Append a transaction."""
        self.transactions.append(list(changes))

    def columns_at(self, number: int, table: str) -> tuple[Column, ...]:
        """Return a table's columns as they were in a transaction."""
        found = self.columns[table]
        for start in sorted(self.altered):
            if start <= number and table in self.altered[start]:
                found = self.altered[start][table]
        return found


@dataclass
class FakeReader:
    """The reader's side: an open log."""

    log: FakeLog
    capture: Capture

    def preflight(self) -> tuple[Finding, ...]:
        return self.log.findings

    def survey(self) -> Survey:
        self.log.statements.append("survey")
        return Survey(self.log.identity, place(len(self.log.transactions)), oldest=place(self.log.acknowledged))

    def begin(self, *, again: bool = False) -> Position:
        self.log.statements.append("begin")
        return place(len(self.log.transactions))

    def absent(self, table: str) -> frozenset[str]:
        return frozenset()

    def comments(self, table: str) -> TableComments:
        self.log.statements.append(f"comments of {table}")
        return TableComments("all", self.log.comments.get(table, {}))

    def refuse_lost(self, at: Position, survey: Survey) -> tuple[()]:
        if int(at.key, 16) < self.log.acknowledged:
            raise PositionLost("the log behind our position is gone")
        return ()

    def read(
        self,
        after: Position,
        upto: Position,
        *,
        most: int,
        seen: str = "",
        before_asking: Callable[[], None] = lambda: None,
    ) -> Iterator[Changes | Commit]:
        self.log.statements.append("read")
        first, last, count = int(after.key, 16), int(upto.key, 16), 0
        for number in range(first, last):
            for ordinal, (table, op, row) in enumerate(self.log.transactions[number]):
                if self.log.break_after is not None and count >= self.log.break_after:
                    raise ConnectionResetError("the line broke")
                if table in self.capture.tables:
                    yield self._change(number, ordinal, table, op, row)
                    count += 1
            if count >= most:
                yield Commit(place(number + 1), EPOCH, number + 1 - first)
                return
        yield Commit(upto, EPOCH if last > first else None, last - first)

    def _change(self, number: int, ordinal: int, table: str, op: str, row: dict[str, Any]) -> Changes:
        columns = self.log.columns_at(number, table)
        cells = [[op], [place(number + 1).key], [2 * ordinal + 1], [EPOCH], [None]]
        fields = [*ENVELOPE, *(column.field.with_nullable(True) for column in columns)]
        cells += [[row.get(column.name)] for column in columns]
        arrays = [pa.array(cell, each.type) for cell, each in zip(cells, fields, strict=True)]
        return Changes(table, columns, pa.Table.from_arrays(arrays, schema=pa.schema(fields)))

    def acknowledge(self, position: Position) -> None:
        self.log.statements.append("acknowledge")
        self.log.acknowledged = int(position.key, 16)

    def lag(self, at: Position | None) -> Lag:
        return Lag(unread_changes=len(self.log.transactions) - int(at.key, 16) if at else None)

    def close(self) -> None: ...


@dataclass(frozen=True)
class FakeSource:
    """A source with that log; nothing else is asked of it."""

    log: FakeLog = field(hash=False)
    type: str = "fake"
    tuning: Any = None

    @contextmanager
    def open_log(self, capture: Capture, *, application: str, pace: Any) -> Iterator[FakeReader]:
        yield FakeReader(self.log, capture)

    def lineage_name(self, table: str) -> tuple[str, str]:
        return "public", table
