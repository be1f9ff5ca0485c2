"""A TCP server for one test: each connection in a thread of its own, and with the block all of it ends.

Belongs here: accepting, passing on, ending. Not here: what is said over the line (the tests: a proxy that cuts it, a
pooler that refuses).
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

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
        """Connect to the server behind."""
        self.sockets.append(socket.create_connection((host, port)))
        return self.sockets[-1]

    def end(self) -> None:
        """Close every connection, and wait for every thread."""
        for each in self.sockets:
            hang_up(each)
        for thread in self.threads:
            thread.join(END_SECONDS)
        assert [] == [thread.name for thread in self.threads if thread.is_alive()]


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


def hang_up(line: socket.socket) -> None:
    """End a line for whoever waits on either side of it."""
    with suppress(OSError):
        line.shutdown(socket.SHUT_RDWR)
    line.close()
