"""A wire-level emulator of SQL Server: TDS 7.4 on a socket, DuckDB behind it. It is no SQL Server.

What it is for: Microsoft's driver connects to it as to a server, and everything on this side of the wire runs as it
would: log-in, type decoding, error numbers, lost lines, timeouts. What it is not: the SQL dialect, plans, locks and
permissions of the real one. The same tests run against a real server by RIVET_TEST_SQLSERVER_URL.

Runs in a process of its own (`python -m tests.emulators.tds.protocol`): some versions of the driver hold the
interpreter's lock while they fetch (1.16 does not), and would starve a server beside them. Belongs here: sockets,
packets, tokens, faults on demand. Not here: types (types.py), SQL (sql.py). Source: [MS-TDS], sections 2.2.5 to 2.2.7.
A connection that begins with `{` is one of the tests: a fault as one line of JSON. Given a certificate and its key,
it protects every line whose client can, as a server does that has Force Encryption on (tls.py).
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import socketserver
import ssl
import struct
import sys
import threading
import time
from dataclasses import dataclass, field
from typing import Any

from tests.emulators.tds import cdc as tds_cdc
from tests.emulators.tds import gss
from tests.emulators.tds.database import Database
from tests.emulators.tds.expressions import Fault
from tests.emulators.tds.sql import Executor, Result
from tests.emulators.tds.tls import Protected, server_context
from tests.emulators.tds.types import DEFAULT_COLLATION, as_sent, collation_bytes, encoder, info

LOGINS = {"sa": "Emulated-1", "reader": "Reading-1", "odd": "a;b}c{d}};PWD=x e'f\"g",
          "braced": "a}b{c}}d =e", "split": "a;b c='d\";PWD={x"}  # fmt: skip
PACKET = 4096
BATCH, RPC, ATTENTION, TRANSACTION, LOGIN, PRELOGIN = 1, 3, 6, 14, 16, 18
INTEGRATED = 0x80  # of LOGIN7's second byte of options
OFF, ON, NOT_SUPPORTED, REQUIRED = 0, 1, 2, 3  # encryption, of PRELOGIN
MORE, FAILED, COUNTED, ATTENDED = 0x1, 0x2, 0x10, 0x20


# --- tokens --------------------------------------------------------------------------------------


def short_text(text: str) -> bytes:
    """Write B_VARCHAR."""
    return bytes([len(text)]) + text.encode("utf-16le")


def text_of(text: str) -> bytes:
    """Write US_VARCHAR."""
    return struct.pack("<H", len(text)) + text.encode("utf-16le")


def done(status: int, count: int = 0) -> bytes:
    """Write DONE."""
    return b"\xfd" + struct.pack("<HHQ", status, 0xC1, count)


def error(number: int, text: str) -> bytes:
    """Write ERROR; numbers from 18000 to 19000 are of log-ins, with their own severity."""
    severity = 14 if 18000 < number < 19000 or number in (229, 300) else 16
    body = struct.pack("<IBB", number & 0xFFFFFFFF, 1, severity) + text_of(text) + short_text("emulator")
    body += short_text("") + struct.pack("<I", 1)
    return b"\xaa" + struct.pack("<H", len(body)) + body


def environment(kind: int, new: str, old: str = "") -> bytes:
    """Write ENVCHANGE; kind 7 is the collation."""
    body = bytes([kind])
    body += b"\x05" + collation_bytes(DEFAULT_COLLATION) + b"\0" if kind == 7 else short_text(new) + short_text(old)
    return b"\xe3" + struct.pack("<H", len(body)) + body


def columns_of(result: Result) -> bytes:
    """Write COLMETADATA."""
    out = b"\x81" + struct.pack("<H", len(result.columns))
    for name, kind in result.columns:
        out += struct.pack("<IH", 0, 9) + info(as_sent(kind)) + short_text(name)
    return out


# --- faults on demand ----------------------------------------------------------------------------


@dataclass
class Demand:
    """A fault a test asked for; it strikes `times` statements that match, after letting `skip` of them pass."""

    match: str
    number: int = 0
    text: str = "The emulator was told to fail."
    skip: int = 0
    times: int = 1
    cut_after_rows: int = -1
    delay_seconds: float = 0.0


@dataclass
class Faults:
    """The faults that wait for their statement, and the statements seen."""

    waiting: list[Demand] = field(default_factory=list)
    seen: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def strike(self, statement: str) -> Demand | None:
        """Take the fault this statement gets."""
        with self.lock:
            self.seen.append(statement)
            for demand in self.waiting:
                if not re.search(demand.match, statement, re.DOTALL):
                    continue
                if demand.skip:
                    demand.skip -= 1
                    continue
                demand.times -= 1
                if not demand.times:
                    self.waiting.remove(demand)
                return demand
        return None

    def command(self, text: str, databases: dict[str, Database]) -> str:
        """Do what a test asks: a new fault, the statements seen, or to forget."""
        asked = json.loads(text)
        if "cdc" in asked:
            tds_cdc.command(databases, asked["cdc"])
        if "fault" in asked:
            self.waiting.append(Demand(**asked["fault"]))
        if "forget" in asked:
            self.waiting.clear()
            self.seen.clear()
        return json.dumps({"seen": self.seen if "seen" in asked else []})


# --- one connection ------------------------------------------------------------------------------


class Closed(Exception):
    """The line ended."""


class Connection(socketserver.BaseRequestHandler):
    """One client, from pre-login to its end."""

    server: Server
    executor: Executor | None = None

    def handle(self) -> None:
        """Answer until the line ends."""
        try:
            if self.request.recv(1, 2) == b"{":  # MSG_PEEK
                line = self.request.makefile().readline()
                self.request.sendall(self.server.faults.command(line, self.server.databases).encode() + b"\n")
                return
            while True:
                self._answer(*self._message())
        except (Closed, ConnectionError):
            return
        finally:
            if self.executor is not None:
                self.executor.close()

    def _receive(self, size: int) -> bytes:
        content = b""
        while len(content) < size:
            piece = self.request.recv(size - len(content))
            if not piece:
                raise Closed
            content += piece
        return content

    def _message(self) -> tuple[int, bytes]:
        content = b""
        while True:
            head = self._receive(8)
            content += self._receive(struct.unpack(">H", head[2:4])[0] - 8)
            if head[1] & 1:
                return head[0], content

    def _send(self, content: bytes, *, is_last: bool = True) -> None:
        """Send whole packets; what is left goes out with the last."""
        size = PACKET - 8
        for start in range(0, max(len(content), 1), size):
            piece = content[start : start + size]
            end = int(is_last and start + size >= len(content))
            self.request.sendall(struct.pack(">BBHHBB", 4, end, len(piece) + 8, 51, 1, 0) + piece)

    def _answer(self, kind: int, content: bytes) -> None:
        if kind == PRELOGIN:
            self._prelogin(content)
        elif kind == LOGIN:
            self._login(content)
        elif kind == BATCH and self.executor is not None:
            self._batch(content[struct.unpack("<I", content[:4])[0] :].decode("utf-16le"))
        elif kind == ATTENTION:
            self._send(done(ATTENDED))
        elif kind == RPC:
            self._send(error(2812, "The emulator takes no remote procedure calls.") + done(FAILED))
        else:
            self._send(done(0))

    # --- log-in ----------------------------------------------------------------------------------

    def _prelogin(self, content: bytes) -> None:
        """Agree on encryption: all of the line, where there is a certificate and the client can; else none."""
        context = self.server.tls
        if context is None or _encryption_of(content) == NOT_SUPPORTED:
            self._send(_prelogin(NOT_SUPPORTED))
            return
        self._send(_prelogin(REQUIRED if _encryption_of(content) == OFF else ON))
        self.request = Protected(self.request, context)

    def _login(self, content: bytes) -> None:
        def field_at(place: int, *, is_secret: bool = False) -> str:
            start, length = struct.unpack("<HH", content[place : place + 4])
            raw = content[start : start + 2 * length]
            if is_secret:
                raw = bytes(((b ^ 0xA5) << 4 | (b ^ 0xA5) >> 4) & 0xFF for b in raw)
            return raw.decode("utf-16le")

        user, password, name = field_at(40), field_at(44, is_secret=True), field_at(68)
        answer = b""
        start, length = struct.unpack("<HH", content[78:82])
        if content[25] & INTEGRATED:
            user, answer = self._by_ticket(content[start : start + length])
        demand = self.server.faults.strike(f"LOGIN {user}")
        if demand is not None and demand.number:
            self._send(error(demand.number, demand.text) + done(FAILED))
            raise Closed
        if not answer and LOGINS.get(user) != password:
            self._send(error(18456, f"Login failed for user '{user}'.") + done(FAILED))
            raise Closed
        database = self.server.databases.get((name or "app").lower())
        if database is None or (name.lower().endswith("_closed") and user != "sa"):
            words = f'Cannot open database "{name}" requested by the login. The login failed.'
            self._send(error(4060, words) + error(18456, f"Login failed for user '{user}'.") + done(FAILED))
            raise Closed
        self.executor = Executor(self.server.databases, database, user)
        self.executor.session.is_protected = isinstance(self.request, Protected)
        acknowledged = b"\x01\x74\0\0\x04" + short_text("Microsoft SQL Server") + b"\x10\0\x10\0"
        self._send(
            answer + environment(1, database.name, "master") + environment(7, "") + b"\xad"
            + struct.pack("<H", len(acknowledged)) + acknowledged + environment(4, str(PACKET), str(PACKET)) + done(0)
        )  # fmt: skip

    def _by_ticket(self, token: bytes) -> tuple[str, bytes]:
        """Return whose ticket it is, and the token SSPI that answers it."""
        try:
            principal, answer = gss.accept(token)
        except gss.TicketRefused as refused:
            self._send(error(18452, f"Login failed. The login is from an untrusted domain. {refused}") + done(FAILED))
            raise Closed from None
        return principal, b"\xed" + struct.pack("<H", len(answer)) + answer

    # --- batches ---------------------------------------------------------------------------------

    def _batch(self, batch: str) -> None:
        demand = self.server.faults.strike(batch)
        if demand is not None and demand.delay_seconds and self._attended(demand.delay_seconds):
            return
        if demand is not None and demand.number:
            self._send(error(demand.number, demand.text) + done(FAILED))
            return
        cut = demand.cut_after_rows if demand is not None else -1
        answer = b""
        try:
            assert self.executor is not None
            waiting: Result | None = None
            for result in self.executor.run(batch):
                if waiting is not None:
                    answer = self._result(answer, waiting, MORE, cut)
                waiting = result
            self._send(self._result(answer, waiting or Result(), 0, cut))
        except Fault as fault:
            self._send(answer + error(fault.number, fault.text) + done(FAILED))
        except (Closed, ConnectionError):
            raise
        except Exception as unknown:  # a fault of the emulator's own, which must be seen in the test
            self._send(answer + error(50000, f"Emulator: {type(unknown).__name__}: {unknown}") + done(FAILED))

    def _result(self, answer: bytes, result: Result, status: int, cut: int) -> bytes:
        """Write a result behind what waits; sends what fills a packet, gives the rest."""
        if not result.columns:
            return answer + done(status | COUNTED, result.count)
        answer += columns_of(result)
        encoders = [encoder(as_sent(kind)) for _, kind in result.columns]
        for number, row in enumerate(result.rows):
            if number == cut:
                self._send(answer, is_last=False)
                raise Closed
            answer += b"\xd1" + b"".join(encode(value) for encode, value in zip(encoders, row, strict=True))
            if len(answer) > 20 * PACKET:
                whole = len(answer) // (PACKET - 8) * (PACKET - 8)
                self._send(answer[:whole], is_last=False)
                answer = answer[whole:]
        return answer + done(status | COUNTED, len(result.rows))

    def _attended(self, seconds: float) -> bool:
        """Wait as a slow statement does; say whether the client gave up, which is answered here."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            if select.select([self.request], [], [], left)[0]:
                kind, _ = self._message()
                if kind == ATTENTION:
                    self._send(done(ATTENDED))
                    return True
        return False


