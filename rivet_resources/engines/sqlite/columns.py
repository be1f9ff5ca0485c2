"""How one SQLite column is read and what it becomes: the facts of types.py applied to a declared type.

Belongs here: from (declared type, rules) to a `Column`. Not here: catalog statements (catalog.py), cells
(values.py).

Facts of a column beside those of shared/columns.py: wire, which storage classes are taken and how; flag, since every
column may hold cells of another class; zone, of naive times that become instants; times, how a column of times spells
them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from rivet_resources.contracts.source import TypeRules
from rivet_resources.contracts.types import Column
from rivet_resources.engines.shared.columns import ColumnBuilder, Spelling, policy_of, rule_of
from rivet_resources.engines.sqlite import sql
from rivet_resources.engines.sqlite.types import OVERRIDDEN, SQLITE, TIMES, Kind, Shape, kind_of

ALL = frozenset({"bool", "integer", "float", "numeric", "text", "binary", "json"})
SPELLING = Spelling(
    quote=sql.quote,
    quote_text=sql.quote_text,
    as_text=lambda made: "{}",
    zoned="{}",
    reads={"bool": "bool", "json": "json"},
    base_reads={"text": "text", "numeric": "text"},
    text_read="text",
    special=ALL,
    textable=frozenset({"bool", "integer", "float"}),
)


@dataclass(frozen=True)
class Declared:
    """One column as the catalog gives it."""

    name: str
    native: str  # as declared; '' for none, and for expressions
    not_null: bool = False


Probe = Callable[[str], str]  # column → how its times are spelled, as JSON


def column_of(declared: Declared, *, rules: TypeRules, relation: str, probe: Probe) -> Column:
    """Decide one column. `probe` looks at the cells, and is only asked about columns that become times.

    Raises:
        UnsupportedColumn: only a text form while `on_unsupported: fail`.
        ConfigError: the override does not exist or does not apply to this type.
    """
    rule = rule_of(declared.name, rules, relation)
    stem = (rule.type or "").partition("(")[0]
    policy = policy_of(rule, rules)
    shape = _shape(kind_of(declared.native), stem, is_text="text" in (stem, policy))
    facts = {"wire": shape.wire, "flag": "typeof", "flag_kind": "mixed_types" if shape.wire == "any" else "other_class"}
    # One pass over the column, so only for columns whose cells become times.
    if stem in TIMES and policy != "text":
        facts |= {"times": probe(declared.name), "zone": rule.timezone or ""}
    column = ColumnBuilder(
        name=declared.name,
        native=declared.native,
        base=declared.native.lower() or "none",
        sql_type="",
        not_null=declared.not_null,
        comment="",
        relation=relation,
        fact=shape.fact,
        rules=rules,
        spelling=SPELLING,
        facts=facts,
    ).decided()
    return _in_zone(column) if column.fact("zone") and column.fact("target") else column


def _shape(kind: Kind, stem: str, *, is_text: bool) -> Shape:
    """Return what a column is read as, by its declared type and the override's word."""
    shape = OVERRIDDEN.get((kind, stem), SQLITE[kind])
    # As text, numbers are taken beside texts. Blobs have no text form, and an untyped column takes whichever class
    # comes first.
    if is_text and kind not in ("bytes", "any"):
        return replace(shape, wire="loose")
    return shape


def _in_zone(column: Column) -> Column:
    """Let naive times be read in their zone, before they are converted."""
    facts = {**dict(column.facts), "base_read": "zoned", "natural": "string"}
    return replace(column, facts=tuple(facts.items()))
