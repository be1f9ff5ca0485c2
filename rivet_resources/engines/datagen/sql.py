"""SQL text for made-up rows: DuckDB's, since DuckDB evaluates on Arrow what a mode wants to know.

Belongs here: names, literals, which ranges of numbers a predicate means, predicates and aggregates over one page. Not
here: where pages come from (pages.py).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from rivet_resources.contracts.types import Column
from rivet_resources.engines.shared.literals import quoted_name
from rivet_resources.engines.shared.overrides import render
from rivet_resources.errors import SourceError

if TYPE_CHECKING:
    import duckdb

INTEGER = re.compile(r"[+-]?\d+")
NUMBER = re.compile(r"[+-]?\d+(?:\.\d*)?(?:[eE][+-]?\d+)?")


def quote(name: str) -> str:
    """Quote one identifier, inner quotes doubled.

    Raises:
        ConfigError: the name is empty or holds a NUL.
    """
    return quoted_name(name)


def quote_text(text: str) -> str:
    """Quote one text."""
    return "'" + text.replace("'", "''") + "'"


def literal(text: str, column: Column) -> str:
    """Render a canonical text as a typed literal; whole numbers stay bare, so that their ranges are recognised.

    Raises:
        SourceError: the text is not a value of the column's type; it is not shown.
    """
    arrow = column.arrow
    if pa.types.is_integer(arrow) and INTEGER.fullmatch(text):
        return str(int(text))
    if pa.types.is_decimal(arrow) and NUMBER.fullmatch(text):
        # DuckDB's decimals end at 38 digits.
        return f"CAST({quote_text(text)} AS DECIMAL({min(arrow.precision, 38)}, {min(arrow.scale, 38)}))"
    if pa.types.is_floating(arrow) and NUMBER.fullmatch(text):
        return f"CAST({quote_text(text)} AS DOUBLE)"
    if pa.types.is_boolean(arrow) and text in ("true", "false"):
        return text
    if pa.types.is_timestamp(arrow) and re.fullmatch(r"\d{4,6}-\d\d-\d\dT[\d:.]+Z?", text):
        return f"{'TIMESTAMPTZ' if arrow.tz else 'TIMESTAMP'} {quote_text(text)}"
    if pa.types.is_date(arrow) and re.fullmatch(r"\d{4,6}-\d\d-\d\d", text):
        return f"DATE {quote_text(text)}"
    if not _is_text(arrow) or "\0" in text:
        raise SourceError(
            f"A bound of column {column.name} is not a value of its type {column.native}. "
            f"Reset the cursor of the export, or choose another column."
        )
    return quote_text(text)


def _is_text(arrow: pa.DataType) -> bool:
    return pa.types.is_string(arrow) or isinstance(arrow, pa.BaseExtensionType)


# --- ranges of numbers ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Numbers:
    """Rows `low` up to, excluding, `high`; `high` None: for ever."""

    low: int = 0
    high: int | None = None

    def narrowed(self, low: int, high: int | None) -> Numbers:
        """Keep what both ranges hold; empty ranges end where they begin."""
        ends = [end for end in (self.high, high) if end is not None]
        low = max(self.low, low)
        return Numbers(low, max(low, min(ends)) if ends else None)


TERM = re.compile(r'"((?:[^"]|"")+)" (>=|>|<=|<|=) (-?\d+)')
UP_TO_OR_NULL = re.compile(r'\(("(?:[^"]|"")+" <= -?\d+) OR "(?:[^"]|"")+" IS NULL\)')


def numbers_of(where: str, names: Sequence[str]) -> Numbers | None:
    """Read a predicate over columns that equal the row's number, as modes write it; None when it says more than that.

    `names` are never NULL, so `OR … IS NULL`, of an incremental's first run, adds nothing.
    """
    found = Numbers()
    if not where:
        return found
    # As modes write a window that holds nothing.
    if where == "1 = 0":
        return Numbers(0, 0)
    whole = UP_TO_OR_NULL.fullmatch(where)
    for piece in (whole[1] if whole else where).split(" AND "):
        term = TERM.fullmatch(piece.removeprefix("(").removesuffix(")"))
        if term is None or term[1].replace('""', '"') not in names:
            return None
        # Half-open, as ranges of numbers are here: up to and including 5 ends before 6.
        value = int(term[3])
        low = {">=": value, ">": value + 1, "=": value}.get(term[2], 0)
        high = {"<": value, "<=": value + 1, "=": value + 1}.get(term[2])
        found = found.narrowed(low, high)
    return found


# --- asking a page -------------------------------------------------------------------------------


def connect() -> duckdb.DuckDBPyConnection:
    """Open a DuckDB that only computes: one thread, UTC, no extension from anywhere."""
    import duckdb  # start

    settings: dict[str, Any] = {
        # Predicates come from a file of the user's: they must neither fetch code nor read other files.
        "threads": 1, "autoinstall_known_extensions": "false", "autoload_known_extensions": "false",
        "enable_external_access": "false",
    }  # fmt: skip
    connection = duckdb.connect(":memory:", config=settings)
    connection.execute("SET TimeZone = 'UTC'")
    return connection


def ask(connection: duckdb.DuckDBPyConnection, page: pa.Table, statement: str) -> pa.Table:
    """Run one SELECT over a page, which it calls `page`.

    Raises:
        SourceError: DuckDB refuses it; no cell is shown.
    """
    import duckdb  # start

    # For one question: under its name the page would otherwise be held in memory until the next one.
    connection.register("page", pa.table([_as_text(column) for column in page.columns], names=page.column_names))
    try:
        return connection.sql(statement).to_arrow_table()
    except duckdb.Error as error:
        kind = type(error).__name__
        raise SourceError(
            f"DuckDB, which evaluates predicates on made-up rows, refused one ({kind}). "
            f"Check the columns that the export names and the types it gives them."
        ) from None
    finally:
        connection.unregister("page")


def _as_text(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Show extension types as the text they are written as: DuckDB's own types of these names compare otherwise."""
    if not isinstance(column.type, pa.BaseExtensionType):
        return column
    is_uuid = isinstance(column.type, pa.UuidType)
    return pa.chunked_array([render(c) if is_uuid else c.storage for c in column.chunks], pa.string())


def places_of(connection: duckdb.DuckDBPyConnection, page: pa.Table, where: str) -> pa.Array:
    """Return the places of the rows of a page that satisfy a predicate, in their order."""
    # By places and not by the rows themselves: equal rows would be taken for one another.
    place = pa.array(range(page.num_rows), pa.int64())
    numbered = page.append_column("_rivet_place", place)
    found = ask(connection, numbered, f"SELECT _rivet_place FROM page WHERE {where} ORDER BY _rivet_place")
    return found.column(0).combine_chunks()
