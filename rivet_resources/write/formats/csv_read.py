"""CSV as rows again: for readers of parts, and cell by cell for proofs.

Belongs here: the way back of `shape/cell_text.py`. Not here: which parts (`commit/reader.py`), comparing
(`prove/part.py`).

An empty text and NULL look alike in CSV (`contract.md`, 8.3): readers get NULL, proofs get the empty text and count.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa

from rivet_resources.spark.cells import spark_type
from rivet_resources.write.formats.text_codec import plain
from rivet_resources.write.formats.text_exact import comes_back


def tables(file: BinaryIO, schema: pa.Schema) -> Iterator[pa.Table]:
    """Yield the rows of a part, some at a time, typed as `schema` says where a text can be."""
    types = {field.name: _readable(field.type) for field in schema}
    with plain(file) as text:
        for table in _read(text, types, empty_is_null=True):
            yield _from_hex(table, schema)


def exact_columns(schema: pa.Schema) -> frozenset[str]:
    """Return the columns whose cells come back bit by bit."""
    return frozenset(field.name for field in schema if comes_back(field.type))


def batches(file: Path, schema: pa.Schema) -> Iterator[pa.Table]:
    """Yield the rows of a part with their exact columns typed, the others as text, and empty texts as such.

    Raises:
        pyarrow.ArrowException: a spelling that Arrow does not take.
    """
    types = {field.name: field.type if comes_back(field.type) else pa.string() for field in schema}
    with file.open("rb") as stream, plain(stream) as text:
        # Arrow reads a file by its name without Python in between.
        yield from _read(file if text is stream else text, types, empty_is_null=False)


def _read(file: BinaryIO | Path, types: Mapping[str, pa.DataType], *, empty_is_null: bool) -> Iterator[pa.Table]:
    import pyarrow.csv as csv  # start

    options = csv.ConvertOptions(
        column_types=types,
        null_values=[""],
        strings_can_be_null=empty_is_null,
        true_values=["true"],
        false_values=["false"],
    )
    # Off by default in Arrow, which then cuts a cell with a line feed in two.
    parse = csv.ParseOptions(newlines_in_values=True)
    for batch in csv.open_csv(file, convert_options=options, parse_options=parse):
        yield pa.Table.from_batches([batch])


def _from_hex(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return the table with the hexadecimal texts of binary columns turned back into bytes."""
    for place, name in enumerate(table.column_names):
        kind = spark_type(schema.field(name).type)
        if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
            cells = [None if cell is None else bytes.fromhex(cell) for cell in table.column(place).to_pylist()]
            table = table.set_column(place, name, pa.array(cells, kind))
    return table


def _readable(kind: pa.DataType) -> pa.DataType:
    """Return the type that Arrow's CSV reader can parse; nested ones, bytes and our own stay the text they are."""
    plain = (
        pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_date(kind)
        or pa.types.is_decimal128(kind)
        or pa.types.is_timestamp(kind)
    )
    return kind if plain else pa.string()
