"""Windows of time and of values as Dagster partitions: their definition, and the window that a key names.

Belongs here: the one translation between keys and windows. Not here: the predicate of a window
(`modes/time_window.py`, `modes/by_value.py`). Dagster's keys are the window's identity; no other part of Rivet makes
them up.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from datetime import UTC, date, datetime, time, timedelta
from typing import TYPE_CHECKING, Any, cast

import dagster as dg

from rivet_assets.modes.by_value import partition_names, unknown_partition, value_window
from rivet_assets.modes.full import snapshot_window
from rivet_resources.contracts.extract import Window
from rivet_resources.contracts.rows.value_windows import BESIDE
from rivet_resources.errors import ConfigError

if TYPE_CHECKING:
    from rivet_assets.blocks.export import Export
    from rivet_assets.modes.time_window import TimeWindow

DATE = "date"  # dimension of times beside that of values; Dagster joins the two in the order of their names
MONDAY = 1  # Dagster counts from Sunday, 0


def partitions_of(export: Export) -> dg.PartitionsDefinition[Any] | None:
    """Return the partitions of an export: windows of time, days of snapshots, values, shards; None: it has none."""
    beside = _beside_times(export)
    if not export.has_days:
        return beside
    if beside is None:
        return _days(export)
    return dg.MultiPartitionsDefinition({DATE: _days(export), "value" if export.shards is None else "shard": beside})


def _beside_times(export: Export) -> dg.StaticPartitionsDefinition | dg.DynamicPartitionsDefinition | None:
    """Return the partitions of shards or values, alone or beside times; None where there is neither."""
    listed = _listed(export)
    return asked_partitions(export) if listed is None else listed


def asked_partitions(export: Export) -> dg.DynamicPartitionsDefinition | None:
    """Return the partitions of values that a query finds, which an instance keeps; None where no query is asked."""
    by = export.by_value
    if by is None or by.query is None:
        return None
    # One name per export, whatever files a location joins: two of them never write to one place.
    # With a fixed day for `{date}`: by that of today, the name would be another one tomorrow.
    uri = export.destination.on(date.min).root(export.name).uri
    place = hashlib.sha256(f"{uri} {by.column}".encode()).hexdigest()[:8]
    return dg.DynamicPartitionsDefinition(name=f"rivet/{export.name}/{place}")


def _days(export: Export) -> dg.TimeWindowPartitionsDefinition:
    """Return the partitions of time of an export that has some: its windows, or days of snapshots."""
    if export.first_snapshot is None:
        return times_of(cast("TimeWindow", export))
    # Today's too, since no other can be run.
    return dg.DailyPartitionsDefinition(datetime.combine(export.first_snapshot, time()), end_offset=1)


def _of_day(export: Export, days: dg.TimeWindowPartitionsDefinition, key: str) -> Window:
    """Return the window of a time, or of a day's snapshot."""
    return snapshot_window(key) if export.first_snapshot is not None else _window(days, key)


def _listed(export: Export) -> dg.StaticPartitionsDefinition | None:
    """Return the partitions of shards, or of values as they are listed; None where there is neither."""
    if export.shards is not None:
        return dg.StaticPartitionsDefinition(list(export.shards))
    by = export.by_value
    if by is None or by.values is None:
        return None
    return dg.StaticPartitionsDefinition(partition_names(export, by.values))


def known_keys(export: Export, instance: dg.DagsterInstance | None = None, *, at: datetime | None = None) -> list[str]:
    """List the partitions that there are, at a moment or now, in their order; () of an export without any.

    Args:
        instance: which knows the values that a query found; None where no query is asked.
    """
    if not export.has_two_dimensions:
        definition = partitions_of(export)
        return [] if definition is None else list(_keys(definition, instance, at))
    # Not Dagster's own list of both: it is remembered for a moment, and would lack a value that came since.
    beside = _beside_times(export)
    assert beside is not None
    values = _keys(beside, instance, at)
    return [f"{time}{BESIDE}{value}" for time in _keys(_days(export), instance, at) for value in values]


def _keys(
    definition: dg.PartitionsDefinition[Any], instance: dg.DagsterInstance | None, at: datetime | None
) -> Sequence[str]:
    return definition.get_partition_keys(current_time=at, dynamic_partitions_store=instance)


def known_times(export: Export) -> list[str]:
    """List the times that there may be windows of by now, whatever stands beside them."""
    return list(_days(export).get_partition_keys())


