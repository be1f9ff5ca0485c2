"""A column's type as the log tells it: the catalog's words for it, and whether the catalog's column is the same.

Belongs here: the facts that lead from a log's type to the catalog's. Not here: what becomes of a type
(mysql/columns.py, mysql/types.py).

What a log cannot tell apart is taken from the catalog where it fits: tinyint(1) from tinyint, MariaDB's JSON from
LONGTEXT, UUID and INET from BINARY. Of a column that the catalog no longer has, the plainer type is taken.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from rivet_resources.contracts.types import Column
from rivet_resources.engines.mysql.binlog import events as ev
from rivet_resources.engines.mysql.binlog.events import Field
from rivet_resources.engines.mysql.catalog import Catalog
from rivet_resources.errors import SourceError

INTEGERS = {ev.TINY: "tinyint", ev.SHORT: "smallint", ev.INT24: "mediumint", ev.LONG: "int", ev.LONGLONG: "bigint"}
TIMES = {ev.DATE: "date", ev.DATETIME: "datetime", ev.DATETIME2: "datetime", ev.TIMESTAMP: "timestamp",
         ev.TIMESTAMP2: "timestamp", ev.TIME: "time", ev.TIME2: "time"}  # fmt: skip
OTHERS = {ev.FLOAT: "float", ev.DOUBLE: "double", ev.YEAR: "year", ev.JSON: "json", ev.VECTOR: "vector",
          ev.ENUM: "enum", ev.SET: "set"}  # fmt: skip
SHAPES = ("geometry", "point", "linestring", "polygon", "multipoint", "multilinestring", "multipolygon",
          "geometrycollection")  # fmt: skip
BLOBS = {1: "tiny", 2: "", 3: "medium", 4: "long"}  # by the bytes that hold a length
# Types of MariaDB that its log shows as bytes of this width.
AS_BYTES = {"uuid": 16, "inet6": 16, "inet4": 4}
ARGUMENTS = re.compile(r"\((\d+)(?:,(\d+))?\)")
BYTES_OF_LETTER = {"utf8mb4": 4, "utf8mb3": 3, "utf8": 3, "utf16": 4, "utf16le": 4, "utf32": 4, "ucs2": 2, "gbk": 2,
                   "big5": 2, "sjis": 2, "cp932": 2, "euckr": 2, "gb2312": 2, "gb18030": 4, "ujis": 3,
                   "eucjpms": 3}  # fmt: skip

BY_APPLICABILITY = "SELECT id, character_set_name FROM information_schema.collation_character_set_applicability"
BY_COLLATION = "SELECT id, character_set_name FROM information_schema.collations"


def collations(session: Catalog) -> Mapping[int, str]:
    """Ask which character set each collation has; MariaDB lists its newer ones in a table of their own."""
    doing = "reading the collations"
    try:
        rows = session.ask(BY_APPLICABILITY, doing=doing)
    except SourceError:
        # That table has no ids on MySQL, and before MariaDB 10.10.
        rows = session.ask(BY_COLLATION, doing=doing)
    return {int(row[0]): str(row[1]) for row in rows if row[0] is not None}


def base_native(field: Field, charset: str) -> tuple[str, str, int, int]:
    """Name a log's column in the catalog's words: base type, spelling, precision and scale of a decimal."""
    kind, meta = field.type, field.meta
    sign = " unsigned" if field.unsigned else ""
    if kind in INTEGERS:
        return (INTEGERS[kind] + sign,) * 2 + (0, 0)
    if kind == ev.DECIMAL:
        return "decimal", f"decimal({meta[0]},{meta[1]}){sign}", meta[0], meta[1]
    if kind == ev.BIT:
        # Of a BIT the map has the bits beyond whole bytes, then the whole bytes.
        bits = meta[0] + 8 * meta[1]
        return (f"bit({bits})" if bits in (1, 64) else "bit"), f"bit({bits})", 0, 0
    if kind in TIMES:
        places = f"({meta[0]})" if meta and meta[0] else ""
        return TIMES[kind], TIMES[kind] + places, 0, 0
    if kind in OTHERS:
        return OTHERS[kind], _native(field), 0, 0
    if kind == ev.GEOMETRY:
        shape = SHAPES[field.shape] if field.shape < len(SHAPES) else "geometry"
        return shape, shape, 0, 0
    if kind in (ev.BLOB, ev.BLOB_COMPRESSED):
        name = BLOBS.get(meta[0], "long") + ("text" if charset else "blob")
        return name, name, 0, 0
    name = ("" if kind == ev.STRING else "var") + ("char" if charset else "binary")
    # The log counts bytes, the catalog letters.
    return name, f"{name}({field.length // BYTES_OF_LETTER.get(charset, 1)})", 0, 0


def _native(field: Field) -> str:
    if field.type in (ev.ENUM, ev.SET):
        labels = ",".join("'" + label.decode("utf-8", "replace").replace("'", "''") + "'" for label in field.labels)
        return f"{OTHERS[field.type]}({labels})"
    return OTHERS[field.type]


def fits(column: Column, field: Field, charset: str) -> bool:
    """Return whether the catalog's column is of the very type that the log describes."""
    base, native, precision, scale = base_native(field, charset)
    known, spelled = column.fact("base"), column.native.lower()
    arguments = ARGUMENTS.search(spelled)
    if known in AS_BYTES:
        return base == "binary" and field.length == AS_BYTES[known]
    # The log has no display width, so tinyint(1) and tinyint are one type in it.
    if known == "tinyint(1)":
        return base == "tinyint"
    if known == "decimal":
        wanted = (str(precision), str(scale)) if arguments is None else (arguments[1], arguments[2] or "0")
        return base == "decimal" and wanted == (str(precision), str(scale))
    if known.startswith("bit") or known in ("char", "varchar", "binary", "varbinary", "datetime", "timestamp", "time"):
        # A fraction of no digits is spelled `(0)` by one of the two and left out by the other.
        places = arguments[0] if arguments and arguments[0] != "(0)" else ""
        return (
            known == base
            and places == (native[native.index("(") :] if "(" in native else "")
            and _same(column, charset)
        )
    if known in SHAPES or known == "geomcollection":
        return field.type == ev.GEOMETRY
    return known == base and _same(column, charset)


def _same(column: Column, charset: str) -> bool:
    """Compare character sets, of which the catalog may know an older name."""
    named = column.fact("charset")
    return named in ("", charset) or {named, charset} == {"utf8", "utf8mb3"}
