"""How one PostgreSQL column is asked for and what it becomes: the facts of its type applied to a catalog entry.

Belongs here: from (type, modifier, rules) to a `Column`, with the private facts the decoder reads. Not here:
catalog statements (catalog.py), cells (values.py).

Facts of a column beside those of shared/columns.py: items, and flag, the SQL that is true where an array is not a plain
list.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from rivet_resources.contracts.source import TypeRules
from rivet_resources.contracts.types import Column, Fact, is_portable
from rivet_resources.engines.postgres import sql
from rivet_resources.engines.postgres.types import (
    AS_TEXT,
    OUTPUT,
    POSTGRES,
    POSTGRES_ENUM,
    POSTGRES_ITEMS,
    POSTGRES_TEXT,
    postgres_money,
    postgres_numeric,
)
from rivet_resources.engines.shared.columns import ColumnBuilder, Spelling
from rivet_resources.errors import UnsupportedColumn


@dataclass(frozen=True)
class Described:
    """One column as the catalog, or the description of a query, gives it."""

    name: str
    oid: int
    modifier: int
    not_null: bool = False
    comment: str = ""


@dataclass(frozen=True)
class TypeEntry:
    """One row of pg_type; `base` is a domain's base type, `item` an array's."""

    oid: int
    name: str
    kind: str  # typtype: b base, c composite, d domain, e enum, p pseudo, r range, m multirange
    item: int
    base: int
    modifier: int
    sql: str
    is_array: bool


Types = Mapping[int, TypeEntry]


def column_of(
    described: Described,
    *,
    types: Types,
    rules: TypeRules,
    native: str,
    relation: str,
    money_scale: int,
    is_unchecked: bool,
) -> Column:
    """Decide one column. `is_unchecked`: the server's encoding does not promise UTF-8.

    Raises:
        UnsupportedColumn: a pseudo-type, or only a text form while `on_unsupported: fail`.
        ConfigError: the override does not exist or does not apply to this type.
    """
    entry, modifier = _resolve(types, described.oid, described.modifier)
    if entry.kind == "p":
        raise UnsupportedColumn(
            f"{relation}.{described.name} is {native}, which has no value that can be stored. Leave it out, or "
            f"cast it in a query."
        )
    made = ColumnBuilder(
        name=described.name,
        native=native,
        base=entry.name,
        sql_type=entry.sql,
        not_null=described.not_null,
        comment=described.comment,
        relation=relation,
        fact=_fact(types, entry, modifier, money_scale),
        rules=rules,
        spelling=_spelling(is_unchecked=is_unchecked),
    )
    if made.fact.family == "list" and made.rule.type is None and made.policy != "text":
        return _read_as_list(made)
    return made.decided()


def _resolve(types: Types, oid: int, modifier: int) -> tuple[TypeEntry, int]:
    """Walk a domain down to its base, taking the domain's modifier along."""
    entry = types[oid]
    # The domain's, since a column of a domain cannot have a modifier of its own.
    return _resolve(types, entry.base, entry.modifier) if entry.base else (entry, modifier)


def _fact(types: Types, entry: TypeEntry, modifier: int, money_scale: int) -> Fact:
    """Look the base type up; arrays are decided in `plain`."""
    if entry.name == "numeric":
        return postgres_numeric(modifier)
    if entry.name == "money":
        return postgres_money(money_scale)
    if entry.kind == "e":
        return POSTGRES_ENUM
    if entry.is_array:
        return _list_fact(types, entry, modifier) or POSTGRES_TEXT
    return POSTGRES.get(entry.name, POSTGRES_TEXT)


def _list_fact(types: Types, entry: TypeEntry, modifier: int) -> Fact | None:
    """Return the list a one-dimensional array becomes, None when its items have no Arrow home of their own."""
    item, item_modifier = _resolve(types, entry.item, modifier)
    if item.kind == "e" or item.name == "uuid":
        return Fact("list", _list(pa.string()), "{}::text[]")
    if item.name not in POSTGRES_ITEMS:
        return None
    fact = postgres_numeric(item_modifier) if item.name == "numeric" else POSTGRES[item.name]
    # Without precision and scale the items are texts, and so the array is one.
    if item.name == "numeric" and not pa.types.is_decimal(fact.arrow):
        return None
    cast = "{}" if types[entry.item].kind != "d" else "{}::" + item.sql + "[]"
    return Fact("list", _list(fact.arrow), cast)


def _list(item: pa.DataType) -> pa.DataType:
    return pa.list_(pa.field("item", item))


READS: Mapping[str, str] = {
    "date": "date", "timestamp": "stamp", "timestamptz": "stamp", "time": "time", "json": "json",
}  # fmt: skip


def _spelling(*, is_unchecked: bool) -> Spelling:
    """Return how PostgreSQL writes things; text is validated where the server's encoding does not promise UTF-8."""
    return Spelling(
        quote=sql.quote,
        quote_text=sql.quote_text,
        as_text=lambda made: AS_TEXT if made.base in AS_TEXT_TYPES else OUTPUT,
        zoned="({} AT TIME ZONE {zone})",
        reads=READS,
        base_reads={"date": "date", "timestamp": "stamp", "timestamptz": "stamp", "numeric": "number"},
        text_read="text" if is_unchecked else "plain",
        numeric="{}::numeric",
        portable={"uuid": AS_TEXT, "numeric": AS_TEXT},
    )


def _read_as_list(made: ColumnBuilder) -> Column:
    """Read a one-dimensional array as a list, with a hidden flag for arrays of any other shape."""
    arrow, pattern = made.fact.arrow, made.fact.sql
    if made.is_portable and not is_portable(arrow):
        arrow, pattern = _list(pa.string()), "{}::text[]"
    item = arrow.value_type
    is_plain = not (pa.types.is_decimal(item) or pa.types.is_date(item) or pa.types.is_timestamp(item))
    # ADBC flattens `{{1,2},{3,4}}` to four items and drops lower bounds without a word, so the server is asked as well.
    flag = made.select("(array_ndims({}) > 1 OR array_lower({}, 1) <> 1)")
    return made.column(
        arrow, pattern, fidelity="exact", logical="", read="list", items="plain" if is_plain else "typed", flag=flag
    )


# Types without a cast function to text: `::text` is their output function (checked in tests/engines).
AS_TEXT_TYPES = frozenset(
    {"numeric", "date", "time", "timetz", "timestamp", "timestamptz", "interval", "uuid", "json", "jsonb"}
)
