"""Stores that are busy, or away for a moment: asked again for two minutes, and as they say."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from rivet_resources.destinations import s3_client, stores
from rivet_resources.destinations.azure import Azure
from rivet_resources.destinations.gcs import Gcs
from rivet_resources.destinations.s3 import S3
from rivet_resources.errors import DestinationAuth, DestinationError, DestinationUnreachable, WindowTaken
from rivet_resources.fan_out import given_up, in_threads
from tests.servers.postgres import AZURITE_ACCOUNT, AZURITE_KEY

OFTEN = 7  # more than any client's own tries
# What each store says of an object that is not there, once it says anything.
ABSENT = {
    "s3": (b"<Error><Code>NoSuchKey</Code></Error>", {}),
    "gcs": (b"{}", {}),
    "azure": (b"", {"x-ms-error-code": "BlobNotFound"}),
}
BUSY = {
    "s3": (b"<Error><Code>SlowDown</Code></Error>", {}),
    "gcs": (b"{}", {}),
    "azure": (b"", {"x-ms-error-code": "ServerBusy"}),
}
STATUS: dict[str, int] = {}  # of what is no 404, or no 503


@contextmanager
def answering(kind: str, is_busy: Callable[[int], bool | None]) -> Iterator[tuple[str, list[str]]]:
    """Serve a store that is busy at some requests, counted from 1, and hangs up where it is told None; its address."""
    came: list[str] = []

    class Store(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            came.append(self.path)
            busy = is_busy(len(came))
            if busy is None:
                self.close_connection = True
                return
            content, head = (BUSY if busy else ABSENT)[kind]
            self.send_response(STATUS.get(f"{kind}, busy", 503) if busy else STATUS.get(kind, 404))
            for name, value in {**head, "Content-Length": str(len(content)), "Retry-After": "0"}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        do_HEAD = do_PUT = do_GET

        def log_message(self, format: str, *args: object) -> None:
            """Report nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Store)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", came
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def root(kind: str, address: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Name a place in the store."""
    monkeypatch.setenv("AZURE_KEY", AZURITE_KEY)
    # Cloud Storage's client does not look at `Retry-After`.
    monkeypatch.setattr(stores, "LONGEST_PAUSE_SECONDS", 0.001)
    if kind == "s3":
        return S3(bucket="lake", prefix="p", endpoint=address, allow_anonymous=True).root("t")
    if kind == "gcs":
        return Gcs(bucket="lake", prefix="p", endpoint=address, allow_anonymous=True).root("t")
    keys = {"account": AZURITE_ACCOUNT, "container": "lake", "account_key_env": "AZURE_KEY"}
    return Azure(**keys, endpoint=f"{address}/{AZURITE_ACCOUNT}").root("t")


@pytest.mark.parametrize("kind", ["s3", "gcs", "azure"])
def test_store_that_asks_to_come_back_later_is_asked_until_it_serves(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a run has read for hours is not given up for some seconds of SlowDown."""
    with answering(kind, lambda number: number <= OFTEN) as (address, came):
        found = root(kind, address, monkeypatch).read("x.json")

    assert (None, OFTEN + 1) == (found, len(came))


@pytest.mark.parametrize("kind", ["s3", "gcs", "azure"])
def test_store_that_is_asked_too_much_is_asked_until_it_serves(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """HTTP 429, which Azure's client does not ask again."""
    monkeypatch.setitem(STATUS, f"{kind}, busy", 429)
    with answering(kind, lambda number: number <= OFTEN) as (address, came):
        found = root(kind, address, monkeypatch).read("x.json")

    assert (None, OFTEN + 1) == (found, len(came))


@pytest.mark.parametrize("kind", ["s3", "gcs", "azure"])
def test_store_that_never_serves_is_given_up_by_name(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message says what the store says, for how long, and what may be done."""
    monkeypatch.setattr(stores, "PATIENCE_SECONDS", 0)
    monkeypatch.setattr(s3_client, "TRIES", 1)
    with answering(kind, lambda _: True) as (address, came), pytest.raises(DestinationUnreachable) as caught:
        root(kind, address, monkeypatch).read("x.json")

    assert "asks to come back later" in str(caught.value)
    assert "and did so for 0 s. Run again" in str(caught.value)
    assert len(came) <= 2  # Cloud Storage is asked for the bucket as well


def test_s3_that_was_there_is_waited_for_when_its_lines_break(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is started anew; one that never answered is told at once."""
    with answering("s3", lambda number: None if 1 < number <= 1 + OFTEN else False) as (address, came):
        place = root("s3", address, monkeypatch)
        place.read("x.json")
        place.read("x.json")

    assert OFTEN + 2 == len(came)


UNDECIDED = b"<Error><Code>ConditionalRequestConflict</Code></Error>"


def test_swap_that_another_write_of_ours_still_contends_with_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first try's answer was lost; to give up there would remove parts that its manifest is about to name."""
    monkeypatch.setitem(BUSY, "s3", (UNDECIDED, {}))
    monkeypatch.setitem(STATUS, "s3, busy", 409)
    monkeypatch.setitem(ABSENT, "s3", (b"<Error><Code>PreconditionFailed</Code></Error>", {}))
    with answering("s3", lambda number: number <= OFTEN) as (address, came), pytest.raises(WindowTaken):
        root("s3", address, monkeypatch).swap("x.json", b"{}", expected=None)

    assert OFTEN + 1 == len(came)


def test_bucket_whose_region_is_redirected_in_circles_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client asked for its region until Python's stack was full, and took that for a line that broke."""
    monkeypatch.setitem(ABSENT, "s3", (b"<Error><Code>PermanentRedirect</Code></Error>", {}))
    monkeypatch.setitem(STATUS, "s3", 301)
    with answering("s3", lambda _: False) as (address, came), pytest.raises(DestinationError, match="another region"):
        root("s3", address, monkeypatch).read("x.json")

    assert 2 == len(came)


def test_credentials_that_expired_are_read_anew_by_the_next_request(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A process that lives on finds what somebody signed in with since."""
    file = tmp_path / "credentials"
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setitem(ABSENT, "s3", (b"<Error><Code>ExpiredToken</Code></Error>", {}))
    found = []
    with answering("s3", lambda _: False) as (address, _):
        place = S3(bucket="lake", prefix="p", endpoint=address).root("t")
        for key in ("old", "new"):
            file.write_text(f"[default]\naws_access_key_id = {key}\naws_secret_access_key = x\n")
            found.append(s3_client.connect(place.location)._request_signer._credentials.access_key)
            with pytest.raises(DestinationAuth, match="session token has expired"):
                place.read("x.json")

    assert ["old", "new"] == found


class Signal(BaseException):
    """What a signal raises."""


def test_signal_does_not_wait_for_threads_that_wait_for_a_busy_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """A publish that is told to end must not be killed for the two minutes that its other parts would be tried."""
    with answering("s3", lambda _: True) as (address, came):
        place = root("s3", address, monkeypatch)
        monkeypatch.setattr(stores, "pause_before_try", lambda tries, told=None: 100.0)

        def ask(name: str) -> None:
            if name == "signal":
                while not came:
                    pass
                raise Signal
            place.read(name)

        with pytest.raises(Signal):
            in_threads(ask, ["signal", "x.json"], most=2)

    assert not given_up.is_set()
    assert 1 == len(came)


def test_pause_is_what_the_store_says_and_bounded() -> None:
    """A store that says seconds is believed up to a minute; what is no number is passed over."""
    assert (7.0, 60.0) == (stores.pause_before_try(1, told="7"), stores.pause_before_try(1, told="86400"))
    pauses = [stores.pause_before_try(tries, told="Wed, 21 Oct 2026 07:28:00 GMT") for tries in (1, 3, 99)]

    assert [True] * 3 == [most / 2 <= pause <= most for pause, most in zip(pauses, (1, 4, 20), strict=True)]
