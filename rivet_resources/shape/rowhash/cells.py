"""Spell the cells of a column as the row hash reads them (`contract.md`, 9, "Display text").

Belongs here: every Arrow type that has a display text, and the refusal of those that have none. Not here: dates and
times (`times.py`), the frame around a cell (`frames.py`). The CSV spells some types differently
(`shape/cell_text.py`): there a float never has an exponent and times always have six digits.
Arrow's own casts make the text wherever they agree; what they spell differently is mended cell by cell, being rare.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rivet_resources.shape.cell_text import mend
from rivet_resources.shape.rowhash import numbers as digits
from rivet_resources.shape.rowhash import times as clock
from rivet_resources.shape.rowhash.frames import (
    COUNTED,
    MARKED,
    WINDOW,
    Bytes,
    Framed,
    HashCells,
    Mask,
    Places,
    packed,
    padded,
    rows,
)

# Widest exponents spelled without `e`: 10^(kk-1) <= x < 10^kk for kk from low to high.
# Source: ryu 1.0, pretty/mod.rs, format32 and format64, with which arrow-rs displays floats (arrow-cast, display.rs).
POINT = {pa.float32(): (-5, 13), pa.float64(): (-4, 16)}
# Where Arrow C++ spells a float just so, but for the point of whole ones: from, and below.
# Source: measured with pyarrow 26; a test walks over all powers of ten.
PLAIN = {pa.float32(): (1e-6, 2.0**22), pa.float64(): (1e-5, 1e10)}
# The two digits of each byte as one number of two bytes, so a byte takes one look-up.
HEX_PAIRS = np.frombuffer(bytes(range(256)).hex().encode(), np.uint16)

Cut = Callable[[int, int], HashCells | Framed]  # cells from one row to before another
Spell = Callable[[pa.Array], Cut]


def column_cells(column: pa.Array) -> Cut:
    """Look into a column, for cells to be spelled a few thousand at a time; `can_spell` must have said yes to it."""
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    if pa.types.is_dictionary(column.type):
        # The same value must hash alike whether or not a reader chose a dictionary for it.
        column = column.dictionary_decode()
    spell = _spell(column.type)
    assert spell is not None, f"{column.type} was to be refused"
    return spell(column)


def _cells(column: pa.Array) -> HashCells | Framed:
    return column_cells(column)(0, len(column))


def can_spell(arrow: pa.DataType) -> bool:
    """Return whether a type has a display text; refused are unions, run-end and view lists, durations, intervals."""
    if isinstance(arrow, pa.BaseExtensionType):
        return can_spell(arrow.storage_type)
    if pa.types.is_dictionary(arrow):
        return can_spell(arrow.value_type)
    if pa.types.is_map(arrow):
        return can_spell(arrow.key_type) and can_spell(arrow.item_type)
    if pa.types.is_struct(arrow):
        return all(can_spell(field.type) for field in arrow)
    if _spell(arrow) is _lists:
        return can_spell(arrow.value_type)
    return _spell(arrow) is not None


def present(column: pa.Array) -> Mask | None:
    """Mark cells that are not NULL; None when none is."""
    if not column.null_count:
        return None
    mask: Mask = column.is_valid().to_numpy(zero_copy_only=False)
    return mask


def _spell(arrow: pa.DataType) -> Spell | None:
    return next((spell for test, spell in SPELLINGS if test(arrow)), None)


def _texts(column: pa.Array) -> Cut:
    """Take text as it is."""
    return _between(*_pieces(column), present(column))


def _hex(column: pa.Array) -> Cut:
    """Spell bytes as lower-case hex, a UUID without its hyphens."""
    values, offsets = _pieces(column)
    first, last = (int(offsets[0]), int(offsets[-1])) if len(offsets) else (0, 0)
    return _between(_to_hex(values[first:last]), (offsets - first) * 2, present(column))


def _fixed_hex(column: pa.Array) -> Cut:
    """Spell bytes of one width as lower-case hex."""
    width = column.type.byte_width
    values = np.frombuffer(column.buffers()[1], np.uint8)[column.offset * width :][: len(column) * width]
    return _between(_to_hex(values), np.arange(len(column) + 1) * (2 * width), present(column))


def _plain(column: pa.Array) -> Cut:
    """Spell as Arrow does."""
    return _texts(column.cast(pa.string()))


def _integers(column: pa.Array) -> Cut:
    """Spell integers plain."""
    mask = present(column)
    found = numbers(column, mask, _native(column.type))
    # `fit` looks at the unsigned numbers too, before the cast to signed ones could turn the largest over.
    return _digits(found.astype(np.int64), 0, mask) if digits.fit(found, 0) else _plain(column)


def _booleans(column: pa.Array) -> Cut:
    """Spell `true` and `false`."""
    chosen = column.cast(pa.int8()).fill_null(2).to_numpy().astype(np.int64)
    return lambda lo, hi: Framed(WORDS[chosen[lo:hi]], WORD_SIZES[chosen[lo:hi]])


def _nulls(column: pa.Array) -> Cut:
    """Have nothing but NULL."""
    return lambda lo, hi: Framed(WORDS[np.full(hi - lo, 2)], np.ones(hi - lo, np.int64))


def _floats(column: pa.Array) -> Cut:
    """Spell floats with the fewest digits that come back, always with a point or an exponent."""
    if column.type == pa.float16():
        # Every half is a float of 32 bits exactly; there is no display text of its own.
        column = column.cast(pa.float32())
    mask = present(column)
    found = numbers(column, mask, np.dtype(column.type.to_pandas_dtype()))

    def cut(lo: int, hi: int) -> HashCells:
        values, offsets = _float_texts(found[lo:hi], column.type)
        lengths = np.diff(offsets)
        cells = _cut(mask, lo, hi)
        return HashCells(values, offsets[:-1], lengths if cells is None else lengths * cells, cells)

    return cut


def _float_texts(found: npt.NDArray[Any], arrow: pa.DataType) -> tuple[Bytes, Places]:
    """Spell floats by Arrow, which leaves out the point of whole ones: they get a half, whose digit is then made 0."""
    least, end = PLAIN[arrow]
    whole = np.rint(found) == found
    whole &= np.abs(found) < end
    # `copysign` and not a comparison with zero: -0.0 has to keep its sign.
    shown = np.where(whole, found + np.copysign(found.dtype.type(0.5), found), found)
    text = pa.array(shown).cast(pa.string())
    size = np.abs(shown)
    # Comparisons with NaN are false, so it counts as odd here and below.
    if not (size.min(initial=least) >= least and size.max(initial=least) < end):
        low, high = POINT[arrow]
        odd = ~((size >= least) & (size < end))
        text = mend(text, pa.array(odd), lambda cell: _float(cell, low, high))
    values, offsets = _pieces(text)
    values = padded(values)  # to write into
    values[offsets[1:][whole] - 1] = ord("0")
    return values, offsets


def _float(cell: str, low: int, high: int) -> str:
    """Spell one float anew from Arrow's text, which has the right digits."""
    if cell in ("nan", "inf", "-inf"):
        return "NaN" if cell == "nan" else cell
    sign, found, exponent = Decimal(cell).normalize().as_tuple()
    figures, minus = "".join(map(str, found)), "-" if sign else ""
    point = len(figures) + int(exponent)
    if not low <= point <= high:
        return f"{minus}{figures[0]}{'.' if figures[1:] else ''}{figures[1:]}e{point - 1}"
    if point <= 0:
        return f"{minus}0.{'0' * -point}{figures}"
    figures = figures.ljust(point, "0")
    return f"{minus}{figures[:point]}.{figures[point:] or '0'}"


