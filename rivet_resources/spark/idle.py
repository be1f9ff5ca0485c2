"""A cluster on which work waits and nobody takes it, or no place for its master: Spark says nothing of it, so we do.

Belongs here: noticing it. Not here: hosts that are there and cannot do the work (`cluster.py`).

Waiting is right where a cluster is full, and for ever wrong where executors cannot reach the driver, or no worker has
the memory that one needs. Spark cannot tell these apart either, so nothing is refused; but Kubernetes can
(`kubernetes.py`), and where only a person can change it the application is ended.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self

from rivet_resources.contracts.settings import Spark
from rivet_resources.spark import kubernetes

if TYPE_CHECKING:
    from pyspark import SparkContext

log = logging.getLogger(__name__)

LOOK_SECONDS = 5.0
STOP_SECONDS = 20.0
PATIENCE_SECONDS = 30.0  # an executor takes some seconds to start; a pod longer
# Spark itself waits 30 s at its start for four fifths of its executors (spark.scheduler.minRegisteredResourcesRatio).
START_SECONDS = 60.0


class StartWatch:
    """Warns while a cluster manager does not let an application begin, until its block ends."""

    def __init__(self, settings: Spark, *, patience_seconds: float = START_SECONDS) -> None:
        self._settings, self._patience_seconds = settings, patience_seconds
        self._ended = threading.Event()

    def __enter__(self) -> Self:
        threading.Thread(target=self._watch, daemon=True, name="rivet-start").start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()

    def _watch(self) -> None:
        since = time.monotonic()
        while not self._ended.wait(self._patience_seconds):
            self._warn(time.monotonic() - since)
            self._patience_seconds *= 2

    def _warn(self, seconds: float) -> None:
        conf = self._settings.conf
        log.warning(
            "Spark on %s has not begun for %.0f s, and is waited for. %sRIVET_SPARK_LOG=- shows Spark's own log.",
            self._settings.master, seconds, _of_yarn(conf) if self._settings.master == "yarn" else "",
        )  # fmt: skip


def _of_yarn(conf: Mapping[str, str]) -> str:
    memory, queue = conf.get("spark.yarn.am.memory", "512m"), conf.get("spark.yarn.queue", "default")
    return (
        f"YARN has no room for its application master ({memory} of spark.yarn.am.memory and its overhead, in "
        f"spark.yarn.queue: {queue}), or that cannot reach this machine (spark.driver.host). In the first case "
        f"`yarn application -list -appStates ACCEPTED` shows it. "
    )


class IdleWatch:
    """Warns while jobs wait and no executor is there, until `end`."""

    def __init__(
        self,
        context: SparkContext,
        executors: kubernetes.Executors | None = None,
        *,
        look_seconds: float = LOOK_SECONDS,
        patience_seconds: float = PATIENCE_SECONDS,
    ) -> None:
        self._context, self._executors = context, executors
        self._look_seconds, self._patience_seconds = look_seconds, patience_seconds
        self._ended = threading.Event()
        self._is_starting = executors is not None  # work waits before there is a job
        # A daemon: an interpreter that has to end is not kept by a look that hangs.
        self._thread = threading.Thread(target=self._watch, daemon=True, name="rivet-idle")
        self._thread.start()

    def end(self) -> None:
        """Let the thread come to its end; waits for it where it is ending the application."""
        self._ended.set()
        # A JVM that ends while its context is being stopped leaves the pods behind.
        gives_up = self._executors is not None and self._executors.given_up is not None
        if gives_up and threading.current_thread() is not self._thread:
            self._thread.join(STOP_SECONDS)

    def await_executors(self, count: int, *, seconds: float = kubernetes.FIRST_EXECUTORS_SECONDS) -> None:
        """Wait until so many executors are there, not longer than this; then jobs wait for the rest.

        Raises:
            SparkUnavailable: there will be none.
        """
        deadline = time.monotonic() + seconds
        while self._count() < count and time.monotonic() < deadline:
            if (fault := kubernetes.fault_of(self._context)) is not None:
                raise fault
            time.sleep(kubernetes.LOOK_SECONDS)
        self._is_starting = False

    def _watch(self) -> None:
        since = time.monotonic()
        # A context that is gone has nothing to look at any more.
        with suppress(Exception):
            while not self._ended.wait(self._look_seconds):
                if not self._waits_for_nobody():
                    since = time.monotonic()
                elif self._executors is not None and self._executors.fault() is not None:
                    # Its pods go with it, and jobs that wait for them fail; `cluster_fault` tells why.
                    self._context._jsc.sc().stop()
                    return
                elif time.monotonic() - since >= self._patience_seconds:
                    self._warn(time.monotonic() - since)
                    self._patience_seconds *= 2

    def _waits_for_nobody(self) -> bool:
        tracker: Any = self._context._jsc.sc().statusTracker()
        return self._count() == 0 and (self._is_starting or len(tracker.getActiveJobIds()) > 0)

    def _count(self) -> int:
        tracker: Any = self._context._jsc.sc().statusTracker()
        # The driver is listed among its executors.
        return max(0, len(tracker.getExecutorInfos()) - 1)

    def _warn(self, seconds: float) -> None:
        conf = self._context.getConf()
        if self._executors is not None and (told := self._executors.look().words):
            log.warning(
                "No executor of Spark has been there for %.0f s, and work waits for one. Kubernetes says of its pods "
                "in the namespace %s: %s. `kubectl get pods -n %s -l spark-app-selector=%s` lists them.",
                seconds, self._executors.namespace, told, self._executors.namespace, self._executors.application,
            )  # fmt: skip
            return
        log.warning(
            "No executor of Spark has been there for %.0f s, and work waits for one. Each needs %s of memory "
            "(spark.executor.memory) and %s free on one worker of %s, and must reach this machine as %s "
            "(spark.driver.host; ports spark.driver.port and spark.blockManager.port). The page of the cluster and "
            "the logs of its executors tell more.",
            seconds, conf.get("spark.executor.memory", "1g"), _cores(conf.get("spark.executor.cores", "")),
            self._context.master, conf.get("spark.driver.host", ""),
        )  # fmt: skip


def _cores(number: str | None) -> str:
    return f"{number} cores" if number else "a core"
