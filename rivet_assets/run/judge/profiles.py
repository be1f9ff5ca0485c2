"""Profiles of windows: joined when a window is staged, and found again where it is published.

Belongs here: which windows are looked at, what the run's record keeps. Not here: counting
(`rivet_resources/write/profile.py`).

Decision: the profile lies in the window's manifest, beside the rows that it is of: least and largest values are values
of rows, and who may read the one may read the other. The state store's journal has numbers only.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa

from rivet_assets.modes.by_shard import chains_asked
from rivet_assets.run.journal import Journal
from rivet_resources.commit.manifest import Manifest, current_manifests
from rivet_resources.contracts.destination import Root
from rivet_resources.contracts.extract import Staged
from rivet_resources.write.profile import joined_profile

if TYPE_CHECKING:
    from rivet_assets.blocks.export import Export

MOST_NOTED = 50  # columns in one entry of the journal


def with_profile(staged: Staged, *, root: Root, journal: Journal) -> Staged:
    """Return a staged window with its profile, where its export asks for one.

    Raises:
        PartCorrupt: what a chunk counted is gone.
    """
    asked, measures = staged.extract.profile, staged.measures
    if asked is None:
        return staged
    schema = pa.ipc.read_schema(pa.py_buffer(staged.schema_ipc))
    profile = joined_profile(root, measures.profile, rows=measures.rows, schema=schema, asked=asked)
    noted = {each.name: {"nulls": each.nulls, "distinct": each.distinct} for each in profile.columns[:MOST_NOTED]}
    journal.add("Profiled", {"rows": profile.rows, "columns": noted})
    return replace(staged, profile=profile)


def profiled_windows(export: Export, windows: Collection[str] = ()) -> list[Manifest]:
    """Return the manifests with a profile, of these windows in their order; () for the one committed last.

    Raises:
        ManifestUnreadable, DestinationError
    """
    if export.is_apart:
        asked = chains_asked(export, list(windows) or None)
        return [found for one, keys in asked for found in profiled_windows(one, keys or ())]
    root = export.destination.root(export.name)
    if not root.keeps_manifests:
        return []
    found = [each for each in current_manifests(root).values() if each.profile is not None]
    if windows:
        return sorted((each for each in found if each.window in windows), key=lambda each: each.window)
    return sorted(found, key=lambda each: each.finished_at)[-1:]
