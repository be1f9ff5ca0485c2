"""How long a planned export takes at the rate of its runs, and what its server keeps meanwhile. Pure.

Belongs here: arithmetic and its words. Not here: the history of runs (`facts.py`), what a server keeps
(`EngineFacts.holds_back`).

A server cannot clean up behind a snapshot: that of a table which takes a day to read holds a day of everybody's old
rows. Whoever plans such an export should read so before its first run, and not in the server's log.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rivet_assets.run.words import human_seconds

if TYPE_CHECKING:
    from rivet_resources.contracts.engine_facts import EngineFacts
    from rivet_resources.contracts.extract import Extract
    from rivet_resources.state.runs import RunRecord

# Seconds: what a server keeps for less is not worth a word.
A_MOMENT = 60.0
# Seconds: what is held for longer deserves advice, as preflights say of standbys.
LONG = 1800.0
MANY_ROWS = 1_000_000  # of an export that nobody has measured


def rate_of(runs: Sequence[RunRecord]) -> float | None:
    """Return the rows per second of the run that read most, since small ones are mostly their own start; None: none."""
    most = max(runs, key=_rows_of, default=None)
    if most is None or not _rows_of(most) or not most.duration_ms:
        return None
    return _rows_of(most) * 1000 / most.duration_ms


def _rows_of(run: RunRecord) -> int:
    return run.total_rows if run.rows_read is None else run.rows_read


def seconds_of(rows: int | None, rate: float | None) -> float | None:
    """Return how long so many rows take; None where either is unknown."""
    return rows / rate if rows is not None and rate else None


def duration_text(rows: int | None, rate: float | None) -> str:
    """Return it in words: `about 3 h 20 min, at 41,000 rows/s as its largest run`; '' where it is unknown."""
    seconds = seconds_of(rows, rate)
    if not seconds or rate is None:
        return ""
    return f"about {human_seconds(seconds)}, at {rate:,.0f} rows/s as its largest run"


def holds_back_text(extract: Extract | None, facts: EngineFacts, *, rows: int | None, seconds: float | None) -> str:
    """Return what the server keeps while one of these windows is read, and for how long; '' where it is no matter.

    Args:
        extract: of one window; rows and seconds are those of it.
    """
    if extract is None or not facts.holds_back:
        return ""
    share = _share_held(extract)
    is_long = (rows or 0) >= MANY_ROWS if seconds is None else seconds * share >= A_MOMENT
    if share == 0 or not is_long:
        return ""
    how_long = "as long as it takes" if seconds is None else f"about {human_seconds(seconds * share)}"
    what = "one snapshot" if share == 1 else f"one snapshot for each of {len(extract.chunks)} chunks"
    return f"{what}, {how_long}: {facts.holds_back}"


def advice(extract: Extract | None, facts: EngineFacts, *, seconds: float | None, is_chunked: bool) -> str:
    """Return how to hold back less, where much is; '' otherwise."""
    if extract is None or not facts.holds_back or not facts.has_chunk_instants or not extract.relation.is_table:
        return ""
    if (seconds or 0.0) * _share_held(extract) < LONG or _share_held(extract) < 1:
        return ""
    keys = "consistency: per_chunk" if is_chunked else "mode: chunked with consistency: per_chunk"
    return f"{keys} holds a snapshot for one chunk at a time; its rows are then of several instants"


def _share_held(extract: Extract) -> float:
    """Return for which share of its time one snapshot is held: 1 of one instant, 0 of pages with an instant each."""
    if extract.snapshot is not None or extract.consistency in ("snapshot", "single"):
        return 1.0
    if not all(chunk.one_instant or chunk.reader == "cursor" for chunk in extract.chunks):
        return 0.0
    return min(1.0, max(1, extract.parallel or 1) / max(1, len(extract.chunks)))
