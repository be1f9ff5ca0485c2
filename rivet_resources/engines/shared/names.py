"""Names of tables and columns as users write them, whatever the engine: plain, or quoted in any of SQL's three ways."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase

from rivet_resources.contracts.relation import Relation
from rivet_resources.errors import ConfigError, UnknownColumn

QUOTED = re.compile(
    r"""\s*(?: "((?:[^"]|"")+)" | `((?:[^`]|``)+)` | \[((?:[^\]]|\]\])+)\] | ([^\s"`\[\].]+) )\s*""", re.VERBOSE
)
DOUBLED = ('""', "``", "]]")


def split_name(table: str) -> tuple[str | None, str]:
    """Split `name` or `schema.name`, each plain, "quoted", `quoted` or [quoted], into exact names.

    Returns:
        (schema, name), schema None where none is written.

    Raises:
        ConfigError: anything else.
    """
    names: list[str] = []
    position = 0
    while match := QUOTED.match(table, position):
        names.append(_unquote(match))
        position = match.end()
        if position == len(table) or table[position] != ".":
            break
        position += 1
    if position != len(table) or len(names) not in (1, 2) or table.endswith("."):
        raise ConfigError(
            f"Table {table!r} is not a name; write name or schema.name, "
            'or "Quoted"."Name" for names with dots or blanks.'
        )
    return (names[0], names[1]) if len(names) == 2 else (None, names[0])


def _unquote(match: re.Match[str]) -> str:
    for doubled, group in zip(DOUBLED, match.groups(), strict=False):
        if group is not None:
            return str(group).replace(doubled, doubled[0])
    return str(match[4])


def is_meant(pattern: str, schema: str, name: str) -> bool:
    """Return whether a pattern means a table: its `name`, `schema.name`, either as SQL quotes it, or a glob of either.

    '' means every table. Names are compared exactly, so that `Orders` and `orders` stay two tables.
    """
    # As it stands first: a name with a dot or a bracket in it is then found without being quoted.
    if pattern in ("", name, f"{schema}.{name}"):
        return True
    if fnmatchcase(name, pattern) or ("." in pattern and fnmatchcase(f"{schema}.{name}", pattern)):
        return True
    try:
        return split_name(pattern) in ((None, name), (schema, name))
    except ConfigError:
        return False


def schema_asked(pattern: str) -> str | None:
    """Return the schema that a pattern writes out; None where it names none, or a glob of some."""
    try:
        # A glob has no one schema, so the catalog is asked for all of them.
        return split_name(pattern)[0] if pattern and not re.search(r"[*?]", pattern.partition(".")[0]) else None
    except ConfigError:
        return None


def require_expression(text: str, relation: Relation) -> None:
    """Refuse a bare name that is no column of a relation; anything in parentheses is the server's to judge.

    Raises:
        UnknownColumn
    """
    # Anything in parentheses is an expression of the engine, which no list of columns could judge.
    if relation.column(text) is None and not text.startswith("("):
        known = [column.name for column in relation.columns]
        raise UnknownColumn(text, relation=relation.name, known=known, key="cursor_column")
