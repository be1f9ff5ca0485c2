"""Times read from texts and numbers, written as others, and carried between zones (`type: timestamp`, `timezone`).

Belongs here: what is read as an instant, and its spellings. Not here: casts between time types (`cast.py`). Zones are
IANA names; the rules are those of the machine's zone database, through Arrow.
"""

from __future__ import annotations

from typing import Any, Literal
from zoneinfo import ZoneInfo

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field, field_validator, model_validator

from rivet_resources.contracts.settings import Settings
from rivet_resources.contracts.transform import RowRefused, StepPlan, TransformError
from rivet_resources.contracts.types import INSTANT, NAIVE
from rivet_resources.shape.transforms.cell_text import spell
from rivet_resources.shape.transforms.conditions import OnError, When
from rivet_resources.shape.transforms.convert import family, with_refusals
from rivet_resources.shape.transforms.fields import (
    derived,
    is_text,
    lossy,
    matching,
    plain,
    with_columns,
    with_fields,
)

From = Literal["auto", "text", "epoch_s", "epoch_ms", "epoch_us"]
To = Literal["timestamp_tz", "iso8601", "epoch_s", "epoch_ms", "epoch_us", "date", "time"]
READABLE = frozenset({"text", "integer", "date", "timestamp", "instant"})
ZONED = r"([Zz]|[+-][0-9]{2}:?[0-9]{2})$"
MILLISECONDS_FROM = 10**12  # larger numbers are milliseconds: as seconds they would lie beyond the year 33,000
YEAR_0_US, YEAR_10000_US = (
    -62_167_219_200_000_000 + 86_400_000_000,
    253_402_300_800_000_000 - 86_400_000_000,
)  # any zone
PER_SECOND = {"epoch_s": 1, "epoch_ms": 1_000, "epoch_us": 1_000_000}
RESULT: dict[str, pa.DataType] = {
    "timestamp_tz": INSTANT, "iso8601": pa.string(), "date": pa.date32(), "time": pa.string(),
    "epoch_s": pa.int64(), "epoch_ms": pa.int64(), "epoch_us": pa.int64(),
}  # fmt: skip


class Timestamp(Settings):
    """Times read from text, epoch numbers or time types, written in another form; in between they are instants."""

    type: Literal["timestamp", "timestamp_converter"]
    columns: tuple[str, ...] = Field(min_length=1, description="names or globs")
    from_: From = Field(
        "auto",
        alias="from",
        description="auto: RFC 3339 or `Y-m-d H:M:S` in UTC; numbers above 10^12 are milliseconds, else seconds",
    )
    to: To = Field("timestamp_tz", description="timestamp_tz, iso8601, epoch_s, epoch_ms, epoch_us, date or time")
    on_error: Literal["fail", "null", "stop", "skip", "dead_letter"] = Field(
        "fail", description="of a cell that is no time: null; or of its row; fail: as `on_error` of the export says"
    )
    ignore_missing: bool = Field(False, description="pass over names that do not exist")
    when: When = None

    @field_validator("on_error", mode="before")
    @classmethod
    def _bare_null(cls, given: Any) -> Any:
        # YAML reads the bare word `null` as nothing.
        return "null" if given is None else given

    def plan(self, schema: pa.Schema) -> StepPlan:
        """Return the columns their new type.

        Raises:
            TransformError: a column is missing, or no time can be read from its type.
        """
        names = matching(schema, self.columns, ignore_missing=self.ignore_missing)
        fields = []
        for before in map(schema.field, names):
            _check_readable(before, self.from_)
            nullable = before.nullable or self.on_error == "null"
            by = f"timestamp({before.name})"
            made = derived(before.name, RESULT[self.to], by, of=before, nullable=nullable)
            fields.append(lossy(made) if self.to in ("epoch_s", "epoch_ms", "date", "time") else made)
        return with_fields(schema, fields, {})

    def apply(self, table: pa.Table) -> pa.Table:
        """Convert a page's cells; what is smaller than the unit asked for is cut, downwards.

        Raises:
            RowRefused: cells are no times.
        """
        columns = {}
        for name in matching(table.schema, self.columns, ignore_missing=True):
            instants, bad = read(table.column(name), self.from_, zone="UTC")
            if bad is not None and self.on_error != "null":
                raise _refusal(name, bad)
            columns[name] = written(instants, self.to)
        return with_columns(table, columns)


