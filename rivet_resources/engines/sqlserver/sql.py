"""SQL text for SQL Server: names, literals, canonical values, parameters of a user's query, statements.

Belongs here: everything that turns a value or a name into T-SQL or back, exactly, whatever LANGUAGE and DATEFORMAT of
the login. Not here: connections and cells.

A literal has the type of its column where the column's index needs that, and never less: `datetime` compared with a
datetime2 literal would be widened to thirds of milliseconds and miss itself, varchar compared with N'' scans.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from uuid import UUID

from rivet_resources.contracts.types import Column
from rivet_resources.engines.shared import queries, statements
from rivet_resources.engines.shared.literals import quoted_name
from rivet_resources.engines.shared.queries import Lexicon, nested_comment
from rivet_resources.engines.shared.statements import after_each
from rivet_resources.engines.shared.statements import conjunction as conjunction
from rivet_resources.errors import ConfigError, SourceError

# --- names ---------------------------------------------------------------------------------------


def quote(name: str) -> str:
    """Quote one identifier, closing brackets doubled.

    Raises:
        ConfigError: the name is empty or holds a NUL.
    """
    return quoted_name(name, opening="[", closing="]")


def quote_text(text: str) -> str:
    """Quote one text as Unicode."""
    return "N'" + text.replace("'", "''") + "'"


# --- literals ------------------------------------------------------------------------------------

INTEGER = re.compile(r"[+-]?\d+")
DECIMAL = re.compile(r"[+-]?\d+(?:\.\d+)?")
FLOAT = re.compile(r"[+-]?\d+(?:\.\d*)?(?:[eE][+-]?\d+)?")
DAY = re.compile(r"\d{4}-\d\d-\d\d")
STAMP = re.compile(r"(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?")
INSTANT = re.compile(r"(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?\s?(Z|[+-]\d\d:\d\d)")
CLOCK = re.compile(r"(\d\d:\d\d:\d\d)(?:\.(\d{1,7}))?")
HEX = re.compile(r"\\x((?:[0-9a-fA-F]{2})*)")
UNICODE_TYPES = frozenset({"nvarchar", "nchar", "ntext", "sysname"})


def literal(text: str, column: Column) -> str:
    """Render a canonical text as a typed literal; the server reads back the very value it was made from.

    Raises:
        SourceError: the text is not a value of the column's type; the text itself is not shown.
    """
    rendered = _render(text, column)
    if rendered is None:
        raise SourceError(
            f"A bound of column {column.name} is not a value of its type {column.native}. "
            f"Only values in canonical form can be bounds; reset the cursor of the export, or choose another column."
        )
    return rendered


def _render(text: str, column: Column) -> str | None:
    base, sql_type = column.fact("base") or "nvarchar", column.fact("type") or "nvarchar(max)"
    if base in ("tinyint", "smallint", "int", "bigint"):
        # bigint whatever the column: a bound beyond an int must compare, not overflow.
        return f"CONVERT(bigint, {text})" if INTEGER.fullmatch(text) else None
    if base in ("decimal", "numeric", "money", "smallmoney"):
        return f"CONVERT({_wide(base, column)}, '{text}')" if DECIMAL.fullmatch(text) else None
    if base in ("float", "real"):
        return f"CONVERT({base}, '{text}')" if FLOAT.fullmatch(text) else None
    if base == "bit":
        return {
            "true": "CONVERT(bit, 1)",
            "1": "CONVERT(bit, 1)",
            "false": "CONVERT(bit, 0)",
            "0": "CONVERT(bit, 0)",
        }.get(text)
    if base == "uniqueidentifier":
        return f"CONVERT(uniqueidentifier, '{text}')" if _is_uuid(text) else None
    if base in ("binary", "varbinary", "timestamp", "image"):
        match = HEX.fullmatch(text)
        return f"CONVERT({'binary(8)' if base == 'timestamp' else sql_type}, 0x{match[1]})" if match else None
    if base in TEMPORAL:
        return _temporal(text, base, sql_type)
    return _text(text, base, column.fact("collation"))


def _wide(base: str, column: Column) -> str:
    """Return the widest decimal of the column's scale, so that a bound beyond the column compares."""
    return f"decimal(38,{column.fact('scale') or '0'})" if base in ("decimal", "numeric") else "money"


def _text(text: str, base: str, collation: str) -> str | None:
    """Type text as its column: an N'' literal would turn a varchar column into nvarchar, row by row."""
    if "\0" in text:
        return None
    if base in UNICODE_TYPES or base not in ("varchar", "char", "text"):
        return quote_text(text)
    collated = f" COLLATE {collation}" if re.fullmatch(r"\w+", collation) else ""
    # A letter may take four bytes in a UTF-8 collation, and varchar counts bytes; `(max)` only where it must be.
    return f"CONVERT(varchar({8000 if len(text) <= 2000 else 'max'}), {quote_text(text)}{collated})"


def _is_uuid(text: str) -> bool:
    try:
        return str(UUID(text)) == text.lower()
    except ValueError:
        return False


TEMPORAL = frozenset({"date", "time", "datetime", "smalldatetime", "datetime2", "datetimeoffset"})