def _decimals(column: pa.Array) -> Cut:
    """Spell decimals with all digits of their scale."""
    # 18 digits fit into the lower eight bytes, so the upper ones only repeat the sign.
    if pa.types.is_decimal128(column.type) and column.type.precision <= 18 and column.type.scale >= 0:
        mask = present(column)
        # Sixteen bytes, of which the upper ones are the sign.
        low = numbers(column, None, np.dtype("<i8,<i8"))["f0"]
        low = low.copy() if mask is None else low * mask
        if digits.fit(low, column.type.scale):
            return _digits(low, column.type.scale, mask)
    text = column.cast(pa.string())
    # Arrow takes an exponent where more than six zeros lead, and for a negative scale.
    if b"E" in memoryview(text.buffers()[2] or b"").tobytes():
        text = mend(text, pc.match_substring(text, "E"), lambda cell: format(Decimal(cell), "f"))
    return _texts(text)


def _dates(column: pa.Array) -> Cut:
    """Spell dates as ISO 8601."""
    mask = present(column)
    found = numbers(column.cast(pa.date32()), mask, np.dtype("<i4")).astype(np.int64)
    return lambda lo, hi: clock.dates(found[lo:hi], _cut(mask, lo, hi))


def _times(column: pa.Array) -> Cut:
    """Spell `HH:MM:SS`, with as many groups of three digits as say something."""
    mask, unit = present(column), clock.UNITS[column.type.unit]
    found = numbers(column, mask, np.dtype(f"<i{column.type.bit_width // 8}")).astype(np.int64)
    return lambda lo, hi: clock.times(found[lo:hi], unit, _cut(mask, lo, hi))


