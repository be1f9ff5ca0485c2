"""The token bucket, in a time of its own."""

from __future__ import annotations

import pytest

from rivet_resources.engines.datagen.rate import TokenBucket


class Time:
    """A clock that moves when told to, or when somebody sleeps."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds


def bucket(rate: float, burst: float | None = None) -> tuple[TokenBucket, Time]:
    """Make a full bucket in a time that stands still."""
    time = Time()
    return TokenBucket(rate, burst=burst, clock=time, sleep=time.sleep), time


@pytest.mark.parametrize(("rate", "burst", "capacity"), [(1000, 100, 1100), (50, 10, 60)])
def test_burst_is_a_tenth_of_the_rate_and_at_least_ten(rate, burst, capacity):
    """Burst = max(10, rate / 10); the bucket holds rate + burst."""
    limiter, _ = bucket(rate)

    assert (limiter.burst, limiter.capacity) == (burst, capacity)


def test_full_bucket_gives_what_it_holds_and_no_more():
    """Rate 10 with burst 5: 15 are taken, the 16th is refused."""
    limiter, _ = bucket(10, 5)

    assert [limiter.try_acquire(1) for _ in range(16)] == [True] * 15 + [False]


def test_drained_bucket_fills_with_time():
    """Rate 1000 without burst: drained, 100 ms later 50 succeed."""
    limiter, time = bucket(1000, 0)
    assert limiter.try_acquire(1000)
    assert not limiter.try_acquire(50)

    time.sleep(0.1)

    assert limiter.try_acquire(50)


def test_acquiring_what_is_not_there_waits():
    """Rate 100, burst 10: after 100, acquiring 20 waits at least 50 ms."""
    limiter, _ = bucket(100, 10)
    limiter.acquire(100)

    assert limiter.acquire(20) >= 0.05


def test_rate_zero_never_waits():
    """0 means as fast as it goes."""
    limiter, time = bucket(0)

    assert limiter.acquire(10**9) == 0
    assert limiter.try_acquire(10**9)
    assert time.now == 100.0


def test_more_than_the_bucket_holds_is_taken_in_pieces():
    """Acquire 500 at capacity 110 and rate 100: about 4 s, never refused for good."""
    limiter, time = bucket(100, 10)

    assert limiter.acquire(500) == pytest.approx(3.9)
    assert time.now == pytest.approx(103.9)
