"""What Dagster loads: components under `defs/`, and the rivet.yaml (or folder of them) that $RIVET_CONFIG names.

Belongs here: putting assets, resources, sensor and executor together. Not here: what an asset is
(`dagster/export_asset.py`). Loading opens no connection and starts no JVM.

Executor: in this process, since a JVM and a Python start per step cost more than most exports; the price is that a
crash of the interpreter takes the whole run (dagster.md, section 6).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import dagster as dg

from rivet_assets.config.environment import config_files, params
from rivet_assets.config.load import RivetConfig, load_config
from rivet_assets.dagster.automation import automation_sensor
from rivet_assets.dagster.build import build_assets
from rivet_assets.dagster.drain_sensor import drain_sensors, joined
from rivet_assets.dagster.failure_sensor import failure_sensors
from rivet_assets.dagster.repair_job import repair_jobs
from rivet_assets.dagster.resources import RESOURCES
from rivet_assets.dagster.retry_sensor import retry_sensors
from rivet_assets.dagster.specs import EXPORT, asset_spec, source_specs
from rivet_assets.dagster.values_sensor import values_sensors
from rivet_resources.errors import ConfigError

DEMO = "demo"  # the packaged example; it makes room for a configuration of one's own
COMPONENTS = "rivet_assets.defs"


def definitions_of(*configs: RivetConfig) -> dg.Definitions:
    """Return everything that configurations define, complete and ready to run.

    Raises:
        ConfigError: two of them define the same asset; both files are named.
    """
    return _join_location([_assets_of(config) for config in configs])


def load_definitions() -> dg.Definitions:
    """Return the definitions of the whole code location.

    Raises:
        ConfigError: a file is wrong, or two define the same asset.
    """
    files = config_files()
    configs = [load_config(file, params=params()) for file in files]
    return _join_location([_components(without_demo=bool(files)), *(_assets_of(config) for config in configs)])


def _assets_of(config: RivetConfig) -> dg.Definitions:
    return dg.Definitions(
        assets=[
            *(asset for export in config.exports for asset in build_assets(export, config=config)),
            *source_specs(config.exports, config=config),
        ],
        sensors=[*drain_sensors(config), *failure_sensors(config), *retry_sensors(config), *values_sensors(config)],
        jobs=repair_jobs(config, spec_of=partial(asset_spec, config=config)),
    )


def _components(*, without_demo: bool) -> dg.Definitions:
    """Load the components below `defs/`, of this package or of the project that `pyproject.toml` describes."""
    module = import_module(COMPONENTS)
    folder = Path(next(iter(module.__path__)))
    tree = dg.ComponentTree.from_module(defs_module=module, project_root=folder.parent.parent)
    if not without_demo:
        return tree.build_defs()
    children = sorted(child for child in folder.iterdir() if child.name != DEMO and _may_define(child))
    return dg.Definitions.merge(*(tree.build_defs_at_path(child) for child in children))


def _may_define(path: Path) -> bool:
    return not path.name.startswith(("_", ".")) and (path.is_dir() or path.suffix in (".py", ".yaml"))


def _join_location(parts: Sequence[dg.Definitions]) -> dg.Definitions:
    """Join definitions with what the location adds to all of them.

    Raises:
        ConfigError: two files define the same asset.
    """
    merged = dg.Definitions.merge(*parts)
    return dg.Definitions(
        assets=list(_each_once(merged.assets or ())),
        asset_checks=merged.asset_checks,
        schedules=merged.schedules,
        sensors=[*joined(merged.sensors or ()), automation_sensor()],
        jobs=joined(merged.jobs or ()),
        resources={**RESOURCES, **(merged.resources or {})},
        loggers=merged.loggers,
        executor=merged.executor or dg.in_process_executor,
        metadata=merged.metadata,
        component_tree=merged.component_tree,
    )


def _each_once(assets: Iterable[Any]) -> Iterator[Any]:
    """Let every asset pass; source tables may come more than once, they are the same.

    Raises:
        ConfigError: two exports have the same key.
    """
    origins: dict[dg.AssetKey, str] = {}
    for asset in assets:
        if isinstance(asset, dg.AssetsDefinition):
            for spec in asset.specs:
                if EXPORT in spec.metadata:
                    _claim(spec, origins)
        yield asset


def _claim(spec: dg.AssetSpec, origins: dict[dg.AssetKey, str]) -> None:
    origin = _origin(spec)
    if spec.key in origins:
        raise ConfigError(
            f"Asset {spec.key.to_user_string()} is defined twice, in {origins[spec.key]} and in {origin}. "
            f"Rename one of the exports, or its source under `sources:`."
        )
    origins[spec.key] = origin


def _origin(spec: dg.AssetSpec) -> str:
    references = spec.metadata.get("dagster/code_references")
    if isinstance(references, dg.CodeReferencesMetadataValue):
        for reference in references.code_references:
            if isinstance(reference, dg.LocalFileCodeReference):
                return f"{reference.file_path}:{reference.line_number}"
    return "Python code"


@dg.definitions
def defs() -> dg.Definitions:
    """Load the code location; Dagster calls this, importing the module does not."""
    return load_definitions()
