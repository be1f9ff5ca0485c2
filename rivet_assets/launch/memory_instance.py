"""The Dagster instance of a command, where nobody named one: unrecorded, and made without the history of its tables.

Dagster marks the tables of its stores with the newest of its migrations, as a store on disk must be, and for that reads
all 89 migration files, twice: 0.04 of the 0.3 CPU s of a small run, and 0.1 of its start (Dagster 1.13.27, measured). A
store that lives as long as the process is never migrated. Belongs here: leaving that out. Not here: when a run has an
instance of its own (`run_exports.py`).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import dagster as dg

_lock = threading.Lock()  # several threads run exports at once, and each puts back what it found


def memory_instance() -> dg.DagsterInstance:
    """Return an instance in memory whose event log keeps nothing; it is a context manager, as Dagster's own."""
    from rivet_assets.dagster.unrecorded import unrecorded_instance  # Dagster

    with _lock, _unmarked():
        return unrecorded_instance()


@contextmanager
def _unmarked() -> Iterator[None]:
    from dagster._core.storage.event_log import in_memory as events  # Dagster
    from dagster._core.storage.runs import in_memory as runs  # Dagster

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
