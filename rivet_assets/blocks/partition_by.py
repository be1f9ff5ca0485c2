"""`partition_by:` of an export: a window per value of one column, or folders by the time in one.

Belongs here: the keys of the block, and what a list of values may hold. Not here: which rows a value has
(`modes/by_value.py`), how windows are named (`contracts/rows/value_windows.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date, datetime
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from rivet_assets.blocks.export_values import Query, as_text, rule_broken
from rivet_resources.contracts.rows.value_windows import (
    LONGEST,
    OTHERS,
    RESERVED,
    VALUE_WINDOW,
    folded,
    partition_of_value,
    window_key,
)
from rivet_resources.contracts.settings import Settings

CODE = "RIVET_CONFIG_PARTITION_BY"
Others = Literal["refuse", "ignore", "own_window"]


def _value_text(value: object) -> object:
    """Turn what YAML made of an unquoted value into its text."""
    if isinstance(value, date) and not isinstance(value, datetime):
        return value.isoformat()
    return as_text(value)


PartitionValue = Annotated[
    str | None, BeforeValidator(_value_text, json_schema_input_type=str | int | float | bool | None)
]


class PartitionBy(Settings):
    """Which values of a column have a window, and a partition, of their own; none named: its days are folders."""

    column: str = Field(
        min_length=1, description="each of its values is a window; without values, a date or timestamp: folders"
    )
    values: tuple[PartitionValue, ...] | None = Field(None, description="the values; `null` is one")
    query: Query | None = Field(None, description="instead of values: a SELECT of one column, asked once a run")
    others: Others = Field(
        "refuse",
        description="rows of other values: counted, and the run refused; left out; or in a window of their own",
    )

    @model_validator(mode="after")
    def has_values(self) -> PartitionBy:
        """Ask for values that can stand side by side."""
        if not VALUE_WINDOW.fullmatch(window_key(self.column, "x")):
            raise rule_broken(CODE, f"column {self.column!r} would name windows as mode incremental does; rename it")
        if self.column == "snapshot":
            raise rule_broken(CODE, "column 'snapshot' would name windows as `snapshots` does; rename it")
        if self.values is not None and self.query is not None:
            raise rule_broken(CODE, "`values` and `query` both name the values; keep one")
        if not self.is_by_value and "others" in self.model_fields_set:
            raise rule_broken(CODE, "`others` needs `values`, such as [eu, us], or `query`, a SELECT of one column")
        if self.values is None:
            return self
        if not self.values:
            raise rule_broken(CODE, "`values` lists nothing; name at least one value")
        fault = fault_of(self.column, self.values)
        if fault:
            raise rule_broken(CODE, fault)
        return self

    @property
    def is_by_value(self) -> bool:
        """Return whether values are windows; else rows fall into folders by the column's time."""
        return self.values is not None or self.query is not None


def column_alone(value: object) -> object:
    """Bring the short form, the name of a column, to the long one."""
    return {"column": value} if isinstance(value, str) else value


def fault_of(column: str, values: Iterable[str | None]) -> str:
    """Return why values cannot be windows side by side, '' when they can."""
    seen: dict[str | None, str | None] = {}
    for value in values:
        name = partition_of_value(value)
        if value in RESERVED:
            return f"value {value!r} is a name that Rivet gives; allowed is any but {', '.join(RESERVED)}"
        if len(window_key(column, name)) > LONGEST:
            return f"a value of {len(value or '')} characters is too long for the name of a folder ({LONGEST} bytes)"
        alike = None if value is None else folded(value)
        if alike in seen:
            other = seen[alike]
            if other == value:
                return f"value {'null' if value is None else repr(value)} is listed twice; keep one"
            return (
                f"values {other!r} and {value!r} differ only by case, accents or outer space, which many databases and "
                f"disks do not tell apart; list one of them, or another column"
            )
        seen[alike] = value
    return ""


def partitions_of_values(values: Iterable[str | None], others: Others) -> list[str]:
    """Name the partitions of these values, that of all others first: it must let go of a value before that has one."""
    return [*([OTHERS] if others == "own_window" else []), *map(partition_of_value, values)]
