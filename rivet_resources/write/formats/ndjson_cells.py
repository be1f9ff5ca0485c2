"""How one cell is spelled in JSON, a column at a time.

Belongs here: text for every Arrow type, escapes, the joining of columns into objects. Not here: files (`ndjson.py`).
Dates, times, bytes and uuids are the texts of CSV (`shape/cell_text.py`, `contract.md`, 8.3) in quotes. Else:

    whole numbers, decimals   numbers with all digits of their scale
    floats                    the fewest digits that come back, always with a point or an exponent: 1.0, 1e+21, -0.0;
                              what JSON has no number for is text, as Spark, Jackson and protobuf read it: "NaN",
                              "Infinity", "-Infinity" (pyarrow's own reader takes no column that mixes both)
    JSON                      as it is, not in quotes; line feeds between its tokens become blanks. Its null has a blank
                              before it, by which our own reader tells it from NULL; to others both are null
    lists, structs            arrays, objects
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rivet_resources.errors import ValueDoesNotFit
from rivet_resources.shape import cell_text as csv_render

# RFC 8259, section 7: a quote, a backslash and the controls must be escaped, and nothing else need be.
SHORT = {8: "\\b", 9: "\\t", 10: "\\n", 12: "\\f", 13: "\\r"}
ESCAPES = {code: SHORT.get(code, f"\\u{code:04x}") for code in range(32)} | {34: '\\"'}
# Words that Arrow's parser takes for numbers and JSON does not know.
NOT_A_NUMBER = r"(^|[\s,:\[-])(NaN|Inf|Infinity)($|[\s,\]}])"
NON_NUMBERS = {"nan": '"NaN"', "inf": '"Infinity"', "-inf": '"-Infinity"'}


def can_render(field: pa.Field) -> bool:
    """Return whether the column has a JSON form; refused are maps, unions and spans of time."""
    kind = _plain(field.type)
    if pa.types.is_struct(kind):
        return all(can_render(child) for child in kind)
    if _is_list(kind):
        return can_render(kind.value_field)
    return bool(
        _is_text(kind)
        or _is_hex(kind)
        or _is_bare(kind)
        or pa.types.is_date(kind)
        or pa.types.is_time(kind)
        or pa.types.is_timestamp(kind)
    )


def render(batch: pa.RecordBatch) -> memoryview:
    """Spell rows as lines; the batch must be small enough for its text to stay below 2 GB.

    Raises:
        ValueDoesNotFit: a column of JSON holds a text that is not.
    """
    if batch.num_rows == 0:
        return memoryview(b"")
    lines = _objects(batch.columns, list(batch.schema), rows=batch.num_rows, end="}\n")
    offsets = np.frombuffer(lines.buffers()[1], np.int32)
    return memoryview(lines.buffers()[2])[: offsets[len(lines)]]


def render_rows(batch: pa.RecordBatch) -> pa.BinaryArray:
    """Spell rows as objects, each by itself.

    Raises:
        ValueDoesNotFit: a column of JSON holds a text that is not.
    """
    return _objects(batch.columns, list(batch.schema), rows=batch.num_rows, end="}").cast(pa.binary())


def _objects(columns: Sequence[pa.Array], fields: Sequence[pa.Field], *, rows: int, end: str) -> pa.StringArray:
    """Spell rows of columns as objects; one join puts names, marks and cells together."""
    if not fields:
        return pa.array(["{" + end] * rows, pa.string())
    pieces: list[pa.Array | str] = []
    before = "{"
    for column, field in zip(columns, fields, strict=True):
        cells, is_quoted = _cells(column, field)
        if is_quoted and cells.null_count:  # a NULL has no quotes around it
            cells, is_quoted = pc.binary_join_element_wise('"', cells, '"', ""), False
        mark = '"' if is_quoted else ""
        # Quotes go into the constant pieces beside a column: one join for all, and no pass over the cells for their
        # quotes.
        pieces += [f"{before}{json.dumps(field.name, ensure_ascii=False)}:{mark}", cells]
        before = f"{mark},"
    # The last comma is none; the quote before it closes the last cell.
    pieces += [before[:-1] + end]
    return pc.binary_join_element_wise(*pieces, "", null_handling="replace", null_replacement="null")


def _cells(column: pa.Array, field: pa.Field) -> tuple[pa.StringArray, bool]:
    """Spell one column, NULL staying NULL; and say whether its cells still want quotes around them."""
    kind = _plain(field.type)
    if _is_json(field.type):
        return _embed(column.storage.cast(pa.string()), field.name), False
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    if column.type != kind:
        column = column.cast(kind)
    if pa.types.is_struct(kind):
        return _structs(column), False
    if _is_list(kind):
        return _lists(column, field), False
    if _is_text(kind):
        return _escape(column.cast(pa.string())), True
    if pa.types.is_floating(kind):
        return _floats(column), False
    if _is_bare(kind):
        return _numbers(column), False
    if pa.types.is_fixed_size_binary(kind) and csv_render.renderer(kind, is_uuid=_is_uuid(field)) is None:
        return csv_render.hex_text(column.cast(pa.binary())), True
    if (pa.types.is_timestamp(kind) or pa.types.is_time(kind)) and kind.unit == "ns":
        return _nanoseconds(column), True
    spell = csv_render.renderer(kind, is_uuid=_is_uuid(field))
    assert spell is not None, f"{field.name} was to be refused by check_schema"
    return spell(column), True


def _escape(column: pa.StringArray) -> pa.StringArray:
    """Escape text; a pass over the column for each kind of mark that it holds, mostly none."""
    offsets = np.frombuffer(column.buffers()[1], np.int32)[column.offset : column.offset + len(column) + 1]
    content = np.frombuffer(column.buffers()[2] or b"", np.uint8)[offsets[0] : offsets[-1]]
    # The backslash first: escaping another mark adds backslashes, which must not be escaped again.
    if (content == 92).any():
        column = pc.replace_substring(column, "\\", "\\\\")
    odd = content[(content < 32) | (content == 34)]
    for code in np.unique(odd):
        column = pc.replace_substring(column, chr(code), ESCAPES[int(code)])
    return column


def _embed(column: pa.StringArray, name: str) -> pa.StringArray:
    """Put JSON on one line; inside it a line feed can only stand between tokens.

    Raises:
        ValueDoesNotFit: a cell is not JSON; a line with it would not be either.
    """
    for feed in ("\n", "\r"):
        column = pc.replace_substring(column, feed, " ")
    present = column.drop_null()
    doubtful = present.filter(pc.match_substring_regex(present, NOT_A_NUMBER))
    # It also knows no lone surrogates, `\ud800`, which are JSON all the same.
    if not _all_parse(present):
        doubtful = present
    if not all(map(_is_valid, doubtful.to_pylist())):
        raise ValueDoesNotFit(
            f"Column {name} is JSON and holds a text that is not, so no line of NDJSON can have it. Write it as text "
            f"with `columns: {{{name}: text}}`, or clean the source."
        )
    # JSON's own null and SQL's would be one text. The blank tells them apart for us and changes nothing for other
    # readers.
    nulls = pc.equal(pc.ascii_trim_whitespace(column), "null")
    if pc.any(nulls).as_py():
        column = pc.if_else(nulls, pc.binary_join_element_wise(" ", column, ""), column)
    return column


def _all_parse(cells: pa.StringArray) -> bool:
    """Return whether each cell is one JSON value, as far as Arrow's parser knows JSON.

    One place alone can be fooled, by `1,"x":2` or by `1,2`; a text that parses in both is one value.
    """
    return len(cells) == 0 or (_parses("", cells, "") and _parses("[", cells, "]"))


def _parses(before: str, cells: pa.StringArray, after: str) -> bool:
    """Return whether each cell parses as a member's value, with something around it."""
    import pyarrow.json as pj  # start

    lines = pc.binary_join_element_wise(f'{{"x":{before}', cells, f"{after}}}\n", "")
    offsets = np.frombuffer(lines.buffers()[1], np.int32)
    content = lines.buffers()[2].slice(0, int(offsets[-1]))
    nothing = pj.ParseOptions(explicit_schema=pa.schema([("y", pa.null())]), unexpected_field_behavior="ignore")
    try:
        read = pj.read_json(
            pa.BufferReader(content),
            # In one block, as Arrow refuses a value that is longer than one.
            read_options=pj.ReadOptions(use_threads=False, block_size=content.size + 1),
            parse_options=nothing,
        )
    except pa.ArrowInvalid:
        return False
    return bool(read.num_rows == len(cells))


