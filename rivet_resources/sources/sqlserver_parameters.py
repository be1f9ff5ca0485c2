"""A user's query on SQL Server: its `:name` parameters, and what may stand around it.

Belongs here: finding what is code and what is quoted, in T-SQL. Not here: describing the query (sqlserver_catalog.py).
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from rivet_resources.errors import ConfigError
from rivet_resources.sources.sqlserver_sql import quote_text

# What a colon may hide in: quoted things and comments, which nest here too; `::` calls a method of a type.
TOKENS = re.compile(
    r"""[nN]?'(?:[^']|'')*' | "(?:[^"]|"")*" | \[(?:[^\]]|\]\])*\] | --[^\n]* | /\* | ::
      | (?<![\w\]):]):([A-Za-z_]\w*)""",
    re.VERBOSE | re.DOTALL,
)


def render_parameters(query: str, params: Mapping[str, str]) -> str:
    """Replace each `:name` outside quotes and comments by a checked literal.

    Raises:
        ConfigError: a name without a value; the message lists the known ones.
    """
    pieces: list[str] = []
    position = 0
    while match := TOKENS.search(query, position):
        end = _token_end(query, match)
        token = query[match.start() : end]
        pieces += [query[position : match.start()], _parameter(match[1], params) if match[1] else token]
        position = end
    return "".join([*pieces, query[position:]])


def _parameter(name: str, params: Mapping[str, str]) -> str:
    if name not in params:
        known = ", ".join(sorted(params)) or "none"
        raise ConfigError(
            f"The query uses :{name}, which has no value; known parameters: {known}. Add `params: {{{name}: …}}`."
        )
    return quote_text(params[name])


def _token_end(query: str, match: re.Match[str]) -> int:
    """Find where a token ends: a block comment at its own depth."""
    if match[0] != "/*":
        return match.end()
    depth, position = 1, match.end()
    while depth and (inner := re.compile(r"/\*|\*/").search(query, position)):
        depth += 1 if inner[0] == "/*" else -1
        position = inner.end()
    return len(query) if depth else position


def strip_query(query: str) -> str:
    """Check a query's outside: not empty, no trailing semicolon, no WITH, which a derived table cannot hold.

    Raises:
        ConfigError
    """
    bare = query.strip()
    code = _without_comments(bare).strip()
    if not code:
        raise ConfigError("The query is empty; write one SELECT.")
    if code.endswith(";"):
        raise ConfigError("The query ends with a semicolon; it is read as a derived table, so remove the semicolon.")
    if re.match(r"(?i)with\b", code):
        raise ConfigError(
            "The query begins with WITH, which SQL Server does not allow in a derived table; make it a view, or nest "
            "the parts as derived tables."
        )
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
