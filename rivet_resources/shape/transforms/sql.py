"""SQL expressions on Arrow pages, evaluated by DuckDB: what may be written, which columns it uses, its type, its cells.

Belongs here: the one connection per process and thread, the checks, the translation of failures. Not here: steps.

An expression is parsed by DuckDB itself (`json_serialize_sql`), so what is checked is what runs (2026-11; rejected:
sqlglot's reading of the same text, which may differ). Allowed are the kinds of nodes in NODES and scalar functions that
DuckDB's catalog calls CONSISTENT: the same row gives the same cell in every run. Only the columns an expression uses
pass through DuckDB; all others stay the Arrow arrays they are.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import pyarrow as pa

from rivet_resources.contracts.transform import RowRefused, TransformError
from rivet_resources.shape.transforms.fields import missing, storage

LONGEST = 4096  # characters of one expression
MEMORY = "512MB"

# DuckDB's expression classes that read one row and nothing else. Source: `ExpressionClass` in DuckDB's
# src/include/duckdb/common/enums/expression_type.hpp; left out are SUBQUERY, WINDOW, STAR, PARAMETER, DEFAULT …
NODES = frozenset(
    {"BETWEEN", "CASE", "CAST", "COLLATE", "COLUMN_REF", "COMPARISON", "CONJUNCTION", "CONSTANT", "FUNCTION", "LAMBDA",
     "LAMBDA_REF", "OPERATOR", "TYPE"}
)  # fmt: skip
# Consistent for DuckDB, but not the same on every machine, or not a value at all.
REFUSED_FUNCTIONS = frozenset(
    {"age", "ago", "current_catalog", "current_localtime", "current_localtimestamp", "current_role", "current_user",
     "generate_subscripts", "get_block_size", "getenv", "hash", "pg_typeof", "regexp_split_to_table", "session_user",
     "unlist", "unnest", "user", "version"}
)  # fmt: skip

# From 2.0.1 on DuckDB calls CONSISTENT_WITHIN_QUERY what depends on the session's time zone, too. Ours is UTC, for good
# (SETTINGS), so these are consistent: whatever takes such a type, and two functions that make one of plain numbers.
ZONED_TYPES = frozenset({"TIME WITH TIME ZONE", "TIMESTAMP WITH TIME ZONE", "TIMESTAMPTZ_NS"})
ZONED_FUNCTIONS = frozenset({"make_timestamptz", "timezone"})

# What a failed evaluation is called; DuckDB's own text may hold a value and is never shown.
KINDS: Mapping[str, str] = {
    "ConversionException": "a value that cannot be converted",
    "OutOfRangeException": "a number out of range",
    "InvalidInputException": "an invalid input",
    "OutOfMemoryException": "more memory than a page may take",
}

_LOCAL = threading.local()
SETTINGS = (
    "SET TimeZone='UTC'",
    f"SET memory_limit='{MEMORY}'",
    "SET temp_directory=''",
    "SET autoinstall_known_extensions=false",
    "SET autoload_known_extensions=false",
    "SET enable_external_access=false",
    # The last one: after it no setting can be changed.
    "SET lock_configuration=true",
)


def _connection() -> Any:
    """Return this thread's engine: no files, no network, one thread, UTC. Made anew after a fork."""
    import duckdb  # start

    if getattr(_LOCAL, "pid", None) != os.getpid():
        connection = duckdb.connect(":memory:", config={"threads": 1})
        for setting in SETTINGS:
            connection.execute(setting).fetchall()
        _LOCAL.connection, _LOCAL.pid = connection, os.getpid()
    return _LOCAL.connection


@dataclass(frozen=True)
class Parsed:
    """A checked expression: the names it reads as columns, in its own spelling."""

    text: str
    names: tuple[str, ...]


