"""A server of MySQL's protocol that wants the password, or answers without end, as a stranger on the line would."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import pytest

from rivet_resources.contracts.settings import pace
from rivet_resources.engines.mysql import sign_in as mysql_sign_in
from rivet_resources.engines.mysql.connect import ConnectionParams, connect
from rivet_resources.engines.mysql.source import MySql
from rivet_resources.errors import RivetError, SourceAuth, SourceError
from tests.unit.engines.mysql.test_wire import EOF, coded, definition, packets

PASSWORD = "p@ss:w/rd-CANARY"
SALT = b"12345678", b"123456789012"
OK = b"\0\0\0\2\0\0\0"
CAPABILITIES = 0x00AFF7DF & ~0x0800  # as a server without TLS has them


def greeting(plugin: bytes) -> bytes:
    """The first packet of a server."""
    low, high = (CAPABILITIES & 0xFFFF).to_bytes(2, "little"), (CAPABILITIES >> 16).to_bytes(2, "little")
    head = b"\x0a8.0.99\0" + bytes(4) + SALT[0] + b"\0" + low + b"\x2d" + b"\2\0" + high + b"\x15" + bytes(10)
    return packets(head + SALT[1] + b"\0" + plugin + b"\0")


@dataclass
class Stranger:
    """One connection's talk: what it heard, and what it says next."""

    line: socket.socket
    heard: list[bytes] = field(default_factory=list)

    def hear(self) -> int:
        """Take one packet; its number."""
        head = self._exactly(4)
        self.heard.append(self._exactly(int.from_bytes(head[:3], "little")))
        return head[3]

    def say(self, payload: bytes, *, after: int) -> None:
        """Answer with one packet."""
        self.line.sendall(packets(payload, number=after + 1))

    def _exactly(self, size: int) -> bytes:
        found = b""
        while len(found) < size:
            more = self.line.recv(size - len(found))
            if not more:
                raise ConnectionResetError
            found += more
        return found


Talk = Callable[[Stranger], None]


@contextmanager
def server(talk: Talk, *, plugin: bytes = b"mysql_native_password") -> Iterator[tuple[int, list[bytes]]]:
    """Listen for connections, each greeted and then left to `talk`; the port, and all packets that came."""
    heard: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with suppress(OSError):
                while True:
                    line, _ = listener.accept()
                    with line, suppress(OSError):
                        line.settimeout(20)
                        stranger = Stranger(line, heard)
                        line.sendall(greeting(plugin))
                        talk(stranger)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield listener.getsockname()[1], heard
        with suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
    thread.join(5)


def refused(port: int, **block: object) -> RivetError:
    """Connect as an export does, and give the fault."""
    source = MySql(host="127.0.0.1", port=port, user="u", database="d", password=PASSWORD, **block)  # type: ignore[arg-type]
    with pytest.raises(RivetError) as found:
        connect(source.conn_params("rivet:test", pace(None, None)))
    return found.value


def switched(plugin: bytes) -> Talk:
    """Ask for another way to prove the password, and hear what comes."""

    def talk(stranger: Stranger) -> None:
        stranger.say(b"\xfe" + plugin + b"\0" + b"".join(SALT) + b"\0", after=stranger.hear())
        if plugin == b"caching_sha2_password":
            stranger.say(b"\x01\x04", after=stranger.hear())
        number = stranger.hear()
        stranger.say(b"\x01-----BEGIN PUBLIC KEY-----", after=number)
        stranger.hear()

    return talk


def prompted(stranger: Stranger) -> None:
    """Ask as PAM does."""
    stranger.say(b"\xfedialog\0\x04Password: ", after=stranger.hear())
    stranger.hear()


def full(stranger: Stranger) -> None:
    """Do not know the scramble of the greeting, and ask for the rest."""
    stranger.say(b"\x01\x04", after=stranger.hear())
    stranger.hear()


