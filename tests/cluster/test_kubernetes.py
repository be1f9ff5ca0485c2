"""Kubernetes with the driver outside of it: exact, ended in time, no secret in clear, and what goes wrong is said.

Skipped without its programs (`tests/servers/kubernetes_cluster.py`).
"""

from __future__ import annotations

import base64
import os
import re
import secrets
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster.place import KEYS, MARKS, Place
from tests.processes import Process
from tests.servers.kubernetes_cluster import (
    ACCOUNT,
    IMAGE,
    MAKE,
    NAMESPACE,
    Kubernetes,
    from_guide,
    kubernetes_cluster,
    programs,
)
from tests.servers.spark_cluster import ROOT

pytestmark = [
    *MARKS,
    pytest.mark.rare,
    pytest.mark.skipif(programs() is None, reason=f"RIVET_TEST_KUBERNETES names no folder of programs ({MAKE})"),
]

# Kubernetes hands the variables to pods, out of an object that a Role may hide.
HANDED = {f"spark.kubernetes.executor.secretKeyRef.{name}": f"shop:{name}" for name in KEYS}
LINES = {"spark.authenticate": "true", "spark.network.crypto.enabled": "true"}
READING = 3  # connections: the one that plans, and tasks
SLOW: dict[str, Any] = {"tuning": {"batch_size": 100, "throttle_ms": 150}}


_begun: list[Process] = []  # by a test, which may have failed


@pytest.fixture(scope="module")
def cluster() -> Iterator[Kubernetes]:
    """One node; in its name space the secrets that the guide makes."""
    with kubernetes_cluster(Path(os.environ["TMPDIR"]) / "kubernetes") as made:
        _make_secret(made, "shop", KEYS)
        yield made


@pytest.fixture
def place(cluster: Kubernetes, ends: tuple[str, str], tmp_path: Path) -> Iterator[Place]:
    """The cluster between them; no pod of a test is there in the next one."""
    yield Place(cluster, *ends, tmp_path)
    for process in _begun:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
    _begun.clear()
    for namespace in (NAMESPACE, "small"):
        for pod in cluster.pods(namespace=namespace):
            cluster.delete_pod(pod["metadata"]["name"], namespace=namespace)


def test_rows_are_read_in_two_pods_that_get_their_variables_from_a_secret(place: Place, cluster: Kubernetes) -> None:
    """No secret is in a specification, an event, a log, or what the driver wrote; nothing is left behind."""
    place.config(conf=HANDED, **SLOW)
    process = _reading(place)
    hosts = {pod["metadata"]["name"] for pod in cluster.pods()}
    told = cluster.written()
    out, err = process.communicate(timeout=240)

    assert 0 == process.wait(), out + err
    assert 2 == len(hosts)
    assert place.is_proved()
    _until(lambda: not cluster.pods())
    told += out + err + cluster.written()
    for secret in KEYS.values():
        assert secret == KEYS["LAKE_KEY"] or secret not in told  # a word that other things are called


def test_variables_are_lent_where_the_secret_of_the_lines_is_a_file(place: Place, cluster: Kubernetes) -> None:
    """And neither they nor it stand in clear anywhere."""
    secret = secrets.token_hex(32)
    (place.folder / "spark-secret").write_text(secret)
    _make_secret(cluster, "spark-lines", {"secret": secret})
    files = {
        "spark.kubernetes.executor.secrets.spark-lines": "/etc/spark-lines",
        "spark.authenticate.secret.file": "/etc/spark-lines/secret",
        "spark.authenticate.secret.driver.file": str(place.folder / "spark-secret"),
    }
    place.config(conf={**LINES, **files}, **SLOW)
    process = _reading(place)
    told = cluster.written()
    out, err = process.communicate(timeout=240)

    assert 0 == process.wait(), out + err
    assert place.is_proved()
    told += out + err
    for each in (KEYS["LAKE_SECRET"], KEYS["SHOP_PASSWORD"], secret):
        assert each not in told


def test_nothing_is_lent_by_a_secret_that_spark_shows_in_pods(place: Place) -> None:
    """The pod that lacks a variable is named, and what to set."""
    place.config(conf=LINES)

    code, told = place.rivet("run")

    assert 1 == code
    assert "-exec-1: Environment variable SHOP_PASSWORD" in told
    assert "spark.authenticate.secret.driver.file" in told


