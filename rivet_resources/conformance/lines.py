"""Servers for one test, of this package's and of Rivet's own: lines that break, fall silent, or are refused.

Belongs here: accepting, passing on, ending; a proxy that a test makes silent, or takes away; each connection has a
thread of its own, and all of it ends with the block. Not here: what is said over a line, which the test writes.

    with proxied("postgresql://rivet@db.test:5432/shop") as (line, url):
        line.down()  # who connects to `url` is refused, until line.up()
"""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from urllib.parse import parse_qs, urlencode, urlsplit, urlunsplit

END_SECONDS = 10


class Lines:
    """The connections and threads of one server."""

    def __init__(self) -> None:
        self.sockets: list[socket.socket] = []
        self.threads: list[threading.Thread] = []

    def start(self, act: Callable[..., object], *given: object) -> None:
        """Run this in a thread; a line that breaks ends it without a word."""

        def run() -> None:
            with suppress(OSError):
                act(*given)

        self.threads.append(threading.Thread(target=run, daemon=True, name="test-line"))
        self.threads[-1].start()

    def connect(self, host: str, port: int) -> socket.socket:
        """Connect to the server behind; a host that is a folder has PostgreSQL's Unix socket."""
        if host.startswith("/"):
            line = socket.socket(socket.AF_UNIX)
            line.connect(f"{host}/.s.PGSQL.{port}")
        else:
            line = socket.create_connection((host, port))
        self.sockets.append(line)
        return line

    def end(self) -> None:
        """Close every connection, and wait for every thread."""
        for each in self.sockets:
            hang_up(each)
        for thread in self.threads:
            thread.join(END_SECONDS)
        if any(thread.is_alive() for thread in self.threads):
            raise RuntimeError(f"a line did not end within {END_SECONDS} s")


@contextmanager
def listening(serve: Callable[[Lines, socket.socket], object]) -> Iterator[int]:
    """Call `serve(lines, connection)` for each who connects, until the block ends; the port on 127.0.0.1."""
    lines, listener = Lines(), socket.create_server(("127.0.0.1", 0))

    def accept() -> None:
        while True:
            near, _ = listener.accept()
            lines.sockets.append(near)
            lines.start(serve, lines, near)

    lines.start(accept)
    try:
        yield listener.getsockname()[1]
    finally:
        hang_up(listener)  # closing alone would let the waiting `accept` take one more
        lines.threads[0].join(END_SECONDS)
        lines.end()


# --- a proxy -------------------------------------------------------------------------------------


@dataclass
class Proxy:
    """Lines to a server that a test makes silent, resets, or takes away; all of them at once, new ones too."""

    host: str  # of the server; a folder for a Unix socket
    port: int
    silent_at: bytes = b""  # what a client says just before silence
    reset_at: bytes = b""  # what a client says just before every line is reset, once
    silent_after: int = 0  # bytes from the server, counted from now on
    front: int = 0  # the port of ours
    at: str = "127.0.0.1"  # our address
    _lines: Lines = field(default_factory=Lines)
    _listener: socket.socket | None = None
    _speaks: threading.Event = field(default_factory=threading.Event)

    def up(self) -> None:
        """Listen, at the same port as before."""
        self._speaks.set()
        self._listener = socket.create_server((self.at, self.front))
        self.front = self._listener.getsockname()[1]
        self._lines.start(self._accept, self._listener)

    def down(self) -> None:
        """Reset every line, and refuse new ones."""
        if self._listener is not None:
            hang_up(self._listener)
        self._listener = None
        self.reset()

    def reset(self) -> None:
        """Reset every line, as a server that died does; new ones come through."""
        for line in self._lines.sockets:
            with suppress(OSError):
                line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            hang_up(line)
        self._lines.sockets.clear()

    def silence(self) -> None:
        """Pass nothing on any more, in neither direction; lines stay, and new ones are taken."""
        self._speaks.clear()

    def speak(self) -> None:
        """Pass everything on again."""
        self.silent_at, self.silent_after = b"", 0
        self._speaks.set()

    @property
    def is_silent(self) -> bool:
        """Return whether it passes nothing on."""
        return not self._speaks.is_set()

    def end(self) -> None:
        """End all of it."""
        self.down()
        self._speaks.set()
        self._lines.end()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            near, _ = listener.accept()
            self._lines.sockets.append(near)
            try:
                far = self._lines.connect(self.host, self.port)
            except OSError:
                hang_up(near)
                continue
            self._lines.start(self._pass_on, near, far, True)
            self._lines.start(self._pass_on, far, near, False)

    def _pass_on(self, source: socket.socket, sink: socket.socket, asks: bool) -> None:
        try:
            while block := source.recv(65536):
                if asks and self.reset_at and self.reset_at in block:
                    self.reset_at = b""
                    self.reset()
                if asks and self.silent_at and self.silent_at in block:
                    self.silence()
                if not asks and self.silent_after:
                    self.silent_after -= min(len(block), self.silent_after)
                    if not self.silent_after:
                        self.silence()
                self._speaks.wait()
                sink.sendall(block)
        finally:
            self._speaks.wait()  # who is silent does not hang up either
            hang_up(source)
            hang_up(sink)


@contextmanager
def proxied(url: str) -> Iterator[tuple[Proxy, str]]:
    """Put a proxy before the server of a URL; it, and the URL that leads through it."""
    parts = urlsplit(url)
    query = {name: values[0] for name, values in parse_qs(parts.query).items()}
    folder = query.pop("host", "")
    proxy = Proxy(folder or parts.hostname or "", int(query.pop("port", 0)) or parts.port or 5432)
    proxy.up()
    user = parts.netloc.rpartition("@")[0]
    netloc = f"{user}@127.0.0.1:{proxy.front}" if user else f"127.0.0.1:{proxy.front}"
    try:
        yield proxy, urlunsplit(parts._replace(netloc=netloc, query=urlencode(query)))
    finally:
        proxy.end()


def hang_up(line: socket.socket) -> None:
    """End a line for whoever waits on either side of it."""
    with suppress(OSError):
        line.shutdown(socket.SHUT_RDWR)
    line.close()
