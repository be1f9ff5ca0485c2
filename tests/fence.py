"""A proxy before an object store of the tests: one request at a time, and the answers of the real ones.

Why: moto checks `If-Match` and writes in two steps, so two threads can both pass, and answers 500 where an upload that
is gone is to be completed; the GCS emulator ignores `ifGenerationMatch`. The real stores do none of these. The proxy
adds exactly that and passes all else through.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, quote, urlsplit


@contextmanager
def fenced(endpoint: str) -> Iterator[str]:
    """Serve a proxy before `endpoint`; its own endpoint."""

    class Bound(Fence):
        upstream = urlsplit(endpoint).netloc
        lock = threading.Lock()

    server = ThreadingHTTPServer(("127.0.0.1", 0), Bound)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


class Fence(BaseHTTPRequestHandler):
    """Passes requests on under one lock."""

    upstream: str
    lock: threading.Lock
    protocol_version = "HTTP/1.1"

    def forward(self) -> None:
        """Check the precondition, if there is one, and pass the request on."""
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        with self.lock:
            wanted = parse_qs(urlsplit(self.path).query).get("ifGenerationMatch")
            if self.command == "POST" and wanted and wanted[0] != self.generation(body):
                return self.answer(412, {}, json.dumps({"error": {"code": 412, "message": "conditionNotMet"}}).encode())
            status, headers, content = self.ask(self.command, self.path, body, dict(self.headers.items()))
        if status == 500 and self.command == "POST" and "uploadId" in parse_qs(urlsplit(self.path).query):
            return self.answer(404, {}, b"<Error><Code>NoSuchUpload</Code></Error>")
        self.answer(status, headers, content)

    def generation(self, body: bytes) -> str:
        """Ask the emulator for the generation of the object that an upload names; 0 when absent."""
        bucket = re.search(r"/b/([^/]+)/o", self.path)
        name = parse_qs(urlsplit(self.path).query).get("name") or [json.loads(metadata_of(body))["name"]]
        assert bucket is not None
        status, _, content = self.ask("GET", f"/storage/v1/b/{bucket[1]}/o/{quote(name[0], safe='')}", b"", {})
        return json.loads(content)["generation"] if status == 200 else "0"

    def ask(self, method: str, path: str, body: bytes, headers: dict[str, str]) -> tuple[int, dict[str, str], bytes]:
        """Make the request upstream."""
        connection = HTTPConnection(self.upstream)
        connection.request(method, path, body=body, headers=headers)
        response = connection.getresponse()
        content = response.read()
        connection.close()
        return response.status, dict(response.getheaders()), content

    def answer(self, status: int, headers: dict[str, str], content: bytes) -> None:
        """Answer the client."""
        self.send_response(status)
        for name, value in headers.items():
            if name.lower() not in ("transfer-encoding", "connection", "content-length", "date", "server"):
                self.send_header(name, value)
        length = headers.get("Content-Length", str(len(content))) if self.command == "HEAD" else str(len(content))
        self.send_header("Content-Length", length)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Report nothing."""

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = do_PATCH = forward


def metadata_of(body: bytes) -> bytes:
    """Cut the JSON part out of a multipart upload."""
    match = re.search(rb"\r\n\r\n(\{.*?\})\r\n--", body, re.DOTALL)
    return match[1] if match else b"{}"
