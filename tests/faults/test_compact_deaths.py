"""Whatever effect a compaction or a retention dies on, or who comes first, a reader sees each row once."""

from __future__ import annotations

import sqlite3
import uuid
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from rivet_resources.commit.manifest import (
    collect_superseded,
    current_manifests,
    manifest_paths,
    read_manifests,
    window_manifest,
)
from rivet_resources.commit.publish import sweep
from rivet_resources.commit.retired import RETIRED
from rivet_resources.contracts.addressing import part_nonce
from rivet_resources.contracts.destination import Root
from rivet_resources.contracts.extract import Window
from rivet_resources.contracts.retention import Retention
from rivet_resources.errors import WindowConflict, WindowTaken
from rivet_resources.state.store import open_state
from rivet_resources.upkeep.compact import CompactSite, compact
from rivet_resources.upkeep.plan import CompactPolicy, PlannedJoin, plan_joins
from rivet_resources.upkeep.retain import RetainSite, drop, outdated_windows
from rivet_resources.upkeep.sweep import sweep_retired
from rivet_resources.write.formats.parquet import Parquet
from tests import processes
from tests.faults.one_run import DEAD, EXPORT, Mortal, Run, committed, destination_of, die, execute

STEPS = ("stage", "record", "parts", "proof", "manifest", "success")
EFFECTS = tuple(range(12))  # stage, two records, publish, swap, two files; then what a sweep removes
KINDS = ("after", "all")
CASES: list[tuple[str, str, str | int]] = [
    *((place, kind, die_at) for place in ("local", "s3") for kind in KINDS for die_at in (*STEPS, *EFFECTS)),
    *((place, "after", die_at) for place in ("gcs", "azure") for die_at in ("parts", "success")),
]
IN_FULL = {("local", "after")}
pytestmark = pytest.mark.faults


@dataclass(frozen=True)
class Upkeep:
    """What one compaction or retention is told."""

    destination: dict[str, Any]
    kind: str  # compact, or retain
    die_at: str | int = ""
    grace: timedelta = timedelta(0)


def run_of(now: datetime | None = None) -> str:
    """Name a run."""
    return f"{EXPORT}_{now or datetime.now(UTC):%Y%m%dT%H%M%S}.000_{uuid.uuid4().hex[:6]}"


def all_of(root: Root) -> tuple[Any, ...]:
    """Read every manifest, hidden ones too."""
    return read_manifests(root, manifest_paths(root))


def seen(manifests: tuple[Any, ...]) -> dict[str, Any]:
    """Return what readers see of these."""
    return {each.window: each for each in manifests if each.entry not in collect_superseded(manifests)}


def planned(root: Root, *, min_parts: int = 2) -> tuple[PlannedJoin, ...]:
    """Plan what can be joined now."""
    return plan_joins(current_manifests(root), CompactPolicy(1 << 28, min_parts, datetime.now(UTC)))


def chained(root: Root) -> PlannedJoin:
    """Plan the one join of several windows."""
    (found,) = [each for each in planned(root) if len(each.windows) > 1]
    return found


def site_of(settings: dict[str, Any], root: Root, run: str, *, grace: timedelta, step: Any = None) -> CompactSite:
    """Name where windows are joined."""
    until = datetime.now(UTC) + grace
    named = {} if step is None else {"step": step}
    return CompactSite(root, destination_of(settings), Parquet(), run, until, prove_lease=lambda: None, **named)


def look_after(told: Upkeep) -> None:
    """Join what can be joined, or drop all windows but two; then remove what may go."""
    plain = destination_of(told.destination).root(EXPORT)
    root: Any = Mortal(plain, told.die_at) if isinstance(told.die_at, int) else plain
    manifests = all_of(plain)
    sweep_retired(root, manifests, living=())
    manifests, there = all_of(plain), {each.entry for each in all_of(plain)}

    def step(name: str) -> None:
        die(name, at=told.die_at)

    if told.kind == "compact":
        for join in planned(plain):
            compact(join, site_of(told.destination, root, run_of(), grace=told.grace, step=step), there=there)
    else:
        current = seen(manifests)
        old = outdated_windows(current, Retention(count=2), now=datetime.now(UTC), there=there)
        until = datetime.now(UTC) + told.grace
        if old:
            drop(old, current, RetainSite(root, run_of(), until, prove_lease=lambda: None, step=step))
    sweep_retired(root, all_of(plain), living=())


def in_a_process(work: Callable[[Any], Any], told: Any) -> int:
    """Work in a process of its own; its exit code."""
    process = processes.CONTEXT.Process(target=work, args=(told,))
    process.start()
    process.join(60)
    return process.exitcode if process.exitcode is not None else -1


@pytest.fixture
def run(local: dict[str, Any], tmp_path: Path) -> Run:
    """Tell an incremental run over a folder, with a store of its own."""
    return Run(local, f"sqlite:///{tmp_path}/state.db", "after", rows=0)


def filled(run: Run, windows: int = 5) -> Root:
    """Commit windows of ten numbers each."""
    for number in range(1, windows + 1):
        execute(replace(run, rows=10 * number))
    return destination_of(run.destination).root(EXPORT)


def left_over(root: Root) -> set[str]:
    """List parts that no manifest names, and records of what waits."""
    named = {part.path for manifest in current_manifests(root).values() for part in manifest.parts}
    files = {path for path in root.list() if part_nonce(path, export=EXPORT)}
    return (files - named) | set(root.list(f"{RETIRED}/"))


