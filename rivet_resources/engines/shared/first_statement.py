"""The first statement of a chunk, taken from the very code that pages it, and never sent.

Belongs here: running an engine's pages as far as their first statement. Not here: what is done with it
(`engines/*/explain.py`). A reader in rehearsal is the engine's own `Reader` whose sending raises `Told`, so what is
explained cannot drift from what a task sends.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NoReturn

from rivet_resources.contracts.source import Page


class Told(Exception):
    """The statement that would have been sent."""

    def __init__(self, statement: str) -> None:
        super().__init__("rehearsal")
        self.statement = statement


def tell(statement: str) -> NoReturn:
    """End the rehearsal at its first statement."""
    raise Told(statement)


def first_statement(pages: Iterator[Page]) -> str:
    """Return the first statement that `pages` would send; '' when the chunk needs none, since it is empty."""
    try:
        # The fault is the result: nothing was sent, since the reader in rehearsal raises instead of asking.
        next(pages, None)
    except Told as told:
        return told.statement
    return ""


def no_pause(rows: int) -> None:
    """Stand in for the throttle: nothing is read, so nothing waits."""
