"""Calls that may take so long and no longer, side by side.

Belongs here: the threads. They are daemons: a receiver that never answers keeps no process alive.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping

from rivet_resources.errors import RivetError

PATIENCE_SECONDS = 5.0


class ReceiverRefused(Exception):
    """A receiver did not take what was sent; the text holds no secret."""


def within(seconds: float, calls: Mapping[str, Callable[[], None]]) -> dict[str, str]:
    """Make the calls, all at once; return what went wrong, by name. Never raises, and takes `seconds` at most."""
    troubles: dict[str, str] = {}

    def make(name: str, call: Callable[[], None]) -> None:
        try:
            call()
        except (RivetError, ReceiverRefused) as error:
            troubles[name] = f"was not told: {error}"
        except BaseException as error:
            # A client's text may hold an address with a key in it.
            troubles[name] = f"was not told ({type(error).__name__})"

    threads = {name: threading.Thread(target=make, args=each, daemon=True) for name, each in _named(calls).items()}
    for thread in threads.values():
        thread.start()
    until = time.monotonic() + seconds
    late = []
    for name, thread in threads.items():
        thread.join(max(0.0, until - time.monotonic()))
        if thread.is_alive():
            late.append(name)
    return {**dict(troubles), **{name: f"did not answer within {seconds:.0f} s" for name in late}}


def _named(calls: Mapping[str, Callable[[], None]]) -> dict[str, tuple[str, Callable[[], None]]]:
    return {name: (name, call) for name, call in calls.items()}
