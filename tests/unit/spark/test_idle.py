"""Work that nobody takes is told, with what an executor needs."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import Any, Self

import pytest

from rivet_resources.contracts.settings import Spark
from rivet_resources.spark import idle
from rivet_resources.spark.idle import IdleWatch, StartWatch

SECONDS = 0.001


@dataclass
class Context:
    """What a watch asks of Spark's context: a chain of calls that ends in two lists."""

    executors: list[str]
    jobs: list[int]
    master: str = "spark://master:7077"
    conf: dict[str, str] = field(default_factory=lambda: {"spark.executor.memory": "8g", "spark.driver.host": "laptop"})
    looked: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))

    @property
    def _jsc(self) -> Self:
        return self

    def sc(self) -> Self:
        """Return the context of the JVM."""
        return self

    def statusTracker(self) -> Self:
        """Return what knows executors and jobs."""
        return self

    def getExecutorInfos(self) -> list[str]:
        """List the driver and the executors."""
        self.looked.release()
        return ["driver", *self.executors]

    def getActiveJobIds(self) -> list[int]:
        """List the jobs that are not done."""
        return self.jobs

    def getConf(self) -> dict[str, str]:
        """Return the settings."""
        return self.conf


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was warned of, as text."""
    found: list[str] = []

    def warning(text: str, *facts: Any) -> None:
        found.append(text % facts)

    monkeypatch.setattr(idle.log, "warning", warning)
    return found


def looks_of(context: Context, count: int) -> None:
    """Watch until it has looked so often."""
    watch = IdleWatch(context, look_seconds=SECONDS, patience_seconds=0)  # type: ignore[arg-type]
    for _ in range(count):
        assert context.looked.acquire(timeout=10)
    watch.end()


def test_work_that_no_executor_takes_is_told(told: list[str]) -> None:
    """With the memory that one needs, and where it must reach this machine."""
    looks_of(Context(executors=[], jobs=[1]), 3)

    assert "8g of memory" in told[0]
    assert "spark://master:7077, and must reach this machine as laptop" in told[0]


@pytest.mark.parametrize("context", [Context(executors=["w1"], jobs=[1]), Context(executors=[], jobs=[])])
def test_nothing_is_told_while_work_is_taken_or_there_is_none(context: Context, told: list[str]) -> None:
    """With dynamic allocation nobody is there between two jobs."""
    looks_of(context, 3)

    assert [] == told


@pytest.mark.parametrize(
    ("master", "expected"), [("yarn", "spark.yarn.queue: exports"), ("k8s://https://h", "RIVET_SPARK_LOG=-")]
)
def test_start_that_a_cluster_manager_puts_off_is_told(master: str, expected: str, told: list[str]) -> None:
    """With the queue, which is full for as long as others like; in silence once Spark is there."""
    with StartWatch(Spark(master=master, conf={"spark.yarn.queue": "exports"}), patience_seconds=SECONDS):
        deadline = time.monotonic() + 10
        while not told and time.monotonic() < deadline:
            time.sleep(SECONDS)

    assert expected in told[0]
    assert f"Spark on {master} has not begun" in told[0]
