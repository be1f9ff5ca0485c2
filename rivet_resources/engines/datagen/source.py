"""Made-up rows as a source: its YAML block, and the Source methods (`type: datagen`).

Belongs here: settings, quoting and literals. Not here: rows, vocabularies, planning, pages and the rate, which are
beside this file.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from rivet_resources.contracts.dialect import Dialect
from rivet_resources.contracts.engine_facts import EngineFacts
from rivet_resources.contracts.evidence import Effort, Gauge
from rivet_resources.contracts.mode_facts import ModeFacts
from rivet_resources.contracts.read_limits import SourceBudget, SourceRate, SourceWindows
from rivet_resources.contracts.relation import Chunk
from rivet_resources.contracts.settings import Pace, Settings, Tuning
from rivet_resources.contracts.source import Page, Session, Wait
from rivet_resources.contracts.types import Column
from rivet_resources.engines.datagen import (
    gauge as datagen_gauge,
)
from rivet_resources.engines.datagen import (
    pages as datagen_pages,
)
from rivet_resources.engines.datagen import (
    session as datagen_session,
)
from rivet_resources.engines.datagen import (
    sql as datagen_sql,
)
from rivet_resources.engines.datagen.facts import FACTS
from rivet_resources.engines.datagen.rows import fields
from rivet_resources.engines.datagen.stream import Stream
from rivet_resources.errors import ConfigError

if TYPE_CHECKING:
    from rivet_resources.contracts.change_log import Capture, Log

FASTEST = 100_000


class Datagen(Settings):
    """Which rows to make up, how many and how fast. Equal seed, settings and clock give equal rows."""

    type: Literal["datagen"] = "datagen"
    facts: ClassVar[EngineFacts] = FACTS
    pattern: Literal["sequence", "random", "users", "orders", "events", "metrics", "key_value"] = Field(
        default="random", description="what a row looks like"
    )
    stream_name: str = Field(
        default="datagen",
        min_length=1,
        max_length=255,
        description="name of the one table; `table:` may be it, or the pattern",
    )
    namespace: str | None = Field(default=None, min_length=1, description="its schema")
    events_per_second: int = Field(default=10, description="0: as fast as it goes; at most 100000")
    max_events: int = Field(default=0, ge=0, description="rows in all; 0: endless, for mode incremental by _sequence")
    include_sequence: bool = Field(default=True, description="add _sequence, the row's number from 0 on")
    include_timestamp: bool = Field(default=True, description="add _timestamp, the clock")
    custom_fields: dict[str, Any] = Field(
        default_factory=dict, description="columns with one value each; they may replace the pattern's own"
    )
    seed: int | None = Field(default=None, description="default: a random one, told in the run's notes")
    cdc_mode: bool = Field(default=False, description="true: a stream of changes, for mode cdc only; it may be endless")
    clock: datetime | None = Field(default=None, description="the now of all dates; default: start of the run")
    tuning: Tuning | None = Field(default=None, description="how hard the source may be driven")
    rate_limit: SourceRate = None
    read_windows: SourceWindows = None
    budget: SourceBudget = None

    @field_validator("events_per_second")
    @classmethod
    def _within_reach(cls, rate: int) -> int:
        """Refuse a rate outside 0 to 100000."""
        if not 0 <= rate <= FASTEST:
            raise ValueError(f"is {rate}; write 0 (as fast as it goes) to {FASTEST}")
        return rate

    @field_validator("clock")
    @classmethod
    def _is_utc(cls, clock: datetime | None) -> datetime | None:
        """Take a clock without zone as UTC."""
        return clock.replace(tzinfo=UTC) if clock is not None and clock.tzinfo is None else clock

    @field_validator("custom_fields")
    @classmethod
    def _values_are_json(cls, custom: dict[str, Any]) -> dict[str, Any]:
        """Refuse names and values that no column could hold."""
        for name, value in custom.items():
            if not name or "\0" in name:
                raise ValueError(f"{name!r} cannot be the name of a column")
            # YAML's dates and other objects would become columns of types that nobody named.
            if not isinstance(value, str | int | float | list | dict | None):
                raise ValueError(f"{name} is neither text, number, true, false, null, list nor mapping; quote it")
            if isinstance(value, int) and not -(2**63) <= value < 2**63:
                raise ValueError(f"{name} does not fit into 64 bits; quote it")
        return custom

    @model_validator(mode="after")
    def _names_differ(self) -> Datagen:
        """Refuse columns that differ only in case: Spark and many readers cannot tell them apart."""
        names = list(fields(self.stream.recipe(seed=0, clock=datetime(1970, 1, 1, tzinfo=UTC))))
        lower = [name.lower() for name in names]
        same = [name for name in names if lower.count(name.lower()) > 1]
        if same:
            raise ValueError(f"custom_fields make {' and '.join(same)}, which differ only in case; rename one")
        return self

    # --- what a Source does ----------------------------------------------------------------------

    def at(self, variable: str) -> Datagen:
        """Refuse, since rows are made here; see the protocol."""
        raise ConfigError("A source of type datagen has no address that could be another one.")

    @contextmanager
    def session(self, *, application: str, pace: Pace, snapshot: bool = True) -> Iterator[Session]:
        """Fix seed and clock for one run; see the protocol."""
        stream = self.stream
        name = stream.instant()
        # The rows of such a stream are changes; a copy of its beginning has none.
        if self.cdc_mode:
            from rivet_resources.engines.datagen.log.log import EmptySession  # start

            yield EmptySession(stream, snapshot=name, note=stream.note(name))
            return
        yield datagen_session.DatagenSession(stream, snapshot=name, note=stream.note(name))

    def pages(
        self,
        chunk: Chunk,
        columns: tuple[Column, ...],
        *,
        snapshot: str | None,
        application: str,
        pace: Pace,
        wait: Wait,
    ) -> Generator[Page, None, Effort]:
        """Make a chunk page by page; see the protocol."""
        return datagen_pages.read(self.stream, chunk, columns, snapshot=snapshot, pace=pace, wait=wait)

    def gauge(self, *, application: str, pace: Pace) -> AbstractContextManager[Gauge]:
        """Connect for looking at the source while it is read; see the protocol."""
        return datagen_gauge.open_gauge()

    @contextmanager
    def open_log(self, capture: Capture, *, application: str, pace: Pace) -> Iterator[Log]:
        """Make changes up for one drain; see `log/log.py`."""
        from rivet_resources.engines.datagen.log.log import DatagenLog  # start

        yield DatagenLog(self.stream, capture)

    def refuses(self, mode: ModeFacts, relation: Literal["table", "query"]) -> str:
        """Return why a mode cannot be; '' when it can."""
        if relation == "query":
            return "datagen has one table and no queries; write `table:` instead, and shape rows with transforms"
        if mode.follows_log:
            return ""
        if mode.holds_changes:
            return "datagen has no column that tells when a row changed; use mode cdc, which makes change cycles"
        if self.cdc_mode:
            return f"datagen with `cdc_mode: true` makes changes, which mode {mode.name} cannot read; use mode cdc"
        if not self.max_events and not mode.keeps_cursor:
            return (
                f"datagen without `max_events` is endless, and mode {mode.name} reads to the end; set `max_events`, "
                f"or use mode incremental with cursor_column _sequence"
            )
        return ""

    def quote(self, name: str) -> str:
        """Quote one identifier, inner quotes doubled."""
        return datagen_sql.quote(name)

    def literal(self, text: str, column: Column) -> str:
        """Render a canonical text as a typed literal of this column's type; see the protocol."""
        return datagen_sql.literal(text, column)

    def no_bound(self, column: Column, *, is_paged: bool) -> str:
        """Return why the values of a column cannot be bounds; see the protocol."""
        return ""

    def dialect(self, columns: Sequence[Column]) -> Dialect:
        """Refuse: rows are made up, and nobody reads a statement.

        Raises:
            ConfigError
        """
        raise ConfigError("Source datagen takes no statements, so it cannot be polled. Use mode incremental, or cdc.")

    def lineage_name(self, table: str) -> tuple[str, str]:
        """Return (namespace, stream), whichever of its names the table was called by."""
        return self.namespace or "datagen", self.stream_name

    # --- the stream ------------------------------------------------------------------------------

    @property
    def stream(self) -> Stream:
        """Return what planning, pages and the change log need to know of this block."""
        return Stream(
            pattern=self.pattern,
            name=self.stream_name,
            namespace=self.namespace,
            events_per_second=self.events_per_second,
            max_events=self.max_events,
            has_sequence=self.include_sequence,
            has_timestamp=self.include_timestamp,
            custom=tuple(self.custom_fields.items()),
            seed=self.seed,
            clock=self.clock,
            makes_changes=self.cdc_mode,
        )
