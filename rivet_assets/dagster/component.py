"""`type: rivet_assets.Exports`: the blocks of a rivet.yaml as a Dagster component.

Belongs here: the component and the hooks that other components have too. Not here: what an export becomes
(`export_asset.py`), finding component files (`definitions.py`).

Decision: the model is ours, strict and plain.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dagster as dg
from dagster.components import Component, ComponentLoadContext

from rivet_assets.config.environment import config_files, params
from rivet_assets.config.load import ExportsAttributes, RivetConfig, config_from_attributes
from rivet_assets.dagster.build import build_all
from rivet_assets.dagster.executor import project_executor
from rivet_assets.dagster.location import Part, refuse_twins, shared_definitions
from rivet_assets.dagster.scaffolder import ExportsScaffolder
from rivet_assets.dagster.translator import ExportData, RivetTranslator, remembered

if TYPE_CHECKING:
    from dagster._core.definitions.metadata.source_code import CodeReference
    from dagster_shared.yaml_utils.source_position import SourcePosition
    from pydantic import BaseModel

    from rivet_assets.blocks.export import Export


DEMO = Path(__file__).parents[1] / "defs" / "demo"


@dg.scaffold_with(ExportsScaffolder)
class Exports(Component):
    """Exports of databases to files, one asset each, under the same keys as a plain rivet.yaml."""

    def __init__(self, config: RivetConfig) -> None:
        self.config = config
        self.spec_of = remembered(config, lambda export: self.get_asset_spec(export))

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
        # Dagster's `Resolvable` would widen every field to "or a template", break unions by `type`, and put secrets
        # into what the UI shows; so attributes have no `{{ … }}`, and secrets stay names.
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
        return RivetTranslator().get_asset_spec(ExportData(export, self.config))

    @property
    def gives_way(self) -> bool:
        """Return whether this is the packaged example, and $RIVET_CONFIG names exports of one's own."""
        file = self.config.file
        return file is not None and file.parent == DEMO and bool(config_files())

    def build_defs(self, context: ComponentLoadContext) -> dg.Definitions:
        """Return one asset per export and its source tables; nothing is opened.

        Raises:
            ConfigError: two components define one asset; both places are named.
        """
        # The first such component of a project brings the sensors and the job `rivet_repair` for all of them, since
        # their names can be given once; and the executor, unless `op:` leaves that to the project.
        if self.gives_way:
            return dg.Definitions()
        own = dg.Definitions(assets=build_all(self.config.exports, config=self.config, spec_of=self.spec_of))
        # None: it has no project.
        parts = parts_of(context.component_tree) or [(self.config, self.spec_of)]
        if parts[0][0] is not self.config:
            return own
        refuse_twins(parts)
        wants_ours = all(config.op.executor == "in_process" for config, _ in parts)
        executor = dg.Definitions(executor=project_executor if wants_ours else None)
        return dg.Definitions.merge(own, shared_definitions(parts), executor)


def parts_of(tree: dg.ComponentTree) -> list[Part]:
    """List the configurations of all such components of a project, with what their assets show."""
    components = [each for each in tree.get_all_components(Exports) if not each.gives_way]
    return [(each.config, each.spec_of) for each in components]


def _file_of(context: ComponentLoadContext) -> Path:
    """Find the YAML file of a component."""
    folder = Path(context.path)
    return folder if folder.is_file() else folder / "defs.yaml"
