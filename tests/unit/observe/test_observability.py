"""What Prometheus, OpenTelemetry and OpenLineage get of real runs, at receivers that speak their protocols.

A Pushgateway and a collector are programs of other languages; here an HTTP server takes what is sent, and the projects'
own parsers and classes read it.
"""

from __future__ import annotations

import sqlite3
import sys
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from rivet_assets.config.load import load_config
from rivet_assets.definitions import definitions_of
from rivet_assets.launch.run_exports import run_exports
from tests.servers.receiver import STAYS_SILENT, Receiver, receiver

BLOCK = """
sources:
  shop: {type: sqlite, path: FOLDER/shop.db}
  made: {type: datagen, pattern: orders, max_events: 50, events_per_second: 0, seed: 4, cdc_mode: true}
spark: inline
observability: OBSERVABILITY
exports:
  - name: orders
    source: shop
    table: orders
    transforms: [{type: rename, columns: {name: customer}}]
    format: parquet
    destination: {type: local, path: FOLDER/lake}
  - name: days
    source: shop
    table: orders
    mode: time_window
    time_column: at
    time_column_type: unix
    start: 2026-01-01
    end: 2026-01-04
    format: parquet
    destination: {type: local, path: FOLDER/lake}
  - name: changes
    source: made
    mode: cdc
    table: datagen
    format: parquet
    destination: {type: local, path: FOLDER/lake}
"""
FIRST_OF_JANUARY = 1767225600  # 2026, UTC
SECRET = "hunter2"
CELL = "Ada Lovelace"


def sql(folder: Path, *statements: str) -> None:
    """Run statements at the source."""
    with sqlite3.connect(folder / "shop.db") as connection:
        for statement in statements:
            connection.execute(statement)


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """Three days of orders, two each."""
    sql(tmp_path, "CREATE TABLE orders (id integer PRIMARY KEY, at integer NOT NULL, name text)")
    rows = [f"({number}, {FIRST_OF_JANUARY + number // 2 * 86400}, '{CELL}')" for number in range(6)]
    sql(tmp_path, f"INSERT INTO orders VALUES {', '.join(rows)}")
    return tmp_path


