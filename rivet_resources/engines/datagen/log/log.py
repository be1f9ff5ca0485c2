"""Made-up changes as a change log: `mode: cdc` on a datagen source.

Belongs here: the `Log` methods, positions `seq:<n>`, where a drain ends. Not here: events and rows
(cycles.py).

Event n is a transaction of its own; a position is the number of the next one. A drain ends at the source's
`max_events`, the length of the whole stream, or after so many as `cdc: {max_events: …}` allows a run. A stream without
end needs the latter, since nothing else would tell two equal runs where to stop, and `cdc_mode: true`, which says that
it is one of changes before any log is opened.
Seed and clock of a stream that names none are drawn when it begins, and kept with its position. Going on from n costs
going through n rolls.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from hashlib import sha256

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rivet_resources.contracts.change_log import (
    BEFORE,
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
from rivet_resources.contracts.relation import Chunk, Relation
from rivet_resources.contracts.source import Session, TypeRules
from rivet_resources.contracts.types import Column
from rivet_resources.engines.datagen.log.cycles import INSERT, REVISION, Cycles, Event, has_revision, images
from rivet_resources.engines.datagen.pages import READERS
from rivet_resources.engines.datagen.rate import TokenBucket
from rivet_resources.engines.datagen.rows import WHOLE, Numbers, Recipe
from rivet_resources.engines.datagen.session import DatagenSession, describe_columns
from rivet_resources.engines.datagen.stream import Stream, snapshot_name
from rivet_resources.engines.shared.cells import Cells
from rivet_resources.errors import CheckpointUnusable, LogSetup

EVENTS = 20_000  # of one `Changes`
WORDS = pa.array(["insert", "update", "delete"])
TEXT = re.compile(r"seq:(\d{1,19})")
ENDLESS = 2**63 - 1
NO_END = (
    "datagen without `max_events` makes up changes without end, and so would a drain of it be. Set `max_events` of the "
    "source for a stream that ends; or `cdc_mode: true` there and `cdc: {max_events: …}` here for so many a run."
)


def position_at(n: int, recipe: Recipe | None = None) -> Position:
    """Return the position before event n, with what makes the same events again."""
    more = {"snapshot": snapshot_name(recipe.seed, recipe.clock)} if recipe is not None else {}
    return Position(key=f"{n:016x}", text=f"seq:{n}", type="Custom", more=more)


def number_of(position: Position) -> int:
    """Read the number of the next event.

    Raises:
        CheckpointUnusable: its text is no position of a datagen source.
    """
    match = TEXT.fullmatch(position.text)
    if match is None:
        raise CheckpointUnusable(
            f"The checkpoint's position is {position.text!r}, and a datagen source's are `seq:` and a number. It is "
            f"of another source; begin anew with `rivet state reset`."
        )
    return int(match[1])


class EmptySession(DatagenSession):
    """Plans the copy of a stream that begins with nothing."""

    def describe(
        self, *, table: str | None, query: str | None, params: Mapping[str, str], rules: TypeRules
    ) -> Relation:
        """Describe the stream with the columns its changes have."""
        found = super().describe(table=table, query=query, params=params, rules=TypeRules(columns={}))
        return replace(found, columns=columns_of(self.recipe, rules, relation=found.name))

    def chunks(
        self, relation: Relation, *, where: str = "", order_by: tuple[str, ...] = (), pieces: int = 1
    ) -> tuple[Chunk, ...]:
        """Return one chunk without rows."""
        # A chunk without rows is a window all the same, so the first copy has its manifest.
        return (Chunk(index=0, reader="blocks", relation=relation.sql, blocks=(0, 0), identity="n[0,0)"),)


def columns_of(recipe: Recipe, rules: TypeRules, *, relation: str) -> tuple[Column, ...]:
    """Type the columns of changes; see `describe_columns`."""
    more = {REVISION: WHOLE} if has_revision(recipe) else {}
    return describe_columns(recipe, rules, relation=relation, more=more)


@dataclass(frozen=True)
class EmptyCopy:
    """The copy of a stream at its beginning, where there is no row."""

    session: Session

    def seen(self) -> str:
        """Return '': no row was there."""
        return ""

    def repeats_until(self, end: str) -> str:
        """Return '': no row can come again."""
        return ""


@dataclass
class DatagenLog:
    """One drain's view of made-up changes; see the protocol."""

    stream: Stream
    capture: Capture
    _cycles: Cycles | None = None

    def close(self) -> None:
        """End nothing; safe to call twice."""

    def preflight(self) -> tuple[Finding, ...]:
        """Judge the one thing that can be wrong: a stream without end."""
        if self._length() is None:
            return (Finding("max_events", "fail", NO_END, "source: {max_events: 100000}"),)
        return (Finding("max_events", "ok", "The drain of the made-up changes has an end."),)

    def _length(self) -> int | None:
        """Return the number of events of the stream; None when neither it nor the drain ends."""
        if self.stream.max_events:
            return self.stream.max_events
        return ENDLESS if self.stream.makes_changes and self.capture.max_events else None

    def survey(self) -> Survey:
        """Return where the stream ends.

        Raises:
            LogSetup: nowhere.
        """
        length = self._length()
        if length is None:
            raise LogSetup(NO_END)
        # Without a seed the stream is told by its pattern alone; the seed that was drawn is kept with the position.
        made_of = f"{self.stream.pattern}\0{'' if self.stream.seed is None else self.stream.seed}"
        identity = f"datagen:{sha256(made_of.encode()).hexdigest()[:32]}"
        return Survey(
            identity=identity,
            target=position_at(length),
            oldest=position_at(0),
            facts={"max_events": self.stream.max_events},
        )

    def begin(self, *, again: bool = False) -> Position:
        """Return the first event's position, with a seed and a clock for a stream that has none."""
        return position_at(0, self.stream.recipe_at(self.stream.instant()))

    def absent(self, table: str) -> frozenset[str]:
        """Name no column: every one is in the log; see the protocol."""
        return frozenset()

    def comments(self, table: str) -> TableComments:
        """Return none: made-up columns have no comments; see the protocol."""
        return TableComments()

    def refuse_lost(self, at: Position, survey: Survey) -> tuple[()]:
        """Refuse nothing but a text that is no position: every event can be made again."""
        number_of(at)
        return ()

    @contextmanager
    def handover(self) -> Iterator[EmptyCopy]:
        """Open a copy of no rows: the stream begins with an empty pool."""
        # No row is made of it, so any seed and any clock serve.
        name = snapshot_name(self.stream.seed or 0, self.stream.clock or datetime.now(UTC))
        yield EmptyCopy(EmptySession(self.stream, snapshot=name, note=""))

    def read(
        self,
        after: Position,
        upto: Position,
        *,
        most: int,
        seen: str = "",
        before_asking: Callable[[], None] = lambda: None,
    ) -> Iterator[Changes | Commit]:
        """Make the next events, no faster than the source's rate; see the protocol."""
        recipe = self._recipe(after)
        # Every event is a transaction of its own, so a window may end behind any of them.
        first, end = number_of(after), min(number_of(upto), number_of(after) + most)
        # Kept over the windows of a drain: going through the events again from 0 would cost more with each.
        if self._cycles is None or self._cycles.recipe != recipe:
            self._cycles = Cycles(recipe)
        self._cycles.go_to(first)
        (table,) = self.capture.tables
        columns = columns_of(recipe, self.capture.rules, relation=self._relation(recipe, table))
        maker = _Maker(recipe, columns, rate=self.stream.events_per_second, before=self.capture.before)
        rate = self.stream.events_per_second
        bucket, step = TokenBucket(rate), min(EVENTS, rate) or EVENTS
        for start in range(first, end, step):
            count = min(step, end - start)
            # After the rows are made and before they are given on: a page of a slow stream is not shown early.
            data, special = maker.made(start, self._cycles.take(count))
            bucket.acquire(count)
            yield Changes(table, columns, data, special)
        newest = maker.times(np.array([end - 1]))[0].as_py() if end > first else None
        yield Commit(position_at(max(end, first), recipe), newest, max(end - first, 0))

    def _recipe(self, at: Position) -> Recipe:
        """Join the settings with the seed and the clock that a position keeps.

        Raises:
            CheckpointUnusable: it keeps none.
        """
        if "snapshot" not in at.more:
            raise CheckpointUnusable(
                f"The checkpoint at {at.text} does not hold the seed of its events; begin anew with "
                f"`rivet state reset`."
            )
        return self.stream.recipe_at(at.more["snapshot"])

    def _relation(self, recipe: Recipe, table: str) -> str:
        """Name the stream, whichever of its names the table was called by.

        Raises:
            UnknownTable
        """
        session = DatagenSession(self.stream, snapshot=snapshot_name(recipe.seed, recipe.clock), note="")
        return session.describe(table=table, query=None, params={}, rules=TypeRules(columns={})).name

    def acknowledge(self, position: Position) -> None:
        """Do nothing: the stream keeps no account."""

    def lag(self, at: Position | None) -> Lag:
        """Count the events that are left; a stream that ends with the drain has as many as one drain takes."""
        length = self._length()
        if length is None or at is None:
            return Lag()
        left = (self.capture.max_events or 0) if length == ENDLESS else max(length - number_of(at), 0)
        return Lag(unread_changes=left, seconds=0.0 if not left else None)


