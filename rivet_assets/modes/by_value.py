"""Which rows belong to the window of a column's value (`partition_by:`), for every mode that reads all rows.

Belongs here: the predicate of such a window, and the values there are. Not here: the YAML block
(`blocks/partition_by.py`), names (`contracts/rows/value_windows.py`), Dagster's partitions (`partitions.py`).

Every value of the list is a window of its own, so that no row is in two: values that a database might take for equal
are refused. What is in none is counted before a run reads anything (`run/other_values.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa

from rivet_assets.blocks.partition_by import fault_of, partitions_of_values
from rivet_assets.modes.by_shard import COLUMN, shard_of, shard_window
from rivet_assets.modes.protocol import Planning, require_bound
from rivet_resources.canonical import canonical
from rivet_resources.commit.manifest import Manifest
from rivet_resources.contracts.extract import Window
from rivet_resources.contracts.rows.value_windows import (
    BESIDE,
    OTHERS,
    beside_time,
    column_of_window,
    partition_of_value,
    snapshot_key,
    value_of_partition,
    window_key,
)
from rivet_resources.contracts.settings import pace
from rivet_resources.contracts.source import TypeRules
from rivet_resources.contracts.types import Column
from rivet_resources.errors import BoundsUnusable, ConfigError, SourceError

if TYPE_CHECKING:
    from rivet_assets.blocks.export import Export
    from rivet_resources.contracts.source import Session, Source


MOST_VALUES = 10_000  # of a query
MOST_BESIDE_TIME = 1_000  # each for every time; Dagster advises at most 100,000 partitions of an asset
MOST_NAMED = 10  # values in one message


@dataclass(frozen=True)
class WindowRows:
    """The window that is read and its rows: a predicate, '' for all; the columns that decide, plain and quoted."""

    window: Window
    where: str = ""
    decisive: tuple[str, ...] = ()
    order_by: tuple[str, ...] = ()


ALL = WindowRows(Window("all"))


def value_window(export: Export, partition: str) -> Window:
    """Return the window of a partition of an export with `partition_by:` or `shards:`."""
    if export.shards is not None:
        return shard_window(partition)
    assert export.by_value is not None
    key = window_key(export.by_value.column, partition)
    return Window(key, folder=key)


def window_keys(export: Export, partitions: Sequence[str]) -> tuple[str, ...]:
    """Return the keys of the windows that partitions name; what is a window's key already stays as it is."""
    by = export.by_value
    column = COLUMN if by is None else by.column
    # What the keys of all its windows begin with, such as `region=`.
    head = window_key(column, "x")[:-1]

    def of_day(each: str) -> str:
        is_key = export.first_snapshot is None or Window(each).kind == "snapshot"
        return each if is_key else snapshot_key(each)

    def key(each: str) -> str:
        if not export.has_values:
            return of_day(each)
        day, found, value = each.rpartition(BESIDE) if export.has_days else ("", "", each)
        # A time alone stays one: it is no window of values beside times.
        if export.has_days and not found:
            return of_day(each)
        named = value if value.startswith(head) else window_key(column, value)
        return f"{of_day(day)}{found}{named}" if found else named

    return tuple(map(key, partitions))


def listed_values(export: Export, source: Source, session: Session) -> tuple[str | None, ...]:
    """Return the values that have windows, None for NULL: as listed, or as the query finds them now.

    Raises:
        SourceError: the query gives more than one column, too many values, or some that cannot stand side by side.
    """
    by = export.by_value
    assert by is not None
    if by.values is not None:
        return by.values
    return _read_values(export, str(by.query), source, session)


def partition_names(export: Export, values: Sequence[str | None]) -> list[str]:
    """Name the partitions of these values, as they stand alone or beside times."""
    assert export.by_value is not None
    names = partitions_of_values(values, export.by_value.others)
    return [beside_time(name) for name in names] if export.has_days else names


def ask_partitions(export: Export, source: Source) -> list[str]:
    """Name the partitions of an export by value, without times; a query is asked over a connection of its own.

    Raises:
        SourceUnreachable, SourceAuth, SourceError, ConfigError: the query cannot be asked.
    """
    by = export.by_value
    assert by is not None
    if by.values is not None:
        return partition_names(export, by.values)
    paced = pace(source.tuning, export.tuning)
    with source.session(application=f"rivet:{export.name}", pace=paced, snapshot=False) as session:
        return partition_names(export, listed_values(export, source, session))


def unknown_partition(export: Export, key: str, known: Sequence[str]) -> ConfigError:
    """Return the error of a partition that is none of these."""
    more = f" and {len(known) - MOST_NAMED} more" if len(known) > MOST_NAMED else ""
    return ConfigError(
        f"Export {export.name} has no partition {key!r}; it has {', '.join(known[:MOST_NAMED]) or 'none'}{more}. Pass "
        f"one of these, or see that {_where_listed(export)} it."
    )


def _where_listed(export: Export) -> str:
    """Return what decides which values there are, as the subject of a sentence."""
    if export.by_value is not None and export.by_value.query is not None:
        return "the query of `partition_by` finds"
    return f"`{'partition_by' if export.shards is None else 'shards'}` lists"


