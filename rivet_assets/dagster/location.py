"""What a location has once, however many files its exports come from: its sensors, the jobs `rivet_repair` and others.

Belongs here: making these for several configurations, joining those that were made apart, one asset per key. Not here:
the sensors and the job themselves, which configurations there are (`component.py`, `code_first.py`, `definitions.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import dagster as dg

from rivet_assets.dagster.automation import ScheduleSensor
from rivet_assets.dagster.build import applied_keys
from rivet_assets.dagster.repair_job import repair_jobs
from rivet_assets.dagster.sensors.drain_sensor import drain_sensors
from rivet_assets.dagster.sensors.failure_sensor import failure_sensors
from rivet_assets.dagster.sensors.retry_sensor import retry_sensors
from rivet_assets.dagster.sensors.values_sensor import values_sensors
from rivet_assets.dagster.upkeep_jobs import upkeep_jobs, upkeep_schedules
from rivet_resources.errors import ConfigError

if TYPE_CHECKING:
    from rivet_assets.config.load import RivetConfig
    from rivet_assets.dagster.translator import SpecOf


Part = tuple["RivetConfig", "SpecOf"]  # a configuration, and what its assets show


def shared_definitions(parts: Sequence[Part], *, suffix: str = "") -> dg.Definitions:
    """Return the sensors and the job of these configurations, each once.

    Args:
        suffix: at the end of their names, where the project has such definitions already.
    """
    sensors: list[dg.SensorDefinition] = []
    jobs: list[dg.JobDefinition] = []
    schedules: list[dg.ScheduleDefinition] = []
    for config, spec_of in parts:
        sensors += [
            *drain_sensors(config, spec_of=spec_of, suffix=suffix),
            *failure_sensors(config, spec_of=spec_of, suffix=suffix),
            *retry_sensors(config, spec_of=spec_of, suffix=suffix),
            *values_sensors(config, spec_of=spec_of, suffix=suffix),
        ]
        if keys := _automated(config, spec_of):
            sensors.append(ScheduleSensor(keys, suffix))
        jobs += [
            *repair_jobs(config, spec_of=spec_of, suffix=suffix),
            *upkeep_jobs(config, spec_of=spec_of, suffix=suffix),
        ]
        schedules += upkeep_schedules(config, spec_of=spec_of, suffix=suffix)
    return dg.Definitions(sensors=joined(sensors), jobs=joined(jobs), schedules=joined(schedules))


def _automated(config: RivetConfig, spec_of: SpecOf) -> list[dg.AssetKey]:
    """List the assets that run by a condition of ours: those with a schedule, and mirrors, after each drain."""
    found = [spec_of(each) for export in config.exports if export.schedule for each, _ in export.relations()]
    beside = [key for export in config.exports for key in applied_keys(export, config=config, spec_of=spec_of)]
    return [*(spec.key for spec in found if spec.automation_condition is not None), *beside]


def joined(definitions: Iterable[Any]) -> list[Any]:
    """Join those of ours that have one name, as several files may read one source; all others pass as they are."""
    found: list[Any] = []
    places: dict[str, int] = {}
    for each in definitions:
        # Dagster takes one definition per name, and two files may read one source.
        if not hasattr(each, "joined_with"):
            found.append(each)
        elif each.name in places:
            found[places[each.name]] = found[places[each.name]].joined_with(each)
        else:
            places[each.name] = len(found)
            found.append(each)
    return found


def refuse_twins(parts: Iterable[Part]) -> None:
    """Refuse exports whose assets have one key.

    Raises:
        ConfigError: both places are named.
    """
    origins: dict[dg.AssetKey, str] = {}
    for config, spec_of in parts:
        for export in config.exports:
            for each, _ in export.relations():
                claim(spec_of(each), origins)


def claim(spec: dg.AssetSpec, origins: dict[dg.AssetKey, str]) -> None:
    """Note where the asset of an export comes from.

    Raises:
        ConfigError: another export has its key; both places are named.
    """
    origin = _origin(spec)
    if spec.key in origins:
        raise ConfigError(
            f"Asset {spec.key.to_user_string()} is defined twice, in {origins[spec.key]} and in {origin}. "
            f"Rename one of the exports, or its source under `sources:`; or give one of the files a "
            f"`translation: {{key_prefix: …}}`, or a translator that returns another key."
        )
    origins[spec.key] = origin


def _origin(spec: dg.AssetSpec) -> str:
    references = spec.metadata.get("dagster/code_references")
    if isinstance(references, dg.CodeReferencesMetadataValue):
        for reference in references.code_references:
            if isinstance(reference, dg.LocalFileCodeReference):
                return f"{reference.file_path}:{reference.line_number}"
    return "Python code"
