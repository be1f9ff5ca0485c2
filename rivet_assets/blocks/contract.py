"""`contract:` of an export: what its columns and rows are agreed to be.

Belongs here: the keys, what single keys may hold, what is to be counted for them. Not here: verdicts
(`run/judge/contract_rules.py`), reading a contract's file and the Open Data Contract Standard
(`config/contract_file.py`).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from datetime import date, datetime
from decimal import Decimal
from typing import Annotated, Any, Literal, Self, TypeVar

import pyarrow as pa
from pydantic import AfterValidator, BeforeValidator, Field, PrivateAttr, model_validator

from rivet_assets.blocks.choice import Choice
from rivet_assets.blocks.export_values import ColumnsOnce, Duration, Ratio, rule_broken
from rivet_resources.contracts.rows.row_rules import RowRule, RowRuleKind, RowRules
from rivet_resources.contracts.rows.window_check import WindowCheck
from rivet_resources.contracts.settings import Settings
from rivet_resources.contracts.types import parse_word
from rivet_resources.registry import CHECKS

CODE = "RIVET_CONFIG_CONTRACT"
Severity = Literal["stop", "warn"]
RowSeverity = Literal["stop", "warn", "dead_letter"]  # of rules that single rows break
Operand = bool | int | float | Decimal | str | datetime | date
# The words of the Open Data Contract Standard 3.1, `logicalType`, and two that it lacks.
LogicalType = Literal[
    "string", "integer", "number", "boolean", "date", "time", "timestamp", "array", "object", "binary", "uuid"
]
Rules = TypeVar("Rules", bound=dict[str, Any])
RULE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")


def check_word(column: str) -> str:
    """Spell a column with the characters that names of checks may have; two columns never share a spelling."""
    if re.fullmatch(r"[A-Za-z0-9_]+", column):
        return column
    digest = hashlib.sha256(column.encode()).hexdigest()[:6]
    return f"{re.sub(r'[^A-Za-z0-9_]', '_', column)}_{digest}"


def _type_word(text: str) -> str:
    try:
        parse_word(text)
    except ValueError as error:
        raise rule_broken(CODE, f"{error}; or write `logical_type:` for a kind of type") from None
    return text


def _expression(text: str) -> str:
    if not text.strip():
        raise rule_broken(CODE, "is empty; write an expression over one row, such as price * quantity = total")
    return text


def _regular_expression(text: str) -> str:
    """Refuse a pattern that RE2 does not take: it is the one that reads the cells."""
    import pyarrow.compute as pc  # start

    fault = ""
    try:
        pc.match_substring_regex(pa.array([""]), text)
    except pa.ArrowInvalid as error:
        fault = str(error).split("\n")[0].removeprefix("Invalid regular expression: ")
    if fault:
        raise rule_broken(CODE, f"is no regular expression (RE2 syntax): {fault}")
    return text


class ContractColumn(Settings):
    """What is agreed of one column, as it is written: after transforms, masks included."""

    type: Annotated[str, AfterValidator(_type_word)] | None = Field(
        None, description="the exact type, by a word of `columns:`, such as int8, decimal(12,2), timestamp_tz"
    )
    logical_type: LogicalType | None = Field(None, description="the kind of type; number: whole ones too")
    physical_type: str | None = Field(
        None, min_length=1, description="the database's own type, such as varchar(20); without length, any length"
    )
    required: bool = Field(False, description="no NULL")
    null_ratio_max: Ratio | None = Field(None, description="largest share of NULLs, 0 to 1")
    unique: bool = Field(False, description="no value twice; NULLs are ignored")
    key: bool = Field(False, description="part of the key: no NULL, and all key columns together are unique")
    accepted_values: Annotated[tuple[Operand, ...], Field(min_length=1)] | None = Field(
        None, description="the only values; NULL passes"
    )
    min: Operand | None = Field(None, description="smallest value, inclusive; NULL passes")
    max: Operand | None = Field(None, description="largest value, inclusive; NULL passes")
    matches: Annotated[str, AfterValidator(_regular_expression)] | None = Field(
        None, description="regular expression (RE2) that is found in each value; ^ and $ for the whole; NULL passes"
    )
    tags: tuple[str, ...] = Field(
        (),
        description="what it holds, for `mask_tags`: [pii], ['pii: email']; nothing is judged by them",
        exclude_if=lambda given: not given,
    )
    severity: RowSeverity | None = Field(
        None,
        description="default: the contract's; dead_letter: rows that break required, accepted_values, min, max or "
        "matches are set aside in `_quarantine/`, and all else stops",
    )

    @model_validator(mode="after")
    def possible(self) -> Self:
        """Refuse bounds that no value can satisfy, and two ways of saying one thing."""
        if self.severity == "dead_letter" and not (self.required or self.key or any(self.row_rules)):
            message = (
                "is dead_letter, and no rule is about single rows; add required, accepted_values, min, max or matches"
            )
            raise rule_broken(CODE, f"severity {message}")
        both = (self.min, self.max)
        numbers = all(isinstance(each, int | float | Decimal) and not isinstance(each, bool) for each in both)
        if (numbers or all(isinstance(each, str) for each in both)) and self.min > self.max:  # type: ignore[operator]
            raise rule_broken(CODE, f"min {self.min} is above max {self.max}; no value could pass")
        if (self.required or self.key) and self.null_ratio_max is not None:
            raise rule_broken(CODE, "null_ratio_max stands beside required or key, which allow no NULL; keep one")
        if self.type is not None and self.logical_type is not None:
            raise rule_broken(CODE, "logical_type stands beside type, which is exact; keep one")
        return self

    @property
    def row_rules(self) -> Iterator[tuple[RowRuleKind, Any]]:
        """Yield what each row is judged by: (kind, value)."""
        if self.accepted_values is not None:
            yield "accepted_values", self.accepted_values
        if self.min is not None:
            yield "min", self.min
        if self.max is not None:
            yield "max", self.max
        if self.matches is not None:
            yield "matches", self.matches


class RowCount(Settings):
    """How many rows a window has."""

    min: int | None = Field(None, ge=0, description="fewest rows, inclusive")
    max: int | None = Field(None, ge=0, description="most rows, inclusive")
    severity: Severity | None = Field(None, description="default: the contract's")

    @model_validator(mode="after")
    def possible(self) -> Self:
        """Refuse bounds that no count can satisfy."""
        if self.min is not None and self.max is not None and self.min > self.max:
            raise rule_broken(CODE, f"min {self.min} is above max {self.max}; no window could pass")
        if self.min is None and self.max is None:
            raise rule_broken(CODE, "has neither min nor max; write one of them")
        return self


class NewestRow(Settings):
    """How old the newest row of a window may be."""

    column: str = Field(min_length=1, description="a date or timestamp; one without zone is read as UTC")
    max_age: Duration = Field(description="seconds, or a number with s, m, h or d, such as 26h")
    severity: Severity | None = Field(None, description="default: the contract's")


class RowCheck(Settings):
    """What holds in each row, over one or several columns."""

    check: Annotated[str, AfterValidator(_expression)] = Field(
        description="SQL boolean over the row's columns, in DuckDB's dialect; a row where it is NULL passes"
    )
    severity: RowSeverity | None = Field(
        None, description="default: the contract's; dead_letter: rows that break it are set aside in `_quarantine/`"
    )


def _as_list(value: object) -> object:
    return [value] if isinstance(value, str) else value


def _check_alone(value: object) -> object:
    return {"check": value} if isinstance(value, str) else value


class NumberCheck(Settings):
    """A number of the whole window, and between which others it must be."""

    min: float | None = Field(None, description="smallest number; default, without max: 0")
    max: float | None = Field(None, description="largest number; default, without min: 0")
    severity: Severity | None = Field(None, description="default: the contract's")

    @property
    def bounds(self) -> tuple[float | None, float | None]:
        """Return the smallest and the largest number; without any, it must be 0."""
        return (self.min, self.max) if (self.min, self.max) != (None, None) else (0, 0)


class SqlCheck(NumberCheck):
    """A number that SQL gives over the whole window."""

    query: Annotated[str, AfterValidator(_expression)] = Field(
        description="one SELECT of one number over the table `rows`, in DuckDB's dialect"
    )


class PackageCheck(NumberCheck):
    """A number that a package finds in the whole window."""

    measure: Annotated[WindowCheck, Choice("type", CHECKS, unknown="RIVET_CONFIG_TYPE_UNKNOWN")] = Field(
        description="`type` is a check that a package brings, beside its own keys"
    )


class References(Settings):
    """Values that exist in another export of the file, as a foreign key has it."""

    columns: Annotated[ColumnsOnce, BeforeValidator(_as_list, json_schema_input_type=str | tuple[str, ...])] = Field(
        min_length=1, description="a column, or several that are looked up together; a row with NULL in one passes"
    )
    export: str = Field(min_length=1, description="the other export; what readers of it see, in all its windows")
    key: Annotated[ColumnsOnce, BeforeValidator(_as_list, json_schema_input_type=str | tuple[str, ...])] = Field(
        (), description="its columns, in that order; default: of the same names"
    )
    severity: Severity | None = Field(None, description="default: the contract's")
    _referenced: Any = PrivateAttr(None)

    @model_validator(mode="after")
    def possible(self) -> Self:
        """Refuse keys of two lengths."""
        if self.key and len(self.key) != len(self.columns):
            raise rule_broken(CODE, f"names {len(self.columns)} columns and a key of {len(self.key)}; pair them")
        return self

    @property
    def key_columns(self) -> tuple[str, ...]:
        """Return the columns of the other export."""
        return self.key or self.columns

    @property
    def referenced(self) -> Any:
        """Return the other export; known once the file was read as a whole."""
        return self._referenced

    def to(self, export: Any) -> Self:
        """Return the same that knows the other export."""
        copy = self.model_copy()
        copy._referenced = export
        return copy


class Volume(Settings):
    """Rows of a window beside those of earlier runs: their median, and how far they scatter around it."""

    history: int = Field(14, ge=2, le=365, description="so many earlier runs, or windows of time")
    tolerance: float = Field(4, gt=0, description="times their deviation, by the median of distances; at least 10 %")
    at_least: int = Field(5, ge=2, description="with fewer runs than this it passes, and says so")
    severity: Severity | None = Field(None, description="default: the contract's")

    @model_validator(mode="after")
    def possible(self) -> Self:
        """Refuse a volume that would never be judged."""
        if self.at_least > self.history:
            raise rule_broken(CODE, f"at_least {self.at_least} is above history {self.history}; nothing is judged")
        return self


def _query_alone(value: object) -> object:
    return {"query": value} if isinstance(value, str) else value


SqlChecks = dict[str, Annotated[SqlCheck, BeforeValidator(_query_alone, json_schema_input_type=str | SqlCheck)]]
RowChecks = dict[str, Annotated[RowCheck, BeforeValidator(_check_alone, json_schema_input_type=str | RowCheck)]]


def _rule_names(rules: Rules) -> Rules:
    for name in rules:
        if not RULE_NAME.fullmatch(name):
            raise rule_broken(CODE, f"{name!r} cannot name a rule; use up to 64 letters, digits and '_'")
    return rules


class Contract(Settings):
    """What columns and rows of an export are agreed to be. Each rule is a check of its own; the columns are one."""

    severity: Severity = Field(
        "stop", description="of rules without their own: stop keeps the window back, warn publishes it and tells"
    )
    columns: dict[str, ContractColumn] = Field(default_factory=dict, description="column → what is agreed of it")
    additional_columns: Literal["allow", "refuse"] = Field("allow", description="columns that `columns` does not name")
    rows: Annotated[RowChecks, AfterValidator(_rule_names)] = Field(
        default_factory=dict, description="name → what holds in each row: price * quantity = total"
    )
    sql: Annotated[SqlChecks, AfterValidator(_rule_names)] = Field(
        default_factory=dict, description="name → a number that SQL over the window gives; Parquet on local disks"
    )
    checks: Annotated[dict[str, PackageCheck], AfterValidator(_rule_names)] = Field(
        default_factory=dict,
        description="name → a number that a package's check finds in the window; Parquet on local disks",
        exclude_if=lambda given: not given,
    )
    references: Annotated[dict[str, References], AfterValidator(_rule_names)] = Field(
        default_factory=dict,
        description="name → columns whose values exist in another export",
        exclude_if=lambda given: not given,  # a key that came later leaves the fingerprints of before as they are
    )
    row_count: RowCount | None = Field(None, description="how many rows a window has")
    volume: Volume | None = Field(None, description="rows of a window beside those of earlier runs")
    freshness: NewestRow | None = Field(None, description="how old the newest row of a window may be")
    not_checked: tuple[str, ...] = Field((), description="filled from a data contract file: what Rivet does not check")

    @model_validator(mode="after")
    def columns_are_there(self) -> Self:
        """Refuse a contract whose other columns would all be refused."""
        if self.additional_columns == "refuse" and not self.columns:
            raise rule_broken(CODE, "additional_columns: refuse needs `columns`; name the columns that there may be")
        return self

    @property
    def key(self) -> tuple[str, ...]:
        """Name the columns of the key."""
        return tuple(name for name, column in self.columns.items() if column.key)

    @property
    def unique_columns(self) -> tuple[str, ...]:
        """Name the columns that are unique by themselves."""
        alone = self.key if len(self.key) == 1 else ()
        return tuple(name for name, column in self.columns.items() if column.unique or name in alone)

    def is_blocking(self, severity: RowSeverity | None) -> bool:
        """Return whether a rule of that severity keeps a window back; None: the contract's."""
        return (severity or self.severity) != "warn"

    @property
    def sets_aside(self) -> bool:
        """Return whether rows that break some rule are set aside."""
        given = [column.severity for column in self.columns.values()]
        return "dead_letter" in (*given, *(each.severity for each in self.rows.values()))

    def of_rows_set_aside(self) -> Contract | None:
        """Return the rules alone whose rows are set aside; None without any. A part of a window keeps to these too."""
        if not self.sets_aside:
            return None
        columns = {
            name: ContractColumn(
                required=column.required or column.key, severity="dead_letter",
                **{kind: value for kind, value in column.row_rules},
            )
            for name, column in self.columns.items()
            if column.severity == "dead_letter"
        }  # fmt: skip
        return Contract(
            columns=columns, rows={k: each for k, each in self.rows.items() if each.severity == "dead_letter"}
        )

    def counted(self, schema: pa.Schema) -> RowRules:
        """Return what is counted while rows of that schema pass; columns that it lacks are judged by `columns`."""
        names = set(schema.names)
        rules: dict[bool, list[RowRule]] = {True: [], False: []}  # by whether rows are set aside
        for name, column in self.columns.items():
            is_aside = column.severity == "dead_letter"
            kinds = [*column.row_rules] if name in names else []
            if is_aside and name in names and (column.required or column.key):
                kinds.insert(0, ("required", None))
            rules[is_aside] += [RowRule(f"{kind}__{check_word(name)}", kind, value, name) for kind, value in kinds]
        for name, each in self.rows.items():
            rules[each.severity == "dead_letter"].append(RowRule(f"rows__{name}", "rows", each.check))
        newest = (self.freshness.column,) if self.freshness is not None else ()
        key = self.key if len(self.key) > 1 and names >= set(self.key) else ()
        looked_up = dict.fromkeys(each.columns for each in self.references.values() if names >= set(each.columns))
        return RowRules(tuple(rules[False]), newest, key, tuple(rules[True]), tuple(looked_up))


def contract_was_read(value: object) -> object:
    """Refuse the name of a contract's file where nothing reads it: in an export built in Python.

    Raises:
        PydanticCustomError
    """
    if isinstance(value, str):
        raise rule_broken(CODE, "names a file, which is read with a rivet.yaml; here, write the contract as a block")
    return value
