"""The sensor that keeps partitions of values: what the queries of `partition_by` find is what can be run.

Belongs here: asking, and telling Dagster what came and went. Not here: the values (`modes/by_value.py`), rows that no
value is for (`run/other_values.py`).

Decisions:
* A run asks too, and adds what is new: nobody has to wait for a tick.
* A value that is gone is no partition any more, so that no schedule empties its window; what was published stays, and
  the tick says so. A query that finds nothing at all removes nothing: it may be wrong.
* The questions to one source go one after another over a connection that is kept, those to other sources beside them:
  a hundred exports of one database cost it one session, and a source that is silent keeps only its own exports waiting.
* Beside times the values are one of two dimensions. One that is new has a partition for every passed time, too, and
  these are missing: its rows of then are in no window, and a backfill reads them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import dagster as dg

from rivet_assets.dagster.pages.specs import asset_spec
from rivet_assets.dagster.sensors.drain_sensor import trouble
from rivet_assets.dagster.translator import SpecOf
from rivet_assets.modes.by_value import ask_partitions
from rivet_assets.modes.partitions import asked_partitions
from rivet_resources.engines.shared.kept_connections import keeping
from rivet_resources.errors import SourceAuth, SourceUnreachable
from rivet_resources.fan_out import NoAnswer, side_by_side

if TYPE_CHECKING:
    from rivet_assets.blocks.export import Export
    from rivet_assets.config.load import RivetConfig

NAME = "rivet_partitions"
SENSOR_SECONDS = 300
ASK_SECONDS = 40.0  # a tick has about a minute
MOST_NAMED = 10
OF_THE_SOURCE = (SourceAuth, SourceUnreachable)  # what the next question would meet too, after as many seconds


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

    @property
    def place(self) -> str:
        """Name whose values they are, in one location."""
        return str(self.partitions.name)

    @property
    def source(self) -> str:
        """Name the source that is asked; files may each have one of a name."""
        return f"{self.config.file} {self.config.source_of(self.export)[0]}"

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
        return tick(self.asked, context.instance, context.cursor)


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


def tick(asked: Sequence[AskedValues], instance: dg.DagsterInstance, cursor: str | None = None) -> dg.SensorResult:
    """Ask for all values, add those that are new and take away those that are gone; an error of one stops no other.

    Args:
        cursor: of the tick before, which may have left questions unasked.
    """
    lanes = _lanes(asked, _read(cursor))
    with keeping():
        side_by_side({f"values of {lane.source}": lane.ask_all for lane in lanes}, seconds=ASK_SECONDS)
    changes: list[dg.AddDynamicPartitionsRequest | dg.DeleteDynamicPartitionsRequest] = []
    told: list[str] = []
    troubles: dict[str, list[str]] = {}
    for each, answer in ((each, lane.answer(each)) for lane in lanes for each in lane.asked):
        if not isinstance(answer, list):
            troubles.setdefault(trouble(answer), []).append(each.export.name)
            continue
        known = instance.get_dynamic_partitions(each.place)
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
    told += [f"{_few(names)}: values could not be asked for: {why}" for why, names in troubles.items()]
    return dg.SensorResult(
        skip_reason="; ".join(told) or "no value came or went",
        dynamic_partitions_requests=changes,
        cursor=json.dumps({lane.source: lane.left_at for lane in lanes if lane.left_at}),
    )


@dataclass
class _Lane:
    """The questions to one source, in their order, and the answers that came in time."""

    source: str
    asked: list[AskedValues]
    left_at: str = ""  # the question that the last tick, then this one, waited for as its time ran out
    answers: dict[str, list[str] | Exception] = field(default_factory=dict)
    rest: Exception | None = None  # the answer to whatever was not asked

    def ask_all(self) -> None:
        """Ask one after another, until the source is found to be away."""
        self.left_at = ""
        for each in self.asked:
            try:
                self.answers[each.place] = each.ask()
            except Exception as error:  # every kind is an answer, as of `side_by_side`
                self.answers[each.place] = error
                if isinstance(error, OF_THE_SOURCE):
                    self.rest = error
                    return

    def answer(self, each: AskedValues) -> list[str] | Exception:
        """Return the values, or why they are not known."""
        found = self.answers.get(each.place, self.rest)
        if found is not None:
            return found
        self.left_at = self.left_at or each.place
        return NoAnswer(f"no answer in {ASK_SECONDS:g} s; the next tick begins with what was not asked")


def _lanes(asked: Sequence[AskedValues], left_at: dict[str, str]) -> list[_Lane]:
    """Deal the questions to lanes by source, each beginning behind the one that the tick before waited for."""
    by_source: dict[str, list[AskedValues]] = {}
    for each in asked:
        by_source.setdefault(each.source, []).append(each)
    lanes = []
    for source, questions in by_source.items():
        places = [each.place for each in questions]
        last = left_at.get(source, "")
        # Else a query that takes longer than a tick would keep those behind it waiting for ever.
        first = places.index(last) + 1 if last in places else 0
        lanes.append(_Lane(source, [*questions[first:], *questions[:first]], last))
    return lanes


def _read(cursor: str | None) -> dict[str, str]:
    """Read a cursor; what cannot be read was never remembered."""
    try:
        return {str(source): str(place) for source, place in json.loads(cursor or "").items()}
    except (ValueError, AttributeError):
        return {}


def _passed(export: Export) -> str:
    """Return what is to be known of the passed times of a value that is new."""
    if not export.has_days or export.first_snapshot is not None:  # of a passed day there can be no snapshot
        return ""
    return ", whose passed windows are missing until a backfill"


def _few(names: Sequence[str]) -> str:
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return f"{', '.join(names[:MOST_NAMED])}{more}"
