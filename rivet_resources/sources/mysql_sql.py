"""SQL text for MySQL and MariaDB: names, literals, canonical values, parameters of a user's query.

Belongs here: everything that turns a value or a name into SQL or back, exactly. Not here: connections and cells.
Every session pins `sql_mode=''`, so a backslash escapes inside quotes, `"x"` is a text and `||` means OR.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import date
from uuid import UUID

from rivet_resources.errors import ConfigError, SourceError
from rivet_resources.types import Column

# --- names ---------------------------------------------------------------------------------------


def quote(name: str) -> str:
    """Quote one identifier, inner backticks doubled.

    Raises:
        ConfigError: the name is empty or holds a NUL.
    """
    if not name or "\0" in name:
        raise ConfigError(f"{name!r} cannot be the name of a column or table; names are non-empty and hold no NUL.")
    return "`" + name.replace("`", "``") + "`"


def quote_text(text: str) -> str:
    """Quote one text for a session whose sql_mode is pinned."""
    return "'" + text.replace("\\", "\\\\").replace("'", "''").replace("\0", "\\0") + "'"


# --- canonical values ----------------------------------------------------------------------------

INTEGER = re.compile(r"[+-]?\d{1,65}")
DECIMAL = re.compile(r"[+-]?\d{1,65}(?:\.\d{1,38})?")
FLOAT = re.compile(r"[+-]?\d+(?:\.\d*)?(?:[eE][+-]?\d+)?")
DAY = re.compile(r"(\d{4}-\d\d-\d\d)")
STAMP = re.compile(r"(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d:\d\d(?:\.\d{1,6})?)(?:Z|\+00(?::?00)?)?")
TIME = re.compile(r"-?\d{1,3}:\d\d:\d\d(?:\.\d{1,6})?")
HEX = re.compile(r"\\x((?:[0-9a-fA-F]{2})*)")

INTEGERS = frozenset(
    {"tinyint", "smallint", "mediumint", "int", "bigint", "year", "bit", "bit(64)"}
    | {f"{kind} unsigned" for kind in ("tinyint", "smallint", "mediumint", "int", "bigint")}
)
BINARIES = frozenset({"binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob"})
FLOATS = frozenset({"float", "double"})
CASTS: Mapping[str, str] = {"uuid": "UUID", "inet4": "INET4", "inet6": "INET6"}


def literal(text: str, column: Column) -> str:
    """Render a canonical text as a typed literal; the server reads back the very value it was made from.

    A text takes the collation of the column it is compared with, so the server alone decides what is greater.

    Raises:
        SourceError: the text is not a value of the column's type, or is a zero date; the text itself is not shown.
    """
    found = _literal(text, column.fact("base"))
    if found is None:
        raise SourceError(
            f"A bound of column {column.name} is not a value of its type {column.native}. "
            f"Only real values in canonical form can be bounds, zero dates cannot; reset the cursor of the export, "
            f"choose another column, or clean the source."
        )
    return found


def _literal(text: str, base: str) -> str | None:
    """Render by base type; None when the text is no value of it."""
    if base in INTEGERS:
        return text.removeprefix("+") if INTEGER.fullmatch(text) else None
    if base == "decimal":
        return text.removeprefix("+") if DECIMAL.fullmatch(text) else None
    if base in FLOATS:
        return _double(text) if FLOAT.fullmatch(text) else None
    if base in ("tinyint(1)", "bit(1)"):
        return {"true": "1", "false": "0", "1": "1", "0": "0"}.get(text)
    if base in ("date", "datetime", "timestamp"):
        return _time_literal(text, base)
    if base == "time":
        return f"TIME{quote_text(text)}" if TIME.fullmatch(text) else None
    if base in BINARIES:
        found = HEX.fullmatch(text)
        return f"x'{found[1]}'" if found else None
    if base in CASTS:
        return f"CAST({quote_text(text)} AS {CASTS[base]})" if base != "uuid" or _is_uuid(text) else None
    return f"_utf8mb4{quote_text(text)}"


def _double(text: str) -> str:
    """Write a double, not a decimal: those have an exponent."""
    return text if "e" in text.lower() else f"{text}E0"


def _time_literal(text: str, base: str) -> str | None:
    found = (DAY if base == "date" else STAMP).fullmatch(text)
    if found is None and base != "date" and DAY.fullmatch(text):
        found, text = DAY.fullmatch(text), f"{text} 00:00:00"
    if found is None or not is_day(found[1]):
        return None
    if base == "date":
        return f"DATE'{text}'"
    stamp = STAMP.fullmatch(text)
    return f"TIMESTAMP'{stamp[1]} {stamp[2]}'" if stamp else None


def is_day(text: str) -> bool:
    """Say whether a day exists; MySQL's zero and partial dates do not."""
    try:
        return bool(date.fromisoformat(text))
    except ValueError:
        return text.startswith("0000-") and not text.endswith("-00") and "-00-" not in text[4:]