class Timezone(Settings):
    """Instants as the wall clock of a zone shows them."""

    type: Literal["timezone", "timezone_converter"]
    columns: tuple[str, ...] = Field(min_length=1, description="names or globs")
    from_: str = Field("UTC", alias="from", description="zone of times that carry none; IANA name")
    to: str = Field(description="zone whose clock is shown; IANA name")
    as_: Literal["text", "timestamp", "date"] = Field(
        "text", alias="as", description="text: ISO 8601 with offset, or `format`; timestamp: naive; date: the day there"
    )
    format: str | None = Field(
        None, description="text: strftime pattern such as %Y-%m-%d %H:%M; %S.%f has microseconds"
    )
    ignore_missing: bool = Field(False, description="pass over names that do not exist")
    when: When = None
    on_error: OnError = None

    @field_validator("from_", "to")
    @classmethod
    def _known_zone(cls, given: str) -> str:
        try:
            ZoneInfo(given)
        except (KeyError, ValueError, OSError) as error:
            raise ValueError(f"{given!r} is no IANA time zone, such as Europe/Prague") from error
        return given

    @model_validator(mode="after")
    def _format_is_for_text(self) -> Timezone:
        if self.format is not None and self.as_ != "text":
            raise ValueError(f"format belongs to `as: text`, not `as: {self.as_}`")
        return self

    @field_validator("format")
    @classmethod
    def _fraction_after_seconds(cls, given: str | None) -> str | None:
        if given is not None and "%f" in given.replace("%S.%f", ""):
            raise ValueError("%f can only follow %S as %S.%f")
        return given

    def plan(self, schema: pa.Schema) -> StepPlan:
        """Return the columns their new type.

        Raises:
            TransformError: a column is missing, or no time can be read from its type.
        """
        names = matching(schema, self.columns, ignore_missing=self.ignore_missing)
        arrow = {"text": pa.string(), "timestamp": NAIVE, "date": pa.date32()}[self.as_]
        fields = []
        for before in map(schema.field, names):
            _check_readable(before, "auto")
            by = f"timezone({before.name})"
            fields.append(lossy(derived(before.name, arrow, by, of=before, nullable=before.nullable)))
        return with_fields(schema, fields, {})

    def apply(self, table: pa.Table) -> pa.Table:
        """Convert a page's cells.

        Raises:
            RowRefused: cells are no times, or do not exist or exist twice in the zone `from`.
        """
        columns = {}
        for name in matching(table.schema, self.columns, ignore_missing=True):
            instants, bad = read(table.column(name), "auto", zone=self.from_)
            if bad is not None:
                raise _refusal(name, bad)
            columns[name] = self._to_wall_clock(instants.cast(pa.timestamp("us", self.to)))
        return with_columns(table, columns)

    def _to_wall_clock(self, zoned: pa.Array) -> pa.Array:
        if self.as_ == "timestamp":
            return pc.local_timestamp(zoned)
        if self.as_ == "date":
            return pc.local_timestamp(zoned).cast(pa.date32())
        _check_years(zoned)
        if self.format is None:
            # `%Ez` is `+01:00`, as RFC 3339 has it; `%z` would be `+0100`.
            return pc.strftime(zoned, format="%Y-%m-%dT%H:%M:%S%Ez")
        if "%S.%f" in self.format:  # Arrow's %S has the fraction of the type
            return pc.strftime(zoned, format=self.format.replace("%S.%f", "%S"))
        return pc.strftime(pc.floor_temporal(zoned, unit="second").cast(pa.timestamp("s", self.to)), format=self.format)


def _check_years(zoned: pa.Array) -> None:
    """Refuse years beyond 0 to 9999, which strftime would write wrongly in silence.

    Raises:
        ValueError
    """
    ends = pc.min_max(zoned.cast(pa.int64()))  # not by pc.year, which has 16 bits
    if ends["min"].as_py() is not None and not (
        YEAR_0_US <= ends["min"].as_py() and ends["max"].as_py() < YEAR_10000_US
    ):
        raise ValueError("a year without four digits")


