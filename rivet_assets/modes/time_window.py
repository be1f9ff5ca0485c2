"""Export one window of time per partition (`mode: time_window`).

Belongs here: the YAML keys and the predicate of a window. Not here: Dagster's partitions of it
(`rivet_assets/modes/partitions.py`), reading and writing (`rivet_resources`).
"""

from __future__ import annotations

from datetime import date, datetime, time
from typing import ClassVar, Literal
from zoneinfo import ZoneInfo

import pyarrow as pa
from pydantic import Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from rivet_assets.blocks.export import Export
from rivet_assets.modes.by_value import predicate_of, window_rows
from rivet_assets.modes.protocol import Planning, compose, require_column
from rivet_resources.commit.manifest import Manifest
from rivet_resources.contracts.extract import Extract
from rivet_resources.contracts.mode_facts import ModeFacts
from rivet_resources.contracts.read_limits import known_zone
from rivet_resources.contracts.relation import Relation
from rivet_resources.contracts.source import Source
from rivet_resources.contracts.types import Column
from rivet_resources.errors import BoundsUnusable, SourceError


class TimeWindow(Export):
    """Rows whose `time_column` falls inside one window.

    Windows are half-open, [start, end): a row stamped exactly midnight belongs to the day that begins, and
    to no other. Rows without a time belong to none.
    """

    answers: ClassVar[ModeFacts] = ModeFacts(
        name="time_window",
        reads="one window of time after another",
        window="time",
        more_because="late rows came into it",
        fewer_because="rows were deleted, or their time was changed",
        no_refresh="each run reads its windows whole and replaces them; to refresh all of them, run all partitions",
    )

    mode: Literal["time_window"]
    time_column: str = Field(description="decides which window a row belongs to; a timestamp, a date or unix seconds")
    time_column_type: Literal["timestamp", "unix"] = Field(
        "timestamp", description="unix: whole seconds since 1970 in an integer column"
    )
    granularity: Literal["hour", "day", "week", "month"] = Field("day", description="length of one window")
    timezone: str = Field("UTC", description="where a day begins; IANA name. Columns without zone are read in it")
    start: date | None = Field(None, description="first window; changing it makes a new export")
    end: date | None = Field(None, description="first day that is no longer exported; default: for ever")
    days_window: int | None = Field(None, ge=1, description="re-read the last N days at each tick, for late rows")
    include_open: bool | None = Field(
        None, description="also export the window that is still open; default: only where `start` is absent"
    )

    @field_validator("timezone")
    @classmethod
    def zone_is_known(cls, name: str) -> str:
        """Refuse a name that the time zone database does not have."""
        return known_zone(name)

    @model_validator(mode="after")
    def windows_are_bounded(self) -> TimeWindow:
        """Ask for where windows begin: `start`, or the original's `days_window`."""
        if self.start is None and self.days_window is None:
            raise PydanticCustomError(
                "RIVET_CONFIG_TIME_WINDOW_START",
                "mode time_window needs start (first window, such as 2026-01-01) or days_window (the last N days)",
            )
        if self.start is not None and self.end is not None and self.end <= self.start:
            raise PydanticCustomError(
                "RIVET_CONFIG_TIME_WINDOW_END",
                "end {end} is not after start {start}; end is exclusive",
                {"end": str(self.end), "start": str(self.start)},
            )
        return self

    @property
    def first_day(self) -> date:
        """Return the first window; 2020-01-01 where only `days_window` is set, for a moving start would orphan keys."""
        return self.start or date(2020, 1, 1)

    @property
    def takes_open_window(self) -> bool:
        """Return whether the window that has not ended yet is exported too, as the original did."""
        return self.start is None if self.include_open is None else self.include_open

    def deciding_column(self, key: tuple[str, ...]) -> tuple[str, bool]:
        """Return the column of times."""
        return self.time_column, False

    def strategy(self, way: str, column: str, *, chunks: int) -> str:
        """Return how it is read, such as `time-window(at, day, cursor)`."""
        return f"time-window({column}, {self.granularity}, {way})"

    @property
    def window_column(self) -> str:
        """Return the column of times."""
        return self.time_column

    def extract(self, planning: Planning) -> Extract:
        """Describe the rows of the window `planning` names.

        Raises:
            UnknownColumn: the relation has no `time_column`.
            SourceError: the column's type is not one of time.
        """
        if planning.window is None or planning.window.start is None or planning.window.end is None:
            raise SourceError(
                f"Export {self.name} has mode time_window and needs a partition. "
                f"Pass --partition KEY, such as {self.first_day.isoformat()}, or --partition-range A...B."
            )
        quoted = planning.source.quote(self.time_column)
        rows = window_rows(self, planning)
        within = self.within(planning.relation, planning.source, planning.window.start, planning.window.end)
        where = " AND ".join(filter(None, (within, rows.where)))
        chunks = planning.session.chunks(planning.relation, where=where, order_by=(quoted,), pieces=1)
        still_open = planning.window.end > planning.started_at
        notes = (f"window {planning.window.key} was still open at {planning.started_at:%Y-%m-%dT%H:%M:%SZ}",)
        return compose(
            self,
            planning,
            window=planning.window,
            chunks=chunks,
            decisive=(self.time_column, *rows.decisive),
            notes=notes if still_open else (),
        )

    def predicate(self, planning: Planning, manifest: Manifest) -> str:
        """Return which rows a committed window holds.

        Raises:
            BoundsUnusable: its manifest has no bounds.
            UnknownColumn, SourceError: as `extract`.
        """
        if manifest.window_start is None or manifest.window_end is None:
            raise BoundsUnusable(
                f"The manifest of window {manifest.window} of export {self.name} has no bounds. Run that window again."
            )
        within = self.within(planning.relation, planning.source, manifest.window_start, manifest.window_end)
        return " AND ".join(filter(None, (within, predicate_of(self, planning, manifest))))

    def shares(self, planning: Planning, manifest: Manifest) -> tuple[int, int]:
        """Return (0, 0): the predicate finds the window's rows, no more and no less."""
        return 0, 0

    def again(self, planning: Planning, manifest: Manifest) -> Extract:
        """Describe the rows of the window once more; `planning` names it."""
        return self.extract(planning)

    def within(self, relation: Relation, source: Source, start: datetime, end: datetime) -> str:
        """Return the predicate of [start, end).

        Raises:
            UnknownColumn, SourceError: as `extract`.
        """
        column = require_column(relation, self.time_column, key="time_column")
        quoted = source.quote(self.time_column)
        low, high = (
            source.literal(self._render_bound(instant, column, relation=relation.name), column)
            for instant in (start, end)
        )
        return f"{quoted} >= {low} AND {quoted} < {high}"

    def _render_bound(self, instant: datetime, column: Column, *, relation: str) -> str:
        """Render an edge of the window as the canonical text of the column's type."""
        local = instant.astimezone(ZoneInfo(self.timezone))
        if self.time_column_type == "unix":
            if not pa.types.is_integer(column.arrow):
                raise self._not_of_time(column, relation, allowed="an integer, as time_column_type: unix says")
            return str(int(instant.timestamp()))
        if pa.types.is_timestamp(column.arrow):
            if column.arrow.tz is not None:
                return f"{instant:%Y-%m-%dT%H:%M:%S}.{instant.microsecond:06d}Z"
            return f"{local:%Y-%m-%dT%H:%M:%S}.{local.microsecond:06d}"
        if pa.types.is_date(column.arrow) and local.time() == time(0):
            return local.date().isoformat()
        raise self._not_of_time(column, relation, allowed="a timestamp, or a date with windows of whole days")

    def _not_of_time(self, column: Column, relation: str, *, allowed: str) -> SourceError:
        return SourceError(
            f"{relation}.{column.name} is {column.native}; mode time_window with granularity {self.granularity} needs "
            f"{allowed}. Name another `time_column`, or set `time_column_type: unix` for whole seconds."
        )
