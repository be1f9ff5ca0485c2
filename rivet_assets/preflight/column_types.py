"""What each column of an export becomes, how faithful that is, and which override would help. Pure.

Belongs here: from planned columns to rows of a report. Not here: what a type becomes (`engines/*/types.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa

from rivet_resources.contracts.relation import Relation
from rivet_resources.contracts.source import TypeRules
from rivet_resources.contracts.types import Column
from rivet_resources.registry import FORMATS

Faithful = Literal["exact", "compatible", "logical_string", "lossy", "unsupported"]
BAD: frozenset[Faithful] = frozenset({"lossy", "unsupported"})

# What would keep more than a text does, by the family or logical type of a column that only has its text form.
# Source: `types.md`, sections 2 and 5.
HELPS: Mapping[str, str] = {
    "numeric": "columns: {{{name}: decimal(38,9)}}  # as many digits as its values need",
    "uuid": "parquet: {{types: native}}  # or leave the text, which every reader opens",
    "time": "parquet: {{types: native}}  # or leave the text, which every reader opens",
    "timestamp": "columns: {{{name}: timestamp}}  # microseconds; the rest must be zero",
    "timestamptz": "columns: {{{name}: timestamp_tz}}  # microseconds; the rest must be zero",
}


@dataclass(frozen=True)
class TypeFact:
    """One column of a part; `helps` is the override that would make it more faithful, '' when none does."""

    column: str
    native: str
    becomes: str  # the Arrow type that parts have; `text` in CSV and NDJSON
    fidelity: Faithful
    helps: str = ""

    @property
    def is_bad(self) -> bool:
        """Return whether values are lost, or cannot be exported at all."""
        return self.fidelity in BAD


def type_facts(relation: Relation, *, parts: pa.Schema | None, file_format: str) -> tuple[TypeFact, ...]:
    """Describe each column of a relation.

    Args:
        parts: the schema of the parts, where it could be planned; a transform may change or drop a column.
    """
    return tuple(_fact(column, parts, file_format) for column in relation.columns)


def refused_facts(relation: Relation, rules: TypeRules) -> tuple[TypeFact, ...]:
    """Describe the columns of a relation some of which `on_unsupported: fail` refuses."""

    def is_refused(column: Column) -> bool:
        rule = rules.columns.get(column.name)
        strict = (rule.on_unsupported if rule else None) or rules.on_unsupported
        return column.fidelity == "logical_string" and strict == "fail" and not (rule and rule.type)

    return tuple(
        TypeFact(column.name, column.native, "–", "unsupported", f"columns: {{{column.name}: text}}")
        if is_refused(column)
        else _fact(column, None, "parquet")
        for column in relation.columns
    )


def _fact(column: Column, parts: pa.Schema | None, file_format: str) -> TypeFact:
    arrow, fidelity = column.arrow, column.fidelity
    if parts is not None:
        index = parts.get_field_index(column.name)
        if index < 0:
            return TypeFact(column.name, column.native, "not exported under this name", fidelity)
        field = parts.field(index)
        arrow = field.type
        told = (field.metadata or {}).get(b"rivet.fidelity")
        fidelity = "lossy" if told == b"lossy" else fidelity
    becomes = str(arrow) if FORMATS[file_format].keeps_types else f"text of {arrow}"
    return TypeFact(column.name, column.native, becomes, fidelity, _helps(column, fidelity))


def _helps(column: Column, fidelity: str) -> str:
    if fidelity == "lossy":
        return f"columns: {{{column.name}: text}}, or no override and no step that cuts it"
    family = column.fact("family")
    if not pa.types.is_string(column.arrow) or family == "text":
        return ""
    return HELPS.get(column.logical if column.logical in HELPS else family, "").format(name=column.name)
