"""The columns every row of changes begins with, around rows of a table.

Belongs here: snapshot rows as inserts, changes for a format without lists. Not here: the columns themselves
(`contracts/change_log.py`), what a log writes into them (`log/log.py` and its siblings), transforms (`drain/parts.py`).
"""

from __future__ import annotations

import json

import pyarrow as pa

from rivet_resources.contracts.change_log import ENVELOPE, UNCHANGED, change_schema
from rivet_resources.contracts.format import Format

# Before every change of the same position (`cdc.md`, section 8).
SNAPSHOT_SEQ = 0


def as_inserts(table: pa.Table, position: str) -> pa.Table:
    """Make rows of a first copy into inserts at `position`; their commit time is not known."""
    count = table.num_rows
    cells = {
        "__op": pa.repeat(pa.scalar("insert", pa.string()), count),
        "__pos": pa.repeat(pa.scalar(position, pa.string()), count),
        "__seq": pa.repeat(pa.scalar(SNAPSHOT_SEQ, pa.int64()), count),
        "__ts": pa.nulls(count, ENVELOPE[3].type),
        "__unchanged": pa.nulls(count, ENVELOPE[4].type),
    }
    schema = change_schema(table.schema)
    return pa.Table.from_arrays([*cells.values(), *table.columns], schema=schema)


def flat_schema(schema: pa.Schema, form: Format) -> pa.Schema:
    """Return the schema as a format without lists can hold it: unchanged columns as the text of a JSON array."""
    place = schema.get_field_index(UNCHANGED.name)
    if form.holds_lists or place < 0:
        return schema
    return schema.set(place, schema.field(place).with_type(pa.string()))


def flat(table: pa.Table, form: Format) -> pa.Table:
    """Bring changes into that schema."""
    place = table.schema.get_field_index(UNCHANGED.name)
    if form.holds_lists or place < 0:
        return table
    lists = table.column(place)
    texts = pa.nulls(len(lists), pa.string())
    if lists.null_count < len(lists):
        names = lists.to_pylist()
        texts = pa.array(
            [None if each is None else json.dumps(each, ensure_ascii=False) for each in names], pa.string()
        )
    return table.set_column(place, flat_schema(table.schema, form).field(place), texts)