def test_pod_that_is_deleted_costs_time_and_no_row(place: Place, cluster: Kubernetes) -> None:
    """Spark makes another, and the chunks that ran there are read again."""
    place.config(conf=HANDED, **SLOW)
    process = _reading(place)

    cluster.delete_pod(cluster.pods()[0]["metadata"]["name"])
    out, err = process.communicate(timeout=240)

    assert 0 == process.wait(), out + err
    assert place.is_proved()


def test_run_that_is_terminated_ends_its_pods_and_its_statements(place: Place, cluster: Kubernetes) -> None:
    """Within ten seconds, at Kubernetes and at the source."""
    place.config(conf=HANDED, **SLOW)
    process = _reading(place)

    process.send_signal(signal.SIGTERM)
    began = time.monotonic()
    process.communicate(timeout=60)
    _until(lambda: not cluster.pods() and not place.connections())

    assert 130 == process.wait()
    assert time.monotonic() - began < 10


def test_run_that_is_terminated_while_its_pods_wait_leaves_none(place: Place, cluster: Kubernetes) -> None:
    """Nor the settings of executors that Spark keeps there."""
    place.config(conf={**HANDED, "spark.executor.memory": "900g"})
    process = _begin(place)
    _until(lambda: len(cluster.pods()) >= 2)

    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)

    assert 130 == process.wait()
    _until(lambda: not cluster.pods() and not _settings(cluster))


@pytest.mark.parametrize(
    ("conf", "expected"),
    [
        ({"spark.kubernetes.container.image": "localhost/nothing:1"}, "ErrImageNeverPull, .*localhost/nothing:1"),
        ({"spark.kubernetes.executor.secretKeyRef.OTHER": "nobody:it"}, 'Config.*, secret "nobody" not found'),
    ],
)
def test_pods_that_only_a_person_can_mend_end_the_run(
    conf: dict[str, str], expected: str, place: Place, cluster: Kubernetes
) -> None:
    """In Kubernetes' own words, and its pods are gone."""
    place.config(conf={**HANDED, **conf})

    code, told = place.rivet("run")

    assert 1 == code
    assert re.search(expected, " ".join(told.split()))
    assert "RIVET_SPARK_UNAVAILABLE" in told
    _until(lambda: not cluster.pods() and not _settings(cluster))


def test_account_without_rights_is_refused_by_their_names(place: Place, cluster: Kubernetes) -> None:
    """Before anything is made; Spark itself would wait."""
    place.config(conf={"spark.kubernetes.namespace": "kube-public"})

    code, told = place.rivet("run")

    assert 1 == code
    assert "lacks rights in the namespace kube-public" in " ".join(told.split())
    assert "create pods" in told


def test_run_goes_on_when_a_quota_has_room_again(place: Place, cluster: Kubernetes) -> None:
    """Until then it is waited for, and said so; Spark itself would give up after some seconds."""
    _make_small_namespace(cluster)
    place.config(conf={**HANDED, "spark.kubernetes.namespace": "small"})
    process = _begin(place)
    said = ""
    while "exceeded quota: few" not in said:
        said += process.stderr.readline()

    cluster.asked(
        "/api/v1/namespaces/small/resourcequotas/few", method="PATCH", patch="application/merge-patch+json",
        body={"spec": {"hard": {"pods": "1"}}},
    )  # fmt: skip
    out, err = process.communicate(timeout=240)

    assert 0 == process.wait(), out + said + err
    assert place.is_proved()


def test_driver_in_a_pod_makes_its_executors(place: Place, cluster: Kubernetes) -> None:
    """As a run that Dagster launches: by its service account, and its own pod owns theirs."""
    own = {"spark.driver.host": "${POD_IP}", "spark.kubernetes.driver.pod.name": "${POD_NAME}"}
    place.config(conf={**HANDED, **own}, **SLOW)
    cluster.make(_driver(place))
    try:
        _until(lambda: place.connections() >= READING)
        owners = [pod["metadata"]["ownerReferences"][0]["name"] for pod in cluster.pods()]
        _until(lambda: _phase(cluster) in ("Succeeded", "Failed"))
        told = cluster.written()
    finally:
        cluster.delete_pod("driver")

    assert ["driver", "driver"] == owners
    assert "orders committed" in told
    place.config(conf=HANDED)  # here is no pod whose address it could name
    assert place.is_proved()


