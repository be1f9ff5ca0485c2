"""Casts between types of columns that refuse to lose anything, a column at a time.

Belongs here: one cast per pair of types, and which cells refuse it. Not here: steps, messages about steps. Facts:
`types.md`, section 5; text that means true or false: `connectors.md`, section 4.
"""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID as PythonUuid

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rivet_resources.contracts.transform import TransformError
from rivet_resources.shape.transforms import sql
from rivet_resources.shape.transforms.cell_text import spell
from rivet_resources.shape.transforms.fields import is_text, plain, storage

Cast = Callable[[pa.Array], pa.Array]

TRUE, FALSE = ("true", "t", "1", "yes", "y", "on"), ("false", "f", "0", "no", "n", "off")
WHOLE, NUMBER = r"^[+-]?[0-9]+$", r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$"


def family(arrow: pa.DataType) -> str:
    """Name what kind of cells a type holds."""
    if isinstance(arrow, pa.UuidType | pa.JsonType):
        return "uuid" if isinstance(arrow, pa.UuidType) else "json"
    arrow = storage(arrow)
    tests = (
        ("text", is_text), ("bool", pa.types.is_boolean), ("integer", pa.types.is_integer),
        ("float", pa.types.is_floating), ("decimal", pa.types.is_decimal), ("date", pa.types.is_date),
        ("time", pa.types.is_time), ("binary", _is_binary), ("nested", pa.types.is_nested), ("null", pa.types.is_null),
    )  # fmt: skip
    if pa.types.is_timestamp(arrow):
        return "instant" if arrow.tz else "timestamp"
    return next((name for name, test in tests if test(arrow)), "other")


def _is_binary(arrow: pa.DataType) -> bool:
    return bool(pa.types.is_binary(arrow) or pa.types.is_large_binary(arrow) or pa.types.is_fixed_size_binary(arrow))


# Target family → families it can be made from.
ACCEPTS = {
    "text": frozenset({"bool", "integer", "float", "decimal", "date", "time", "timestamp", "instant", "text", "uuid",
                       "json", "nested", "binary", "null"}),
    "bool": frozenset({"bool", "integer", "float", "decimal", "text", "null"}),
    "integer": frozenset({"bool", "integer", "float", "decimal", "text", "null"}),
    "float": frozenset({"integer", "float", "decimal", "text", "null"}),
    "decimal": frozenset({"integer", "float", "decimal", "text", "null"}),
    "date": frozenset({"date", "timestamp", "text", "null"}),
    "timestamp": frozenset({"date", "timestamp", "text", "null"}),
    "instant": frozenset({"instant", "text", "null"}),
    "time": frozenset({"time", "text", "null"}),
    "binary": frozenset({"binary", "text", "null"}),
    "json": frozenset({"json", "text", "nested", "null"}),
    "uuid": frozenset({"uuid", "text", "binary", "null"}),
}  # fmt: skip

# What a cell that refuses is called, by target family.
KINDS = {
    "bool": "are neither true nor false", "integer": "are no whole number of that size",
    "float": "are no number of that size", "decimal": "would lose digits or are no number",
    "date": "are no date or not midnight", "timestamp": "are no time without zone, or out of range",
    "instant": "are no time with zone, or out of range", "time": "are no time of day", "json": "are no JSON",
    "uuid": "are no UUID", "text": "are not UTF-8", "binary": "have another length",
}  # fmt: skip


def check(source: pa.DataType, target: pa.DataType) -> None:
    """Refuse a pair of types that no cell could pass.

    Raises:
        TransformError
    """
    accepted = ACCEPTS.get(family(target), frozenset())
    if family(source) not in accepted:
        advice = (
            " Use a `timezone` step to give or take a zone."
            if {family(source), family(target)} == {"timestamp", "instant"}
            else ""
        )
        raise TransformError(
            f"{source} cannot become {target}; it can be made from {', '.join(sorted(accepted))}.{advice}"
        )


def is_lossy(source: pa.DataType, target: pa.DataType) -> bool:
    """Return whether the pair loses digits by nature: decimals as floats, wide floats as narrow ones."""
    if family(target) != "float":
        return False
    return family(source) == "decimal" or (family(source) == "float" and source.bit_width > target.bit_width)


