"""A cursor that stays behind now (`cursor_lag`) and values that come again, together: each row comes once."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.lab import Lab, lab_in
from tests.lab_engines import ENGINES

KEYS = {"key": " NOT NULL PRIMARY KEY", "no-key": ""}


@pytest.fixture(params=ENGINES)
def lab(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    """An empty database and an empty folder."""
    return lab_in(tmp_path, ENGINES[request.param], request, monkeypatch)


def run(lab: Lab, lag: str) -> int:
    """Run the export so far behind now; the rows it published."""
    outcome = lab.export(f"{{name: orders, table: orders, mode: incremental, cursor_column: at, cursor_lag: {lag}}}")
    assert outcome.success, outcome.message
    return outcome.rows


@pytest.mark.matrix
@pytest.mark.parametrize("key", KEYS.values(), ids=KEYS)
def test_rows_of_one_stamp_come_once_each_however_far_behind(lab: Lab, key: str) -> None:
    """At the last value, beyond it, and when the lag is raised so that the last value lies inside of it."""
    types = lab.engine.types
    lab.sql(f"CREATE TABLE orders (id {types['whole']}{key}, at {types['instant']})")
    lab.columns["orders"] = {name: word for name, word in {"at": "timestamp_tz"}.items() if lab.engine.columns}
    now = datetime.now(UTC).replace(microsecond=0)
    old, young = now - timedelta(minutes=40), now - timedelta(minutes=20)

    def insert(*ids: int, at: datetime) -> None:
        lab.insert("orders", [{"id": number, "at": at} for number in ids])

    insert(1, 2, at=old)
    insert(3, 4, at=young)
    counts = [run(lab, "30m")]  # what is young is left to a later run
    insert(5, at=old)
    counts += [run(lab, "30m"), run(lab, "30m")]
    insert(6, at=old)
    insert(7, at=young)
    counts += [run(lab, "10m")]  # ties at both ends of one window
    insert(8, at=young)
    counts += [run(lab, "10m")]
    insert(9, at=young)
    raised = run(lab, "30m")  # the cursor stands inside the lag: it never goes back
    counts += [raised + run(lab, "10m"), run(lab, "30m"), run(lab, "10m")]

    assert [2, 1, 0, 4, 1, 1, 0, 0] == counts
    assert list(range(1, 10)) == lab.ids("orders")
