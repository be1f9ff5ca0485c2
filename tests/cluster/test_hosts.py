"""A cluster of two hosts that have neither our code nor our files: exact, or refused by the host's name."""

from __future__ import annotations

import io
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pyarrow.parquet as pq
import pytest

from rivet_assets.config.load import load_config
from rivet_resources.commit.manifest import current_manifests
from tests.cluster.place import KEYS, MARKS, ROWS, Place
from tests.processes import Process
from tests.servers.spark_cluster import Cluster, spark_cluster

pytestmark = MARKS


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Two hosts whose workers have the variables of the configuration."""
    with spark_cluster(Path(os.environ["TMPDIR"]) / "cluster", environment=KEYS) as made:
        yield made


@pytest.fixture
def place(cluster: Cluster, ends: tuple[str, str], tmp_path: Path) -> Place:
    """The cluster between them."""
    return Place(cluster, *ends, tmp_path)


def test_rows_of_one_snapshot_are_read_on_both_hosts(place: Place) -> None:
    """No worker has our package; both take part, and no secret is in what they, Spark's events or the driver wrote."""
    events = place.folder / "events"
    events.mkdir()
    place.config(conf={"spark.eventLog.enabled": "true", "spark.eventLog.dir": str(events),
                       "spark.eventLog.compress": "false"})  # fmt: skip

    code, told = place.rivet("run")

    assert 0 == code, told
    assert place.is_proved()
    written = "\n".join(path.read_text(errors="replace") for path in events.rglob("events_*"))
    assert {host.address for host in place.cluster.hosts} == {
        task["Task Info"]["Host"]
        for task in map(json.loads, filter(None, written.splitlines()))
        if task["Event"] == "SparkListenerTaskEnd"
    }
    for secret in (KEYS["LAKE_SECRET"], KEYS["SHOP_PASSWORD"]):
        assert secret not in written + told + "".join(host.logs() for host in place.cluster.hosts)


@pytest.mark.rare
def test_host_that_dies_costs_time_and_no_row(place: Place) -> None:
    """Its chunks are read again on the other host; what it had staged is not published beside them."""
    place.config(tuning={"batch_size": 100, "throttle_ms": 100})
    last = place.cluster.hosts[-1]

    process = place.begin("run")
    _until(lambda: "chunk" in " ".join(str(path) for path in last.folder.rglob("tmp/rivet-scratch-*/*")))
    last.kill()
    out, err = process.communicate(timeout=240)
    last.start()
    _until(lambda: place.cluster.workers() >= 2)

    assert 0 == process.wait(), out + err
    assert place.is_proved()


