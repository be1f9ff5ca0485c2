"""`type: rivet_assets.Exports`: the blocks of a rivet.yaml as a Dagster component.

Belongs here: the component and the hooks that other components have too. Not here: what an export becomes
(`export_asset.py`), finding component files (`definitions.py`).

Decision: the model is ours, strict and plain. Dagster's `Resolvable` would widen every field to "or a template", break
unions by `type`, and put secrets into what the UI shows; so attributes have no `{{ … }}`, and secrets stay names.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dagster as dg
from dagster.components import Component, ComponentLoadContext

from rivet_assets.config.environment import params
from rivet_assets.config.load import ExportsAttributes, RivetConfig, config_from_attributes
from rivet_assets.dagster.build import build_assets
from rivet_assets.dagster.drain_sensor import drain_sensors
from rivet_assets.dagster.failure_sensor import failure_sensors
from rivet_assets.dagster.repair_job import repair_jobs
from rivet_assets.dagster.resources import RESOURCES
from rivet_assets.dagster.retry_sensor import retry_sensors
from rivet_assets.dagster.specs import asset_spec, source_specs
from rivet_assets.dagster.values_sensor import values_sensors

if TYPE_CHECKING:
    from dagster._core.definitions.metadata.source_code import CodeReference
    from dagster_shared.yaml_utils.source_position import SourcePosition
    from pydantic import BaseModel

    from rivet_assets.blocks.export import Export


class Exports(Component):
    """Exports of databases to files, one asset each, under the same keys as a plain rivet.yaml."""

    def __init__(self, config: RivetConfig) -> None:
        self.config = config

    @classmethod
    def get_model_cls(cls) -> type[BaseModel] | None:
        """Return the schema of `attributes:`, for checks and editors."""
        return ExportsAttributes

    @classmethod
    def get_spec(cls) -> Any:
        """Describe the component to Dagster's listing of components."""
        return dg.ComponentTypeSpec(description=cls.__doc__, tags=["export", "spark", "parquet"])

    @classmethod
    def load(cls, attributes: BaseModel | None, context: ComponentLoadContext) -> Exports:
        """Take a validated block; its relative paths are those of its file."""
        assert isinstance(attributes, ExportsAttributes)
        return cls(config_from_attributes(attributes.root, file=_file_of(context), params=params()))

    @classmethod
    def get_code_references_for_yaml(
        cls, yaml_path: Path, source_position: SourcePosition, context: ComponentLoadContext
    ) -> Sequence[CodeReference]:
        """Return nothing to add: each asset names its own line of the file, which Dagster's would repeat."""
        return []

    def get_asset_spec(self, export: Export) -> dg.AssetSpec:
        """Return what an export's asset shows; override to change key, group, tags, owners."""
        return asset_spec(export, config=self.config)

    def build_defs(self, context: ComponentLoadContext) -> dg.Definitions:
        """Return one asset per export and its source tables; nothing is opened."""
        exports = self.config.exports
        assets = [
            asset for each in exports for asset in build_assets(each, config=self.config, spec_of=self.get_asset_spec)
        ]
        return dg.Definitions(
            assets=[*assets, *source_specs(exports, config=self.config)],
            sensors=[
                *drain_sensors(self.config, spec_of=self.get_asset_spec),
                *failure_sensors(self.config),
                *retry_sensors(self.config, spec_of=self.get_asset_spec),
                *values_sensors(self.config, spec_of=self.get_asset_spec),
            ],
            jobs=repair_jobs(self.config, spec_of=self.get_asset_spec),
            resources=RESOURCES,
        )


def _file_of(context: ComponentLoadContext) -> Path:
    """Find the YAML file of a component."""
    folder = Path(context.path)
    return folder if folder.is_file() else folder / "defs.yaml"
