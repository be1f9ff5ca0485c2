"""Rows that break a contract's rules, counted page by page, as they will be written.

Belongs here: compiling rules against the columns of the parts, and counting. Not here: what a count means
(`rivet_assets/run/judge/quality.py`).

Each rule is one or two vectors of Arrow's over a column; SQL over several columns is DuckDB's, all of a contract in
one call. No value of a row leaves this file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rivet_resources.contracts.rows.row_errors import Places
from rivet_resources.contracts.rows.row_rules import RowRule, RowRules
from rivet_resources.contracts.transform import TransformError
from rivet_resources.shape.shape import BrokenRows
from rivet_resources.shape.transforms import sql
from rivet_resources.shape.transforms.cell_text import spell
from rivet_resources.shape.transforms.conditions import check_boolean
from rivet_resources.shape.transforms.convert import ACCEPTS, KINDS, convert, family
from rivet_resources.shape.transforms.fields import missing, plain, whole

ORDERED = frozenset({"bool", "integer", "float", "decimal", "text", "date", "time", "timestamp", "instant"})
DATED = frozenset({"date", "timestamp", "instant"})
MICROSECONDS_A_DAY = 86_400_000_000

Broken = Callable[[pa.ChunkedArray], int]  # of a column: how many of its cells break the rule


class RowRuleCount:
    """Counts what breaks the rules in the pages of one chunk."""

    def __init__(self, schema: pa.Schema, rules: RowRules) -> None:
        """Compile the rules.

        Raises:
            TransformError: a column is missing, a value is not of its type, or an SQL text is no boolean.
        """
        self.broken = {rule.check: 0 for rule in rules.rules}
        self.newest: dict[str, int] = {}
        self._of_columns = [(rule, compile_rule(rule, schema)) for rule in rules.rules if rule.kind != "rows"]
        self._newest = rules.newest
        expressions = [rule for rule in rules.rules if rule.kind == "rows"]
        for rule in expressions:
            _check_expression(rule, schema)
        self._expressions = expressions
        for name in rules.newest:
            _require(name, schema, DATED, "freshness wants a date or a timestamp")

    def add(self, table: pa.Table) -> None:
        """Count one page.

        Raises:
            RowRefused: an SQL text fails on some row.
        """
        if not table.num_rows:
            return
        for rule, count in self._of_columns:
            self.broken[rule.check] += count(table.column(rule.column))
        if self._expressions:
            texts = [rule.value for rule in self._expressions]
            for rule, truth in zip(
                self._expressions, sql.evaluate(texts, table, [pa.bool_()] * len(texts)), strict=True
            ):
                # NULL is not false: as in a CHECK of SQL, a row for which an expression is NULL passes.
                self.broken[rule.check] += truth.false_count
        for name in self._newest:
            newest = _microseconds(table.column(name))
            if newest is not None:
                self.newest[name] = max(newest, self.newest.get(name, newest))


WHY = {
    "required": "is NULL",
    "accepted_values": "is not one of the accepted values",
    "min": "is below the smallest allowed",
    "max": "is above the largest allowed",
    "matches": "does not match its regular expression",
}


class RowsAside:
    """Finds the rows of shaped pages that a contract sets aside; a page without one costs counts only."""

    def __init__(self, schema: pa.Schema, rules: Sequence[RowRule]) -> None:
        """Compile the rules.

        Raises:
            TransformError: as `RowRuleCount`.
        """
        self._rules = [(rule, compile_rule(rule, schema)) for rule in rules if rule.kind != "rows"]
        self._places = {rule.check: _compile_places(rule, schema) for rule, _ in self._rules}
        self._expressions = [rule for rule in rules if rule.kind == "rows"]
        for rule in self._expressions:
            _check_expression(rule, schema)

    def breaches(self, table: pa.Table) -> list[BrokenRows]:
        """Return the rows that break a rule, each with the first that it breaks.

        Raises:
            RowRefused: an SQL text fails on some row.
        """
        found: list[BrokenRows] = []
        left = np.ones(table.num_rows, np.bool_)
        for rule, bad in self._broken(table):
            # A row counts for the first rule that it breaks, or the numbers of dead letters would not add up to their
            # rows.
            bad &= left
            if bad.any():
                why = WHY.get(rule.kind, f"breaks {rule.check.removeprefix('rows__')}")
                found.append(BrokenRows(rule.check, rule.column, why, bad))
                left &= ~bad
        return found

    def _broken(self, table: pa.Table) -> Iterator[tuple[RowRule, Places]]:
        if not table.num_rows:
            return
        for rule, count in self._rules:
            column = table.column(rule.column)
            # Counted first, which is cheap: nearly every page breaks nothing, and no marks are made.
            if count(column):
                yield rule, _marks(self._places[rule.check](column))
        if self._expressions:
            texts = [rule.value for rule in self._expressions]
            truths = sql.evaluate(texts, table, [pa.bool_()] * len(texts))
            for rule, truth in zip(self._expressions, truths, strict=True):
                if truth.false_count:
                    yield rule, _marks(pc.invert(truth))


def _marks(bad: pa.Array) -> Places:
    """Return marks of rows as numpy has them; NULL is none."""
    marks: Places = pc.fill_null(bad, False).to_numpy(zero_copy_only=False).astype(np.bool_)
    return marks


def _compile_places(rule: RowRule, schema: pa.Schema) -> Callable[[pa.ChunkedArray], pa.Array]:
    """Return what marks the cells of its column that break a rule; NULL marks are none."""
    arrow = schema.field(rule.column).type
    arrow = arrow.value_type if pa.types.is_dictionary(arrow) else arrow
    if rule.kind == "required":
        return lambda column: whole(column).is_null()
    if rule.kind == "matches":
        return lambda column: pc.invert(pc.match_substring_regex(_texts(column), str(rule.value)))
    if rule.kind == "accepted_values":
        allowed = _operands(rule, arrow, rule.value)
        return lambda column: pc.and_(
            pc.invert(pc.is_in(_cells(column), value_set=allowed, skip_nulls=True)), whole(column).is_valid()
        )
    bound = _operands(rule, arrow, [rule.value])[0]
    compare = pc.less if rule.kind == "min" else pc.greater
    return lambda column: compare(_cells(column), bound)


def compile_rule(rule: RowRule, schema: pa.Schema) -> Broken:
    """Return what counts the cells of its column that break a rule.

    Raises:
        TransformError: the column is missing, or a value is not of its type.
    """
    if rule.column not in schema.names:
        raise missing(rule.column, schema.names)
    arrow = schema.field(rule.column).type
    arrow = arrow.value_type if pa.types.is_dictionary(arrow) else arrow
    if rule.kind == "required":
        return lambda column: int(column.null_count)
    if rule.kind == "matches":
        return _not_matching(str(rule.value))
    if rule.kind == "accepted_values":
        return _not_among(_operands(rule, arrow, rule.value))
    _require(rule.column, schema, ORDERED, f"{rule.kind} wants numbers, texts, days or times")
    bound = _operands(rule, arrow, [rule.value])[0]
    return _below(bound) if rule.kind == "min" else _above(bound)


def _check_expression(rule: RowRule, schema: pa.Schema) -> None:
    refused = None
    try:
        check_boolean(rule.value, schema, key=rule.check)
    except TransformError as error:
        refused = TransformError(f"contract, {rule.check}: {error}")
    if refused is not None:
        raise refused


def _require(name: str, schema: pa.Schema, families: frozenset[str], wanted: str) -> None:
    """Check that a column is there and of one of some families.

    Raises:
        TransformError
    """
    if name not in schema.names:
        raise missing(name, schema.names)
    if family(schema.field(name).type) not in families:
        raise TransformError(f"contract: column {name!r} is {schema.field(name).type}, and {wanted}.")


def _operands(rule: RowRule, arrow: pa.DataType, values: Sequence[object]) -> pa.Array:
    """Cast the configured values to the column's type.

    Raises:
        TransformError: one has no place in that type.
    """
    found = []
    for value in values:
        given = pa.chunked_array([pa.array([value if isinstance(value, bool | int) else str(value)])])
        # Cast once, to the column's own type: a cell is then compared as it is, and a value that has no place in the
        # type is refused before a row is read.
        accepted = family(given.type) in ACCEPTS.get(family(arrow), ())
        cells, refused = convert(given, arrow) if accepted else (None, True)
        if refused is not None:
            why = f"values {KINDS[family(arrow)]}" if accepted else "it cannot be compared with that"
            raise TransformError(
                f"contract, {rule.check}: column {rule.column!r} is {arrow}, and {why}: {value!r}. "
                f"Write values of the column's own type."
            )
        found.append(cells.storage if isinstance(cells, pa.ExtensionArray) else cells)
    return pa.concat_arrays(found)


def _cells(column: pa.ChunkedArray) -> pa.Array:
    """Return a column's cells as Arrow's functions take them."""
    cells = plain(column)
    return cells.cast(cells.type.value_type) if pa.types.is_dictionary(cells.type) else cells


def _texts(column: pa.ChunkedArray) -> pa.Array:
    return whole(column) if pa.types.is_string(column.type) else spell(column)


def _not_among(allowed: pa.Array) -> Broken:
    def count(column: pa.ChunkedArray) -> int:
        # False for NULL as well, which breaks no rule of this kind: NULLs are taken off below.
        among = pc.is_in(_cells(column), value_set=allowed, skip_nulls=True)
        return int(len(among) - column.null_count - among.true_count)

    return count


def _not_matching(pattern: str) -> Broken:
    def count(column: pa.ChunkedArray) -> int:
        found = pc.match_substring_regex(_texts(column), pattern)
        return int(len(column) - column.null_count - (pc.sum(found).as_py() or 0))

    return count


def _below(bound: pa.Scalar) -> Broken:
    def count(column: pa.ChunkedArray) -> int:
        cells = _cells(column)
        least = pc.min(cells)
        # Nearly always: one pass, no vector.
        if not least.is_valid or pc.greater_equal(least, bound).as_py():
            return 0
        return int(pc.less(cells, bound).true_count)

    return count


def _above(bound: pa.Scalar) -> Broken:
    def count(column: pa.ChunkedArray) -> int:
        cells = _cells(column)
        most = pc.max(cells)
        if not most.is_valid or pc.less_equal(most, bound).as_py():
            return 0
        return int(pc.greater(cells, bound).true_count)

    return count


def _microseconds(column: pa.ChunkedArray) -> int | None:
    """Return the newest day or time of a page as microseconds since 1970, a naive one read as UTC; None: only NULLs."""
    newest = pc.max(column)
    if not newest.is_valid:
        return None
    if pa.types.is_date(newest.type):
        return int(newest.cast(pa.date32()).value) * MICROSECONDS_A_DAY
    # Not safe: digits beyond microseconds are cut off, which a safe cast refuses.
    return int(newest.cast(pa.timestamp("us", newest.type.tz), safe=False).value)
