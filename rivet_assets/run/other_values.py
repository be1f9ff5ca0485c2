"""Values of `partition_by` at the beginning of a run: those that no window is for, and windows that no value is for.

Belongs here: what a run over values looks at once, before its first window. Not here: which rows a window has
(`modes/by_value.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from rivet_assets.modes.by_shard import COLUMN
from rivet_assets.modes.by_value import listed_values, partition_names, value_window, where_outside
from rivet_assets.modes.protocol import bound_column
from rivet_assets.run.attempt import Site, new_run_id
from rivet_resources.commit.listing import first_paths
from rivet_resources.commit.manifest import manifest_path, manifest_paths, read_manifests
from rivet_resources.commit.supersede import time_of_path, value_of_path
from rivet_resources.contracts.extract import Window
from rivet_resources.contracts.rows.value_windows import BESIDE, value_part
from rivet_resources.contracts.settings import pace
from rivet_resources.contracts.source import Session
from rivet_resources.errors import OtherValues, WindowConflict

MOST_NAMED = 10  # windows in one line


def look_at_values(site: Site, windows: Sequence[Window]) -> list[str]:
    """Refuse rows that no window is for, and tell of windows whose value is not listed any more.

    Args:
        windows: of the run; beside times, rows of other times are not looked at.

    Returns:
        The partitions that there are now; none of an export without `partition_by`.

    Raises:
        OtherValues: there are such rows, and `others` is `refuse`.
        UnknownColumn, SourceError: the values cannot be looked for.
    """
    by = site.export.by_value
    if site.export.is_apart:
        _tell_chains_left(site)
    elif site.export.shards is not None:
        _tell_windows(site, list(site.export.shards), "`shards` lists their databases", windows)
    if by is None:
        return []
    values: Sequence[str | None] = by.values or ()
    if by.values is None or by.others == "refuse":
        paced, now = pace(site.source.tuning, site.export.tuning), datetime.now(UTC)
        with (
            site.exporter.permits(site.source, run_id=new_run_id(site.export.name, now), pace=paced),
            site.source.session(application=f"rivet:{site.export.name}", pace=paced) as session,
        ):
            values = listed_values(site.export, site.source, session)
            if by.others == "refuse":
                _refuse_others(site, session, values, windows)
    partitions = partition_names(site.export, values)
    who = "`partition_by` lists" if by.query is None else "the query of `partition_by` finds"
    _tell_windows(site, partitions, f"{who} their values", windows)
    return partitions


def refuse_other_layout(site: Site) -> None:
    """Refuse shards with a folder each beside windows of all of them in one, and the other way round.

    Raises:
        WindowConflict: rows would show twice.
    """
    export, root = site.export, site.root
    if not root.keeps_manifests:
        return
    shards = [] if export.is_apart else site.state.shards_with_cursor(export.name)
    folders = [export.destination.root(export.alone(each).name) for each in shards]
    for place in [root] if export.is_apart else folders:
        if found := first_paths(place).paths:
            raise WindowConflict(
                f"Export {export.name} would write beside {found[0]} at {place.uri}, which another mode, or an export "
                f"without `shards`, committed; rows would show twice. Choose another `destination`, or remove that "
                f"folder and run `rivet state reset -e {export.name}`."
            )


def _tell_chains_left(site: Site) -> None:
    """Name the shards with a cursor that are listed no more."""
    listed = site.export.shards or {}
    left = [each for each in site.state.shards_with_cursor(site.export.name) if each not in listed]
    if left:
        more = f" and {len(left) - MOST_NAMED} more" if len(left) > MOST_NAMED else ""
        (site.warn or site.tell)(
            f"{site.export.name}: shards {', '.join(left[:MOST_NAMED])}{more} are listed no more; their cursors are "
            f"kept, and their files stay in {site.root.uri}/{COLUMN}=…, which Rivet's readers pass over. List one "
            f"again and it goes on from there, or remove its folder."
        )


def _tell_windows(site: Site, partitions: Sequence[str], listed: str, windows: Sequence[Window]) -> None:
    """Name the windows that nothing stands for any more, and the values that have none of passed times."""
    if not site.root.keeps_manifests:
        return
    paths = manifest_paths(site.root)
    left = _windows_left(site, partitions, paths)
    if left:
        more = f" and {len(left) - MOST_NAMED} more" if len(left) > MOST_NAMED else ""
        (site.warn or site.tell)(
            f"{site.export.name}: windows {', '.join(left[:MOST_NAMED])}{more} stay published, though {listed} no "
            f"more; remove their manifests below {site.root.uri}/_rivet to drop them."
        )
    late = _values_late(site, partitions, paths, windows)
    if late:
        # A schedule asks for the latest times only, so nobody else would ever ask for these.
        more = f" and {len(late) - MOST_NAMED} more" if len(late) > MOST_NAMED else ""
        first = next((each.window.partition(BESIDE)[0] for each in read_manifests(site.root, paths[:1])), "")
        last = min(each.partition.rpartition(BESIDE)[0] for each in windows)
        asked = f"{first}{BESIDE}{late[0]}...{last}{BESIDE}{late[0]}"
        (site.warn or site.tell)(
            f"{site.export.name}: {', '.join(late[:MOST_NAMED])}{more} came later than others, so windows of passed "
            f"times are missing; a backfill in Dagster makes them, or `rivet run -e {site.export.name} --partition "
            f"'{asked}'`."
        )


def windows_left(site: Site, partitions: Sequence[str]) -> list[str]:
    """Name the published windows of values that are none of these partitions."""
    return _windows_left(site, partitions, manifest_paths(site.root)) if site.root.keeps_manifests else []


def _windows_left(site: Site, partitions: Sequence[str], paths: Sequence[str]) -> list[str]:
    if site.export.has_days:  # a value for all its times
        names = {value_window(site.export, each).file_name for each in partitions}
        gone = {value: path for path in paths if (value := value_of_path(path)) and value not in names}
        return sorted(value_part(each.window) for each in read_manifests(site.root, tuple(gone.values())))
    listed = {manifest_path(value_window(site.export, each)) for each in partitions}
    strays = tuple(path for path in paths if path not in listed)
    return sorted(each.window for each in read_manifests(site.root, strays) if Window(each.window).kind == "value")


def _values_late(site: Site, partitions: Sequence[str], paths: Sequence[str], windows: Sequence[Window]) -> list[str]:
    """Return the values without any window, where others have one of before the run's times.

    Of snapshots none: a passed day cannot be run.
    """
    export = site.export
    if not export.has_two_dimensions or export.first_snapshot is not None or not windows or not paths:
        return []
    if not time_of_path(paths[0]) < min(time_of_path(manifest_path(each)) for each in windows):
        return []
    there = {value_of_path(path) for path in paths}
    return [each for each in partitions if value_window(export, each).file_name not in there]


def _refuse_others(site: Site, session: Session, values: Sequence[str | None], windows: Sequence[Window]) -> None:
    # Decision: rows of a value that nobody listed refuse the run unless the block says otherwise, since a reader of the
    # windows would not see that they are missing.
    export = site.export
    assert export.by_value is not None
    relation = session.describe(table=export.table, query=export.query, params=export.params, rules=export.type_rules())
    column = bound_column(relation, site.source, export.by_value.column, key="partition_by.column")
    where = where_outside(values, column, site.source)
    starts, ends = [each.start for each in windows if each.start], [each.end for each in windows if each.end]
    if starts and ends and (times := export.within(relation, site.source, min(starts), max(ends))):
        where = f"{times} AND {where}"
    rows = session.count(relation, where=where)
    if rows:
        raise OtherValues(
            f"Export {export.name}: {rows} rows of {relation.name} have a {column.name} that `partition_by` does not "
            f"list (NULL is a value too), so no window would hold them; nothing was published. Add the values, or set "
            f"`others: own_window` to export them together, or `others: ignore` to leave them out."
        )
