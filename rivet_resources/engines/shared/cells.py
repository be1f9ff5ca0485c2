"""From what a driver delivers to what `Column.arrow` says, cell by cell, with every value that does not fit found.

Belongs here: decoding a page by each column's reader, policies, counts, the message of a value that does not fit.
Not here: the readers of one engine (`engines/*/values.py`), which type a column has (`engines/*/columns.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rivet_resources.contracts.rows.row_errors import Places, RefusedCells
from rivet_resources.contracts.types import Column, arrow_named, parse_word
from rivet_resources.engines.shared.overrides import Cast, conversion, render
from rivet_resources.errors import SourceError, ValueDoesNotFit

# Kind → words of the message.
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
    "invalid_bytes": "bytes that are not text in its character set",
    "lost_letters": "codes of its character set that Unicode has no letter for",
    "half_letters": "halves of letters, or signs U+FFFD that look like them",
    "zero_date": "zero or partial dates",
    "time_range": "times before 00:00:00 or after 23:59:59.999999",
    "zone_range": "times before 1970 or after 2038, which the server cannot take from one zone to another",
    "seventh_digit": "times with a seventh digit",
    "other_class": "values of another storage class",
    "mixed_types": "values of several types",
}

Special = dict[str, dict[str, int]]
Read = Callable[[pa.Array, Column, dict[str, int]], pa.Array]


@dataclass
class Cells:
    """Decodes the batches of one chunk; counts what policies replaced. Not shared between threads."""

    columns: tuple[Column, ...]
    chunk: int
    readers: Mapping[str, Read]  # by the column's fact `read`
    strict: frozenset[str] = frozenset()  # columns whose policy is `fail` whatever they say: the chunk's key
    schema: pa.Schema = field(init=False)
    refused: tuple[RefusedCells, ...] = field(init=False, default=())  # of the page decoded last

    def __post_init__(self) -> None:
        self.schema = pa.schema([column.field for column in self.columns])
        # Flags are hidden columns behind the SELECT list: by place here, since their names are not the user's.
        flags = {c.name: len(self.columns) + i for i, c in enumerate(flagged(self.columns))}
        self._recipes = [_Recipe(i, c, self._reader(c), flags.get(c.name)) for i, c in enumerate(self.columns)]

    def _reader(self, column: Column) -> Read:
        return self.readers[column.fact("read") or "plain"]

    def decode(self, batches: Sequence[pa.RecordBatch]) -> tuple[pa.Table, Special]:
        """Type one page's batches, whole: column i of a batch is column i here, then come the hidden flags.

        Raises:
            ValueDoesNotFit: a value has no place in its type and the policy is `fail`.
        """
        special: Special = {}
        # The first row of each batch within the page: refused cells are told by their row of the page, whatever
        # batches it came in.
        rows = np.cumsum([0, *(batch.num_rows for batch in batches)])
        refusals = _Refusals(int(rows[-1]))
        typed = [
            pa.RecordBatch.from_arrays(
                [self._cell(batch, recipe, special, refusals, int(start)) for recipe in self._recipes],
                schema=self.schema,
            )
            for batch, start in zip(batches, rows[:-1], strict=True)
        ]
        self.refused = refusals.result()
        return pa.Table.from_batches(typed, self.schema), special

    def _cell(
        self, batch: pa.RecordBatch, recipe: _Recipe, special: Special, refusals: _Refusals, start: int
    ) -> pa.Array:
        column = recipe.column
        array = batch.column(recipe.index)
        counts = Found()
        try:
            if recipe.flag is not None:
                # The flag first: cells that it marks hold what the reader could not decode.
                array = masked(array, {recipe.flag_kind: batch.column(recipe.flag)}, counts, nulls(column))
            # From here on masks may be of items of lists, which are not rows.
            counts.is_of_rows = not recipe.is_nested
            array = recipe.read(array, column, counts)
        except Unfit as unfit:
            # A reader that refuses ends at once; what it counted goes into the message, and into no cell.
            counts.update(unfit.counts)
        takes_rows = column.policy == "row" and counts.are_rows(batch.num_rows)
        # A key or cursor always fails. A NULL in one would compare with nothing, and its row would be lost between
        # two windows.
        if counts and (column.name in self.strict or not (column.policy == "null" or takes_rows)):
            raise does_not_fit(column, counts, chunk=self.chunk, is_key=column.name in self.strict)
        refused = refusals.add(column, counts, start) if counts and takes_rows else 0
        for kind, count in counts.items() if not refused else ():
            mine = special.setdefault(column.name, {})
            mine[kind] = mine.get(kind, 0) + count
        # After every reader the type is checked once more: a column altered between planning and this page arrives
        # as another type, and may still decode.
        if array.type != column.arrow:
            raise SourceError(
                f"{_where(column)} was described as {column.arrow} but arrives as {array.type}. "
                f"The table was altered while it was read; run again."
            )
        # Cells that leave with their rows may be NULL until then; any other one contradicts the catalog.
        if not column.nullable and array.null_count > refused:
            raise ValueDoesNotFit(
                f"{_where(column)} is NOT NULL in the catalog and holds NULL. Check the table, then run again."
            )
        return array


@dataclass(frozen=True)
class _Recipe:
    """What decoding a column takes, found once and not for every page: tables may have a thousand columns."""

    index: int
    column: Column
    read: Read
    flag: int | None  # the place of its hidden flag
    flag_kind: str = field(init=False)
    is_nested: bool = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "flag_kind", self.column.fact("flag_kind") or "array_shape")
        object.__setattr__(self, "is_nested", _is_nested(self.column))


def flagged(columns: Sequence[Column]) -> list[Column]:
    """Return the columns that need a hidden flag behind the SELECT list, in its order."""
    return [column for column in columns if column.fact("flag")]


# --- finding what does not fit -------------------------------------------------------------------


class Unfit(Exception):
    """A cell does not fit and may not be replaced; carries the counts so far."""

    def __init__(self, counts: dict[str, int]) -> None:
        super().__init__()
        self.counts = counts


class Found(dict[str, int]):
    """Counts of what does not fit, by kind; and where it is, as far as cells are rows."""

    def __init__(self) -> None:
        super().__init__()
        self.masks: list[tuple[str, pa.Array]] = []
        self.is_of_rows = True  # what is masked now are cells of rows, not some inside of a list

    def note(self, kind: str, mask: pa.Array) -> None:
        """Remember which rows they are."""
        if self.is_of_rows:
            self.masks.append((kind, mask))

    def are_rows(self, count: int) -> bool:
        """Return whether it is known of which rows everything is that was counted."""
        # A count without a mask came from inside a list, or from a reader that knows only numbers: then no row can
        # be taken away.
        return all(len(mask) == count for _, mask in self.masks) and sum(self.values()) == sum(
            pc.sum(mask).as_py() or 0 for _, mask in self.masks
        )


class _Refusals:
    """The refused cells of one page, by column and kind."""

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._found: dict[tuple[str, str], Places] = {}

    def add(self, column: Column, found: Found, start: int) -> int:
        """Note the cells of one batch, whose first row is the page's `start`; return of how many rows they are."""
        of_any = np.zeros(len(found.masks[0][1]), np.bool_)
        for kind, mask in found.masks:
            why = f"holds {KINDS[kind]}, which {_word(column)} cannot store"
            here = pc.fill_null(mask, False).to_numpy(zero_copy_only=False)
            places = self._found.setdefault((column.name, why), np.zeros(self._rows, np.bool_))
            places[start : start + len(here)] |= here
            of_any |= here
        return int(of_any.sum())

    def result(self) -> tuple[RefusedCells, ...]:
        """Return what was noted."""
        return tuple(RefusedCells(column, why, places) for (column, why), places in self._found.items())


