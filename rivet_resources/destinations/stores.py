"""What every destination says and proves alike, whatever it is made of.

Belongs here: sentences without anything of one store in them, and the probe of a place. Not here: which code of a store
means what (`*_client.py`), how its objects are written (s3.py, gcs.py, local.py).
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from rivet_resources.contracts.addressing import PROBE
from rivet_resources.contracts.destination import Root
from rivet_resources.errors import DestinationError, DestinationTls, DestinationUnreachable, WindowTaken
from rivet_resources.tls_faults import tls_fault

# A store that asks to come back later, and one that has answered this process and is away, is asked for so long: what a
# run has read for hours is not given up for a storm of SlowDown, which Amazon's own take minutes to scale out of.
PATIENCE_SECONDS = 120.0
LONGEST_PAUSE_SECONDS, LONGEST_TOLD_SECONDS = 20.0, 60.0


def pause_before_try(tries: int, *, told: str | None = None) -> float:
    """Return the seconds to wait before a request is sent again, which was sent `tries` times.

    Args:
        told: the answer's `Retry-After`; a date, which stores do not send, is passed over.
    """
    if told is not None and told.strip().isdecimal():
        return min(LONGEST_TOLD_SECONDS, float(told))
    # Not the same for all: whoever was sent away at one moment should not come back at one moment.
    return min(LONGEST_PAUSE_SECONDS, 2.0 ** min(tries - 1, 9)) * random.uniform(0.5, 1.0)


def asked_later(where: str, code: str) -> DestinationUnreachable:
    """Return the fault of a store that asked to come back later for as long as it was asked."""
    return DestinationUnreachable(
        f"{where}: the store asks to come back later ({code}), and did so for {PATIENCE_SECONDS:.0f} s. Run again; if "
        f"it stays, run less at once (`parallel`, `--pool`), or ask the store's owner about its limits."
    )


def window_taken(uri: str, path: str) -> WindowTaken:
    """Return the fault of a swap that somebody else was faster at."""
    return WindowTaken(f"{uri}/{path} was written by another run since this one was planned. Run again.")


def silent(error: BaseException, *, where: str, store: str, tls_advice: str, look_at: str) -> DestinationError:
    """Return the fault of a line that broke: its TLS was refused, or nobody answered.

    Args:
        where: place and action: `s3://lake/orders: cannot write x`.
        store: its endpoint, or its name.
        look_at: keys of the destination that may be wrong.
    """
    # Google's retries keep the cause beside the error.
    line = tls_fault(f"{error} {getattr(error, 'cause', '')}")
    if line is not None:
        return DestinationTls(f"{where}: {store} answers, but {line.why}. {tls_advice}")
    return DestinationUnreachable(
        f"{where}: {store} did not answer ({type(error).__name__}). "
        f"Check {look_at} and the network; the run may be repeated."
    )


def is_cut(status: int, head: Mapping[str, str], raw: Any) -> bool:
    """Return whether an answer was cut inside its head: it has bytes, but no word on how many.

    Python takes the end of a line for the end of the head, and clients a body without a length for an empty one: a
    listing that is cut there has no objects, and readers would take what is published for not there.

    Args:
        raw: urllib3's answer; one of HTTP/1.0 may end with its line.
    """
    names = {name.lower() for name in head}
    return (
        status in (200, 206)
        and getattr(raw, "version", 11) >= 11
        and not names & {"content-length", "transfer-encoding"}
    )


def refuse_cut(answer: Any, *_: Any, **__: Any) -> None:
    """Hook of a session of `requests`: raise for an answer that was cut what a broken line raises.

    Raises:
        requests.ConnectionError
    """
    import requests  # start

    if is_cut(answer.status_code, answer.headers, answer.raw):
        raise requests.ConnectionError("the answer was cut inside its head")


def prove_writable(root: Root, *, thing: str, look_at: str) -> None:
    """Write, read and remove a probe.

    Raises:
        DestinationError: what was written cannot be read, or whatever the place raises.
    """
    root.put(PROBE, b"rivet")
    if root.read(PROBE) is None:
        raise DestinationError(f"{root.uri}: {thing} just written cannot be read back. Check the {look_at}.")
    root.delete([PROBE])
