"""What was read of a source, counted by several processes at once, on SQLite and on PostgreSQL."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from rivet_resources.contracts.read_limits import MonthRead
from rivet_resources.state import readings
from rivet_resources.state.database import Database
from rivet_resources.state.store import State, default_url, open_state
from tests import processes

pytestmark = pytest.mark.xdist_group("processes")  # one worker starts one fork server

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
COUNT = """
import json, sys
from datetime import UTC, datetime
from rivet_resources.state import readings
from rivet_resources.state.database import Database
from rivet_resources.contracts.read_limits import MonthRead
database, waits = Database(sys.argv[1]), []
for _ in range(40):
    with database.write() as connection:
        page = MonthRead(8, 100)
        counted = readings.count(
            connection, "shop:5432", page, costs={"rows": 8 / 64, "bytes": 100 / 3200},
            at=datetime(2026, 1, 31, 12, tzinfo=UTC),
        )
    waits.append(counted.wait_seconds)
print(json.dumps(waits))
"""


@pytest.fixture(params=["sqlite", "postgres"])
def state(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[State]:
    """An empty store in each of the two databases."""
    url = default_url(tmp_path) if request.param == "sqlite" else request.getfixturevalue("fresh_database")
    state = open_state(url)
    yield state
    state.close()


def test_pages_of_two_processes_wait_for_each_other_to_the_instant(state: State) -> None:
    """At a clock that stands still, each of 80 pages has a turn of its own, and none is lost."""
    children = [processes.Process("-c", COUNT, state.url) for _ in range(2)]
    said = [child.communicate(timeout=120)[0] for child in children]

    waits = sorted(wait for text in said for wait in json.loads(text))
    assert [turn / 8 for turn in range(1, 81)] == pytest.approx(waits, abs=1e-6)
    assert MonthRead(640, 8000) == state.read_in_month("shop:5432", NOON)


def test_time_that_was_not_used_is_not_saved_up(state: State) -> None:
    """After a pause a page waits as long as any: a burst would burden the source."""
    database = Database(state.url)
    with database.write() as connection:
        first = readings.count(connection, "shop", MonthRead(10, 0), costs={"rows": 10.0}, at=NOON)
        later = NOON.replace(hour=13)
        second = readings.count(connection, "shop", MonthRead(10, 0), costs={"rows": 10.0}, at=later)
    database.close()

    assert (10.0, 10.0) == pytest.approx((first.wait_seconds, second.wait_seconds))


def test_each_month_and_each_source_is_counted_by_itself(state: State) -> None:
    """The first page of a month finds nothing read."""
    database = Database(state.url)
    with database.write() as connection:
        readings.count(connection, "shop", MonthRead(10, 70), costs={}, at=NOON)
        readings.count(connection, "shop", MonthRead(5, 30), costs={}, at=NOON)
        readings.count(connection, "other", MonthRead(1, 1), costs={}, at=NOON)
        february = readings.count(connection, "shop", MonthRead(2, 2), costs={}, at=NOON.replace(month=2, day=1))
    database.close()

    assert MonthRead(2, 2) == february.month
    assert MonthRead(15, 100) == state.read_in_month("shop", NOON)
    assert MonthRead() == state.read_in_month("nobody", NOON)