def _temporal(text: str, base: str, sql_type: str) -> str | None:
    """Render times in ISO 8601 with `T`, which no DATEFORMAT or LANGUAGE reads differently."""
    if base == "date" and (day := re.match(r"(\d{4})-(\d\d)-(\d\d)(?:[T ]00:00:00(?:\.0+)?Z?)?$", text)):
        # Style 112, digits alone, is read alike under every DATEFORMAT.
        return f"CONVERT(date, '{day[1]}{day[2]}{day[3]}', 112)"
    if base == "time" and (clock := CLOCK.fullmatch(text)):
        return f"CONVERT(time(7), '{clock[1]}.{(clock[2] or '').ljust(7, '0')}')"
    if instant := INSTANT.fullmatch(text):
        if base != "datetimeoffset":
            return None
        zone = "+00:00" if instant[4] == "Z" else instant[4]
        return f"CONVERT(datetimeoffset(7), '{instant[1]}T{instant[2]}.{_fraction(instant[3], 7)}{zone}')"
    stamp = STAMP.fullmatch(text + "T00:00:00" if DAY.fullmatch(text) else text)
    if stamp is None or base in ("time", "datetimeoffset"):
        return None
    if base in ("datetime", "smalldatetime"):
        # Three digits are all a datetime holds, and each of its ticks has a text of three digits of its own.
        return f"CONVERT(datetime, '{stamp[1]}T{stamp[2]}.{_fraction(stamp[3], 3)}', 126)"
    return f"CONVERT(datetime2(7), '{stamp[1]}T{stamp[2]}.{_fraction(stamp[3], 7)}', 126)"


def _fraction(digits: str | None, length: int) -> str:
    return (digits or "").ljust(length, "0")[:length]


# --- canonical values ----------------------------------------------------------------------------

# Pattern by base type; `canonical_text` below finishes what T-SQL cannot write.
CANONICAL: Mapping[str, str] = {
    "bit": "CASE {} WHEN 1 THEN 'true' WHEN 0 THEN 'false' END",
    "tinyint": "CONVERT(varchar(20), {})",
    "smallint": "CONVERT(varchar(20), {})",
    "int": "CONVERT(varchar(20), {})",
    "bigint": "CONVERT(varchar(20), {})",
    "decimal": "CONVERT(varchar(50), {})",
    "numeric": "CONVERT(varchar(50), {})",
    "money": "CONVERT(varchar(50), CONVERT(decimal(19,4), {}))",
    "smallmoney": "CONVERT(varchar(50), CONVERT(decimal(10,4), {}))",
    # Style 3: 17 digits, which come back as the same double.
    "float": "CONVERT(varchar(40), {}, 3)",
    "real": "CONVERT(varchar(40), CONVERT(float, {}), 3)",
    "uniqueidentifier": "LOWER(CONVERT(varchar(36), {}))",
    "date": "CONVERT(varchar(10), {}, 23)",
    "time": "CONVERT(varchar(16), {}, 121)",
    "datetime": "CONVERT(varchar(23), {}, 121)",
    "smalldatetime": "CONVERT(varchar(23), CONVERT(datetime, {}), 121)",
    "datetime2": "CONVERT(varchar(27), CONVERT(datetime2(7), {}), 121)",
    "datetimeoffset": "CONVERT(varchar(27), CONVERT(datetime2(7), SWITCHOFFSET({}, '+00:00')), 121) + 'Z'",
    "timestamp": "CONVERT(varchar(20), CONVERT(binary(8), {}), 1)",
    "binary": "CONVERT(varchar(max), {}, 1)",
    "varbinary": "CONVERT(varchar(max), {}, 1)",
}


def canonical_sql(expression: str, base: str) -> str:
    """Return SQL that renders a value as text from which `canonical_text` makes the canonical one."""
    return CANONICAL.get(base, "CONVERT(nvarchar(max), {})").replace("{}", expression)


def canonical_text(text: str | None, base: str) -> str | None:
    """Finish a text of `canonical_sql`: `T` between day and time, six digits unless the seventh counts, `\\x` hex."""
    if text is None:
        return None
    if base in ("datetime", "smalldatetime", "datetime2", "datetimeoffset"):
        return _six_digits(text.rstrip("Z").replace(" ", "T")) + ("Z" if text.endswith("Z") else "")
    if base in ("timestamp", "binary", "varbinary"):
        return "\\x" + text.removeprefix("0x").lower()
    return text


def _six_digits(text: str) -> str:
    whole, _, digits = text.partition(".")
    digits = digits.ljust(6, "0")
    return f"{whole}.{digits[:6] if digits[6:] in ('', '0') else digits}"


# --- a user's query ------------------------------------------------------------------------------

# What a colon may hide in: quoted things and comments, which nest here too; `::` calls a method of a type.
TOKENS = re.compile(
    r"""[nN]?'(?:[^']|'')*' | "(?:[^"]|"")*" | \[(?:[^\]]|\]\])*\] | --[^\n]* | /\* | ::
      | (?<![\w\]):]):([A-Za-z_]\w*)""",
    re.VERBOSE | re.DOTALL,
)
LEXICON = Lexicon(TOKENS, quote_text, long=nested_comment)


def render_parameters(query: str, params: Mapping[str, str]) -> str:
    """Replace each `:name` by a quoted text; see shared/queries.py."""
    return queries.render_parameters(query, params, LEXICON)


def strip_query(query: str) -> str:
    """Check a query's outside (shared/queries.py), and that no WITH begins it, which a derived table cannot hold.

    Raises:
        ConfigError
    """
    bare = queries.strip_query(query, LEXICON)
    if re.match(r"(?i)with\b", queries.code_of(bare, LEXICON)):
        raise ConfigError(
            "The query begins with WITH, which SQL Server does not allow in a derived table; make it a view, or nest "
            "the parts as derived tables."
        )
    return bare


# --- statements ----------------------------------------------------------------------------------


def select(
    items: Sequence[str],
    *,
    relation: str,
    where: Sequence[str] = (),
    order_by: Sequence[str] = (),
    limit: int | None = None,
) -> str:
    """Write one SELECT; T-SQL's limit stands at its beginning."""
    first = f"TOP ({limit}) {items[0]}" if limit is not None else items[0]
    return statements.select([first, *items[1:]], relation=relation, where=where, order_by=order_by)


after_key = after_each