def _is_nested(column: Column) -> bool:
    """Return whether its reader looks at cells inside of a cell."""
    return pa.types.is_nested(column.arrow) or column.fact("family") == "list" or "list" in column.fact("natural")


def nulls(column: Column) -> bool:
    """Return whether what does not fit becomes NULL: to stay so, or until its row is taken away."""
    return column.policy in ("null", "row")


def masked(array: pa.Array, masks: Mapping[str, pa.Array], counts: dict[str, int], replace: bool) -> pa.Array:
    """Replace the cells of all masks by NULL and count them by kind, or raise; NULLs of a mask mean no."""
    found = {kind: _trues(mask) for kind, mask in masks.items()}
    for kind, count in found.items():
        if count:
            counts[kind] = counts.get(kind, 0) + count
            if isinstance(counts, Found):
                counts.note(kind, masks[kind])
    if not any(found.values()):
        return array
    if not replace:
        # An exception and no empty result: readers call each other, and none of them goes on behind this.
        raise Unfit(counts)
    for mask in masks.values():
        array = pc.if_else(pc.fill_null(mask, False), pa.scalar(None, array.type), array)
    return array


def _trues(mask: pa.Array) -> int:
    """Count the cells of a mask that are true; NULL is not."""
    return int(mask.true_count) if isinstance(mask, pa.BooleanArray) else pc.sum(mask).as_py() or 0


