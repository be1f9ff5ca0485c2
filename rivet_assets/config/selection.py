"""Which exports and windows a command means by the names and partition keys it was given.

Belongs here: finding them, and refusing what is not there. Not here: keys and windows (`modes/partitions.py`, which
loads Dagster and is imported when windows are asked for, so that the JVM starts before).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rivet_resources.errors import ConfigError

if TYPE_CHECKING:
    from rivet_assets.blocks.export import Export
    from rivet_assets.config.load import RivetConfig

RANGE = "..."  # between the two ends of a range of partitions, both included


def choose_exports(config: RivetConfig, names: Sequence[str], partitions: Sequence[str]) -> Sequence[Export]:
    """Find the exports of a run that names these, or these windows; in the order of the config.

    Raises:
        ConfigError: one is not known, or has no windows.
    """
    wanted = {config.export(name).name for name in names}
    exports = [export for export in config.exports if not names or export.name in wanted]
    if not partitions:
        return exports
    without = [export.name for export in exports if not export.answers.has_windows]
    if names and without:
        raise ConfigError(
            f"Export {without[0]} has no partitions; leave out --partition, or name exports of mode time_window."
        )
    windowed = [export for export in exports if export.answers.has_windows]
    if not windowed:
        raise ConfigError("No export has mode time_window; leave out --partition.")
    return windowed


def keys_of(export: Export, partitions: Sequence[str]) -> tuple[str, ...]:
    """Return the keys that these mean: of a range `A...B` all its windows, else the key of any window, as it is.

    Raises:
        ConfigError: a range has an end that is no window of the export.
    """
    ranges = [text for text in partitions if RANGE in text]
    within = due(export, ranges) if ranges else None
    if within is None:  # keys of other modes may hold anything
        return tuple(partitions)
    return (*(text for text in partitions if RANGE not in text), *within)


def due(export: Export, partitions: Sequence[str] | None) -> list[str] | None:
    """List the windows to run; None for an export without partitions.

    Raises:
        ConfigError: it has no such window.
    """
    from rivet_assets.modes.partitions import due_keys, partitions_of, window_of  # Dagster

    definition = partitions_of(export)
    if definition is None:
        return None
    if partitions is None:
        return due_keys(export)
    known = {key: place for place, key in enumerate(definition.get_partition_keys())}
    wanted: set[str] = set()
    for asked in partitions:
        first, found, last = asked.partition(RANGE)
        last = last if found else first
        for key in (first, last):
            if key not in known:
                window_of(export, key)  # says which keys there are
                raise ConfigError(f"Export {export.name} has no window {key!r} that has ended by now.")
        if known[first] > known[last]:
            raise ConfigError(f"Range {asked!r} ends before it begins; write the earlier window first.")
        wanted |= {key for key, place in known.items() if known[first] <= place <= known[last]}
    return sorted(wanted, key=known.__getitem__)
