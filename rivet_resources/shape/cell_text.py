"""How one cell is spelled in CSV, a column at a time (`contract.md`, 8.3).

Belongs here: text for every Arrow type, quoting, the joining of columns into lines. Not here: files (`formats/csv.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from functools import reduce

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

# Arrow spells years beyond four digits its own way, or not at all; days and microseconds of 0000-01-01 and 10000-01-01.
FIRST_DAY, END_DAY = -719_528, 2_932_897
DAY_US = 86_400_000_000
NEED_QUOTES = (",", '"', "\r", "\n")
HEX = np.frombuffer(b"0123456789abcdef", np.uint8)
EMPTY_RECORD = '""'  # one field, and nothing in it


def can_render(field: pa.Field) -> bool:
    """Return whether CSV has a spelling for the column; refused are lists, structs, nanoseconds, 256-bit decimals …"""
    return renderer(_storage(field.type), is_uuid=_is_uuid(field)) is not None


def header(schema: pa.Schema) -> bytes:
    """Spell the first line."""
    names = _quote(pa.array(schema.names, pa.string()))
    return ((",".join(names.to_pylist()) or EMPTY_RECORD) + "\n").encode()


def render(batch: pa.RecordBatch) -> memoryview:
    """Spell rows as lines; the batch must be small enough for its text to stay below 2 GB."""
    if batch.num_rows == 0 or batch.num_columns == 0:
        return memoryview(b"")
    columns = [_text(batch.column(index), field) for index, field in enumerate(batch.schema)]
    # A record of one empty field would be a line with nothing on it, which nearly every reader passes over.
    if len(columns) == 1:
        is_empty = pc.fill_null(pc.equal(columns[0], ""), True)
        columns = [pc.if_else(is_empty, EMPTY_RECORD, columns[0])]
    # The line feed rides on the last column, so that one join makes whole lines.
    columns[-1] = pc.binary_join_element_wise(columns[-1], "", "\n", null_handling="replace", null_replacement="")
    lines = pc.binary_join_element_wise(*columns, ",", null_handling="replace", null_replacement="")
    return memoryview(lines.buffers()[2])[: _offsets(lines)[-1]]


def _text(column: pa.Array, field: pa.Field) -> pa.StringArray:
    """Spell one column; NULL stays NULL, which the join turns into an empty field."""
    spell = renderer(_storage(field.type), is_uuid=_is_uuid(field))
    assert spell is not None, f"{field.name} was to be refused by check_schema"
    return spell(column.storage if isinstance(column, pa.ExtensionArray) else column)


def _storage(arrow: pa.DataType) -> pa.DataType:
    """See through an extension type."""
    return arrow.storage_type if isinstance(arrow, pa.BaseExtensionType) else arrow


def _is_uuid(field: pa.Field) -> bool:
    """Return whether sixteen bytes are a UUID, by type or by what the catalog said."""
    return field.type == pa.uuid() or (field.metadata or {}).get(b"rivet.logical_type") == b"uuid"


Renderer = Callable[[pa.Array], pa.StringArray]


def renderer(arrow: pa.DataType, *, is_uuid: bool) -> Renderer | None:
    """Choose how a storage type is spelled; None: it is refused."""
    if pa.types.is_fixed_size_binary(arrow):
        return _uuids if is_uuid and arrow.byte_width == 16 else None
    if pa.types.is_timestamp(arrow):
        return None if arrow.unit == "ns" else _timestamps
    if pa.types.is_time(arrow):
        return None if arrow.unit == "ns" else _times
    return next((spell for test, spell in RENDERERS if test(arrow)), None)


def _plain(column: pa.Array) -> pa.StringArray:
    """Spell as Arrow does: integers, `true` and `false`."""
    return column.cast(pa.string())


def _quote(column: pa.Array) -> pa.StringArray:
    """Spell text: verbatim, in quotes only where a comma, quote, CR or LF is inside, inner quotes doubled."""
    column = column.cast(pa.string())
    # A search over all bytes at once: most columns have none of the four, and are done here.
    marks = [mark for mark in NEED_QUOTES if mark.encode() in _bytes(column)]
    if not marks:
        return column
    needs = reduce(pc.or_, [pc.match_substring(column, mark) for mark in marks])
    doubled = pc.replace_substring(column, '"', '""') if '"' in marks else column
    return pc.if_else(needs, pc.binary_join_element_wise('"', doubled, '"', ""), column)


def _floats(column: pa.Array) -> pa.StringArray:
    """Spell floats with the fewest digits that come back, never with an exponent; `NaN`, `inf`, `-inf`."""
    if column.type == pa.float16():
        column = column.cast(pa.float32())
    text = column.cast(pa.string())
    # `inf` has neither an e nor a nan, and is spelled as the contract wants it.
    if b"e" not in _bytes(text) and b"nan" not in _bytes(text):
        return text
    odd = pc.match_substring_regex(text, "e|nan")
    return mend(text, odd, lambda cell: "NaN" if cell == "nan" else format(Decimal(cell), "f"))


def _decimals(column: pa.Array) -> pa.StringArray:
    """Spell decimals with all digits of their scale; Arrow takes an exponent where more than six zeros lead."""
    text = column.cast(pa.string())
    if column.type.scale <= 6 or b"E" not in _bytes(text):
        return text
    return mend(text, pc.match_substring(text, "E"), lambda cell: format(Decimal(cell), "f"))


def mend(text: pa.StringArray, odd: pa.BooleanArray, spell: Callable[[str], str]) -> pa.StringArray:
    """Spell the `odd` cells anew, each different one once; NULL stays NULL."""
    odd = pc.and_(odd, text.is_valid()).fill_null(False)
    cells = text.filter(odd).dictionary_encode()
    spelled = pa.array([spell(cell) for cell in cells.dictionary.to_pylist()], pa.string())
    return pc.replace_with_mask(text, odd, spelled.take(cells.indices))


def _dates(column: pa.Array) -> pa.StringArray:
    """Spell dates as ISO 8601; years outside 0 to 9999 with a sign, as its expanded form asks."""
    days = column.cast(pa.date32())
    numbers = days.cast(pa.int32())
    far = _outside(numbers, FIRST_DAY, END_DAY)
    if far is None:
        return days.cast(pa.string())
    return _respell(numbers, far, _date, near=lambda cells: cells.cast(pa.date32()).cast(pa.string()))


def _timestamps(column: pa.Array) -> pa.StringArray:
    """Spell `YYYY-MM-DDTHH:MM:SS.ffffff`, with `Z` when the column holds instants."""
    zone = "Z" if column.type.tz else ""
    numbers = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64())

    def near(cells: pa.Array) -> pa.StringArray:
        # Cast as naive: with a zone Arrow asks the zone database for every cell, which takes fifteen times as long.
        return _stamp_text(cells.cast(pa.timestamp("us")).cast(pa.string()), zone)

    far = _outside(numbers, FIRST_DAY * DAY_US, END_DAY * DAY_US)
    if far is None:
        return near(numbers)
    # Floor division and its rest: before 1970 a time of day still counts forward from midnight.
    return _respell(numbers, far, lambda us: f"{_date(us // DAY_US)}T{_time(us % DAY_US)}{zone}", near=near)


def _times(column: pa.Array) -> pa.StringArray:
    """Spell `HH:MM:SS.ffffff`; outside a day with one leading minus and all hours."""
    numbers = column.cast(pa.time64("us")).cast(pa.int64())

    def near(cells: pa.Array) -> pa.StringArray:
        return cells.cast(pa.time64("us")).cast(pa.string())

    far = _outside(numbers, 0, DAY_US)
    return near(numbers) if far is None else _respell(numbers, far, _time, near=near)


def _outside(numbers: pa.Array, first: int, end: int) -> pa.BooleanArray | None:
    """Mark cells outside [first, end); None when there are none."""
    ends = pc.min_max(numbers)
    if ends["min"].as_py() is None or (ends["min"].as_py() >= first and ends["max"].as_py() < end):
        return None
    return pc.or_(pc.less(numbers, first), pc.greater_equal(numbers, end))


def _respell(numbers: pa.Array, far: pa.BooleanArray, spell: Callable[[int], str], *, near: Renderer) -> pa.StringArray:
    """Spell far cells one by one and all others as a column."""
    texts = pa.array([spell(number) for number in numbers.filter(far).to_pylist()], pa.string())
    # Far cells hold a zero meanwhile, since `near` cannot spell them.
    return pc.replace_with_mask(near(pc.if_else(far, pa.scalar(0, numbers.type), numbers)), far.fill_null(False), texts)


def _stamp_text(text: pa.StringArray, zone: str) -> pa.StringArray:
    """Put `T` where Arrow writes a blank, and `zone` behind; present cells have 26 bytes, so it is one stroke."""
    cells = np.frombuffer(_bytes(text), np.uint8).reshape(-1, 26)
    moved = np.empty((len(cells), 26 + len(zone)), np.uint8)
    # Without a zone there is no such column, and the blank goes nowhere.
    moved[:, :26], moved[:, 26:] = cells, ord(zone or " ")
    moved[:, 10] = ord("T")
    # NULL cells have no bytes, so all offsets grow by one factor.
    offsets = (_offsets(text) - _offsets(text)[0]) // 26 * (26 + len(zone))
    return pa.StringArray.from_buffers(
        len(text), pa.py_buffer(offsets), pa.py_buffer(moved.reshape(-1)), _validity(text)
    )


def _date(days: int) -> str:
    """Spell a day of the Gregorian calendar. Source: H. Hinnant, "chrono-Compatible Low-Level Date Algorithms"."""
    # Days since 0000-03-01, in eras of 400 years: when a year begins in March, the leap day is its last.
    era, day_of_era = divmod(days + 719_468, 146_097)
    year_of_era = (day_of_era - day_of_era // 1_460 + day_of_era // 36_524 - day_of_era // 146_096) // 365
    day_of_year = day_of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    shifted = (5 * day_of_year + 2) // 153  # months from March
    day, month = day_of_year - (153 * shifted + 2) // 5 + 1, shifted + 3 if shifted < 10 else shifted - 9
    year = year_of_era + era * 400 + (month <= 2)
    spelled = f"{year:04d}" if 0 <= year <= 9999 else f"{'-' if year < 0 else '+'}{abs(year):04d}"
    return f"{spelled}-{month:02d}-{day:02d}"


def _time(us: int) -> str:
    """Spell a time of day or a span, in microseconds."""
    seconds, fraction = divmod(abs(us), 1_000_000)
    return f"{'-' if us < 0 else ''}{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}.{fraction:06d}"


def hex_text(column: pa.Array) -> pa.StringArray:
    """Spell bytes as lower-case hex."""
    column = column.cast(pa.binary())
    offsets = (_offsets(column) - _offsets(column)[0]) * 2
    cells = pa.py_buffer(_bytes(column).hex().encode())
    return pa.StringArray.from_buffers(len(column), pa.py_buffer(offsets), cells, _validity(column))


def _uuids(column: pa.Array) -> pa.StringArray:
    """Spell sixteen bytes as 8-4-4-4-12."""
    rows = len(column)
    start = column.offset * 16
    cells = np.frombuffer(column.buffers()[1], np.uint8)[start : start + rows * 16].reshape(rows, 16)
    text = np.full((rows, 36), ord("-"), np.uint8)
    places = [place for place in range(36) if place not in (8, 13, 18, 23)]
    text[:, places[0::2]], text[:, places[1::2]] = HEX[cells >> 4], HEX[cells & 15]
    offsets = pa.py_buffer(np.arange(rows + 1, dtype=np.int32) * 36)
    return pa.StringArray.from_buffers(rows, offsets, pa.py_buffer(text.reshape(-1)), _validity(column))


def _validity(column: pa.Array) -> pa.Buffer | None:
    """Return the bitmap of present cells, starting at bit 0."""
    return pa.array(pc.is_valid(column).to_numpy(zero_copy_only=False)).buffers()[1] if column.null_count else None


def _bytes(column: pa.Array) -> bytes:
    """Copy the cells of a text or binary column, those of its slice only; searching them costs next to nothing."""
    start, end = _offsets(column)[[0, -1]]
    return memoryview(column.buffers()[2] or b"")[start:end].tobytes()


def _offsets(column: pa.Array) -> npt.NDArray[np.int32]:
    """Return the offsets of a text or binary column, those of its slice only."""
    every = np.frombuffer(column.buffers()[1], np.int32)
    return every[column.offset : column.offset + len(column) + 1]


# Arrow's own casts make the text wherever they agree with the contract; what they spell differently (floats with an
# exponent, small decimals, far years) is mended cell by cell, since it is rare.
RENDERERS: tuple[tuple[Callable[[pa.DataType], bool], Renderer], ...] = (
    (pa.types.is_integer, _plain),
    (pa.types.is_boolean, _plain),
    (pa.types.is_null, _plain),
    (pa.types.is_floating, _floats),
    (pa.types.is_decimal128, _decimals),
    (pa.types.is_decimal32, _decimals),
    (pa.types.is_decimal64, _decimals),
    (pa.types.is_date, _dates),
    (pa.types.is_string, _quote),
    (pa.types.is_large_string, _quote),
    (pa.types.is_string_view, _quote),
    (pa.types.is_binary, hex_text),
    (pa.types.is_large_binary, hex_text),
)
