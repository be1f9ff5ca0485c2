"""A task in a worker of Spark obeys the governor of the driver."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from rivet_resources.contracts.evidence import Pressure
from rivet_resources.contracts.source import Page
from rivet_resources.read.stage import Exporter
from rivet_resources.spark.runtime import SparkRuntime
from rivet_resources.state.store import open_state
from tests.fakes import FAST, ScriptedGauge, TableSource, extract_of

CALM = Pressure(
    latency_ms=2.0, active=4, lock_waits=0, lag_seconds=0.1, log_waits=100, connections=20, connections_limit=100
)
LOCKED = replace(CALM, lock_waits=3)
EAGER = FAST.model_copy(update={"adaptive": True, "min_parallel": 1})
ORDERS = pa.table({"id": np.arange(400)})


@dataclass
class SlowSource(TableSource):
    """A table read a few rows at a time, beside a gauge that sees lock waits from its second look on."""

    @contextmanager
    def gauge(self, *, application: str, pace: Any) -> Iterator[ScriptedGauge]:
        """Yield a gauge whose looks get worse."""
        yield ScriptedGauge([CALM, LOCKED])

    def pages(self, chunk: Any, columns: Any, **about: Any) -> Iterator[Page]:
        """Read as the table does, taking a moment for each page."""
        for page in super().pages(chunk, columns, **about):
            time.sleep(0.01)
            yield page


@pytest.mark.spark
def test_tasks_in_workers_of_spark_obey_before_their_next_page(
    tmp_path: Path, spark_runtime: SparkRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver's word reaches processes that it only shares a folder with."""
    monkeypatch.setenv("RIVET_GOVERNOR_INTERVAL_MS", "10")
    source = SlowSource(ORDERS, page_rows=2)
    extract = extract_of(ORDERS, tmp_path, pieces=2, pace=EAGER, source=source, run_id="governed_by_spark")

    with closing(open_state(f"sqlite:///{tmp_path / 'state.db'}")) as state:
        made = Exporter(spark_runtime, state).stage(extract)

    assert 400 == made.measures.rows
    assert made.harm["steps_down"] == 3
    assert made.measures.governed_seconds > 0.2
