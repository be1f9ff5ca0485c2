"""Cells of a binary log: from the bytes of many cells at once to what a batch read gives for the same value.

Belongs here: one reader per kind of column, named as in `mysql/values.py`. Not here: where bytes lie
(rows.py), texts (texts.py), policies and messages (shared/cells.py).

The log holds numbers where the batch's answer holds digits, so values are read once as what they are, and what does
not fit is found and counted by the same words.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rivet_resources.contracts.types import JSON, Column
from rivet_resources.engines.mysql.binlog import events as ev
from rivet_resources.engines.mysql.binlog import texts
from rivet_resources.engines.mysql.binlog.row_layout import DIGIT_BYTES, FIXED, Integers, Truths, big, little
from rivet_resources.engines.mysql.binlog.times import SECOND, Moments, clock, days, instants, moments
from rivet_resources.engines.mysql.binlog.vector import Vector, values
from rivet_resources.engines.mysql.wire.cells import DAY_MICROSECONDS
from rivet_resources.engines.shared.cells import Read, Special, Unfit, does_not_fit, fitted, masked, nulls, overriding
from rivet_resources.errors import LogRefused, SourceError, ValueDoesNotFit


def decode(vector: Vector, column: Column, special: Special) -> pa.Array:
    """Type one column; counts of what a policy replaced go into `special`.

    Raises:
        ValueDoesNotFit: a value has no place in its type and the policy is `fail`.
    """
    counts: dict[str, int] = {}
    try:
        array = READ[column.fact("read") or "plain"](vector, column, counts)
    except Unfit as unfit:
        counts = unfit.counts
        array = None
    if counts and not nulls(column):
        told = str(does_not_fit(column, counts, chunk=0)).removesuffix(" in chunk 0.")
        raise ValueDoesNotFit(f"{told} of the binary log.")
    for kind, count in counts.items():
        mine = special.setdefault(column.name, {})
        mine[kind] = mine.get(kind, 0) + count
    if array is None or array.type != column.arrow:
        raise SourceError(f"Column {column.name} is {column.native} and should be {column.arrow}, but was read as "
                          f"{getattr(array, 'type', None)}. This is a fault of Rivet; report it.")  # fmt: skip
    return array


# --- numbers -------------------------------------------------------------------------------------

WIDE = 8


def number(vector: Vector) -> pa.Array:
    """Read a whole number, as int64, or uint64 where it may be larger."""
    field, at = vector.field, vector.at
    if field.type == ev.BIT:
        size = field.meta[1] + (field.meta[0] + 7) // 8
        return values(vector, big(vector.buffer, at, size), pa.uint64() if size == WIDE else pa.int64())
    if field.type == ev.YEAR:
        found = little(vector.buffer, at, 1)
        # A byte counts years from 1900 on; 0 is the year 0000.
        return values(vector, np.where(found == 0, 0, found + 1900), pa.int64())
    size = FIXED[field.type]
    found = little(vector.buffer, at, size)
    if field.unsigned:
        return values(vector, found, pa.uint64() if size == WIDE else pa.int64())
    if size < WIDE:
        top = 1 << (8 * size - 1)
        # Two's complement of `size` bytes, carried on to all eight.
        found = (found ^ top) - top
    return values(vector, found, pa.int64())


def _integer(vector: Vector, column: Column, counts: dict[str, int]) -> pa.Array:
    return fitted(number(vector), lambda part: part.cast(column.arrow), "out_of_range", counts, nulls(column))


def _bool(vector: Vector, column: Column, counts: dict[str, int]) -> pa.Array:
    found = number(vector)
    found = found.cast(pa.int64())
    strange = pc.or_(pc.less(found, 0), pc.greater(found, 1))
    return pc.equal(masked(found, {"not_bool": strange}, counts, nulls(column)), 1)


def floating(vector: Vector) -> pa.Array:
    """Read FLOAT or DOUBLE, each as itself."""
    if vector.field.type == ev.FLOAT:
        return values(vector, little(vector.buffer, vector.at, 4).astype(np.uint32).view(np.float32), pa.float32())
    return values(vector, little(vector.buffer, vector.at, 8).view(np.float64), pa.float64())


def _float(vector: Vector, column: Column, counts: dict[str, int]) -> pa.Array:
    return floating(vector).cast(column.arrow)


# So many decimal digits an int64 holds, whatever they are.
WORD_DIGITS = 18


def decimal(vector: Vector) -> pa.Array:
    """Read a DECIMAL: groups of nine digits, big-endian; a negative number has all bits inverted.

    Numbers of at most 18 digits fit one word; wider ones are put together in Python's integers.
    """
    precision, scale = vector.field.meta
    width = pa.decimal128(precision, scale) if precision <= 38 else pa.decimal256(precision, scale)
    groups, negative = _groups(vector)
    # What lies where a NULL's bytes would be is no number, and may be too large for one.
    if vector.rows is not None:
        groups = [(digits, np.where(vector.cells.null, 0, value)) for digits, value in groups]
    # Nine digits have room for more in four bytes; such bytes are no decimal, and a wrong number must not come out
    # of them.
    if any((value >= 10**digits).any() for digits, value in groups):
        raise LogRefused(
            f"Column {vector.field.name} has a cell in the binary log whose bytes are no decimal({precision},{scale}): "
            "the log is damaged, or is read wrongly. Nothing behind that place is taken as read; report it."
        )
    words = 2 if precision <= 38 else 4
    if precision <= WORD_DIGITS:
        total = np.zeros(len(vector), np.int64)
        for digits, value in groups:
            total = total * 10**digits + value
        total = np.where(negative, -total, total)
        # The higher words of a decimal128 or decimal256 repeat the sign.
        sign = total >> 63
        return values(vector, np.stack([total] + [sign] * (words - 1), axis=1), width)
    # object arithmetic of numpy is Python's own: exact
    whole = np.zeros(len(vector), object)
    for digits, value in groups:
        whole = whole * 10**digits + value
    whole = np.where(negative, -whole, whole)
    packed = b"".join(int(each).to_bytes(words * 8, "little", signed=True) for each in whole)
    return values(vector, np.frombuffer(packed, np.int64).reshape(len(vector), words), width)


def _groups(vector: Vector) -> tuple[list[tuple[int, Integers]], Truths]:
    """Return a DECIMAL's groups of digits, most significant first, as (digits, values), and which are negative."""
    precision, scale = vector.field.meta
    whole, at, buffer = precision - scale, vector.at, vector.buffer
    # The first bit is set in positive numbers, so that bytes sort as the numbers do.
    negative = (buffer[at] & 0x80) == 0
    sizes = [whole % 9] * (whole % 9 > 0) + [9] * (whole // 9) + [9] * (scale // 9) + [scale % 9] * (scale % 9 > 0)
    found = []
    for i, digits in enumerate(sizes):
        size = DIGIT_BYTES[digits]
        raw = big(buffer, at, size) ^ (1 << (8 * size - 1) if i == 0 else 0)
        found.append((digits, np.where(negative, ((1 << 8 * size) - 1) ^ raw, raw)))
        at = at + size
    return found, negative


def _decimal(vector: Vector, column: Column, counts: dict[str, int]) -> pa.Array:
    found = decimal(vector)
    if found.type == column.arrow:
        return found
    return fitted(found, lambda part: part.cast(column.arrow), "digits", counts, nulls(column))


# --- dates and times -----------------------------------------------------------------------------


def _date(vector: Vector, column: Column, counts: dict[str, int]) -> pa.Array:
    found = moments(vector)
    day = values(vector, days(found.year, found.month, found.day).astype(np.int32), pa.date32())
    return _real(day, found, vector, column, counts)


def _stamp(vector: Vector, column: Column, counts: dict[str, int]) -> pa.Array:
    """Read DATETIME as naive, TIMESTAMP as UTC: so it is in the log, and in a session in UTC."""
    if vector.field.type in (ev.TIMESTAMP, ev.TIMESTAMP2):
        micros, is_zero = instants(vector)
        array = values(vector, micros, pa.int64())
        if is_zero.any():
            array = masked(array, {"zero_date": _mask(is_zero, vector)}, counts, nulls(column))
        return array.view(column.arrow)
    if zone := column.fact("zone"):
        return texts.to_utc(_naive(vector, column, counts), zone, column, counts).view(column.arrow)
    return _naive(vector, column, counts).view(column.arrow)


def _naive(vector: Vector, column: Column, counts: dict[str, int]) -> pa.Array:
    """Read DATE or DATETIME as µs since 1970, whatever the zone."""
    found = moments(vector)
    micros = (days(found.year, found.month, found.day) * 86400 + found.second) * SECOND + found.micro
    return _real(values(vector, micros, pa.int64()), found, vector, column, counts)


def _real(array: pa.Array, found: Moments, vector: Vector, column: Column, counts: dict[str, int]) -> pa.Array:
    """Find dates that no calendar has."""
    partial, impossible = found.is_partial, found.is_impossible
    if not (partial.any() or impossible.any()):
        return array
    # Two kinds, counted apart: dates without a month or a day, and days that their month does not have.
    array = masked(array, {"zero_date": _mask(partial, vector)}, counts, nulls(column))
    return masked(array, {"unparsable": _mask(impossible, vector)}, counts, nulls(column))


def _mask(found: Truths, vector: Vector) -> pa.Array:
    return pa.array(found & ~vector.cells.null)


def _time(vector: Vector, column: Column, counts: dict[str, int]) -> pa.Array:
    """Times within a day; in portable files as text, HH:MM:SS.ffffff."""
    micros = clock(vector)
    outside = pc.or_(pc.less(micros, 0), pc.greater_equal(micros, DAY_MICROSECONDS))
    times = masked(micros, {"time_range": outside}, counts, nulls(column)).view(pa.time64("us"))
    return times.cast(column.arrow)


def _time_us(vector: Vector, column: Column, counts: dict[str, int]) -> pa.Array:
    return clock(vector)


# --- bytes ---------------------------------------------------------------------------------------


def raw(vector: Vector) -> pa.Array:
    """Return the bytes of a column, as stored: BINARY(n) padded again, MariaDB's COMPRESSED opened."""
    field = vector.field
    if field.type in (ev.BLOB_COMPRESSED, ev.VARCHAR_COMPRESSED):
        return texts.inflate_columns(texts.gather(vector.buffer, vector.cells))
    array = texts.gather(vector.buffer, vector.cells)
    if field.type == ev.STRING and not vector.charset:
        # The log leaves out the zero bytes at the end of BINARY(n), which a batch read has.
        return texts.pad(array, field.length)
    return array


def _binary(vector: Vector, column: Column, counts: dict[str, int]) -> pa.Array:
    return raw(vector).cast(column.arrow)


def _uuid(vector: Vector, column: Column, counts: dict[str, int]) -> pa.Array:
    """MariaDB's UUID; text where the file does not hold the type."""
    bits = raw(vector).cast(pa.binary(16))
    if pa.types.is_string(column.arrow):
        return texts.uuids(bits)
    return pa.ExtensionArray.from_storage(column.arrow, bits)


def _text(vector: Vector, column: Column, counts: dict[str, int]) -> pa.Array:
    found = text_of(vector, column)
    if pa.types.is_string(found.type):
        return found.cast(column.arrow)
    return fitted(found, lambda part: part.cast(pa.string()), "invalid_bytes", counts, nulls(column)).cast(column.arrow)


def _json(vector: Vector, column: Column, counts: dict[str, int]) -> pa.Array:
    found = text_of(vector, column)
    text = fitted(found, lambda part: part.cast(pa.string()), "invalid_bytes", counts, nulls(column))
    return text if column.arrow == text.type else pa.ExtensionArray.from_storage(JSON, text)


def text_of(vector: Vector, column: Column) -> pa.Array:
    """Return the server's own text of a column: strings, or bytes of its texts that are yet to be checked.

    Raises:
        LogRefused: its character set is unknown here.
    """
    field, base = vector.field, column.fact("base")
    kind = field.type
    if kind == ev.JSON:
        return texts.json_texts(texts.gather(vector.buffer, vector.cells))
    if kind in (ev.ENUM, ev.SET):
        return texts.spell_labels(vector.buffer, vector.cells, field, vector.charset)
    if base in ("uuid", "inet4", "inet6"):
        return texts.addresses(raw(vector), base)
    if kind == ev.VECTOR or kind == ev.GEOMETRY or (not vector.charset and kind in ev.CHARACTERS):
        return texts.hexadecimal(raw(vector))
    if kind in ev.CHARACTERS:
        return texts.decode_texts(raw(vector), vector.charset, column)
    if kind in (ev.FLOAT, ev.DOUBLE):
        return texts.float_texts(floating(vector))
    if kind == ev.DECIMAL:
        return texts.decimal_texts(decimal(vector), column)
    if kind in (ev.DATE, ev.DATETIME, ev.DATETIME2):
        found = moments(vector)
        parts = zip(found.year, found.month, found.day, found.second, found.micro, vector.cells.null, strict=True)
        return texts.date_texts(parts, field)
    if kind in (ev.TIMESTAMP, ev.TIMESTAMP2):
        return texts.instant_texts(values(vector, instants(vector)[0], pa.int64()), field)
    if kind in (ev.TIME, ev.TIME2):
        return texts.clock_texts(clock(vector), field)
    return texts.number_texts(number(vector), column)


BASE: Mapping[str, Read] = {
    "plain": _text,
    "integer": _integer,
    "bool": _bool,
    "bits": _integer,
    "float": _float,
    "decimal": _decimal,
    "decimal_text": _text,
    "date": _date,
    "stamp": _stamp,
    "time": _time,
    "time_us": _time_us,
    "text": _text,
    "json": _json,
    "binary": _binary,
    "uuid": _uuid,
}
READ: Mapping[str, Read] = {**BASE, "override": overriding(BASE)}