def _timestamps(column: pa.Array) -> Cut:
    """Spell `YYYY-MM-DDTHH:MM:SS`, digits as times have them, `Z` behind an instant."""
    mask, unit, zone = present(column), clock.UNITS[column.type.unit], "Z" if column.type.tz else ""
    found = numbers(column, mask, np.dtype("<i8"))
    return lambda lo, hi: clock.timestamps(found[lo:hi], unit, _cut(mask, lo, hi), zone=zone)


def _lists(column: pa.Array) -> Cut:
    """Frame the elements of each list behind one another; their count stands in the head."""

    def cut(lo: int, hi: int) -> HashCells:
        # `flatten` leaves out what may lie under NULL lists, as their lengths here do; `values` would not.
        lists = column.slice(lo, hi - lo)
        ends = np.zeros(hi - lo + 1, np.int64)
        np.cumsum(pc.list_value_length(lists).fill_null(0).to_numpy(), out=ends[1:])
        return _of_elements(_cells(lists.flatten()), ends, present(lists))

    return cut


def _maps(column: pa.Array) -> Cut:
    """Frame entries as structs of key and value; their count stands in the head."""
    # Those of all maps, whatever was sliced.
    mask, keys, items = present(column), column.keys, column.items
    ends = np.frombuffer(column.buffers()[1], np.int32)[column.offset :].astype(np.int64)

    def cut(lo: int, hi: int) -> HashCells:
        first, count = int(ends[lo]), int(ends[hi] - ends[lo])
        entries = _framed([keys.slice(first, count), items.slice(first, count)], count, None)
        return _of_elements(entries, ends[lo : hi + 1] - first, _cut(mask, lo, hi))

    return cut


def _structs(column: pa.Array) -> Cut:
    """Frame the fields behind one another; a struct's head has no number."""

    def cut(lo: int, hi: int) -> HashCells:
        # `flatten` hands the NULL of a struct down to its fields; `field` would show what lies under it.
        structs = column.slice(lo, hi - lo)
        return _framed(structs.flatten(), hi - lo, present(structs))

    return cut


def _framed(fields: list[pa.Array], count: int, mask: Mask | None) -> HashCells:
    """Make structs of fields."""
    found = rows([_cells(field) for field in fields], count)
    lengths = found.lengths if mask is None else found.lengths * mask
    return HashCells(found.values, found.starts, lengths, mask, head=MARKED)


def _of_elements(elements: HashCells | Framed, ends: Places, mask: Mask | None) -> HashCells:
    """Make lists, the n-th of the elements from `ends[n]` to before `ends[n + 1]`."""
    values, offsets = packed(rows([elements], int(ends[-1])))
    starts = offsets[ends]
    lengths = np.diff(starts) if mask is None else np.diff(starts) * mask
    return HashCells(values, starts[:-1], lengths, mask, head=COUNTED, counts=np.diff(ends))


