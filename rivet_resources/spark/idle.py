"""A cluster on which work waits and nobody takes it: Spark itself says nothing of it, so we do.

Belongs here: noticing it. Not here: hosts that are there and cannot do the work (`cluster.py`).

Waiting is right where a cluster is full, and for ever wrong where executors cannot reach the driver, or no worker has
the memory that one needs. Spark cannot tell these apart either, so nothing is refused.
"""

from __future__ import annotations

import logging
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark import SparkContext

log = logging.getLogger(__name__)

LOOK_SECONDS = 5.0
PATIENCE_SECONDS = 30.0  # an executor takes some seconds to start; a pod longer


class IdleWatch:
    """Warns while jobs wait and no executor is there, until `end`."""

    def __init__(
        self, context: SparkContext, *, look_seconds: float = LOOK_SECONDS, patience_seconds: float = PATIENCE_SECONDS
    ) -> None:
        self._context = context
        self._look_seconds, self._patience_seconds = look_seconds, patience_seconds
        self._ended = threading.Event()
        # A daemon: an interpreter that has to end is not kept by a look that hangs.
        threading.Thread(target=self._watch, daemon=True, name="rivet-idle").start()

    def end(self) -> None:
        """Let the thread come to its end."""
        self._ended.set()

    def _watch(self) -> None:
        since = time.monotonic()
        # A context that is gone has nothing to look at any more.
        with suppress(Exception):
            while not self._ended.wait(self._look_seconds):
                if not self._waits_for_nobody():
                    since = time.monotonic()
                elif time.monotonic() - since >= self._patience_seconds:
                    self._warn(time.monotonic() - since)
                    self._patience_seconds *= 2

    def _waits_for_nobody(self) -> bool:
        tracker: Any = self._context._jsc.sc().statusTracker()
        # The driver is listed among its executors.
        return len(tracker.getExecutorInfos()) <= 1 and len(tracker.getActiveJobIds()) > 0

    def _warn(self, seconds: float) -> None:
        conf = self._context.getConf()
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
