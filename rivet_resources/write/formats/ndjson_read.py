"""NDJSON lines as rows again, with the types that the writer was given.

Belongs here: the way back of `ndjson_cells.py`. Not here: which parts (`commit/reader.py`), what Spark can hold.

Arrow's own parser reads what it can, a block of lines at once. Times of day, uuids and nanoseconds stay text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.compute as pc

from rivet_resources.write.formats.text_codec import plain
from rivet_resources.write.formats.text_exact import comes_back

BLOCK = 8 * 1024 * 1024
DATE = re.compile(r"([+-]?\d{4,})-(\d\d)-(\d\d)")
TICKS = {"s": 1, "ms": 1_000, "us": 1_000_000}  # per second


def tables(file: BinaryIO, schema: pa.Schema) -> Iterator[pa.Table]:
    """Yield the rows of a part, in blocks; of `schema` the columns that the part has, by name."""
    with plain(file) as text:
        yield from _tables(text, schema)


def _tables(file: BinaryIO, schema: pa.Schema) -> Iterator[pa.Table]:
    for block in _blocks(file):
        # Of each block: a part may be older than the schema that is asked for.
        names = list(json.loads(block[: block.index(b"\n")]))
        fields = [schema.field(name) for name in names if name in schema.names]
        columns = _fast(block, fields, names)
        # By block, not by file: one cell that Arrow does not read costs eight megabytes of the slow way, and no more.
        # Columns of JSON are cut out of the lines as they stand; blocks that hold what Arrow cannot read (NaN, years
        # beyond four digits) and nested columns of dates, bytes and the like go through Python's parser.
        yield pa.table(columns or _slow(block, fields, names))


def exact_columns(schema: pa.Schema) -> frozenset[str]:
    """Return the columns whose cells come back bit by bit."""
    return frozenset(field.name for field in schema if _comes_back(field.type))


def batches(file: Path, schema: pa.Schema) -> Iterator[pa.Table]:
    """Yield the rows of a part; columns that are not exact are missing.

    Raises:
        pyarrow.ArrowException: a spelling that Arrow does not take.
    """
    exact = exact_columns(schema)
    with file.open("rb") as stream:
        yield from tables(stream, pa.schema([field for field in schema if field.name in exact]))


def _comes_back(kind: pa.DataType) -> bool:
    if not isinstance(kind, pa.BaseExtensionType) and (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
        return _comes_back(kind.value_type)
    return comes_back(kind) or pa.types.is_binary(kind)


def _blocks(file: BinaryIO) -> Iterator[bytes]:
    """Cut a file into blocks of whole lines."""
    rest = b""
    while content := file.read(BLOCK):
        # A line feed stands between rows only; inside a text it is escaped.
        end = content.rfind(b"\n") + 1
        if end:
            yield rest + content[:end]
            rest = content[end:]
        else:
            rest += content


def _fast(block: bytes, fields: Sequence[pa.Field], names: Sequence[str]) -> dict[str, pa.Array] | None:
    """Read a block with Arrow; None: it holds something that Arrow does not read."""
    import pyarrow.json as pj  # start

    wires = {field.name: _wire(field.type) for field in fields}
    asked = pa.schema([(name, wire) for name, wire in wires.items() if wire is not None])
    try:
        read = pj.read_json(
            pa.BufferReader(block),
            read_options=pj.ReadOptions(use_threads=False, block_size=len(block) + 1),
            parse_options=pj.ParseOptions(explicit_schema=asked, unexpected_field_behavior="ignore"),
        )
        columns = {
            each.name: _cast_column(read.column(each.name), each.type) for each in fields if each.name in asked.names
        }
    except pa.ArrowInvalid:
        return None
    rest = [field for field in fields if wires[field.name] is None]
    columns |= _slow(block, rest, names) if rest else {}
    return {field.name: columns[field.name] for field in fields}


def _slow(block: bytes, fields: Sequence[pa.Field], names: Sequence[str]) -> dict[str, pa.Array]:
    """Read columns of a block with Python's parser."""
    # Not `splitlines`, which also cuts at signs that may stand inside of a text, such as U+2028.
    lines = block.decode()[:-1].split("\n")
    texts = {field.name for field in fields if _is_json(field.type)}
    raw = _cut_members(lines, texts, names) if texts else {}
    # Decimals, as floats would round the numbers of a decimal column.
    rows = [json.loads(line, parse_float=Decimal) for line in lines] if len(texts) < len(fields) else []
    columns: dict[str, pa.Array] = {}
    for field in fields:
        if field.name in raw:
            columns[field.name] = pa.array(raw[field.name], pa.string())
        else:
            columns[field.name] = _array([_cell(row[field.name], field.type) for row in rows], field.type)
    return columns