@lru_cache(maxsize=512)
def parse(text: str) -> Parsed:
    """Check one expression.

    Raises:
        TransformError: too long, not one expression, or it holds something that is not allowed.
    """
    if len(text) > LONGEST:
        raise TransformError(f"an SQL expression of {len(text)} characters; at most {LONGEST} are allowed.")
    if not text.strip():
        raise TransformError("an empty text is not one SQL expression.")
    # On lines of its own, or a comment at the end of the expression would swallow the bracket.
    rows = _connection().execute("SELECT json_serialize_sql(?)", [f"SELECT (\n{text}\n) FROM page"]).fetchall()
    tree = json.loads(rows[0][0])
    if tree["error"]:
        raise TransformError(f"{_short(text)} is not one SQL expression: {_first_line(tree['error_message'])}.")
    node = tree["statements"][0]["node"] if len(tree["statements"]) == 1 else {}
    chosen = node.get("select_list", ())
    if node.get("type") != "SELECT_NODE" or len(chosen) != 1 or node["from_table"].get("table_name") != "page":
        raise TransformError(f"{_short(text)} is not one SQL expression; write a single expression without SELECT.")
    lambdas = frozenset(name for each in _nodes(chosen) if each["class"] == "LAMBDA" for name in _parameters(each))
    for each in _nodes(chosen):
        _check(each, text)
    refs = [each["column_names"][0] for each in _nodes(chosen) if each["class"] == "COLUMN_REF"]
    return Parsed(text, tuple(dict.fromkeys(name for name in refs if name not in lambdas)))


def _nodes(tree: Any) -> Iterator[dict[str, Any]]:
    """Walk every expression of a tree, whatever key it hangs from."""
    if isinstance(tree, dict):
        if isinstance(tree.get("class"), str):
            yield tree
        for value in tree.values():
            yield from _nodes(value)
    elif isinstance(tree, list | tuple):
        for value in tree:
            yield from _nodes(value)


def _parameters(node: Mapping[str, Any]) -> Iterator[str]:
    """Yield the names a lambda binds."""
    bound = [value for key, value in node.items() if key in ("lhs", "syntax_type_params", "params")]
    yield from (each["column_names"][0] for each in _nodes(bound) if each["class"] == "COLUMN_REF")


def _check(node: Mapping[str, Any], text: str) -> None:
    """Refuse what reads more than its row, or gives another cell on another day."""
    if node["class"] not in NODES:
        raise TransformError(
            f"{_short(text)} holds a {node['class'].lower()}, which is not allowed: an expression sees one row, "
            f"not the table. Write it into the source's query."
        )
    if node["class"] == "FUNCTION":
        name = str(node["function_name"]).lower()
        fault = _fault(name)
        if fault:
            raise TransformError(f"{_short(text)} calls {name}, {fault}")


@lru_cache(maxsize=1)
def _functions() -> Mapping[str, frozenset[str]]:
    """Return, from DuckDB's catalog, what each function is: kinds, or the stability of a scalar."""
    kinds: dict[str, set[str]] = {}
    query = "SELECT lower(function_name), function_type, stability, parameter_types FROM duckdb_functions()"
    for name, kind, stability, types in _connection().execute(query).fetchall():
        if stability == "CONSISTENT_WITHIN_QUERY" and (name in ZONED_FUNCTIONS or ZONED_TYPES & set(types)):
            stability = "CONSISTENT"
        kinds.setdefault(name, set()).add(stability if kind == "scalar" else kind)
    return {name: frozenset(found) for name, found in kinds.items()}


def _fault(name: str) -> str:
    """Return why a function cannot be used; '' when it can."""
    kinds = _functions().get(name)
    if kinds is None:
        return "" if not name.isidentifier() else "which DuckDB does not know."  # operators are not all in the catalog
    if name in REFUSED_FUNCTIONS or kinds & {"VOLATILE", "CONSISTENT_WITHIN_QUERY"}:
        return "which is not allowed: a second run must give the same cells."
    if kinds & {"aggregate", "window"} and not kinds & {"CONSISTENT"}:
        return "which is not allowed: it needs all rows, and a page is not the table. Write it into the source's query."
    if not kinds & {"CONSISTENT", "macro"}:
        return "which is not a function of one row."
    return ""


def used(text: str, schema: pa.Schema) -> tuple[str, ...]:
    """Return the columns an expression reads, as the schema spells them, in schema order.

    Raises:
        TransformError: the expression is refused, or reads a column that does not exist or that DuckDB cannot hold.
    """
    found: dict[str, str] = {}
    for name in parse(text).names:
        exact = [name] if name in schema.names else [each for each in schema.names if each.lower() == name.lower()]
        if len(exact) != 1:
            raise missing(name, schema.names)
        clash = found.setdefault(exact[0].lower(), exact[0])
        if clash != exact[0]:
            raise TransformError(
                f"{_short(text)} uses {clash!r} and {exact[0]!r}, which SQL cannot tell apart; rename one."
            )
    for name in found.values():
        arrow = storage(schema.field(name).type)
        if pa.types.is_decimal256(arrow) or pa.types.is_duration(arrow):
            raise TransformError(
                f"{_short(text)} uses {name!r}, whose type {arrow} DuckDB cannot hold exactly; use `columns:` of the "
                f"export or a cast to text first."
            )
    return tuple(name for name in schema.names if name in found.values())