def convert(
    column: pa.ChunkedArray, target: pa.DataType, *, truncate: bool = False
) -> tuple[pa.Array, npt.NDArray[np.bool_] | None]:
    """Cast a column; the mask marks cells that refused and are NULL in the result, None when there are none.

    `truncate`: fractions are cut toward zero where a whole number is asked for.
    """
    cast = _cast(column.type, target, truncate=truncate)
    array = spell(column) if family(target) == "text" and family(column.type) != "binary" else plain(column)
    cells, bad = with_refusals(cast, array)
    return _wrap_storage(cells, target), bad


def with_refusals(cast: Cast, array: pa.Array) -> tuple[pa.Array, npt.NDArray[np.bool_] | None]:
    """Cast all cells that can be; the mask marks those that refused and are NULL, None when there are none."""
    done, refused = _try_cast(cast, array)
    if done is not None:
        return done, None
    bad = np.zeros(len(array), bool)
    while refused is not None and (refused & ~bad).any():  # the cast names them itself; others may be behind these
        bad |= refused
        done, refused = _try_cast(cast, _without(array, bad))
        if done is not None:
            return done, bad
    rest = _without(array, bad)
    odd = _odd_lengths(rest)
    if odd is not None and _try_cast(cast, _without(rest, odd))[0] is not None:
        for place in np.flatnonzero(odd):
            bad[place] = _try_cast(cast, rest.slice(place, 1))[0] is None
    else:
        _mark(cast, rest, 0, bad)
    return cast(_without(array, bad)), bad


def _without(array: pa.Array, places: npt.NDArray[np.bool_]) -> pa.Array:
    """Return the array with NULL in these places."""
    return pc.if_else(pa.array(~places), array, pa.scalar(None, array.type)) if places.any() else array


def _odd_lengths(array: pa.Array) -> npt.NDArray[np.bool_] | None:
    """Mark the texts that are longer or shorter than most: among times they are the first to suspect.

    A guess, which spares the search; None where there is no text, or too many would be suspected.
    """
    if not is_text(array.type) or array.null_count == len(array):
        return None
    lengths = pc.binary_length(array)
    odd = pc.fill_null(pc.not_equal(lengths, pc.mode(lengths)[0]["mode"]), False).to_numpy(zero_copy_only=False)
    return odd if 0 < odd.sum() < len(odd) / 8 else None


