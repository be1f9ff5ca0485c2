"""Fewer rows (`type: filter`): a field condition, all or any of several, or an SQL boolean.

Belongs here: the four forms and their NULL semantics (`connectors.md`, section 4). A row that is dropped reaches no
later step.
"""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal
from functools import reduce
from typing import Any, ClassVar, Literal

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field, model_validator

from rivet_resources.contracts.settings import Settings
from rivet_resources.contracts.transform import StepPlan, TransformError
from rivet_resources.shape.transforms import conditions
from rivet_resources.shape.transforms.cell_text import spell
from rivet_resources.shape.transforms.conditions import OnError
from rivet_resources.shape.transforms.convert import ACCEPTS, KINDS, convert, family
from rivet_resources.shape.transforms.fields import itself, missing, plain, storage

Op = Literal[
    "=", "==", "!=", "<>", "<", "<=", ">", ">=", "in", "not_in", "is_null", "is_not_null", "matches"
]  # fmt: skip
Operand = bool | int | float | Decimal | str | datetime | date
COMPARE = {"<": pc.less, "<=": pc.less_equal, ">": pc.greater, ">=": pc.greater_equal}
# What a comparison with NULL, or with a field that does not exist, gives; all others give false.
TRUE_ON_NULL = frozenset({"!=", "<>", "not_in", "is_null"})


class Condition(Settings):
    """One field compared with a value, which is first cast to the column's type."""

    field: str = Field(description="the column")
    op: Op = Field("=", description="= == != <> < <= > >= in not_in is_null is_not_null matches (searches, unanchored)")
    value: Operand | tuple[Operand, ...] | None = Field(None, description="what to compare with; a list for in, not_in")

    @model_validator(mode="after")
    def _value_fits_op(self) -> Condition:
        if self.op in ("is_null", "is_not_null"):
            if self.value is not None:
                raise ValueError(f"{self.op} takes no value")
        elif self.value is None:
            raise ValueError(f"{self.op} needs a value; NULL is asked for by is_null and is_not_null")
        elif isinstance(self.value, tuple) != (self.op in ("in", "not_in")):
            raise ValueError(f"{self.op} needs {'a list' if self.op in ('in', 'not_in') else 'one value'}")
        elif self.op == "matches" and not isinstance(self.value, str):
            raise ValueError("matches needs a regular expression")
        return self

    def check(self, schema: pa.Schema, *, ignore_missing: bool) -> None:
        """Refuse what cannot be compared.

        Raises:
            TransformError: the field is missing, the value is not of its type, or the expression is none.
        """
        if self.field not in schema.names:
            if ignore_missing:
                return
            raise missing(self.field, schema.names)
        # Asked of one row of NULL: so Arrow itself says, before any row is read, whether it can compare.
        self.holds(pa.table({self.field: pa.nulls(1, schema.field(self.field).type)}))

    def holds(self, table: pa.Table) -> pa.Array | pa.Scalar:
        """Return for each row whether it satisfies the condition; never NULL."""
        if self.field not in table.column_names:
            return pa.scalar(self.op in TRUE_ON_NULL)
        column = table.column(self.field)
        if self.op in ("is_null", "is_not_null"):
            return column.is_null() if self.op == "is_null" else column.is_valid()
        if self.op == "matches":
            return _search(column, str(self.value))
        if isinstance(self.value, tuple):
            known = pc.is_in(plain(column), pa.chunked_array([self._operand(v, column.type) for v in self.value],
                                                             storage(column.type)).combine_chunks())  # fmt: skip
            return known if self.op == "in" else pc.invert(known)
        operand = self._operand(self.value, column.type)[0]
        if self.op in COMPARE:
            return pc.fill_null(COMPARE[self.op](plain(column), operand), False)
        equal = pc.fill_null(pc.equal(plain(column), operand), False)
        return equal if self.op in ("=", "==") else pc.invert(equal)

    def _operand(self, value: Any, arrow: pa.DataType) -> pa.Array:
        """Cast the value to the column's type, as an array of one.

        Raises:
            TransformError: it has no place in that type.
        """
        given = pa.chunked_array([pa.array([f"{value:f}" if isinstance(value, Decimal) else value])])
        bad = None
        if family(arrow) in ACCEPTS and family(given.type) in ACCEPTS[family(arrow)]:
            array, bad = convert(given, arrow)
            if bad is None:
                return array.storage if isinstance(array, pa.ExtensionArray) else array
        why = "cannot be compared with that" if bad is None else f"the values given {KINDS[family(arrow)]}"
        raise TransformError(f"field {self.field!r} is {arrow}, and {why}: {value!r} for {self.op}.")


