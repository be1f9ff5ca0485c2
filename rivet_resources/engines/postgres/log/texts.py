"""From the texts of pgoutput to what ADBC delivers in a batch read, so that the batch's own readers go on from there.

Belongs here: one conversion per type, by vectors, with a slow way for the few texts that Arrow does not parse. Not
here: policies and what does not fit (postgres/values.py, cells.py). The texts are those of a session pinned as the
batch read's, whose text forms of rare types are therefore equal to these letter by letter.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rivet_resources.contracts.types import INSTANT, NAIVE, UUID, Column, arrow_named
from rivet_resources.engines.postgres.values import (
    DATE_INFINITY,
    DATE_MINUS_INFINITY,
    STAMP_INFINITY,
    STAMP_MINUS_INFINITY,
)

Convert = Callable[[pa.Array], pa.Array]
Ask = Callable[[str, Sequence[str | None]], list[str | None]]

HEX = np.full(256, 255, np.uint8)
for _digit in range(16):
    HEX[ord(f"{_digit:x}")] = HEX[ord(f"{_digit:X}")] = _digit
DAY_MICROS, WRAP, HALF = 86_400_000_000, 1 << 64, 1 << 63


def arrival(column: Column, ask: Ask) -> Convert:
    """Choose how a column's texts become what the driver would have delivered for its `select`.

    Args:
        ask: runs a column's `select` over texts on the server, for the one form only the server can compute.
    """
    read = column.fact("read")
    if read in ("text", "decimal_text") or (read in ("plain", "") and pa.types.is_string(column.arrow)):
        return _same
    if read == "list":
        return lambda texts: lists(texts, column)
    if read == "override" and column.fact("family") == "timestamptz" and column.fact("base") == "timestamp":
        return lambda texts: _to_instants(texts, column, ask)
    if column.fact("base") == "money":
        return _money(column)
    return DRIVER.get(column.fact("base"), _same)


def shapes(texts: pa.Array) -> pa.Array:
    """Return which arrays are no plain lists: several dimensions, or a lower bound other than 1."""
    return pc.fill_null(pc.or_(pc.starts_with(texts, "{{"), pc.starts_with(texts, "[")), False)


# --- one conversion per type ---------------------------------------------------------------------


def _same(texts: pa.Array) -> pa.Array:
    return texts


def _cast(arrow: pa.DataType) -> Convert:
    return lambda texts: texts.cast(arrow)


def _bool(texts: pa.Array) -> pa.Array:
    return pc.equal(texts, "t")


NUMBERS = {"NaN": "nan", "Infinity": "inf", "-Infinity": "-inf"}  # as ADBC spells them


def _numeric(texts: pa.Array) -> pa.Array:
    special = pc.is_in(texts, value_set=pa.array(list(NUMBERS)))
    if not pc.any(special).as_py():
        return texts
    for spelled, driver in NUMBERS.items():
        texts = pc.if_else(pc.equal(texts, spelled), driver, texts)
    return texts


def _money(column: Column) -> Convert:
    """Read money by its digits: sign, separators and currency follow lc_monetary, the digits never do."""
    natural = arrow_named(column.fact("natural")) if column.fact("natural") else column.arrow
    scale = natural.scale

    def convert(texts: pa.Array) -> pa.Array:
        # The separators are left out, and the point is put back where lc_monetary of the server has it.
        digits = pc.utf8_lpad(pc.replace_substring_regex(texts, r"[^0-9]", ""), scale + 1, "0")
        whole = pc.utf8_slice_codeunits(digits, 0, -scale) if scale else digits
        sign = pc.if_else(pc.match_substring_regex(texts, r"[-(\x{2212}]"), "-", "")
        parts = [sign, whole] + ([".", pc.utf8_slice_codeunits(digits, -scale)] if scale else [])
        return pc.binary_join_element_wise(*parts, "")

    return convert


def _hex(skip: int) -> Convert:
    r"""Read hexadecimal texts that begin with `skip` other letters (`\x`)."""

    def convert(texts: pa.Array) -> pa.Array:
        # So that every byte that is left belongs to a value.
        filled = pc.fill_null(texts, "") if texts.null_count else texts
        places = np.frombuffer(filled.buffers()[1], np.int32)[filled.offset : filled.offset + len(filled) + 1]
        lengths = np.diff(places).astype(np.int64)
        ends = np.cumsum(lengths)
        letters = _letters(filled, places)
        if skip:
            keep = np.ones(len(letters), bool)
            firsts = (ends - lengths)[lengths > 0]
            for offset in range(skip):
                keep[firsts + offset] = False
            letters = letters[keep]
        digits = HEX[letters]
        data = (digits[0::2] << 4) | digits[1::2]
        offsets = np.zeros(len(texts) + 1, np.int32)
        np.cumsum(np.maximum(lengths - skip, 0) // 2, out=offsets[1:])
        valid = pc.is_valid(texts).buffers()[1] if texts.null_count else None
        return pa.Array.from_buffers(
            pa.binary(), len(texts), [valid, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(data))]
        )

    return convert


def _letters(texts: pa.Array, places: npt.NDArray[np.int32]) -> npt.NDArray[np.uint8]:
    """Return all bytes of a text column."""
    data = texts.buffers()[2]
    return np.frombuffer(data, np.uint8)[places[0] : places[-1]] if data is not None else np.zeros(0, np.uint8)


def _uuid(texts: pa.Array) -> pa.Array:
    plain = _hex(0)(pc.replace_substring(texts, "-", ""))
    return pa.ExtensionArray.from_storage(UUID, plain.cast(pa.binary(16)))


# --- times ---------------------------------------------------------------------------------------

USUAL_DATE = r"^\d{4}-\d\d-\d\d$"
USUAL_STAMP = r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d{1,6})?(\+00)?$"
USUAL_TIME = r"^([01]\d|2[0-3]):\d\d:\d\d(\.\d{1,6})?$"
STAMP = re.compile(r"(\d+)-(\d\d)-(\d\d)(?: (\d\d):(\d\d):(\d\d)(?:\.(\d{1,6}))?)?(?:\+00)?( BC)?")


def _day(year: int, month: int, date: int) -> int:
    """Count days since 1970 in the proleptic Gregorian calendar, for any year."""
    year, month = (year - 1, month + 12) if month < 3 else (year, month)
    # Years begin in March here, so that leap days come last; 719468 days lie between 0000-03-01 and 1970-01-01.
    return 365 * year + year // 4 - year // 100 + year // 400 + (153 * (month - 3) + 2) // 5 + date - 1 - 719468


def _parse(text: str) -> tuple[int, int]:
    """Read a date or time of any year PostgreSQL knows: days since 1970, and microseconds of the day."""
    found = STAMP.fullmatch(text)
    if found is None:
        raise ValueError("no ISO time")
    year, month, date, hour, minute, second = (int(part or 0) for part in found.groups()[:6])
    clock = ((hour * 60 + minute) * 60 + second) * 1_000_000 + int((found[7] or "").ljust(6, "0"))
    return _day(1 - year if found[8] else year, month, date), clock


def _micros(text: str) -> int:
    """Count microseconds since 1970; beyond 64 bits it wraps round, as in the driver."""
    days, clock = _parse(text)
    return (days * DAY_MICROS + clock + HALF) % WRAP - HALF


def _slow_date(text: str) -> int:
    known = {"infinity": DATE_INFINITY, "-infinity": DATE_MINUS_INFINITY}
    return known[text] if text in known else _parse(text)[0]


def _slow_stamp(text: str) -> int:
    # As in the driver, the distance of the epochs wraps plus infinity round.
    known = {"infinity": (STAMP_INFINITY + HALF) % WRAP - HALF, "-infinity": STAMP_MINUS_INFINITY}
    return known[text] if text in known else _micros(text)


def _slow_time(text: str) -> int:
    return _micros(f"1970-01-01 {text}")


def _parse_times(
    arrow: pa.DataType, storage: pa.DataType, usual: str, fast: Convert, slow: Callable[[str], int]
) -> Convert:
    """Parse texts with Arrow; those it refuses one by one, and only those."""

    def convert(texts: pa.Array) -> pa.Array:
        try:
            return fast(texts).view(arrow)
        except pa.ArrowInvalid:
            # The usual ones all at once; one odd text among them does not make the page slow.
            is_usual = pc.match_substring_regex(texts, usual)
            numbers = fast(pc.if_else(is_usual, texts, pa.scalar(None, pa.string()))).view(storage)
            odd = [slow(text) for text in texts.filter(pc.invert(is_usual)).to_pylist()]
            mask = pc.fill_null(pc.invert(is_usual), False)
            return pc.replace_with_mask(numbers, mask, pa.array(odd, storage)).view(arrow)

    return convert


def _fast_time(texts: pa.Array) -> pa.Array:
    """Arrow has no cast from text to a time of day, but one to a timestamp."""
    return pc.binary_join_element_wise("1970-01-01", texts, " ").cast(NAIVE).view(pa.int64())


_date = _parse_times(pa.date32(), pa.int32(), USUAL_DATE, _cast(pa.date32()), _slow_date)
_naive = _parse_times(NAIVE, pa.int64(), USUAL_STAMP, _cast(NAIVE), _slow_stamp)
_instant = _parse_times(INSTANT, pa.int64(), USUAL_STAMP, _cast(INSTANT), _slow_stamp)
_time = _parse_times(pa.time64("us"), pa.int64(), USUAL_TIME, _fast_time, _slow_time)


def _to_instants(texts: pa.Array, column: Column, ask: Ask) -> pa.Array:
    """Let the server turn naive times into instants: its rules for gaps and its time zones are what counts."""
    # One question per batch, with each time once.
    distinct = texts.dictionary_encode()
    if not isinstance(distinct, pa.DictionaryArray) or not len(distinct.dictionary):
        return texts.cast(INSTANT)
    found = ask(column.select, distinct.dictionary.to_pylist())
    return _instant(pa.array(found, pa.string()).take(distinct.indices))


# --- arrays --------------------------------------------------------------------------------------

ITEM = re.compile(r'"((?:[^"\\]|\\.)*)"|([^,{}"]+)', re.DOTALL)


def lists(texts: pa.Array, column: Column) -> pa.Array:
    """Take one-dimensional arrays apart; those of other shapes become NULL here and are flagged (`shapes`)."""
    texts = pc.if_else(shapes(texts), pa.scalar(None, pa.string()), texts)
    quoted = pc.or_(pc.match_substring(texts, '"'), pc.match_substring(texts, "\\"))
    # Only where a quote or a backslash stands anywhere: plain items are split by vectors.
    apart = _split_quoted(texts) if pc.any(quoted).as_py() else _split_plain(texts)
    item = column.arrow.value_type
    values = _item(item)(apart.values)
    arrow = column.arrow if values.type == item else pa.list_(pa.field("item", values.type))
    return pa.ListArray.from_arrays(apart.offsets, values, type=arrow, mask=texts.is_null())


def _split_plain(texts: pa.Array) -> pa.Array:
    """Split texts without quotes; such an item is never empty, so empty pieces are the empty arrays'."""
    pieces = pc.split_pattern(pc.fill_null(pc.utf8_slice_codeunits(texts, 1, -1), ""), ",")
    values = pieces.flatten()
    # `{}` is an array of one empty piece to `split`, and of no item to PostgreSQL.
    is_item = pc.not_equal(values, "").to_numpy(zero_copy_only=False)
    counts = np.concatenate([[0], np.cumsum(is_item)])
    offsets = counts[pieces.offsets.to_numpy() - pieces.offsets[0].as_py()].astype(np.int32)
    values = values.filter(pa.array(is_item))
    values = pc.if_else(pc.equal(values, "NULL"), pa.scalar(None, pa.string()), values)
    return pa.ListArray.from_arrays(pa.array(offsets), values)


