"""YARN with the driver outside of it: exact, ended in time, and what goes wrong is said.

Skipped without Hadoop's jars (`tests/servers/yarn_cluster.py`).
"""

from __future__ import annotations

import json
import os
import signal
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.place import KEYS, MARKS, Place
from tests.servers.yarn_cluster import COPY, RM_UI, YarnCluster, jars, network, yarn_cluster

pytestmark = [
    *MARKS,
    pytest.mark.rare,
    pytest.mark.skipif(jars() is None, reason=f"RIVET_TEST_YARN names no folder of Hadoop's jars ({COPY})"),
]

# The driver lends what the hosts lack; YARN itself makes and hands out the secret.
ENCRYPTED = {"spark.authenticate": "true", "spark.network.crypto.enabled": "true"}


@pytest.fixture(scope="module")
def cluster() -> Iterator[YarnCluster]:
    """Two hosts whose containers have no variable of the configuration."""
    with yarn_cluster(Path(os.environ["TMPDIR"]) / "yarn") as made:
        yield made


@pytest.fixture
def place(cluster: YarnCluster, ends: tuple[str, str], tmp_path: Path) -> Place:
    """The cluster between them."""
    return Place(cluster, *ends, tmp_path)


def test_rows_are_read_on_yarn_and_no_secret_is_left_there(place: Place) -> None:
    """In no launch script, log, staged file or answer of YARN's, nor in what the driver wrote."""
    place.config(conf=ENCRYPTED)

    code, told = place.rivet("run")

    assert 0 == code, told
    assert place.is_proved()
    (application,) = _applications("FINISHED")[-1:]
    told += "".join(host.logs() for host in place.cluster.hosts) + str(application)
    staged = (path for path in place.cluster.folder.rglob("*") if path.is_file() and "python" not in path.parts)
    told += "".join(path.read_text(errors="replace") for path in staged if "jars" not in path.parts)
    for secret in (KEYS["LAKE_SECRET"], KEYS["SHOP_PASSWORD"]):
        assert secret not in told


def test_container_without_a_variable_is_named(place: Place) -> None:
    """By its host, where lines are not encrypted and nothing is lent."""
    place.config()

    code, told = place.rivet("run")

    assert 1 == code
    assert any(f"host {host.name}: Environment variable SHOP_PASSWORD" in told for host in place.cluster.hosts), told


def test_application_that_somebody_killed_is_not_started_again(place: Place) -> None:
    """And the reason is YARN's own."""
    process, application = _reading(place)

    _kill(application)
    out, err = process.communicate(timeout=60)

    assert "RIVET_SPARK_KILLED" in err, out + err
    assert f"{application} was killed by user" in " ".join(err.split())
    assert [] == _applications("RUNNING,ACCEPTED,SUBMITTED")


def test_run_that_is_terminated_ends_its_application_and_its_statements(place: Place) -> None:
    """Within ten seconds, at YARN and at the source."""
    process, _ = _reading(place)

    process.send_signal(signal.SIGTERM)
    began = time.monotonic()
    process.communicate(timeout=60)
    _until(lambda: not _applications("RUNNING") and not place.connections())

    assert 130 == process.wait()
    assert time.monotonic() - began < 10


def test_host_of_the_application_master_that_dies_costs_time_and_no_row(place: Place) -> None:
    """YARN gives the application up, and the run begins another."""
    process, _ = _reading(place)
    (running,) = _applications("RUNNING")
    host = next(each for each in place.cluster.hosts if str(running["amHostHttpAddress"]).startswith(each.name))

    host.kill()
    out, err = process.communicate(timeout=240)
    host.start()
    _until(lambda: place.cluster.workers() >= 2)

    assert 0 == process.wait(), out + err
    assert place.is_proved()


def _reading(place: Place) -> tuple[Any, str]:
    """Start a slow run; the process and its application, which reads from both hosts."""
    place.config(conf=ENCRYPTED, tuning={"batch_size": 100, "throttle_ms": 150})
    process = place.begin("run")
    _until(lambda: place.connections() >= 4)
    (running,) = _applications("RUNNING")
    return process, str(running["id"])


def _applications(states: str) -> list[dict[str, object]]:
    with urllib.request.urlopen(
        f"http://{network().driver}:{RM_UI}/ws/v1/cluster/apps?states={states}", timeout=5
    ) as answer:
        told = json.loads(answer.read())["apps"]
    return list(told["app"]) if told else []


def _kill(application: str) -> None:
    """Do what `yarn application -kill` does."""
    place = f"http://{network().driver}:{RM_UI}/ws/v1/cluster/apps/{application}/state?user.name=root"
    asked = urllib.request.Request(
        place, data=b'{"state": "KILLED"}', method="PUT", headers={"Content-Type": "application/json"}
    )
    urllib.request.urlopen(asked, timeout=10).close()


def _until(there: Callable[[], object]) -> None:
    deadline = time.monotonic() + 120
    while not there():
        assert time.monotonic() < deadline
        time.sleep(0.1)
