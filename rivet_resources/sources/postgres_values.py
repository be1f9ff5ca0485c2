"""Cells of PostgreSQL: from what ADBC delivers to what `Column.arrow` says, with every value that does not fit found.

Belongs here: sentinels, casts, policies, the message of a value that does not fit. Not here: which type a column
has (types.py, postgres_catalog.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from rivet_resources.errors import SourceError, ValueDoesNotFit
from rivet_resources.sources.postgres_overrides import Cast, conversion, render
from rivet_resources.sources.postgres_sql import quote
from rivet_resources.types import JSON, Column, parse_word

# Binary COPY gives infinite times as numbers beyond anything PostgreSQL can store otherwise; adding the distance
# of the epochs wraps them round (`engine.md`, section 2, trap 4; checked on 15 and 18).
DATE_INFINITY, DATE_MINUS_INFINITY = -2147472692, -2147472691
STAMP_INFINITY, STAMP_MINUS_INFINITY = -9222425352054775809, -9222425352054775808
SMALLEST_DATE, SMALLEST_STAMP, DAY_MICROSECONDS = -2440589, -210866803200000000, 86_400_000_000

# Kind → words of the message, `{}` being the type that cannot hold it.
KINDS: Mapping[str, str] = {
    "nan": "NaN",
    "infinity": "Infinity",
    "minus_infinity": "-Infinity",
    "beyond_range": "times after 294247-01-10",
    "time_24": "24:00:00",
    "array_shape": "arrays that are multi-dimensional or do not start at 1",
    "digits": "values with more digits than its declared type",
    "out_of_range": "values outside its declared type",
    "not_bool": "numbers other than 0 and 1",
    "not_midnight": "times that are not midnight",
    "unparsable": "texts that are not of its declared type",
    "invalid_bytes": "bytes that are not UTF-8",
}

Special = dict[str, dict[str, int]]


@dataclass
class Cells:
    """Decodes the batches of one chunk; counts what policies replaced. Not shared between threads."""

    columns: tuple[Column, ...]
    chunk: int
    strict: frozenset[str] = frozenset()  # columns whose policy is `fail` whatever they say: the chunk's key
    schema: pa.Schema = field(init=False)

    def __post_init__(self) -> None:
        self.schema = pa.schema([column.field for column in self.columns])
        self._flags = {c.name: len(self.columns) + i for i, c in enumerate(flagged(self.columns))}

    def decode(self, batches: Sequence[pa.RecordBatch]) -> tuple[pa.Table, Special]:
        """Type one page's batches, whole.

        Raises:
            ValueDoesNotFit: a value has no place in its type and the policy is `fail`.
        """
        special: Special = {}
        typed = [
            pa.RecordBatch.from_arrays(
                [self._cell(batch, i, special) for i in range(len(self.columns))], schema=self.schema
            )
            for batch in batches
        ]
        return pa.Table.from_batches(typed, self.schema), special

    def _cell(self, batch: pa.RecordBatch, index: int, special: Special) -> pa.Array:
        column = self.columns[index]
        array = batch.column(index)
        counts: dict[str, int] = {}
        try:
            if column.name in self._flags:
                array = _masked(array, {"array_shape": batch.column(self._flags[column.name])}, counts, _nulls(column))
            read = READ[column.fact("read") or "plain"]
            array = read(array, column, counts)
        except _Unfit as unfit:
            counts = unfit.counts
        if counts and not (_nulls(column) and column.name not in self.strict):
            raise does_not_fit(column, counts, chunk=self.chunk)
        for kind, count in counts.items():
            mine = special.setdefault(column.name, {})
            mine[kind] = mine.get(kind, 0) + count
        if array.type != column.arrow:
            raise SourceError(
                f"{_where(column)} was described as {column.arrow} but arrives as {array.type}. "
                f"The table was altered while it was read; run again."
            )
        if not column.nullable and array.null_count:
            raise ValueDoesNotFit(
                f"{_where(column)} is NOT NULL in the catalog and holds NULL. Check the table, then run again."
            )
        return array


def flagged(columns: Sequence[Column]) -> list[Column]:
    """Give the columns that need a hidden flag behind the SELECT list, in its order."""
    return [column for column in columns if column.fact("flag")]


def items(columns: Sequence[Column]) -> list[str]:
    """Give the SELECT list: every column, then the hidden flags.

    Expressions get an alias of ours: ORDER BY takes an output name before a column, and would sort `"n"::text`.
    """
    asked = [column.select for column in columns] + [column.fact("flag") for column in flagged(columns)]
    plain = {quote(column.name) for column in columns}
    return [item if item in plain else f"{item} AS _rivet_{i}" for i, item in enumerate(asked)]


# --- finding what does not fit -------------------------------------------------------------------


class _Unfit(Exception):
    """A cell does not fit and may not be replaced; carries the counts so far."""

    def __init__(self, counts: dict[str, int]) -> None:
        super().__init__()
        self.counts = counts


def _nulls(column: Column) -> bool:
    return column.policy == "null"


def _masked(array: pa.Array, masks: Mapping[str, pa.Array], counts: dict[str, int], replace: bool) -> pa.Array:
    """Replace the cells of all masks by NULL and count them, or raise."""
    found = {kind: pc.sum(mask).as_py() or 0 for kind, mask in masks.items()}
    for kind, count in found.items():
        if count:
            counts[kind] = counts.get(kind, 0) + count
    if not any(found.values()):
        return array
    if not replace:
        raise _Unfit(counts)
    for mask in masks.values():
        array = pc.if_else(pc.fill_null(mask, False), pa.scalar(None, array.type), array)
    return array


def _fitted(array: pa.Array, cast: Cast, kind: str, counts: dict[str, int], replace: bool) -> pa.Array:
    """Cast; where single cells refuse, replace them by NULL and count them, or raise."""
    try:
        return cast(array)
    except (pa.ArrowInvalid, ValueError, OverflowError):
        bad = _refusing(array, cast)
        mask = pa.array([i in bad for i in range(len(array))])
        return cast(_masked(array, {kind: mask}, counts, replace))


def _refusing(array: pa.Array, cast: Cast, offset: int = 0) -> set[int]:
    """Find the positions of cells that `cast` refuses, halving where it does."""
    try:
        cast(array)
        return set()
    except (pa.ArrowInvalid, ValueError, OverflowError):
        if len(array) == 1:
            return {offset}
        half = len(array) // 2
        return _refusing(array[:half], cast, offset) | _refusing(array[half:], cast, offset + half)


def does_not_fit(column: Column, counts: Mapping[str, int], *, chunk: int) -> ValueDoesNotFit:
    """Write the message of `types.md`, rule 3; it holds no cell."""
    held = " and ".join(KINDS[kind] for kind in counts)
    rows = sum(counts.values())
    short = column.name
    text = "" if "invalid_bytes" in counts else ', `"text"` (column becomes text)'
    return ValueDoesNotFit(
        f"{_where(column)} is {column.native} and holds {held}, which {_word(column)} cannot store. "
        f'Choose: `columns: {{{short}: {{on_special_value: "null"}}}}` (counted){text}, or clean the source. '
        f"{rows} {'row' if rows == 1 else 'rows'} in chunk {chunk}."
    )


WORDS = {"time": "time", "decimal_text": "decimal"}  # where portable typing made the column text


def _where(column: Column) -> str:
    relation = column.fact("relation")
    return f"`{relation}.{column.name}`" if relation else f"`{column.name}`"


def _word(column: Column) -> str:
    """Name the type that refuses, as users write it."""
    if column.fact("target"):
        return column.fact("target")
    arrow = column.arrow
    if pa.types.is_list(arrow):
        return "list"
    if column.fact("read") in WORDS:
        return WORDS[column.fact("read")]
    for is_it, word in (
        (pa.types.is_decimal, "decimal"),
        (pa.types.is_date, "date"),
        (pa.types.is_timestamp, "timestamp"),
    ):
        if is_it(arrow):
            return word
    return column.fact("base") or str(arrow)


# --- one reader per kind of column ---------------------------------------------------------------

Read = Callable[[pa.Array, Column, dict[str, int]], pa.Array]


def _storage(array: pa.Array) -> pa.Array:
    return array.storage if isinstance(array, pa.ExtensionArray) else array


def _plain(array: pa.Array, column: Column, counts: dict[str, int]) -> pa.Array:
    return array


def _checked_text(array: pa.Array, column: Column, counts: dict[str, int]) -> pa.Array:
    """Validate UTF-8, where the server's encoding does not promise it."""

    def validated(part: pa.Array) -> pa.Array:
        part.validate(full=True)
        return part

    return _fitted(_storage(array), validated, "invalid_bytes", counts, _nulls(column)).cast(column.arrow)