def _encryption_of(content: bytes) -> int:
    """Return what a client's PRELOGIN says of encryption."""
    place = 0
    while content[place] != 0xFF:
        token, start, length = struct.unpack(">BHH", content[place : place + 5])
        if token == 1 and length:
            return content[start]
        place += 5
    return NOT_SUPPORTED


def _prelogin(encryption: int) -> bytes:
    """Answer PRELOGIN: version, encryption, no instance, thread, no MARS."""
    options = [(0, b"\x10\0\x10\0\0\0"), (1, bytes([encryption])), (2, b"\0"), (3, b""), (4, b"\0")]
    head, body = b"", b""
    for token, value in options:
        head += struct.pack(">BHH", token, 5 * len(options) + 1 + len(body), len(value))
        body += value
    return head + b"\xff" + body


class Server(socketserver.ThreadingTCPServer):
    """All connections, the databases, the faults."""

    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 64

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.tls = tls
        self.databases: dict[str, Database] = {"app": Database("app"), "master": Database("master")}
        self.faults = Faults()
        super().__init__(("127.0.0.1", 0), Connection)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Report what broke, without ending."""
        with contextlib.suppress(ConnectionError):
            super().handle_error(request, client_address)


def main() -> None:
    """Serve until standard input ends; the first line printed is the port. Arguments: a certificate and its key."""
    server = Server(server_context(*sys.argv[1:]) if sys.argv[1:] else None)
    print(server.server_address[1], flush=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdin.read()
    os._exit(0)  # DuckDB's threads and functions have nothing to save, and tell of leaks at a slower end


if __name__ == "__main__":
    main()
