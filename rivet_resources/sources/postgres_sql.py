"""SQL text for PostgreSQL: names, literals, canonical values, parameters of a user's query.

Belongs here: everything that turns a value or a name into SQL or back, exactly. Not here: connections and cells.
Bound parameters are out: one parameter turns binary COPY off and buffers the whole answer (`engine.md`, trap 1).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from uuid import UUID

from rivet_resources.errors import ConfigError, SourceError
from rivet_resources.types import Column

# --- names ---------------------------------------------------------------------------------------


def quote(name: str) -> str:
    """Quote one identifier, inner quotes doubled.

    Raises:
        ConfigError: the name is empty or holds a NUL.
    """
    if not name or "\0" in name:
        raise ConfigError(f"{name!r} cannot be the name of a column or table; names are non-empty and hold no NUL.")
    return '"' + name.replace('"', '""') + '"'


def quote_text(text: str) -> str:
    """Quote one text as SQL does with standard_conforming_strings on, which every session pins."""
    return "'" + text.replace("'", "''") + "'"


# --- canonical values ----------------------------------------------------------------------------

STAMP = re.compile(r"\d{4,6}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:\.\d{1,6})?( ?BC)?")
INSTANT = re.compile(r"\d{4,6}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:\.\d{1,6})?(?:Z|[+-]\d\d(?::?\d\d)?)( ?BC)?")
FLOAT = re.compile(r"[+-]?\d+(?:\.\d*)?(?:[eE][+-]?\d+)?")
INTEGER = re.compile(r"[+-]?\d+")
DECIMAL = re.compile(r"[+-]?\d+(?:\.\d+)?")
DAY = re.compile(r"\d{4,7}-\d\d-\d\d( BC)?")
# How a family's canonical text looks, and the type a literal of it is given. Integers are int8 whatever the
# column: a bound beyond an int2 must compare, not overflow, and B-trees take either width.
LITERALS: Mapping[str, tuple[re.Pattern[str] | None, str]] = {
    "int2": (INTEGER, "int8"),
    "int4": (INTEGER, "int8"),
    "int8": (INTEGER, "int8"),
    "oid": (INTEGER, "int8"),
    "numeric": (DECIMAL, "numeric"),
    "float4": (FLOAT, "float4"),
    "float8": (FLOAT, "float8"),
    "date": (DAY, "date"),
    "timestamp": (STAMP, "timestamp"),
    "timestamptz": (INSTANT, "timestamptz"),
    "bool": (re.compile(r"true|false|t|f"), "bool"),
    "text": (None, "text"),
    "varchar": (None, "text"),
}


def literal(text: str, column: Column) -> str:
    """Render a canonical text as a typed literal; the server reads back the very value it was made from.

    Raises:
        SourceError: the text is not a value of the column's type, or is infinite; the text itself is not shown.
    """
    base = column.fact("base") or "text"
    pattern, sql_type = LITERALS.get(base, (None, column.fact("type") or "text"))
    fits = "\0" not in text if pattern is None else pattern.fullmatch(text) is not None
    if fits and base == "uuid":
        fits = _is_uuid(text)
    if not fits:
        raise SourceError(
            f"A bound of column {column.name} is not a value of its type {column.native}. "
            f"Only finite values in canonical form can be bounds; reset the cursor of the export, or choose "
            f"another column."
        )
    return f"{quote_text(text)}::{sql_type}"


def _is_uuid(text: str) -> bool:
    try:
        return bool(UUID(text))
    except ValueError:
        return False


def canonical_sql(expression: str, base: str) -> str:
    """Give SQL that renders a non-infinite value as canonical text; infinite times come as `infinity`."""
    if base in ("timestamp", "timestamptz"):
        zone = "Z" if base == "timestamptz" else ""
        shape = f'YYYY-MM-DD"T"HH24:MI:SS.US"{zone}"'
        era = f"CASE WHEN extract(year FROM {expression}) < 0 THEN ' BC' ELSE '' END"
        finite = f"to_char({expression}, '{shape}') || {era}"
        return f"CASE WHEN isfinite({expression}) THEN {finite} ELSE {expression}::text END"
    if base in ("bpchar", "bool", "inet", "cidr", "macaddr", "macaddr8"):
        return f"CASE WHEN {expression} IS NOT NULL THEN concat({expression}) END"
    return f"({expression})::text"


# --- a user's query ------------------------------------------------------------------------------

# What a colon may hide in: quoted things, comments, casts. Dollar quotes and nested comments are found by hand.
TOKENS = re.compile(
    r"""[eE]'(?:[^'\\]|\\.|'')*' | '(?:[^']|'')*' | "(?:[^"]|"")*" | --[^\n]* | /\* | \$(?:[A-Za-z_]\w*)?\$
      | :: | := | (?<![\w\])]):([A-Za-z_]\w*)""",
    re.VERBOSE | re.DOTALL,
)


def render_parameters(query: str, params: Mapping[str, str]) -> str:
    """Replace each `:name` outside quotes, comments and casts by a checked literal.

    Raises:
        ConfigError: a name without a value; the message lists the known ones.
    """
    pieces: list[str] = []
    position = 0
    while match := TOKENS.search(query, position):
        pieces.append(query[position : match.start()])
        end = _token_end(query, match)
        token = query[match.start() : end]
        pieces.append(_parameter(match[1], params) if match[1] else token)
        position = end
    return "".join([*pieces, query[position:]])


def _parameter(name: str, params: Mapping[str, str]) -> str:
    if name not in params:
        known = ", ".join(sorted(params)) or "none"
        raise ConfigError(
            f"The query uses :{name}, which has no value; known parameters: {known}. Add `params: {{{name}: …}}`."
        )
    if "\0" in params[name]:
        raise ConfigError(f"Parameter {name} of the query holds a NUL, which PostgreSQL text cannot; remove it.")
    return quote_text(params[name])


def _token_end(query: str, match: re.Match[str]) -> int:
    """Find where a token ends: a dollar quote at its twin, a block comment at its own depth."""
    token = match[0]
    if token.startswith("$"):
        end = query.find(token, match.end())
        return len(query) if end < 0 else end + len(token)
    if token != "/*":
        return match.end()
    depth, position = 1, match.end()
    while depth and (inner := re.compile(r"/\*|\*/").search(query, position)):
        depth += 1 if inner[0] == "/*" else -1
        position = inner.end()
    return len(query) if depth else position


def strip_query(query: str) -> str:
    """Check a query's outside: not empty, no trailing semicolon.

    Raises:
        ConfigError
    """
    bare = query.strip()
    code = _without_comments(bare).strip()
    if not code:
        raise ConfigError("The query is empty; write one SELECT.")
    if code.endswith(";"):
        raise ConfigError("The query ends with a semicolon; it is read as a derived table, so remove the semicolon.")
    return bare


def _without_comments(query: str) -> str:
    """Blank out comments, keeping quoted things as they are."""
    pieces: list[str] = []
    position = 0
    while match := TOKENS.search(query, position):
        end = _token_end(query, match)
        is_comment = match[0].startswith(("--", "/*"))
        pieces += [query[position : match.start()], " " if is_comment else query[match.start() : end]]
        position = end
    return "".join([*pieces, query[position:]])


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
    """Write `key > bounds` for quoted names and rendered literals, as a row comparison when there are several."""
    if len(key) == 1:
        return f"{key[0]} > {bounds[0]}"
    return f"({', '.join(key)}) > ({', '.join(bounds)})"