def ranges_of(
    definition: dg.PartitionsDefinition[Any], keys: Sequence[str], instance: dg.DagsterInstance | None = None
) -> list[tuple[str, str]] | None:
    """Join keys of two dimensions into ranges as Dagster means them, of one value or one time; None of others.

    Args:
        instance: as for `known_keys`.
    """
    if not isinstance(definition, dg.MultiPartitionsDefinition):
        return None
    with dg.partition_loading_context(dynamic_partitions_store=instance):
        ranges = definition.subset_with_partition_keys(keys).get_partition_key_ranges(definition)
    return [(each.start, each.end) for each in ranges]


def keys_within(definition: dg.PartitionsDefinition[Any], first: str, last: str) -> list[str]:
    """List the keys of a range; of two dimensions those between in both."""
    return [str(key) for key in definition.get_partition_keys_in_range(dg.PartitionKeyRange(first, last))]


def dimension_tags(export: Export, window: Window) -> dict[str, str]:
    """Return the tags of a materialization from which Dagster knows both dimensions; none of partitions with one."""
    definition = partitions_of(export)
    if not isinstance(definition, dg.MultiPartitionsDefinition):
        return {}
    key = definition.get_partition_key_from_str(window.partition)
    return {f"dagster/partition/{name}": value for name, value in key.keys_by_dimension.items()}


def add_partitions(export: Export, keys: Sequence[str], instance: dg.DagsterInstance) -> list[str]:
    """Let an instance know the values that a query found, of keys with or without times; return those new to it."""
    partitions = asked_partitions(export)
    if partitions is None:
        return []
    known = set(partitions.get_partition_keys(dynamic_partitions_store=instance))
    # No value's own name has the sign between both.
    values = dict.fromkeys(key.rpartition(BESIDE)[2] for key in keys)
    new = [value for value in values if value not in known]
    if new:
        instance.add_dynamic_partitions(str(partitions.name), new)
    return new


def times_of(windows: TimeWindow) -> dg.TimeWindowPartitionsDefinition:
    """Return the partitions of a `time_window` export.

    The first one holds `start`: weeks begin on Monday, months on their first day.
    """
    shape = {
        "hour": dg.HourlyPartitionsDefinition,
        "day": dg.DailyPartitionsDefinition,
        "week": dg.WeeklyPartitionsDefinition,
        "month": dg.MonthlyPartitionsDefinition,
    }[windows.granularity]
    return shape(  # type: ignore[no-any-return]
        start_date=_first(windows),
        end_date=datetime.combine(windows.end, time()) if windows.end else None,
        timezone=windows.timezone,
        end_offset=1 if windows.takes_open_window else 0,
        **({"day_offset": MONDAY} if windows.granularity == "week" else {}),
    )


def window_of(export: Export, key: str) -> Window:
    """Return the window that a partition key names: [start, end) in UTC, and the folder of its parts; or of a value.

    Raises:
        ConfigError: the export has no such partition.
    """
    partitions = partitions_of(export)
    if partitions is None:
        raise ConfigError(f"Export {export.name} has mode {export.mode} and no partitions; run it without {key!r}.")
    if export.has_two_dimensions:
        return _window_of_two(export, key)
    if isinstance(partitions, dg.TimeWindowPartitionsDefinition):
        _require_key(export, partitions, key)
        return _of_day(export, partitions, key)
    _require_listed(export, _listed(export), key)
    return value_window(export, key)


def _window_of_two(export: Export, key: str) -> Window:
    """Return the window of a time and a value, `2026-01-31|eu`.

    Raises:
        ConfigError: the export has no such time, or lists its values and has no such one.
    """
    day, found, value = key.rpartition(BESIDE)
    times = _days(export)
    if not found:
        raise ConfigError(
            f"Export {export.name} has no partition {key!r}; each is of a time and a value, such as "
            f"{times.get_first_partition_key()}{BESIDE}eu."
        )
    _require_listed(export, _listed(export), value)
    _require_key(export, times, day)
    return _beside(export, _of_day(export, times, day), value)


def _require_listed(export: Export, listed: dg.StaticPartitionsDefinition | None, value: str) -> None:
    """Refuse a value, or shard, that is not listed; what a query finds is for whoever asked it.

    Raises:
        ConfigError
    """
    if listed is not None and value not in listed.get_partition_keys():
        raise unknown_partition(export, value, listed.get_partition_keys())


