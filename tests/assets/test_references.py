"""`references:` of a contract, from the file to Dagster: values that another export has, or has not."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import yaml

from rivet_assets.config.load import RivetConfig, load_config
from rivet_assets.definitions import definitions_of
from rivet_assets.launch.run_exports import Outcome, run_exports
from rivet_assets.preflight.check import check_exports
from tests.backfills import QUIET


class Shop:
    """Nine orders of three customers in two countries, and exports of both tables."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.customers: dict[str, Any] = {}  # keys of that export
        self.sql("CREATE TABLE customers (id INTEGER PRIMARY KEY, country TEXT, name TEXT)")
        self.sql("CREATE TABLE orders (id INTEGER PRIMARY KEY, customer_id INT, country TEXT, day TEXT)")
        for number, country in enumerate("abc"):
            self.sql("INSERT INTO customers VALUES (?, ?, ?)", number, country, f"n{number}")
        for number in range(9):
            customer = number % 3
            day = f"2026-01-0{1 + number % 2}T00:00:00"
            self.sql("INSERT INTO orders VALUES (?, ?, ?, ?)", number, customer, "abc"[customer], day)

    def sql(self, statement: str, *values: object) -> None:
        """Run one statement at the source."""
        with closing(sqlite3.connect(self.folder / "shop.db")) as connection, connection:
            connection.execute(statement, values)

    def config(self, reference: dict[str, Any], **keys: Any) -> RivetConfig:
        """Write and load the configuration; orders stand first."""
        common = {"destination": {"type": "local", "path": str(self.folder / "lake")}, "format": "parquet"}
        contract = {"references": {"customer": {"export": "customers", **reference}}}
        exports = [
            {
                "name": "orders",
                "table": "orders",
                **common,
                "contract": contract,
                "columns": {"day": "timestamp"},
                **keys,
            },
            {"name": "customers", "table": "customers", **common, **self.customers},
        ]
        document = {"source": {"type": "sqlite", "path": str(self.folder / "shop.db")}, "spark": "inline"}
        path = self.folder / "rivet.yaml"
        path.write_text(yaml.safe_dump({**document, "exports": exports}))
        return load_config(path)

    def run(self, reference: dict[str, Any], names: Sequence[str] = (), **keys: Any) -> Outcome:
        """Run the exports, all without names; what became of the orders."""
        outcomes = {each.export: each for each in run_exports(self.config(reference, **keys), names=names)}
        return outcomes["orders"]


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shop:
    """A shop in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DAGSTER_HOME", raising=False)
    return Shop(tmp_path)


CUSTOMER = {"columns": "customer_id", "key": "id"}


@pytest.mark.parametrize("form", ["parquet", "csv", "ndjson", "avro"])
def test_value_that_the_other_export_lacks_keeps_the_window_back(shop, form):
    """In whatever format that one is; NULL is looked up nowhere; the text has how many, and no value."""
    shop.customers = {"format": form}
    assert "success" == shop.run(CUSTOMER).status
    shop.sql("INSERT INTO orders VALUES (100, 4711, 'a', NULL), (101, 4711, 'a', NULL), (102, NULL, 'a', NULL)")

    outcome = shop.run(CUSTOMER)

    assert ("failed", ("references__customer",)) == (outcome.status, outcome.checks_failed)
    assert "1, 0 wanted; distinct values of customer_id that customers does not have" in outcome.message
    assert "4711" not in outcome.message


@pytest.mark.parametrize("mode", [{}, {"mode": "chunked", "chunk_column": "id", "chunk_size": 2}])
def test_several_columns_are_looked_up_together(shop, mode):
    """A customer of another country is none, although both values are there."""
    both = {"columns": ["customer_id", "country"], "key": ["id", "country"]}
    assert "success" == shop.run(both, **mode).status
    shop.sql("UPDATE orders SET country = 'c' WHERE id = 0")

    assert ("references__customer",) == shop.run(both, **mode).checks_failed


def test_reference_to_an_export_that_never_ran_says_so(shop):
    """In the run, and in `rivet check` before it; one that only warns is published."""
    [orders, _] = check_exports(shop.config(CUSTOMER))
    refused = shop.run(CUSTOMER, ["orders"])
    warned = shop.run({**CUSTOMER, "severity": "warn"}, ["orders"])

    assert "export customers has published nothing yet" in orders.findings[0].text
    assert "published nothing yet: run export customers first" in refused.message
    assert ("success", 1) == (warned.status, len(warned.warnings))


@pytest.mark.parametrize(
    ("reference", "told"),
    [({"columns": "customer_id", "key": "name"}, "Cast one"), ({"columns": "customer_id"}, "no column 'customer_id'")],
)
def test_columns_that_cannot_be_compared_are_refused_before_a_row_is_read(shop, reference, told):
    """Once the other export has published; their types are named."""
    shop.run(CUSTOMER, ["customers", "orders"])

    outcome = shop.run(reference, ["orders"])

    assert ("failed", 0) == (outcome.status, outcome.rows)
    assert told in outcome.message


def test_masked_values_are_compared_as_they_are_written(shop):
    """Two columns with one mask are equal; a mask on one side makes all values missing."""
    text = {"type": "cast", "columns": {"customer_id": "text"}}
    hashed = {"type": "mask", "method": "hash", "unkeyed": True, "fields": ["customer_id"]}
    shop.customers = {"transforms": [{"type": "cast", "columns": {"id": "text"}}]}

    outcome = shop.run(CUSTOMER, transforms=[text, hashed])

    assert "3, 0 wanted" in outcome.message
    shop.customers["transforms"].append({**hashed, "fields": ["id"]})
    assert "success" == shop.run(CUSTOMER, transforms=[text, hashed]).status


def test_other_export_is_upstream_unless_it_may_find_nothing(shop):
    """So Dagster runs it first; a skipped one would take this one with it, so there it is no dependency."""
    days = {"mode": "time_window", "time_column": "day", "start": "2026-01-01", "end": "2026-01-03"}

    def upstream(**keys: Any) -> set[str]:
        graph = definitions_of(shop.config(CUSTOMER, **keys)).resolve_asset_graph()
        orders = graph.get(dg.AssetKey(["sqlite", "orders"]))
        return {key.to_user_string() for key in orders.parent_keys} - {"sqlite/main/orders"}

    assert {"sqlite/customers"} == upstream() == upstream(**days)
    shop.customers = {"skip_empty": True}
    assert set() == upstream()


def test_windows_of_time_are_each_looked_up_in_all_of_the_other_export(shop):
    """A day is judged by itself, against every window that readers see."""
    days = {"mode": "time_window", "time_column": "day", "start": "2026-01-01", "end": "2026-01-03"}
    shop.sql("UPDATE orders SET customer_id = 9 WHERE day LIKE '2026-01-02%'")
    config = shop.config(CUSTOMER, **days)
    run_exports(config, names=["customers"])

    [outcome] = run_exports(config, names=["orders"], partitions=["2026-01-01...2026-01-02"])

    assert ("references__customer 2026-01-02",) == outcome.checks_failed, outcome.message


def test_one_dagster_run_exports_the_other_one_first(shop):
    """Although it stands second in the file."""
    instance = dg.DagsterInstance.ephemeral()

    job = definitions_of(shop.config(CUSTOMER)).resolve_implicit_global_asset_job_def()
    run = job.execute_in_process(instance=instance, raise_on_error=False, run_config=QUIET)

    assert run.success
