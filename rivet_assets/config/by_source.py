"""Exports by the source they read, for commands that ask each source once; and by the name that state has."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from rivet_assets.modes.by_shard import chains_of, shards_apart, source_of_shard
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


def export_kept_as(config: RivetConfig, name: str) -> Export:
    """Find an export, or one shard that has a cursor of its own, by the name that its state is kept under.

    Raises:
        ConfigError: there is none of that name.
    """
    whole = next((each for each in config.exports if name in each.folders() and each.is_apart), None)
    if whole is None:
        return config.export(name)
    return next(each for each in chains_of(whole) if each.name == name)