def _json(array: pa.Array, column: Column, counts: dict[str, int]) -> pa.Array:
    return array if array.type == column.arrow else pa.ExtensionArray.from_storage(JSON, _storage(array))


NUMERIC_KINDS = {"nan": "nan", "infinity": "inf", "minus_infinity": "-inf"}
TEXT_KINDS = {"nan": "NaN", "infinity": "Infinity", "minus_infinity": "-Infinity"}


def _numeric(array: pa.Array, column: Column, counts: dict[str, int]) -> pa.Array:
    return _decimals(_storage(array), column.arrow, counts, _nulls(column))


def _decimals(array: pa.Array, arrow: pa.DataType, counts: dict[str, int], replace: bool) -> pa.Array:
    try:
        return array.cast(arrow)
    except pa.ArrowInvalid:
        masks = {kind: pc.equal(array, spelled) for kind, spelled in NUMERIC_KINDS.items()}
        array = _masked(array, masks, counts, replace)
        return _fitted(array, lambda part: part.cast(arrow), "digits", counts, replace)


def _numeric_text(array: pa.Array, column: Column, counts: dict[str, int]) -> pa.Array:
    """Decimals too wide for portable files: digits as text, but what is no number is still special."""
    return _masked(array, {kind: pc.equal(array, word) for kind, word in TEXT_KINDS.items()}, counts, _nulls(column))