def fitted(array: pa.Array, cast: Cast, kind: str, counts: dict[str, int], replace: bool) -> pa.Array:
    """Cast; where single cells refuse, replace them by NULL and count them, or raise."""
    # All at once first: Arrow casts a whole array in one call, and nearly always nothing is wrong with it.
    try:
        return cast(array)
    except (pa.ArrowInvalid, ValueError, OverflowError):
        bad = _refusing(array, cast)
        mask = pa.array([i in bad for i in range(len(array))])
        return cast(masked(array, {kind: mask}, counts, replace))


def _refusing(array: pa.Array, cast: Cast, offset: int = 0) -> set[int]:
    """Find the positions of cells that `cast` refuses, halving where it does."""
    try:
        cast(array)
        return set()
    except (pa.ArrowInvalid, ValueError, OverflowError):
        if len(array) == 1:
            return {offset}
        # Halving costs a few casts for each bad cell; asking each
        # cell of a page by itself costs one for every good one.
        half = len(array) // 2
        return _refusing(array[:half], cast, offset) | _refusing(array[half:], cast, offset + half)


def does_not_fit(column: Column, counts: Mapping[str, int], *, chunk: int, is_key: bool = False) -> ValueDoesNotFit:
    """Write the message of `types.md`, rule 3; it holds no cell."""
    held = " and ".join(KINDS[kind] for kind in counts)
    rows = sum(counts.values())
    short = column.name
    count = f"{rows} {'row' if rows == 1 else 'rows'} in chunk {chunk}."
    if is_key:
        # No policy does for it (`Cells.strict`), so none is offered.
        return ValueDoesNotFit(
            f"{_where(column)} is {column.native} and holds {held}, which {_word(column)} cannot store. Rows are read "
            f"along this key, and no `on_special_value` replaces a key: a row could be lost or come twice. Clean the "
            f"source, or export a `query` of the table, which is read by one statement. {count}"
        )
    # Bytes that are no text have no text form either.
    text = "" if {"invalid_bytes", "lost_letters"} & counts.keys() else ', `"text"` (column becomes text)'
    if "half_letters" in counts:
        text = ', `"text"` (U+FFFD as it came)'
    return ValueDoesNotFit(
        f"{_where(column)} is {column.native} and holds {held}, which {_word(column)} cannot store. "
        f'Choose: `columns: {{{short}: {{on_special_value: "null"}}}}` (counted){text}, or clean the source. '
        f"{count}"
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


# --- readers that every engine has ---------------------------------------------------------------


def storage(array: pa.Array) -> pa.Array:
    """Take the extension type off an array."""
    return array.storage if isinstance(array, pa.ExtensionArray) else array


def checked_text(array: pa.Array, column: Column, counts: dict[str, int]) -> pa.Array:
    """Read text whose bytes nobody has promised to be UTF-8; bytes that are not never pass."""

    def validated(part: pa.Array) -> pa.Array:
        # Arrow takes a driver's bytes for UTF-8 unseen; only a full validation looks at them.
        part.validate(full=True)
        return part

    return fitted(storage(array), validated, "invalid_bytes", counts, nulls(column)).cast(column.arrow)


def overriding(base: Mapping[str, Read]) -> Read:
    """Return the reader of columns that `columns:` types: first as the source has them, then as the user asks.

    The column's facts say how: `base_read` names the reader in `base` (none: the driver's array is typed already)
    and `natural` the Arrow type it gives, `family` and `target` the conversion. What does not fit the target is
    special, like any other value.
    """

    def read(array: pa.Array, column: Column, counts: dict[str, int]) -> pa.Array:
        target = parse_word(column.fact("target")).arrow
        if column.fact("base_read"):
            # The reader of the source's own type first, with that type: what it counts as special is special under
            # any override.
            natural = replace(column, arrow=arrow_named(column.fact("natural")))
            array = base[column.fact("base_read")](array, natural, counts)
        array = storage(array)
        convert, kind = conversion(column.fact("family"), column.fact("target").split("(")[0], target)
        if convert is not None:
            array = fitted(array, convert, kind, counts, nulls(column))
        if isinstance(target, pa.BaseExtensionType):
            array = pa.ExtensionArray.from_storage(target, storage(array))
        return array if array.type == column.arrow else render(array)

    return read
