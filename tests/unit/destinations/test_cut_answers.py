"""An object store's answer that is cut inside its head is a line that broke, and no empty listing."""

from __future__ import annotations

import socket
from typing import Any

import pytest
import requests
from azure.storage.blob import ExponentialRetry

from rivet_resources.conformance.lines import Lines, listening
from rivet_resources.destinations import azure_client, gcs_client, s3_client
from rivet_resources.destinations.azure import Azure
from rivet_resources.destinations.gcs import Gcs
from rivet_resources.destinations.gcs_client import GcsLocation
from rivet_resources.destinations.s3 import S3
from rivet_resources.destinations.stores import is_cut
from rivet_resources.errors import DestinationUnreachable
from tests.servers.postgres import AZURITE_ACCOUNT, AZURITE_KEY

CUT = b"HTTP/1.1 200 OK\r\nDate: Thu, 26 Nov 2026 10:00:00 GM"


def answer_cut(_: Lines, line: socket.socket) -> None:
    """Say the begin of an answer to whatever is asked, and hang up in good order."""
    line.recv(1 << 16)
    line.sendall(CUT)
    line.shutdown(socket.SHUT_WR)
    line.recv(1 << 16)
    line.close()


def s3(port: int) -> Any:
    """A place of S3 at a port."""
    return S3(bucket="lake", prefix="p", endpoint=f"http://127.0.0.1:{port}", allow_anonymous=True).root("t")


def azure(port: int) -> Any:
    """A place of Azure at a port."""
    endpoint = f"http://127.0.0.1:{port}/{AZURITE_ACCOUNT}"
    place = Azure(account=AZURITE_ACCOUNT, container="lake", endpoint=endpoint, account_key_env="AZURE_KEY")
    return place.root("t")


def gcs(port: int) -> Any:
    """A place of Cloud Storage at a port."""
    return Gcs(bucket="lake", prefix="p", endpoint=f"http://127.0.0.1:{port}", allow_anonymous=True).root("t")


@pytest.mark.parametrize("place", [s3, azure])
def test_listing_that_is_cut_is_not_an_empty_one(place: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that takes it for empty sees nothing of what is published, and says success over it."""
    monkeypatch.setattr(s3_client, "CUT_SECONDS", 0.0)
    monkeypatch.setattr(azure_client, "_retries", lambda: ExponentialRetry(retry_total=0))
    monkeypatch.setenv("AZURE_KEY", AZURITE_KEY)
    with listening(answer_cut) as port, pytest.raises(DestinationUnreachable, match="did not answer"):
        place(port).list()


PAGE = b"<html><body>Sign in</body></html>"


def answer_a_page(_: Lines, line: socket.socket) -> None:
    """Show a proxy's page for signing in, whatever is asked."""
    line.recv(1 << 16)
    head = f"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: {len(PAGE)}\r\nConnection: close\r\n\r\n"
    line.sendall(head.encode() + PAGE)
    line.shutdown(socket.SHUT_WR)
    line.close()


@pytest.mark.parametrize("place", [s3, azure, gcs])
def test_page_of_somebody_else_is_no_empty_listing(place: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between us and the store a proxy may answer everything with HTML, and HTTP 200."""
    monkeypatch.setattr(s3_client, "CUT_SECONDS", 0.0)
    monkeypatch.setattr(gcs_client, "RETRY_SECONDS", 0)
    monkeypatch.setattr(azure_client, "_retries", lambda: ExponentialRetry(retry_total=0))
    monkeypatch.setenv("AZURE_KEY", AZURITE_KEY)
    with listening(answer_a_page) as port, pytest.raises(DestinationUnreachable):
        place(port).list()


def test_session_of_cloud_storage_takes_a_cut_answer_for_a_broken_line() -> None:
    """The client's own retries, which take seconds, then ask again."""
    with listening(answer_cut) as port:
        client = gcs_client.connect(GcsLocation("lake", endpoint=f"http://127.0.0.1:{port}", is_anonymous=True))
        with pytest.raises(requests.ConnectionError, match="cut inside its head"):
            client._http.get(f"http://127.0.0.1:{port}/storage/v1/b/lake/o")


def test_object_whose_answer_is_cut_is_not_taken_for_read_or_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """S3 tells of each what it holds, so an answer without that word is none."""
    monkeypatch.setattr(s3_client, "CUT_SECONDS", 0.0)
    with listening(answer_cut) as port:
        for ask in (lambda: s3(port).read("x"), lambda: s3(port).put("x", b"x")):
            with pytest.raises(DestinationUnreachable, match="did not answer"):
                ask()


class _Raw:
    version = 10


def test_answer_that_may_end_with_its_line_is_whole() -> None:
    """HTTP/1.0 has no other end; 204 has no bytes; a piece has its length."""
    assert not is_cut(200, {"Date": "x"}, _Raw())
    assert not is_cut(204, {}, None)
    assert not is_cut(206, {"Content-Length": "3"}, None)
    assert not is_cut(200, {"transfer-encoding": "chunked"}, None)
    assert is_cut(200, {"Date": "x"}, None)
