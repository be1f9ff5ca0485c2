"""SQL text for SQLite: names, literals, parameters of a user's query.

Belongs here: everything that turns a value or a name into SQL, exactly. Not here: connections and cells.

Text is compared byte by byte everywhere: literals carry COLLATE BINARY, which wins over the column's own collation, so
that a NOCASE column cannot be ordered one way and compared another.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta, timezone

import pyarrow as pa

from rivet_resources.contracts.types import Column
from rivet_resources.engines.shared import queries
from rivet_resources.engines.shared.literals import quoted_name
from rivet_resources.engines.shared.queries import Lexicon
from rivet_resources.engines.shared.statements import after_row
from rivet_resources.engines.shared.statements import conjunction as conjunction
from rivet_resources.engines.shared.statements import derived as derived
from rivet_resources.engines.shared.statements import select as select
from rivet_resources.errors import SourceError

INTEGER = re.compile(r"[+-]?\d+")
NUMBER = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?")
LARGEST = 2**63


def quote(name: str) -> str:
    """Quote one identifier, inner quotes doubled.

    Raises:
        ConfigError: the name is empty or holds a NUL.
    """
    return quoted_name(name)


def quote_text(text: str) -> str:
    """Quote one text; one that holds a NUL goes as bytes, since a statement ends at a NUL."""
    if "\0" in text:
        return f"CAST(X'{text.encode().hex()}' AS TEXT)"
    return "'" + text.replace("'", "''") + "'"


# --- literals ------------------------------------------------------------------------------------


def literal(text: str, column: Column) -> str:
    """Render a canonical text as a literal that equals, in SQLite, the very cell it was made from.

    Raises:
        SourceError: the text is not a value of the column's type, or the column has no type to compare by.
    """
    rendered = _render(text, column)
    if rendered is None:
        raise SourceError(
            f"A bound of column {column.name} is not a value of its type {column.native or 'none'}. "
            f"Reset the cursor of the export, or choose another column."
        )
    return rendered


def _render(text: str, column: Column) -> str | None:
    wire = column.fact("wire")
    if column.fact("times"):
        return _time(text, column)
    if wire == "any":
        raise SourceError(
            f"Column {column.name} has no declared type, so Rivet cannot know how its values compare. "
            f"Give it one: `columns: {{{column.name}: int8}}`, or CAST it in a query."
        )
    if wire == "bytes":
        return f"X'{text[2:]}'" if re.fullmatch(r"\\x(?:[0-9a-f]{2})*", text) else None
    if wire == "whole":
        text = {"true": "1", "false": "0"}.get(text, text)
        return text if INTEGER.fullmatch(text) else None
    # Infinity is a value of such columns, and a bound like any other.
    if wire == "real":
        return real(float(text)) if NUMBER.fullmatch(text) or text in ("inf", "-inf") else None
    # Such columns may hold numbers and texts; a number is compared as one.
    if wire == "loose" and NUMBER.fullmatch(text):
        return str(int(text)) if INTEGER.fullmatch(text) else real(float(text))
    return f"{quote_text(text)} COLLATE BINARY"


def real(value: float) -> str:
    """Write a double that SQLite reads back as the very same: as a quotient of whole numbers where they fit.

    Its own reading of decimals is off by one unit for about 3 of 1000 doubles (3.40, measured on 100 000).
    """
    if math.isinf(value):
        # SQLite has no word for infinity; a literal beyond the largest double is read as one.
        return "9e999" if value > 0 else "-9e999"
    over, under = value.as_integer_ratio()
    if max(abs(over), under) < LARGEST:
        return f"({over} * 1.0 / {under})"
    return repr(value)


# --- times as they are stored --------------------------------------------------------------------


def _time(text: str, column: Column) -> str | None:
    """Render a time in the spelling that the column's cells have.

    Raises:
        SourceError: the cells have several, or none that sorts by time.
    """
    spelled = json.loads(column.fact("times"))
    if isinstance(spelled, str):
        raise SourceError(
            f"Column {column.name} stores its times {spelled}, and those do not sort by time. "
            f"Bring them into one form with an UPDATE, or export a query that does."
        )
    try:
        instant = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        return None
    if spelled["class"] == "integer":
        # Down, as a bound: the second that has begun is not over.
        return str(math.floor(instant.timestamp()))
    if instant.tzinfo is not None:
        instant = instant.astimezone(_zone(spelled["suffix"] or column.fact("zone") or "Z"))
    return quote_text(_spell(instant, spelled)) + " COLLATE BINARY"


def _spell(instant: datetime, spelled: Mapping[str, object]) -> str:
    """Write a time with the separator, the digits and the suffix of the others."""
    separator, digits, suffix = str(spelled["separator"]), int(str(spelled["digits"])), str(spelled["suffix"])
    day = f"{instant.year:04d}-{instant:%m-%d}"
    if not separator and (instant.hour, instant.minute, instant.second, instant.microsecond) == (0, 0, 0, 0):
        return day
    fraction = f".{instant.microsecond:06d}"[: digits + 1] if digits else ""
    # Python's isoformat() leaves the fraction out where it is zero, and such columns sort all the same.
    whole = instant.microsecond == 0
    if whole and spelled.get("bare"):
        fraction = ""
    # More digits than the column's cells have: cut off, the bound would be below the value that it stands for.
    elif not whole and instant.microsecond % 10 ** (6 - digits):
        fraction = f".{instant.microsecond:06d}"
    return f"{day}{separator or ' '}{instant:%H:%M:%S}{fraction}{suffix}"


def _zone(suffix: str) -> timezone:
    if suffix == "Z":
        return UTC
    sign = -1 if suffix[0] == "-" else 1
    return timezone(sign * timedelta(hours=int(suffix[1:3]), minutes=int(suffix[-2:])))


# --- a user's query ------------------------------------------------------------------------------

# What a colon may hide in: quoted things and comments.
TOKENS = re.compile(
    r"""'(?:[^']|'')*' | "(?:[^"]|"")*" | `(?:[^`]|``)*` | \[[^\]]*\] | --[^\n]* | /\*.*?(?:\*/|\Z)
      | (?<![\w:]):([A-Za-z_]\w*)""",
    re.VERBOSE | re.DOTALL,
)
LEXICON = Lexicon(TOKENS, quote_text)


def render_parameters(query: str, params: Mapping[str, str]) -> str:
    """Replace each `:name` by a quoted text; see shared/queries.py."""
    return queries.render_parameters(query, params, LEXICON)


def strip_query(query: str) -> str:
    """Check a query's outside; see shared/queries.py."""
    return queries.strip_query(query, LEXICON)


# --- statements ----------------------------------------------------------------------------------

after_key = after_row


def order_by(column: Column) -> str:
    """Return what orders by a column as literals compare it."""
    is_text = column.fact("wire") in ("text", "stamp", "loose", "any") or pa.types.is_string(column.arrow)
    return quote(column.name) + (" COLLATE BINARY" if is_text else "")


class CollatedDialect:
    """What paging by key asks of this module, with each key column's collation spelled out."""

    literal = staticmethod(literal)
    select = staticmethod(select)
    after_key = staticmethod(after_key)

    def __init__(self, columns: Sequence[Column]) -> None:
        self._ordered = {column.name: order_by(column) for column in columns}

    def quote(self, name: str) -> str:
        """Return a column as it is compared and ordered."""
        return self._ordered[name]