def test_pods_of_a_driver_whose_pod_is_lost_are_collected(place: Place, cluster: Kubernetes) -> None:
    """By Kubernetes, as their owner is gone; the next run is exact."""
    own = {"spark.driver.host": "${POD_IP}", "spark.kubernetes.driver.pod.name": "${POD_NAME}"}
    place.config(conf={**HANDED, **own}, **SLOW)
    cluster.make(_driver(place))
    _until(lambda: place.connections() >= READING)

    cluster.delete_pod("driver")
    _until(lambda: not cluster.pods() and not place.connections())
    place.config(conf=HANDED)
    code, told = place.rivet("run")

    assert 0 == code, told
    assert place.is_proved()


def _driver(place: Place) -> dict[str, Any]:
    """Return a pod that runs `rivet run` beside the configuration; what an image would hold is mounted."""
    document: dict[str, Any] = yaml.safe_load((place.cluster.folder / "pod.yaml").read_text())
    spec, (container,) = document["spec"], document["spec"]["containers"]
    for number, path in enumerate((ROOT, place.folder, place.cluster.folder)):
        spec["volumes"].append({"name": f"own-{number}", "hostPath": {"path": str(path)}})
        container["volumeMounts"].append({"name": f"own-{number}", "mountPath": str(path)})
    told = {name: {"valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in DOWNWARD.items()}
    told |= {name: {"valueFrom": {"secretKeyRef": {"name": "shop", "key": name}}} for name in KEYS}
    container["env"] += [{"name": name, **value} for name, value in told.items()]
    container |= {
        "image": IMAGE, "imagePullPolicy": "Never", "workingDir": str(place.folder),
        "resources": {"requests": {"cpu": "500m"}},  # else it gets what all others of the machine leave
        "args": [place.cluster.python, "-m", "rivet_assets.cli.main", "run"],
    }  # fmt: skip
    spec |= {"serviceAccountName": ACCOUNT, "automountServiceAccountToken": True, "restartPolicy": "Never"}
    return {**document, "metadata": {"name": "driver"}}


DOWNWARD = {"POD_IP": "status.podIP", "POD_NAME": "metadata.name"}


def _phase(cluster: Kubernetes) -> str:
    return str(cluster.asked(f"/api/v1/namespaces/{NAMESPACE}/pods/driver")["status"]["phase"])


def _make_small_namespace(cluster: Kubernetes) -> None:
    """Make a name space that allows no pod, with the guide's rights for the same account."""
    cluster.make({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "small"}})
    for document in yaml.safe_load_all(from_guide("rbac.yaml")):
        if document["kind"] in ("Role", "RoleBinding"):
            document["metadata"]["namespace"] = "small"
            cluster.make(document, namespace="small")
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "few"}, "spec": {"hard": {"pods": "0"}}}
    cluster.make(quota, namespace="small")
    _make_secret(cluster, "shop", KEYS, namespace="small")


def _make_secret(cluster: Kubernetes, name: str, values: dict[str, str], *, namespace: str = NAMESPACE) -> None:
    data = {key: base64.b64encode(value.encode()).decode() for key, value in values.items()}
    document = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "data": data}
    cluster.make(document, namespace=namespace)


def _begin(place: Place) -> Process:
    """Start a run, which ends with its test."""
    _begun.append(place.begin("run"))
    return _begun[-1]


def _reading(place: Place) -> Process:
    """Start a run; return it when tasks of it read."""
    process = _begin(place)
    _until(lambda: place.connections() >= READING or process.poll() is not None)
    assert process.poll() is None, process.communicate()
    return process


def _settings(cluster: Kubernetes) -> list[Any]:
    """List what Spark keeps of executors."""
    found: list[Any] = cluster.asked(f"/api/v1/namespaces/{NAMESPACE}/configmaps?labelSelector=spark-role")["items"]
    return found


def _until(there: Callable[[], object]) -> None:
    deadline = time.monotonic() + 600  # a driver in a pod starts two more JVMs, maybe on a busy machine
    while not there():
        assert time.monotonic() < deadline
        time.sleep(0.1)
