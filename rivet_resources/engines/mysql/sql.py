"""SQL text for MySQL and MariaDB: names, literals, canonical values, parameters of a user's query.

Belongs here: everything that turns a value or a name into SQL or back, exactly. Not here: connections and cells.
Every session pins `sql_mode=''`, so a backslash escapes inside quotes, `"x"` is a text and `||` means OR.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import date

from rivet_resources.contracts.types import Column
from rivet_resources.engines.shared import queries
from rivet_resources.engines.shared.literals import is_uuid, quoted_name
from rivet_resources.engines.shared.queries import Lexicon
from rivet_resources.engines.shared.statements import after_each
from rivet_resources.engines.shared.statements import conjunction as conjunction
from rivet_resources.engines.shared.statements import derived as derived
from rivet_resources.engines.shared.statements import select as select
from rivet_resources.errors import SourceError

# --- names ---------------------------------------------------------------------------------------


def quote(name: str) -> str:
    """Quote one identifier, inner backticks doubled.

    Raises:
        ConfigError: the name is empty or holds a NUL.
    """
    return quoted_name(name, opening="`", closing="`")


def quote_text(text: str) -> str:
    """Quote one text for a session whose sql_mode is pinned."""
    # Backslashes first: `sql_mode` is pinned to have them escape, and the NUL's escape must not be doubled.
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
        return f"CAST({quote_text(text)} AS {CASTS[base]})" if base != "uuid" or is_uuid(text) else None
    # The introducer, not the connection's setting, says what the bytes are; the column's collation then compares.
    return f"_utf8mb4{quote_text(text)}"


def _double(text: str) -> str:
    """Write a double, not a decimal: those have an exponent."""
    # Without an exponent 0.1 is a DECIMAL, and compares with a column of doubles as that.
    return text if "e" in text.lower() else f"{text}E0"


def _time_literal(text: str, base: str) -> str | None:
    found = (DAY if base == "date" else STAMP).fullmatch(text)
    # An expression may give a day where its type is a datetime: it is that day's midnight.
    if found is None and base != "date" and DAY.fullmatch(text):
        found, text = DAY.fullmatch(text), f"{text} 00:00:00"
    if found is None or not is_day(found[1]):
        return None
    if base == "date":
        return f"DATE'{text}'"
    stamp = STAMP.fullmatch(text)
    return f"TIMESTAMP'{stamp[1]} {stamp[2]}'" if stamp else None


def is_day(text: str) -> bool:
    """Return whether a day exists; MySQL's zero and partial dates do not."""
    try:
        return bool(date.fromisoformat(text))
    except ValueError:
        # Year 0 is none of Python's, and one of MySQL's.
        return text.startswith("0000-") and not text.endswith("-00") and "-00-" not in text[4:]


def canonical_sql(expression: str, base: str) -> str:
    """Return SQL that renders a value as canonical text; zero dates come as they are stored."""
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
LEXICON = Lexicon(TOKENS, quote_text, comments=("#", "--", "/*"))


def render_parameters(query: str, params: Mapping[str, str]) -> str:
    """Replace each `:name` by a quoted text; see shared/queries.py."""
    return queries.render_parameters(query, params, LEXICON)


def strip_query(query: str) -> str:
    """Check a query's outside; see shared/queries.py."""
    return queries.strip_query(query, LEXICON)


# --- statements ----------------------------------------------------------------------------------

after_key = after_each