@dataclass
class _Maker:
    """Makes the rows of events."""

    recipe: Recipe
    columns: tuple[Column, ...]
    rate: int
    before: bool

    def __post_init__(self) -> None:
        self._cells = Cells(self.columns, chunk=0, readers=READERS)
        self._schema = pa.schema([*ENVELOPE, *(c.field.with_nullable(True) for c in self.columns)])

    def made(self, start: int, events: list[Event]) -> tuple[pa.Table, dict[str, dict[str, int]]]:
        """Make the events from `start` on: the envelope, the rows, the rows before."""
        operation, born, record, revision, old_record, old_revision = np.array(events, dtype=np.int64).T.copy()
        n = np.arange(start, start + len(events))
        rows, special = self._rows(born, record, revision)
        envelope = [
            WORDS.take(pa.array(operation)),
            # The position of an event is the number of the next one, as a checkpoint behind it will be.
            pa.array([f"{place:016x}" for place in (n + 1).tolist()], pa.string()),
            # Every event is a transaction of its own, with one change.
            pa.array(np.ones(len(n), dtype=np.int64)),
            self.times(n),
            pa.nulls(len(n), ENVELOPE[4].type),
        ]
        table = pa.Table.from_arrays([*envelope, *rows.columns], schema=self._schema)
        if self.before:
            old, _ = self._rows(born, old_record, old_revision)
            columns = [column.combine_chunks() for column in old.columns]
            struct = pa.StructArray.from_arrays(
                columns, fields=list(self._schema)[len(ENVELOPE) :], mask=pa.array(operation == INSERT)
            )
            table = table.append_column(pa.field(BEFORE, struct.type), struct)
        return table, special

    def _rows(self, born: Numbers, record: Numbers, revision: Numbers) -> tuple[pa.Table, dict[str, dict[str, int]]]:
        made = images(self.recipe, born, record, revision).select([column.name for column in self.columns])
        return self._cells.decode([made])

    def times(self, n: Numbers) -> pa.Array:
        """Return each event's commit: the clock, and later as the rate says; a microsecond where it has none."""
        step = 1_000_000 / self.rate if self.rate else 1
        micros = (n * step).astype(np.int64) + self.recipe.clock_microseconds
        return pc.cast(pa.array(micros), ENVELOPE[3].type)
