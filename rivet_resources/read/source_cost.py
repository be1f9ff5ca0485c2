"""What a stage cost its source, as flat numbers: for the run's record, its metadata and its summary.

Belongs here: which numbers, and their names. Not here: counting them (`task.py`, `sources/*`, `governor_thread.py`).
"""

from __future__ import annotations

from rivet_resources.contracts.parts import Measures
from rivet_resources.read.governor_thread import Governor


def harm(measures: Measures, governor: Governor, *, snapshot_seconds: float = 0.0) -> dict[str, float]:
    """Give the numbers that are known; what the server does not tell is not there.

    `server_…` is how much a counter of the whole server grew since the first look, by whomever.

    Args:
        snapshot_seconds: for so long the driver held the snapshot that all tasks shared.
    """
    found: dict[str, float | None] = {
        "longest_statement_ms": measures.longest_statement_ms,
        "longest_transaction_ms": max(measures.longest_transaction_ms, snapshot_seconds * 1000),
        "rows_read": measures.rows_read,
        "rows_scanned": measures.rows_scanned,
        "rows_scanned_per_row": _ratio(measures),
        "temp_bytes": measures.temp_bytes,
        "connections": measures.connections,
        "throttled_seconds": measures.throttled_seconds,
        "governed_seconds": measures.governed_seconds,
        "steps_down": governor.steps_down,
        "most_lock_waits_seen": governor.course.most_lock_waits,
        "most_waiting_for_us_seen": governor.course.most_waiting_for_us,
        **{f"server_{name}": grown for name, grown in governor.growth.items()},
    }
    return {name: round(float(value), 3) for name, value in found.items() if value is not None}


def _ratio(measures: Measures) -> float | None:
    """Tell how many rows the server went through for each row that was read; 1 is ideal."""
    if measures.rows_scanned is None or not measures.rows_read:
        return None
    return measures.rows_scanned / measures.rows_read
