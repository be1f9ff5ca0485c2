"""What the Dagster side decides without running anything: retries, schedules, the words for failed windows."""

from datetime import UTC, datetime, timedelta

import dagster as dg
import pytest

from rivet_assets.dagster.automation import automation_sensor, condition_of, freshness_of
from rivet_assets.modes.full import Full
from rivet_assets.modes.partitions import partitions_of
from rivet_assets.modes.time_window import TimeWindow
from rivet_assets.run.attempt import new_run_id
from rivet_assets.run.read_ahead import RefusedWindow, summary
from rivet_resources.dagster.errors import translated
from rivet_resources.errors import (
    GateRefused,
    SourceError,
    SourceLost,
    SourceUnreachable,
    StatementTimeout,
    WindowBusy,
    WindowTaken,
)  # fmt: skip
from rivet_resources.schema_registry.errors import SchemaRegistryUnreachable

COMMON = {"name": "orders", "table": "orders", "format": "csv", "destination": {"type": "local", "path": "/tmp/lake"}}


@pytest.mark.parametrize(
    ("error", "tried", "expected"),
    [
        (SourceLost("gone"), 0, dg.RetryRequested),
        (SourceLost("gone"), 1, dg.Failure),
        (WindowTaken("taken"), 0, dg.Failure),
        (WindowBusy("held"), 0, dg.Failure),
        (StatementTimeout("slow"), 0, dg.Failure),
        (GateRefused("bad"), 0, dg.Failure),
    ],
)
def test_step_is_tried_again_once_and_only_when_it_may_help(error, tried, expected):
    """Lasting errors fail at once; passing ones after one more try; a busy window does not wait."""
    with pytest.raises(expected), translated(retry_number=tried, seconds_to_wait=1):
        raise error


def test_failure_carries_code_and_exit_code_and_is_final():
    """Whoever started the run can answer with the right exit code."""
    with pytest.raises(dg.Failure) as caught, translated(retry_number=0, seconds_to_wait=1):
        raise GateRefused("bad")

    facts = {key: value.value for key, value in caught.value.metadata.items()}
    assert facts == {"rivet/code": "RIVET_QUALITY_REFUSED", "rivet/exit_code": 3}
    assert caught.value.allow_retries is False


def test_errors_of_others_pass_unchanged():
    """A bug keeps its own traceback."""
    with pytest.raises(ZeroDivisionError), translated(retry_number=0, seconds_to_wait=1):
        raise ZeroDivisionError


def test_worst_error_answers_for_all_windows():
    """The exit code is that of the worst one, by the order of the contract."""
    refused = [
        RefusedWindow("a", SourceLost("gone")),
        RefusedWindow("b", GateRefused("bad")),
        RefusedWindow("c", SourceError("no")),
    ]

    error, text = summary("orders", refused, of=9, tried=9)

    assert 3 == error.exit_code
    assert "3 of 9 windows were not published: a, b, c." in text
    assert text.endswith("b: bad")


def test_windows_that_were_not_tried_are_counted():
    """An error that every window would meet ends the walk; the text says so."""
    _, text = summary("orders", [RefusedWindow("a", SourceUnreachable("no host"))], of=9, tried=1)

    assert RefusedWindow("a", SourceUnreachable("no host")).is_hopeless
    assert RefusedWindow("a", SchemaRegistryUnreachable("no registry")).is_hopeless
    assert "8 windows after it were not tried" in text


def test_one_window_speaks_for_itself():
    """A run of a single window gives its error as it is."""
    assert "bad" == summary("orders", [RefusedWindow("a", GateRefused("bad"))], of=1, tried=1)[1]


def test_run_id_names_export_instant_and_a_nonce():
    """The last six letters tell two runs of one instant apart."""
    instant = datetime(2026, 1, 31, 3, 15, 0, 123_456, tzinfo=UTC)

    ids = {new_run_id("orders", instant) for _ in range(20)}

    assert 20 == len(ids)
    assert all(each.startswith("orders_20260131T031500.123_") and len(each) == 33 for each in ids)


def asked(export, *, at: datetime) -> list[str | None]:
    """List what the schedule asks for: at a tick it had not seen before `at`."""
    partitions = partitions_of(export)

    @dg.asset(name="orders", partitions_def=partitions, automation_condition=condition_of(export))
    def orders() -> None: ...

    with dg.DagsterInstance.ephemeral() as instance:
        defs = dg.Definitions(assets=[orders])
        early = at - timedelta(minutes=5)
        first = dg.evaluate_automation_conditions(defs, instance, evaluation_time=early)
        then = dg.evaluate_automation_conditions(defs, instance, evaluation_time=at, cursor=first.cursor)
        if partitions is None:
            return [None] * then.total_requested
        return sorted(then.get_requested_partitions(orders.key))


NOW = datetime(2026, 3, 10, 3, 1, tzinfo=UTC)


def test_schedule_asks_once_per_tick():
    """At 03:01 the tick of 03:00 is due, at 02:01 none is."""
    export = Full(**COMMON, schedule="0 3 * * *")

    assert [None] == asked(export, at=NOW)
    assert [] == asked(export, at=NOW - timedelta(hours=1))


@pytest.mark.parametrize(
    ("more", "expected"),
    [({}, ["2026-03-09"]), ({"days_window": 3}, ["2026-03-07", "2026-03-08", "2026-03-09"])],
)
def test_schedule_of_windows_asks_for_the_last_days(more, expected):
    """Without `days_window` the latest window, with it the last N, which replace themselves."""
    keys = {"mode": "time_window", "time_column": "at", "start": "2026-01-01", "schedule": "0 3 * * *", **more}

    assert expected == asked(TimeWindow(**COMMON, **keys), at=NOW)


def test_nothing_is_scheduled_or_stale_unless_asked_for():
    """No `schedule:`, no condition; no `freshness:`, no policy."""
    assert (None, None) == (condition_of(Full(**COMMON)), freshness_of(Full(**COMMON)))


def test_sensor_of_schedules_is_running_from_the_start():
    """Nobody has to switch it on."""
    assert dg.DefaultSensorStatus.RUNNING == automation_sensor().default_status
