"""From the named numbers of one look to a Pressure, whatever the engine.

Belongs here: what is shared by the gauges of servers. Not here: what each asks (`engines/*/gauge.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rivet_resources.contracts.evidence import Pressure

LOOK_SECONDS = 2  # a look that takes longer is none: the governor goes on without it
WHOLE = ("active", "lock_waits", "waiting_for_us", "log_waits", "connections", "connections_limit")


def pressure_of(latency_ms: float, found: Mapping[str, Any]) -> Pressure:
    """Take the known numbers of one look by their names; a NULL, or a name that is missing, is not known."""
    lag = found.get("lag_seconds")
    return Pressure(
        latency_ms=latency_ms,
        # Clocks of two servers differ: a replica that seems ahead is not behind.
        lag_seconds=None if lag is None else max(0.0, float(lag)),
        **{name: max(0, int(found[name])) for name in WHOLE if found.get(name) is not None},
    )


def selected(parts: Mapping[str, str]) -> str:
    """Write one SELECT of named scalars; of nothing but a 1 where there are none."""
    return "SELECT " + (", ".join(f"{sql} AS {name}" for name, sql in parts.items()) or "1 AS one")


def answerable(parts: Mapping[str, str], works: Callable[[Mapping[str, str]], bool]) -> dict[str, str]:
    """Keep the parts that this server answers to this user: all of them by one question, else each by its own."""
    # All by one question first, as it mostly is answered; a right that is missing makes the whole statement fail,
    # and then each scalar is tried alone.
    return dict(parts) if works(parts) else {name: sql for name, sql in parts.items() if works({name: sql})}
