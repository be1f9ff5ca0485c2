"""What a window has read of its place is not read again, and what changed since is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest

from rivet_resources.commit.remembered import MOST_HELD, Remembered


@dataclass
class Store:
    """A store in memory that lists versions, and counts what it is asked to read."""

    objects: dict[str, tuple[bytes, str]] = field(default_factory=dict)
    reads: list[str] = field(default_factory=list)
    uri: str = "s3://lake/orders"
    keeps_manifests: bool = True
    tells: bool = True

    def put(self, path: str, content: bytes) -> None:
        """Write a new version."""
        self.objects[path] = content, f'"{len(content)}-{len(self.objects)}-{content!r}"'

    def read(self, path: str) -> tuple[bytes, str] | None:
        """Read, and count."""
        self.reads.append(path)
        return self.objects.get(path)

    def list(self, prefix: str = "") -> dict[str, int]:
        """List all."""
        return {path: len(content) for path, (content, _) in self.objects.items()}

    def list_after(self, path: str, *, most: int) -> Mapping[str, str | None]:
        """List what follows."""
        found = sorted(each for each in self.objects if each > path)[:most]
        return {each: self.objects[each][1] if self.tells else None for each in found}


@pytest.fixture
def store() -> Store:
    """A store with three windows."""
    made = Store()
    for name in "abc":
        made.put(f"_rivet/{name}.json", name.encode())
    return made


def test_object_is_read_once_while_listings_tell_the_same_version(store: Store) -> None:
    """From the plan of a window to its commit."""
    seen = Remembered(store)
    seen.list_after("_rivet/", most=10)
    first = seen.read("_rivet/a.json")
    seen.look_again()
    seen.list_after("_rivet/", most=10)

    assert first == seen.read("_rivet/a.json")
    assert ["_rivet/a.json"] == store.reads


def test_object_that_another_run_wrote_is_read_again(store: Store) -> None:
    """The listing tells its new version."""
    seen = Remembered(store)
    seen.list_after("_rivet/", most=10)
    seen.read("_rivet/a.json")
    store.put("_rivet/a.json", b"theirs")
    seen.look_again()
    seen.list_after("_rivet/", most=10)

    assert store.objects["_rivet/a.json"] == seen.read("_rivet/a.json")


def test_object_that_no_listing_names_is_not_asked_for(store: Store) -> None:
    """What a listing of its span does not name is not there; beyond the span nobody knows."""
    seen = Remembered(store)
    seen.list_after("_rivet/", most=2)

    assert seen.read("_rivet/a2.json") is None
    assert [] == store.reads
    assert store.objects["_rivet/c.json"] == seen.read("_rivet/c.json")
    assert seen.read("_rivet/d.json") is None
    assert seen.read("manifest.json") is None
    assert ["_rivet/c.json", "_rivet/d.json", "manifest.json"] == store.reads


def test_object_that_was_removed_is_gone(store: Store) -> None:
    """As by a retention between the plan of a window and its commit."""
    seen = Remembered(store)
    seen.list_after("_rivet/", most=10)
    seen.read("_rivet/a.json")
    del store.objects["_rivet/a.json"]
    seen.look_again()
    seen.list_after("_rivet/", most=10)

    assert seen.read("_rivet/a.json") is None


def test_absence_is_forgotten_with_the_listings(store: Store) -> None:
    """Another run may have committed the window since."""
    seen = Remembered(store)
    seen.list_after("_rivet/", most=10)
    assert seen.read("_rivet/d.json") is None
    store.put("_rivet/d.json", b"theirs")
    seen.look_again()

    assert store.objects["_rivet/d.json"] == seen.read("_rivet/d.json")


def test_place_whose_listings_tell_no_version_is_always_read(store: Store) -> None:
    """As a folder on a disk."""
    store.tells = False
    seen = Remembered(store)
    seen.list_after("_rivet/", most=10)
    seen.read("_rivet/a.json")
    seen.read("_rivet/a.json")

    assert 2 == len(store.reads)


def test_memory_is_bounded(store: Store) -> None:
    """A window that replaces thousands reads each of them, and keeps few."""
    seen = Remembered(store)
    names = [f"_rivet/{number:04}.json" for number in range(3 * MOST_HELD)]
    for name in names:
        store.put(name, b"1")
        seen.read(name)

    assert MOST_HELD == len(seen._held)