def _beside(export: Export, time: Window, value: str) -> Window:
    """Join a window of time, or a snapshot, with a value."""
    other = value_window(export, value)
    return Window(f"{time.key}{BESIDE}{other.key}", time.start, time.end, f"{time.folder}/{other.folder}")


def _require_key(export: Export, partitions: dg.TimeWindowPartitionsDefinition, key: str) -> None:
    """Refuse a time that is no partition.

    Raises:
        ConfigError
    """
    if not partitions.has_partition_key(key):
        first, last = partitions.get_first_partition_key(), partitions.get_last_partition_key()
        raise ConfigError(
            f"Export {export.name} has no partition {key!r}; it has {first} to {last}. Pass one of these, or change "
            f"`start` or `end` of the export."
        )


def windows_of(export: Export, keys: Sequence[str]) -> list[Window]:
    """Return the windows of keys that Dagster itself named, in their order."""
    if export.has_two_dimensions:
        return [_window_of_two(export, key) for key in keys]
    if export.has_values:
        return [value_window(export, key) for key in keys]
    partitions = _days(export)
    return [_of_day(export, partitions, key) for key in keys]


def due_keys(export: Export, beside: Sequence[str] | None = None, *, at: datetime | None = None) -> list[str]:
    """Name the windows of a run without a key: the last `days_window` days, else the latest one that has ended.

    Of snapshots today's.

    Args:
        beside: the values, or shards, beside the times; None: as they are listed.
    """
    if not export.has_days:
        return []
    at = at or datetime.now(UTC)
    is_of_today = export.first_snapshot is not None
    times = [at.astimezone(UTC).date().isoformat()] if is_of_today else _due_times(cast("TimeWindow", export), at)
    if not export.has_values:
        return times
    return [f"{time}{BESIDE}{value}" for time in times for value in _values_beside(export, beside)]


def _values_beside(export: Export, given: Sequence[str] | None) -> Sequence[str]:
    """Return the values beside times: those that are given, else those that are listed."""
    if given is not None:
        return given
    listed = _listed(export)
    assert listed is not None, "what a query finds must be given"
    return listed.get_partition_keys()


def _due_times(export: TimeWindow, at: datetime) -> list[str]:
    """Name the times of a run without a key."""
    partitions = times_of(export)
    days = getattr(export, "days_window", None)
    keys = partitions.get_partition_keys(current_time=at)
    if days is None:
        return list(keys[-1:])
    since = at.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0) - timedelta(days=days)
    # Newest first, since only the tail can qualify and a key's window costs a walk through its calendar.
    due = []
    for key in reversed(keys):
        if partitions.time_window_for_partition_key(key).end <= since:
            break
        due.append(key)
    return due[::-1]


def folder_of(key: str) -> str:
    """Name the folder of a window's parts: `dt=2026-01-31`, `dt=2026-01-31T05`; `…T02+0100` where that comes twice."""
    hourly = re.fullmatch(r"(\d{4}-\d\d-\d\d)-(\d\d):00(.*)", key)
    word = f"{hourly[1]}T{hourly[2]}{hourly[3]}" if hourly else key
    return "dt=" + re.sub(r"[^A-Za-z0-9+.-]", "_", word)


def _window(partitions: dg.TimeWindowPartitionsDefinition, key: str) -> Window:
    bounds = partitions.time_window_for_partition_key(key)
    return Window(key, bounds.start.astimezone(UTC), bounds.end.astimezone(UTC), folder_of(key))


def _first(export: TimeWindow) -> datetime:
    day: date = export.first_day
    if export.granularity == "week":
        day -= timedelta(days=day.weekday())
    if export.granularity == "month":
        day = day.replace(day=1)
    return datetime.combine(day, time())


def latest_window(export: Export, beside: Sequence[str] | None = None) -> Window:
    """Return the latest window of time that has ended, else the first one there will be.

    Args:
        beside: as for `due_keys`.
    """
    keys = due_keys(export, beside)
    return window_of(export, keys[-1]) if keys else first_window(cast("TimeWindow", export), beside)


def first_window(export: TimeWindow, beside: Sequence[str] | None = None) -> Window:
    """Return a window of an export none of whose windows has ended yet."""
    start = datetime.combine(export.first_day, datetime.min.time(), UTC)
    time = Window(export.first_day.isoformat(), start, start.replace(hour=23), "")
    return _beside(export, time, _values_beside(export, beside)[0]) if export.has_values else time
