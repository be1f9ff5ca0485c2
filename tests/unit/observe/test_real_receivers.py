"""A Prometheus Pushgateway and an OpenTelemetry collector as they are, where they are installed.

Both are programs of other languages: Debian has `prometheus-pushgateway`, and the collector is one of its releases, or
built of its Go modules with the `otlp` receiver and the `debug` exporter. Without them
`test_observability.py` stands alone, whose receivers speak their protocols.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import pytest

from tests.servers.own import free_port
from tests.unit.observe.test_observability import metrics, run, shop, sql  # noqa: F401

GATEWAYS = ("pushgateway", "prometheus-pushgateway")  # the project's name, and Debian's
COLLECTORS = ("otelcol", "otelcol-contrib")
COLLECTOR = """
receivers: {{otlp: {{protocols: {{http: {{endpoint: "127.0.0.1:{port}"}}}}}}}}
exporters: {{debug: {{verbosity: detailed}}}}
service: {{telemetry: {{metrics: {{level: none}}}}, pipelines: {{traces: {{receivers: [otlp], exporters: [debug]}}}}}}
"""
PATIENCE_SECONDS = 30.0


def found(names: tuple[str, ...]) -> str:
    """Find a program by one of its names; without it the test is skipped."""
    path = next(filter(None, map(shutil.which, names)), None)
    if path is None:
        pytest.skip(f"none of {', '.join(names)} is on PATH")
    return path


@contextmanager
def running(command: list[str], log: Path, ready: str) -> Iterator[None]:
    """Run a program until it says that it is ready, and end it with the block."""
    with log.open("wb") as output, subprocess.Popen(command, stdout=output, stderr=output, cwd=log.parent) as process:
        try:
            wait_for(log, ready)
            yield
        finally:
            process.terminate()


def wait_for(log: Path, text: str) -> str:
    """Wait until a log has a text; the log."""
    until = time.monotonic() + PATIENCE_SECONDS
    while text not in (told := log.read_text()):
        assert time.monotonic() < until, told
        time.sleep(0.1)
    return told


def scraped(url: str) -> str:
    """Read what Prometheus would scrape."""
    until = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            with urlopen(url, timeout=PATIENCE_SECONDS) as answer:
                return str(answer.read().decode())
        except URLError:
            if time.monotonic() > until:
                raise
            time.sleep(0.1)


def test_pushgateway_keeps_the_last_success_through_a_failure(shop, tmp_path):  # noqa: F811
    """Its own metrics say that the push of each run was taken, and those of a success stay beside a failure."""
    port = free_port()
    gateway = f"{{prometheus: {{pushgateway: 'http://127.0.0.1:{port}'}}}}"
    command = [found(GATEWAYS), f"--web.listen-address=127.0.0.1:{port}"]

    with running(command, tmp_path / "gateway.log", "Listening on"):
        assert (True, []) == run(shop, "orders", gateway)
        well = metrics(scraped(f"http://127.0.0.1:{port}/metrics"))
        sql(shop, "ALTER TABLE orders RENAME TO away")
        assert (False, []) == run(shop, "orders", gateway)
        text = scraped(f"http://127.0.0.1:{port}/metrics")

    assert (1, 6) == (well["rivet_last_run_success"], well["rivet_last_success_rows"])
    failed = metrics(text)
    assert (0, 6, 0) == tuple(
        failed[name] for name in ("rivet_last_run_success", "rivet_last_success_rows", "push_failure_time_seconds")
    )
    assert 'rivet_last_success_rows{export="orders",instance="",job="rivet",mode="full",source="shop"} 6' in text


def test_collector_gets_a_trace_of_each_run(shop, tmp_path, monkeypatch):  # noqa: F811
    """Spans of one trace below one root; a failure is an error with its code, and no row value is in it."""
    port, log = free_port(), tmp_path / "collector.log"
    (tmp_path / "collector.yaml").write_text(COLLECTOR.format(port=port))
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{port}")

    with running([found(COLLECTORS), "--config", str(tmp_path / "collector.yaml")], log, "Everything is ready"):
        assert (True, []) == run(shop, "orders", "{opentelemetry: {service_name: exports}}")
        well = wait_for(log, "Name           : rivet export orders")
        sql(shop, "ALTER TABLE orders RENAME TO away")
        assert (False, []) == run(shop, "orders", "{opentelemetry: {service_name: exports}}")
        both = wait_for(log, "Status code    : Error")

    spans = re.findall(r"Name {11}: (.+)", well)
    assert ["rivet export orders", "plan", "read", "publish"] == spans
    assert 1 == len(set(re.findall(r"Trace ID {7}: (\w+)", well)))
    root, *parents = re.findall(r"Parent ID {6}: ?(\w*)", well)
    assert ("", 1) == (root, len(set(parents)))
    assert "service.name: Str(exports)" in well
    assert "rivet.rows: Int(6)" in well
    assert "RIVET_SOURCE_UNKNOWN_TABLE" in both
    assert "Ada Lovelace" not in both
