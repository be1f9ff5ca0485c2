"""How one MySQL column is asked for and what it becomes: the facts of types.py applied to a catalog entry.

Belongs here: from a catalog row, or a result's metadata, to a `Column`. Not here: catalog statements
(catalog.py), cells (values.py), what wins between overrides, policies and typing (shared/columns.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from rivet_resources.contracts.source import TypeRules
from rivet_resources.contracts.types import Column, Fact, parse_word
from rivet_resources.engines.mysql import sql
from rivet_resources.engines.mysql.types import (
    MYSQL,
    MYSQL_JSON_TEXT,
    MYSQL_NUMBERS,
    MYSQL_READS,
    MYSQL_TEXT,
    mysql_decimal,
)
from rivet_resources.engines.mysql.wire.packets import Definition
from rivet_resources.engines.shared.columns import SPECIAL, ColumnBuilder, Spelling, rule_of
from rivet_resources.errors import ConfigError


@dataclass(frozen=True)
class Described:
    """One column as the catalog, or the description of a query, gives it."""

    name: str
    base: str  # a key of types_mysql.MYSQL, `decimal`, or the name of a type we do not know
    native: str  # decimal(12,2) unsigned
    not_null: bool = False
    comment: str = ""
    precision: int = 0  # of a decimal, and its scale
    scale: int = 0
    charset: str = ""  # of a text, as the catalog names it
    is_json: bool = False  # MariaDB: a text with a json_valid CHECK

    @property
    def fact(self) -> Fact:
        """Look the type up."""
        if self.base == "decimal":
            return mysql_decimal(self.precision, self.scale)
        if self.is_json:
            return MYSQL_JSON_TEXT
        return MYSQL.get(self.base, MYSQL_TEXT)


# --- from the catalog ----------------------------------------------------------------------------


def base_of(data_type: str, column_type: str) -> str:
    """Name the base type of a catalog row: DATA_TYPE, with what COLUMN_TYPE adds where it changes the meaning."""
    kind = data_type.lower()
    spelled = column_type.lower()
    # Types of their own here: one is a bool, the other does not fit an int64.
    if spelled in ("tinyint(1)", "bit(1)", "bit(64)"):
        return spelled
    is_unsigned = " unsigned" in spelled and kind in ("tinyint", "smallint", "mediumint", "int", "bigint")
    return f"{kind} unsigned" if is_unsigned else kind


# --- from a result's metadata --------------------------------------------------------------------

# FIELD_TYPE numbers. Source: MySQL internals manual, "Column Types"; 242 is MySQL 9's VECTOR.
NUMBERS: Mapping[int, str] = {1: "tinyint", 2: "smallint", 9: "mediumint", 3: "int", 8: "bigint"}
FIELD_TYPES: Mapping[int, str] = {
    4: "float", 5: "double", 6: "null", 7: "timestamp", 10: "date", 11: "time", 12: "datetime", 13: "year", 14: "date",
    17: "timestamp", 18: "datetime", 19: "time", 242: "vector", 245: "json", 255: "geometry",
}  # fmt: skip
UNSIGNED, ENUM, SET, NOT_NULL = 32, 256, 2048, 1
BINARY_CHARSET, DECIMAL_TYPES, BIT_TYPE = 63, (0, 246), 16


def read_definition(definition: Definition) -> Described:
    """Read a result's column definition."""
    # Its NOT NULL flag is not believed, since an outer join can break it.
    base, native = _field_base(definition)
    # The length is that of the longest text, with its point and its minus.
    precision = definition.length - (1 if definition.scale else 0) - (0 if definition.flags & UNSIGNED else 1)
    if base == "decimal":
        precision = max(1, min(precision, 65), definition.scale)
        native = f"decimal({precision},{definition.scale})"
    return Described(name=definition.name, base=base, native=native, precision=precision, scale=definition.scale)


