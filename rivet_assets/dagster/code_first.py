"""Exports in a project's own Python: `build_rivet_definitions`, `build_rivet_assets`, `@rivet_assets`.

Belongs here: these three doors. Not here: the YAML one (`component.py`), what they build (`build.py`, `location.py`).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dagster as dg

from rivet_assets.config.environment import params
from rivet_assets.config.load import RivetConfig, load_config
from rivet_assets.dagster.around import Around, RivetRun
from rivet_assets.dagster.build import build_all
from rivet_assets.dagster.executor import project_executor
from rivet_assets.dagster.location import refuse_twins, shared_definitions
from rivet_assets.dagster.translator import RivetTranslator
from rivet_assets.modes.cdc import drain_of
from rivet_assets.notify.notify import wants
from rivet_resources.errors import ConfigError

if TYPE_CHECKING:
    from rivet_assets.blocks.export import Export

log = logging.getLogger(__name__)
Config = RivetConfig | Path | str
Assets = list[dg.AssetsDefinition | dg.AssetSpec]
NAME = re.compile(r"[A-Za-z0-9_]*")


def build_rivet_definitions(
    config: Config, *, select: Sequence[str] = (), translator: RivetTranslator | None = None, name: str | None = None
) -> dg.Definitions:
    """Return all that a file of exports is in Dagster: assets, checks, sensors, the job `rivet_repair`.

    Args:
        config: a `rivet.yaml`, or one that is loaded.
        select: names of exports; none: all.
        translator: how assets are called and described, when it is not `RivetTranslator`.
        name: at the end of the sensors' and the job's names, `rivet_repair_<name>`; default: the file's name; `""`
            leaves them as a component has them.

    Raises:
        ConfigError: the file is wrong, has no such export, or two exports have one key.
    """
    # Decision: assets bring their own resources, and sensors and job can be given a name, so that several of these
    # stand beside each other and beside components in one project.
    chosen = _chosen(config, select)
    spec_of = (translator or RivetTranslator()).specs_of(chosen)
    refuse_twins([(chosen, spec_of)])
    suffix = _suffix(chosen, name)
    own = dg.Definitions(
        assets=build_all(chosen.exports, config=chosen, spec_of=spec_of),
        executor=project_executor if chosen.op.executor == "in_process" else None,
    )
    return dg.Definitions.merge(own, shared_definitions([(chosen, spec_of)], suffix=suffix))


def build_rivet_assets(
    config: Config, *, select: Sequence[str] = (), translator: RivetTranslator | None = None
) -> Assets:
    """Return the assets of a file of exports, and the source tables that they read; for `Definitions(assets=…)`.

    They bring their resources, and neither sensors nor the job `rivet_repair`: what needs those (`schedule:`, drains,
    `notifications:`) is named in a warning.

    Args, Raises: as `build_rivet_definitions`.
    """
    return _assets(_chosen(config, select), translator or RivetTranslator(), None)


def rivet_assets(
    *,
    config: Config,
    select: Sequence[str] = (),
    translator: RivetTranslator | None = None,
    required_resource_keys: Iterable[str] = (),
) -> Callable[[Callable[[dg.AssetExecutionContext, RivetRun], Iterator[Any]]], Assets]:
    """Put a function around the step of each export: `def shop(context, rivet): yield from rivet.run()`.

    The name becomes a list of assets, as `build_rivet_assets` returns it.

    Args, Raises: as `build_rivet_assets`.
        required_resource_keys: of the project, for the function.
    """
    chosen = _chosen(config, select)

    def decorate(function: Callable[[dg.AssetExecutionContext, RivetRun], Iterator[Any]]) -> Assets:
        around = Around(function, frozenset(required_resource_keys))
        return _assets(chosen, translator or RivetTranslator(), around)

    return decorate


def _assets(config: RivetConfig, translator: RivetTranslator, around: Around | None) -> Assets:
    spec_of = translator.specs_of(config)
    refuse_twins([(config, spec_of)])
    # A warning and no refusal: a project may have automation of its own.
    if unwatched := list(_unwatched(config)):
        log.warning(
            f"{config.file}: nothing watches over {', '.join(unwatched)}: these are assets without sensors. "
            f"Load them with `build_rivet_definitions`, or give Dagster automation of your own."
        )
    return build_all(config.exports, config=config, spec_of=spec_of, around=around)


def load_given(config: Config) -> RivetConfig:
    """Return a configuration that is given as such, or as its file.

    Raises:
        ConfigError: the file is wrong.
    """
    return config if isinstance(config, RivetConfig) else load_config(config, params=params())


def _chosen(config: Config, select: Sequence[str]) -> RivetConfig:
    """Load a configuration, and leave only these exports in it.

    Raises:
        ConfigError: it is wrong, or has no such export.
    """
    loaded = load_given(config)
    if not select:
        return loaded
    exports = tuple(loaded.export(name) for name in dict.fromkeys(select))
    return loaded.model_copy(update={"exports": exports})


def _suffix(config: RivetConfig, name: str | None) -> str:
    """Return the end of the sensors' and the job's names.

    Raises:
        ConfigError: it is no part of a Dagster name.
    """
    if name is None:
        # By the file: two calls for two files must not give one name to their sensors.
        stem = config.file.stem if config.file else "exports"
        name = re.sub(r"[^A-Za-z0-9_]", "_", stem)
    if not NAME.fullmatch(name):
        raise ConfigError(f"name={name!r} cannot end the names of sensors and jobs; use letters, digits and '_'.")
    return f"_{name}" if name else ""


def _unwatched(config: RivetConfig) -> Iterator[str]:
    for export in config.exports:
        if reason := _wants_sensor(export):
            yield f"{export.name} ({reason})"
    if wants(config, "failure", "schema_change"):
        yield "`notifications:` of failures"


def _wants_sensor(export: Export) -> str:
    if export.schedule is not None:
        return "`schedule:`"
    if export.by_value is not None and export.by_value.query is not None:
        return "a query of `partition_by:`"
    return "`mode: cdc`" if drain_of(export) is not None else ""
