"""A user's query on SQL Server: its `:name` parameters, and what may stand around it.

Belongs here: finding what is code and what is quoted, in T-SQL. Not here: describing the query (catalog.py).
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from rivet_resources.engines.shared import queries
from rivet_resources.engines.shared.queries import Lexicon, nested_comment
from rivet_resources.engines.sqlserver.sql import quote_text
from rivet_resources.errors import ConfigError

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