def _read_values(export: Export, query: str, source: Source, session: Session) -> tuple[str | None, ...]:
    told = f"Export {export.name}: the query of `partition_by`"
    try:
        relation = session.describe(table=None, query=query, params={}, rules=TypeRules({}))
    except SourceError as error:
        if error.retry:
            raise
        # Else it would be taken for the query of the export.
        raise SourceError(f"{told} cannot be asked. {error}") from error
    if len(relation.columns) != 1:
        raise SourceError(f"{told} gives {len(relation.columns)} columns; write a SELECT of one.")
    found: dict[str | None, None] = {}
    most, each = (MOST_BESIDE_TIME, "a window of each time") if export.has_days else (MOST_VALUES, "a window")
    for chunk in session.chunks(relation):
        pages = source.pages(
            chunk,
            relation.columns,
            snapshot=session.snapshot,
            application=f"rivet:{export.name}",
            pace=pace(source.tuning, export.tuning),
            wait=lambda rows: None,
        )
        for page in pages:
            found.update((canonical(cell) if cell.is_valid else None, None) for cell in page.table.column(0))
            if len(found) > most:
                raise SourceError(f"{told} gives more than {most} values; each would be {each}. Select fewer.")
    assert export.by_value is not None
    fault = fault_of(export.by_value.column, found)
    if fault:
        raise SourceError(f"{told}: {fault}.")
    return tuple(found)


def window_rows(export: Export, planning: Planning) -> WindowRows:
    """Choose the rows of the window that `planning` names; all rows where the export has one window.

    Raises:
        UnknownColumn: the relation has no such column.
        SourceError: no window is named, or the values are none of the column's type.
    """
    by = export.by_value
    if export.shards is not None:
        return _shard_rows(export, planning)
    if by is None:
        return ALL if planning.window is None else WindowRows(planning.window)
    if planning.window is None:
        raise SourceError(
            f"Export {export.name} has a partition for each {by.column}; pass --partition with one of them."
        )
    column = require_bound(planning, by.column, key="partition_by.column")
    refuse_equal(by.values or (), column)
    window = planning.window
    if window.value == OTHERS and window.excludes is None:
        values = listed_values(export, planning.source, planning.session)
        window = replace(window, excludes=tuple(partition_of_value(each) for each in values))
    where = where_of(window, column, planning.source)
    return WindowRows(window, where, (column.name,), (planning.source.quote(column.name),))


def _shard_rows(export: Export, planning: Planning) -> WindowRows:
    """Return all rows: `planning` has the source of the shard already.

    Raises:
        SourceError: no shard is named.
    """
    if not shard_of(export, planning.window):
        raise SourceError(f"Export {export.name} has a partition for each shard; pass --partition with one of them.")
    assert planning.window is not None
    return WindowRows(planning.window)


def predicate_of(export: Export, planning: Planning, manifest: Manifest) -> str:
    """Return in SQL which rows of the relation a committed window holds; '' for all.

    Raises:
        BoundsUnusable: it is of another column, or does not say which values are in others.
        UnknownColumn, SourceError: as `window_rows`.
    """
    by = export.by_value
    if by is None:
        return ""
    window = Window(manifest.window, excludes=manifest.window_excludes)
    if column_of_window(window.key) != by.column or (window.value == OTHERS and window.excludes is None):
        raise BoundsUnusable(
            f"Window {window.key} of export {export.name} is not of column {by.column} as `partition_by` says, or its "
            f"manifest was edited. Run it again, or remove it."
        )
    return where_of(window, require_bound(planning, by.column, key="partition_by.column"), planning.source)


def where_of(window: Window, column: Column, source: Source) -> str:
    """Return the predicate of one window.

    Raises:
        SourceError: a value is none of the column's type.
    """
    quoted = source.quote(column.name)
    if window.value == OTHERS:
        return where_outside([value_of_partition(each) for each in window.excludes or ()], column, source)
    value = value_of_partition(window.value)
    return f"{quoted} IS NULL" if value is None else f"{quoted} = {_literal(value, column, source)}"


def where_outside(values: Sequence[str | None], column: Column, source: Source) -> str:
    """Return the predicate of rows whose value is none of these.

    Raises:
        SourceError: a value is none of the column's type.
    """
    quoted = source.quote(column.name)
    listed = ", ".join(_literal(value, column, source) for value in values if value is not None)
    # For a NULL `NOT IN` is neither true nor false, so rows without a value are asked for by themselves.
    outside = f"{quoted} NOT IN ({listed})" if listed else f"{quoted} IS NOT NULL"
    return outside if None in values else f"({quoted} IS NULL OR {outside})"


def refuse_equal(values: Sequence[str | None], column: Column) -> None:
    """Refuse values that are one value of the column's type, such as 1 and 01: rows would be in both windows.

    Raises:
        SourceError
    """
    seen: dict[str, str] = {}
    for value in values:
        if value is None:
            continue
        same = _canonical(value, column)
        if same in seen:
            raise SourceError(
                f"Values {seen[same]!r} and {value!r} of `partition_by` are one value of column {column.name} "
                f"({column.native}). List it once."
            )
        seen[same] = value


def _canonical(value: str, column: Column) -> str:
    try:
        return canonical(pa.scalar(value).cast(column.arrow))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):  # its literal refuses what is no value of the type
        return value


def _literal(value: str, column: Column, source: Source) -> str:
    try:
        return source.literal(value, column)
    except SourceError:
        raise SourceError(
            f"{value!r} of `partition_by` is no value of column {column.name}, which is {column.native}. "
            f"Write the value as the database shows it, or name another column."
        ) from None
