"""What every destination promises; each check takes an empty place and a folder for scratch files.

Belongs here: what commits rely on. Not here: what single stores do besides.
"""

from __future__ import annotations

import base64
import hashlib
import io
import pickle
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

from rivet_resources.conformance.promises import PromiseBroken, hold
from rivet_resources.contracts.addressing import PROBE
from rivet_resources.contracts.destination import Destination, Root
from rivet_resources.contracts.parts import Part
from rivet_resources.errors import DestinationError, PartCorrupt, WindowTaken

EXPORT = "orders"
RUN, OTHER_RUN = "orders_20260131T120000.000_aaaaaa", "orders_20260131T120000.000_bbbbbb"
NAME = "dt=2026-01-31/orders_20260131_120000_000_aaaaaa.parquet"
OTHER_NAME = NAME.replace("aaaaaa", "bbbbbb")
MANIFEST = "_rivet/all.json"


def _stage(root: Root, folder: Path, content: bytes = b"rows", *, run_id: str = RUN, path: str = NAME) -> Part:
    file = folder / f"{uuid.uuid4().hex}.part"
    file.write_bytes(content)
    md5 = base64.b64encode(hashlib.md5(content, usedforsecurity=False).digest()).decode()
    return Part(path, 1, len(content), "xxh3:0", md5, root.stage(file, run_id=run_id, path=path, md5=md5))


def staged_parts_are_invisible(destination: Destination, folder: Path) -> None:
    """Readers see nothing of a staged part, all of a published one, and publishing again changes nothing."""
    root = destination.root(EXPORT)
    part = _stage(root, folder)
    hold(root.list() == {} and root.read(NAME) is None, "a staged part is seen by nobody")
    hold(not any(folder.glob("*.part")), "staging takes the local file away")
    hold(root.staged_exists(part), "a staged part is found again")
    for _ in range(2):
        root.publish(part)
        hold(root.list() == {NAME: 4}, "a published part is listed with its size, and nothing else is")
    hold(root.staged_exists(part), "a part that was published counts as there for a run that is repeated")
    hold(root.open(NAME).read() == b"rows", "a published part has the bytes that were staged")
    hold(root.sweep(keep=()) == 0, "nothing is left staged behind a published part")


def discarded_parts_are_gone(destination: Destination, folder: Path) -> None:
    """Discarding may be repeated, and what was discarded cannot be published."""
    root = destination.root(EXPORT)
    part = _stage(root, folder)
    for _ in range(2):
        root.discard([part])
    hold(not root.staged_exists(part), "a discarded part is not found again")
    try:
        root.publish(part)
    except (DestinationError, PartCorrupt):
        return
    raise PromiseBroken("publishing a part that was discarded raises DestinationError or PartCorrupt")


def attempts_do_not_meet(destination: Destination, folder: Path) -> None:
    """Two attempts stage one final name: the published one wins, the other can be discarded."""
    root = destination.root(EXPORT)
    first, second = _stage(root, folder, b"first"), _stage(root, folder, b"second")
    root.publish(second)
    root.discard([first])
    hold(root.open(NAME).read() == b"second", "discarding another attempt leaves the published one alone")


def parts_can_be_read_in_ranges(destination: Destination, folder: Path) -> None:
    """A part of several requests is whole, and can be sought in."""
    root = destination.root(EXPORT)
    content = hashlib.sha256(b"rivet").digest() * (9 << 15)  # 9 MiB
    root.publish(_stage(root, folder, content))
    with root.open(NAME) as stream:
        stream.seek(-7, io.SEEK_END)
        tail = stream.read()
        stream.seek(0)
        hold((tail, stream.read()) == (content[-7:], content), "an opened part can be sought in and read whole")


def swaps_are_fenced(destination: Destination, folder: Path) -> None:
    """A swap writes over the version it knows, and over no other; a version that is gone is another one."""
    root = destination.root(EXPORT)
    first = root.swap(MANIFEST, b"1", expected=None)
    second = root.swap(MANIFEST, b"2", expected=first)
    hold(root.read(MANIFEST) == (b"2", second), "`read` returns the content with the version that `swap` returned")
    for stale in (None, first):
        _refused(root, stale)
    root.delete([MANIFEST])
    _refused(root, second)
    hold(root.read(MANIFEST) is None, "a swap that was refused writes nothing")


