"""The same export over Spark Connect: a server of the wheel's own, another process, no JVM of ours."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest
import yaml

from rivet_resources.spark.jvm import find_java
from tests.lab import Lab

pytestmark = [pytest.mark.spark, pytest.mark.slow]
REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def connect_server(tmp_path: Path, fresh_database: str) -> Iterator[str]:
    """Serve Spark Connect on a free port; its URL."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    script = Path(pyspark.__file__).parent / "sbin/start-connect-server.sh"
    environment = os.environ | {
        "JAVA_HOME": str(find_java().home),
        "LAB_URL": fresh_database,  # tasks resolve `url_env` themselves
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": str(REPOSITORY),
        "SPARK_NO_DAEMONIZE": "1",
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    options = ["--master", "local[2,3]", "--conf", f"spark.connect.grpc.binding.port={port}"]
    with (tmp_path / "connect.log").open("wb") as log:
        server = subprocess.Popen(
            [script, *options], env=environment, stdout=log, stderr=log, cwd=tmp_path, start_new_session=True
        )
    try:
        for _ in range(120):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.5)
        yield f"sc://localhost:{port}"
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        try:
            server.wait(30)
        except subprocess.TimeoutExpired:  # its shutdown hooks may wait for each other on a busy machine
            os.killpg(server.pid, signal.SIGKILL)
            server.wait(30)


@pytest.mark.rare
def test_export_runs_over_spark_connect(lab_over: Lab, connect_server: str) -> None:
    """Chunks are read by the server's workers, in parallel, and committed here."""
    config = lab_over.folder / "rivet.yaml"
    lab_over.config("{name: orders, table: orders, mode: chunked, chunk_column: id, chunk_size: 20, parallel: 2}")
    document = yaml.safe_load(config.read_text()) | {"spark": {"remote": connect_server}}
    document["exports"][0]["destination"]["shared_path"] = True  # its workers are on this machine too
    config.write_text(yaml.safe_dump(document))

    command = [sys.executable, "-m", "rivet_assets.cli.main", "run", "-c", str(config)]
    run = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=240, check=False)

    assert run.returncode == 0, run.stderr
    assert list(range(100)) == lab_over.ids("orders")


@pytest.fixture
def lab_over(tmp_path: Path, fresh_database: str, monkeypatch: pytest.MonkeyPatch) -> Lab:
    """A database with a hundred orders."""
    monkeypatch.setenv("LAB_URL", fresh_database)
    laboratory = Lab(tmp_path, fresh_database)
    laboratory.sql("CREATE TABLE orders AS SELECT n AS id, 'x' AS note FROM generate_series(0, 99) n", "ANALYZE orders")
    return laboratory
