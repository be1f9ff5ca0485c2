"""A run as an OpenLineage event: what was read, what came of it, which column of which.

Belongs here: names of jobs and datasets. Not here: sending (`rivet_resources/observe/openlineage.py`).

A source is `<type>://<source name>`, not its address: that one may be a secret, and differs from network to network.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Literal
from urllib.parse import urlsplit

from rivet_assets.run.observation import ObservedRun, ObservedTable
from rivet_resources.observe.openlineage import LineageDataset, LineageEvent

STATES: dict[str, Literal["START", "COMPLETE", "FAIL", "ABORT"]] = {
    "running": "START", "success": "COMPLETE", "skipped": "COMPLETE", "failed": "FAIL", "interrupted": "ABORT",
}  # fmt: skip


def event_of(run: ObservedRun, *, namespace: str) -> LineageEvent:
    """Return the event of a run that begins, or that ended."""
    read = [(table, LineageDataset(*_source(run, table), columns=table.source_columns)) for table in run.tables]
    return LineageEvent(
        state=STATES.get(run.status, "FAIL"),
        at=run.finished_at or run.started_at.astimezone(UTC) or datetime.now(UTC),
        run_id=run.run_id,
        namespace=namespace,
        job=f"{run.source_name}.{run.export}",
        inputs=tuple(dataset for _, dataset in read),
        outputs=tuple(_output(table, dataset, is_done=run.status == "success") for table, dataset in read),
        error=run.error,
    )


def _source(run: ObservedRun, table: ObservedTable) -> tuple[str, str]:
    return f"{run.source_type}://{run.source_name}", table.source


def _output(table: ObservedTable, read: LineageDataset, *, is_done: bool) -> LineageDataset:
    parts = urlsplit(table.uri)
    place = (f"{parts.scheme}://{parts.netloc}", parts.path.strip("/")) if parts.netloc else ("file", parts.path)
    origins = {
        column: tuple((read.namespace, read.name, origin) for origin in sorted(names))
        for column, names in table.origins.items()
        if names
    }
    counts = (table.rows, table.size_bytes, table.files) if is_done else None
    return LineageDataset(*place, columns=table.columns, origins=origins, counts=counts)
