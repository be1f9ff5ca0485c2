"""The assets of one export, whatever its mode.

Belongs here: which shape an export takes in Dagster. Not here: the shapes (`export_asset.py`, `drain_asset.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import dagster as dg

from rivet_assets.dagster.drain_asset import build_drain
from rivet_assets.dagster.export_asset import build_export_asset
from rivet_assets.dagster.specs import asset_key, asset_spec
from rivet_assets.dagster.table_asset import build_applied
from rivet_assets.modes.cdc import drain_of

if TYPE_CHECKING:
    from rivet_assets.blocks.export import Export
    from rivet_assets.config.load import RivetConfig

SpecOf = Callable[["Export"], dg.AssetSpec]


def build_assets(export: Export, *, config: RivetConfig, spec_of: SpecOf | None = None) -> list[dg.AssetsDefinition]:
    """Return the assets of an export; nothing is opened before they run.

    Args:
        spec_of: what an asset shows, when it is not `asset_spec`; asked once per table of a change export.
    """
    describe = spec_of or (lambda each: asset_spec(each, config=config))
    if (drain := drain_of(export)) is not None:
        return [
            build_drain(drain, config=config, spec_of=describe),
            *build_applied(drain, config=config, spec_of=describe),
        ]
    return [build_export_asset(export, config=config, spec=describe(export))]


def asset_keys(export: Export, *, config: RivetConfig) -> list[dg.AssetKey]:
    """List the keys of an export's own assets: one, or one per drained table."""
    return [asset_key(each, config=config) for each, _ in export.relations()]


def applied_keys(export: Export, *, config: RivetConfig) -> list[dg.AssetKey]:
    """List the keys of the tables kept beside the changes of an export."""
    return [asset_key(export.model_copy(update={"name": name}), config=config) for name in export.tables_beside()]


def step_names(export: Export, *, config: RivetConfig) -> list[str]:
    """Name the steps of an export's assets; a drain is one step, whatever its tables."""
    keys = (asset_key(export, config=config), *applied_keys(export, config=config))
    return [key.to_python_identifier() for key in keys]
