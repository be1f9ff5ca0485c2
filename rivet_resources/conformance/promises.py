"""A promise that does not hold, and how a check says so."""

from __future__ import annotations


class PromiseBroken(AssertionError):
    """Something does not do what exports rely on; the message is what it should."""


def hold(is_kept: bool, promise: str) -> None:
    """Raise PromiseBroken with the sentence that does not hold."""
    if not is_kept:
        raise PromiseBroken(promise)