def _cut_members(lines: Sequence[str], wanted: set[str], names: Sequence[str]) -> dict[str, list[str | None]]:
    """Cut the members `wanted` out of each line, as they stand there; every line has all names in one order."""
    scan = json.JSONDecoder().scan_once  # type: ignore[attr-defined]  # its C function, documented in json.decoder
    last = max(place for place, name in enumerate(names) if name in wanted)
    steps = [(len(json.dumps(name, ensure_ascii=False)) + 2, name in wanted) for name in names[: last + 1]]
    cells: list[list[str | None]] = []
    for line in lines:
        found: list[str | None] = []
        end = 0
        for step, is_wanted in steps:
            # Over the brace or comma, the name and the colon.
            begin = end + step
            end = scan(line, _past_blanks(line, begin))[1]
            # Blanks around a value of JSON are the source's and stay.
            if is_wanted:
                end = _past_blanks(line, end)
                found.append(_document(line[begin:end]))
        cells.append(found)
    kept = [name for name in names if name in wanted]
    return {name: [row[place] for row in cells] for place, name in enumerate(kept)}


def _document(text: str) -> str | None:
    """Return a cell of JSON as it was; a bare null is NULL, and one with a blank before it the JSON of that name."""
    if text == "null":
        return None
    return text[1:] if text.strip() == "null" else text


def _past_blanks(line: str, at: int) -> int:
    while line[at] in " \t":
        at += 1
    return at


def _wire(kind: pa.DataType) -> pa.DataType | None:
    """Return the type under which Arrow parses a cell; None: only Python can."""
    if _is_json(kind):
        return None
    kind = _value(kind)
    if pa.types.is_struct(kind):
        return kind if all(_wire(child.type) == child.type for child in kind) else None
    if pa.types.is_list(kind):
        return kind if _wire(kind.value_type) == kind.value_type else None
    stays = pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind)
    if stays or pa.types.is_decimal(kind) or (pa.types.is_timestamp(kind) and kind.unit != "ns"):
        return kind
    return pa.null() if pa.types.is_null(kind) else pa.string()


def _cast_column(column: pa.ChunkedArray, kind: pa.DataType) -> pa.Array:
    """Make of the texts that Arrow read what they stand for."""
    kind = _value(kind)
    if pa.types.is_date(kind):
        return column.cast(pa.date32()).cast(kind)
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or _is_fixed(kind):
        return _array(
            [None if cell is None else bytes.fromhex(cell.replace("-", "")) for cell in column.to_pylist()], kind
        )
    return column


def _cell(cell: Any, kind: pa.DataType) -> Any:
    """Make of a parsed cell what `_array` takes for this type."""
    if cell is None:
        return None
    if _is_json(kind):
        return _spell(cell)
    kind = _value(kind)
    if pa.types.is_struct(kind):
        return {child.name: _cell(cell[child.name], child.type) for child in kind}
    if pa.types.is_list(kind):
        return [_cell(each, kind.value_type) for each in cell]
    if pa.types.is_floating(kind):
        return float(cell)
    if pa.types.is_decimal(kind):
        return Decimal(cell)
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or _is_fixed(kind):
        # Sixteen bytes may be spelled as a uuid.
        return bytes.fromhex(cell.replace("-", ""))
    if pa.types.is_date(kind):
        return _days(cell)
    if pa.types.is_timestamp(kind) and kind.unit != "ns":
        day, clock = cell.removesuffix("Z").split("T")
        hours, minutes, seconds = clock.split(":")
        microseconds = round(Decimal(seconds) * 1_000_000) + (int(hours) * 60 + int(minutes)) * 60_000_000
        return (_days(day) * 86_400_000_000 + microseconds) // (1_000_000 // TICKS[kind.unit])
    return cell


