"""A tick that asks for values: one question at a time to each source, and no source waits for another."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import dagster as dg
import pytest

from rivet_assets.config.load import load_text
from rivet_assets.dagster.sensors import values_sensor
from rivet_assets.dagster.sensors.values_sensor import AskedValues, tick, values_sensors
from rivet_resources.errors import SourceUnreachable
from rivet_resources.fan_out import ABREAST

SOURCES = "sources: {{slow{0}: {{type: sqlite, path: slow.db}}, fine{0}: {{type: sqlite, path: fine.db}}}}\nexports:\n"
EXPORT = """  - {{name: {1}, source: {2}{0}, table: orders, format: parquet, destination: {{type: local, path: lake}},
     partition_by: {{column: region, query: SELECT code FROM region}}}}
"""
PLACES = (("one", "slow"), ("two", "slow"), ("three", "slow"), ("other", "fine"))
_tests = itertools.count()  # a source that hung in one test is not asked in the next one


@dataclass(frozen=True)
class Scripted(AskedValues):
    """Values that a test answers for."""

    answer: Callable[[], list[str]] = field(default=list)

    def ask(self) -> list[str]:
        """Answer as the test says."""
        return self.answer()


def asked(answer: Callable[[str], list[str]]) -> list[Scripted]:
    """Return the exports, each answered for by its name."""
    number = next(_tests)
    block = SOURCES.format(number) + "".join(EXPORT.format(number, *place) for place in PLACES)
    (sensor,) = values_sensors(load_text(block, file=Path("rivet.yaml")))
    return [
        Scripted(each.export, each.config, each.key, lambda name=each.export.name: answer(name))
        for each in sensor.asked
    ]


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    """An instance in memory."""
    with dg.DagsterInstance.ephemeral() as made:
        yield made


def added(result: dg.SensorResult) -> dict[str, list[str]]:
    """Return the values that came, by export."""
    requests = result.dynamic_partitions_requests or ()
    return {str(each.partitions_def_name).split("/")[1]: list(each.partition_keys) for each in requests}


def test_one_source_is_asked_one_question_at_a_time(instance):
    """A hundred exports of one database are no hundred sessions at once."""
    lock, running, most = threading.Lock(), {"slow": 0}, [0]

    def answer(name: str) -> list[str]:
        with lock:
            running["slow"] += name != "other"
            most[0] = max(most[0], running["slow"])
        with lock:
            running["slow"] -= name != "other"
        return [name]

    result = tick(asked(answer), instance)

    assert {name: [name] for name in ("one", "two", "three", "other")} == added(result)
    assert 1 == most[0]


def test_source_that_is_away_is_asked_once_and_told_of_once(instance):
    """Each more would wait for its connection again, and a tick has a minute."""
    tried: list[str] = []

    def answer(name: str) -> list[str]:
        if name == "other":
            return ["eu"]
        tried.append(name)
        raise SourceUnreachable("shop at 127.0.0.1 does not answer.")

    result = tick(asked(answer), instance)

    assert ["one"] == tried
    assert {"other": ["eu"]} == added(result)
    assert "one, two, three: values could not be asked for: RIVET_SOURCE_UNREACHABLE: shop" in str(
        result.skip_reason.skip_message
    )


def test_query_that_takes_longer_than_a_tick_goes_last_in_the_next_one(instance, monkeypatch):
    """It keeps nobody waiting for ever, neither at its own source nor at another."""
    monkeypatch.setattr(values_sensor, "ASK_SECONDS", 0.1)
    gate, threads = threading.Event(), list[threading.Thread]()

    def answer(name: str) -> list[str]:
        if name == "one":
            threads.append(threading.current_thread())
            gate.wait(30)
        return [name]

    exports = asked(answer)
    first = tick(exports, instance)
    gate.set()
    threads[0].join(30)
    gate.clear()
    second = tick(exports, instance, first.cursor)
    gate.set()

    assert {"other": ["other"]} == added(first)
    assert "one, two, three: values could not be asked for: the source is silent" in str(first.skip_reason.skip_message)
    assert {"two": ["two"], "three": ["three"], "other": ["other"]} == added(second)


def test_many_silent_exports_cost_a_tick_no_more_time_than_one(instance, monkeypatch):
    """They took their turns before, sixteen at a time, and Dagster ended the tick before any value was told."""
    monkeypatch.setattr(values_sensor, "ASK_SECONDS", 0.1)
    gate, waited = threading.Event(), list[str]()

    def answer(name: str) -> list[str]:
        waited.append(name)
        gate.wait(30)
        return [name]

    (first, *_) = asked(answer)
    many = [replace(first, export=first.export.model_copy(update={"name": f"n{i}"})) for i in range(ABREAST + 1)]
    tick(many, instance)
    seen = list(waited)
    gate.set()

    assert ["one"] == seen


@pytest.mark.parametrize("cursor", ["", "rubbish", "[]", '{"rivet.yaml slow": "gone"}'])
def test_cursor_is_decoration(instance, cursor):
    """Lost or of another version, it costs nothing."""
    result = tick(asked(lambda name: [name]), instance, cursor)

    assert 4 == len(added(result))
    assert "{}" == result.cursor