def _field_base(definition: Definition) -> tuple[str, str]:
    code, length = definition.type_code, definition.length
    if code in DECIMAL_TYPES:
        return "decimal", "decimal"
    if code in NUMBERS:
        kind = NUMBERS[code] + (" unsigned" if definition.flags & UNSIGNED else "")
        # A tinyint of display width 1 is how both servers spell a bool.
        return ("tinyint(1)", "tinyint(1)") if kind == "tinyint" and length == 1 else (kind, kind)
    if code == BIT_TYPE:
        return (f"bit({length})" if length in (1, 64) else "bit"), f"bit({length})"
    if code in FIELD_TYPES and code != 6:
        return FIELD_TYPES[code], FIELD_TYPES[code]
    return _text_base(definition)


def _text_base(definition: Definition) -> tuple[str, str]:
    if definition.flags & ENUM:
        return "enum", "enum"
    if definition.flags & SET:
        return "set", "set"
    # 6 is the type of a bare NULL, which reports the binary set and has no bytes.
    is_binary = definition.charset == BINARY_CHARSET and definition.type_code != 6
    kind = "varbinary" if is_binary else "varchar"
    return kind, kind


# --- deciding ------------------------------------------------------------------------------------


def _as_text(making: ColumnBuilder) -> str:
    """Return the lossless text form: the server's own text, except where that loses digits or is no text."""
    base = making.base
    if making.fact.family in ("binary", "geometry"):
        # Bytes as hexadecimal digits: as text they would be decoded, and be lost where they are none.
        return "CONCAT('\\\\x', LOWER(HEX({})))"
    if base.startswith("bit"):
        # A BIT as text is its bytes; as a number it is its digits.
        return "CAST({} + 0 AS CHAR)"
    if base in ("float", "double"):
        # As a double of no declared width: the server prints a FLOAT with six digits, a DOUBLE(20,5) with five behind
        # the point, which do not lead back to it; and the log knows neither these nor ZEROFILL.
        return "CAST({} + 0E0 AS CHAR)"
    return "CAST({} AS CHAR)"


# Character sets with codes that Unicode has no letter for. The server sends `?` for each of them, or nothing, and says
# nothing. Asked of MySQL 9.7 and MariaDB 10.11 for every code of one and two bytes (2026-11): 1 of cp1251, 2149 of gbk.
LOSSY_CHARSETS = frozenset(
    {"ascii", "big5", "cp1250", "cp1251", "cp1256", "cp1257", "cp932", "dec8", "eucjpms", "euckr", "gb2312", "gbk",
     "geostd8", "greek", "hebrew", "hp8", "sjis", "swe7", "tis620", "ucs2", "ujis"}
)  # fmt: skip
# These two send U+FFFD for some, and have no code of their own for it.
REPLACING_CHARSETS = frozenset({"big5", "tis620"})
# More question marks than were there. By letters: a byte of another letter may be that of a question mark.
LOSS_FLAG = "CHAR_LENGTH(REPLACE({}, '?', '')) <> CHAR_LENGTH(REPLACE(CONVERT({} USING utf8mb4), '?', ''))"
REPLACED_FLAG = "LOCATE(_utf8mb4 x'EFBFBD', CONVERT({} USING utf8mb4)) > 0"

# CONVERT_TZ gives back what lies outside its range as it came, so those are flagged (`ZONE_FLAG`).
ZONED = "CONVERT_TZ({}, {zone}, '+00:00')"
ZONE_FLAG = "({} < '1970-01-02' OR {} >= '2038-01-18')"

SPELLING = Spelling(
    quote=sql.quote,
    quote_text=sql.quote_text,
    as_text=_as_text,
    zoned=ZONED,
    reads=MYSQL_READS,
    base_reads={**MYSQL_READS, "numeric": "decimal", "text": "text", "other": "text"},
    text_read="text",
    special=SPECIAL | {"bool"},
)
BITS = replace(
    SPELLING,
    reads={**MYSQL_READS, "integer": "bits"},
    base_reads={**SPELLING.base_reads, "integer": "bits"},
)


