"""Names and values in a YAML that a machine writes: whatever a table is called, the file reads back as meant.

Belongs here: scalars, comments, tables as an export names them, names of exports. Not here: which keys there are
(`yaml.py`).
"""

from __future__ import annotations

import re
import textwrap
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

from rivet_assets.scaffold.cursors import snake

PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_$]*")
PLAIN_SCALAR = re.compile(r"[A-Za-z_./][A-Za-z0-9_./\-]*|\d{4}-\d\d-\d\d")
# Words that YAML 1.1 readers take for something else than text.
WORDS = frozenset({"null", "true", "false", "yes", "no", "on", "off", "y", "n"})
ESCAPES: Mapping[str, str] = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}
NO_ESCAPES: Mapping[str, str] = {}
WIDTH = 118


def scalar(value: Any) -> str:
    """Write a scalar, or a list or mapping of them in flow style."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return str(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{scalar(key)}: {scalar(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(scalar, value)) + "]"
    text = str(value).replace("${", "$${")  # which a config reads as a plain `${`
    if PLAIN_SCALAR.fullmatch(text) and text.lower() not in WORDS:
        return text
    return f'"{escape_unseen(text, escapes=ESCAPES)}"'


def escape_unseen(text: str, *, escapes: Mapping[str, str] = NO_ESCAPES) -> str:
    """Escape what cannot be seen, such as a line break in a table's name, as YAML does between double quotes."""
    return "".join(escapes[sign] if sign in escapes else sign if sign.isprintable() else _escape(sign) for sign in text)


def _escape(sign: str) -> str:
    code = ord(sign)
    if sign == "\n":
        return "\\n"
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def comment(text: str, *, indent: int) -> list[str]:
    """Write a text as comment lines; it cannot leave them, whatever it holds."""
    begin = " " * indent + "# "
    lines = textwrap.wrap(escape_unseen(text), WIDTH - len(begin), subsequent_indent="  ", break_on_hyphens=False)
    return [begin + line for line in lines]


def table_key(schema: str, name: str) -> str:
    """Write a table as `table:` takes it; '' as schema is left out."""
    return ".".join(_segment(word) for word in (schema, name) if word)


def _segment(name: str) -> str:
    return name if PLAIN_NAME.fullmatch(name) else '"' + name.replace('"', '""') + '"'


def export_names(tables: Sequence[tuple[str, str]]) -> list[str]:
    """Name an export after each (schema, table): safe as a folder anywhere, and no two alike, not even but for case.

    A table of a name that several schemas have is called schema_table; what is still alike is numbered.
    """
    slugs = [_slug(name) for _, name in tables]
    wanted = [
        slug if slugs.count(slug) == 1 or _is_alone(tables, place) else f"{_slug(schema)}_{slug}"
        for place, (slug, (schema, _)) in enumerate(zip(slugs, tables, strict=True))
    ]
    taken: set[str] = set()
    found = []
    for name in wanted:
        number, free = 1, name
        while free in taken:
            number += 1
            free = f"{name}_{number}"
        taken.add(free)
        found.append(free)
    return found


def _is_alone(tables: Sequence[tuple[str, str]], place: int) -> bool:
    """Return whether all tables of a like name are of one schema, so that its name would tell nothing."""
    slug = _slug(tables[place][1])
    return len({schema for schema, name in tables if _slug(name) == slug}) == 1


def _slug(name: str) -> str:
    """Spell a name in ASCII, lower case and underscores: Größe is gro_e; of other scripts only `table` is left."""
    ascii_only = unicodedata.normalize("NFKD", name.replace("ß", "ss")).encode("ascii", "ignore").decode()
    return snake(ascii_only)[:100].strip("_") or "table"
