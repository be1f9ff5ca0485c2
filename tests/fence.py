"""A proxy before an object store of the tests: one request at a time, and the answers of the real ones.

Why: moto checks `If-Match` and writes in two steps, so two threads can both pass, and answers 500 where an upload that
is gone is to be completed; the GCS emulator ignores `ifGenerationMatch`; Azurite knows no `Put Blob From URL`. The real
stores do none of these. The proxies add exactly that and pass all else through.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, quote, unquote, urlsplit


@contextmanager
def fenced(endpoint: str) -> Iterator[str]:
    """Serve a proxy before `endpoint`; its own endpoint."""
    with serving(endpoint, Fence) as address:
        yield address


@contextmanager
def taking(endpoint: str, *, account: str, key: str, untold: bool = False) -> Iterator[str]:
    """Serve a proxy before Azurite that writes blobs out of others; its own endpoint.

    Args:
        untold: it does not tell the MD5 of what it wrote.
    """
    about = {"account": account, "key": key, "untold": untold}
    with serving(endpoint, type("Bound", (TakesBlobs,), about)) as address:
        yield f"{address}/{account}"


@contextmanager
def serving(endpoint: str, kind: type[Fence]) -> Iterator[str]:
    """Serve a kind of proxy before a store; its own address."""
    bound = type("Bound", (kind,), {"upstream": urlsplit(endpoint).netloc, "lock": threading.Lock()})
    server = ThreadingHTTPServer(("127.0.0.1", 0), bound)
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
        told = {name.lower(): value for name, value in headers.items()}.get("content-length")
        length = told if self.command == "HEAD" and told is not None else str(len(content))
        self.send_header("Content-Length", length)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Report nothing."""

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = do_PATCH = forward


class TakesBlobs(Fence):
    """Knows `Put Blob From URL`, too: the blob is read with what the request names for that, which Azurite checks.

    Source: Microsoft Learn, "Put Blob From URL".
    """

    account: str
    key: str
    untold: bool

    def ask(self, method: str, path: str, body: bytes, headers: dict[str, str]) -> tuple[int, dict[str, str], bytes]:
        """Pass it on, or write a blob out of another one."""
        told = {name.lower(): value for name, value in headers.items()}
        if method != "PUT" or "x-ms-copy-source" not in told or "x-ms-requires-sync" in told:
            return super().ask(method, path, body, headers)
        source = urlsplit(told["x-ms-copy-source"])
        rights = {"Authorization": told.get("x-ms-copy-source-authorization", "")}
        about = {"x-ms-version": told["x-ms-version"], **{name: value for name, value in rights.items() if value}}
        status, _, content = super().ask("GET", f"{source.path}?{source.query}", b"", about)
        if status != 200:
            return status, {"x-ms-error-code": "CannotVerifyCopySource"}, b""
        md5 = base64.b64encode(hashlib.md5(content).digest()).decode()
        if told.get("x-ms-source-content-md5", md5) != md5:
            return 400, {"x-ms-error-code": "Md5Mismatch"}, b""
        status, answer, content = self.write(path, content, told)
        return status, answer | ({} if self.untold else {"Content-MD5": md5}), content

    def write(self, path: str, content: bytes, told: dict[str, str]) -> tuple[int, dict[str, str], bytes]:
        """Write a blob, signed by the account's key."""
        from azure.storage.blob import BlobSasPermissions, generate_blob_sas

        container, _, blob = unquote(urlsplit(path).path).removeprefix(f"/{self.account}/").partition("/")
        rights = generate_blob_sas(
            self.account, container, blob, account_key=self.key, expiry=datetime.now(UTC) + timedelta(hours=1),
            permission=BlobSasPermissions(write=True, create=True),
        )  # fmt: skip
        # Without the MD5 to keep, which Azurite compares and Azure does not; it keeps the one it computed.
        kept = ("x-ms-version", "x-ms-blob-type")
        headers = {name: told[name] for name in kept if name in told} | {"Content-Length": str(len(content))}
        status, answer, said = super().ask("PUT", f"{urlsplit(path).path}?{rights}", content, headers)
        return status, {name: value for name, value in answer.items() if name.lower() != "content-md5"}, said


def metadata_of(body: bytes) -> bytes:
    """Cut the JSON part out of a multipart upload."""
    match = re.search(rb"\r\n\r\n(\{.*?\})\r\n--", body, re.DOTALL)
    return match[1] if match else b"{}"