@pytest.mark.rare
def test_rest_of_a_run_that_died_with_its_host_is_read_from_another_machine(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each row once; chunks that were finished stay as they were read, and each chunk is of one instant."""
    shared = {"project": "shop", "state": place.source}
    settings: dict[str, Any] = {"consistency": "per_chunk", "prefix": place.folder.name, "shared": shared}
    place.config(tuning={"batch_size": 100, "throttle_ms": 100}, **settings)
    last = place.cluster.hosts[-1]

    process = place.begin("run")
    _until(lambda: _finished(place) and "chunk" in " ".join(map(str, last.folder.rglob("tmp/rivet-scratch-*/*"))))
    last.kill()
    _kill(process)
    finished = _finished(place)
    with psycopg.connect(place.source) as connection:
        connection.execute("UPDATE orders SET note = note || ' later'")
    other = Place(place.cluster, place.source, place.endpoint, place.folder / "other")
    other.folder.mkdir()
    other.config(**settings)
    try:
        code, told = other.rivet("run")
    finally:
        last.start()
        _until(lambda: place.cluster.workers() >= 2)

    assert 0 == code, told
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    chunks = _published(other)
    assert list(range(1, ROWS + 1)) == sorted(number for rows in chunks.values() for number, _ in rows)
    instants = {chunk: {note.endswith("later") for _, note in rows} for chunk, rows in chunks.items()}
    assert {1} == {len(told) for told in instants.values()}, instants
    kept = [chunk for chunk, told in instants.items() if told == {False}]
    assert 0 < finished == len(kept) < len(chunks)


@pytest.mark.rare
def test_two_drivers_hold_no_more_connections_than_the_source_allows(place: Place) -> None:
    """At no instant, the questions to the hosts included; both end, and neither waits for the other for ever."""
    cap, other = 3, Place(place.cluster, place.source, place.endpoint, place.folder / "other")
    other.folder.mkdir()
    for number, each in enumerate((place, other)):
        each.config(
            cap=cap, prefix=f"{place.folder.name}_{number}", shared={"project": "shop", "state": place.source},
            name=f"orders_{number}", tuning={"batch_size": 200, "throttle_ms": 10},
            conf={"spark.cores.max": "2", "spark.executor.cores": "1"},
        )  # fmt: skip

    processes = [each.begin("run") for each in (place, other)]
    seen = []
    while any(process.poll() is None for process in processes):
        seen.append(_connections(place))
        time.sleep(0.02)
    told = [process.communicate(timeout=240) for process in processes]

    assert [0, 0] == [process.wait() for process in processes], told
    assert place.is_proved()
    assert other.is_proved()
    assert max(map(len, seen)) == cap, max(seen, key=len)


@pytest.mark.rare
def test_host_without_a_variable_is_named(place: Place) -> None:
    """Not one row is read; `rivet doctor` finds the same before any run."""
    place.config(password_env="HIDDEN_PASSWORD")

    code, told = place.rivet("run")
    examined = place.rivet("doctor")

    assert 1 == code
    assert "RIVET_SPARK_WORKER_UNFIT" in told
    assert 1 == examined[0]
    for each in (told, examined[1]):
        for host in place.cluster.hosts:
            assert f"host {host.name}: Environment variable HIDDEN_PASSWORD" in " ".join(each.split())


@pytest.mark.rare
def test_python_that_is_not_there_is_named(place: Place) -> None:
    """With the host, and the key that chooses another."""
    place.config(conf={"spark.pyspark.python": "/nowhere/python"})

    code, told = place.rivet("run")

    assert 1 == code
    assert "has no Python at /nowhere/python" in told
    assert "spark.pyspark.python" in told


@pytest.mark.rare
def test_python_of_another_version_is_named(place: Place) -> None:
    """With its host, which Spark's own words do not have."""
    (place.folder / "sitecustomize.py").write_text(
        "import collections, sys\n"
        "names = 'major minor micro releaselevel serial'\n"
        "sys.version_info = collections.namedtuple('version_info', names)(3, 9, 0, 'final', 0)\n"
    )
    place.config(conf={"spark.executorEnv.PYTHONPATH": str(place.folder)})

    code, told = place.rivet("run")

    assert 1 == code
    assert any(f"Spark's worker on {host.address}" in told for host in place.cluster.hosts), told
    assert "runs Python 3.9, and this machine another" in told


@pytest.mark.rare
def test_python_without_the_packages_is_named(place: Place) -> None:
    """As where somebody forgot to install anything on the workers."""
    place.config(conf={"spark.pyspark.python": str(Path(sys.base_prefix) / "bin/python3")})

    code, told = place.rivet("run")

    assert 1 == code
    for host in place.cluster.hosts:
        assert f"host {host.name}: its Python, " in told
    assert "lacks the package" in told


def _connections(place: Place) -> list[str]:
    """List what reads of the source at the moment; not the state store, which is in the same database here."""
    with psycopg.connect(place.source) as connection:
        rows = connection.execute(
            "SELECT application_name FROM pg_stat_activity WHERE pid <> pg_backend_pid() "
            "AND application_name LIKE 'rivet%' AND application_name <> 'rivet:state'"
        ).fetchall()
    return [name for (name,) in rows]


def _finished(place: Place) -> int:
    """Count the chunks that the state store knows as finished."""
    with psycopg.connect(place.source) as connection:
        known = connection.execute("SELECT to_regclass('chunk_task')").fetchone()
        if known is None or known[0] is None:
            return 0
        counted = connection.execute("SELECT count(*) FROM chunk_task").fetchone()
    return int(counted[0]) if counted else 0


def _kill(process: Process) -> None:
    """End a driver and its JVM as a power failure does."""
    children = psutil.Process(process.pid).children(recursive=True)
    for pid in (process.pid, *(each.pid for each in children)):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()


def _published(place: Place) -> dict[int, list[tuple[int, str]]]:
    """Read what a reader sees, by chunk."""
    root = load_config(place.folder / "rivet.yaml").exports[0].destination.root("orders")
    (manifest,) = current_manifests(root).values()
    found: dict[int, list[tuple[int, str]]] = {}
    for part in manifest.parts:
        with root.open(part.path) as file:
            rows = pq.read_table(io.BytesIO(file.read())).to_pylist()
        chunk = int(part.path.rpartition("_chunk")[2].partition("_")[0].partition(".")[0])
        found.setdefault(chunk, []).extend((row["id"], row["note"]) for row in rows)
    return found


def _until(there: Callable[[], object]) -> None:
    deadline = time.monotonic() + 120
    while not there():
        assert time.monotonic() < deadline
        time.sleep(0.05)
