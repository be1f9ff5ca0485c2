"""Under which key an export's state is kept: its project, its source and its name, joined in this one place.

Belongs here: making keys, reading the name back, choosing the rows of a scope. Not here: what a project is called and
which source an export has (`rivet_assets/run/admit/scope.py`), rows that were kept under bare names (`adoption.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import ColumnElement, or_, true

# The tables call the column `export_name`, since that is what it held up to version 3 of the store.
SEPARATOR = "//"


@dataclass(frozen=True)
class Scope:
    """Whose state is meant by a bare name: that of this project's export, which has this source.

    Names that are in no configuration, such as those of permits to connect, are kept as they are: they are of all
    projects. A scope without exports leaves every name as it is.
    """

    project: str = ""
    sources: Mapping[str, str] = field(default_factory=dict)  # export, or what its windows are kept as → its source

    def key(self, export: str) -> str:
        """Return the key of an export's rows."""
        source = self.sources.get(export)
        return export if source is None else key_of(self.project, source, export)

    def keys(self) -> dict[str, str]:
        """Return the keys of all exports: {name: key}."""
        return {export: self.key(export) for export in self.sources}

    def chosen(self, column: ColumnElement[Any], export: str | None) -> ColumnElement[bool]:
        """Choose the rows of one export, or of all exports of the scope's sources, also of those that are gone."""
        if export is not None:
            return column == self.key(export)
        if not self.sources:
            return true()
        prefixes = {key_of(self.project, source, "") for source in self.sources.values()}
        return or_(*(column.startswith(prefix, autoescape=True) for prefix in sorted(prefixes)))


def key_of(project: str, source: str, export: str) -> str:
    """Join a key: `shop-prod//billing//orders`; `//billing//orders` without a project."""
    # The name last and as it is: it may have single slashes, and never two in a row.
    return SEPARATOR.join((escape(project), escape(source), export))


def name_in(key: str) -> str:
    """Read the export's name out of a key; a bare name is its own."""
    # No export's name has two slashes in a row, so a bare name of an earlier Rivet is no key.
    parts = key.split(SEPARATOR, 2)
    return parts[2] if len(parts) == 3 else key


def escape(text: str) -> str:
    """Write a part of a key without slashes."""
    return text.replace("%", "%25").replace("/", "%2F")