def numbers(column: pa.Array, mask: Mask | None, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Return the numbers of a column as they lie in memory; zero, whatever lies there, for NULL."""
    found = np.frombuffer(column.buffers()[1], dtype)[column.offset : column.offset + len(column)]
    # What lies under a NULL is anything: garbage there could fall outside the tables that the digits are looked up in.
    return found if mask is None else np.where(mask, found, found.dtype.type(0))


def _native(arrow: pa.DataType) -> np.dtype[Any]:
    return np.dtype(f"<{'i' if pa.types.is_signed_integer(arrow) else 'u'}{arrow.bit_width // 8}")


def _pieces(column: pa.Array) -> tuple[Bytes, Places]:
    """Return the bytes of a text or binary column, and the offsets of its cells in them."""
    # Cells of a view lie in several buffers, or in the view itself.
    if pa.types.is_string_view(column.type) or pa.types.is_binary_view(column.type):
        column = column.cast(pa.large_string() if pa.types.is_string_view(column.type) else pa.large_binary())
    narrow = pa.types.is_string(column.type) or pa.types.is_binary(column.type)
    every = np.frombuffer(column.buffers()[1], np.dtype("<i4" if narrow else "<i8"))
    offsets = every[column.offset : column.offset + len(column) + 1].astype(np.int64)
    return np.frombuffer(column.buffers()[2] or b"", np.uint8), offsets


def _to_hex(values: Bytes) -> Bytes:
    return HEX_PAIRS[values].view(np.uint8)


def _between(values: Bytes, offsets: Places, mask: Mask | None) -> Cut:
    """Take cells that lie behind one another."""
    lengths = np.diff(offsets)
    if mask is not None:
        lengths *= mask

    def cut(lo: int, hi: int) -> HashCells:
        first, last = int(offsets[lo]), int(offsets[hi])
        # Copies read whole windows, so only the end of a column has to be copied for some bytes to spare.
        if len(values) - last >= WINDOW:
            return HashCells(values, offsets[lo:hi], lengths[lo:hi], _cut(mask, lo, hi))
        return HashCells(padded(values[first:last]), offsets[lo:hi] - first, lengths[lo:hi], _cut(mask, lo, hi))

    return cut


def _digits(found: Places, scale: int, mask: Mask | None) -> Cut:
    return lambda lo, hi: digits.spelled(found[lo:hi], scale, _cut(mask, lo, hi))


def _cut(mask: Mask | None, lo: int, hi: int) -> Mask | None:
    return None if mask is None else mask[lo:hi]


# Frames of `false`, `true` and NULL.
WORDS = np.frombuffer(b"\1\5\0\0\0false" + b"\1\4\0\0\0true\0" + bytes(10), "V10")
WORD_SIZES = np.array([10, 9, 1])
SPELLINGS: tuple[tuple[Callable[[pa.DataType], bool], Spell], ...] = (
    (pa.types.is_integer, _integers),
    (pa.types.is_boolean, _booleans),
    (pa.types.is_null, _nulls),
    (pa.types.is_floating, _floats),
    (pa.types.is_decimal, _decimals),
    (pa.types.is_date, _dates),
    (pa.types.is_time, _times),
    (pa.types.is_timestamp, _timestamps),
    (pa.types.is_string, _texts),
    (pa.types.is_large_string, _texts),
    (pa.types.is_string_view, _texts),
    (pa.types.is_binary, _hex),
    (pa.types.is_large_binary, _hex),
    (pa.types.is_binary_view, _hex),
    (pa.types.is_fixed_size_binary, _fixed_hex),
    (pa.types.is_list, _lists),
    (pa.types.is_large_list, _lists),
    (pa.types.is_fixed_size_list, _lists),
    (pa.types.is_map, _maps),
    (pa.types.is_struct, _structs),
)