def _split_quoted(texts: pa.Array) -> pa.Array:
    """Take arrays with quoted items apart, one by one."""

    def items(text: str) -> list[str | None]:
        found: list[str | None] = []
        for match in ITEM.finditer(text, 1, len(text) - 1):
            if match[2] is None:
                found.append(re.sub(r"\\(.)", r"\1", match[1], flags=re.DOTALL))
            else:
                found.append(None if match[2] == "NULL" else match[2])
        return found

    return pa.array([items(text) if text is not None else [] for text in texts.to_pylist()], pa.list_(pa.string()))


def _item(item: pa.DataType) -> Convert:
    """Choose the conversion of an array's items by the type they will have."""
    if pa.types.is_decimal(item):
        return _numeric
    if pa.types.is_boolean(item):
        return _bool
    if pa.types.is_date(item):
        return _date
    if pa.types.is_timestamp(item):
        return _instant if item.tz else _naive
    return _same if pa.types.is_string(item) else _cast(item)


DRIVER: Mapping[str, Convert] = {
    "bool": _bool,
    "int2": _cast(pa.int16()),
    "int4": _cast(pa.int32()),
    "int8": _cast(pa.int64()),
    "oid": _cast(pa.int64()),
    "float4": _cast(pa.float32()),
    "float8": _cast(pa.float64()),
    "numeric": _numeric,
    "bytea": _hex(2),
    "geometry": _hex(0),
    "geography": _hex(0),
    "date": _date,
    "timestamp": _naive,
    "timestamptz": _instant,
    "time": _time,
    "uuid": _uuid,
}
