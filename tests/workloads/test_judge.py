"""The judges see a row that is lost, doubled or wrong, whatever the mode; and plans are made of their seeds alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.workloads.engines import ENGINES
from tests.workloads.judge import Attempt, Judge, Wrong, judge_of
from tests.workloads.plan import plan
from tests.workloads.published import Windows
from tests.workloads.steps import Mode, Workload
from tests.workloads.table import Table
from tests.workloads.values import Row

MODES = sorted({mode for engine in ENGINES.values() for mode in engine.modes})


def workload_of(mode: Mode) -> Workload:
    """Find a seed of this mode, with a few rows, a key, and nothing beside."""
    plans: Iterator[Workload] = (plan("postgres", seed) for seed in range(500))
    return next(
        found for found in plans
        if found.mode == mode and 3 < len(found.rows) < 200 and found.key and not (found.mark or found.is_csv)
    )  # fmt: skip


def seen(judge: Judge) -> Windows:
    """Publish the table as a right run would."""
    table = judge.table
    rows = [dict(row) for row in table.rows.values()]
    if table.workload.mode in ("poll", "cdc"):
        envelope: list[Row] = [{"__op": "insert", "__pos": "00", "__seq": place} for place, _ in enumerate(rows)]
        rows = [head | row for head, row in zip(envelope, rows, strict=True)]
    first = "all" if table.workload.mode in ("full", "chunked") else "after=start"
    return {first: rows}


def lose(rows: list[Row]) -> None:
    """Take a row away."""
    rows.pop()


def double(rows: list[Row]) -> None:
    """Show a row twice."""
    rows.append(dict(rows[-1]))


def spoil(rows: list[Row]) -> None:
    """Show another cell than there is."""
    name = next(name for name in rows[-1] if name.startswith("c"))
    rows[-1] = rows[-1] | {name: "another" if rows[-1][name] != "another" else None}


@pytest.mark.parametrize("fault", [lose, double, spoil])
@pytest.mark.parametrize("mode", [mode for mode in MODES if mode != "time_window"])
def test_fault_in_one_row_is_seen(mode: Mode, fault: Callable[[list[Row]], None]) -> None:
    """A run that ended well shows the table; with one row too few, too many or wrong it is refused."""
    judge = judge_of(Table(workload_of(mode)))
    judge.table.insert([judge.table.resolved(row) for row in judge.table.workload.rows])
    attempt = Attempt(ended_well=True)
    judge.before(attempt)
    found = seen(judge)
    judge.after(attempt, found)
    (rows,) = found.values()
    fault(rows)
    if (mode, fault) == ("cdc", double):  # a first copy is judged by what it comes to
        rows[-1]["id"] = "nobody's"

    with pytest.raises(Wrong):
        judge.after(attempt, found)


@pytest.mark.parametrize("engine", ENGINES)
def test_equal_seeds_give_equal_workloads(engine: str) -> None:
    """Nothing but the seed decides."""
    assert [plan(engine, seed) for seed in range(30)] == [plan(engine, seed) for seed in range(30)]