@pytest.mark.parametrize(
    ("place", "kind", "die_at"),
    [
        case if case[:2] in IN_FULL and case[2] in EFFECTS[:8] else pytest.param(*case, marks=pytest.mark.matrix)
        for case in CASES
    ],
)
def test_rows_stay_whatever_effect_a_compaction_dies_on(
    place: str, kind: str, die_at: str | int, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """After a death every row is seen once; a run goes on from there, and the next compaction ends clean."""
    settings = request.getfixturevalue(place)
    told = Run(settings, f"sqlite:///{tmp_path}/state.db", kind, rows=0)
    root = filled(told, 5 if kind == "after" else 1)
    before = committed(root)

    ended = in_a_process(look_after, Upkeep(settings, "compact", die_at))
    between = committed(root)
    execute(replace(told, rows=60))
    after = committed(root)
    again = in_a_process(look_after, Upkeep(settings, "compact"))

    assert ended == DEAD or (ended == 0 and isinstance(die_at, int))  # fewer effects than that: nobody died
    assert between == before
    assert list(range(1, 61)) == after
    assert again == 0
    assert list(range(1, 61)) == committed(root)
    assert set() == left_over(root)


@pytest.mark.parametrize(
    "die_at", [*range(6), *(pytest.param(each, marks=pytest.mark.matrix) for each in range(6, 10))]
)
def test_newest_rows_stay_whatever_effect_a_retention_dies_on(run: Run, die_at: str | int) -> None:
    """After a death the windows that are left are whole and the newest ones; the next retention ends clean."""
    root = filled(run)

    ended = in_a_process(look_after, Upkeep(run.destination, "retain", die_at))
    between = committed(root)
    execute(replace(run, rows=60))
    again = in_a_process(look_after, Upkeep(run.destination, "retain"))

    assert ended == DEAD or (ended == 0 and isinstance(die_at, int))
    assert between in [list(range(first, 51)) for first in (1, 11, 21, 31)]
    assert again == 0
    assert list(range(41, 61)) == committed(root)
    assert set() == left_over(root)


# --- who comes first -----------------------------------------------------------------------------


def test_of_two_compactions_at_once_one_wins(run: Run) -> None:
    """Without a common store the swap decides: the loser says so, changes nothing and leaves nothing."""
    root = filled(run)
    first, second = chained(root), chained(root)
    there = {each.entry for each in all_of(root)}
    compact(first, site_of(run.destination, root, run_of(), grace=timedelta(days=1)), there=there)
    files = set(root.list())

    with pytest.raises(WindowTaken, match="nothing was changed"):
        compact(second, site_of(run.destination, root, run_of(), grace=timedelta(days=1)), there=there)

    assert list(range(1, 51)) == committed(root)
    assert files == set(root.list())


@pytest.mark.parametrize("window", ["after=start", "after=20"])
@pytest.mark.parametrize("moment", ["stage", "proof"])
def test_window_that_is_committed_anew_meanwhile_stays(run: Run, window: str, moment: str) -> None:
    """A repair that comes between the plan and the swap wins, of the first window and of any other."""
    root = filled(run)
    join = chained(root)

    def repaired(name: str) -> None:
        if name == moment:
            manifest, version = window_manifest(root, Window(window)) or pytest.fail("is there")
            newer = manifest.model_copy(update={"run_id": run_of()})
            root.swap(newer.path, newer.content, expected=version)

    with pytest.raises(WindowTaken):
        compact(join, site_of(run.destination, root, run_of(), grace=timedelta(0), step=repaired), there=())

    assert list(range(1, 51)) == committed(root)
    assert 5 == len(current_manifests(root))


def test_window_at_the_end_of_the_chain_is_never_joined(run: Run) -> None:
    """A run that died before its cursor moved commits its window again; it is still there to be replaced."""
    root = filled(run, 3)
    assert DEAD == in_a_process(execute, replace(run, rows=40, die_at="cursor"))

    look_after(Upkeep(run.destination, "compact"))
    execute(replace(run, rows=45))

    assert list(range(1, 46)) == committed(root)


def test_store_from_before_a_compaction_is_refused(run: Run, tmp_path: Path) -> None:
    """A cursor in the middle of a joined window would show rows twice: the run says what helps."""
    filled(run, 3)
    old = tmp_path / "old.db"
    with closing(sqlite3.connect(tmp_path / "state.db")) as store, closing(sqlite3.connect(old)) as copy:
        store.backup(copy)
    root = destination_of(run.destination).root(EXPORT)
    for rows in (40, 50):
        execute(replace(run, rows=rows))
    look_after(Upkeep(run.destination, "compact"))

    with pytest.raises(WindowConflict, match="rivet state rebuild"):
        execute(replace(run, state_url=f"sqlite:///{old}", rows=60))

    assert list(range(1, 51)) == committed(root)


def test_readers_in_mid_scan_find_what_they_began_with(run: Run) -> None:
    """Parts and manifests that were replaced stay for their grace, through a sweep of dead runs as well."""
    root = filled(run)
    before = {part.path for manifest in current_manifests(root).values() for part in manifest.parts}
    state = open_state(run.state_url)

    look_after(Upkeep(run.destination, "compact", grace=timedelta(days=1)))
    assert DEAD == in_a_process(execute, replace(run, rows=55, die_at="manifest"))
    execute(replace(run, rows=60))
    sweep(root, export=EXPORT, state=state)

    assert before <= set(root.list())
    assert list(range(1, 61)) == committed(root)
