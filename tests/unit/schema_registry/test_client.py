"""Registries that lie, answer slowly, or are away: each an error of its own, in bounded time, without the password."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from rivet_resources.conformance.lines import END_SECONDS
from rivet_resources.schema_registry.client import MOST_BYTES, HttpSchemaRegistry
from rivet_resources.schema_registry.errors import (
    SchemaRegistryAuth,
    SchemaRegistryContradiction,
    SchemaRegistryError,
    SchemaRegistryUnreachable,
)
from tests.servers.registries import scripted_registry

PASSWORD = "hunter2 secret"
VERSION = {"subject": "a", "version": 1, "id": 1, "schema": '"int"'}
Ask = Callable[[HttpSchemaRegistry], Any]


def client(url: str, **settings: Any) -> HttpSchemaRegistry:
    """Sign in with a password that no message may hold."""
    return HttpSchemaRegistry(url, "rivet", PASSWORD, **settings)


LIES: dict[str, tuple[Ask, Any]] = {
    "subjects are no list": (lambda it: it.subjects(), {"a": 1}),
    "subjects are numbers": (lambda it: it.subjects(), [1]),
    "versions are texts": (lambda it: it.versions("a"), ["1"]),
    "versions are truths": (lambda it: it.versions("a"), [True]),
    "another version": (lambda it: it.version("a", 2), VERSION),
    "another subject": (lambda it: it.version("a", 1), {**VERSION, "subject": "b"}),
    "no schema": (lambda it: it.version("a", 1), {**VERSION, "schema": None}),
    "an id that is a text": (lambda it: it.version("a", 1), {**VERSION, "id": "1"}),
    "an id below 0": (lambda it: it.version("a", 1), {**VERSION, "id": -1}),
    "another language": (lambda it: it.version("a", 1), {**VERSION, "schemaType": "THRIFT"}),
    "a list": (lambda it: it.version("a", 1), [VERSION]),
    "no schema of an id": (lambda it: it.schema(1), {}),
    "no id": (lambda it: it.register("a", "avro", '"int"', owner=""), {"id": None}),
    "an id that is a truth": (lambda it: it.register("a", "avro", '"int"', owner=""), {"id": True}),
    "no rule": (lambda it: it.compatibility("a"), {"compatibilityLevel": "SOMETIMES"}),
    "nothing found": (lambda it: it.find("a", "avro", '"int"'), {}),
    "no JSON": (lambda it: it.subjects(), b"<html>"),
    "nested too deep": (lambda it: it.subjects(), b"[" * 100_000),
    "not UTF-8": (lambda it: it.subjects(), b"\xff\xfe\xff"),
    "too much": (lambda it: it.subjects(), b" " * (MOST_BYTES + 1)),
}


@pytest.mark.parametrize("case", LIES)
def test_answer_that_makes_no_sense_is_believed_by_nobody(case: str) -> None:
    """Whoever runs that address is told; nothing goes on with half of it."""
    ask, document = LIES[case]
    with (
        scripted_registry(lambda method, path: (200, document)) as (url, _),
        pytest.raises(SchemaRegistryContradiction) as told,
    ):
        ask(client(url))

    assert PASSWORD not in str(told.value)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (301, SchemaRegistryError), (307, SchemaRegistryError), (400, SchemaRegistryError), (401, SchemaRegistryAuth),
        (403, SchemaRegistryAuth), (404, SchemaRegistryError), (422, SchemaRegistryError),
        (429, SchemaRegistryUnreachable), (500, SchemaRegistryUnreachable), (503, SchemaRegistryUnreachable),
    ],
)  # fmt: skip
def test_status_decides_whether_to_come_back(status: int, kind: type[SchemaRegistryError]) -> None:
    """And a redirect is not followed: it would carry the password elsewhere."""
    document = {"error_code": status, "message": "line\nline " * 200}
    with scripted_registry(lambda method, path: (status, document)) as (url, came), pytest.raises(kind) as told:
        client(url).subjects()

    assert kind is type(told.value)
    assert ["GET /subjects"] == came
    assert "\n" not in str(told.value)
    assert len(str(told.value)) < 700
    assert PASSWORD not in str(told.value)


def test_name_of_a_subject_cannot_lead_elsewhere() -> None:
    """Slashes, blanks, dots and signs of a query are part of the name."""
    with scripted_registry(lambda method, path: (404, {})) as (url, came):
        assert [] == client(url + "/base/").versions("../x y?z#ä/%2F")

    assert ["GET /base/subjects/..%2Fx%20y%3Fz%23%C3%A4%2F%252F/versions"] == came


DRIPPING = [
    b"",
    b"HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\n[",
    b"HTTP/1.1 200 OK\r\n",
    # Of these the connection gives its socket away.
    b"HTTP/1.0 200 OK\r\n\r\n[",
    b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 5000\r\n\r\n[",
]


@pytest.mark.parametrize("said", DRIPPING)
def test_registry_that_falls_silent_is_given_up(said: bytes) -> None:
    """After the time of a request, wherever it stopped; and one that sends a byte now and then has no longer."""

    given_up = threading.Event()

    def drip(server: socket.socket) -> None:
        line = server.accept()[0]
        with suppress(OSError), line:
            line.sendall(said)
            while not given_up.wait(0.2):
                line.sendall(b" " if b"\r\n\r\n" in said else b"")

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=drip, args=(server,), daemon=True)
        thread.start()
        began = time.monotonic()
        with pytest.raises(SchemaRegistryUnreachable, match="within 1 s"):
            client(f"http://127.0.0.1:{server.getsockname()[1]}", timeout_seconds=1.0).subjects()
        given_up.set()
        thread.join(END_SECONDS)

    assert time.monotonic() - began < END_SECONDS / 2


@pytest.mark.parametrize("said", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n[", b"nonsense\r\n\r\n"])
def test_line_that_breaks_may_work_later(said: bytes) -> None:
    """A proxy that hangs up, a server that dies amid its answer."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def end() -> None:
            line = server.accept()[0]
            line.recv(10_000)
            line.sendall(said)
            line.close()

        threading.Thread(target=end, daemon=True).start()
        with pytest.raises(SchemaRegistryUnreachable):
            client(f"http://127.0.0.1:{server.getsockname()[1]}").subjects()


def test_nobody_there_may_be_there_later() -> None:
    """A port where nothing listens, and a name that nobody knows."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    for url in (f"http://127.0.0.1:{port}", "http://registry.invalid"):
        with pytest.raises(SchemaRegistryUnreachable, match="is away"):
            client(url).subjects()
