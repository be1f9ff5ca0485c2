"""Rows that an earlier Rivet kept under bare names, on both kinds of stores: whose they become."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from rivet_resources.state.adoption import Evidence
from rivet_resources.state.runs import RunRecord
from rivet_resources.state.scopes import Scope
from rivet_resources.state.store import State, default_url, open_state

SHOP, BILLING = Scope("p", {"orders": "shop"}), Scope("p", {"orders": "billing"})
OWN = Evidence(committed=frozenset({"r2"}), reached=frozenset({"5"}))


@pytest.fixture(params=["sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[State]:
    """A store in which two runs of `orders` are kept by the bare name; the second moved its cursor to 5."""
    url = default_url(tmp_path) if request.param == "sqlite" else request.getfixturevalue("fresh_database")
    state = open_state(url)
    for number, (low, high) in enumerate(((None, "3"), ("3", "5")), 1):
        state.begin_run(RunRecord(f"r{number}", "orders", "all", datetime(2026, 1, number, tzinfo=UTC)))
        state.write_journal(f"r{number}", "orders", "RunStarted", {})
        state.finish_run(f"r{number}", "success", files_produced=1, cursor_low=low, cursor_high=high)
    state.advance_cursor("orders", "5", expected=None)
    state.save_schema("orders", [("id", "int64")])
    yield state
    state.close()


def test_rows_go_to_the_export_whose_destination_has_the_last_commit(store: State):
    """All of them, once; another export of the name finds nothing."""
    ours, theirs = store.of(SHOP), store.of(BILLING)
    assert [{"orders"}, "5"] == [ours.adoptions().waiting(), ours.adoptions().cursor("orders")]

    assert not theirs.adoptions().take("orders", Evidence(committed=frozenset({"elsewhere"})))
    assert ours.adoptions().take("orders", OWN)

    cursor = ours.cursor("orders")
    assert cursor is not None
    assert ("5", [("id", "int64")]) == (cursor.value, ours.schema("orders"))
    assert (["r2", "r1"], {"orders"}) == ([run.run_id for run in ours.runs()], {run.export for run in ours.runs()})
    assert 2 == len(ours.journal("orders"))
    assert (None, None, [], []) == (theirs.cursor("orders"), theirs.schema("orders"), theirs.runs(), theirs.journal())
    assert (set(), None) == (ours.adoptions().waiting(), store.cursor("orders"))


def test_rows_of_two_exports_are_parted_by_what_each_destination_proves(store: State):
    """Who did not commit last gets its own run, and neither the cursor nor the columns."""
    ours = store.of(SHOP)

    assert not ours.adoptions().take("orders", Evidence(committed=frozenset({"r1"}), reached=frozenset({"3"})))

    assert (None, None, ["r1"]) == (ours.cursor("orders"), ours.schema("orders"), [run.run_id for run in ours.runs()])
    assert ["r2"] == [run.run_id for run in store.runs("orders")]
    assert "5" == ours.adoptions().cursor("orders")


def test_windows_that_begin_where_another_export_ended_are_doubted(store: State):
    """Also after the other one took its rows over, and not for that one itself."""
    began = Evidence(committed=frozenset({"b1"}), starts=frozenset({"5", "7"}))
    theirs = store.of(BILLING).adoptions()
    assert {"5"} == theirs.find_doubted("orders", began)

    store.of(SHOP).adoptions().take("orders", OWN)

    assert {"5"} == theirs.find_doubted("orders", began)
    assert set() == store.of(SHOP).adoptions().find_doubted("orders", began)


def test_all_rows_are_taken_when_a_user_says_so(store: State):
    """And a name that is in no configuration has none to take."""
    store.of(SHOP).adoptions().take_all("orders")
    store.adoptions().take_all("orders")

    assert "5" == getattr(store.of(SHOP).cursor("orders"), "value", None)
    assert [] == store.runs("orders")
