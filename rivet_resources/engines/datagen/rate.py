"""How fast made-up rows may come: a token bucket (`connectors.md`, 2, "Rate limit").

Belongs here: the arithmetic of one bucket. Not here: what one token stands for. Time is given from outside, so tests
need none.
"""

from __future__ import annotations

import time
from collections.abc import Callable


class TokenBucket:
    """Lets `rate` tokens a second pass, and up to rate + burst at once; starts full. Not shared between threads.

    Args:
        rate: tokens a second; 0 never waits.
        burst: default max(10, rate / 10).
    """

    def __init__(
        self,
        rate: float,
        *,
        burst: float | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.rate = rate
        self.burst = max(10.0, rate / 10) if burst is None else burst
        self.capacity = rate + self.burst
        self._clock, self._sleep = clock, sleep
        # Full at the start: a short stream does not wait for its first rows.
        self._tokens, self._filled_at = self.capacity, clock()

    def try_acquire(self, count: float) -> bool:
        """Take `count` tokens if they are there; take none otherwise."""
        if not self.rate:
            return True
        self._fill()
        if count > self._tokens:
            return False
        self._tokens -= count
        return True

    def acquire(self, count: float) -> float:
        """Take `count` tokens, waiting for them; more than the bucket holds are taken in pieces, never refused.

        Returns:
            Seconds waited.
        """
        waited = 0.0
        while self.rate and count > 0:
            self._fill()
            # More than the bucket ever holds would be waited for without end.
            piece = min(count, self.capacity)
            if piece > self._tokens:
                pause = (piece - self._tokens) / self.rate
                self._sleep(pause)
                waited += pause
                self._fill()
            # A sleep that ends early by a rounding is paid by the next wait.
            self._tokens -= piece
            count -= piece
        return waited

    def _fill(self) -> None:
        now = self._clock()
        self._tokens = min(self.capacity, self._tokens + (now - self._filled_at) * self.rate)
        self._filled_at = now
