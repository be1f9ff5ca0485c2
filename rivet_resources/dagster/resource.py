"""What exports share during a Dagster run: the Spark session and the state stores.

Belongs here: their life, from first use to the end of the run. Not here: Spark's settings (`spark/runtime.py`), what a
store holds (`state/`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

import dagster as dg
from pydantic import PrivateAttr

from rivet_resources.contracts.settings import Spark
from rivet_resources.read.stage import Exporter
from rivet_resources.spark.runtime import SparkRuntime
from rivet_resources.state.store import State, open_state

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# Resource key; so called that it stands beside what a project has.
RUN = "rivet_run"


class Rivet(dg.ConfigurableResource):  # type: ignore[type-arg]
    """Opens what exports need, once per run; nothing is opened while definitions load."""

    _runtimes: dict[str, SparkRuntime] = PrivateAttr(default_factory=dict)
    _stores: dict[str, State] = PrivateAttr(default_factory=dict)
    _settled: dict[int, tuple[object, State]] = PrivateAttr(default_factory=dict)  # by `id`; it is kept, so it is whole
    _lock: threading.Lock = PrivateAttr(default_factory=threading.Lock)

    def exporter(
        self, *, spark: Spark, state: State, begin: bool = True, session_of: Callable[[], SparkSession] | None = None
    ) -> Exporter:
        """Return the exporter of a configuration; its JVM, if it needs one, starts now, or at its first job.

        Args:
            session_of: yields the session to run on, which is somebody else's; None: one of our own.
        """
        runtime = self._runtime(spark, session_of)
        if begin:
            runtime.begin()
        return Exporter(spark=runtime, state=state)

    def state(self, url: str) -> State:
        """Open a state store, once per run.

        Raises:
            StateError: it cannot be opened.
        """
        with self._lock:
            if url not in self._stores:
                self._stores[url] = open_state(url)
            return self._stores[url]

    def settled_state(self, config: object) -> State | None:
        """Return the store in which nothing of a configuration waits to be taken over, if this run saw that."""
        found = self._settled.get(id(config))
        return None if found is None else found[1]

    def settle(self, config: object, state: State) -> None:
        """Note that nothing of a configuration waits to be taken over in its store."""
        self._settled[id(config)] = (config, state)

    @property
    def spark_session(self) -> SparkSession:
        """Return `session()`, under the name that dagster-pyspark's resources have."""
        return self.session()

    def session(self) -> SparkSession:
        """Return the run's Spark session to read with: that of an export in this run, else one of default settings."""
        with self._lock:
            runtimes = [runtime for runtime in self._runtimes.values() if not runtime.inline]
        return (runtimes[0] if runtimes else self._runtime(Spark.model_validate({}))).session()

    def teardown_after_execution(self, context: dg.InitResourceContext) -> None:
        """End what this run started."""
        self.close()

    def close(self) -> None:
        """End what was started with it."""
        for runtime in self._runtimes.values():
            runtime.stop()
        for store in self._stores.values():
            store.close()
        self._runtimes.clear()
        self._stores.clear()
        self._settled.clear()

    def _runtime(self, settings: Spark, session_of: Callable[[], SparkSession] | None = None) -> SparkRuntime:
        with self._lock:
            return self._runtimes.setdefault(settings.model_dump_json(), SparkRuntime(settings, session_of=session_of))