def _search(column: pa.ChunkedArray, pattern: str) -> pa.Array:
    """Search the text of each cell; NULL gives false.

    Raises:
        TransformError: the pattern is no regular expression of RE2.
    """
    fault = ""
    try:
        return pc.fill_null(pc.match_substring_regex(spell(column), pattern), False)
    except pa.ArrowInvalid as error:
        fault = str(error).split("\n")[0]
    raise TransformError(f"`matches` is no regular expression (RE2 syntax): {fault}")


class Filter(Settings):
    """Rows that satisfy the condition stay; with `drop: true` they go. NULL is not true."""

    drops_rows: ClassVar[bool] = True
    type: Literal["filter"]
    field: str | None = Field(None, description="one condition: the column; with `op` and `value`")
    op: Op = Field("=", description="= == != <> < <= > >= in not_in is_null is_not_null matches (searches, unanchored)")
    value: Operand | tuple[Operand, ...] | None = Field(None, description="what to compare with; a list for in, not_in")
    all: tuple[Condition, ...] = Field((), description="several {field, op, value}; all must hold")
    any: tuple[Condition, ...] = Field((), description="several {field, op, value}; one must hold")
    where: str | None = Field(None, description="SQL boolean over the row's columns, in DuckDB's dialect")
    drop: bool = Field(False, description="drop the rows that satisfy the condition instead of keeping them")
    ignore_missing: bool = Field(False, description="treat a field that does not exist as NULL")
    on_error: OnError = None

    @model_validator(mode="after")
    def _one_form(self) -> Filter:
        given = [name for name in ("field", "all", "any", "where") if getattr(self, name)]
        if len(given) != 1:
            raise ValueError(f"write exactly one of field, all, any, where; there is {' and '.join(given) or 'none'}")
        if self.field is not None:
            Condition(field=self.field, op=self.op, value=self.value)
        return self

    @property
    def conditions(self) -> tuple[Condition, ...]:
        """Return the field conditions, whatever form they were written in."""
        if self.field is not None:
            return (Condition(field=self.field, op=self.op, value=self.value),)
        return self.all or self.any

    def plan(self, schema: pa.Schema) -> StepPlan:
        """Keep the schema as it is.

        Raises:
            TransformError: a field is missing, a value or an expression does not fit.
        """
        for condition in self.conditions:
            condition.check(schema, ignore_missing=self.ignore_missing)
        if self.where is not None:
            conditions.check_boolean(self.where, schema, key="where")
        return StepPlan(schema, itself(schema), frozenset())

    def apply(self, table: pa.Table) -> pa.Table:
        """Return the rows that stay, in their order.

        Raises:
            RowRefused: the SQL expression fails on some row.
        """
        if self.where is not None:
            kept = conditions.chosen(self.where, table)
        else:
            join = pc.or_ if self.any else pc.and_
            kept = reduce(join, [condition.holds(table) for condition in self.conditions])
        if self.drop:
            kept = pc.invert(kept)
        if isinstance(kept, pa.Scalar):  # only fields that do not exist
            return table if kept.as_py() else table.slice(0, 0)
        return table if pc.all(kept, min_count=0).as_py() else table.filter(kept)
