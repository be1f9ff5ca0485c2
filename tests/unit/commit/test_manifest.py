"""Manifests: what they hold, which are current, where the cursor stands, and which a new one replaces."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from rivet_resources.commit.chain import resolve_cursor
from rivet_resources.commit.listing import first_paths
from rivet_resources.commit.manifest import (
    Manifest,
    build_manifest,
    current_manifests,
    parse,
    read_manifests,
    schema_fingerprint,
    schema_of,
    success_marker,
    window_manifest,
)
from rivet_resources.commit.publish import discard, publish, sweep, sweep_if_due
from rivet_resources.commit.remembered import Remembered
from rivet_resources.contracts.extract import CursorMove, Extract, Staged, Window
from rivet_resources.contracts.parts import Measures
from rivet_resources.contracts.rows.boundary import Boundary
from rivet_resources.destinations.local import Local, LocalRoot
from rivet_resources.errors import ManifestUnreadable, StateError, WindowConflict, WindowTaken
from rivet_resources.prove.replace_chunks import stale_markers
from rivet_resources.prove.validate import validate
from tests.fakes import extract_of
from tests.faults.one_run import committed, stage

MIDNIGHT = datetime(2026, 1, 1, tzinfo=UTC)
ALL = Window("all")


@dataclass
class Notebook:
    """A state store in memory, with the order in which it was told things."""

    live: set[str] = field(default_factory=set)
    resumable: set[str] = field(default_factory=set)
    cursor: str | None = None
    commits: list[str] = field(default_factory=list)
    failed: int = 0
    swept: dict[str, int] = field(default_factory=dict)
    looked: bool = False

    def advance_cursor(
        self, export: str, value: str, *, expected: str | None, visit: int = 0, boundary: Boundary | None = None
    ) -> None:
        """Compare and set."""
        if self.cursor not in (expected, value):
            raise StateError(f"The cursor of {export} was moved.")
        self.cursor = value

    def record_commit(self, manifest: Manifest) -> None:
        """Note the run."""
        self.commits.append(manifest.run_id)

    def live_runs(self, export: str) -> set[str]:
        """Name who lives."""
        return self.live

    def known_runs(self, export: str) -> set[str]:
        """Name who was ever recorded."""
        return self.live | self.resumable | set(self.commits)

    def resumable_runs(self, export: str) -> set[str]:
        """Name whose chunks count."""
        return self.resumable

    def failures_to_sweep(self, export: str, place: str) -> int | None:
        """Count runs that did not end well since the last look at a place."""
        return self.failed if self.swept.get(place, -1) < self.failed else None

    def note_sweep(self, export: str, place: str, *, failures: int) -> None:
        """Note a look."""
        self.swept[place] = failures
        self.looked = True

    def is_look_due(self, export: str) -> bool:
        """Tell whether a day went by."""
        return not self.looked

    def note_look(self, export: str) -> None:
        """Note a look at what is staged."""
        self.looked = True


class TellingRoot(LocalRoot):
    """A folder whose listings tell versions, as those of object stores do."""

    def list_after(self, path: str, *, most: int) -> dict[str, str | None]:
        """List with versions."""
        found = {each: self.read(each) for each in super().list_after(path, most=most)}
        return {each: content[1] for each, content in found.items() if content is not None}


@dataclass
class Lake:
    """One export's folder, its state, and runs numbered from 1."""

    folder: Path
    state: Notebook = field(default_factory=Notebook)
    runs: int = 0
    remembers: bool = False  # as a run does on an object store, from its plan to its commit
    seen: dict[str, Remembered] = field(default_factory=dict)  # by run

    @property
    def root(self) -> LocalRoot:
        """Address the export."""
        root = Local(path=str(self.folder)).root("orders")
        if not self.remembers:
            return root
        return TellingRoot(**{field.name: getattr(root, field.name) for field in fields(root)})

    def stage(self, window: Window, first: int, last: int, **changes: object) -> Staged:
        """Stage the numbers of a window under a new run id."""
        self.runs += 1
        empty = extract_of(pa.table({"id": pa.array([], pa.int64())}), self.folder)
        extract: Extract = replace(
            empty, destination=Local(path=str(self.folder)), window=window, run_id=f"orders_run_{self.runs:06x}",
            mode={"all": "full", "after": "incremental", "time": "time_window"}[window.kind], **changes,
        )  # fmt: skip
        if self.remembers:
            seen = self.seen[extract.run_id] = Remembered(self.root)
            read_manifests(seen, first_paths(seen).paths)
        return stage(extract, self.root, first=first, last=last)

    def publish(self, staged: Staged, step: Callable[[str], None] = lambda name: None) -> Manifest | None:
        """Publish with this lake's state."""
        seen = self.seen.get(staged.extract.run_id)
        return publish(staged, root=self.root, state=self.state, step=step, seen=seen)

    def commit(self, window: Window, first: int, last: int, **changes: object) -> Manifest:
        """Stage and publish."""
        manifest = self.publish(self.stage(window, first, last, **changes))
        assert manifest is not None
        return manifest

    def after(self, low: int | None, high: int) -> Manifest:
        """Commit an increment."""
        key, first = ("after=start", 1) if low is None else (f"after={low}", low + 1)
        move = CursorMove(None if low is None else str(low), str(high), "id")
        return self.commit(Window(key), first, high, cursor=move)

    def windows(self) -> set[str]:
        """Name the current windows."""
        return set(current_manifests(self.root))

    def rows(self) -> list[int]:
        """Read what a reader sees."""
        return committed(self.root)

    def parts(self) -> list[str]:
        """List what a plain glob sees."""
        return sorted(path for path in self.root.list() if path.endswith(".parquet"))


