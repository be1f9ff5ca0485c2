"""A window that continues a chain looks at little of its folder, and must see what whoever reads all of it sees.

The folders are of any kind an older Rivet, a death, two runs at once or a hand may have left: windows of all kinds
beside each other, hidden ones among them.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rivet_resources.commit import listing
from rivet_resources.commit.manifest import (
    Manifest,
    build_manifest,
    current_manifests,
    manifest_path,
    read_manifest,
    window_manifest,
)
from rivet_resources.commit.manifest_entries import Superseded
from rivet_resources.commit.publish import publish
from rivet_resources.commit.remembered import Remembered
from rivet_resources.contracts.extract import CursorMove, Staged, Window
from rivet_resources.errors import RivetError
from tests.fakes import extract_of
from tests.faults.one_run import stage
from tests.unit.commit.test_manifest import Notebook, TellingRoot, day

MODES = {"all": "full", "after": "incremental", "time": "time_window", "value": "full", "snapshot": "full"}
# Names that come before those of a chain, between the two kinds of them, and behind.
STRANGERS = (
    "2026-01-05", "2026-01-05|city=Rome", "account=7", "after-hours=7", "city=Rome", "snapshot=2026-01-05", "all",
)  # fmt: skip
Story = tuple[list[int], list[tuple[str, bool]], bool, str, int]


@dataclass
class Folder:
    """A folder of manifests that name no parts; which numbers each window has is kept beside it."""

    path: Path
    rows: dict[str, range] = field(default_factory=dict)  # by run
    runs: int = 0

    @property
    def root(self) -> TellingRoot:
        """Address it as a store whose listings tell versions."""
        return TellingRoot(uri=str(self.path), export="orders")

    def staged(self, key: str, low: int | None, high: int) -> Staged:
        """Stage the numbers behind `low` up to `high`."""
        self.runs += 1
        window = day(5) if key == "2026-01-05" else Window(key)
        empty = extract_of(pa.table({"id": pa.array([], pa.int64())}), self.path)
        run_id = f"orders_run_{self.runs:06x}"
        extract = replace(empty, window=window, run_id=run_id, mode=MODES[window.kind], skip_empty=False)
        if window.kind == "after":
            extract = replace(extract, cursor=CursorMove(None if low is None else str(low), str(high), "id"))
        self.rows[extract.run_id] = range((low or 0) + 1, high + 1)
        return stage(extract, self.root, first=1, last=0, parts=0)

    def place(
        self, key: str, low: int | None, high: int, *, hides: tuple[Superseded, ...] = (), is_alone: bool = False
    ) -> Manifest:
        """Write a window's manifest without asking what is there."""
        manifest = build_manifest(self.staged(key, low, high), (), supersedes=hides, is_alone=is_alone)
        self.root.put(manifest.path, manifest.content)
        return manifest

    def shown(self) -> list[int]:
        """Return what a reader of all manifests sees."""
        return sorted(row for each in current_manifests(self.root).values() for row in self.rows[each.run_id])

    def publish(self, staged: Staged, seen: Remembered | None) -> str:
        """Publish a window; the name of what refused it."""
        low = staged.extract.cursor.low if staged.extract.cursor else None
        try:
            publish(staged, root=self.root, state=Notebook(cursor=low), seen=seen)
        except RivetError as error:
            return type(error).__name__
        return ""


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    """An empty one."""
    return Folder(tmp_path)


def chain(folder: Folder, *ends: int, is_alone: bool = False) -> list[Manifest]:
    """Place windows that end there, one behind the other."""
    lows = (None, *ends)
    return [
        folder.place("after=start" if low is None else f"after={low}", low, high, is_alone=is_alone)
        for low, high in zip(lows, ends, strict=False)
    ]


