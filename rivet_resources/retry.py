"""Ask again after a fault that may pass: how long to wait, and how often.

Belongs here: the delays of `contract.md`, section 6, and the one loop that obeys them. Not here: which
fault may pass; that is `RivetError.retry`, decided by each engine's error tables.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from rivet_resources.contracts.settings import Pace
from rivet_resources.errors import RivetError

T = TypeVar("T")

LONGEST_SECONDS = 60.0


def delays(pace: Pace) -> Iterator[float]:
    """Yield the seconds to wait before each further try: base × 2^(n−1), at most a minute, `max_retries` times."""
    for attempt in range(pace.max_retries):
        # The exponent ends at 32, or thousands of tries would overflow a float.
        yield min(pace.retry_backoff_ms / 1000 * 2 ** min(attempt, 32), LONGEST_SECONDS)


def call(
    fn: Callable[[], T],
    *,
    pace: Pace,
    on_retry: Callable[[RivetError], None] = lambda error: None,
    on: type[RivetError] = RivetError,
) -> T:
    """Call `fn` until it returns, or fails for good, or the tries are used up.

    Args:
        on_retry: told the fault before each pause; the place to drop a broken connection or to count.
        on: only faults of this class whose `retry` is true are tried again.

    Raises:
        RivetError: the last fault, unchanged.
    """
    pauses = delays(pace)
    while True:
        try:
            return fn()
        except on as error:
            pause = next(pauses, None) if error.retry else None
            if pause is None:
                raise
            on_retry(error)
            time.sleep(pause + getattr(error, "extra_seconds", 0.0))
