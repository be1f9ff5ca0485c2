"""The assets of exports, whatever their mode, and their names.

Belongs here: which shape an export takes in Dagster. Not here: the shapes (`export_asset.py`, `drain_asset.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import dagster as dg

from rivet_assets.dagster.around import Around
from rivet_assets.dagster.drain_asset import build_drain
from rivet_assets.dagster.export_asset import build_export_asset
from rivet_assets.dagster.pages.specs import asset_key, asset_spec, source_specs
from rivet_assets.dagster.quarantine_asset import quarantine_specs
from rivet_assets.dagster.table_asset import build_applied
from rivet_assets.dagster.translator import SpecOf
from rivet_assets.modes.cdc import drain_of
from rivet_assets.run.judge.references import references_of

if TYPE_CHECKING:
    from rivet_assets.blocks.export import Export
    from rivet_assets.config.load import RivetConfig


def build_assets(
    export: Export, *, config: RivetConfig, spec_of: SpecOf | None = None, around: Around | None = None
) -> list[dg.AssetsDefinition]:
    """Return the assets of an export; nothing is opened before they run.

    Args:
        spec_of: what an asset shows, when it is not `asset_spec`; asked once per table of a change export.
        around: a project's own function around the step of the export, or of the drain; not around mirrors.
    """
    describe = spec_of or (lambda each: asset_spec(each, config=config))
    if (drain := drain_of(export)) is not None:
        return [
            build_drain(drain, config=config, spec_of=describe, around=around),
            *build_applied(drain, config=config, spec_of=describe),
        ]
    return [build_export_asset(export, config=config, spec=_with_references(export, describe), around=around)]


def _with_references(export: Export, spec_of: SpecOf) -> dg.AssetSpec:
    """Return what an export shows, downstream of the exports that its contract looks values up in."""
    # A dependency of the asset and not of its check alone: the check is judged inside the asset's step and may keep its
    # window back, so in one run the other export must go first. Not of one with `skip_empty`: where that finds nothing
    # Dagster would skip this one too.
    spec = spec_of(export)
    first = [spec_of(each).key for each in references_of(export) if not each.skip_empty]
    known = {dep.asset_key for dep in spec.deps}
    # Upon all windows of the other export: a value may stand in any of them.
    deps = [
        dg.AssetDep(key, partition_mapping=dg.AllPartitionMapping() if spec.partitions_def else None)
        for key in first
        if key not in known
    ]
    return spec.replace_attributes(deps=[*spec.deps, *deps]) if deps else spec


def build_all(
    exports: Iterable[Export], *, config: RivetConfig, spec_of: SpecOf | None = None, around: Around | None = None
) -> list[dg.AssetsDefinition | dg.AssetSpec]:
    """Return the assets of these exports and the source tables that they read."""
    exports = list(exports)
    describe = spec_of or (lambda each: asset_spec(each, config=config))
    assets = [asset for each in exports for asset in build_assets(each, config=config, spec_of=spec_of, around=around)]
    return [*assets, *source_specs(exports, config=config), *quarantine_specs(exports, spec_of=describe)]


def asset_keys(export: Export, *, config: RivetConfig, spec_of: SpecOf | None = None) -> list[dg.AssetKey]:
    """List the keys of an export's own assets: one, or one per drained table."""
    return [_key(each, config, spec_of) for each, _ in export.relations()]


def applied_keys(export: Export, *, config: RivetConfig, spec_of: SpecOf | None = None) -> list[dg.AssetKey]:
    """List the keys of the tables kept beside the changes of an export."""
    drain = drain_of(export)
    if drain is None:
        return []
    beside = [drain.export_beside(table, kind) for table in drain.captured for kind in drain.apply]
    return [_key(each, config, spec_of) for each in beside]


def step_names(export: Export, *, config: RivetConfig, spec_of: SpecOf | None = None) -> list[str]:
    """Name the steps of an export's assets; a drain is one step, whatever its tables."""
    keys = (_key(export, config, spec_of), *applied_keys(export, config=config, spec_of=spec_of))
    return [key.to_python_identifier() for key in keys]


def _key(export: Export, config: RivetConfig, spec_of: SpecOf | None) -> dg.AssetKey:
    return spec_of(export).key if spec_of else asset_key(export, config=config)
