"""Exports by the source they read, for commands that ask each source once."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from rivet_resources.contracts.source import Source

if TYPE_CHECKING:
    from rivet_assets.blocks.export import Export
    from rivet_assets.config.load import RivetConfig


def by_source(config: RivetConfig, exports: Iterable[Export]) -> dict[str, tuple[Source, list[Export]]]:
    """Group exports by source; two sources without a name may be of one type, and get a number."""
    found: dict[str, tuple[Source, list[Export]]] = {}
    for export in exports:
        name, source = config.source_of(export)
        number = 1
        unique = name
        while unique in found and found[unique][0] != source:
            number += 1
            unique = f"{name} ({number})"
        found.setdefault(unique, (source, []))[1].append(export)
    return found
