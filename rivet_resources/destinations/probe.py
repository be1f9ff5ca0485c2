"""What a destination can do, proved on the spot: a probe is written, read, swapped under conditions, removed.

Belongs here: the proof, the same for all stores. Not here: judging who signs in (`*_credentials.py`), what an error
means (`*_client.py`).
"""

from __future__ import annotations

import shutil
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Protocol, runtime_checkable

from rivet_resources.contracts.addressing import PROBE
from rivet_resources.contracts.destination import Root
from rivet_resources.contracts.evidence import Finding
from rivet_resources.contracts.messages import Topic
from rivet_resources.destinations.local import LocalRoot
from rivet_resources.errors import DestinationError, RivetError, WindowTaken

# A signature is valid for so long on both sides of its time; S3 itself refuses from 15 minutes on.
# Source: Amazon S3 API Reference, "Error responses", RequestTimeTooSkewed.
SKEW_SECONDS = 300.0
SMALL_BYTES = 1 << 30


@runtime_checkable
class Clocked(Protocol):
    """A place that stamps its answers."""

    def now(self) -> datetime | None:
        """Return its clock, to the second; None when it does not."""


def probe(root: Root) -> Iterator[Finding]:
    """Prove that a place can be written, that its swaps are conditional, and that its clock is near ours.

    Raises:
        DestinationAuth, DestinationTls, BucketMissing, DestinationUnreachable, DestinationError, DiskFull: it cannot
            be written at all.
    """
    if isinstance(root, Topic):
        yield from root.findings()
        return
    root.check()
    yield Finding("write", "ok", "a probe was written, read and removed")
    if not root.keeps_manifests:
        return
    # Where a lock of our own keeps a second writer out.
    if isinstance(root, LocalRoot):
        yield space(root.uri)
        return
    yield _swaps(root)
    if isinstance(root, Clocked):
        yield _clock(root)


def _swaps(root: Root) -> Finding:
    """Swap a probe as manifests are swapped, then wrongly: a store that lets that pass would lose a run's rows."""
    path = f"{PROBE}_{uuid.uuid4().hex[:8]}"
    try:
        version = root.swap(path, b"first", expected=None)
        passed = [_may(root, path, expected=None)]
        root.swap(path, b"second", expected=version)
        passed.append(_may(root, path, expected=version))
    except DestinationError as error:
        fix = "Use a store, or a version of it, that has conditional writes (If-Match, If-None-Match)."
        return Finding("conditional_write", "fail", str(error), fix)
    finally:
        with suppress(RivetError):
            root.delete([path])
    if any(passed):
        text = "the store ignores conditions on writes: two runs of one window could both publish it"
        fix = "Use a store that honours If-Match and If-None-Match; until then let one run at a time write there."
        return Finding("conditional_write", "fail", text, fix)
    return Finding("conditional_write", "ok", "a second writer is refused, as commits need it")


def _may(root: Root, path: str, *, expected: str | None) -> bool:
    try:
        root.swap(path, b"wrong", expected=expected)
    except WindowTaken:
        return False
    return True


def _clock(root: Clocked) -> Finding:
    before = time.time()
    theirs = root.now()
    ours = (before + time.time()) / 2
    if theirs is None:
        return Finding("clock", "ok", "the store does not tell the time")
    skew = theirs.timestamp() - ours
    if abs(skew) < SKEW_SECONDS:
        # The store tells whole seconds.
        return Finding("clock", "ok", f"{abs(skew):.0f} s apart")
    text = f"the store's clock is {abs(skew):.0f} s {'ahead of' if skew > 0 else 'behind'} this machine's"
    return Finding("clock", "warn", text, "Set this machine's clock by NTP: signatures are refused when they look old.")


def space(folder: str, *, name: str = "space") -> Finding:
    """Return the room where a folder is, or will be."""
    place = Path(folder)
    while not place.exists() and place != place.parent:
        place = place.parent
    try:
        free = shutil.disk_usage(place).free
    except OSError as error:
        return Finding(name, "warn", f"{folder}: cannot tell the free space ({error.strerror})")
    text = f"{free / (1 << 30):.1f} GiB free in {place}"
    if free < SMALL_BYTES:
        return Finding(name, "warn", text, f"Free space there, or choose another place than {place}.")
    return Finding(name, "ok", text)
