"""How one PostgreSQL column is asked for and what it becomes: the facts of types.py applied to a catalog entry.

Belongs here: from (type, modifier, rules) to a `Column`, with the private facts the decoder reads. Not here:
catalog statements (postgres_catalog.py), cells (postgres_values.py).

Facts of a column: relation, base and type (for literals), family, read (the decoder), items, flag (SQL that is
true where an array is not a plain list), target (the override's word).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from rivet_resources.errors import ConfigError, UnsupportedColumn
from rivet_resources.sources import postgres_sql as sql
from rivet_resources.sources.protocol import ColumnRule, TypeRules
from rivet_resources.types import (
    AS_TEXT,
    OUTPUT,
    POSTGRES,
    POSTGRES_ENUM,
    POSTGRES_ITEMS,
    POSTGRES_TEXT,
    Column,
    Fact,
    Fidelity,
    SpecialValue,
    is_portable,
    parse_word,
    postgres_money,
    postgres_numeric,
)


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
    rule = rule_of(described.name, rules, relation)
    if entry.kind == "p":
        raise UnsupportedColumn(
            f"{relation}.{described.name} is {native}, which has no value that can be stored. Leave it out, or "
            f"cast it in a query."
        )
    made = _Making(
        described=described,
        entry=entry,
        fact=_fact(types, entry, modifier, money_scale),
        native=native,
        relation=relation,
        policy=(rule.on_special_value or rules.on_special_value),
        is_portable=rules.typing == "portable",
        is_unchecked=is_unchecked,
    )
    if rule.type is not None:
        return made.overridden(rule)
    column = made.plain(types, modifier)
    strict = (rule.on_unsupported or rules.on_unsupported) == "fail"
    if strict and column.fidelity == "logical_string" and made.policy != "text":
        raise UnsupportedColumn(
            f"{relation}.{described.name} is {native}, which is only exported as text, and `on_unsupported: fail` "
            f"refuses that. "
            f"Choose: `columns: {{{described.name}: text}}`, or `on_unsupported: text`."
        )
    return column


def rule_of(name: str, rules: TypeRules, relation: str) -> ColumnRule:
    """Give the column's entry of `columns:`, `table.column` before the bare name."""
    bare = relation.rpartition(".")[2]
    for key in (f"{relation}.{name}", f"{bare}.{name}", name):
        if key in rules.columns:
            return rules.columns[key]
    return ColumnRule()


def _resolve(types: Types, oid: int, modifier: int) -> tuple[TypeEntry, int]:
    """Walk a domain down to its base, taking the domain's modifier along."""
    entry = types[oid]
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
    """Give the list a one-dimensional array becomes, None when its items have no Arrow home of their own."""
    item, item_modifier = _resolve(types, entry.item, modifier)
    if item.kind == "e" or item.name == "uuid":
        return Fact("list", _list(pa.string()), "{}::text[]")
    if item.name not in POSTGRES_ITEMS:
        return None
    fact = postgres_numeric(item_modifier) if item.name == "numeric" else POSTGRES[item.name]
    if item.name == "numeric" and not pa.types.is_decimal(fact.arrow):
        return None
    cast = "{}" if types[entry.item].kind != "d" else "{}::" + item.sql + "[]"
    return Fact("list", _list(fact.arrow), cast)


def _list(item: pa.DataType) -> pa.DataType:
    return pa.list_(pa.field("item", item))


# Families with values that their Arrow type cannot hold; in the others `on_special_value` has nothing to decide.
SPECIAL = frozenset({"numeric", "date", "time", "timestamp", "timestamptz", "list"})
READS: Mapping[str, str] = {
    "date": "date", "timestamp": "stamp", "timestamptz": "stamp", "time": "time", "json": "json", "list": "list",
}  # fmt: skip


