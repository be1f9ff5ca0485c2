"""Calls to a store's server that are made again when it goes away amid them.

Belongs here: which methods are repeated. Not here: how long a server is waited for (`database.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from types import FunctionType
from typing import Any, TypeVar

from rivet_resources.state.database import Database

T = TypeVar("T")


def patient(methods: type[T]) -> type[T]:
    """Let each public method of a class over `self._database` be called again when the server goes away amid it."""
    # A line that breaks says nothing of the transaction that was on it, so all of them must bear to be repeated: they
    # set what they say, or add a line to a history, which is better there twice than a run is lost.
    for name, method in list(vars(methods).items()):
        if isinstance(method, FunctionType) and not name.startswith("_"):
            setattr(methods, name, _repeat(method))
    return methods


def _repeat(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def again(self: Any, *arguments: Any, **options: Any) -> Any:
        database: Database = self._database
        # Nested calls multiply nothing: the clock of `_may_wait` is the database's, so all of them end together.
        return database.patiently(lambda: method(self, *arguments, **options))

    return again
