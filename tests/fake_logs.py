"""A change log that is a few fields, and a source that has it: for tests of what stands around drains.

Belongs here: the stand-in, named as one. Not here: logs of real engines (`tests/engines/`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

from rivet_resources import fan_out
from rivet_resources.contracts.change_log import Capture, Commit, Lag, Position, Survey, TableComments
from rivet_resources.contracts.engine_facts import EngineFacts
from rivet_resources.contracts.evidence import Finding
from rivet_resources.contracts.settings import Pace, Tuning
from rivet_resources.errors import PositionLost, RivetError, UnknownTable

IDENTITY = "system_identifier:7"


def place(number: int) -> Position:
    """Return the position of a PostgreSQL log so many bytes from its start."""
    return Position(f"{number:016x}", f"0/{number:X}", "PostgresLsn")


@dataclass
class FakeLog:
    """A `Log` whose answers are set by the test; nothing can be read from it."""

    end: int = 100
    identity: str = IDENTITY
    findings: tuple[Finding, ...] = ()
    facts: dict[str, Any] = field(default_factory=dict)
    held: int | None = None
    budget: float | None = None
    oldest: int = 0
    fault: RivetError | None = None  # raised by survey
    looks: int = 0

    def preflight(self) -> tuple[Finding, ...]:
        """Return what was set."""
        return self.findings

    def survey(self) -> Survey:
        """Return the end, or raise."""
        self.looks += 1
        if self.fault is not None:
            raise self.fault
        return Survey(self.identity, place(self.end))

    def begin(self, *, again: bool = False) -> Position:
        """Begin at the end."""
        return place(self.end)

    def absent(self, table: str) -> frozenset[str]:
        return frozenset()

    def comments(self, table: str) -> TableComments:
        return TableComments()

    def refuse_lost(self, at: Position, survey: Survey) -> tuple[()]:
        """Refuse what lies before the oldest place."""
        if at.key < place(self.oldest).key:
            raise PositionLost("The log before 0/1 is gone.")
        return ()

    def handover(self) -> Any:
        """There are no tables."""
        raise AssertionError("nobody copies from a fake")

    def read(
        self,
        after: Position,
        upto: Position,
        *,
        most: int,
        seen: str = "",
        before_asking: Callable[[], None] = lambda: None,
    ) -> Iterator[Any]:
        """Find nothing."""
        yield Commit(upto)

    def acknowledge(self, position: Position) -> None:
        """Forget it."""

    def lag(self, at: Position | None) -> Lag:
        """Count from the place to the end."""
        unread = None if at is None else self.end - int(at.key, 16)
        seconds = None if unread is None else float(unread)
        return Lag(unread_bytes=unread, held_bytes=self.held, seconds=seconds, budget=self.budget, facts=self.facts)

    def close(self) -> None:
        """Nothing is open."""


@dataclass
class FakeSource:
    """A source with one log per export, tables of two columns, and a clock of its own."""

    logs: dict[str, FakeLog] = field(default_factory=dict)
    tables: tuple[str, ...] = ("orders",)
    clock: timedelta = timedelta(0)
    refusal: Exception | None = None  # of every connection
    wait: Callable[[], object] | None = None  # called by every opening of a log
    type: str = "postgres"
    facts: EngineFacts = field(default_factory=EngineFacts)
    tuning: Tuning | None = None
    paces: list[Pace] = field(default_factory=list)
    sessions: int = 0
    findings: tuple[Finding, ...] = ()  # of the server

    @contextmanager
    def open_log(self, capture: Capture, *, application: str, pace: Pace) -> Iterator[FakeLog]:
        """Open the log of an export."""
        self.paces.append(pace)
        if self.wait is not None:
            self.wait()
        if self.refusal is not None:
            raise self.refusal
        yield self.logs[capture.export]

    @contextmanager
    def session(self, *, application: str, pace: Pace, snapshot: bool = True) -> Iterator[Any]:
        """Connect."""
        if self.refusal is not None:
            raise self.refusal
        self.sessions += 1
        yield SimpleNamespace(
            now=lambda: datetime.now(UTC) + self.clock, describe=self._describe, examine=lambda **asked: self.findings
        )

    def _describe(self, *, table: str | None, query: str | None, params: Any, rules: Any) -> Any:
        if table is not None and table not in self.tables:
            raise UnknownTable(f"Table {table} is not there. Fix `table` of the export.")
        return SimpleNamespace(columns=("id", "name"))

    def lineage_name(self, table: str) -> tuple[str, str]:
        """Everything is in one schema."""
        return "public", table


class Gate:
    """Something to wait at, for a server that stays silent; `open` lets everybody pass."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def __call__(self) -> None:
        """Wait."""
        self._event.wait(60)

    def open(self) -> None:
        """Let go."""
        self._event.set()


def settle() -> None:
    """Wait for the threads of earlier questions, so that the next test may ask the same again."""
    for thread in list(fan_out._hanging.values()):
        thread.join(30)
