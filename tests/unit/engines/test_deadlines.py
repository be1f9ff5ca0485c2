"""The clock of waits: what takes too long is ended, nothing else is."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from contextlib import closing, suppress

import pytest

from rivet_resources.conformance.lines import listening
from rivet_resources.deadlines import Silent, deadline, forget, hang_up, opened_lines, patience_seconds

SOON, LATER, BOUND = 0.05, 0.3, 10.0


def test_wait_for_who_says_nothing_ends() -> None:
    """The line is shut down under whoever reads from it."""
    near, far = socket.socketpair()

    def work() -> None:
        with deadline(SOON, lambda: hang_up([near])):
            assert near.recv(1) == b""
            raise ConnectionError("as a driver would")

    with closing(near), closing(far), pytest.raises(Silent, match="answered nothing"):
        work()


def test_wait_that_is_over_in_time_is_left_alone() -> None:
    """Its end is never called, also when its time would be over."""
    ended: list[str] = []
    with deadline(SOON, lambda: ended.append("too late")):
        pass
    time.sleep(LATER)

    assert [] == ended


def test_fault_in_time_stays_what_it_is() -> None:
    """Only the fault of an ended wait is replaced."""
    with pytest.raises(ValueError, match="ours"), deadline(BOUND, lambda: None):
        raise ValueError("ours")


def test_wait_without_limit_has_no_end() -> None:
    """None waits as long as it takes."""
    with deadline(None, lambda: None):
        time.sleep(SOON)


@pytest.mark.parametrize(("limit", "expected"), [(0, 6 * 3600), (1, 6), (30, 60), (300, 360)])
def test_patience_is_the_limit_and_a_margin(limit: int, expected: int | None) -> None:
    """As much again, at least 5 s and at most a minute; without a limit of the server's there is still one."""
    assert expected == patience_seconds(limit)


@pytest.mark.parametrize("answers", [[True, True, False], [True, True, RuntimeError("no server")]])
def test_work_gets_as_long_again_while_it_goes_on(answers: list[bool | Exception]) -> None:
    """Asked each time its time is over; a question without an answer means no."""
    over, left = threading.Event(), [*answers]

    def is_at_work() -> bool:
        answer = left.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    with suppress(Silent), deadline(SOON, over.set, is_at_work=is_at_work):
        assert over.wait(BOUND)
        raise ConnectionError

    assert [] == left


def test_each_wait_ends_when_its_own_time_is_over() -> None:
    """One that begins later and is shorter ends first."""
    ended: list[str] = []
    all_over = threading.Event()
    with (
        suppress(Silent),
        deadline(LATER, lambda: (ended.append("long"), all_over.set())),
        deadline(SOON, lambda: ended.append("short")),
    ):
        assert all_over.wait(BOUND)
        raise ConnectionError

    assert ["short", "long"] == ended


def test_forked_process_has_a_clock_of_its_own() -> None:
    """A fork copies no thread; Spark forks its workers."""
    with deadline(BOUND, lambda: None):
        child = os.fork()
        if child == 0:
            signal.alarm(20)  # a lock that was copied while it was held is never given back
            over = threading.Event()
            try:
                with deadline(SOON, over.set):
                    over.wait(BOUND)
                    raise ConnectionError
            except Silent:
                os._exit(7)
            os._exit(8)
        _, status = os.waitpid(child, 0)

    assert 7 == os.waitstatus_to_exitcode(status)


def test_line_that_a_library_hides_is_found() -> None:
    """Those to the port that were opened since, and no others."""
    said = threading.Event()
    with (
        listening(lambda lines, line: said.wait(BOUND)) as port,
        listening(lambda lines, line: said.wait(BOUND)) as other,
        closing(socket.create_connection(("127.0.0.1", port))),
    ):
        with opened_lines({port}) as found, closing(socket.create_connection(("127.0.0.1", other))):
            assert [] == found()
            with closing(socket.create_connection(("127.0.0.1", port))) as hidden:
                lines = found()
                hang_up(lines)
                forget(lines)

                assert (1, b"") == (len(lines), hidden.recv(1))
        said.set()