def _is_valid(text: str) -> bool:
    def refuse(_: str) -> None:
        raise ValueError

    try:
        json.loads(text, parse_constant=refuse)
    except (ValueError, RecursionError):
        return False
    return True


def _floats(column: pa.Array) -> pa.StringArray:
    """Spell floats with a point or an exponent, so that a reader takes none for a whole number."""
    if column.type == pa.float16():
        column = column.cast(pa.float32())
    text = column.cast(pa.string())
    whole = pc.equal(column, pc.floor(column))
    if pc.any(whole).as_py():
        # Those with an exponent, and nan and inf, are no whole numbers to a reader as they stand.
        marked = pc.match_substring_regex(text, "[.en]")
        text = pc.if_else(marked, text, pc.binary_join_element_wise(text, ".0", ""))
    odd = pc.invert(pc.is_finite(column))
    if pc.any(odd).as_py():
        for spelled, words in NON_NUMBERS.items():
            text = pc.if_else(pc.equal(text, spelled), words, text)
    return text


def _numbers(column: pa.Array) -> pa.StringArray:
    """Spell whole numbers, truth and decimals; the spelling of CSV is JSON's."""
    if pa.types.is_decimal(column.type):
        # It spells every width of decimals.
        spell = csv_render.renderer(pa.decimal128(1, 0), is_uuid=False)
        assert spell is not None
        return spell(column)
    return column.cast(pa.string())


