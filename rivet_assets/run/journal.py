"""The journal of one run, while it runs: which events, with which facts, written a few at a time.

Belongs here: names and facts of events (`contract.md`, 12.3), how often they are written. Not here: the table
(`rivet_resources/state/journal.py`), reading it (`commands/journal.py`).

Facts are names, counts and our own texts: no row value, no secret.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from rivet_assets.run.drift import Drift
from rivet_assets.run.judge.quality import Verdict
from rivet_resources.contracts.extract import Extract
from rivet_resources.contracts.parts import Measures

if TYPE_CHECKING:
    from rivet_resources.state.store import State

KEPT_SECONDS = 2.0
KEPT_EVENTS = 100
# Each of the first so many chunks has an entry, then every tenth.
CHUNKS_TOLD = 200
EVERY = 10
MOST_CHANGES = 20  # columns named in one entry


class Journal:
    """The events of one run, in order; any thread may add."""

    def __init__(self, state: State, run_id: str, export: str, *, tell: Callable[[str], None]) -> None:
        self._state, self._run_id, self._export, self._tell = state, run_id, export, tell
        self._waiting: list[tuple[datetime, str, Mapping[str, Any]]] = []
        self._since = 0.0
        self._chunks = 0
        self._is_broken = False
        self._lock = threading.RLock()  # `add` calls `write` while it holds it

    def add(self, event: str, facts: Mapping[str, Any]) -> None:
        """Note an event; it is written now or within the next ones."""
        with self._lock:
            if not self._waiting:
                self._since = time.monotonic()
            self._waiting.append((datetime.now(UTC), event, facts))
            # A write costs about 10 ms on SQLite, so events are kept for up to two seconds; a process that is killed
            # loses these.
            if len(self._waiting) >= KEPT_EVENTS or time.monotonic() - self._since >= KEPT_SECONDS:
                self.write()

    def write(self) -> None:
        """Write what waits; trouble is told once, and then nothing is tried any more."""
        with self._lock:
            waiting, self._waiting = self._waiting, []
            if not waiting or self._is_broken:
                return
            try:
                self._state.write_journal_of(self._run_id, self._export, waiting)
            except Exception as error:
                # Losing history must not lose the run (`contract.md`, 3, I7). Tried no more: each further try would
                # wait for the store again, while the run has rows to read.
                self._is_broken = True
                self._tell(f"The journal of run {self._run_id} cannot be written ({type(error).__name__}).")

    def planned(self, extract: Extract) -> None:
        """Note what will be read, and what the plan warns of."""
        facts = {
            "strategy": strategy(extract),
            "chunks": len(extract.chunks),
            "rows_estimate": extract.relation.rows_estimate,
            "consistency": extract.consistency,
            "window": extract.window.key,
            "parallel": extract.parallel,
            "profile": extract.pace.profile,
        }
        self.add("PlanResolved", facts)
        for note in extract.notes:
            self.warned(note)

    def warned(self, text: str) -> None:
        """Note something that the run's reader should know, and that stops nothing."""
        self.add("PlanWarning", {"text": text})

    def chunk(self, done: int, of: int, rows: int) -> None:
        """Note that so many chunks are done, with all their rows so far."""
        self._chunks += 1
        if self._chunks <= CHUNKS_TOLD or self._chunks % EVERY == 0 or done == of:
            self.add("ChunkCompleted", {"done": done, "of": of, "rows": rows})

    def judged(self, verdicts: tuple[Verdict, ...], drift: Drift) -> None:
        """Note checks that did not pass, and columns that changed."""
        for verdict in verdicts:
            if not verdict.passed and verdict.check != "drift":
                facts = {
                    "check": verdict.check,
                    "blocking": verdict.blocking,
                    "observed": verdict.observed,
                    "threshold": verdict.threshold,
                    "rows": verdict.rows,
                }
                self.add("QualityIssue" if verdict.blocking else "Warning", facts)
        self.drifted(drift)

    def drifted(self, drift: Drift, **facts: str) -> None:
        """Note columns that changed, if any did."""
        if drift:
            changes = {name: list(names)[:MOST_CHANGES] for name, names in asdict(drift).items() if names}
            self.add("SchemaChanged", {**facts, **changes})

    def retried(self, measures: Measures) -> None:
        """Note how often statements had to be repeated, when one had to be."""
        if measures.retries:
            self.add("RetryAttempted", {"retries": measures.retries, "pages": measures.pages})

    def completed(self, status: str, figures: Mapping[str, Any]) -> None:
        """Note the end, with totals, or with the code of what went wrong; and write all."""
        known = (
            "total_rows",
            "files_produced",
            "bytes_written",
            "duration_ms",
            "retries",
            "error_code",
            "error_message",
        )
        facts = {name: figures[name] for name in known if figures.get(name) is not None}
        self.add("RunCompleted", {"status": status, **facts})
        self.write()


def strategy(extract: Extract) -> str:
    """Word how a window is read, as the original does: `chunked-parallel(id, 40 chunks, p=4)`."""
    readers = sorted({chunk.reader for chunk in extract.chunks})
    way = "+".join(readers) or "nothing to read"
    columns = sorted({chunk.range.column for chunk in extract.chunks if chunk.range is not None})
    inside = [*columns, f"{len(extract.chunks)} chunks" if len(extract.chunks) != 1 else "1 chunk"]
    if extract.parallel:
        inside.append(f"p={extract.parallel}")
    return f"{extract.mode}-{way}({', '.join(inside)})"
