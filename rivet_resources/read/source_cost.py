"""What a stage cost its source, as flat numbers: for the run's record, its metadata and its summary.

Belongs here: which numbers, and their names. Not here: counting them (`task.py`, `sources/*`, `governor_thread.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rivet_resources.contracts.change_log import Lag
from rivet_resources.contracts.parts import Measures
from rivet_resources.read.governor_thread import Governor

# Figures of the worst moment, not of all of them together.
LARGEST = frozenset({
    "longest_statement_ms", "longest_transaction_ms", "connections", "most_lock_waits_seen",
    "log_held_bytes", "lag_bytes", "lag_changes", "lag_seconds",
})  # fmt: skip
RATIO = "rows_scanned_per_row"


def harm(measures: Measures, governor: Governor, *, snapshot_seconds: float = 0.0) -> dict[str, float]:
    """Return the numbers that are known; what the server does not tell is not there.

    `server_…` is how much a counter of the whole server grew since the first look, by whomever.

    Args:
        snapshot_seconds: for so long the driver held the snapshot that all tasks shared.
    """
    found: dict[str, float | None] = {
        "longest_statement_ms": measures.longest_statement_ms,
        # The snapshot's transaction stays open while chunks come and go, so it may be older than the longest one of
        # any task.
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
    # A number that the server did not tell is absent, not 0: 0 would say that reading cost nothing.
    return {name: round(float(value), 3) for name, value in found.items() if value is not None}


def _ratio(measures: Measures) -> float | None:
    """Return how many rows the server went through for each row that was read; 1 is ideal."""
    if measures.rows_scanned is None or not measures.rows_read:
        return None
    return measures.rows_scanned / measures.rows_read


def log_harm(*, seconds: float, lag: Lag) -> dict[str, float]:
    """Return what reading a change log cost, and how far the reader still is behind, as far as the source tells."""
    found = {
        "log_read_seconds": seconds,
        "log_held_bytes": lag.held_bytes,
        "lag_bytes": lag.unread_bytes,
        "lag_changes": lag.unread_changes,
        "lag_seconds": lag.seconds,
    }
    return {name: round(float(value), 3) for name, value in found.items() if value is not None}


def total(costs: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Add costs up; of some figures the largest is what counts."""
    found: dict[str, float] = {}
    for cost in costs:
        for name, number in cost.items():
            found[name] = max(found.get(name, 0), number) if name in LARGEST else found.get(name, 0) + number
    # A ratio cannot be added up, so it is made anew from its two sums.
    if RATIO in found and found.get("rows_read"):
        found[RATIO] = round(found.get("rows_scanned", 0) / found["rows_read"], 3)
    return found
