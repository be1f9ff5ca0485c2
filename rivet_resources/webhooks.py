"""Posting JSON to people's webhooks: bounded in time, quiet when it fails.

Belongs here: which addresses are taken, one request, one more try, many at once. Not here: when there is something to
tell and in which words (`rivet_assets/notify/messages.py`).

Threads are daemons: a silent server keeps no process alive.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import queue
import ssl
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http.client import HTTPException
from ipaddress import ip_address
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, HTTPSHandler, OpenerDirector, ProxyHandler, Request, build_opener

TIMEOUT_SECONDS = 10.0  # `contract.md`, 1.7
PATIENCE_SECONDS = 25.0  # for all messages of one occasion, second tries included
PAUSE_SECONDS = 1.0  # before the second try
AT_ONCE = 8
# Answers after which the same message may be taken; every other one but 2xx is final. Source: RFC 9110, 15.5 and 15.6;
# RFC 6585, section 4.
PASSING = frozenset({408, 429, 500, 502, 503, 504})
SIGNATURE = "X-Rivet-Signature"
NO_ANSWER = "no answer"
PASSED_OVER = "it gave no answer before, and this run does not ask it again"


@dataclass(frozen=True)
class Message:
    """One POST. `name` is the YAML key it comes from, for people; `secret` signs the body.

    `by`: who sends it instead, a package's notifier.
    """

    name: str
    url: str = field(repr=False)
    body: Mapping[str, Any]
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    secret: str | None = field(default=None, repr=False)
    by: Callable[[Mapping[str, Any]], None] | None = field(default=None, repr=False)

    @property
    def receiver(self) -> tuple[str, str]:
        """Return who gets it; not to be shown, since an address is a secret."""
        return self.name, self.url


def refused_address(url: str) -> str:
    """Return why nothing is sent to an address; '' when it is fine: https, or http to this machine."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
        _ = parts.port
    except ValueError:
        return "is not an address; write https://host/path"
    if not host or parts.scheme not in ("http", "https"):
        return "is not an address; write https://host/path"
    if parts.scheme == "http" and not _is_loopback(host):
        return "is plain http to another machine, where everyone on the way could read it; write https://"
    return ""


@dataclass
class Unanswered:
    """Receivers that gave no answer in one run: whoever sends its next message does not wait for them again."""

    receivers: set[tuple[str, str]] = field(default_factory=set, repr=False)


def send_all(
    messages: Sequence[Message], *, pause_seconds: float = PAUSE_SECONDS, unanswered: Unanswered | None = None
) -> list[str]:
    """Post messages, several at once; give a line for each that did not arrive, in their order. Never raises.

    Takes `PATIENCE_SECONDS` at most; whatever has no answer by then counts as not arrived, and what waits is not sent.

    Args:
        unanswered: of the run; its receivers are passed over, and those that are silent now are added.
    """
    passed_over = unanswered.receivers if unanswered is not None else set()
    # By receiver: one that is silent keeps its own messages waiting, and nobody else's.
    waiting: dict[tuple[str, str], queue.SimpleQueue[tuple[int, Message]]] = {}
    answers: queue.SimpleQueue[tuple[int, str]] = queue.SimpleQueue()
    for place, message in enumerate(messages):
        if message.receiver in passed_over:
            answers.put((place, PASSED_OVER))
        else:
            waiting.setdefault(message.receiver, queue.SimpleQueue()).put((place, message))
    until = time.monotonic() + PATIENCE_SECONDS

    def work(mine: queue.SimpleQueue[tuple[int, Message]]) -> None:
        # Not beyond: what nobody waits for was told as not sent, and the threads of a code server would pile up.
        while time.monotonic() < until:
            try:
                place, message = mine.get_nowait()
            except queue.Empty:
                return
            answers.put((place, send(message, pause_seconds=pause_seconds)))

    for mine in waiting.values():
        for _ in range(min(AT_ONCE, mine.qsize())):
            threading.Thread(target=work, args=[mine], name="rivet-webhook", daemon=True).start()
    told = dict.fromkeys(range(len(messages)), f"{NO_ANSWER} within {PATIENCE_SECONDS:.0f} s")
    for _ in messages:
        try:
            place, answer = answers.get(timeout=max(0.0, until - time.monotonic()))
        except queue.Empty:
            break
        told[place] = answer
    passed_over |= {messages[place].receiver for place, answer in told.items() if answer.startswith(NO_ANSWER)}
    # By the key in the YAML: a webhook's address is a secret, and every library's own text may hold it.
    return [f"{messages[place].name} was not told: {answer}" for place, answer in told.items() if answer]


def send(message: Message, *, pause_seconds: float = PAUSE_SECONDS) -> str:
    """Post a message, a second time when that may help; '' when it arrived, else why not. Never raises."""
    refused = "" if message.by is not None else refused_address(message.url)
    if refused:
        return f"its address {refused}"
    try:
        if message.by is not None:
            # Tried once: only it knows whether a second time tells twice.
            message.by(message.body)
            return ""
        told, may_pass = _post(message)
        if told and may_pass:
            time.sleep(pause_seconds)
            told, _ = _post(message)
    except Exception as error:
        # A fault of ours, or of a server's answer, must not end an export.
        return type(error).__name__
    return told


def _post(message: Message) -> tuple[str, bool]:
    """Post once: ('', False) on 2xx, else what went wrong, and whether it may pass."""
    body = json.dumps(dict(message.body), ensure_ascii=False).encode()
    headers = {"Content-Type": "application/json; charset=utf-8", "User-Agent": "rivet", **message.headers}
    if message.secret is not None:
        headers[SIGNATURE] = f"sha256={hmac.new(message.secret.encode(), body, hashlib.sha256).hexdigest()}"
    try:
        with _opener(message.url).open(Request(message.url, body, headers), timeout=TIMEOUT_SECONDS) as answer:
            status = answer.status
    except HTTPError as error:
        error.close()
        status = error.code
    except (URLError, HTTPException, OSError) as error:
        return _words(error)
    if 200 <= status < 300:
        return "", False
    if 300 <= status < 400:
        return f"HTTP {status}, a redirect, which is not followed; write the final address", False
    return f"HTTP {status}", status in PASSING


def _words(error: Exception) -> tuple[str, bool]:
    """Return what kind of fault it was; texts of libraries may hold the address."""
    reason = getattr(error, "reason", error)
    if isinstance(reason, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted ({reason.verify_message})", False
    if isinstance(reason, TimeoutError):
        return f"{NO_ANSWER} within {TIMEOUT_SECONDS:.0f} s", True
    return f"it cannot be reached ({type(reason).__name__})", True


def _opener(url: str) -> OpenerDirector:
    # A proxy would see another host.
    here = [ProxyHandler({})] if _is_loopback(urlsplit(url).hostname or "") else []
    return build_opener(_StayHere(), HTTPSHandler(context=ssl.create_default_context()), *here)


# Redirects are not followed, since they could carry a message anywhere.
class _StayHere(HTTPRedirectHandler):
    """Follows no redirect."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        """Leave the answer as it is."""
        return None


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False
