"""Asking several places at once, each for so many seconds at most."""

import threading

import pytest

from rivet_resources import fan_out as module
from rivet_resources.fan_out import NoAnswer, side_by_side
from tests.fake_logs import Gate


def test_answers_come_in_the_order_of_the_questions():
    """Whoever answers first."""
    gate = Gate()

    def late() -> int:
        gate()
        return 1

    def early() -> int:
        gate.open()
        return 2

    assert [("late", 1), ("early", 2)] == list(side_by_side({"late": late, "early": early}, seconds=30).items())


def test_exception_is_an_answer():
    """The others are not touched by it."""
    error = ValueError("no")

    def broken() -> int:
        raise error

    assert {"broken": error, "fine": 7} == side_by_side({"broken": broken, "fine": lambda: 7}, seconds=30)


def test_silent_one_is_answered_for_and_not_asked_again_while_it_hangs():
    """And asked again once it has come back."""
    gate, asked = Gate(), []

    def silent() -> str:
        asked.append(threading.current_thread())
        gate()
        return "back"

    first = side_by_side({"silent": silent, "fine": lambda: "x"}, seconds=0.05)
    second = side_by_side({"silent": silent}, seconds=0.05)
    gate.open()
    asked[0].join(30)
    third = side_by_side({"silent": silent}, seconds=30)

    assert isinstance(first["silent"], NoAnswer)
    assert "x" == first["fine"]
    assert "it has still not answered the question before this one" == str(second["silent"])
    assert {"silent": "back"} == third
    assert 2 == len(asked)


def test_hanging_thread_does_not_hold_the_process():
    """A pool's threads would: they are joined at exit."""
    gate, found = Gate(), []

    def silent() -> None:
        found.append(threading.current_thread().daemon)
        gate()

    side_by_side({"daemon": silent}, seconds=0.05)
    gate.open()

    assert [True] == found


@pytest.mark.parametrize("many", [0, 1, module.ABREAST, module.ABREAST * 2 + 1])
def test_no_more_than_so_many_run_at_once(many):
    """A configuration with hundreds of exports opens a few connections at a time."""
    lock, running, most = threading.Lock(), [0], [0]

    def ask() -> int:
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        with lock:
            running[0] -= 1
        return 1

    answers = side_by_side({f"place {number}": ask for number in range(many)}, seconds=30)

    assert many == sum(answers.values())
    assert most[0] <= module.ABREAST


def test_silent_ones_do_not_use_up_the_time_of_whoever_asks():
    """A tick of a sensor has a minute, however many logs it looks at."""
    gate, asked = Gate(), []

    def silent() -> None:
        asked.append(threading.current_thread())
        gate()

    many = {f"silent {number}": silent for number in range(module.ABREAST * 3)}
    answers = side_by_side(many, seconds=0.01, begun_within=0.01)
    gate.open()

    assert len(many) == sum(isinstance(each, NoAnswer) for each in answers.values())
    assert module.ABREAST == len(asked)