def _wrap_storage(array: pa.Array, target: pa.DataType) -> pa.Array:
    """Dress storage in its extension type."""
    if isinstance(target, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(target, array.cast(target.storage_type))
    return array if array.type == target else array.cast(target)


class _Refusing(ValueError):
    """Cells do not hold what a cast requires; carries which."""

    def __init__(self, cells: npt.NDArray[np.bool_]) -> None:
        super().__init__()
        self.cells = cells


def _try_cast(cast: Cast, array: pa.Array) -> tuple[pa.Array | None, npt.NDArray[np.bool_] | None]:
    """Cast, or None if any cell refuses, then with a mask of some that do, where the cast knows; the driver's text,
    which may show the cell, goes no further."""
    try:
        return cast(array), None
    except _Refusing as refusing:
        return None, refusing.cells if len(refusing.cells) == len(array) else None
    except (pa.ArrowInvalid, ValueError):
        return None, None


def _mark(cast: Cast, array: pa.Array, start: int, bad: npt.NDArray[np.bool_]) -> None:
    """Find the cells that refuse by halving: few refuse, so few halves are tried."""
    if len(array) == 0 or _try_cast(cast, array)[0] is not None:
        return
    if len(array) == 1:
        bad[start] = True
        return
    half = len(array) // 2
    _mark(cast, array.slice(0, half), start, bad)
    _mark(cast, array.slice(half), start + half, bad)


def _cast(source: pa.DataType, target: pa.DataType, *, truncate: bool) -> Cast:
    """Choose the cast of a pair that `check` let pass; it raises ArrowInvalid or ValueError where a cell refuses."""
    into, of, held = family(target), family(source), storage(target)
    if of == "null" or (source == target):
        return lambda array: array.cast(held)
    if into == "bool":
        return _text_to_bool if of == "text" else lambda array: pc.not_equal(array, pa.scalar(0).cast(array.type))
    if into == "integer":
        return lambda array: _to_integer(array, held, truncate=truncate)
    if into == "float":
        return lambda array: _to_float(array, held)
    if into == "decimal":
        return lambda array: _to_decimal(array, held, truncate=truncate)
    if into == "date":
        return _to_date
    if into == "json":
        return lambda array: _to_json(array) if is_text(array.type) else spell(pa.chunked_array([array]))
    if into == "uuid":
        return lambda array: _to_uuid(array)
    return lambda array: array.cast(held)


def _require(truth: pa.Array | pa.ChunkedArray) -> None:
    """Refuse unless every present cell is true.

    Raises:
        _Refusing
    """
    if pc.all(truth, min_count=0).as_py() is False:
        raise _Refusing(pc.fill_null(pc.invert(truth), False).to_numpy(zero_copy_only=False))


def _text_to_bool(array: pa.Array) -> pa.Array:
    words = pc.utf8_lower(array)
    true = pc.is_in(words, pa.array(TRUE))
    _require(pc.or_(pc.or_(true, pc.is_in(words, pa.array(FALSE))), pc.is_null(words)))
    return pc.if_else(pc.is_valid(array), true, pa.scalar(None, pa.bool_()))


def _to_integer(array: pa.Array, target: pa.DataType, *, truncate: bool) -> pa.Array:
    if is_text(array.type):
        if truncate:
            return _to_decimal(array, pa.decimal128(38, 0), truncate=True).cast(target)
        _require(pc.match_substring_regex(array, WHOLE))  # Arrow alone would read 0x10 too
        return pc.utf8_ltrim(array, "+").cast(target)
    if pa.types.is_floating(array.type) and truncate:
        array = pc.trunc(array)
    if pa.types.is_decimal(array.type):
        return _to_decimal(array, pa.decimal256(76, 0), truncate=truncate).cast(target)
    return array.cast(target)


def _to_float(array: pa.Array, target: pa.DataType) -> pa.Array:
    if is_text(array.type):
        _require(pc.match_substring_regex(array, NUMBER + r"|^[+-]?(inf|Infinity)$|^(nan|NaN)$"))
        array = pc.utf8_ltrim(array, "+").cast(pa.float64())
    if pa.types.is_floating(array.type):
        cells = array.cast(target)
        # Arrow makes infinity of a number that is too large for `float32`, and says nothing.
        _require(pc.or_(pc.invert(pc.is_inf(cells)), pc.is_inf(array)))
        return cells
    return array.cast(target)


def _to_decimal(array: pa.Array, target: pa.DataType, *, truncate: bool) -> pa.Array:
    """Go by text, which holds all digits: Arrow's own casts round floats, and ask integers for all their width."""
    if pa.types.is_decimal(array.type) and not truncate:
        return array.cast(target)
    text = array if is_text(array.type) else spell(pa.chunked_array([array]))
    _require(pc.match_substring_regex(text, NUMBER))
    if truncate:
        # Arrow's cast refuses digits behind the scale, so they are cut in a wider type first.
        places = pa.decimal256(76, 38) if target.scale == 0 else pa.decimal256(76, min(38, target.scale + 30))
        wide = text.cast(places)
        text = spell(pa.chunked_array([pc.round(wide, target.scale, "towards_zero")]))
        text = pc.replace_substring_regex(text, rf"(\.[0-9]{{{target.scale}}})[0-9]*$", r"\1" if target.scale else "")
    return text.cast(target)


def _to_date(array: pa.Array) -> pa.Array:
    dates = array.cast(pa.date32())
    if pa.types.is_timestamp(array.type):  # Arrow alone would cut the time off
        _require(pc.equal(dates.cast(array.type), array))
    return dates


def _to_json(array: pa.Array) -> pa.Array:
    [valid] = sql.evaluate(["json_valid(cell)"], pa.table({"cell": array}), [pa.bool_()])
    _require(valid)
    return array


def _to_uuid(array: pa.Array) -> pa.Array:
    cells = array.to_pylist()
    if is_text(array.type):
        return pa.array([None if cell is None else PythonUuid(cell).bytes for cell in cells], pa.binary(16))
    return array.cast(pa.binary(16))
