"""Which exports and windows a command means by the names and partition keys it was given.

Belongs here: finding them, and refusing what is not there. Not here: keys and windows (`modes/partitions.py`, which
loads Dagster and is imported when windows are asked for, so that the JVM starts before).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rivet_assets.modes.by_value import ask_partitions, unknown_partition, window_keys
from rivet_resources.contracts.rows.value_windows import BESIDE, partition_of_window
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
    without = [export.name for export in exports if not export.has_partitions]
    if names and without:
        raise ConfigError(
            f"Export {without[0]} has no partitions; leave out --partition, or name exports of mode time_window, with "
            f"partition_by or with shards."
        )
    windowed = [export for export in exports if export.has_partitions]
    if not windowed:
        raise ConfigError("No export has mode time_window, partition_by or shards; leave out --partition.")
    return windowed


def keys_of(config: RivetConfig, export: Export, partitions: Sequence[str]) -> tuple[str, ...]:
    """Return the keys of the windows that these mean: of a range `A...B` all, else the key of any window, as it is.

    Raises:
        ConfigError: a range has an end that is no window of the export.
    """
    ranges = [text for text in partitions if RANGE in text]
    within = due(config, export, ranges) if ranges else None
    if within is None:  # keys of other modes may hold anything
        return window_keys(export, partitions)
    return window_keys(export, [*(text for text in partitions if RANGE not in text), *within])


def due(config: RivetConfig, export: Export, partitions: Sequence[str] | None) -> list[str] | None:
    """List the windows to run; None for an export without partitions.

    Raises:
        ConfigError: it has no such window.
        RivetError: the query that finds the values cannot be asked.
    """
    if export.has_values and not export.has_days:
        return _values(config, export, partitions)
    from rivet_assets.modes.partitions import (  # Dagster
        due_keys,
        keys_within,
        partitions_of,
        ranges_of,
        window_of,
    )

    definition = partitions_of(export)
    if definition is None:
        return None
    if partitions is None:
        return due_keys(export)
    known = definition.get_partition_keys()
    # A plan, and a report, name windows by their keys; of snapshots these are not their partitions.
    partitions = [RANGE.join(map(partition_of_window, asked.split(RANGE))) for asked in partitions]
    is_of_two = ranges_of(definition, []) is not None
    if is_of_two:  # a time alone means all its values
        last = known[-1].rpartition(BESIDE)[2] if known else ""
        first = known[0].rpartition(BESIDE)[2] if known else ""
        partitions = [RANGE.join(_whole(_ends(asked), first, last)) for asked in partitions]
    for key in (end for asked in partitions for end in _ends(asked)):
        if key not in known:
            window_of(export, key)  # says which keys there are
            raise ConfigError(f"Export {export.name} has no window {key!r} that has ended by now.")
    if is_of_two:
        wanted = {key for asked in partitions for key in keys_within(definition, *_ends(asked))}
        return [key for key in map(str, known) if key in wanted]
    return _within(known, [_ends(asked) for asked in partitions])


def _whole(ends: tuple[str, str], first: str, last: str) -> tuple[str, str]:
    """Complete ends of times alone with the first and the last value."""
    low, high = ends
    return (
        low if BESIDE in low else f"{low}{BESIDE}{first}",
        high if BESIDE in high else f"{high}{BESIDE}{last}",
    )


def _values(config: RivetConfig, export: Export, partitions: Sequence[str] | None) -> list[str]:
    """List the values, or shards, to run."""
    known = list(export.shards or ()) or ask_partitions(export, config.source_of(export)[1])
    if partitions is None:
        return known
    # People may also write the window's key, `region=eu`, as every report does.
    asked = [[key if key in known else partition_of_window(key) for key in _ends(text)] for text in partitions]
    for key in (end for ends in asked for end in ends):
        if key not in known:
            raise unknown_partition(export, key, known)
    return _within(known, asked)


def _ends(asked: str) -> tuple[str, str]:
    """Return both ends of a range, which are the same for one window."""
    first, found, last = asked.partition(RANGE)
    return first, last if found else first


def _within(known: Sequence[str], asked: Sequence[Sequence[str]]) -> list[str]:
    """List the windows between these ends, in their order.

    Raises:
        ConfigError: a range ends before it begins.
    """
    places = {key: place for place, key in enumerate(known)}
    wanted: set[str] = set()
    for first, last in asked:
        if places[first] > places[last]:
            raise ConfigError(f"Range '{first}{RANGE}{last}' ends before it begins; write the earlier window first.")
        wanted |= {key for key, place in places.items() if places[first] <= place <= places[last]}
    return sorted(wanted, key=places.__getitem__)