def run(
    folder: Path, export: str, observability: str, *, days: tuple[str, str] | None = None
) -> tuple[bool, list[str]]:
    """Run an export; whether it did well, and what was warned of."""
    (folder / "rivet.yaml").write_text(BLOCK.replace("OBSERVABILITY", observability).replace("FOLDER", str(folder)))
    config = load_config(folder / "rivet.yaml")
    key = dg.AssetKey([config.source_of(config.export(export))[0], export])
    first, last = days or ("", "")
    tags = {"dagster/asset_partition_range_start": first, "dagster/asset_partition_range_end": last}
    with dg.DagsterInstance.ephemeral() as instance:
        done = (
            definitions_of(config)
            .resolve_implicit_global_asset_job_def()
            .execute_in_process(
                instance=instance,
                asset_selection=[key],
                tags=tags if days else {},
                run_config={"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}},
                raise_on_error=False,
            )
        )
        told = [entry.user_message for entry in instance.all_logs(done.run_id)]
    return done.success, [text for text in told if "observability" in text]


def metrics(text: str) -> dict[str, float]:
    """Read the exposition format by Prometheus' own parser; names with the label `step`, where there is one."""
    from prometheus_client.parser import text_string_to_metric_families

    return {
        ".".join(filter(None, (sample.name, sample.labels.get("step")))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_pushgateway_gets_the_numbers_of_a_run(shop):
    """In the group of its export; another run of it replaces them."""
    with receiver(202) as gateway:
        assert (True, []) == run(shop, "orders", f"{{prometheus: {{pushgateway: '{gateway.url}'}}}}")

    (path,) = gateway.paths
    assert path.split("/metrics/")[1] == "job/rivet/export/orders/mode/full/source/shop"
    found = metrics(gateway.raw[0].decode())
    assert (1, 6, 1) == tuple(found[f"rivet_last_{name}"] for name in ("run_success", "success_rows", "success_files"))
    assert {"plan", "read", "publish"} == {
        name.rpartition(".")[2] for name in found if name.startswith("rivet_last_success_step_seconds.")
    }


def test_textfile_keeps_the_last_success_through_a_failure(shop):
    """`time() - rivet_last_success_timestamp_seconds` is what people alert on."""
    block = "{prometheus: {textfile_dir: FOLDER/metrics}}"
    run(shop, "orders", block)
    (file,) = (shop / "metrics").iterdir()
    before = metrics(file.read_text())
    sql(shop, "ALTER TABLE orders RENAME TO away")

    assert (False, []) == run(shop, "orders", block)

    assert [file] == list((shop / "metrics").iterdir())
    after = metrics(file.read_text())
    assert (1, 0) == (before["rivet_last_run_success"], after["rivet_last_run_success"])
    name = "rivet_last_success_timestamp_seconds"
    assert before[name] == after[name] < after["rivet_last_run_timestamp_seconds"]
    assert 'export="orders"' in file.read_text()


def spans_of(collector: Receiver) -> list[Any]:
    """Decode what a collector got by the protocol's own messages."""
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    found = []
    for body in collector.raw:
        request = ExportTraceServiceRequest()
        request.ParseFromString(body)
        resource = {each.key: each.value.string_value for each in request.resource_spans[0].resource.attributes}
        assert resource["service.name"] in ("rivet", "shop")
        found += request.resource_spans[0].scope_spans[0].spans
    return found


def test_collector_gets_a_trace_for_each_window(shop, monkeypatch):
    """The window, and in it plan, read and publish, one after the other."""
    with receiver() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", collector.url)
        assert (True, []) == run(shop, "days", "{opentelemetry: {}}", days=("2026-01-01", "2026-01-02"))

    found = spans_of(collector)
    assert ["rivet export days", "plan", "read", "publish"] * 2 == [span.name for span in found]
    for root, *steps in (found[:4], found[4:]):
        assert b"" == root.parent_span_id
        assert {root.span_id} == {span.parent_span_id for span in steps}
        assert {root.trace_id} == {span.trace_id for span in steps}
        times = [at for span in steps for at in (span.start_time_unix_nano, span.end_time_unix_nano)]
        assert sorted(times) == times
        assert root.start_time_unix_nano <= times[0]
        assert times[-1] <= root.end_time_unix_nano
    attributes = {each.key: each.value for each in found[0].attributes}
    assert "2026-01-01" == attributes["rivet.window"].string_value
    assert 2 == attributes["rivet.rows"].int_value


def test_trace_of_a_failed_run_says_so(shop, monkeypatch):
    """By its status and the code of the error."""
    sql(shop, "ALTER TABLE orders RENAME TO away")
    with receiver() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", collector.url)
        assert (False, []) == run(shop, "orders", "{opentelemetry: {service_name: shop}}")

    (root,) = spans_of(collector)
    assert 2 == root.status.code
    assert "RIVET_SOURCE_UNKNOWN_TABLE" == {each.key: each.value for each in root.attributes}["error.type"].string_value


def facets(event: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return those of an event's one output."""
    (output,) = event["outputs"]
    return output["facets"]


def test_lineage_has_the_schema_the_origin_of_each_column_and_the_counts(shop):
    """START, then COMPLETE, of one run; columns that were renamed lead back to those they were."""
    with receiver(201) as marquez:
        block = f"{{openlineage: {{url: '{marquez.url}', namespace: lake}}}}"
        assert (True, []) == run(shop, "orders", block)

    start, complete = marquez.bodies
    assert ("START", "COMPLETE") == (start["eventType"], complete["eventType"])
    assert start["run"]["runId"] == complete["run"]["runId"] == str(uuid.UUID(start["run"]["runId"]))
    assert ("lake", "shop.orders") == (complete["job"]["namespace"], complete["job"]["name"])
    (read,) = complete["inputs"]
    assert ("sqlite://shop", "orders") == (read["namespace"], read["name"].rpartition(".")[2])
    assert ["id", "at", "customer"] == [field["name"] for field in facets(complete)["schema"]["fields"]]
    (origin,) = facets(complete)["columnLineage"]["fields"]["customer"]["inputFields"]
    assert (read["namespace"], read["name"], "name") == (origin["namespace"], origin["name"], origin["field"])
    statistics = complete["outputs"][0]["outputFacets"]["outputStatistics"]
    assert (6, 1) == (statistics["rowCount"], statistics["fileCount"])
    assert ("file", str(shop / "lake/orders")) == (
        complete["outputs"][0]["namespace"], complete["outputs"][0]["name"]
    )  # fmt: skip


def test_lineage_of_a_failed_run_ends_in_fail(shop):
    """With the text of our error."""
    sql(shop, "ALTER TABLE orders RENAME TO away")
    with receiver(201) as marquez:
        assert (False, []) == run(shop, "orders", f"{{openlineage: {{url: '{marquez.url}'}}}}")

    _, fail = marquez.bodies
    assert "FAIL" == fail["eventType"]
    assert "orders" in fail["run"]["facets"]["errorMessage"]["message"]


def test_drain_is_told_of_with_its_tables(shop, monkeypatch):
    """Its steps are its own: begin, read, write, publish, acknowledge."""
    with receiver(200) as collector, receiver(201) as marquez:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", collector.url)
        block = f"{{openlineage: {{url: '{marquez.url}'}}, opentelemetry: {{}}}}"
        assert (True, []) == run(shop, "changes", block)

    assert ["rivet export changes", "begin", "read", "write", "publish", "acknowledge"] == [
        span.name for span in spans_of(collector)
    ]
    _, complete = marquez.bodies
    assert "__op" in {field["name"] for field in facets(complete)["schema"]["fields"]}
    assert 50 == complete["outputs"][0]["outputFacets"]["outputStatistics"]["rowCount"]


def test_receiver_that_refuses_or_stays_silent_is_told_of_once_and_fails_nothing(shop, monkeypatch):
    """All windows are published; whoever is silent for the first is not waited for at the others."""
    with receiver(STAYS_SILENT) as silent, receiver(500) as broken:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", silent.url)
        block = (
            f"{{opentelemetry: {{}}, prometheus: {{pushgateway: '{broken.url}'}}, "
            f"openlineage: {{url: 'http://127.0.0.1:1/{SECRET}'}}}}"
        )
        success, told = run(shop, "days", block, days=("2026-01-01", "2026-01-03"))

    assert success
    assert ["openlineage", "opentelemetry", "prometheus.pushgateway"] == sorted(
        text.removeprefix("days: observability.").split()[0] for text in told
    )
    assert not [text for text in told if SECRET in text]
    assert 3 == len(list((shop / "lake/days/_rivet").glob("2026*.json")))


def test_receiver_that_is_away_is_told_of_in_the_summary_of_a_command(shop):
    """Beside the export that it concerns; what is told of in a log alone, nobody who types a command sees."""
    block = "{prometheus: {pushgateway: 'http://127.0.0.1:1'}}"
    (shop / "rivet.yaml").write_text(BLOCK.replace("OBSERVABILITY", block).replace("FOLDER", str(shop)))

    (outcome,) = run_exports(load_config(shop / "rivet.yaml"), names=["orders"])

    assert "success" == outcome.status
    assert ["observability.prometheus.pushgateway was not told"] == [
        each.partition(" (")[0] for each in outcome.warnings if "observability" in each
    ]


def test_nothing_that_is_sent_holds_a_cell_or_where_the_database_is(shop, monkeypatch):
    """Names, counts and times only."""
    with receiver(200) as all_of_it:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", all_of_it.url)
        url = all_of_it.url
        block = f"{{opentelemetry: {{}}, prometheus: {{pushgateway: '{url}'}}, openlineage: {{url: '{url}'}}}}"
        assert (True, []) == run(shop, "orders", block)

    assert 4 == len(all_of_it.raw)
    assert not [body for body in all_of_it.raw if CELL.encode() in body or b"shop.db" in body]


def test_extra_that_is_missing_is_one_line_with_the_command(shop, monkeypatch):
    """The run goes on; `rivet doctor` says it before."""
    for module in ("prometheus_client", "openlineage", "openlineage.client"):
        monkeypatch.setitem(sys.modules, module, None)

    success, told = run(shop, "orders", "{prometheus: {textfile_dir: FOLDER/metrics}, openlineage: {}}")

    assert success
    assert ['pip install "rivet[prometheus]"', 'pip install "rivet[openlineage]"'] == [
        text.split(": ")[-1].split(" (")[0] for text in told
    ]
    config = load_config(shop / "rivet.yaml")
    assert {"prometheus", "openlineage"} == {extra.name for extra in config.observability.extras}
