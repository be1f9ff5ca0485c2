"""Which exports and windows a command means by the names and partition keys it was given.

Belongs here: finding them, and refusing what is not there. Not here: keys and windows (`modes/partitions.py`, which
loads Dagster and is imported when windows are asked for, so that the JVM starts before).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rivet_assets.modes.by_value import ask_partitions, unknown_partition, window_keys
from rivet_resources.commit.manifest import manifest_paths, read_manifests
from rivet_resources.commit.supersede import time_of_path
from rivet_resources.contracts.extract import Window
from rivet_resources.contracts.rows.value_windows import BESIDE, beside_time, partition_of_window
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

    A time alone, of an export with values beside times, means what is published of it, also of values that are gone.

    Raises:
        ConfigError: a range has an end that is no window of the export.
    """
    ranges = [text for text in partitions if RANGE in text]
    alone = [key for text in partitions if RANGE not in text for key in _published(export, text)]
    within = due(config, export, ranges) if ranges else None
    if within is None:  # keys of other modes may hold anything
        return window_keys(export, [*alone, *ranges])
    return window_keys(export, [*alone, *within])


def _published(export: Export, asked: str) -> list[str]:
    """Return what a key means: itself, or of a time alone, beside values, the windows that are published of it.

    Raises:
        DestinationError, ManifestUnreadable
    """
    root = export.destination.root(export.name)
    if not export.has_two_dimensions or BESIDE in asked or not root.keeps_manifests:
        return [asked]
    (of_day,) = {key.partition(BESIDE)[0] for key in window_keys(export, [f"{asked}{BESIDE}x"])}
    name = Window(of_day).file_name.removesuffix(".json")
    paths = tuple(path for path in manifest_paths(root) if time_of_path(path) == name)
    # Nothing: whoever asked is told that there is no such window.
    return [each.window for each in read_manifests(root, paths)] or [asked]


def due(config: RivetConfig, export: Export, partitions: Sequence[str] | None) -> list[str] | None:
    """List the windows to run; None for an export without partitions.

    Raises:
        ConfigError: it has no such window.
        RivetError: the query that finds the values cannot be asked.
    """
    if export.has_values and not export.has_days:
        return _values(config, export, partitions)
    if not export.has_partitions:
        return None
    from rivet_assets.modes.partitions import due_keys  # Dagster

    beside = _known_values(config, export) if export.has_values else None
    if partitions is None:
        return due_keys(export, beside)
    asked = [_ends(text) for text in partitions]
    return _times(export, asked) if beside is None else _of_two(export, asked, beside)


def _times(export: Export, asked: Sequence[tuple[str, str]]) -> list[str]:
    """List the windows between these ends.

    Raises:
        ConfigError: one is no window, or a range ends before it begins.
    """
    from rivet_assets.modes.partitions import known_times, window_of  # Dagster

    known = known_times(export)
    # A plan, and a report, name windows by their keys; of snapshots these are not their partitions.
    ends = [(partition_of_window(low), partition_of_window(high)) for low, high in asked]
    for key in (end for each in ends for end in each if end not in known):
        window_of(export, key)  # says which keys there are
        raise ConfigError(f"Export {export.name} has no window {key!r} that has ended by now.")
    return _within(known, ends)


def _of_two(export: Export, asked: Sequence[tuple[str, str]], beside: Sequence[str]) -> list[str]:
    """List the windows between these ends in both dimensions, in the order of the times; a time alone means all values.

    Raises:
        ConfigError: a time or a value is none, or a range ends before it begins in either.
    """
    from rivet_assets.modes.partitions import known_times, window_of  # Dagster

    times, wanted = known_times(export), set[str]()
    for ends in asked:
        (low, first), (high, last) = (_time_and_value(end, beside) for end in ends)
        for value in (first, last):
            if value is not None and value not in beside:
                raise unknown_partition(export, value, beside)
        if not beside:
            continue
        for time in (low, high):
            if time not in times:
                window_of(export, f"{time}{BESIDE}{beside[0]}")  # says which keys there are
                raise ConfigError(f"Export {export.name} has no window {time!r} that has ended by now.")
        values = _within(beside, [(first or beside[0], last or beside[-1])])
        wanted |= {f"{time}{BESIDE}{value}" for time in _within(times, [(low, high)]) for value in values}
    return [key for time in times for value in beside if (key := f"{time}{BESIDE}{value}") in wanted]


def _time_and_value(asked: str, beside: Sequence[str]) -> tuple[str, str | None]:
    """Take one end apart, as a partition or as the key of a window, `snapshot=2026-01-31|region=eu`."""
    time, found, value = asked.partition(BESIDE)
    if found and value not in beside:
        value = beside_time(partition_of_window(value))
    return partition_of_window(time), value if found else None


def _known_values(config: RivetConfig, export: Export) -> list[str]:
    """List the shards, or the values, as they are listed or as the query finds them now."""
    return list(export.shards or ()) or ask_partitions(export, config.source_of(export)[1])


def _values(config: RivetConfig, export: Export, partitions: Sequence[str] | None) -> list[str]:
    """List the values, or shards, to run."""
    known = _known_values(config, export)
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
