"""What stands around a drain, on a real PostgreSQL: the sensor that asks for it, the doctor that looks at it."""

import os
from contextlib import closing

import dagster as dg
import psycopg
import pytest

from rivet_assets.config.load import load_text
from rivet_assets.dagster.sensors.drain_sensor import DRAIN, drain_sensors, tick
from rivet_assets.doctor.examine import examine
from rivet_assets.doctor.report import exit_code, render
from rivet_assets.run.admit.scope import state_of
from rivet_assets.run.drain import DrainSite, run_drain
from rivet_assets.run.log_status import capture_exports

BLOCK = """
sources:
  shop: {{type: postgres, url_env: SHOP_URL, environment: local}}
spark: inline
exports:
  - name: changes
    table: orders
    mode: cdc
    cdc: {{slot: {slot}}}
    format: parquet
    destination: {{type: local, path: {lake}}}
"""
NOW = 1_800_000_000.0


class Shop:
    """A database with one table, a change export of it, and the sensor's cursor."""

    def __init__(self, folder, url, instance):
        self.url, self.instance, self.cursor = url, instance, None
        self.slot = f"rivet_{os.getpid()}"
        text = BLOCK.format(slot=self.slot, lake=folder / "lake")
        self.config = load_text(text, file=folder / "rivet.yaml")
        (self.export,) = capture_exports(self.config)
        self.sql("CREATE TABLE orders (id int PRIMARY KEY, name text)")

    def sql(self, statement):
        """Run a statement as the application would; when it returns, it is in the part of the log that counts."""
        with psycopg.connect(self.url, autocommit=True, options="-c synchronous_commit=on") as connection:
            connection.execute(statement)

    def drain(self):
        """Drain once, as the asset does."""
        name, source = self.config.source_of(self.export)
        with closing(state_of(self.config)) as state:
            site = DrainSite(self.export, name, source, no_spark, state, self.config.folder, lambda text: None)
            return run_drain(site)

    def tick(self, at):
        """Evaluate the sensor once."""
        (sensor,) = drain_sensors(self.config)
        result = tick(sensor.watched, dg.build_sensor_context(instance=self.instance, cursor=self.cursor), now=at)
        self.cursor = result.cursor
        return result


def no_spark():
    """A drain without a first copy starts none."""
    raise AssertionError("nothing is copied")


@pytest.fixture
def shop(tmp_path, fresh_real_database, monkeypatch):
    """The shop; its slot goes with it, since it would hold the server's log."""
    monkeypatch.setenv("SHOP_URL", fresh_real_database)
    with dg.DagsterInstance.ephemeral() as instance:
        made = Shop(tmp_path, fresh_real_database, instance)
        yield made
        made.sql(
            f"SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = '{made.slot}'"
        )


def observed(result):
    """Return the observation of a tick as plain values."""
    (event,) = [event for event in result.asset_events if isinstance(event, dg.AssetObservation)]
    return {name: fact.value for name, fact in event.metadata.items()}


def test_sensor_asks_when_the_log_moved_and_rests_when_it_did_not(shop):
    """Before the first drain; after a change; not in between."""
    (request,) = shop.tick(NOW).run_requests
    assert "shop/changes" == request.tags[DRAIN]
    shop.drain()
    shop.tick(NOW + 30)

    shop.sql("INSERT INTO orders VALUES (1, 'ann')")
    late = shop.tick(NOW + 3600)
    assert 1 == len(late.run_requests)
    told = observed(late)
    assert told["rivet/lag_bytes"] > 0
    assert told["rivet/held_bytes"] >= told["rivet/lag_bytes"]
    assert "reserved" == told["rivet/log_wal_status"]

    assert 1 == shop.drain().changes
    assert 0 == observed(shop.tick(NOW + 7200))["rivet/lag_bytes"]


def test_slot_that_was_dropped_asks_for_a_snapshot(shop):
    """A drain could only fail; doctor says the same."""
    shop.drain()
    shop.sql(f"SELECT pg_drop_replication_slot('{shop.slot}')")

    result = shop.tick(NOW)

    assert [] == list(result.run_requests)
    assert "needs a new snapshot" in result.skip_reason.skip_message
    rows = {row.name: row for row in examine(shop.config) if row.about == "export changes"}
    assert ("fail", "position") == (rows["position"].status, rows["position"].category)


def test_doctor_finds_nothing_wrong_before_and_after_the_first_drain(shop):
    """What the server should have better is a warning."""
    before = examine(shop.config)
    shop.drain()
    after = examine(shop.config)

    assert (0, 0) == (exit_code(before), exit_code(after)), f"{render(before)}{render(after)}"
    names = {row.name for row in after if row.about == "export changes"}
    assert {"checkpoint", "wal_level", "replica_identity public.orders", "position", "lag", "slot_budget"} <= names


def test_doctor_names_the_missing_identity(shop):
    """With the statement that mends it."""
    shop.sql("ALTER TABLE orders DROP CONSTRAINT orders_pkey")

    rows = {row.name: row for row in examine(shop.config)}

    assert "fail" == rows["replica_identity public.orders"].status
    assert "REPLICA IDENTITY FULL" in rows["replica_identity public.orders"].fix