def _is_uuid(text: str) -> bool:
    try:
        return bool(UUID(text))
    except ValueError:
        return False


def canonical_sql(expression: str, base: str) -> str:
    """Give SQL that renders a value as canonical text; zero dates come as they are stored."""
    if base in ("datetime", "timestamp"):
        zone = "Z" if base == "timestamp" else ""
        return f"DATE_FORMAT({expression}, '%Y-%m-%dT%H:%i:%s.%f{zone}')"
    if base in BINARIES:
        return f"CONCAT('\\\\x', LOWER(HEX({expression})))"
    if base == "float":
        return f"CAST(({expression}) + 0E0 AS CHAR)"
    if base in ("bit", "bit(1)", "bit(64)"):
        return f"CAST(({expression}) + 0 AS CHAR)"
    return f"CAST(({expression}) AS CHAR)"


# --- a user's query ------------------------------------------------------------------------------

# What a colon may hide in. MySQL's comments do not nest, and `--` needs a blank behind it.
TOKENS = re.compile(
    r"""'(?:[^'\\]|\\.|'')*' | "(?:[^"\\]|\\.|"")*" | `(?:[^`]|``)*` | \#[^\n]* | --(?=[\s\x00-\x1f]|$)[^\n]*
      | /\*.*?(?:\*/|$) | := | (?<![\w\])]):([A-Za-z_]\w*)""",
    re.VERBOSE | re.DOTALL,
)
COMMENTS = ("#", "--", "/*")


def render_parameters(query: str, params: Mapping[str, str]) -> str:
    """Replace each `:name` outside quotes and comments by a quoted text.

    Raises:
        ConfigError: a name without a value; the message lists the known ones.
    """
    return TOKENS.sub(lambda match: _parameter(match[1], params) if match[1] else match[0], query)


def _parameter(name: str, params: Mapping[str, str]) -> str:
    if name not in params:
        known = ", ".join(sorted(params)) or "none"
        raise ConfigError(
            f"The query uses :{name}, which has no value; known parameters: {known}. Add `params: {{{name}: …}}`."
        )
    return quote_text(params[name])


def strip_query(query: str) -> str:
    """Check a query's outside: not empty, no trailing semicolon.

    Raises:
        ConfigError
    """
    bare = query.strip()
    code = TOKENS.sub(lambda match: " " if match[0].startswith(COMMENTS) else match[0], bare).strip()
    if not code:
        raise ConfigError("The query is empty; write one SELECT.")
    if code.endswith(";"):
        raise ConfigError("The query ends with a semicolon; it is read as a derived table, so remove the semicolon.")
    return bare


def derived(query: str) -> str:
    """Wrap a query so that it can stand after FROM; the newline ends a trailing line comment."""
    return f"({query}\n) AS _rivet_q"


# --- statements ----------------------------------------------------------------------------------


def conjunction(predicates: Sequence[str]) -> str:
    """Join predicates with AND, each in parentheses, leaving out empty ones."""
    return " AND ".join(f"({predicate})" for predicate in predicates if predicate)


def select(
    items: Sequence[str],
    *,
    relation: str,
    where: Sequence[str] = (),
    order_by: Sequence[str] = (),
    limit: int | None = None,
) -> str:
    """Write one SELECT."""
    predicate = conjunction(where)
    return (
        f"SELECT {', '.join(items)} FROM {relation}"
        + (f" WHERE {predicate}" if predicate else "")
        + (f" ORDER BY {', '.join(order_by)}" if order_by else "")
        + (f" LIMIT {limit}" if limit is not None else "")
    )


def after_key(key: Sequence[str], bounds: Sequence[str]) -> str:
    """Write `key > bounds` for quoted names and rendered literals.

    Expanded, since a row comparison scans the table here; the leading `>=` gives the index range
    (`connectors.md`, section 11).
    """
    name, bound = key[0], bounds[0]
    if len(key) == 1:
        return f"{name} > {bound}"
    return f"{name} >= {bound} AND ({name} > {bound} OR {_next_key(key, bounds)})"


def _next_key(key: Sequence[str], bounds: Sequence[str]) -> str:
    """Write the rows of the same first key part that come later."""
    return f"({key[0]} = {bounds[0]} AND ({_rest(key[1:], bounds[1:])}))"


def _rest(key: Sequence[str], bounds: Sequence[str]) -> str:
    later = f"{key[0]} > {bounds[0]}"
    return later if len(key) == 1 else f"{later} OR {_next_key(key, bounds)}"