def column_of(described: Described, *, rules: TypeRules, relation: str) -> Column:
    """Decide one column.

    Raises:
        UnsupportedColumn: only a text form while `on_unsupported: fail`.
        ConfigError: the override does not exist or does not apply to this type.
    """
    word = _word(described.name, rules, relation)
    fact, spelling = described.fact, BITS if described.base.startswith("bit") else SPELLING
    # The number behind it, from the start: the reader of its own fact would refuse 2 in a tinyint(1), or a TIME
    # beyond a day.
    if described.base in MYSQL_NUMBERS and word.startswith(("int", "bool")) and word != "bool":
        number = MYSQL_NUMBERS[described.base]
        reads = {**SPELLING.base_reads, "integer": number.read}
        fact, spelling = number.fact, replace(SPELLING, base_reads=reads)
    facts = {"flag": ZONE_FLAG.replace("{}", sql.quote(described.name)), "flag_kind": "zone_range"}
    is_zoned = word.startswith("timestamp_tz") and fact.family == "timestamp"
    return ColumnBuilder(
        name=described.name,
        native=described.native,
        base=described.base,
        sql_type=described.native,
        not_null=described.not_null,
        comment=described.comment,
        relation=relation,
        fact=fact,
        rules=rules,
        spelling=spelling,
        facts={"charset": described.charset, **(facts if is_zoned else _loss(described))},
    ).decided()


def _loss(described: Described) -> Mapping[str, str]:
    """Return the facts that find texts which the server cannot send whole; none where it can send every text."""
    if described.charset not in LOSSY_CHARSETS:
        return {}
    flags = [LOSS_FLAG, *([REPLACED_FLAG] if described.charset in REPLACING_CHARSETS else [])]
    flag = f"({' OR '.join(flags)})".replace("{}", sql.quote(described.name))
    return {"flag": flag, "flag_kind": "lost_letters"}


def _word(name: str, rules: TypeRules, relation: str) -> str:
    """Return the stem of the user's override word, '' without one; a wrong word is refused later, by name."""
    given = rule_of(name, rules, relation).type or ""
    try:
        return parse_word(given).stem if given else ""
    except ValueError:
        return ""


def zones(names: list[str], rules: TypeRules, relation: str) -> dict[str, str]:
    """Return the zones that columns are read in, by column, for the server to confirm that it knows them."""
    found = {name: rule_of(name, rules, relation).timezone for name in names}
    return {name: zone for name, zone in found.items() if zone}


def unknown_zone(column: str, zone: str) -> ConfigError:
    """Return the error that the server cannot convert from a zone."""
    return ConfigError(
        f"columns.{column}: the server does not know the time zone {zone!r}. Let its owner load them: "
        f"mysql_tzinfo_to_sql /usr/share/zoneinfo | mysql mysql. Or read the column as `timestamp`, without a zone."
    )


# --- keys ----------------------------------------------------------------------------------------

# Types whose literal compares as the index orders, and whose text is the value. Floats print inexactly, ENUM and SET
# order by number and compare by text.
KEYS = (
    sql.INTEGERS
    | sql.BINARIES
    | {"tinyint(1)", "bit(1)", "decimal", "date", "datetime", "timestamp", "time", "char", "varchar", "tinytext",
       "text", "mediumtext", "longtext", "uuid", "inet4", "inet6"}
)  # fmt: skip
# Character sets in which two codes share one Unicode character: a text does not lead back to its key.
ONE_WAY_CHARSETS = frozenset({"sjis", "cp932", "ujis", "eucjpms", "big5", "armscii8"})
# Stems of overrides under which a cell still names its key.
SAME_VALUE = ("int", "bool", "text", "date", "uuid")


def no_bound(column: Column, *, is_paged: bool) -> str:
    """Return why the values of a column cannot be bounds; see the protocol."""
    base = column.fact("base")
    if base in ("enum", "set"):
        return "the server orders it by the number of each label, and compares it with a bound by its text"
    if base not in KEYS | {"double"} or (is_paged and base == "double"):
        return "values of this type have no text that leads back to their place in an order"
    if is_paged and not is_key(column):
        return "its cells do not lead back to its values; see `columns:` and its character set"
    return ""


def is_key(column: Column) -> bool:
    """Return whether pages can walk along this column: its cells lead back to their place in the index."""
    base, target = column.fact("base"), column.fact("target")
    # An int8 of a TIME is microseconds, which its literal is not.
    is_same = not target or (target.startswith(SAME_VALUE) and base != "time")
    return base in KEYS and column.fact("charset") not in ONE_WAY_CHARSETS and is_same
