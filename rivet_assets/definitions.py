"""What Dagster loads: components under `defs/`, and the rivet.yaml (or folder of them) that $RIVET_CONFIG names.

Belongs here: putting assets, resources, sensor and executor together. Not here: what an asset is
(`dagster/export_asset.py`). Loading opens no connection and starts no JVM.

Executor: in this process, since a JVM and a Python start per step cost more than most exports; the price is that a
crash of the interpreter takes the whole run (dagster.md, section 6).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import dagster as dg

from rivet_assets.config.environment import config_files, params
from rivet_assets.config.load import RivetConfig, load_config
from rivet_assets.dagster.automation import automation_sensor
from rivet_assets.dagster.build import build_all
from rivet_assets.dagster.component import Exports, parts_of
from rivet_assets.dagster.executor import project_executor
from rivet_assets.dagster.location import claim, joined, shared_definitions
from rivet_assets.dagster.pages.specs import EXPORT
from rivet_assets.dagster.translator import RivetTranslator

COMPONENTS = "rivet_assets.defs"


def definitions_of(*configs: RivetConfig) -> dg.Definitions:
    """Return everything that configurations define, complete and ready to run.

    Raises:
        ConfigError: two of them define the same asset; both files are named.
    """
    return _join_location([], configs)


def load_definitions() -> dg.Definitions:
    """Return the definitions of the whole code location.

    Raises:
        ConfigError: a file is wrong, or two define the same asset.
    """
    module = import_module(COMPONENTS)
    folder = Path(next(iter(module.__path__)))
    tree = dg.ComponentTree.from_module(defs_module=module, project_root=folder.parent.parent)
    return _join_location([tree], [load_config(file, params=params()) for file in config_files()])


def _join_location(trees: Sequence[dg.ComponentTree], configs: Sequence[RivetConfig]) -> dg.Definitions:
    """Join components and files, with the sensors and the job that all of them share.

    Raises:
        ConfigError: two files define the same asset.
    """
    of_files = [(config, RivetTranslator().specs_of(config)) for config in configs]
    of_components = [part for tree in trees for part in parts_of(tree)]
    shared = shared_definitions([*of_components, *of_files])
    assets = [build_all(config.exports, config=config, spec_of=spec_of) for config, spec_of in of_files]
    merged = dg.Definitions.merge(
        *(tree.build_defs() for tree in trees), *(dg.Definitions(assets=each) for each in assets)
    )
    return dg.Definitions(
        assets=list(_each_once(merged.assets or ())),
        asset_checks=merged.asset_checks,
        schedules=[*_others(merged.schedules, shared.schedules), *(shared.schedules or ())],
        sensors=joined([*_others(merged.sensors, shared.sensors), *(shared.sensors or ()), automation_sensor()]),
        jobs=[*_others(merged.jobs, shared.jobs), *(shared.jobs or ())],
        resources=merged.resources,
        loggers=merged.loggers,
        executor=dg.in_process_executor if merged.executor in (None, project_executor) else merged.executor,
        metadata=merged.metadata,
        component_tree=merged.component_tree,
    )


def _others(found: Iterable[Any] | None, shared: Iterable[Any] | None) -> Iterator[Any]:
    """Let pass what is not a component's own share of the sensors and the job, which are made here for all files."""
    names = {each.name for each in shared or ()}
    for each in found or ():
        origin = each.metadata.get("dagster/component_origin")
        is_share = each.name in names and isinstance(getattr(origin, "instance", None), Exports)
        if not is_share:
            yield each


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
                    claim(spec, origins)
        yield asset


@dg.definitions
def defs() -> dg.Definitions:
    """Load the code location; Dagster calls this, importing the module does not."""
    return load_definitions()