def _refused(root: Root, expected: str | None) -> None:
    try:
        root.swap(MANIFEST, b"3", expected=expected)
    except WindowTaken:
        return
    raise PromiseBroken("a swap that knows another version than stands there raises WindowTaken")


def small_objects_are_replaced_and_removed(destination: Destination, folder: Path) -> None:
    """`put` writes over what stands there; removing what is not there is fine; staged and dot names are not listed."""
    root = destination.root(EXPORT)
    for content in (b"1", b"22"):
        root.put("_SUCCESS", content)
    root.put("_rivet/.lock", b"1")
    root.put(f"_staged/{RUN}/x", b"1")
    hold(root.list() == {"_SUCCESS": 2}, "`list` shows what is visible, and hides `_staged/` and dot names")
    hold(root.list("nowhere/") == {}, "a listing of nothing is empty")
    root.delete(["_SUCCESS", "never-there"])
    hold(root.read("_SUCCESS") is None, "what was removed is gone")


def listings_go_on_and_tell_versions(destination: Destination, folder: Path) -> None:
    """`list_after` names what follows a path in its folder, in order, each with its version as `read` has it, or None.

    A run goes by it: what a listing does not name is not there, and what has the version of before is not read again.
    """
    root = destination.root(EXPORT)
    for name in ("b.json", "a.json", "c.json"):
        root.put(f"_rivet/{name}", name.encode())
    found = root.list_after("_rivet/a.json", most=100)
    hold(list(found) == ["_rivet/b.json", "_rivet/c.json"], "`list_after` names what follows a path, in order")
    hold(list(root.list_after("_rivet/", most=1)) == ["_rivet/a.json"], "`list_after` names at most so many")
    for path, version in found.items():
        there = root.read(path)
        hold(
            version is None or (there is not None and there[1] == version),
            "`list_after` tells the version that `read` returns, or None",
        )


def sweeps_spare_living_runs(destination: Destination, folder: Path) -> None:
    """What other runs staged goes; what kept runs staged can still be published; whom to keep is asked last."""
    root = destination.root(EXPORT)
    kept, lost = _stage(root, folder), _stage(root, folder, run_id=OTHER_RUN, path=OTHER_NAME)
    hold(root.staged_runs() == {RUN, OTHER_RUN}, "`staged_runs` names the runs that have something staged")
    late: list[Part] = []

    def names() -> Iterator[str]:
        late.append(_stage(root, folder, run_id="orders_20260131T120000.000_cccccc", path=NAME.replace("aaa", "ccc")))
        yield RUN

    hold(root.sweep(keep=names()) >= 1, "a sweep says how much it removed")
    hold(not root.staged_exists(lost), "what a dead run staged is swept")
    hold(root.staged_exists(late[0]), "a sweep lists before it asks whom to keep: a run that begins loses nothing")
    root.publish(kept)
    hold(root.list() == {NAME: 4}, "what a kept run staged can be published")


def places_travel_and_can_be_proved(destination: Destination, folder: Path) -> None:
    """Block and root are plain values that pickle, also after use; `check` leaves nothing behind."""
    root = destination.root(EXPORT)
    root.check()
    hold(root.read(PROBE) is None, "`check` removes its probe")
    hold(pickle.loads(pickle.dumps(destination)) == destination, "a destination comes out of a pickle as it went in")
    hold(pickle.loads(pickle.dumps(root)) == root, "a root comes out of a pickle as it went in")


DESTINATION_PROMISES: tuple[Callable[[Destination, Path], None], ...] = (
    staged_parts_are_invisible,
    discarded_parts_are_gone,
    attempts_do_not_meet,
    parts_can_be_read_in_ranges,
    swaps_are_fenced,
    small_objects_are_replaced_and_removed,
    listings_go_on_and_tell_versions,
    sweeps_spare_living_runs,
    places_travel_and_can_be_proved,
)
