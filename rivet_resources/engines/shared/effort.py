"""What one reader has spent at its server so far: connections, and its longest transaction.

Belongs here: the count, the same for every engine. Not here: what the server counts itself (`engines/*/reader.py`).
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from rivet_resources.contracts.evidence import Effort


@dataclass
class Spent:
    """Counts as a reader goes; `effort` gives the sum."""

    connections: int = 0
    longest_transaction_ms: float = 0.0
    _since: float | None = None

    def connected(self, *, in_transaction: bool) -> None:
        """Count a connection; one `in_transaction` is in it until `ended`."""
        self.connections += 1
        self._since = time.monotonic() if in_transaction else None

    def statement(self, milliseconds: float) -> None:
        """Take a statement that was a transaction of its own; inside another one it changes nothing."""
        self.longest_transaction_ms = max(self.longest_transaction_ms, milliseconds)

    def ended(self) -> None:
        """Note that the transaction, if any, is over; safe to call twice."""
        if self._since is not None:
            self.statement((time.monotonic() - self._since) * 1000)
            self._since = None

    def effort(self, *, rows_scanned: int | None = None) -> Effort:
        """Sum up. What a broken connection had counted is lost, so rows are told only of a reader that had one."""
        self.ended()
        return Effort(
            # The server's counters are of a session. After a second connection they would show a part as the whole.
            rows_scanned=rows_scanned if self.connections == 1 else None,
            longest_transaction_ms=self.longest_transaction_ms,
            connections=self.connections,
        )
