"""Where an export's rows and columns come from: its tables, and column to column as far as it can be proven.

Belongs here: keys of source tables, column lineage. Not here: anything that asks the source. A table's columns map one
to one; of a query only what a SQL parser (`sqlglot`, optional) proves is shown, and nothing is guessed.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

import dagster as dg

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rivet_assets.blocks.export import Export
    from rivet_resources.contracts.source import Source

MOST_COLUMNS = 200  # of a query; each costs the parser some milliseconds


def table_key(source_name: str, source: Source, table: str) -> dg.AssetKey:
    """Name the external asset of a source table: [source, schema, table]."""
    return dg.AssetKey([source_name, *map(key_part, source.lineage_name(table))])


def key_part(name: str) -> str:
    """Spell a name as Dagster takes it in a key: it makes names of steps and inputs of it, so the rest becomes `_`."""
    return re.sub(r"[^A-Za-z0-9_.-]", "_", name)


def upstream_keys(export: Export, *, source_name: str, source: Source) -> tuple[dg.AssetKey, ...]:
    """Name the source tables an export reads, sorted; none for a query that the parser does not understand."""
    if export.table is not None:
        return (table_key(source_name, source, export.table),)
    tables = _tables(export.query or "", source.facts.parser)
    return tuple(sorted(table_key(source_name, source, table) for table in tables))


def column_lineage(
    export: Export, columns: Mapping[str, Iterable[str]], *, source_name: str, source: Source
) -> dg.TableColumnLineage | None:
    """Map each column of the parts to the source's columns it is made of; None when nothing is proven.

    Args:
        columns: column of the parts → columns of the relation that the transforms make it of.
    """
    proven = _proven(export, {name for made_of in columns.values() for name in made_of}, source)
    found = {
        name: [
            dg.TableColumnDep(table_key(source_name, source, table), column)
            for table, column in sorted({origin for part in made_of for origin in proven.get(part, ())})
        ]
        for name, made_of in columns.items()
    }
    found = {name: origins for name, origins in found.items() if origins}
    return dg.TableColumnLineage(found) if found else None


def _proven(export: Export, names: Iterable[str], source: Source) -> dict[str, set[tuple[str, str]]]:
    """Map columns of the relation to (table, column) at the source."""
    if export.table is not None:
        return {name: {(export.table, name)} for name in names}
    return _query_columns(export.query or "", sorted(names), source.facts.parser)


@cache  # asked for by asset, sensors and source tables; a parse costs a millisecond
def _tables(query: str, dialect: str | None) -> frozenset[str]:
    """List the tables a query reads, as SQL spells them; WITH names are not tables."""
    with _parser() as sqlglot:
        if sqlglot is None:
            return frozenset()
        tree = sqlglot.parse_one(query, dialect=dialect)
        named = {cte.alias for cte in tree.find_all(sqlglot.exp.CTE)}
        tables = filter(_has_name, tree.find_all(sqlglot.exp.Table))
        # A name of `WITH` hides a table of the same name, but none that is written with its schema.
        return frozenset(_spell(table, dialect) for table in tables if table.db or table.name not in named)
    return frozenset()


def _query_columns(query: str, names: list[str], dialect: str | None) -> dict[str, set[tuple[str, str]]]:
    found: dict[str, set[tuple[str, str]]] = {}
    if len(names) > MOST_COLUMNS:
        return found
    with _parser() as sqlglot:
        if sqlglot is None:
            return found
        from sqlglot.lineage import lineage  # start

        tree = sqlglot.parse_one(query, dialect=dialect)
        for name in names:
            # A column that the parser cannot follow, such as one of `*`, leaves the others.
            with _parser():
                origins = set()
                for node in lineage(name, tree, {}, dialect=dialect).walk():
                    table = node.expression
                    if isinstance(table, sqlglot.exp.Table) and not node.downstream and _has_name(table):
                        column = sqlglot.exp.to_column(node.name, dialect=dialect).name
                        if column != "*":
                            origins.add((_spell(table, dialect), column))
                if origins:
                    found[name] = origins
    return found


def _has_name(table: Any) -> bool:
    """Return a table from a function that stands in its place, such as generate_series(1, 3)."""
    from sqlglot import exp  # start

    return isinstance(table.this, exp.Identifier)


def _spell(table: Any, dialect: str | None) -> str:
    """Spell a table as `table:` does: schema.name, quoted where the query quotes."""
    return ".".join(part.sql(dialect=dialect) for part in (table.args.get("db"), table.this) if part is not None)


@contextmanager
def _parser() -> Iterator[Any]:
    """Yield the parser, or None where it is not installed; a query it does not understand ends the block quietly."""
    try:
        import sqlglot  # start
    except ImportError:
        yield None
        return
    logger = logging.getLogger("sqlglot")
    level = logger.level
    # It logs what it does not understand, and such a line would show a piece of the user's query.
    logger.setLevel(logging.CRITICAL)
    try:
        yield sqlglot
    except Exception:
        # Whatever the parser trips over: lineage is a picture, and must not stop an export.
        pass
    finally:
        logger.setLevel(level)
