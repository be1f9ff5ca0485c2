"""Delays and the loop that obeys them."""

from __future__ import annotations

import pytest

from rivet_resources import retry
from rivet_resources.contracts.settings import Tuning, pace
from rivet_resources.errors import RivetError, SnapshotLost, SourceError, SourceLost

QUICK = pace(Tuning(max_retries=2, retry_backoff_ms=1), None)


def test_delays_double_up_to_a_minute() -> None:
    """Base × 2^(n-1), never above 60 s, as many as there are retries."""
    slow = pace(Tuning(max_retries=7, retry_backoff_ms=2000), None)

    assert [2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0] == list(retry.delays(slow))


def test_profile_balanced_waits_as_published() -> None:
    """Three retries from two seconds."""
    assert [2.0, 4.0, 8.0] == list(retry.delays(pace(None, None)))


def attempts(fault: RivetError, *, fails: int, on: type[RivetError] = RivetError) -> int:
    """Call something that fails so often; how many calls it took."""
    calls: list[int] = []

    def flaky() -> int:
        calls.append(1)
        if len(calls) <= fails:
            raise fault
        return len(calls)

    return retry.call(flaky, pace=QUICK, on=on)


def test_passing_fault_is_tried_again() -> None:
    """A fault that may pass is tried until it does."""
    assert attempts(SourceLost("line"), fails=2) == 3


def test_fault_that_stays_comes_out_unchanged() -> None:
    """After the last retry the fault itself is raised."""
    with pytest.raises(SourceLost, match="line"):
        attempts(SourceLost("line"), fails=3)


@pytest.mark.parametrize(("fault", "on"), [(SourceError("no"), RivetError), (SnapshotLost("gone"), SourceLost)])
def test_other_faults_are_not_tried_again(fault: RivetError, on: type[RivetError]) -> None:
    """Permanent faults, and ones of another class than asked for, come out at once."""
    with pytest.raises(type(fault)):
        attempts(fault, fails=1, on=on)


def test_each_retry_is_told() -> None:
    """`on_retry` hears every fault that is tried again, and not the last one."""
    heard: list[str] = []

    def broken() -> None:
        raise SourceLost("line")

    with pytest.raises(SourceLost):
        retry.call(broken, pace=QUICK, on_retry=lambda error: heard.append(str(error)))

    assert ["line", "line"] == heard
