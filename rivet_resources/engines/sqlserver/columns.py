"""How one SQL Server column is asked for and what it becomes: the facts of types.py for a catalog entry.

Belongs here: from (type, length, precision, scale, rules) to a `Column`, with the private facts the reader needs. Not
here: catalog statements (catalog.py), cells (values.py).

Facts of a column beside those of shared/columns.py: scale, collation, long (a `(max)` type, which travels last), and
flag, the SQL that is 1 where a time has a seventh digit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from rivet_resources.contracts.source import TypeRules
from rivet_resources.contracts.types import Column, Fact
from rivet_resources.engines.shared.columns import SPECIAL, ColumnBuilder, Spelling
from rivet_resources.engines.sqlserver import sql
from rivet_resources.engines.sqlserver.types import SQLSERVER, SQLSERVER_REFUSED, sqlserver_decimal
from rivet_resources.engines.sqlserver.zones import zone_literal
from rivet_resources.errors import UnsupportedColumn


@dataclass(frozen=True)
class Described:
    """One column as the catalog, or the description of a query, gives it."""

    name: str
    base: str  # of sys.types, aliases resolved
    length: int  # bytes; −1: (max)
    precision: int
    scale: int
    not_null: bool = False
    collation: str = ""
    comment: str = ""

    @property
    def native(self) -> str:
        """Spell the type as DDL does: decimal(12,2), nvarchar(max)."""
        name = "rowversion" if self.base == "timestamp" else self.base
        if self.base in ("decimal", "numeric"):
            return f"{name}({self.precision},{self.scale})"
        if self.base in ("datetime2", "datetimeoffset", "time"):
            return f"{name}({self.scale})"
        if self.base in ("nchar", "nvarchar") and self.length != -1:
            # The catalog counts bytes, and a letter has two in these types.
            return f"{name}({self.length // 2})"
        if self.base in ("char", "varchar", "binary", "varbinary", "nchar", "nvarchar"):
            return f"{name}({'max' if self.length == -1 else self.length})"
        return name


LONG = frozenset(
    {"text", "ntext", "image", "xml", "json", "vector", "hierarchyid", "geometry", "geography", "sql_variant"}
)
TICKING = frozenset({"datetime2", "datetimeoffset", "time"})


def column_of(described: Described, *, rules: TypeRules, relation: str) -> Column:
    """Decide one column.

    Raises:
        UnsupportedColumn: a type without a lossless form, or only a text form while `on_unsupported: fail`.
        ConfigError: the override does not exist or does not apply to this type.
    """
    fact = _fact(described)
    if fact is None:
        why = SQLSERVER_REFUSED.get(described.base, "Rivet knows no form of it that loses nothing")
        raise UnsupportedColumn(
            f"{relation}.{described.name} is {described.native}, and {why}. Leave it out, or cast it in a query."
        )
    made = ColumnBuilder(
        name=described.name,
        native=described.native,
        base=described.base,
        sql_type=described.native,
        not_null=described.not_null,
        comment=described.comment,
        relation=relation,
        fact=fact,
        rules=rules,
        spelling=SPELLING,
        facts=_facts(described),
    )
    return _ticking(made.decided(), described, made)


# Of these a letter is one or two bytes by the column's code page, unless the collation is one of UTF-8.
OF_CODE_PAGE = frozenset({"char", "varchar", "text"})
LONGEST_NVARCHAR = 4000


def _fact(described: Described) -> Fact | None:
    if described.base in ("decimal", "numeric"):
        return sqlserver_decimal(described.precision, described.scale)
    fact = SQLSERVER.get(described.base)
    if fact is not None and _is_of_code_page(described):
        # By the server, to which a byte without a letter in the code page (0x81 of Windows-1252) is one all the same.
        # Drivers write `?` for it, and mssql-python 1.16 leaves out the letter behind it as well.
        return replace(fact, sql=f"CONVERT(nvarchar({_letters(described) or 'max'}), {{}})")
    return fact


def _is_of_code_page(described: Described) -> bool:
    return described.base in OF_CODE_PAGE and not described.collation.upper().endswith("_UTF8")


def _letters(described: Described) -> int:
    """Return how many letters a column holds at most; 0: more than fit into anything but a `(max)`."""
    return described.length if described.base != "text" and 0 < described.length <= LONGEST_NVARCHAR else 0


def _facts(described: Described) -> dict[str, str]:
    is_long = described.length == -1 or described.base in LONG
    # What is asked for as nvarchar(max) travels like one.
    is_long = is_long or (_is_of_code_page(described) and not _letters(described))
    return {
        "scale": str(described.scale),
        "collation": described.collation,
        "long": "yes" if is_long else "",
    }


# 1 where the digit of 100 ns is not 0; DATEPART gives nanoseconds in steps of 100.
SEVENTH_DIGIT = "CAST(CASE WHEN DATEPART(nanosecond, {}) % 1000 <> 0 THEN 1 ELSE 0 END AS bit)"


def _ticking(column: Column, described: Described, made: ColumnBuilder) -> Column:
    """Look for seventh digits where microseconds cannot hold them; nanoseconds get them through the text form."""
    if described.base not in TICKING or described.scale < 7 or column.fact("read") == SPELLING.text_read:
        return column
    facts = dict(column.facts)
    # Nanoseconds hold the digit, but the driver's own times do not: it comes as text.
    if facts.get("target", "").endswith("_ns"):
        facts |= {"family": "text", "base_read": "plain", "natural": "string"}
        return replace(column, select=made.select(_text(made)), facts=tuple(facts.items()))
    # The driver's microseconds have lost the digit by the time a cell is here, so the server is asked for it.
    facts |= {"flag": made.select(SEVENTH_DIGIT), "flag_kind": "seventh_digit"}
    return replace(column, facts=tuple(facts.items()), nullable=column.nullable or column.policy == "null")


# --- how SQL Server writes things ----------------------------------------------------------------

# Lossless text by base type; others as nvarchar(max).
TEXTS: Mapping[str, str] = {
    "bit": "CONVERT(varchar(1), {})",
    "float": "CONVERT(varchar(40), {}, 3)",
    "real": "CONVERT(varchar(40), {}, 3)",
    "uniqueidentifier": "LOWER(CONVERT(varchar(36), {}))",
    "date": "CONVERT(varchar(10), {}, 23)",
    "time": "CONVERT(varchar(16), {}, 121)",
    "datetime": "CONVERT(varchar(23), {}, 121)",
    "smalldatetime": "CONVERT(varchar(23), CONVERT(datetime, {}), 121)",
    "datetime2": "CONVERT(varchar(27), {}, 121)",
    "datetimeoffset": "CONVERT(varchar(34), {}, 121)",  # keeps the offset
    "money": "CONVERT(varchar(50), CONVERT(decimal(19,4), {}))",
    "smallmoney": "CONVERT(varchar(50), CONVERT(decimal(10,4), {}))",
    "decimal": "CONVERT(varchar(50), {})",
    "numeric": "CONVERT(varchar(50), {})",
    "timestamp": "CONVERT(varchar(20), CONVERT(binary(8), {}), 1)",
    "binary": "CONVERT(varchar(max), {}, 1)",
    "varbinary": "CONVERT(varchar(max), {}, 1)",
    "image": "CONVERT(varchar(max), CONVERT(varbinary(max), {}), 1)",
    "geometry": "{}.ToString()",
    "geography": "{}.ToString()",
}
# An instant in nanoseconds is read from its UTC text.
INSTANT_TEXT = "CONVERT(varchar(27), CONVERT(datetime2(7), SWITCHOFFSET({}, '+00:00')), 121) + 'Z'"


def _text(made: ColumnBuilder) -> str:
    if made.base == "datetimeoffset" and (made.rule.type or "").endswith("_ns"):
        return INSTANT_TEXT
    return TEXTS.get(made.base, "CONVERT(nvarchar(max), {})")


READS: Mapping[str, str] = {
    "time": "time", "json": "json", "uuid": "uuid", "text": "text", "other": "text",
}  # fmt: skip
BASE_READS: Mapping[str, str] = {
    family: READS.get(family, "plain")
    for family in ("bool", "integer", "float", "numeric", "text", "binary", "date", "time", "timestamp", "timestamptz")
} | {"uuid": "uuid_text"}

SPELLING = Spelling(
    quote=sql.quote,
    quote_text=zone_literal,
    as_text=_text,
    zoned="CONVERT(datetime2(7), {} AT TIME ZONE {zone} AT TIME ZONE 'UTC')",
    reads=READS,
    base_reads=BASE_READS,
    text_read="text",
    special=SPECIAL - {"numeric", "date"} | {"other"},
    textable=frozenset({"time", "timestamp", "timestamptz"}),
)
