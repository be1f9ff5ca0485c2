"""The assets of one export, whatever its mode.

Belongs here: which shape an export takes in Dagster. Not here: the shapes (`assets.py`, `change_assets.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import dagster as dg

from rivet_assets.assets import build_export_asset
from rivet_assets.change_assets import build_drain
from rivet_assets.modes.cdc import Cdc
from rivet_assets.specs import asset_key, asset_spec

if TYPE_CHECKING:
    from rivet_assets.config import RivetConfig
    from rivet_assets.export import Export

SpecOf = Callable[["Export"], dg.AssetSpec]


def build_assets(export: Export, *, config: RivetConfig, spec_of: SpecOf | None = None) -> list[dg.AssetsDefinition]:
    """Give the assets of an export; nothing is opened before they run.

    Args:
        spec_of: what an asset shows, when it is not `asset_spec`; asked once per table of a change export.
    """
    describe = spec_of or (lambda each: asset_spec(each, config=config))
    if isinstance(export, Cdc):
        return [build_drain(export, config=config, spec_of=describe)]
    return [build_export_asset(export, config=config, spec=describe(export))]


def asset_keys(export: Export, *, config: RivetConfig) -> list[dg.AssetKey]:
    """List the keys of an export's assets."""
    if isinstance(export, Cdc):
        return [asset_key(export.of_table(table), config=config) for table in export.captured]
    return [asset_key(export, config=config)]


def step_names(export: Export, *, config: RivetConfig) -> list[str]:
    """Name the steps of an export's assets."""
    return [asset_key(export, config=config).to_python_identifier()]
