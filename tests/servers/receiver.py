"""A web server that takes webhooks: keeps what came, and answers as it is told to."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

STAYS_SILENT = -1  # as a status: the connection stays open, and no answer comes


@dataclass
class Receiver:
    """What came, and the statuses to answer with: each once, the last one for ever."""

    url: str = ""
    statuses: list[int] = field(default_factory=lambda: [200])
    raw: list[bytes] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    closing: threading.Event = field(default_factory=threading.Event)

    @property
    def bodies(self) -> list[Any]:
        """Read what came as JSON."""
        return [json.loads(body) for body in self.raw]


@contextmanager
def receiver(*statuses: int, certificate: Path | None = None, location: str = "") -> Iterator[Receiver]:
    """Serve on a free port of this machine; `certificate` (a folder with server.pem and server.key) makes it https."""
    kept = Receiver(statuses=list(statuses) or [200])

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            kept.raw.append(self.rfile.read(int(self.headers["Content-Length"])))
            kept.headers.append(dict(self.headers))
            kept.paths.append(self.path)
            status = kept.statuses.pop(0) if len(kept.statuses) > 1 else kept.statuses[0]
            if status == STAYS_SILENT:
                kept.closing.wait(60)
                return
            self.send_response(status)
            if location:
                self.send_header("Location", location)
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_GET = do_POST

        def log_message(self, *_: Any) -> None:
            """Report nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.handle_error = lambda *_: None  # type: ignore[method-assign]  # refused handshakes are what tests want
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate / "server.pem", certificate / "server.key")
        server.socket = context.wrap_socket(server.socket, server_side=True)
    kept.url = f"{'https' if certificate else 'http'}://127.0.0.1:{server.server_port}/hook/hunter2"
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    try:
        yield kept
    finally:
        kept.closing.set()
        server.shutdown()
        server.server_close()
