"""Which chunks of a window are finished, so that a crashed run's successor redoes only the rest.

Belongs here: the table `chunk_task` and the JSON form of a ChunkResult. Not here: whether the staged parts are still
there; the exporter asks the destination. Progress counts only for the same plan (`fingerprint`).
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Column, Connection, Table, Text, delete, select

from rivet_resources.contracts.addressing import check_place, check_staged
from rivet_resources.contracts.parts import ChunkResult
from rivet_resources.state.database import METADATA, Instant, now, upsert

chunk_task = Table(
    "chunk_task",
    METADATA,
    Column("export_name", Text, primary_key=True),
    Column("window_key", Text, primary_key=True),
    Column("identity", Text, primary_key=True),
    Column("fingerprint", Text, nullable=False),
    Column("run_id", Text, nullable=False),
    Column("result", Text, nullable=False),
    Column("finished_at", Instant, nullable=False),
)


def save(connection: Connection, export: str, window: str, row: dict[str, str], result: ChunkResult) -> bool:
    """Note a finished chunk, over the same chunk of an earlier run; `row`: identity, fingerprint, run_id.

    Returns:
        Whether there were such chunks, whose parts are to be swept now.
    """
    # Chunks of another plan of this window are forgotten: their parts can never be published any more.
    other = chunk_task.c.fingerprint != row["fingerprint"]
    forgotten = connection.execute(delete(chunk_task).where(*_of(export, window), other)).rowcount
    key = {"export_name": export, "window_key": window, **row}
    upsert(connection, chunk_task, {**key, "result": json.dumps(asdict(result)), "finished_at": now(connection)})
    return forgotten > 0


def finished_chunks(
    connection: Connection, export: str, window: str, fingerprint: str
) -> dict[str, tuple[str, ChunkResult]]:
    """Return the finished chunks of exactly this plan: {identity: (run id that staged it, result)}."""
    query = select(chunk_task.c.identity, chunk_task.c.run_id, chunk_task.c.result)
    rows = connection.execute(query.where(*_of(export, window), chunk_task.c.fingerprint == fingerprint))
    found = {row.identity: (row.run_id, _restore(row.result)) for row in rows}
    # Those of another version are left out, so their chunks are read again: what a record means is not guessed.
    return {identity: (run_id, result) for identity, (run_id, result) in found.items() if result is not None}


def forget(connection: Connection, export: str, window: str | None = None) -> None:
    """Drop the progress of a window, or of all windows of an export."""
    connection.execute(delete(chunk_task).where(*_of(export, window)))


def forget_committed(connection: Connection, export: str, window: str, run_id: str) -> bool:
    """Drop the progress of a window that a run committed; return whether other runs had some."""
    # Counted apart: the parts of the run's own chunks have just been published, those of others lie about.
    others = connection.execute(delete(chunk_task).where(*_of(export, window), chunk_task.c.run_id != run_id)).rowcount
    forget(connection, export, window)
    return others > 0


def runs(connection: Connection, export: str) -> set[str]:
    """Name the runs whose staged parts a later run may still use."""
    return set(connection.execute(select(chunk_task.c.run_id).where(*_of(export)).distinct()).scalars())


@dataclass(frozen=True)
class ChunkProgress:
    """What a dead or failed run left of one window: so many finished chunks, staged, for the next run to keep."""

    export: str
    window: str
    chunks: int
    rows: int
    run_ids: tuple[str, ...]
    finished_at: datetime  # the latest


def progress(connection: Connection, export: str) -> list[ChunkProgress]:
    """Sum up the finished chunks of each window, by window."""
    query = select(chunk_task).where(*_of(export)).order_by(chunk_task.c.window_key, chunk_task.c.finished_at)
    found: dict[str, list[Any]] = {}
    for row in connection.execute(query):
        found.setdefault(row.window_key, []).append(row)
    return [
        ChunkProgress(
            export,
            window,
            len(rows),
            sum(result.measures.rows for row in rows if (result := _restore(row.result)) is not None),
            tuple(dict.fromkeys(row.run_id for row in rows)),
            rows[-1].finished_at,
        )
        for window, rows in found.items()
    ]


def _of(export: str, window: str | None = None) -> list[Any]:
    clauses = [chunk_task.c.export_name == export]
    return clauses if window is None else [*clauses, chunk_task.c.window_key == window]


# A record that names files anywhere but below the export's folder is passed over too: they would be removed.
def _restore(text: str) -> ChunkResult | None:
    """Rebuild what `asdict` took apart; None when another version of Rivet wrote it: the chunk is then read again."""
    try:
        result = ChunkResult.of(json.loads(text))
        _refuse_elsewhere(result)
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError):
        return None
    return result


def _refuse_elsewhere(result: ChunkResult) -> None:
    """Look at every path of a record.

    Raises:
        ValueError: one leads elsewhere.
    """
    for part in result.files:
        check_place(part.path)
        # Local and GCS; S3 and Azure.
        for name in ("path", "marker"):
            if name in part.staged:
                check_staged(part.staged[name])
    for path in (path for files in result.measures.unique.values() for path in files):
        check_staged(path)
