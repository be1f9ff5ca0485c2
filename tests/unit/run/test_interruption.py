"""How the wish to end is heard, and kept, by processes that do all they can against it.

Belongs here: small processes of our own. Not here: whole commands (`end_to_end/test_interruption.py`).
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from multiprocessing.connection import Connection

import psutil
import pytest
from dagster._core.errors import DagsterExecutionInterruptedError
from dagster._utils.interrupts import setup_interrupt_handlers

from rivet_assets.run import interruption
from rivet_resources.errors import DiskFull
from tests import processes

pytestmark = pytest.mark.xdist_group("processes")  # one worker starts one fork server


def heard_in_the_background(answer: Connection) -> None:
    """Report whether SIGTERM is heard where SIGINT is ignored, as behind a script's `&`, once Dagster was there."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with interruption.listening(lambda: None):
        setup_interrupt_handlers()  # what Dagster does whenever a step ends
        os.kill(os.getpid(), signal.SIGTERM)
        answer.send(interruption.is_asked())
        os._exit(0)


def never_ending(answer: Connection) -> None:
    """Start a child, be told to end, and do not."""
    interruption.GRACE_SECONDS = 0.2
    child = subprocess.Popen(["sleep", "600"])
    with interruption.listening(lambda: None):
        answer.send(child.pid)
        while True:
            try:
                os.kill(os.getpid(), signal.SIGTERM)
                time.sleep(600)
            except KeyboardInterrupt:
                time.sleep(600)


def test_end_is_heard_after_dagster_gave_it_what_is_ignored() -> None:
    """Dagster gives SIGTERM whatever SIGINT has; what a process ignores nobody could hear."""
    mine, theirs = processes.CONTEXT.Pipe()
    process = processes.CONTEXT.Process(target=heard_in_the_background, args=(theirs,))
    process.start()

    assert mine.poll(20)
    assert True is mine.recv()
    process.join(20)


def test_command_that_does_not_end_takes_its_children_along() -> None:
    """It is left in time, and nothing that it started stays, such as a JVM."""
    mine, theirs = processes.CONTEXT.Pipe()
    process = processes.CONTEXT.Process(target=never_ending, args=(theirs,))
    process.start()
    assert mine.poll(20)
    child = mine.recv()

    process.join(20)

    assert interruption.EXIT_CODE == process.exitcode
    assert not psutil.pid_exists(child) or psutil.Process(child).status() == psutil.STATUS_ZOMBIE


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (DagsterExecutionInterruptedError(), interruption.CODE, "The run was told to end"),
        (KeyboardInterrupt(), interruption.CODE, "The run was told to end"),
        (DiskFull("No space in lake."), "RIVET_DESTINATION_FULL", "No space in lake."),
        (ValueError("4929-1234-canary"), "ValueError", "ValueError"),
    ],
)
def test_stored_code_is_ours_and_the_text_shows_no_value(error: BaseException, code: str, text: str) -> None:
    """`rivet status` shows it to a person at night, who knows no class of Dagster's."""
    found, told = interruption.code_and_text(error)

    assert (code, True) == (found, told.startswith(text))
    assert "canary" not in told