def _check_readable(field: pa.Field, form: From) -> None:
    """Refuse a column no time can be read from.

    Raises:
        TransformError
    """
    kind = family(field.type)
    readable = READABLE if form == "auto" else frozenset({"text"}) if form == "text" else frozenset({"text", "integer"})
    if kind not in readable:
        raise TransformError(
            f"column {field.name!r} is {field.type}; times are read from {', '.join(sorted(readable))}. Cast it first."
        )


def read(column: pa.ChunkedArray, form: From, *, zone: str) -> tuple[pa.Array, npt.NDArray[np.bool_] | None]:
    """Read instants, in microseconds UTC; the mask marks cells that are no time and are NULL in the result."""
    return with_refusals(lambda array: _instants(array, form, zone), plain(column))


def _instants(array: pa.Array, form: From, zone: str) -> pa.Array:
    if is_text(array.type) and form.startswith("epoch"):
        array = array.cast(pa.int64())
    if is_text(array.type):
        return _from_text(array, zone)
    if pa.types.is_integer(array.type):
        return _from_number(array.cast(pa.int64()), form)
    if pa.types.is_timestamp(array.type) and array.type.tz:
        return array.cast(INSTANT)
    return _to_instants(array.cast(NAIVE), zone)


def _to_instants(naive: pa.Array, zone: str) -> pa.Array:
    """Return which instants a zone's wall clock means; a time it skips or shows twice is refused."""
    return pc.assume_timezone(naive, zone).cast(INSTANT)


def _from_text(text: pa.Array, zone: str) -> pa.Array:
    zoned = pc.fill_null(pc.match_substring_regex(text, ZONED), False)
    if zone == "UTC":
        # Arrow's cast to instants refuses a text without an offset, and the one to naive times a text that has one.
        return pc.if_else(zoned, text, pc.binary_join_element_wise(text, "Z", "")).cast(INSTANT)
    known = pc.if_else(zoned, text, pa.scalar(None, text.type)).cast(INSTANT)
    naive = pc.if_else(zoned, pa.scalar(None, text.type), text).cast(NAIVE)
    return pc.coalesce(known, _to_instants(naive, zone))


def _from_number(numbers: pa.Array, form: From) -> pa.Array:
    if form == "auto":
        large = pc.greater(pc.abs(numbers), MILLISECONDS_FROM)
        scaled = pc.multiply_checked(numbers, pc.if_else(large, pa.scalar(1_000), pa.scalar(1_000_000)))
    else:
        scaled = pc.multiply_checked(numbers, pa.scalar(1_000_000 // PER_SECOND[form]))
    return scaled.cast(INSTANT)


def written(instants: pa.Array, to: To) -> pa.Array:
    """Write instants in a form; floor, so that times before 1970 are cut as all others."""
    if to == "timestamp_tz":
        return instants
    if to == "iso8601":
        return spell(pa.chunked_array([instants]))
    naive = instants.cast(NAIVE)
    if to == "date":
        return pc.floor_temporal(naive, unit="day").cast(pa.date32())
    if to == "time":
        return naive.cast(pa.time64("us")).cast(pa.string())
    unit = {"epoch_s": "s", "epoch_ms": "ms", "epoch_us": "us"}[to]
    floors = {"s": "second", "ms": "millisecond", "us": "microsecond"}
    return pc.floor_temporal(naive, unit=floors[unit]).cast(pa.timestamp(unit)).cast(pa.int64())


def _refusal(name: str, bad: npt.NDArray[np.bool_]) -> RowRefused:
    return RowRefused(
        f"column {name!r}: {int(bad.sum())} of {len(bad)} cells in a page are no time that can be read (RFC 3339, "
        f"`Y-m-d H:M:S`, or a number), are finer than microseconds, or lie where the zone's clock is put forward or "
        f"back. Clean the source, or use `when`."
    ).blame(bad, column=name, why="is no time that can be read, or does not exist in its zone")
