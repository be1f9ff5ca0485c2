"""SQL text for PostgreSQL: names, literals, canonical values, parameters of a user's query.

Belongs here: everything that turns a value or a name into SQL or back, exactly. Not here: connections and cells.
Bound parameters are out: one parameter turns binary COPY off and buffers the whole answer (`engine.md`, trap 1).
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from rivet_resources.contracts.types import Column
from rivet_resources.engines.shared import queries
from rivet_resources.engines.shared.literals import is_uuid, quoted_name
from rivet_resources.engines.shared.queries import Lexicon, nested_comment
from rivet_resources.engines.shared.statements import after_row
from rivet_resources.engines.shared.statements import conjunction as conjunction
from rivet_resources.engines.shared.statements import derived as derived
from rivet_resources.engines.shared.statements import select as select
from rivet_resources.errors import SourceError

# --- names ---------------------------------------------------------------------------------------


def quote(name: str) -> str:
    """Quote one identifier, inner quotes doubled.

    Raises:
        ConfigError: the name is empty or holds a NUL.
    """
    return quoted_name(name)


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
BITS = re.compile(r"[01]*")
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
    # Not as the catalog writes them without a length: `character` and `bit` mean one character and one bit.
    "bpchar": (None, "bpchar"),
    "bit": (BITS, "varbit"),
    "varbit": (BITS, "varbit"),
}
# What else a bound may be: the server reads back the text that it wrote, and orders pages as it compares
# (`tests/engines/test_bounds.py` shows it of each). Enums are told by their kind.
BOUNDS = frozenset(LITERALS) | {
    "uuid", "bytea", "time", "timetz", "interval", "money", "inet", "cidr", "macaddr", "macaddr8", "name",
    "citext", "pg_lsn",
}  # fmt: skip
# Words of `columns:` under which a cell still names its key.
SAME_VALUE = ("int", "bool", "text", "date", "uuid", "timestamp")


def no_bound(column: Column, *, is_paged: bool) -> str:
    """Return why the values of a column cannot be bounds; see the protocol."""
    base, target = column.fact("base"), column.fact("target")
    if base not in BOUNDS and column.logical != "enum":
        return "values of this type have no text that leads back to their place in an order"
    if is_paged and target and not (target.startswith(SAME_VALUE) and not target.startswith("timestamp_ns")):
        return f"`columns:` turns it into {target}, which does not lead back to the value"
    return ""


def literal(text: str, column: Column) -> str:
    """Render a canonical text as a typed literal; the server reads back the very value it was made from.

    Raises:
        SourceError: the text is not a value of the column's type, or is infinite; the text itself is not shown.
    """
    base = column.fact("base") or "text"
    pattern = LITERALS[base][0] if base in LITERALS else None
    fits = "\0" not in text if pattern is None else pattern.fullmatch(text) is not None
    if fits and base == "uuid":
        fits = is_uuid(text)
    if not fits:
        raise SourceError(
            f"A bound of column {column.name} is not a value of its type {column.native}. "
            f"Only finite values in canonical form can be bounds; reset the cursor of the export, or choose "
            f"another column."
        )
    return f"{quote_text(text)}::{literal_type(column)}"


def literal_type(column: Column) -> str:
    """Name the type that literals of a column have; arrays of it hold the column's values whole."""
    return LITERALS.get(column.fact("base") or "text", (None, column.fact("type") or "text"))[1]


def canonical_sql(expression: str, base: str) -> str:
    """Return SQL that renders a non-infinite value as canonical text; infinite times come as `infinity`."""
    if base in ("timestamp", "timestamptz"):
        zone = "Z" if base == "timestamptz" else ""
        shape = f'YYYY-MM-DD"T"HH24:MI:SS.US"{zone}"'
        # to_char writes years BC without a sign.
        era = f"CASE WHEN extract(year FROM {expression}) < 0 THEN ' BC' ELSE '' END"
        finite = f"to_char({expression}, '{shape}') || {era}"
        return f"CASE WHEN isfinite({expression}) THEN {finite} ELSE {expression}::text END"
    # concat() calls the output function, which `::text` is not for all of these: it cuts padding and adds masks.
    if base in ("bpchar", "bool", "inet", "cidr", "macaddr", "macaddr8"):
        return f"CASE WHEN {expression} IS NOT NULL THEN concat({expression}) END"
    return f"({expression})::text"


# Types that are ordered, and whose smallest value no aggregate gives; bytea has min() from PostgreSQL 18 on.
WITHOUT_MIN = frozenset({"uuid", "bytea", "bool", "bit", "varbit", "macaddr", "macaddr8", "name"})


def extremes(expression: str, base: str, *, relation: str, where: str) -> str:
    """Write the statement that gives the smallest and the largest value as canonical texts; NULL: there is none."""
    if base not in WITHOUT_MIN:
        ends = [canonical_sql(f"{end}({expression})", base) for end in ("min", "max")]
        return select(ends, relation=relation, where=[where])
    there = [where, f"{expression} IS NOT NULL"]
    ordered = (
        select([expression], relation=relation, where=there, order_by=[f"{expression} {way}"], limit=1)
        for way in ("ASC", "DESC")
    )
    return "SELECT " + ", ".join(canonical_sql(f"({each})", base) for each in ordered)


# --- a user's query ------------------------------------------------------------------------------

# What a colon may hide in: quoted things, comments, casts. Dollar quotes and nested comments are found by hand.
TOKENS = re.compile(
    r"""[eE]'(?:[^'\\]|\\.|'')*' | '(?:[^']|'')*' | "(?:[^"]|"")*" | --[^\n]* | /\* | \$(?:[A-Za-z_]\w*)?\$
      | :: | := | (?<![\w\])]):([A-Za-z_]\w*)""",
    re.VERBOSE | re.DOTALL,
)


def _token_end(query: str, match: re.Match[str]) -> int:
    """Find where a token ends: a dollar quote at its twin, a block comment at its own depth."""
    token = match[0]
    if not token.startswith("$"):
        return nested_comment(query, match)
    end = query.find(token, match.end())
    return len(query) if end < 0 else end + len(token)


LEXICON = Lexicon(TOKENS, quote_text, long=_token_end, holds_nul=False)


def render_parameters(query: str, params: Mapping[str, str]) -> str:
    """Replace each `:name` by a quoted text; see shared/queries.py."""
    return queries.render_parameters(query, params, LEXICON)


def strip_query(query: str) -> str:
    """Check a query's outside; see shared/queries.py."""
    return queries.strip_query(query, LEXICON)


# --- statements ----------------------------------------------------------------------------------

after_key = after_row
