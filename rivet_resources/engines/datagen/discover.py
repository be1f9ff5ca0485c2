"""The one table that made-up rows are (`TableFacts`).

Belongs here: its columns and key, as an export would describe them. Not here: what to make of it
(`rivet_assets/scaffold/propose.py`).
"""

from __future__ import annotations

from collections.abc import Mapping

from rivet_resources.contracts.evidence import ColumnFacts, IndexFacts, TableFacts
from rivet_resources.contracts.relation import Relation
from rivet_resources.contracts.types import Column, Family
from rivet_resources.engines.datagen.stream import Stream
from rivet_resources.engines.shared.names import is_meant

# Arrow types of made-up columns, by how Arrow prints them; what is not here is text.
FAMILIES: Mapping[str, Family] = {
    "int64": "integer", "int32": "integer", "int16": "integer", "double": "float", "float": "float", "bool": "bool",
    "timestamp[us, tz=UTC]": "timestamptz", "timestamp[us]": "timestamp", "date32[day]": "date",
    "extension<arrow.json>": "json", "extension<arrow.uuid>": "uuid",
}  # fmt: skip


def tables(stream: Stream, relation: Relation, pattern: str) -> tuple[TableFacts, ...]:
    """List the stream, as it is described by itself, if the pattern means it."""
    schema, name = stream.namespace or "datagen", stream.name
    if not is_meant(pattern, schema, name):
        return ()
    facts = TableFacts(
        schema=schema,
        name=name,
        kind="table",
        columns=tuple(_column(column, relation.key) for column in relation.columns),
        indexes=tuple(IndexFacts(column, (column,), is_unique=True) for column in sorted(relation.indexed)),
        key=relation.key,
        rows_estimate=relation.rows_estimate,
        facts={} if stream.max_events else {"endless": "yes"},
    )
    return (facts,)


def _column(column: Column, key: tuple[str, ...]) -> ColumnFacts:
    family = FAMILIES.get(str(column.arrow), "text")
    return ColumnFacts(column.name, column.native, column.nullable and column.name not in key, family=family)