def _dates(array: pa.Array, counts: dict[str, int], replace: bool) -> pa.Array:
    days = array.view(pa.int32())
    smallest = pc.min(days).as_py()
    if smallest is None or smallest >= SMALLEST_DATE:
        return array
    masks = {"infinity": pc.equal(days, DATE_INFINITY), "minus_infinity": pc.equal(days, DATE_MINUS_INFINITY)}
    return _masked(array, masks, counts, replace)


def _stamps(array: pa.Array, counts: dict[str, int], replace: bool) -> pa.Array:
    micros = array.view(pa.int64())
    smallest = pc.min(micros).as_py()
    if smallest is None or smallest >= SMALLEST_STAMP:
        return array
    plus, minus = pc.equal(micros, STAMP_INFINITY), pc.equal(micros, STAMP_MINUS_INFINITY)
    beyond = pc.and_not(pc.less(micros, SMALLEST_STAMP), pc.or_(plus, minus))
    return _masked(array, {"infinity": plus, "minus_infinity": minus, "beyond_range": beyond}, counts, replace)


def _date(array: pa.Array, column: Column, counts: dict[str, int]) -> pa.Array:
    return _dates(array, counts, _nulls(column))


def _stamp(array: pa.Array, column: Column, counts: dict[str, int]) -> pa.Array:
    return _stamps(array, counts, _nulls(column))


def _time(array: pa.Array, column: Column, counts: dict[str, int]) -> pa.Array:
    micros = array.view(pa.int64())
    largest = pc.max(micros).as_py()
    if largest is not None and largest >= DAY_MICROSECONDS:
        array = _masked(array, {"time_24": pc.greater_equal(micros, DAY_MICROSECONDS)}, counts, _nulls(column))
    return array.cast(column.arrow)  # text in portable files: HH:MM:SS.ffffff


def _list(array: pa.Array, column: Column, counts: dict[str, int]) -> pa.Array:
    """Type the items of one-dimensional arrays; other shapes were masked before."""
    if array.type == column.arrow and column.fact("items") == "plain":
        return array
    if array.offset:
        array = array.take(pa.array(range(len(array))))
    item, values = column.arrow.value_type, _storage(array.values)
    if pa.types.is_decimal(item):
        values = _decimals(values, item, counts, _nulls(column))
    elif pa.types.is_date(item):
        values = _dates(values, counts, _nulls(column))
    elif pa.types.is_timestamp(item):
        values = _stamps(values, counts, _nulls(column))
    return pa.ListArray.from_arrays(array.offsets, values, type=column.arrow, mask=array.is_null())


# --- overrides -----------------------------------------------------------------------------------


def _override(array: pa.Array, column: Column, counts: dict[str, int]) -> pa.Array:
    """Convert as `columns:` asks, then render for portable files when the type needs it."""
    source, target = column.fact("family"), parse_word(column.fact("target")).arrow
    replace = _nulls(column)
    array = _storage(array)
    if source in ("date", "timestamp", "timestamptz"):
        array = (_dates if source == "date" else _stamps)(array, counts, replace)
    if source == "numeric" and not pa.types.is_floating(target):
        array = _masked(array, {kind: pc.equal(array, word) for kind, word in NUMERIC_KINDS.items()}, counts, replace)
    convert, kind = conversion(source, column.fact("target").split("(")[0], target)
    if convert is not None:
        array = _fitted(array, convert, kind, counts, replace)
    if isinstance(target, pa.BaseExtensionType):
        array = pa.ExtensionArray.from_storage(target, _storage(array))
    return array if array.type == column.arrow else render(array)


READ: Mapping[str, Read] = {
    "plain": _plain,
    "text": _checked_text,
    "json": _json,
    "decimal": _numeric,
    "decimal_text": _numeric_text,
    "date": _date,
    "stamp": _stamp,
    "time": _time,
    "list": _list,
    "override": _override,
}
