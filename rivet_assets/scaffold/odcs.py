"""An export's table as a data contract of the Open Data Contract Standard (`rivet contract export`).

Belongs here: the document. Not here: reading one (`config/odcs.py`), asking the source (`preflight/contract.py`).
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import yaml

from rivet_resources.contracts.relation import Relation
from rivet_resources.shape.transforms.convert import family

VERSION = "v3.1.0"
# Families of Arrow types → `logicalType`; a family that is not here has none.
LOGICAL = {
    "text": "string", "uuid": "string", "json": "string", "integer": "integer", "float": "number", "decimal": "number",
    "bool": "boolean", "date": "date", "time": "time", "timestamp": "timestamp", "instant": "timestamp",
}  # fmt: skip


def document_of(export: str, relation: Relation, shaped: pa.Schema) -> dict[str, Any]:
    """Return the contract that the table keeps by its catalog: columns as they are written, types, NULLs, key."""
    table = relation.name if relation.is_table else export
    return {
        "apiVersion": VERSION,
        "kind": "DataContract",
        "id": export,
        "name": export,
        "version": "1.0.0",
        "status": "draft",
        "schema": [
            {
                "name": table.rpartition(".")[2],
                "physicalName": table,
                "logicalType": "object",
                "physicalType": "table" if relation.is_table else "query",
                "properties": [_property(field, relation) for field in shaped],
            }
        ],
    }


def text_of(document: dict[str, Any]) -> str:
    """Return the document as YAML, keys in the standard's order."""
    return str(yaml.safe_dump(document, sort_keys=False, allow_unicode=True))


def _property(field: pa.Field, relation: Relation) -> dict[str, Any]:
    column = relation.column(field.name)
    native = (field.metadata or {}).get(b"rivet.native_type", b"").decode()
    found: dict[str, Any] = {"name": field.name}
    if (logical := _logical(field.type)) is not None:
        found["logicalType"] = logical
    if native:
        found["physicalType"] = native
    if not field.nullable:
        found["required"] = True
    if native and field.name in relation.key:
        found |= {"primaryKey": True, "primaryKeyPosition": relation.key.index(field.name) + 1}
    if column is not None and column.comment:
        found["description"] = column.comment
    return found


def _logical(arrow: pa.DataType) -> str | None:
    if pa.types.is_list(arrow):
        return "array"
    if pa.types.is_struct(arrow):
        return "object"
    return LOGICAL.get(family(arrow))
