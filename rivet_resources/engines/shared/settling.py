"""Waiting a moment for the transactions that are open now, so that fewer values are held back for their sake.

Belongs here: how long, and whom for. Not here: which transactions are open (`engines/*/horizon.py`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TypeVar

SETTLE_SECONDS, SETTLE_STEP_SECONDS = 2.0, 0.05

Name = TypeVar("Name")
Writer = TypeVar("Writer")


def settle(look: Callable[[], Mapping[Name, Writer]]) -> Mapping[Name, Writer]:
    """Look again until those of the first look are gone; return the ones that did not end in time."""
    left = look()
    deadline = time.monotonic() + SETTLE_SECONDS
    while left and time.monotonic() < deadline:
        time.sleep(SETTLE_STEP_SECONDS)
        still = look()
        # Who began after the first look is not waited for, or a busy server would never let go: its values lie above.
        left = {name: writer for name, writer in left.items() if name in still}
    return left
