"""Columns as other types (`type: cast`)."""

from __future__ import annotations

from typing import Any, Literal

import pyarrow as pa
from pydantic import Field, field_validator

from rivet_resources.contracts.rows.row_errors import Places
from rivet_resources.contracts.settings import Settings
from rivet_resources.contracts.transform import RowRefused, StepPlan, TransformError
from rivet_resources.contracts.types import parse_word
from rivet_resources.shape.transforms.conditions import When
from rivet_resources.shape.transforms.convert import KINDS, check, convert, family, is_lossy
from rivet_resources.shape.transforms.fields import derived, lossy, present, with_columns, with_fields

# Other names people have for the words of the type contract.
SYNONYMS = {"string": "text", "integer": "int8", "int": "int8", "bigint": "int8", "float": "float8",
            "double": "float8", "boolean": "bool"}  # fmt: skip


def type_of(word: str) -> pa.DataType:
    """Return the Arrow type of a word of the type contract, or of a synonym.

    Raises:
        ValueError: no such word; lists what exists.
    """
    return parse_word(SYNONYMS.get(word, word)).arrow


class Cast(Settings):
    """Columns become another type; a cell that would lose something stops the export, or becomes NULL."""

    type: Literal["cast"]
    columns: dict[str, str] = Field(min_length=1, description="column: type word, as in `columns:` (text, int8, …)")
    on_error: Literal["fail", "null", "stop", "skip", "dead_letter"] = Field(
        "fail", description="of a cell that refuses: null; or of its row; fail: as `on_error` of the export says"
    )
    truncate: bool = Field(False, description="cut fractions toward zero instead of refusing them")
    ignore_missing: bool = Field(False, description="pass over names that do not exist")
    when: When = None

    @field_validator("on_error", mode="before")
    @classmethod
    def _bare_null(cls, given: Any) -> Any:
        # YAML reads the bare word `null` as nothing.
        return "null" if given is None else given

    @field_validator("columns")
    @classmethod
    def _known_words(cls, given: dict[str, str]) -> dict[str, str]:
        for word in given.values():
            type_of(word)
        return given

    def plan(self, schema: pa.Schema) -> StepPlan:
        """Return the columns their new types.

        Raises:
            TransformError: a column is missing, or its type can never become the other.
        """
        fields = []
        for name in present(schema, list(self.columns), ignore_missing=self.ignore_missing):
            before, target = schema.field(name), type_of(self.columns[name])
            self._check(before, target)
            nullable = before.nullable or self.on_error == "null"
            field = derived(name, target, f"cast({name})", of=before, nullable=nullable)
            fields.append(lossy(field) if is_lossy(before.type, target) or self.truncate else field)
        return with_fields(schema, fields, {})

    def _check(self, field: pa.Field, target: pa.DataType) -> None:
        refused = None
        try:
            check(field.type, target)
        except TransformError as error:
            refused = TransformError(f"column {field.name!r}: {error}")
        if refused is not None:
            raise refused

    def apply(self, table: pa.Table) -> pa.Table:
        """Cast the page.

        Raises:
            RowRefused: cells refuse and `on_error` is not null.
        """
        columns = {}
        for name in present(table.schema, list(self.columns), ignore_missing=True):
            target = type_of(self.columns[name])
            columns[name], bad = convert(table.column(name), target, truncate=self.truncate)
            if bad is not None and self.on_error != "null":
                raise refusal(name, bad, target)
        return with_columns(table, columns)


def refusal(name: str, bad: Places, target: pa.DataType) -> RowRefused:
    """Return how many cells of a column cannot become a type, and what to do."""
    return RowRefused(
        f"column {name!r}: {int(bad.sum())} of {len(bad)} cells in a page {KINDS[family(target)]} and cannot become "
        f'{target}. Clean the source, choose a wider type, or set `on_error: "null"`.'
    ).blame(bad, column=name, why=f"cannot become {target}")
