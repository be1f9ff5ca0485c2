"""The sensor that keeps partitions of values: what the queries of `partition_by` find is what can be run.

Belongs here: asking, and telling Dagster what came and went. Not here: the values (`modes/by_value.py`), rows that no
value is for (`run/other_values.py`).

Decisions:
* A run asks too, and adds what is new: nobody has to wait for a tick.
* A value that is gone is no partition any more, so that no schedule empties its window; what was published stays, and
  the tick says so. A query that finds nothing at all removes nothing: it may be wrong.
* Beside times the values are one of two dimensions. One that is new has a partition for every passed time, too, and
  these are missing: its rows of then are in no window, and a backfill reads them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import dagster as dg

from rivet_assets.dagster.pages.specs import asset_spec
from rivet_assets.dagster.sensors.drain_sensor import trouble
from rivet_assets.dagster.translator import SpecOf
from rivet_assets.modes.by_value import ask_partitions
from rivet_assets.modes.partitions import asked_partitions
from rivet_resources.fan_out import side_by_side

if TYPE_CHECKING:
    from rivet_assets.blocks.export import Export
    from rivet_assets.config.load import RivetConfig

NAME = "rivet_partitions"
SENSOR_SECONDS = 300
ASK_SECONDS = 40.0  # a tick has about a minute
MOST_NAMED = 10


@dataclass(frozen=True)
class AskedValues:
    """One export whose partitions a query finds."""

    export: Export
    config: RivetConfig
    key: dg.AssetKey

    @property
    def partitions(self) -> dg.DynamicPartitionsDefinition:
        """Return the partitions of values, alone or beside times, which an instance keeps."""
        found = asked_partitions(self.export)
        assert found is not None
        return found

    def ask(self) -> list[str]:
        """Return the partitions that there are now.

        Raises:
            RivetError: the query cannot be asked.
        """
        return ask_partitions(self.export, self.config.source_of(self.export)[1])


class ValuesSensor(dg.SensorDefinition):
    """A sensor that knows whose values it asks for, so that those of several files can be joined."""

    def __init__(self, asked: Sequence[AskedValues], suffix: str = "") -> None:
        self.asked, self.suffix = tuple(asked), suffix
        super().__init__(
            name=f"{NAME}{suffix}",
            evaluation_fn=self._tick,
            asset_selection=dg.AssetSelection.assets(*(each.key for each in self.asked)),
            minimum_interval_seconds=SENSOR_SECONDS,
            default_status=dg.DefaultSensorStatus.RUNNING,
            description="Keeps the partitions that a query of `partition_by` finds.",
        )

    def joined_with(self, other: ValuesSensor) -> ValuesSensor:
        """Return one sensor that asks for both."""
        return ValuesSensor([*self.asked, *other.asked], self.suffix)

    def _tick(self, context: dg.SensorEvaluationContext) -> dg.SensorResult:
        return tick(self.asked, context.instance)


def values_sensors(config: RivetConfig, *, spec_of: SpecOf | None = None, suffix: str = "") -> list[ValuesSensor]:
    """Return the sensor of a configuration with queries of values; none where there is no such query.

    Args:
        spec_of: what an asset shows, when it is not `asset_spec`; as for `build_assets`.
    """
    describe = spec_of or partial(asset_spec, config=config)
    asked = [
        AskedValues(export, config, describe(export).key)
        for export in config.exports
        if export.by_value is not None and export.by_value.query is not None
    ]
    return [ValuesSensor(asked, suffix)] if asked else []


def tick(asked: Sequence[AskedValues], instance: dg.DagsterInstance) -> dg.SensorResult:
    """Ask for all values, add those that are new and take away those that are gone; an error of one stops no other."""
    answers = side_by_side({f"values of {each.partitions.name}": each.ask for each in asked}, seconds=ASK_SECONDS)
    changes: list[dg.AddDynamicPartitionsRequest | dg.DeleteDynamicPartitionsRequest] = []
    told: list[str] = []
    for each, answer in zip(asked, answers.values(), strict=True):
        if not isinstance(answer, list):
            told.append(f"{each.export.name}: its values could not be asked for: {trouble(answer)}")
            continue
        known = instance.get_dynamic_partitions(str(each.partitions.name))
        new = [key for key in answer if key not in known]
        # A value that is gone is no partition any more, so that no schedule empties its window; what was published
        # stays.
        gone = [key for key in known if key not in answer]
        if new:
            changes.append(each.partitions.build_add_request(new))
            told.append(f"{each.export.name}: new values {_few(new)}{_passed(each.export)}")
        # A query that finds nothing at all may be wrong, and all partitions would go at once.
        if gone and answer:
            changes.append(each.partitions.build_delete_request(gone))
        if gone:
            told.append(f"{each.export.name}: the query finds {_few(gone)} no more; what was published of them stays")
    return dg.SensorResult(skip_reason="; ".join(told) or "no value came or went", dynamic_partitions_requests=changes)


def _passed(export: Export) -> str:
    """Return what is to be known of the passed times of a value that is new."""
    if not export.has_days or export.first_snapshot is not None:  # of a passed day there can be no snapshot
        return ""
    return ", whose passed windows are missing until a backfill"


def _few(names: Sequence[str]) -> str:
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return f"{', '.join(names[:MOST_NAMED])}{more}"