def _array(cells: list[Any], kind: pa.DataType) -> pa.Array:
    """Build a column; days and ticks are numbers here, so that years beyond four digits can be."""
    kind = _held_type(kind)
    if pa.types.is_date(kind):
        return pa.array(cells, pa.int32()).view(pa.date32()).cast(kind)
    if pa.types.is_timestamp(kind):
        return pa.array(cells, pa.int64()).view(kind)
    if pa.types.is_list(kind):
        lengths = [None if cell is None else len(cell) for cell in cells]
        ends = pc.cumulative_sum(pa.array([0, *(length or 0 for length in lengths)], pa.int32()))
        values = _array([each for cell in cells for each in cell or ()], kind.value_type)
        absent = pa.array([length is None for length in lengths], pa.bool_())
        return pa.ListArray.from_arrays(ends, values, type=kind, mask=absent)
    if pa.types.is_struct(kind):
        children = [_array([None if c is None else c[child.name] for c in cells], child.type) for child in kind]
        absent = pa.array([cell is None for cell in cells], pa.bool_())
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=absent)
    return pa.array(cells, kind)


def _held_type(kind: pa.DataType) -> pa.DataType:
    """Return the type of what is read: text for what stays text, also inside lists and structs."""
    if isinstance(kind, pa.BaseExtensionType):
        return pa.string()
    kind = _value(kind)
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_held_type(kind.value_type)))
    if pa.types.is_struct(kind):
        return pa.struct([child.with_type(_held_type(child.type)) for child in kind])
    if pa.types.is_time(kind) or (pa.types.is_timestamp(kind) and kind.unit == "ns"):
        return pa.string()
    return pa.binary() if _is_fixed(kind) else kind


def _spell(cell: Any) -> str:
    """Spell a value of JSON inside a list or struct; equal, though without the blanks it had."""
    if isinstance(cell, dict):
        return "{" + ",".join(f"{_spell(name)}:{_spell(each)}" for name, each in cell.items()) + "}"
    if isinstance(cell, list):
        return "[" + ",".join(map(_spell, cell)) + "]"
    return str(cell) if isinstance(cell, Decimal) else json.dumps(cell, ensure_ascii=False)


def _days(text: str) -> int:
    """Count the days from 1970-01-01. Source: H. Hinnant, "chrono-Compatible Low-Level Date Algorithms"."""
    match = DATE.fullmatch(text)
    if match is None:
        raise ValueError("a date in NDJSON is not one that Rivet writes")
    year, month, day = map(int, match.groups())
    # Years begin in March, so that leap days come last.
    year -= month <= 2
    era, year_of_era = divmod(year, 400)
    day_of_year = (153 * (month - 3 if month > 2 else month + 9) + 2) // 5 + day - 1
    return era * 146_097 + year_of_era * 365 + year_of_era // 4 - year_of_era // 100 + day_of_year - 719_468


def _value(kind: pa.DataType) -> pa.DataType:
    """See through extension types, dictionaries and the twins of a list."""
    if isinstance(kind, pa.BaseExtensionType):
        return pa.string()
    if pa.types.is_dictionary(kind):
        return _value(kind.value_type)
    if pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return pa.list_(kind.value_field)
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    return kind


def _is_json(kind: pa.DataType) -> bool:
    return isinstance(kind, pa.BaseExtensionType) and kind.extension_name == "arrow.json"


def _is_fixed(kind: pa.DataType) -> bool:
    return bool(pa.types.is_fixed_size_binary(kind))
