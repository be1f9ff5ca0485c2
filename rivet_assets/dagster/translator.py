"""What the assets of exports are called and show, for people to change in Python.

Belongs here: the class to derive from. Not here: the default itself (`specs.py`), the same in YAML
(`blocks/translation.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import dagster as dg

from rivet_assets.dagster.pages.specs import asset_spec

if TYPE_CHECKING:
    from rivet_assets.blocks.export import Export
    from rivet_assets.config.load import RivetConfig

SpecOf = Callable[["Export"], dg.AssetSpec]


@dataclass(frozen=True)
class ExportData:
    """One export as a translator sees it; a table of a drain, its mirror and its history are exports of their own."""

    export: Export
    config: RivetConfig = field(repr=False)

    @property
    def source_name(self) -> str:
        """Return the name of its source; a source without a name is called by its type."""
        return self.config.source_of(self.export)[0]


class RivetTranslator:
    """Names and describes the assets of exports; derive from it and override what differs.

    An override begins with `super().get_asset_spec(data)` and returns `replace_attributes` or `merge_attributes` of
    it: metadata that the default puts there is how the IO manager finds the files.
    """

    def get_asset_spec(self, data: ExportData) -> dg.AssetSpec:
        """Return what the asset of an export shows; its key must be its alone."""
        return asset_spec(data.export, config=data.config)

    def specs_of(self, config: RivetConfig) -> SpecOf:
        """Return `get_asset_spec` for the exports of one configuration."""
        return remembered(config, lambda export: self.get_asset_spec(ExportData(export, config)))


def remembered(config: RivetConfig, spec_of: SpecOf) -> SpecOf:
    """Return `spec_of`, which is asked once for each export of a configuration: assets and sensors all need it."""
    known: dict[int, dg.AssetSpec] = {}
    # By identity, as blocks have no hash; the configuration keeps them.
    own = {id(export) for export in config.exports}

    def asked(export: Export) -> dg.AssetSpec:
        if id(export) not in own:
            return spec_of(export)
        if id(export) not in known:
            known[id(export)] = spec_of(export)
        return known[id(export)]

    return asked
