"""Databases of one shape (`shards:`): the window of each, where it is read, and the name its memory is kept under.

Belongs here: the one choice of a source by a window. Not here: the YAML block (`blocks/shards.py`), Dagster's
partitions (`partitions.py`), telling two databases apart (`run/admit/admission.py`).

A shard is one more window of a value: its predicate is another connection. Where a mode goes on from a place, as
incremental does, each shard is an export by itself, `orders/shard=eu`: cursor, remembered rows, lease, chunks, schemas
and manifests are its own, and no code for one chain has to know of several (2026-11; the rejected way was one folder
with a chain for each shard in it, which every reader of manifests would have had to take apart).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rivet_resources.contracts.extract import Window
from rivet_resources.contracts.rows.value_windows import SHARD_COLUMN, column_of_window, window_key
from rivet_resources.errors import ConfigError, DriftRefused, RivetError, SourceError
from rivet_resources.secrets import read_variable

if TYPE_CHECKING:
    from rivet_assets.blocks.export import Export
    from rivet_resources.contracts.source import Source

COLUMN = SHARD_COLUMN
IN_CHAIN = "/"  # between a shard's window and one of its chain, in reports: `shard=eu/after=10`


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
    if export.is_apart:
        return [(name, export.alone(name)) for name in export.shards]
    return [(name, export.model_copy(update={"shards": {name: at}})) for name, at in export.shards.items()]


def kept_as(export: Export, shard: str) -> str:
    """Return the name under which is kept of which database rows are; no export's name has a slash."""
    if not shard:
        return export.name
    whole = export.whole
    return whole.alone(shard).name if whole.is_apart else f"{whole.name}/{shard}"


def chains_of(export: Export) -> list[Export]:
    """Return the exports that have a chain of windows each: those of shards, else the export itself."""
    return [each for _, each in shards_apart(export)] if export.is_apart else [export]


def chains_asked(export: Export, windows: Sequence[str] | None) -> list[tuple[Export, Sequence[str] | None]]:
    """Return the exports of shards that windows are of, with the windows of each; None for all of them.

    Args:
        windows: `shard=eu` for all of a shard, or `shard=eu/after=10`; None for all of all.

    Raises:
        ConfigError: one is of no shard that there is.
    """
    shards = {shard_window(each).key: each for each in export.shards or ()}
    if windows is None:
        return [(export.alone(each), None) for each in shards.values()]
    asked: dict[str, list[str] | None] = {}
    for window in windows:
        head, _, key = window.partition(IN_CHAIN)
        if head not in shards:
            raise ConfigError(
                f"Export {export.name} has no shard with a window {window!r}; it has {', '.join(shards)}. Pass one of "
                f"these for all windows of a shard, or one window as {next(iter(shards))}{IN_CHAIN}after=10."
            )
        known = asked.setdefault(shards[head], [])
        asked[shards[head]] = None if not key or known is None else [*known, key]
    return [(export.alone(each), keys) for each, keys in asked.items()]


def chain_window(export: Export, window: str) -> str:
    """Name a window of a shard's chain as reports of the whole export do, `shard=eu/after=10`."""
    return f"{shard_window(export.of_shard).key}{IN_CHAIN}{window}" if export.of_shard else window


def same_address(export: Export, shard: str) -> str:
    """Name another shard whose variable holds the very same address; '' where none does."""
    shards = export.whole.shards or {}
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