WAYS: dict[str, tuple[Talk, bytes]] = {
    "clear text": (switched(b"mysql_clear_password"), b"mysql_native_password"),
    "dialog": (prompted, b"mysql_native_password"),
    "sha256": (switched(b"sha256_password"), b"mysql_native_password"),
    "sha256 from the greeting on": (switched(b"sha256_password"), b"sha256_password"),
    "caching_sha2": (switched(b"caching_sha2_password"), b"mysql_native_password"),
    "caching_sha2 from the greeting on": (full, b"caching_sha2_password"),
}


@pytest.mark.parametrize("way", WAYS)
def test_password_itself_is_never_sent_to_a_server_that_proves_nothing(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not as it is, and, to a far server, not encrypted for a key that it names; the message says what helps."""
    if "sha2" in way:
        monkeypatch.setattr(ConnectionParams, "is_local", False)  # as if the line left this machine
    talk, plugin = WAYS[way]
    with server(talk, plugin=plugin) as (port, heard):
        found = refused(port)

    assert isinstance(found, SourceAuth), found
    assert "the password was not sent. Set `tls: {mode: verify-full}`" in str(found)
    assert PASSWORD not in str(found)
    assert PASSWORD.encode() not in b"".join(heard)
    assert not any(packet in (b"\x01", b"\x02") for packet in heard)  # a request for the server's key


def test_server_of_this_machine_may_name_a_key() -> None:
    """A first login of a fresh MySQL on a loopback address asks for the key; the password is not sent in clear."""
    talk, plugin = WAYS["caching_sha2 from the greeting on"]
    with server(talk, plugin=plugin) as (port, heard):
        refused(port)  # by the line that ends then

    assert b"\x02" in heard  # the request for the key
    assert PASSWORD.encode() not in b"".join(heard)


def endless(payload: bytes, *, before: tuple[bytes, ...] = ()) -> Talk:
    """Sign in, and answer the first statement without end."""

    def talk(stranger: Stranger) -> None:
        stranger.say(OK, after=stranger.hear())
        stranger.say(OK, after=stranger.hear())  # SET AUTOCOMMIT, or the first statement
        number = stranger.hear()
        said = bytearray(packets(*before, number=number + 1))
        number = number + 1 + len(before)
        while True:
            for _ in range(1 + 65_536 // len(payload)):
                said += len(payload).to_bytes(3, "little") + bytes([number & 0xFF]) + payload
                number += 1
            stranger.line.sendall(said)
            said.clear()

    return talk


@pytest.mark.parametrize(
    ("talk", "limits"),
    [
        (endless(definition("c"), before=(b"\xfd\xff\xff\xff",)), {"MOST_COLUMNS": 3000}),
        (endless(coded(b"x"), before=(b"\x01", definition("c"), EOF)), {"MOST_PACKETS": 20_000}),
        (endless(coded(b"x" * 60_000), before=(b"\x01", definition("c"), EOF)), {"MOST_BYTES": 4 << 20}),
        (endless(b"x" * 0xFFFFFF), {"MOST_BYTES": 40 << 20}),
    ],
    ids=["columns", "rows", "bytes", "one packet"],
)
def test_answer_without_end_is_refused(talk: Talk, limits: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Columns, rows, bytes, or one packet that goes on for ever: each ends in a fault, and the memory stays."""
    for name, number in limits.items():
        monkeypatch.setattr(mysql_sign_in, name, number)
    with server(talk) as (port, _):
        found = refused(port)

    assert isinstance(found, SourceError), found
    assert "the answer to a small statement has no end" in str(found)


@pytest.mark.parametrize(
    "greeted", [b"", b"\x0a", b"\x0a8.0\0", b"\x0axx\0" + bytes(40), b"\xff", b"\x0a\xff\xff\0" * 9]
)
def test_greeting_of_any_bytes_is_one_clear_fault(greeted: bytes) -> None:
    """No error of Python's own comes out."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with suppress(OSError):
                while True:
                    line, _ = listener.accept()
                    with line:
                        line.sendall(packets(greeted))

        threading.Thread(target=serve, daemon=True).start()

        assert "127.0.0.1" in str(refused(listener.getsockname()[1]))
        listener.shutdown(socket.SHUT_RDWR)