@dataclass(frozen=True)
class _Making:
    """One column on its way from the catalog to a `Column`."""

    described: Described
    entry: TypeEntry
    fact: Fact
    native: str
    relation: str
    policy: SpecialValue
    is_portable: bool
    is_unchecked: bool

    @property
    def quoted(self) -> str:
        return sql.quote(self.described.name)

    def select(self, pattern: str) -> str:
        return pattern.replace("{}", self.quoted)

    def column(
        self, arrow: pa.DataType, pattern: str, *, fidelity: Fidelity, logical: str, read: str, **facts: str
    ) -> Column:
        """Put a Column together; NULLs are ruled out only by the catalog, and by no policy that adds some."""
        known = {"relation": self.relation, "base": self.entry.name, "type": self.entry.sql, "family": self.fact.family}
        may_add_nulls = self.policy == "null" and (self.fact.family in SPECIAL or "target" in facts)
        return Column(
            name=self.described.name,
            native=self.native,
            arrow=arrow,
            select=self.select(pattern),
            fidelity=fidelity,
            logical=logical,
            nullable=not self.described.not_null or may_add_nulls,
            policy=self.policy,
            comment=self.described.comment,
            facts=tuple((name, value) for name, value in {**known, "read": read, **facts}.items() if value),
        )

    def text(self, *, fidelity: Fidelity = "logical_string") -> Column:
        """Read the column as the type's own text."""
        pattern = self.fact.sql if pa.types.is_string(self.fact.arrow) else self.text_pattern
        read = "text" if self.is_unchecked else "plain"
        return self.column(pa.string(), pattern, fidelity=fidelity, logical=self.fact.logical, read=read)

    @property
    def text_pattern(self) -> str:
        """`::text` where no cast function stands between it and the output function."""
        return AS_TEXT if self.entry.name in AS_TEXT_TYPES else OUTPUT

    def plain(self, types: Types, modifier: int) -> Column:
        """Type the column as `types.md`, section 6, says."""
        fact = self.fact
        if pa.types.is_string(fact.arrow):
            return self.text(fidelity=fact.fidelity)
        if self.policy == "text" and fact.family in SPECIAL and fact.logical != "money":
            return self.text()
        if fact.family == "list":
            return self.listed()
        arrow = pa.string() if self.is_portable and not is_portable(fact.arrow) else fact.arrow
        logical = fact.logical or ("" if arrow == fact.arrow else fact.family)
        pattern, read = fact.sql, READS.get(fact.family, "plain")
        if fact.family == "numeric":
            read = "decimal" if arrow == fact.arrow else "decimal_text"
        if arrow != fact.arrow and fact.family in ("uuid", "numeric"):
            pattern = AS_TEXT
        return self.column(arrow, pattern, fidelity=fact.fidelity, logical=logical, read=read)

    def listed(self) -> Column:
        """Read a one-dimensional array as a list, with a hidden flag for arrays of any other shape."""
        arrow, pattern = self.fact.arrow, self.fact.sql
        if self.is_portable and not is_portable(arrow):
            arrow, pattern = _list(pa.string()), "{}::text[]"
        item = arrow.value_type
        is_plain = not (pa.types.is_decimal(item) or pa.types.is_date(item) or pa.types.is_timestamp(item))
        flag = self.select("(array_ndims({}) > 1 OR array_lower({}, 1) <> 1)")
        return self.column(
            arrow, pattern, fidelity="exact", logical="", read="list", items="plain" if is_plain else "typed", flag=flag
        )

    def overridden(self, rule: ColumnRule) -> Column:
        """Type the column as `columns:` says.

        Raises:
            ConfigError: no such word, or one this type cannot be read as.
        """
        try:
            word = parse_word(rule.type or "")
        except ValueError as error:
            raise ConfigError(f"columns.{self.described.name}: {error}.") from None
        family = self.fact.family
        if not word.accepts(family):
            raise ConfigError(
                f"columns.{self.described.name}: {word.stem} cannot be read from {self.native}. "
                f"Use `text`, which every column can be, or leave the override out."
            )
        if word.stem == "text" or self.policy == "text":
            return self.text(fidelity="exact" if family in ("text", "json") else "logical_string")
        if word.stem.startswith("timestamp_tz") and family == "timestamp":
            return self.zoned(rule, word.stem)
        return self.converted(rule.type or "", pattern="{}::numeric" if family == "numeric" else self.fact.sql)

    def zoned(self, rule: ColumnRule, stem: str) -> Column:
        """Read naive times as instants of the zone the user names."""
        if not rule.timezone:
            raise ConfigError(
                f"columns.{self.described.name}: {self.native} has no zone, so `{stem}` needs `timezone:`, such "
                f"as Europe/Berlin."
            )
        pattern = f"({{}} AT TIME ZONE {sql.quote_text(rule.timezone)})"
        return self.converted(stem, pattern=pattern, family="timestamptz")

    def converted(self, word: str, *, pattern: str, family: str = "") -> Column:
        """Put together a column that the decoder converts; portable files get the text of types others refuse."""
        parsed = parse_word(word)
        arrow = pa.string() if self.is_portable and not is_portable(parsed.arrow) else parsed.arrow
        fidelity: Fidelity = "lossy" if parsed.stem.startswith("float") and self.fact.family != "float" else "exact"
        return self.column(
            arrow,
            pattern,
            fidelity=fidelity,
            logical=parsed.logical,
            read="override",
            target=word,
            **({"family": family} if family else {}),
        )


# Types without a cast function to text: `::text` is their output function (checked in tests/engines).
AS_TEXT_TYPES = frozenset(
    {"numeric", "date", "time", "timetz", "timestamp", "timestamptz", "interval", "uuid", "json", "jsonb"}
)
