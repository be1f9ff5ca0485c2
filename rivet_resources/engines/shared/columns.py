"""From a catalog entry and the user's rules to a `Column`: the same decisions for every engine.

Belongs here: what wins (override, policy, portable typing, the fact itself), and what is said when nothing fits. Not
here: facts (`engines/*/types.py`), SQL of one engine (its `Spelling`), readers of cells (`engines/*/values.py`).

Facts set on each column, for literals and readers: relation, base and type (the catalog's and the SQL name of the
type), family, read; with an override also target (its word), base_read and natural (the reader before it, and the
Arrow type that one gives).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from rivet_resources.contracts.source import ColumnRule, TypeRules
from rivet_resources.contracts.types import Column, Fact, Fidelity, Policy, is_portable, parse_word
from rivet_resources.errors import ConfigError, UnsupportedColumn

# Families with values that their Arrow type cannot hold; in the others `on_special_value` has nothing to decide.
SPECIAL = frozenset({"numeric", "date", "time", "timestamp", "timestamptz", "list"})


@dataclass(frozen=True)
class Spelling:
    """How one engine asks for a column, and which of its readers decodes it. In patterns `{}` is the quoted column."""

    quote: Callable[[str], str]
    quote_text: Callable[[str], str]
    as_text: Callable[[ColumnBuilder], str]  # pattern of a type's lossless text form
    zoned: str  # pattern that turns a naive time of `{zone}`, a quoted text, into a UTC instant
    reads: Mapping[str, str]  # family → reader; `plain` where none is named
    base_reads: Mapping[str, str] = field(default_factory=dict)  # family → reader that comes before an override's
    text_read: str = "plain"
    numeric: str = "{}"  # pattern of a numeric that an override converts
    portable: Mapping[str, str] = field(default_factory=dict)  # family → pattern where portable typing makes it text
    special: frozenset[str] = SPECIAL
    textable: frozenset[str] = SPECIAL  # families whose special values have a text form


@dataclass(frozen=True)
class ColumnBuilder:
    """One column on its way from the catalog to a `Column`."""

    name: str
    native: str  # as the catalog spells it, modifiers included
    base: str  # the catalog's name of the base type
    sql_type: str  # what a literal is cast to
    not_null: bool
    comment: str
    relation: str
    fact: Fact
    rules: TypeRules
    spelling: Spelling
    facts: Mapping[str, str] = field(default_factory=dict)  # further ones of the engine

    @property
    def rule(self) -> ColumnRule:
        """Return the user's word on this column."""
        return rule_of(self.name, self.rules, self.relation)

    @property
    def policy(self) -> Policy:
        """Return what becomes of a value that does not fit."""
        return policy_of(self.rule, self.rules)

    @property
    def is_portable(self) -> bool:
        """Return whether types that many Parquet readers refuse are written as text."""
        return self.rules.typing == "portable"

    def decided(self) -> Column:
        """Decide the column.

        Raises:
            UnsupportedColumn: it has a text form only, and `on_unsupported: fail` refuses that.
            ConfigError: the override does not exist, or does not apply to this type.
        """
        if self.rule.type is not None:
            return self.overridden()
        return self.checked(self.plain())

    def checked(self, column: Column) -> Column:
        """Refuse a mere text form where the user asked for strictness.

        Raises:
            UnsupportedColumn
        """
        strict = (self.rule.on_unsupported or self.rules.on_unsupported) == "fail"
        # With the policy `text` the text form is what the user asked for, so strictness has nothing against it.
        if strict and column.fidelity == "logical_string" and self.policy != "text":
            raise UnsupportedColumn(
                f"{self.relation}.{self.name} is {self.native}, which is only exported as text, and "
                f"`on_unsupported: fail` refuses that. "
                f"Choose: `columns: {{{self.name}: text}}`, or `on_unsupported: text`."
            )
        return column

    def select(self, pattern: str) -> str:
        """Put the quoted column into a pattern."""
        return pattern.replace("{}", self.spelling.quote(self.name))

    def column(
        self, arrow: pa.DataType, pattern: str, *, fidelity: Fidelity, logical: str, read: str, **facts: str
    ) -> Column:
        """Put a Column together; NULLs are ruled out only by the catalog, and by no policy that adds some."""
        known = {"relation": self.relation, "base": self.base, "type": self.sql_type, "family": self.fact.family}
        # A column that stays NOT NULL in the file must never get a NULL from us.
        may_add_nulls = self.policy == "null" and (self.fact.family in self.spelling.special or "target" in facts)
        return Column(
            name=self.name,
            native=self.native,
            arrow=arrow,
            select=self.select(pattern),
            fidelity=fidelity,
            logical=logical,
            nullable=not self.not_null or may_add_nulls,
            policy=self.policy,
            comment=self.comment,
            facts=tuple((k, v) for k, v in {**known, **self.facts, "read": read, **facts}.items() if v),
        )

    def text(self, *, fidelity: Fidelity = "logical_string") -> Column:
        """Read the column as the type's own text."""
        pattern = self.fact.sql if pa.types.is_string(self.fact.arrow) else self.spelling.as_text(self)
        return self.column(
            pa.string(), pattern, fidelity=fidelity, logical=self.fact.logical, read=self.spelling.text_read
        )

    def plain(self) -> Column:
        """Type the column as its fact says."""
        fact, spelling = self.fact, self.spelling
        if pa.types.is_string(fact.arrow):
            return self.text(fidelity=fact.fidelity)
        if self.policy == "text" and fact.family in spelling.textable and fact.logical != "money":
            return self.text()
        arrow = pa.string() if self.is_portable and not is_portable(fact.arrow) else fact.arrow
        logical = fact.logical or ("" if arrow == fact.arrow else fact.family)
        pattern, read = fact.sql, spelling.reads.get(fact.family, "plain")
        if fact.family == "numeric":
            # Portable typing made it text: it is still read as a number first, so that NaN is found and counted.
            read = "decimal" if arrow == fact.arrow else "decimal_text"
        if arrow != fact.arrow:
            pattern = spelling.portable.get(fact.family, pattern)
        return self.column(arrow, pattern, fidelity=fact.fidelity, logical=logical, read=read)

    def overridden(self) -> Column:
        """Type the column as `columns:` says.

        Raises:
            ConfigError: no such word, or one this type cannot be read as.
        """
        rule, family = self.rule, self.fact.family
        try:
            word = parse_word(rule.type or "")
        except ValueError as error:
            raise ConfigError(f"columns.{self.name}: {error}.") from None
        if not word.accepts(family):
            raise ConfigError(
                f"columns.{self.name}: {word.stem} cannot be read from {self.native}. "
                f"Use `text`, which every column can be, or leave the override out."
            )
        # `on_special_value: text` decides over the override's type: the column is text from its first row, and its
        # schema never depends on a value.
        if word.stem == "text" or self.policy == "text":
            return self.text(fidelity="exact" if family in ("text", "json") else "logical_string")
        if word.stem.startswith("timestamp_tz") and family == "timestamp":
            return self.zoned(rule, word.stem)
        return self.converted(rule.type or "", pattern=self.spelling.numeric if family == "numeric" else self.fact.sql)

    def zoned(self, rule: ColumnRule, stem: str) -> Column:
        """Read naive times as instants of the zone the user names.

        Raises:
            ConfigError: no zone is named.
        """
        if not rule.timezone:
            raise ConfigError(
                f"columns.{self.name}: {self.native} has no zone, so `{stem}` needs `timezone:`, such as Europe/Berlin."
            )
        pattern = self.spelling.zoned.replace("{zone}", self.spelling.quote_text(rule.timezone))
        return self.converted(stem, pattern=pattern, family="timestamptz")

    def converted(self, word: str, *, pattern: str, family: str = "") -> Column:
        """Put together a column that the reader converts; portable files get the text of types others refuse."""
        parsed = parse_word(word)
        arrow = pa.string() if self.is_portable and not is_portable(parsed.arrow) else parsed.arrow
        fidelity: Fidelity = "lossy" if parsed.stem.startswith("float") and self.fact.family != "float" else "exact"
        # Naive times of a zone arrive as instants: the server converts them, with its own rules for the zone.
        natural = pa.timestamp("us", "UTC") if family == "timestamptz" else self.fact.arrow
        base_read = self.spelling.base_reads.get(family or self.fact.family)
        return self.column(
            arrow,
            pattern,
            fidelity=fidelity,
            logical=parsed.logical,
            read="override",
            target=word,
            **({"base_read": base_read, "natural": str(natural)} if base_read else {}),
            **({"family": family} if family else {}),
        )


def policy_of(rule: ColumnRule, rules: TypeRules) -> Policy:
    """Return what becomes of a value that does not fit; a column's own word stands above `on_error`."""
    word = rule.on_special_value or rules.on_special_value
    is_own = rule.on_special_value is not None
    # `on_error` puts rows aside only where nothing is said of the column itself; a word on the column wins.
    return "row" if word == "fail" and rules.refuses_rows and not is_own else word


def rule_of(name: str, rules: TypeRules, relation: str) -> ColumnRule:
    """Return the column's entry of `columns:`, `table.column` before the bare name."""
    bare = relation.rpartition(".")[2]
    # From the most exact spelling to the bare name: `columns:` of an export with several tables may mean one of
    # them.
    for key in (f"{relation}.{name}", f"{bare}.{name}", name):
        if key in rules.columns:
            return rules.columns[key]
    return ColumnRule()
