"""Databases of one shape (`shards:`): the window of each, where it is read, and the name its memory is kept under.

Belongs here: the one choice of a source by a window. Not here: the YAML block (`blocks/shards.py`), Dagster's
partitions (`partitions.py`), telling two databases apart (`run/admit/admission.py`).

A shard is one more window of a value: its predicate is another connection.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rivet_resources.contracts.extract import Window
from rivet_resources.contracts.rows.value_windows import column_of_window, window_key
from rivet_resources.errors import ConfigError, DriftRefused, RivetError, SourceError
from rivet_resources.secrets import read_variable

if TYPE_CHECKING:
    from rivet_assets.blocks.export import Export
    from rivet_resources.contracts.source import Source

COLUMN = "shard"  # of windows and folders: `shard=eu`


def shard_window(shard: str) -> Window:
    """Return the window of a shard."""
    key = window_key(COLUMN, shard)
    return Window(key, folder=key)


def shard_of(export: Export, window: Window | None) -> str:
    """Name the database that a window is of; '' of an export without shards."""
    if export.shards is None or window is None or column_of_window(window.key) != COLUMN:
        return ""
    return window.value


def source_of_shard(export: Export, named: tuple[str, Source], shard: str) -> tuple[str, Source]:
    """Return the source of a shard and its name, `shop[eu]`; of '' the export's own.

    Args:
        named: the export's source with its name.

    Raises:
        ConfigError: the export has no such shard, or its source has no address.
    """
    if not shard or export.shards is None:
        return named
    if shard not in export.shards:
        raise ConfigError(
            f"Export {export.name} has no shard {shard!r} any more; it has {', '.join(export.shards)}. List it again, "
            f"or remove its manifest if its rows shall go."
        )
    name, source = named
    return f"{name}[{shard}]", source.at(export.shards[shard])


def shards_apart(export: Export) -> list[tuple[str, Export]]:
    """Return each shard's name, with the export of it alone; ('', the export) where there are none."""
    if export.shards is None:
        return [("", export)]
    return [(name, export.model_copy(update={"shards": {name: at}})) for name, at in export.shards.items()]


def kept_as(export: Export, shard: str) -> str:
    """Return the name under which is kept of which database rows are; no export's name has a slash."""
    return f"{export.name}/{shard}" if shard else export.name


def same_address(export: Export, shard: str) -> str:
    """Name another shard whose variable holds the very same address; '' where none does."""
    shards = export.shards or {}
    try:
        address = read_variable(shards.get(shard, ""))
        others = {each: read_variable(at) for each, at in shards.items() if each != shard} if address else {}
    except RivetError:  # a store of secrets; who connects there meets the same, and tells it
        return ""
    return next((each for each, found in others.items() if found == address), "")


@contextmanager
def naming(shard: str) -> Iterator[None]:
    """Name the shard in what its database, and the way to it, raise in the block: these texts know an address at most.

    Raises:
        ConfigError, DriftRefused, SourceError: as they were raised.
    """
    try:
        yield
    except (ConfigError, DriftRefused, SourceError) as error:
        if shard and error.args and not str(error.args[0]).startswith(f"Shard {shard}: "):
            error.args = (f"Shard {shard}: {error.args[0]}", *error.args[1:])
        raise