def planned(folder: Folder, low: int, high: int) -> tuple[Staged, Remembered]:
    """Stage a window that begins at `low`, as a run does that knows the last one of its chain."""
    seen = Remembered(folder.root)
    read_manifest(seen, path_of_end(folder, low))
    return folder.staged(f"after={low}", low, high), seen


def path_of_end(folder: Folder, end: int) -> str:
    """Name the manifest of the window that ends there; of none that is there: any."""
    found = [path for path in folder.root.list("_rivet/") if _ends(folder, path) == str(end)]
    return next(iter(found), "_rivet/none.json")


def _ends(folder: Folder, path: str) -> str | None:
    found = json.loads((folder.path / path).read_bytes()) if path.endswith(".json") else {}
    return (found.get("cursor") or {}).get("high")


def noted_in(asked: list[str]) -> Callable[..., dict[str, str | None]]:
    """Return a listing that notes where it begins."""
    ask = TellingRoot.list_after

    def list_after(root: TellingRoot, path: str, *, most: int) -> dict[str, str | None]:
        asked.append(path)
        return ask(root, path, most=most)

    return list_after


# --- single cases ----------------------------------------------------------------------------------


@pytest.mark.parametrize("many", [1, 2, 1000])
@pytest.mark.parametrize("stranger", STRANGERS)
def test_windows_of_time_beside_a_chain_are_seen(
    folder: Folder, stranger: str, many: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And those of values, snapshots and full exports, wherever their names sort; what comes would show rows twice."""
    monkeypatch.setattr(listing, "MANY", many)
    chain(folder, 3, 5)
    folder.place(stranger, 0, 9)
    staged, seen = planned(folder, 5, 7)

    assert "WindowConflict" == folder.publish(staged, seen)


@pytest.mark.parametrize("stranger", STRANGERS)
def test_hidden_windows_beside_a_chain_are_none(folder: Folder, stranger: str) -> None:
    """A run died before it removed what its chain replaced."""
    hidden = folder.place(stranger, 0, 3)
    folder.place("after=start", None, 3, hides=(hidden.entry,))
    staged, seen = planned(folder, 3, 5)

    assert "" == folder.publish(staged, seen)
    assert [1, 2, 3, 4, 5] == folder.shown()


def test_windows_of_other_kinds_are_looked_for_once(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    """A chain that was found alone stays so, for windows of other kinds refuse to come; its manifests say it."""
    monkeypatch.setattr(listing, "MANY", 2)
    chain(folder, 1, 2, 3, 4)

    alone = []
    for low in (4, 5, 6):
        staged, seen = planned(folder, low, low + 1)
        asked = list[str]()
        with monkeypatch.context() as noting:
            noting.setattr(TellingRoot, "list_after", noted_in(asked))
            assert "" == folder.publish(staged, seen)
        alone.append(len(asked))

    assert [5, 2, 2] == alone
    found = window_manifest(folder.root, Window("after=6"))
    assert found is not None
    assert found[0].is_alone
    assert '"alone": true' in found[0].content.decode()


def test_first_window_of_a_chain_does_not_say_that_it_is_alone(folder: Folder) -> None:
    """A window of time that came at the same instant may not have been there yet."""
    staged = folder.staged("after=start", None, 3)

    assert "" == folder.publish(staged, Remembered(folder.root))
    found = window_manifest(folder.root, Window("after=start"))
    assert found is not None
    assert not found[0].is_alone


def test_chain_that_was_joined_while_a_run_read_is_not_continued(folder: Folder) -> None:
    """The run began behind 5; others committed two windows more meanwhile, and all were joined and tidied up."""
    chain(folder, 3, 5, is_alone=True)
    staged, seen = planned(folder, 5, 7)
    folder.place("after=3", 3, 8, is_alone=True)
    folder.place("after=8", 8, 9, is_alone=True)
    folder.root.put(listing.JOINED, b"x")

    assert "WindowConflict" == folder.publish(staged, seen)
    assert list(range(1, 10)) == folder.shown()


def test_chain_that_began_anew_while_a_run_read_is_not_continued(folder: Folder) -> None:
    """After a reset, which replaced the window before."""
    chain(folder, 3, 5, is_alone=True)
    staged, seen = planned(folder, 5, 7)
    folder.root.delete([manifest_path(Window("after=3"))])
    folder.place("after=start", None, 6)

    assert "WindowConflict" == folder.publish(staged, seen)
    assert list(range(1, 7)) == folder.shown()


# --- any folder ------------------------------------------------------------------------------------

MEANWHILE = ("", "full", "joined", "anew", "ours", "day")


@st.composite
def stories(draw: st.DrawFn) -> Story:
    """Return where windows of a chain end, what else is there and whether it is hidden, what comes meanwhile."""
    ends = draw(st.lists(st.integers(1, 12), min_size=1, max_size=4, unique=True).map(sorted))
    strangers = st.tuples(st.sampled_from(STRANGERS), st.booleans())
    others = draw(st.lists(strangers, max_size=2, unique_by=lambda each: each[0]))
    # Only what replaces a chain comes beside one that was found alone: the rest was refused.
    is_marked = draw(st.booleans()) and all(key == "all" for key, _ in others)
    meanwhile = draw(st.sampled_from([each for each in MEANWHILE if each != "day" or not is_marked]))
    return ends, others, is_marked, meanwhile, draw(st.sampled_from([1, 2, 3, 1000]))


def tell(folder: Folder, story: Story) -> tuple[Staged, Remembered]:
    """Make the folder of a story, with a window that was planned before the last of it."""
    ends, others, is_marked, meanwhile, _ = story
    placed = [(folder.place(key, 0, 3), is_hidden) for key, is_hidden in others]
    hides = tuple(manifest.entry for manifest, is_hidden in placed if is_hidden)
    folder.place("after=start", None, ends[0], hides=hides)
    for low, high in pairwise(ends):
        folder.place(f"after={low}", low, high, is_alone=is_marked)
    last = ends[-1]
    staged, seen = planned(folder, last, last + 2)
    first = "after=start" if len(ends) == 1 else f"after={ends[-2]}"
    if meanwhile == "full":
        folder.place("all", 0, last + 1)
    if meanwhile == "joined":
        folder.root.put(listing.JOINED, b"x")
        folder.place(first, ends[-2] if len(ends) > 1 else None, last + 3)
    if meanwhile == "anew":
        folder.root.delete([manifest_path(Window(f"after={each}")) for each in ends])
        folder.place("after=start", None, last + 1)
    if meanwhile == "ours":
        folder.place(f"after={last}", last, last + 1)
    if meanwhile == "day":
        folder.place("2026-01-05", 0, 2)
    return staged, seen


@settings(max_examples=60, deadline=None)
@given(story=stories())
def test_what_a_run_looks_at_is_enough_to_judge_any_folder(story: Story) -> None:
    """Beside the same folder whoever lists all of it refuses no more, and commits nothing else."""
    with (
        tempfile.TemporaryDirectory() as one,
        tempfile.TemporaryDirectory() as other,
        pytest.MonkeyPatch.context() as patch,
    ):
        folders = Folder(Path(one)), Folder(Path(other))
        told = [tell(folder, story) for folder in folders]
        twice = len(folders[0].shown()) - len(set(folders[0].shown()))
        patch.setattr(listing, "MANY", story[-1])
        quick = folders[0].publish(*told[0])
        patch.setattr(listing, "MANY", 1000)
        slow = folders[1].publish(told[1][0], None)
        shown = folders[0].shown(), folders[1].shown()

    if slow or not quick:
        assert (bool(slow), shown[1]) == (bool(quick), shown[0])
    # What the slow way lets through and the quick one refuses was replaced since the run had read it.
    else:
        assert story[3] in ("joined", "anew")
    assert quick or len(shown[0]) - len(set(shown[0])) == twice