@pytest.fixture(params=["listed at once", "listed in pieces", "remembered"])
def lake(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lake:
    """An empty one, also as if it had so many manifests that only those near a window are listed, and as runs see it.

    Then each has looked at all there is when it was planned, and what changed until it commits must count.
    """
    if request.param == "listed in pieces":
        monkeypatch.setattr("rivet_resources.commit.listing.MANY", 1)
    return Lake(tmp_path, remembers=request.param == "remembered")


def day(number: int, days: int = 1) -> Window:
    """Name a window of some days of January 2026."""
    start = MIDNIGHT + timedelta(days=number - 1)
    return Window(f"{start:%Y-%m-%d}", start, start + timedelta(days=days), f"dt={start:%Y-%m-%d}")


# --- what a manifest holds -----------------------------------------------------------------------


def test_manifest_has_the_names_of_the_original(lake: Lake) -> None:
    """Fields of `contract.md` 12.1 and ours, with the facts of the run."""
    lake.after(None, 3)

    found = json.loads((lake.folder / "orders/_rivet/after=start.json").read_bytes())

    assert {
        "manifest_version", "run_id", "export_name", "export_family", "mode", "started_at", "finished_at", "status",
        "window", "window_start", "window_end", "window_folder", "window_excludes", "cursor", "consistency",
        "source", "destination",
        "format",
        "compression", "schema_fingerprint", "schema_ipc", "row_count", "part_count", "parts", "measures", "supersedes",
        "column_checksums", "checksum_render", "checksum_key_column", "row_hash", "split_window", "applied", "chunks",
    } == set(found)  # fmt: skip
    assert (1, "orders", "batch", "success") == tuple(
        found[key] for key in ("manifest_version", "export_name", "mode", "status")
    )
    assert {"column": "id", "low": None, "high": "3"} == found["cursor"]
    assert ("main", "orders") == (found["source"]["schema"], found["source"]["table"])
    assert "incremental" == found["source"]["extraction"]["strategy"]
    assert (3, 2) == (found["row_count"], found["part_count"])


def test_success_marker_is_the_hash_of_the_exact_bytes() -> None:
    """The vector of `contract.md` 12.1."""
    assert b"xxh3:1349cde127705c16\n" == success_marker(b"{}")


def found_by_the_original(folder: Path) -> list[tuple[str, str]]:
    """Validate as the original's `rivet validate --depth full` does: each part beside `manifest.json`, size and MD5."""
    content = (folder / "manifest.json").read_bytes()
    faults = [] if success_marker(content) == (folder / "_SUCCESS").read_bytes() else [("_SUCCESS", "stale")]
    for part in json.loads(content)["parts"]:
        file = folder / part["path"]
        if not file.is_file():
            faults.append((part["path"], "missing"))
        elif file.stat().st_size != part["size_bytes"]:
            faults.append((part["path"], "size"))
        elif base64.b64encode(hashlib.md5(file.read_bytes()).digest()).decode() != part["content_md5"]:
            faults.append((part["path"], "MD5"))
    return faults


SNAPSHOT = Window("after=start", folder="snapshot")


@pytest.mark.parametrize("window", [ALL, day(3), SNAPSHOT], ids=["all", "day", "first copy"])
def test_manifest_in_a_folder_names_its_parts_relative_to_itself(lake: Lake, window: Window) -> None:
    """The original's reader finds every part beside the file that names it; ours go by paths below the export."""
    manifest = lake.commit(window, 1, 4)
    folder = lake.folder / "orders" / window.folder

    own = json.loads((lake.folder / "orders" / manifest.path).read_bytes())
    copy = json.loads((folder / "manifest.json").read_bytes())

    assert [] == found_by_the_original(folder)
    assert [part.path for part in manifest.parts] == [part["path"] for part in own["parts"]]
    assert all((lake.folder / "orders" / part["path"]).is_file() for part in own["parts"])
    assert own | {"parts": copy["parts"]} == copy
    assert () == stale_markers(current_manifests(lake.root), root=lake.root)


def test_manifest_in_a_folder_of_the_older_form_is_right_too(lake: Lake) -> None:
    """Exports of earlier versions, whose copies equal the manifest byte for byte, are not said to be stale."""
    manifest = lake.commit(day(3), 1, 4)
    lake.root.put("dt=2026-01-03/manifest.json", manifest.content)
    lake.root.put("dt=2026-01-03/_SUCCESS", success_marker(manifest.content))

    found = validate(lake.root, export="orders", depth="full")

    assert [] == [flaw.short for flaw in found.all_flaws]
    assert () == stale_markers(current_manifests(lake.root), root=lake.root)


def test_manifest_comes_back_as_it_went(lake: Lake) -> None:
    """Reading gives the very value that was written, schema included."""
    manifest = lake.commit(day(1), 1, 2)

    found = window_manifest(lake.root, day(1))

    assert found is not None
    assert manifest == found[0]
    assert pa.schema([pa.field("id", pa.int64())]) == schema_of(found[0])


def test_schema_fingerprint_ignores_the_order_of_columns_and_sees_types() -> None:
    """Sorted by name; a type is part of it."""
    first = pa.schema([("a", pa.int64()), ("b", pa.string())])

    assert schema_fingerprint(first) == schema_fingerprint(pa.schema([("b", pa.string()), ("a", pa.int64())]))
    assert schema_fingerprint(first) != schema_fingerprint(pa.schema([("a", pa.int32()), ("b", pa.string())]))


BROKEN = {
    b"": "not a JSON object",
    b"[1]": "not a JSON object",
    b'{"manifest_version": 2}': "has manifest_version 2; this Rivet reads up to 1. Upgrade Rivet",
    b'{"manifest_version": 1}': "run_id: Field required",
}


@pytest.mark.parametrize("content", BROKEN)
def test_damaged_or_newer_manifest_is_refused_with_its_place(content: bytes) -> None:
    """Whatever is wrong, the message names the file and the way out."""
    with pytest.raises(ManifestUnreadable, match=BROKEN[content]) as caught:
        parse(content, where="/lake/orders/_rivet/all.json")

    assert str(caught.value).startswith("/lake/orders/_rivet/all.json")


def test_manifest_whose_totals_disagree_is_refused(lake: Lake) -> None:
    """Rows and parts must be the sums of what is listed."""
    found = json.loads(lake.commit(ALL, 1, 4).content) | {"row_count": 5}

    with pytest.raises(ManifestUnreadable, match="5 rows in 2 parts, but lists 4 in 2"):
        parse(json.dumps(found).encode(), where="all.json")


def test_fields_of_a_later_writer_are_passed_over(lake: Lake) -> None:
    """A newer Rivet of the same version may add fields."""
    manifest = lake.commit(ALL, 1, 4)

    assert manifest == parse(json.dumps(json.loads(manifest.content) | {"new": 1}).encode(), where="all.json")


# --- where the cursor stands ---------------------------------------------------------------------

CHAINS: dict[str, tuple[list[tuple[str | None, str | None]], str | None]] = {
    "none": ([], None),
    "first": ([(None, "5")], "5"),
    "first, empty": ([(None, None)], None),
    "three, in any order": ([("9", "10"), (None, "5"), ("5", "9")], "10"),
    "last one empty": ([(None, "5"), ("5", "5")], "5"),
    "beginning removed": ([("9", "10"), ("5", "9")], "10"),
    "values that sort otherwise": ([(None, "zeta"), ("zeta", "alpha")], "alpha"),
}
BAD_CHAINS = {"a gap": [(None, "5"), ("7", "9")], "a circle": [("5", "9"), ("9", "5")]}


def manifests_of(lake: Lake, links: list[tuple[str | None, str | None]]) -> dict[str, Manifest]:
    """Build a manifest per link, without writing one."""
    made = {}
    for low, high in links:
        staged = lake.stage(Window(f"after={low or 'start'}"), 1, 1, cursor=CursorMove(low, high, "id"))
        made[f"after={low or 'start'}"] = build_manifest(staged, staged.parts)
    return made


@pytest.mark.parametrize("chain", CHAINS)
def test_cursor_is_the_end_of_the_chain(chain: str, lake: Lake) -> None:
    """Links are followed by equality; nothing is compared by size."""
    links, end = CHAINS[chain]

    assert end == resolve_cursor(manifests_of(lake, links))


@pytest.mark.parametrize("chain", BAD_CHAINS)
def test_cursor_of_a_broken_chain_is_not_guessed(chain: str, lake: Lake) -> None:
    """Two chains, or a circle, are an error."""
    with pytest.raises(ManifestUnreadable, match="not one"):
        resolve_cursor(manifests_of(lake, BAD_CHAINS[chain]))


# --- what replaces what --------------------------------------------------------------------------


def test_second_run_of_a_window_replaces_its_parts(lake: Lake) -> None:
    """The window shows the new rows, and the old parts are gone from the folder."""
    lake.commit(ALL, 1, 10)

    manifest = lake.commit(ALL, 1, 3)

    assert [1, 2, 3] == lake.rows()
    assert sorted(part.path for part in manifest.parts) == lake.parts()


def test_windows_of_time_stand_side_by_side(lake: Lake) -> None:
    """A day that is run again replaces itself only."""
    for number in (1, 2, 3):
        lake.commit(day(number), number, number)

    lake.commit(day(2), 20, 21)

    assert [1, 3, 20, 21] == lake.rows()


def test_increments_form_a_chain_and_a_restart_replaces_it(lake: Lake) -> None:
    """`after=start` supersedes every other increment; the cursor follows."""
    lake.after(None, 3)
    lake.after(3, 5)
    lake.after(5, 9)
    before, lake.state.cursor = lake.rows(), None

    lake.after(None, 4)

    assert list(range(1, 10)) == before
    assert {"after=start"} == lake.windows()
    assert [1, 2, 3, 4] == lake.rows()
    assert "4" == lake.state.cursor
    assert 2 == len(lake.parts())


def test_increment_run_again_from_the_middle_replaces_its_descendants(lake: Lake) -> None:
    """A cursor that went back to 3 rewrites the chain from there on, and keeps what lies before."""
    lake.after(None, 3)
    lake.after(3, 5)
    lake.after(5, 9)
    lake.state.cursor = "3"

    lake.after(3, 7)

    assert {"after=start", "after=3"} == lake.windows()
    assert [1, 2, 3, 4, 5, 6, 7] == lake.rows()


def test_window_committed_again_over_a_death_still_hides_what_that_replaced(lake: Lake) -> None:
    """A run died behind its swap, before it removed what it replaced; the next one of its window comes unswept."""
    lake.after(None, 3)
    lake.after(3, 5)
    lake.after(5, 9)
    lake.state.cursor = "3"

    def die(name: str) -> None:
        if name == "success":
            raise RuntimeError(name)

    with pytest.raises(RuntimeError):
        lake.publish(lake.stage(Window("after=3"), 4, 7, cursor=CursorMove("3", "7", "id")), step=die)
    assert [1, 2, 3, 4, 5, 6, 7] == lake.rows()

    lake.after(3, 8)

    assert ({"after=start", "after=3"}, [1, 2, 3, 4, 5, 6, 7, 8]) == (lake.windows(), lake.rows())


def test_empty_increment_is_replaced_by_the_next(lake: Lake) -> None:
    """A run that found nothing leaves a manifest without parts, and the next one takes its place."""
    lake.after(None, 3)
    lake.commit(Window("after=3"), 4, 3, cursor=CursorMove("3", "3", "id"))

    lake.after(3, 5)

    assert [1, 2, 3, 4, 5] == lake.rows()


def test_full_replaces_whatever_was_there(lake: Lake) -> None:
    """`all` supersedes days and increments, with their folders' markers."""
    for number in (1, 2):
        lake.commit(day(number), number, number)

    lake.commit(ALL, 1, 5)

    assert [1, 2, 3, 4, 5] == lake.rows()
    assert not [path for path in lake.root.list() if path.startswith("dt=")]


def test_first_increment_replaces_a_full_export(lake: Lake) -> None:
    """The change from full to incremental begins with a whole copy."""
    lake.commit(ALL, 1, 5)

    lake.after(None, 6)

    assert {"after=start"} == lake.windows()
    assert [1, 2, 3, 4, 5, 6] == lake.rows()


def test_superseded_manifest_stays_hidden_while_it_lies_there(lake: Lake) -> None:
    """A death before the removal shows nothing twice, also after the next run of the same window."""
    lake.commit(ALL, 1, 5)
    old, _ = lake.root.read("_rivet/all.json") or (b"", "")
    lake.after(None, 6)
    lake.root.put("_rivet/all.json", old)  # as if the removal had never happened
    hidden = lake.windows()
    lake.state.cursor = None

    lake.after(None, 7)

    assert {"after=start"} == hidden == lake.windows()
    assert lake.root.read("_rivet/all.json") is None


def test_later_commit_of_a_hidden_window_is_seen(lake: Lake) -> None:
    """Hiding names the run, so it does not hide what the window becomes later."""
    manifest = lake.commit(ALL, 1, 5)
    lake.after(None, 6)

    lake.commit(ALL, 1, 8)

    assert manifest.entry != current_manifests(lake.root)["all"].entry
    assert {"all"} == lake.windows()


def full(lake: Lake) -> None:
    """Commit everything."""
    lake.commit(ALL, 1, 5)


def increment(lake: Lake) -> None:
    """Commit a first increment."""
    lake.after(None, 5)


def one_day(lake: Lake) -> None:
    """Commit the fifth of January."""
    lake.commit(day(5), 5, 5)


CONFLICTS: list[tuple[Callable[[Lake], None], Callable[[Lake], object], str]] = [
    (full, one_day, r"by mode full \(window all\); mode time_window"),
    (increment, one_day, r"by mode incremental \(window after=start\); mode time_window"),
    (one_day, increment, r"by mode time_window \(window 2026-01-05\); mode incremental"),
    (full, lambda lake: lake.after(3, 7), "Run `rivet state reset`"),
    (one_day, lambda lake: lake.commit(day(1, days=31), 1, 31), "overlaps window 2026-01-05"),
    (lambda lake: lake.commit(day(1, days=31), 1, 31), one_day, "overlaps window 2026-01-01"),
]


@pytest.mark.parametrize(("first", "then", "says"), CONFLICTS)
def test_windows_that_would_show_rows_twice_are_refused(
    first: Callable[[Lake], None], then: Callable[[Lake], object], says: str, lake: Lake
) -> None:
    """Both modes or windows are named; what was there stays, and nothing new is visible."""
    first(lake)
    rows, parts = lake.rows(), lake.parts()

    with pytest.raises(WindowConflict, match=says):
        then(lake)

    assert (rows, parts) == (lake.rows(), lake.parts())


# --- publishing ----------------------------------------------------------------------------------


def test_steps_come_in_one_order(lake: Lake) -> None:
    """Parts, manifest, marker, cursor, acknowledge, metrics."""
    steps: list[str] = []

    lake.publish(lake.stage(ALL, 1, 5), step=steps.append)

    assert ["parts", "manifest", "success", "cursor", "acknowledge", "metrics"] == steps


def test_publishing_the_same_window_again_ends_in_the_same_place(lake: Lake) -> None:
    """A publish that is repeated, as after a lost answer, is no conflict with itself."""
    staged = lake.stage(Window("after=start"), 1, 5, cursor=CursorMove(None, "5", "id"))
    lake.publish(staged)

    lake.publish(staged)

    assert [1, 2, 3, 4, 5] == lake.rows()
    assert "5" == lake.state.cursor


def test_of_two_runs_of_one_window_one_wins(lake: Lake) -> None:
    """Both were planned on the same version; the later is told, and leaves no part behind."""
    ours, theirs = lake.stage(ALL, 1, 5), lake.stage(ALL, 1, 6)
    winner = lake.publish(theirs)

    with pytest.raises(WindowTaken, match=f"was committed by run {theirs.extract.run_id}"):
        lake.publish(ours)
    discard(ours, root=lake.root)

    assert winner is not None
    assert [1, 2, 3, 4, 5, 6] == lake.rows()
    assert sorted(part.path for part in winner.parts) == lake.parts()
    assert 0 == lake.root.sweep(keep=[])


def test_run_that_loses_after_its_parts_had_names_takes_them_back(lake: Lake) -> None:
    """The other run swaps between our parts and our manifest."""
    ours, theirs = lake.stage(ALL, 1, 5), lake.stage(ALL, 1, 6)

    def lose(name: str) -> None:
        if name == "manifest":
            lake.publish(theirs)

    with pytest.raises(WindowTaken, match="another run"):
        lake.publish(ours, step=lose)

    assert [1, 2, 3, 4, 5, 6] == lake.rows()
    assert sorted(part.path for part in theirs.parts) == lake.parts()


def test_loser_that_resumed_the_same_chunks_leaves_the_winner_its_parts(lake: Lake) -> None:
    """Both found the finished chunks of one dead run; what the winner's manifest names is no longer the loser's."""
    first = lake.stage(ALL, 1, 5)
    second = replace(first, extract=replace(first.extract, run_id="orders_run_0000ff"))
    lake.publish(first)

    with pytest.raises(WindowTaken):
        lake.publish(second)

    assert ([1, 2, 3, 4, 5], 2) == (lake.rows(), len(lake.parts()))


def test_lease_lost_before_the_swap_publishes_nothing(lake: Lake) -> None:
    """A step may refuse; the parts are taken back and the old rows stay, with their marker for other readers."""
    lake.commit(ALL, 1, 3)
    before, marked = lake.parts(), [lake.root.read(name) for name in ("manifest.json", "_SUCCESS")]

    def refuse(name: str) -> None:
        if name == "manifest":
            raise WindowTaken("the lease is lost")

    with pytest.raises(WindowTaken):
        lake.publish(lake.stage(ALL, 1, 5), step=refuse)

    assert [1, 2, 3] == lake.rows()
    assert before == lake.parts()
    assert marked == [lake.root.read(name) for name in ("manifest.json", "_SUCCESS")]


def test_two_threads_that_publish_one_window_end_with_one_winner(lake: Lake) -> None:
    """Whoever wins, the rows are whole and the loser's parts are gone."""
    runs = [lake.stage(ALL, 1, rows) for rows in (5, 6, 7, 8)]
    start, lost = threading.Barrier(len(runs)), []

    def compete(staged: Staged) -> None:
        start.wait()
        try:
            lake.publish(staged)
        except WindowTaken:
            discard(staged, root=lake.root)
            lost.append(staged)

    threads = [threading.Thread(target=compete, args=(staged,)) for staged in runs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (winner,) = (staged for staged in runs if staged not in lost)

    assert winner.measures.rows == len(lake.rows())
    assert sorted(part.path for part in winner.parts) == lake.parts()


def test_swap_whose_answer_was_lost_is_not_another_run(lake: Lake) -> None:
    """The store carried the write out, and its repetition meets our own manifest."""
    lake.commit(ALL, 1, 3)

    class Deaf:
        """A root that hears no answer to its first swap and asks again."""

        def __init__(self, root: LocalRoot) -> None:
            self.root = root

        def __getattr__(self, name: str) -> object:
            return getattr(self.root, name)

        def swap(self, path: str, content: bytes, *, expected: str | None) -> str:
            self.root.swap(path, content, expected=expected)
            return self.root.swap(path, content, expected=expected)

    publish(lake.stage(ALL, 1, 5), root=Deaf(lake.root), state=lake.state)  # type: ignore[arg-type]

    assert [1, 2, 3, 4, 5] == lake.rows()


def test_empty_window_has_a_manifest(lake: Lake) -> None:
    """Nothing found differs from never run."""
    staged = replace(lake.stage(day(1), 1, 0), parts=())

    manifest = lake.publish(staged)

    assert manifest is not None
    assert (0, 0) == (manifest.row_count, manifest.part_count)
    assert lake.root.read("dt=2026-01-01/_SUCCESS") is not None


def test_skip_empty_leaves_everything_alone(lake: Lake) -> None:
    """With `skip_empty` a run without rows changes nothing, cursor included."""
    lake.after(None, 3)
    before = lake.root.list()

    manifest = lake.publish(lake.stage(Window("after=3"), 4, 3, cursor=CursorMove("3", "3", "id"), skip_empty=True))

    assert manifest is None
    assert before == lake.root.list()
    assert 0 == lake.root.sweep(keep=[])


def test_sidecars_go_with_the_window(lake: Lake) -> None:
    """Published or discarded, no file of hashes stays."""
    for act in (lake.publish, lambda staged: discard(staged, root=lake.root)):
        staged = lake.stage(ALL, 1, 3)
        sidecar = f"_staged/{staged.extract.run_id}/unique/0-chunk0-0.u128"
        lake.root.put(sidecar, b"hashes")
        act(replace(staged, measures=Measures(rows=3, unique={"id": [sidecar]})))

        assert lake.root.read(sidecar) is None


# --- sweeping ------------------------------------------------------------------------------------


class Died(Exception):
    """A process that ends here."""


@pytest.fixture
def orphaned(lake: Lake) -> Staged:
    """Parts with their final names that no manifest names, beside a committed window."""
    lake.commit(ALL, 1, 3)
    staged = lake.stage(ALL, 1, 5)

    def die(name: str) -> None:
        if name == "manifest":
            raise Died

    with pytest.raises(Died):
        lake.publish(staged, step=die)
    return staged


def test_sweep_removes_parts_that_no_manifest_names(lake: Lake, orphaned: Staged) -> None:
    """What a dead run had named goes; what is committed stays."""
    removed = sweep(lake.root, export="orders", state=lake.state)

    assert len(orphaned.parts) == removed
    assert 2 == len(lake.parts())
    assert [1, 2, 3] == lake.rows()


def test_sweep_spares_living_and_resumable_runs(lake: Lake, orphaned: Staged) -> None:
    """A run between its parts and its manifest loses nothing."""
    for owners in (lake.state.live, lake.state.resumable):
        owners.add(orphaned.extract.run_id)
        assert 0 == sweep(lake.root, export="orders", state=lake.state)
        owners.clear()

    assert 4 == len(lake.parts())


def test_sweep_spares_fresh_parts_of_a_run_of_another_store(lake: Lake) -> None:
    """Somebody whose store this is not may be about to name them; after a day nobody is."""
    now = datetime.now(UTC)
    fresh, old = (
        f"orders_{moment:%Y%m%d_%H%M%S}_000_0000ff_chunk0.parquet" for moment in (now, now - timedelta(days=2))
    )
    for path in (fresh, old):
        lake.root.put(path, b"")

    assert 1 == sweep(lake.root, export="orders", state=lake.state)
    assert [fresh] == lake.parts()


def test_sweep_never_touches_what_rivet_did_not_write(lake: Lake) -> None:
    """Files of other names, or of another export, are not ours."""
    theirs = ["notes.txt", "orders.parquet", "other_20260131_120000_000_0000ff.parquet", "orders_20260131.csv"]
    for path in theirs:
        lake.root.put(path, b"")

    assert 0 == sweep(lake.root, export="orders", state=lake.state)
    assert set(theirs) == set(lake.root.list())


def test_sweep_removes_hidden_manifests_with_their_parts(lake: Lake) -> None:
    """What a death between swap and removal left is finished by the next run."""
    lake.commit(ALL, 1, 5)
    before = {path: (lake.root.read(path) or (b"",))[0] for path in lake.root.list()}
    lake.after(None, 6)
    for path, content in before.items():
        if path not in ("manifest.json", "_SUCCESS"):
            lake.root.put(path, content)

    sweep(lake.root, export="orders", state=lake.state)

    assert ["_rivet/after=start.json"] == [path for path in lake.root.list() if path.startswith("_rivet/")]
    assert 2 == len(lake.parts())
    assert list(range(1, 7)) == lake.rows()


class BlindRoot(LocalRoot):
    """A folder in which nobody looks around."""

    def list(self, prefix: str = "") -> dict[str, int]:
        """Refuse to."""
        raise AssertionError("listed everything")


def test_look_for_leftovers_is_taken_once_and_again_after_a_failure(lake: Lake, orphaned: Staged) -> None:
    """The first run of a place looks, whatever the store knows; then only what failed makes it look."""
    blind = BlindRoot(**{field.name: getattr(lake.root, field.name) for field in fields(lake.root)})
    lake.state.commits.append(orphaned.extract.run_id)

    assert len(orphaned.parts) == sweep_if_due(lake.root, export="orders", state=lake.state)
    assert 0 == sweep_if_due(blind, export="orders", state=lake.state)

    lake.state.failed += 1
    with pytest.raises(AssertionError, match="listed everything"):
        sweep_if_due(blind, export="orders", state=lake.state)


def test_what_is_staged_is_looked_at_once_a_day(lake: Lake) -> None:
    """A task that was tried twice may leave something in a run that ended well: of a store that costs two listings."""
    sweep_if_due(lake.root, export="orders", state=lake.state)
    dead = lake.stage(ALL, 1, 3)
    lake.state.commits.append(dead.extract.run_id)

    assert 0 == sweep_if_due(lake.root, export="orders", state=lake.state)
    lake.state.looked = False
    assert len(dead.parts) == sweep_if_due(lake.root, export="orders", state=lake.state)
    assert lake.state.looked


def test_leftovers_that_were_spared_are_looked_for_again(lake: Lake, orphaned: Staged) -> None:
    """Of a run whose chunks another one may use, and of a stranger that began today; a living run tells its own end."""
    lake.state.resumable.add(orphaned.extract.run_id)
    assert 0 == sweep_if_due(lake.root, export="orders", state=lake.state)

    lake.state.resumable.clear()
    lake.state.commits.append(orphaned.extract.run_id)
    stranger = f"orders_{datetime.now(UTC):%Y%m%d_%H%M%S}_000_0000ff_chunk0.parquet"
    lake.root.put(stranger, b"")
    assert len(orphaned.parts) == sweep_if_due(lake.root, export="orders", state=lake.state)
    assert {} == lake.state.swept

    lake.root.delete([stranger])
    assert 0 == sweep_if_due(lake.root, export="orders", state=lake.state)
    assert {lake.root.uri: 0} == lake.state.swept


# --- paths out of files ----------------------------------------------------------------------------

ELSEWHERE = (
    "../../victim",
    "/etc/x",
    "a/../../b",
    "..\\victim",
    "a//b",
    "./a",
    "a\x00b",
    "_rivet/all.json",
    "_staged/r",
)


@pytest.mark.parametrize("path", ELSEWHERE)
@pytest.mark.parametrize("name", ["part", "window_folder"])
def test_manifest_that_names_a_place_elsewhere_is_refused(lake: Lake, name: str, path: str) -> None:
    """Each path is looked at where the manifest is read, before anything acts on it; the message has no path."""
    document = json.loads(lake.commit(ALL, 1, 3).content)
    if name == "part":
        document["parts"][0]["path"] = path
    else:
        document["window_folder"] = path

    with pytest.raises(ManifestUnreadable, match=r"names a place (outside of|in)"):
        parse(json.dumps(document).encode(), where="m.json")


def test_replacing_a_window_never_removes_files_outside_of_the_folder(lake: Lake) -> None:
    """`window_folder` of the outgoing manifest leads elsewhere, where a `manifest.json` of somebody else lies."""
    victim = lake.folder / "victim"
    victim.mkdir()
    (victim / "manifest.json").write_text("theirs")
    lake.commit(ALL, 1, 3)
    path = lake.folder / "orders/_rivet/all.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"window_folder": "../victim"}))

    with pytest.raises(ManifestUnreadable, match="window_folder"):
        lake.commit(ALL, 1, 4)

    assert "theirs" == (victim / "manifest.json").read_text()


def test_deeply_nested_manifest_is_refused_by_name(lake: Lake) -> None:
    """No error of Python's own comes out, at any depth."""
    for content in (
        b'{"a":' * 100_000,
        b"[" * 100_000,
        b'{"manifest_version": 1, "a": ' + b"[" * 5000 + b"]" * 5000 + b"}",
    ):
        with pytest.raises(ManifestUnreadable, match=r"m\.json cannot be read"):
            parse(content, where="m.json")


# --- very many windows -----------------------------------------------------------------------------


@pytest.fixture
def blind(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> Lake:
    """A lake of so many manifests that whoever lists all of them is refused."""
    monkeypatch.setattr("rivet_resources.commit.listing.MANY", 1)
    monkeypatch.setattr(LocalRoot, "list", BlindRoot.list)
    lake.state.swept[lake.root.uri] = lake.state.failed  # nobody left anything
    return lake


def test_window_of_time_is_committed_beside_its_neighbours_alone(blind: Lake) -> None:
    """Years of other windows are neither listed nor read, and one that overlaps is still refused."""
    for number, days in ((1, 1), (200, 31), (400, 1), (600, 1)):
        blind.commit(day(number, days), 1, 2)

    for overlapping in (day(199, 2), day(230)):
        with pytest.raises(WindowConflict, match="overlaps"):
            blind.commit(overlapping, 1, 2)
    blind.commit(day(231), 1, 2)


def test_chain_goes_on_without_a_list(blind: Lake) -> None:
    """A window that continues meets none of the others, and its repetition replaces what descended from it."""
    blind.state.cursor = "5"
    blind.commit(Window("after=5"), 6, 8, cursor=CursorMove("5", "8", "id"))
    blind.commit(Window("after=8"), 9, 9, cursor=CursorMove("8", "9", "id"))
    blind.state.cursor = "5"  # as after a crash
    blind.commit(Window("after=5"), 6, 8, cursor=CursorMove("5", "8", "id"))

    assert None is blind.root.read("_rivet/after=8.json")


def test_chain_that_is_known_by_its_last_window_sees_what_replaces_it(lake: Lake) -> None:
    """Nothing of it is listed but what follows all of it, where a full export that came since has its name."""
    lake.remembers = True
    lake.after(None, 3)
    lake.after(3, 5)
    full = lake.stage(ALL, 1, 2)
    staged = lake.stage(Window("after=5"), 6, 8, cursor=CursorMove("5", "8", "id"))
    lake.root.put("_rivet/all.json", build_manifest(full, full.parts).content)

    with pytest.raises(WindowConflict, match="rows twice"):
        lake.publish(staged)

    lake.root.delete(["_rivet/all.json"])
    lake.publish(staged)
    assert {"after=start", "after=3", "after=5"} == lake.windows()


def test_window_of_a_chain_that_another_run_committed_meanwhile_is_taken(lake: Lake) -> None:
    """It is not looked for before the swap, which the store refuses; ours leaves nothing behind."""
    lake.remembers = True
    lake.after(None, 3)
    lake.state.cursor = None
    ours = lake.stage(Window("after=3"), 4, 5, cursor=CursorMove("3", "5", "id"))
    lake.state.cursor = "3"
    lake.after(3, 6)

    with pytest.raises(WindowTaken):
        lake.publish(ours)

    assert [1, 2, 3, 4, 5, 6] == lake.rows()
    assert set() == lake.root.staged_runs()


def test_stranger_beside_very_many_windows_is_found(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever its name: before them, after them, or of a column whose name begins as theirs do."""
    monkeypatch.setattr("rivet_resources.commit.listing.MANY", 1)
    for number in (1, 40, 200):
        lake.commit(day(number), 1, 2)
    for key, mode in (("after=5", "incremental"), ("all", "full")):
        stranger = lake.stage(Window("all"), 1, 2)
        extract = replace(stranger.extract, window=Window(key), mode=mode)
        lake.root.put(f"_rivet/{Window(key).file_name}", build_manifest(replace(stranger, extract=extract), ()).content)
        with pytest.raises(WindowConflict, match="rows twice"):
            lake.commit(day(80), 1, 2)
        lake.root.delete([f"_rivet/{Window(key).file_name}"])
    lake.commit(day(80), 1, 2)
