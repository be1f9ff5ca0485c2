"""The tables of a drain: what is asked of the state store for each, and in which order."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

from rivet_assets.run.admit.drained_tables import DrainedTables
from rivet_resources.state.runs import RunRecord


def test_dead_runs_of_a_table_are_noticed_before_it_is_asked_whether_a_sweep_is_due() -> None:
    """A killed run is noted as failed when the next run of its table begins; asked before, a sweep came a run late."""
    told: list[str] = []
    state = SimpleNamespace(
        begin_run=lambda run: told.append(f"begin {run.run_id}"),
        failures_to_sweep=lambda name, place: told.append(f"sweep {name}"),
    )
    export = SimpleNamespace(name="shop", folder_of=lambda table: f"shop/{table}")
    run = RunRecord("shop_1", "shop", "drain", datetime(2026, 1, 1, tzinfo=UTC))
    tables = DrainedTables(
        cast(Any, export), cast(Any, state), {"orders": cast(Any, SimpleNamespace(uri="lake"))}, run,
        run_of=lambda table: f"{table}_1", ends=dict, tell=told.append,
    )  # fmt: skip

    tables.begin("orders")

    assert ["begin orders_1", "sweep shop/orders"] == told
    assert ["orders_1"] == tables.begun
