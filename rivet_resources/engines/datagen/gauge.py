"""How made-up rows feel while they are made: nobody suffers.

Belongs here: the gauge of a source without a server.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from rivet_resources.contracts.evidence import Gauge, Pressure


class DatagenGauge:
    """Looks at nothing; see the protocol."""

    def look(self) -> Pressure:
        """Return a pressure that says all is well."""
        return Pressure(latency_ms=0.0)

    def counters(self) -> Mapping[str, float]:
        """Return no counter."""
        return {}


@contextmanager
def open_gauge() -> Iterator[Gauge]:
    """Open the gauge; it connects to nothing."""
    yield DatagenGauge()
