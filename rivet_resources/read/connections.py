"""The cap on connections to one source (`max_connections`), over all tasks of all runs that share a state store.

Belongs here: permits, taken from the state store before anybody connects. Not here: leases themselves
(`state/leases.py`), which give permits of dead processes back by themselves.

Counted is what exports hold: the planning session, the tasks, the governor's gauge. Not counted are commands that look
once (`check`, `doctor`, `init`) and drains of change logs, which hold one connection each. Two source blocks count as
one server when they name the same host and port. A driver cut off from its store for a minute may lose a permit, and
then there is one connection more than asked for: being gentle is not worth a failed export.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from rivet_resources.contracts.settings import Pace
from rivet_resources.engines.shared.server import Server
from rivet_resources.errors import WindowBusy

Event = Callable[[str, Mapping[str, Any]], None]

FEWEST = 2  # the planning session and one task; fewer cannot read
# Between two tries, at random, so that two runs that wait do not try in step.
PAUSE_SECONDS = (0.3, 1.0)


class Leases(Protocol):
    """What permits need of the state store."""

    def lease(self, export: str, window: str, run_id: str) -> AbstractContextManager[Any]:
        """Hold a name until the block ends.

        Raises:
            WindowBusy: a living run holds it.
        """


@dataclass
class Permits:
    """How many connections one run may hold right now. Not shared between threads."""

    state: Leases
    server: str  # host:port
    most: int | None  # over all runs; None: no cap
    run_id: str
    _taken: set[int] = field(default_factory=set)
    _stack: ExitStack = field(default_factory=ExitStack)

    def more(self, wanted: int) -> int:
        """Take up to `wanted` further permits, as many as are free now; without a cap all of them."""
        if self.most is None:
            return wanted
        got = 0
        # Each permit is a lease of its own: a process that dies without giving back loses them by the leases'
        # expiry, and nobody has to count them right again.
        for number in range(1, self.most + 1):
            if got == wanted:
                break
            if number not in self._taken and self._take(number):
                got += 1
        return got

    def give_back(self) -> None:
        """Release all of them; safe to call twice."""
        self._taken.clear()
        self._stack.close()

    def _take(self, number: int) -> bool:
        # No export's name has a colon, so this lease meets none of a window.
        try:
            self._stack.enter_context(self.state.lease(f"source:{self.server}", f"connection {number}", self.run_id))
        except WindowBusy:
            return False
        self._taken.add(number)
        return True


@contextmanager
def permits(
    source: object, *, state: Leases, run_id: str, pace: Pace, on_event: Event | None = None
) -> Iterator[Permits]:
    """Take the fewest permits a run can read with, waiting for them if need be; they are given back with the block.

    Nobody waits while holding one, so runs cannot wait for each other in a circle. A run that waits says so once, by
    `on_event("ConnectionsAwaited", …)`, and has not connected yet.

    Raises:
        ConfigError: the source's address cannot be resolved.
    """
    most = source.max_connections if isinstance(source, Server) else None
    if most is None:
        yield Permits(state, server="", most=None, run_id=run_id)
        return
    # Two source blocks are one server when host and port agree, whatever user or database they name: connections
    # are scarce per server.
    where: str = source.conn_params(f"rivet:{run_id}", pace).where  # type: ignore[attr-defined]  # each engine has its own
    held = Permits(state, server=where, most=most, run_id=run_id)
    try:
        _await(held, on_event)
        yield held
    finally:
        # Also when `_await` is interrupted: a permit that stays behind blocks others until its lease ends.
        held.give_back()


def _await(held: Permits, on_event: Event | None) -> None:
    since, has_told = time.monotonic(), False
    while held.more(FEWEST) < FEWEST:
        # One permit alone is given back at once: two runs that each keep one of two would wait for ever.
        held.give_back()
        if not has_told and on_event is not None:
            on_event("ConnectionsAwaited", {"server": held.server, "max_connections": held.most})
        has_told = True
        time.sleep(random.uniform(*PAUSE_SECONDS))
    if has_told and on_event is not None:
        on_event("ConnectionsGranted", {"server": held.server, "waited_seconds": round(time.monotonic() - since, 1)})