def _nanoseconds(column: pa.Array) -> pa.StringArray:
    """Spell nine digits behind the seconds, as Arrow does, with `T` and `Z` as elsewhere."""
    zone = "Z" if pa.types.is_timestamp(column.type) and column.type.tz else ""
    text = column.cast(pa.int64()).cast(pa.timestamp("ns") if pa.types.is_timestamp(column.type) else column.type)
    text = pc.replace_substring(text.cast(pa.string()), " ", "T")
    return pc.binary_join_element_wise(text, zone, "") if zone else text


def _lists(column: pa.Array, field: pa.Field) -> pa.StringArray:
    """Spell lists as arrays: the elements as one column, then joined by the lengths of the lists."""
    elements = column.flatten()
    (child,) = [column.type.value_field]
    cells, is_quoted = _cells(elements, child)
    if is_quoted:
        cells = pc.binary_join_element_wise('"', cells, '"', "")
    lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False)
    offsets = np.zeros(len(column) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    lists = pa.ListArray.from_arrays(pa.array(offsets), pc.fill_null(cells, "null"))
    arrays = pc.binary_join_element_wise("[", pc.binary_join(lists, ","), "]", "")
    return pc.if_else(column.is_valid(), arrays, None) if column.null_count else arrays


def _structs(column: pa.StructArray) -> pa.StringArray:
    """Spell structs as objects."""
    fields = list(column.type)
    objects = _objects(column.flatten(), fields, rows=len(column), end="}")
    return pc.if_else(column.is_valid(), objects, None) if column.null_count else objects


def _plain(kind: pa.DataType) -> pa.DataType:
    """See through extension types, dictionaries and the wider or narrower twins of a type."""
    if isinstance(kind, pa.BaseExtensionType):
        return _plain(kind.storage_type)
    if pa.types.is_dictionary(kind):
        return _plain(kind.value_type)
    if pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return pa.list_(kind.value_field)
    return kind


def _is_json(kind: pa.DataType) -> bool:
    return isinstance(kind, pa.BaseExtensionType) and kind.extension_name == "arrow.json"


def _is_uuid(field: pa.Field) -> bool:
    return bool(field.type == pa.uuid() or (field.metadata or {}).get(b"rivet.logical_type") == b"uuid")


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind))


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _is_hex(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind))


def _is_bare(kind: pa.DataType) -> bool:
    """Return whether cells stand without quotes."""
    return bool(
        pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_decimal(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_null(kind)
    )
