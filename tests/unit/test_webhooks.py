"""Messages to webhooks: what arrives, and what is said when it does not."""

from __future__ import annotations

import hashlib
import hmac
import json
import socket
import threading
from pathlib import Path

import pytest

from rivet_resources import webhooks
from rivet_resources.webhooks import Message, Unanswered, refused_address, send, send_all
from tests.servers.mysql import make_certificates
from tests.servers.receiver import STAYS_SILENT, receiver

BODY = {"event": "failure", "export": "Größen"}


def message(url: str, **more: object) -> Message:
    """Address BODY."""
    return Message("webhook", url, BODY, **more)  # type: ignore[arg-type]


def test_message_arrives_as_json_with_its_headers() -> None:
    """One POST of UTF-8 JSON, with the headers of the block."""
    with receiver() as server:
        told = send(message(server.url, headers={"X-Token": "abc"}))

    assert ("", [BODY]) == (told, server.bodies)
    assert ("application/json; charset=utf-8", "abc") == (
        server.headers[0]["Content-Type"],
        server.headers[0]["X-Token"],
    )


def test_signature_is_over_the_very_bytes() -> None:
    """Whoever has the key can prove that the body is ours and unchanged."""
    with receiver() as server:
        send(message(server.url, secret="key"))

    expected = hmac.new(b"key", server.raw[0], hashlib.sha256).hexdigest()
    assert f"sha256={expected}" == server.headers[0]["X-Rivet-Signature"]
    assert BODY == json.loads(server.raw[0])


@pytest.mark.parametrize(
    ("statuses", "told", "tries"),
    [
        ((204,), "", 1),
        ((500, 200), "", 2),
        ((503, 503, 200), "HTTP 503", 2),
        ((429, 200), "", 2),
        ((404, 200), "HTTP 404", 1),
    ],
)
def test_only_what_may_pass_is_tried_once_more(statuses: tuple[int, ...], told: str, tries: int) -> None:
    """A server's passing fault gets a second try and no third; a refusal gets none."""
    with receiver(*statuses) as server:
        answer = send(message(server.url), pause_seconds=0)

    assert (told, tries) == (answer, len(server.raw))


def test_redirect_is_not_followed() -> None:
    """A message goes to the address that was written down, and nowhere else."""
    with receiver() as elsewhere, receiver(307, location=elsewhere.url) as server:
        told = send(message(server.url))

    assert "redirect" in told
    assert [] == elsewhere.raw


def test_silent_server_costs_the_timeout_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """No answer is two timeouts, then one line."""
    monkeypatch.setattr(webhooks, "TIMEOUT_SECONDS", 0.2)
    with receiver(STAYS_SILENT) as server:
        told = send(message(server.url), pause_seconds=0)

    assert told.startswith("no answer within")
    assert 2 == len(server.raw)


def test_all_messages_together_have_one_limit_of_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that hang are given up together; those that arrived are not mentioned."""
    monkeypatch.setattr(webhooks, "PATIENCE_SECONDS", 4)  # a busy machine is no silent server
    with receiver(STAYS_SILENT) as silent, receiver() as server:
        told = send_all([message(silent.url), message(server.url), message(silent.url)])

    assert 2 == len(told)
    assert all(line.startswith("webhook was not told: no answer") for line in told)
    assert [BODY] == server.bodies


def test_closed_port_is_told_by_kind() -> None:
    """Nobody listens: the class of the fault, without the address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/hunter2"

    assert "it cannot be reached (ConnectionRefusedError)" == send(message(url), pause_seconds=0)


def test_certificate_must_be_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A certificate of an unknown authority gets nothing; with the authority known, the message arrives."""
    make_certificates(tmp_path / "tls")
    with receiver(certificate=tmp_path / "tls") as server:
        refused = send(message(server.url), pause_seconds=0)
        before = len(server.raw)
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "tls" / "ca.pem"))
        accepted = send(message(server.url), pause_seconds=0)

    assert refused.startswith("its certificate is not trusted")
    assert ("", 0, [BODY]) == (accepted, before, server.bodies)


@pytest.mark.parametrize(
    "url", ["https://hooks.slack.com/x", "http://127.0.0.1:8080/x", "http://[::1]/", "http://localhost"]
)
def test_https_and_this_machine_are_fine(url: str) -> None:
    """Nobody on the way can read these."""
    assert "" == refused_address(url)


@pytest.mark.parametrize(
    "url",
    [
        "http://hooks.example.com/hunter2", "ftp://x/hunter2", "hunter2", "http://10.0.0.1/hunter2",
        "https://[::1/hunter2", "https://h:hunter2/",
    ],
)  # fmt: skip
def test_other_addresses_get_nothing_and_are_not_repeated(url: str) -> None:
    """The refusal says why, and never the address, which is a secret."""
    told = send_all([message(url)])

    assert 1 == len(told)
    assert told[0].startswith("webhook was not told: its address is ")
    assert "hunter2" not in told[0]


def test_faults_never_repeat_an_address_or_a_key() -> None:
    """Neither what is said of a failure nor the message's own representation shows a secret."""
    with receiver(500) as server:
        sent = message(server.url, secret="hunter2", headers={"X-Token": "hunter2"})
        told = send_all([sent], pause_seconds=0)

    assert ["webhook was not told: HTTP 500"] == told
    assert "hunter2" not in repr(sent) + "".join(told)


def test_receiver_that_hangs_keeps_no_other_one_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fifty messages wait for one webhook at night; the one beside them that somebody sleeps by goes out."""
    monkeypatch.setattr(webhooks, "AT_ONCE", 1)
    paged, heard = threading.Event(), list[bool]()
    hanging = Message("others (hangs)", "", BODY, by=lambda _: heard.append(paged.wait(3)))
    pager = Message("others (pager)", "", BODY, by=lambda _: paged.set())

    told = send_all([hanging, hanging, pager])

    assert ([], [True, True]) == (told, heard)


def test_what_was_told_as_not_sent_is_not_sent_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread that hung ends when it comes back: a code server has one for each message else."""
    monkeypatch.setattr(webhooks, "AT_ONCE", 1)
    monkeypatch.setattr(webhooks, "PATIENCE_SECONDS", 0.05)
    gate, threads = threading.Event(), list[threading.Thread]()

    def hangs(_: object) -> None:
        threads.append(threading.current_thread())
        gate.wait(30)

    told = send_all([Message("others (hangs)", "", BODY, by=hangs)] * 3)
    gate.set()
    threads[0].join(30)

    assert (3, 1) == (len(told), len(threads))


def test_run_does_not_wait_twice_for_a_receiver_that_gave_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hundreds of exports that recover in one run would each wait for it."""
    monkeypatch.setattr(webhooks, "TIMEOUT_SECONDS", 0.2)
    unanswered = Unanswered()
    with receiver(STAYS_SILENT) as silent, receiver() as server:
        send_all([message(silent.url)], pause_seconds=0, unanswered=unanswered)
        tried = len(silent.raw)
        told = send_all([message(silent.url), message(server.url)], unanswered=unanswered)

    assert ["webhook was not told: it gave no answer before, and this run does not ask it again"] == told
    assert (tried, [BODY]) == (len(silent.raw), server.bodies)
    assert silent.url not in repr(unanswered)
