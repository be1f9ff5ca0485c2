"""Snapshots among the windows of an export: which of them a reader of the table sees.

Belongs here: the newest ones. Not here: which go with a new one (`supersede.py`), or by their age
(`upkeep/retain.py`).
"""

from __future__ import annotations

from collections.abc import Iterable

from rivet_resources.commit.manifest import Manifest
from rivet_resources.contracts.rows.value_windows import BESIDE, snapshot_day, value_part


def snapshot_value(key: str) -> str:
    """Return which value's rows a snapshot has, `region=eu`; '' of one of all rows."""
    return value_part(key) if BESIDE in key else ""


def newest_snapshots(manifests: Iterable[Manifest]) -> list[Manifest]:
    """Leave the newest of snapshots, each of which has all rows; of snapshots by value the newest of each value."""
    found: dict[str, Manifest] = {}
    for each in manifests:
        value = snapshot_value(each.window)
        if value not in found or snapshot_day(found[value].window) < snapshot_day(each.window):
            found[value] = each
    return list(found.values())
