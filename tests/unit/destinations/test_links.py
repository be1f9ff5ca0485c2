"""Symbolic links in a local destination: nothing is touched behind one that leads out of it."""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from rivet_resources.contracts.parts import Part
from rivet_resources.destinations.local import LocalRoot
from rivet_resources.errors import DestinationError

RUN = "orders_20260131T120000.123_abc123"


@pytest.fixture
def root(tmp_path: Path) -> LocalRoot:
    """An export's folder beside a folder of somebody else with a file and a folder in it."""
    (tmp_path / "lake/orders").mkdir(parents=True)
    (tmp_path / "victim/sub").mkdir(parents=True)
    (tmp_path / "victim/sub/f.txt").write_text("theirs")
    (tmp_path / "victim/all.json").write_text("theirs")
    return LocalRoot(str(tmp_path / "lake/orders"), "orders")


def link(root: LocalRoot, name: str, target: str = "../../victim") -> Path:
    """Put a link into the export's folder."""
    place = Path(root.uri, name)
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(target if name.count("/") == 0 else f"../{target}")
    return place


def contents(root: LocalRoot) -> dict[str, str]:
    """Read what somebody else has."""
    victim = Path(root.uri).parents[1] / "victim"
    return {str(path.relative_to(victim)): path.read_text() for path in victim.rglob("*") if path.is_file()}


def staged(root: LocalRoot, path: str) -> Part:
    """Stage one file."""
    file = Path(root.uri).parents[1] / "part.parquet"
    file.write_bytes(b"rows")
    md5 = base64.b64encode(hashlib.md5(b"rows").digest()).decode()
    return Part(path, 1, 4, "xxh3:0", md5, root.stage(file, run_id=RUN, path=path, md5=md5))


ACTS: dict[str, tuple[str, Callable[[LocalRoot], object]]] = {
    "sweep": ("_staged", lambda root: root.sweep(keep=())),
    "staged_runs": ("_staged", lambda root: root.staged_runs()),
    "stage": ("_staged", lambda root: staged(root, "a.parquet")),
    "publish": ("dt=1", lambda root: root.publish(staged(root, "dt=1/a.parquet"))),
    "list manifests": ("_rivet", lambda root: root.list("_rivet/")),
    "swap": ("_rivet", lambda root: root.swap("_rivet/all.json", b"{}", expected=None)),
    "put": ("dt=1", lambda root: root.put("dt=1/_SUCCESS", b"")),
    "read": ("dt=1", lambda root: root.read("dt=1/all.json")),
    "open": ("dt=1", lambda root: root.open("dt=1/all.json")),
    "delete": ("dt=1", lambda root: root.delete(["dt=1/all.json"])),
    "a manifest that is a link": ("_rivet/all.json", lambda root: root.read("_rivet/all.json")),
    "a lock that is a link": ("_rivet/.lock", lambda root: root.swap("_rivet/b.json", b"{}", expected=None)),
    "a part that is a link": ("a.parquet", lambda root: root.open("a.parquet")),
    "a part for those who read by name": ("a.parquet", lambda root: root.local_path("a.parquet")),
}  # fmt: skip


@pytest.mark.parametrize("act", ACTS)
def test_link_that_leads_out_is_refused_and_nothing_behind_it_touched(root: LocalRoot, act: str) -> None:
    """Whatever is asked of the folder, the message names the link and what to do."""
    name, work = ACTS[act]
    place = link(root, name, "../../victim/all.json" if "." in name else "../../victim")
    before = contents(root)

    with pytest.raises(DestinationError, match=r"is a symbolic link, which .* Remove the link") as refused:
        work(root)

    assert str(place) in str(refused.value)
    assert before == contents(root)


def test_link_in_place_of_what_a_run_staged_is_removed_and_nothing_behind_it(root: LocalRoot) -> None:
    """One level deeper a sweep takes the link itself for a leftover."""
    place = link(root, f"_staged/{RUN}")

    assert 1 == root.sweep(keep=())
    assert not os.path.lexists(place)
    assert {"sub/f.txt", "all.json"} == contents(root).keys()


def test_staged_part_that_became_a_link_is_not_published(root: LocalRoot) -> None:
    """Else readers would be led to what Rivet did not write."""
    part = staged(root, "a.parquet")
    place = Path(root.uri, part.staged["path"])
    place.unlink()
    place.symlink_to("../../../../victim/all.json")

    with pytest.raises(DestinationError, match="not the part that was staged"):
        root.publish(part)


def test_removing_a_link_leaves_what_it_leads_to(root: LocalRoot) -> None:
    """A part that somebody replaced by a link goes with its window; the file behind it stays."""
    place = link(root, "a.parquet", "../../victim/all.json")

    root.delete(["a.parquet"])

    assert (False, "theirs") == (os.path.lexists(place), contents(root)["all.json"])


def test_listing_shows_a_link_as_an_entry_and_never_what_lies_behind(root: LocalRoot) -> None:
    """A link to a folder is not walked; one to a file has its own size, so that it is taken for no part."""
    link(root, "dt=1")
    place = link(root, "a.parquet", "../../victim/all.json")

    assert {"a.parquet": place.lstat().st_size} == root.list()


@pytest.mark.parametrize("path", ["../../victim/all.json", "/etc/hostname", "dt=1/../../../victim/all.json", ""])
def test_path_that_leads_out_is_refused_by_the_folder_itself(root: LocalRoot, path: str) -> None:
    """Even where nobody looked before."""
    for act in (root.read, root.open, lambda path: root.delete([path]), lambda path: root.put(path, b"")):
        with pytest.raises(DestinationError, match="leads out of this folder"):
            act(path)

    assert {"sub/f.txt", "all.json"} == contents(root).keys()


def test_links_on_the_way_to_the_folder_and_inside_it_are_followed(root: LocalRoot, tmp_path: Path) -> None:
    """The destination may lie behind a link, and a folder of it may have moved to another one of it."""
    (tmp_path / "shortcut").symlink_to("lake")
    through = LocalRoot(str(tmp_path / "shortcut/orders"), "orders")
    Path(root.uri, "real").mkdir()
    link(root, "dt=1", "real")

    through.publish(staged(through, "dt=1/a.parquet"))

    assert b"rows" == root.open("dt=1/a.parquet").read()
    assert root.read("real/a.parquet") is not None