def result_types(texts: Sequence[str], schema: pa.Schema) -> list[pa.DataType]:
    """Return the Arrow type of each expression's cells, from the schema alone.

    Raises:
        TransformError: an expression is refused, or its type has no place in a file.
    """
    types = []
    for text in texts:
        columns = used(text, schema)
        empty = pa.table({name: pa.array([], schema.field(name).type) for name in columns})
        fault, result = _ask([text], empty)
        if fault is not None:
            raise TransformError(f"{_short(text)} cannot be evaluated: {_first_line(str(fault))}")
        types.append(_tidy(result.schema.field(0).type, text))
    return types


def _tidy(arrow: pa.DataType, text: str) -> pa.DataType:
    """Return the type a result is kept as: list children are called `item`, no dictionaries.

    Raises:
        TransformError: the type has no place in a file.
    """
    if pa.types.is_dictionary(arrow):
        return _tidy(arrow.value_type, text)
    if pa.types.is_list(arrow):
        # DuckDB calls the elements of a list `l`.
        return pa.list_(_tidy(arrow.value_type, text))
    if pa.types.is_struct(arrow):
        return pa.struct([(field.name, _tidy(field.type, text)) for field in arrow])
    if (
        pa.types.is_null(arrow)
        or pa.types.is_interval(arrow)
        or pa.types.is_duration(arrow)
        or pa.types.is_union(arrow)
    ):
        raise TransformError(f"{_short(text)} gives {arrow}, which has no place in a file; cast it, such as x::TEXT.")
    return arrow


def evaluate(texts: Sequence[str], table: pa.Table, types: Sequence[pa.DataType]) -> list[pa.Array]:
    """Compute the cells of each expression for a page, in row order, as the planned types.

    Raises:
        RowRefused: an expression fails; says how many rows fail, never DuckDB's own text.
    """
    columns = dict.fromkeys(name for text in texts for name in used(text, table.schema))
    fault, result = _ask(texts, table.select(list(columns)))
    if fault is not None:
        kind = KINDS.get(type(fault).__name__, "a failure")
        raise _refusal(texts, table, kind)
    arrays = []
    for index, arrow in enumerate(types):
        column = result.column(index)
        column = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
        arrays.append(column if column.type == arrow else column.cast(arrow))
    return arrays


def _refusal(texts: Sequence[str], table: pa.Table, kind: str) -> RowRefused:
    """Find the failing expression and count its rows: TRY gives NULL for a row that fails, a struct for all others."""
    for text in texts:
        columns = used(text, table.schema)
        fault, result = _ask([f"TRY(struct_pack(cell := ({text}\n))) IS NULL"], table.select(columns))
        bad = None if fault is not None else result.column(0).to_numpy()
        if bad is None or bad.any():
            return RowRefused(
                f"{_short(text)} meets {kind} in {'some' if bad is None else bad.sum()} of {table.num_rows} rows of a "
                f"page. Guard it with CASE WHEN or `when:`, use TRY_CAST, or clean the source."
            ).blame(bad, why=f"{_short(text)} meets {kind}", is_of_rows=bad is not None)
    # No row alone does it: memory, a time limit, a fault of the library.
    refused = RowRefused(f"an SQL expression meets {kind} in a page of {table.num_rows} rows.")
    return refused.blame(None, is_of_rows=False)


def _ask(texts: Sequence[str], table: pa.Table) -> tuple[Exception | None, pa.Table]:
    """Run a select; a failure comes back as a value, so that no later error carries its text as context."""
    import duckdb  # start

    if table.num_columns == 0:  # constants only: something must still say how many rows there are
        table = pa.table({"row": pa.nulls(table.num_rows, pa.int8())})
    chosen = ", ".join(f"(\n{text}\n) AS c{number}" for number, text in enumerate(texts))
    try:  # a relation, not a registered name: that would cost as much again as a small page takes
        return None, _connection().from_arrow(table).project(chosen).to_arrow_table()
    except duckdb.Error as error:
        return error.with_traceback(None), None


def _short(text: str) -> str:
    """Quote an expression for a message; it is the user's own text."""
    line = " ".join(text.split())
    return f"`{line if len(line) <= 120 else line[:117] + '…'}`"


def _first_line(text: str) -> str:
    return text.strip().split("\n")[0].rstrip(".")
