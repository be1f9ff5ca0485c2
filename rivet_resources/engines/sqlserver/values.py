"""Cells of SQL Server: what the driver delivers, read as `Column.arrow` says.

Belongs here: the SELECT list, and one reader per kind of column. Not here: policies and messages (shared/cells.py),
which type a column has (types.py, columns.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc

from rivet_resources.contracts.types import JSON, Column
from rivet_resources.engines.shared.cells import Read, flagged, masked, nulls, overriding, storage
from rivet_resources.engines.sqlserver.sql import quote


def items(columns: Sequence[Column]) -> list[str]:
    """Return the SELECT list in the order of the wire: short columns, hidden flags, then long ones."""
    asked = [column.select for column in columns] + [column.fact("flag") for column in flagged(columns)]
    plain = {quote(column.name) for column in columns}
    # Expressions get an alias of ours: they have no name, and ORDER BY takes an output name before a column.
    named = [item if item in plain else f"{item} AS [_rivet_{i}]" for i, item in enumerate(asked)]
    return [named[i] for i in wire_order(columns)]


def wire_order(columns: Sequence[Column]) -> list[int]:
    """Return, for each place on the wire, which item of columns-then-flags stands there."""
    # The driver's array binding ends at the first `(max)` column, so these travel last (`engine.md`, section 4).
    long = [i for i, column in enumerate(columns) if column.fact("long")]
    short = [i for i in range(len(columns) + len(flagged(columns))) if i not in set(long)]
    return short + long


def arrange(batch: pa.RecordBatch, order: Sequence[int]) -> pa.RecordBatch:
    """Put a batch of the wire back into the order of columns, then flags."""
    arrays = [batch.column(place) for _, place in sorted((item, place) for place, item in enumerate(order))]
    return pa.RecordBatch.from_arrays(arrays, names=[str(i) for i in range(len(arrays))])


# --- one reader per kind of column ---------------------------------------------------------------


def _plain(array: pa.Array, column: Column, counts: dict[str, int]) -> pa.Array:
    """Narrow what the driver widens: large strings and binaries, unsigned bytes, naive times that are UTC."""
    return array if array.type == column.arrow else array.cast(column.arrow)


def _text(array: pa.Array, column: Column, counts: dict[str, int]) -> pa.Array:
    """Take text; a sql_variant's base type, which came before the colon, must be one and the same."""
    array = array.cast(pa.string())
    if column.fact("base") != "sql_variant":
        return array
    kinds = pc.unique(pc.struct_field(pc.extract_regex(array, "^(?P<base>[^:]*):"), "base")).drop_null()
    if len(kinds) > 1:
        # Numbers compare otherwise than texts: two base types in one column have no one text form.
        array = masked(array, {"mixed_types": pc.is_valid(array)}, counts, nulls(column))
    return pc.replace_substring_regex(array, "(?s)^[^:]*:", "")


def _time(array: pa.Array, column: Column, counts: dict[str, int]) -> pa.Array:
    """Take a time of day, its seventh digit masked or zero; as text in portable files."""
    # Unsafe, since Arrow refuses to drop the seventh digit; where it counted, the flag has masked the cell.
    return array.cast(pa.time64("us"), safe=False).cast(column.arrow)


def _json(array: pa.Array, column: Column, counts: dict[str, int]) -> pa.Array:
    text = array.cast(pa.string())
    return text if column.arrow == pa.string() else pa.ExtensionArray.from_storage(JSON, text)


def _uuid(array: pa.Array, column: Column, counts: dict[str, int]) -> pa.Array:
    """Take uuids, which come as text: canonical lower case, or sixteen bytes."""
    text = pc.utf8_lower(array.cast(pa.string()))
    if pa.types.is_string(column.arrow):
        return text
    cells = [None if cell is None else UUID(cell).bytes for cell in text.to_pylist()]
    return pa.ExtensionArray.from_storage(pa.uuid(), pa.array(cells, pa.binary(16)))


BASE: Mapping[str, Read] = {"plain": _plain, "text": _text, "time": _time, "json": _json, "uuid": _uuid}


def _uuid_text(array: pa.Array, column: Column, counts: dict[str, int]) -> pa.Array:
    """Take uuids as sixteen bytes, for an override to go on with."""
    return storage(_uuid(array, column, counts))


READ: Mapping[str, Read] = {
    **BASE,
    "decimal": _plain,
    "decimal_text": _text,
    "override": overriding({**BASE, "uuid_text": _uuid_text}),
}


# --- letters that a driver replaces --------------------------------------------------------------

REPLACEMENT = "\ufffd"


def readers(driver: str) -> Mapping[str, Read]:
    """Return the readers for what a driver delivers; it is a word of the YAML key."""
    return CHECKED if driver == "mssql-python" else READ


def _checking(read: Read) -> Read:
    """Refuse U+FFFD before a cell is read: mssql-python writes it for half of a letter (1.16.0, measured 2026-11-26).

    LEFT and SUBSTRING leave such halves, lone surrogates, in nvarchar under all collations but those with SC. A sign
    that was written as U+FFFD looks the same here, so `on_special_value: text` takes it as it came. pyodbc fails at a
    half by itself.
    """

    def checked(array: pa.Array, column: Column, counts: dict[str, int]) -> pa.Array:
        is_text = pa.types.is_string(array.type) or pa.types.is_large_string(array.type)
        if is_text and column.policy != "text":
            array = masked(array, {"half_letters": pc.match_substring(array, REPLACEMENT)}, counts, nulls(column))
        return read(array, column, counts)

    return checked


CHECKED: Mapping[str, Read] = {name: _checking(read) for name, read in READ.items()}
