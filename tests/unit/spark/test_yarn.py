"""Where YARN is, by Hadoop's files, and what it means that an application was ended."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from rivet_resources.contracts.settings import Spark
from rivet_resources.errors import SparkEnded, SparkKilled, SparkUnavailable
from rivet_resources.spark import cluster, yarn
from rivet_resources.spark.runtime import SparkRuntime

YARN = Spark(master="yarn")
ALIVE = "java.lang.IllegalStateException: something of a task"
SHUT_DOWN = "org.apache.spark.SparkException: Job 3 cancelled because SparkContext was shut down"


def site(folder: Path, **properties: str) -> list[Path]:
    """Write a yarn-site.xml; `_` stands for `.` and `__` for `-`."""
    told = "".join(
        f"<property><name>{name.replace('__', '-').replace('_', '.')}</name><value>{value}</value></property>"
        for name, value in properties.items()
    )
    (folder / "yarn-site.xml").write_text(f"<configuration>{told}</configuration>")
    return [folder]


HOSTS = {"yarn_resourcemanager_hostname": "rm"}
SEVERAL = {
    "yarn_resourcemanager_ha_enabled": "true", "yarn_resourcemanager_ha_rm__ids": "a, b",
    "yarn_resourcemanager_hostname_a": "rm1", "yarn_resourcemanager_address_b": "rm2:9000",
}  # fmt: skip


@pytest.mark.parametrize(
    ("properties", "conf", "expected"),
    [
        (HOSTS, {}, ["rm:8032"]),
        ({**HOSTS, "yarn_resourcemanager_address": "${yarn.resourcemanager.hostname}:9000"}, {}, ["rm:9000"]),
        ({"yarn_resourcemanager_address": "${nobody.knows}:9000"}, {}, []),
        ({}, {}, []),
        (SEVERAL, {}, ["rm1:8032", "rm2:9000"]),
        (HOSTS, {"spark.hadoop.yarn.resourcemanager.hostname": "other"}, ["other:8032"]),
    ],
)
def test_places_of_resource_managers_are_read_as_hadoop_does(
    properties: dict[str, str], conf: dict[str, str], expected: list[str], tmp_path: Path
) -> None:
    """A place that only Hadoop can find out is none, so that no cluster that works is refused."""
    folders = site(tmp_path, **properties)

    assert expected == yarn.manager_places(Spark(master="yarn", conf=conf), folders)


def test_yarn_without_its_files_is_refused_by_their_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    """spark-submit would tell it in a Java stack."""
    for name in yarn.FOLDERS:
        monkeypatch.delenv(name, raising=False)

    with pytest.raises(SparkUnavailable, match="neither HADOOP_CONF_DIR nor YARN_CONF_DIR"):
        yarn.refuse_silent_manager(YARN)
    yarn.refuse_silent_manager(Spark(master="k8s://https://127.0.0.1:1"))


def test_resource_manager_that_does_not_answer_is_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hadoop would try for a quarter of an hour; one of several is enough."""
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    several = {**SEVERAL, "yarn_resourcemanager_address_a": "127.0.0.1:1"}
    site(tmp_path, **{**several, "yarn_resourcemanager_address_b": "127.0.0.1:2"})

    with pytest.raises(SparkUnavailable, match=r"127\.0\.0\.1:1: .*refused; 127\.0\.0\.1:2: .*refused"):
        yarn.refuse_silent_manager(YARN)
    with socket.create_server(("127.0.0.1", 0)) as server:
        site(tmp_path, **{**several, "yarn_resourcemanager_address_b": f"127.0.0.1:{server.getsockname()[1]}"})
        yarn.refuse_silent_manager(YARN)


@dataclass(frozen=True)
class Context:
    """What of Spark's context tells whether it is of use."""

    stopped: bool
    master: str = "yarn"

    @property
    def _jsc(self) -> Any:
        return self

    def sc(self) -> Any:
        """Return the context of the JVM."""
        return self

    def isStopped(self) -> bool:
        """Return whether somebody stopped it."""
        return self.stopped


@pytest.mark.parametrize(
    ("told", "stopped", "state", "expected"),
    [
        (SHUT_DOWN, True, "KILLED", SparkKilled),
        (SHUT_DOWN, True, "FAILED", SparkEnded),
        (ALIVE, True, "", SparkEnded),
        (ALIVE, False, "", type(None)),
    ],
)
def test_end_of_an_application_is_told_by_who_ended_it(
    told: str, stopped: bool, state: str, expected: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the cluster lost is tried again; what somebody killed is not."""
    monkeypatch.setattr(yarn, "end_of", lambda _: (state, "application_1, killed by user x" if state else ""))

    found = cluster.application_end(told, Context(stopped))  # type: ignore[arg-type]

    assert expected is type(found)
    if found is not None:
        assert found.retry == (state != "KILLED")
        assert ("application_1" in str(found)) == bool(state)


def test_standalone_master_tells_by_itself_that_an_application_was_killed() -> None:
    """Its words come with the job; Spark stops the context a moment later."""
    told = "Job aborted due to stage failure: Master removed our application: KILLED"

    found = cluster.application_end(told, Context(False, "spark://h:7077"))  # type: ignore[arg-type]

    assert isinstance(found, SparkKilled)


@pytest.mark.parametrize(
    ("conf", "expected"),
    [
        ({"spark.executor.instances": "4", "spark.executor.cores": "2"}, 8),
        ({"spark.dynamicAllocation.maxExecutors": "6", "spark.executor.instances": "4"}, 6),
        ({"spark.executor.instances": "4000"}, 256),
        ({}, 2),
    ],
)
def test_executors_that_still_start_are_counted(
    conf: dict[str, str], expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that begins before YARN has given all of them uses them all the same."""
    monkeypatch.setattr(SparkRuntime, "parallelism", property(lambda _: 2))

    assert expected == SparkRuntime(Spark(remote="sc://h:15002", conf=conf)).most_parallel
