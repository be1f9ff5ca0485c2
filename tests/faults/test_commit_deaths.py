"""Whatever line a publishing process dies on, the next run ends right, in every kind of window."""

from __future__ import annotations

from pathlib import Path

import pytest

from rivet_resources.commit.manifest import current_manifests
from rivet_resources.contracts.addressing import part_nonce
from tests import processes
from tests.faults.one_run import DEAD, EXPORT, Run, committed, destination_of, execute

STEPS = ("parts", "manifest", "success", "cursor", "acknowledge", "metrics")
EFFECTS = tuple(range(10))  # of a publish: parts, swap, two files, what it replaces
KINDS = {
    "all": ("all", "all", "all"),
    "time": ("time", "time", "time"),
    "after": ("after", "after", "after"),
    "all, then after": ("all", "after", "after"),
    "after, then all": ("after", "all", "all"),
    "time, then all": ("time", "all", "all"),
}
CASES: list[tuple[str, str, str | int]] = [
    *(
        (place, kind, step)
        for place in ("local", "s3", "gcs", "azure")
        for kind in ("all", "time", "after")
        for step in STEPS
    ),
    *(("local", kind, effect) for kind in KINDS for effect in EFFECTS),
]
# A cursor on S3, and one kind that follows another: each step and each effect once, the rest by sample.
IN_FULL = {("s3", "after"), ("azure", "all"), ("local", "after, then all")}
pytestmark = pytest.mark.faults


def in_a_process(run: Run) -> int:
    """Execute a run in a process of its own; its exit code."""
    process = processes.CONTEXT.Process(target=execute, args=(run,))
    process.start()
    process.join(60)
    return process.exitcode if process.exitcode is not None else -1


@pytest.mark.parametrize("kind", ["all", "time"])
@pytest.mark.parametrize("place", ["local", "s3"])
def test_parts_of_a_run_that_a_lost_store_knew_go_with_the_next_commit(
    place: str, kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Killed before its manifest, and nobody knows of it any more: a reader of a glob sees each row once all the same.

    What another run has staged stays: it may be about to commit another window.
    """
    settings = request.getfixturevalue(place)
    root = destination_of(settings).root(EXPORT)
    lost, other, ours = (f"sqlite:///{tmp_path}/{name}.db" for name in ("lost", "other", "ours"))
    assert in_a_process(Run(settings, lost, kind, rows=10, die_at="manifest")) == DEAD
    left = [path for path in root.list() if part_nonce(path, export=EXPORT)]
    assert in_a_process(Run(settings, other, "all", rows=5, die_at="parts")) == DEAD
    staged = root.staged_runs()

    rerun = in_a_process(Run(settings, ours, kind, rows=20))

    assert (2, 0) == (len(left), rerun)
    assert list(range(1, 21)) == committed(root)
    named = {part.path for manifest in current_manifests(root).values() for part in manifest.parts}
    assert named == {path for path in root.list() if part_nonce(path, export=EXPORT)}
    assert set(staged) <= set(root.staged_runs())


@pytest.mark.parametrize(
    ("place", "kind", "die_at"),
    [case if case[:2] in IN_FULL else pytest.param(*case, marks=pytest.mark.matrix) for case in CASES],
)
def test_rerun_after_a_death_at_any_effect_shows_every_row_once(
    place: str, kind: str, die_at: str | int, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """After a death a reader sees the old rows or the new, whole; after the next run each row exactly once."""
    settings, url = request.getfixturevalue(place), f"sqlite:///{tmp_path}/state.db"
    root = destination_of(settings).root(EXPORT)
    first, second, third = KINDS[kind]
    assert in_a_process(Run(settings, url, first, rows=10)) == 0

    ended = in_a_process(Run(settings, url, second, rows=15, die_at=die_at))
    between = committed(root)
    rerun = in_a_process(Run(settings, url, third, rows=20))

    assert ended == DEAD or (ended == 0 and isinstance(die_at, int))  # fewer effects than that: nobody died
    assert between in (list(range(1, 11)), list(range(1, 16)))
    assert rerun == 0
    assert list(range(1, 21)) == committed(root)
    named = {part.path for manifest in current_manifests(root).values() for part in manifest.parts}
    assert named == {path for path in root.list() if part_nonce(path, export=EXPORT)}
    assert root.sweep(keep=()) == 0
