"""Requests to object stores, as a bill names them: LIST, GET, PUT and so on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest


def kind_of(method: str, path: str) -> str:
    """Name a request as a bill does: reading a list of names costs more than reading one of the objects."""
    address = urlsplit(path)
    query = parse_qs(address.query, keep_blank_values=True)
    lists = {"list-type", "uploads"} & query.keys() or "list" in query.get("comp", ()) or address.path.endswith("/o")
    return "LIST" if method == "GET" and lists else method


@contextmanager
def requests_noted() -> Iterator[list[str]]:
    """Note the kind of each request that a store answered; the clients of all stores use urllib3.

    One whose connection broke, or that the store could not serve just then, is sent again by the client: on a busy
    machine an emulator does that now and then, and it says nothing about what a step costs.
    """
    from urllib3.connectionpool import HTTPConnectionPool

    asked: list[str] = []
    ask = HTTPConnectionPool.urlopen

    def noting(self: Any, method: str, url: str, *arguments: Any, **named: Any) -> Any:
        answer = ask(self, method, url, *arguments, **named)
        if answer.status < 500:
            asked.append(kind_of(method, url))
        return answer

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(HTTPConnectionPool, "urlopen", noting)
        yield asked
