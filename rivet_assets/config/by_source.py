"""Exports by the source they read, for commands that ask each source once."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from rivet_assets.modes.by_shard import shards_apart, source_of_shard
from rivet_resources.contracts.source import Source

if TYPE_CHECKING:
    from rivet_assets.blocks.export import Export
    from rivet_assets.config.load import RivetConfig


def by_source(config: RivetConfig, exports: Iterable[Export]) -> dict[str, tuple[Source, list[Export]]]:
    """Group exports by source; two sources without a name may be of one type, and get a number.

    Of an export with shards each is a source of its own, with the export of that shard alone.
    """
    found: dict[str, tuple[Source, list[Export]]] = {}
    for shard, export in (apart for each in exports for apart in shards_apart(each)):
        name, source = source_of_shard(export, config.source_of(export), shard)
        number = 1
        unique = name
        while unique in found and found[unique][0] != source:
            number += 1
            unique = f"{name} ({number})"
        found.setdefault(unique, (source, []))[1].append(export)
    return found
