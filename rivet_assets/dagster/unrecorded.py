"""An instance of Dagster for the runs of one command, which nobody looks at afterwards.

Belongs here: an event log that keeps nothing, stores made without the history of their tables. Not here: which command
has it (`launch/run_exports.py`).

Without DAGSTER_HOME the instance of `rivet run` ends with the process, and its events are read by nobody: what a run
did is told by the state store, and shown by the log.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import dagster as dg
from dagster._core.event_api import EventRecordsResult
from dagster._core.instance import InstanceType
from dagster._core.launcher.sync_in_memory_run_launcher import SyncInMemoryRunLauncher
from dagster._core.run_coordinator import DefaultRunCoordinator
from dagster._core.storage.event_log import InMemoryEventLogStorage
from dagster._core.storage.event_log import in_memory as events
from dagster._core.storage.noop_compute_log_manager import NoOpComputeLogManager
from dagster._core.storage.root import TemporaryLocalArtifactStorage
from dagster._core.storage.runs import InMemoryRunStorage
from dagster._core.storage.runs import in_memory as runs

_making = threading.Lock()  # several threads run exports at once, and each puts back what it found


class UnrecordedEvents(InMemoryEventLogStorage):
    """An event log that is told of events, and finds none; dynamic partitions it keeps."""

    def store_event(self, event: Any) -> None:
        """Keep nothing."""

    def store_event_batch(self, events: Sequence[Any]) -> None:
        """Keep nothing."""

    @property
    def asset_records_have_last_observation(self) -> bool:
        """Return True: a record without an observation means that there is none, so nobody asks for it."""
        return True

    def fetch_materializations(self, *arguments: Any, **named: Any) -> EventRecordsResult:
        """Find nothing, without a query."""
        return EventRecordsResult([], cursor="", has_more=False)

    def get_asset_records(self, asset_keys: Sequence[dg.AssetKey] | None = None) -> Sequence[Any]:
        """Find nothing, without a query."""
        return ()


def unrecorded_instance() -> dg.DagsterInstance:
    """Return an instance as `DagsterInstance.ephemeral()` does, whose event log keeps nothing."""
    # Dagster's own in memory writes each of the fourteen events of an export to a SQLite table, which is a quarter of
    # what an export without new rows costs, and memory that grows with each export (measured with 60 and 200 of them,
    # 2026-11).
    with _making, _unmarked():
        return _instance()


def _instance() -> dg.DagsterInstance:
    return dg.DagsterInstance(
        instance_type=InstanceType.EPHEMERAL,
        local_artifact_storage=TemporaryLocalArtifactStorage(),  # type: ignore[no-untyped-call]
        run_storage=InMemoryRunStorage(),
        event_storage=UnrecordedEvents(),
        compute_log_manager=NoOpComputeLogManager(),
        run_coordinator=DefaultRunCoordinator(),
        run_launcher=SyncInMemoryRunLauncher(),
    )


@contextmanager
def _unmarked() -> Iterator[None]:
    # Dagster also marks the tables of its stores with the newest of its migrations, as a store on disk must be, and for
    # that reads all 89 migration files, twice: 0.04 of the 0.3 CPU s of a small run (Dagster 1.13.27, measured). A
    # store that lives as long as the process is never migrated.
    def leave_out(config: object, connection: object) -> None:
        """Mark nothing."""

    marks: list[tuple[Any, object]] = [(each, each.stamp_alembic_rev) for each in (events, runs)]
    try:
        for module, _ in marks:
            module.stamp_alembic_rev = leave_out
        yield
    finally:
        for module, mark in marks:
            module.stamp_alembic_rev = mark
