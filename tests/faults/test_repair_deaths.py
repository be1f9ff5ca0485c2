"""Whatever line a repair dies on, a reader sees old rows or new ones, whole, and a second repair ends clean."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from rivet_assets.config.load import load_config
from rivet_assets.prove.reconcile import reconcile_export
from rivet_assets.prove.reconcile_report import flagged_of
from rivet_assets.prove.repair import repair_export
from rivet_assets.prove.validate import validate_export
from rivet_assets.run.admit.scope import state_of
from rivet_resources.read.stage import Exporter
from rivet_resources.spark.runtime import SparkRuntime
from tests import processes
from tests.faults.dying import DIED, die_after_pages, die_after_parts
from tests.lab import Lab
from tests.lab_engines import SQLITE

STEPS = ("parts", "manifest", "success", "metrics")
EFFECTS = tuple(f"effect {number}" for number in range(9))  # parts, swap, two files, what goes
PLACES = ("page", "part", *STEPS, *EFFECTS)
WRITES = ("publish", "put", "swap", "delete")
pytestmark = pytest.mark.faults


@dataclass(frozen=True)
class Case:
    """An export, and the ids that a reader sees before and after its repair."""

    block: str
    old: tuple[int, ...] = tuple(range(1, 61))
    new: tuple[int, ...] = tuple(each for each in range(1, 61) if each not in (25, 45))


CASES = {
    "chunked": Case("{name: orders, table: orders, mode: chunked, chunk_column: id, chunk_size: 10}"),
    "incremental": Case("{name: orders, table: orders, mode: incremental, cursor_column: id}"),
    "full": Case("{name: orders, table: orders}"),
}


def main() -> None:
    """Compare, repair, and die there."""
    path, place = sys.argv[1:]
    config = load_config(Path(path))
    export, state = config.exports[0], state_of(config)
    report = flagged_of(reconcile_export(config, export, state=state, tell=print))
    root = type(export.destination.root(export.name))
    if place == "page":
        die_after_pages(type(config.source_of(export)[1]), 0)
    elif place == "part":
        die_after_parts(root, 1)
    elif place.startswith("effect"):
        die_before_write(root, int(place.removeprefix("effect ")))
    repair_export(
        config, export, report, execute=True, exporter=Exporter(SparkRuntime(config.spark), state), state=state,
        tell=print, step=lambda name: os._exit(DIED) if name == place else None,
    )  # fmt: skip


def die_before_write(root: type, count: int) -> None:
    """End the process in place of its n-th write at the destination."""
    left = [count]

    def mortal(name: str) -> object:
        original = getattr(root, name)

        def write(self: object, *args: object, **named: object) -> object:
            if left[0] == 0:
                os._exit(DIED)
            left[0] -= 1
            return original(self, *args, **named)

        return write

    for name in WRITES:
        setattr(root, name, mortal(name))


def repair(lab: Lab, place: str) -> int:
    """Repair in a process of its own that dies at `place`; its exit code."""
    done = processes.run("tests.faults.test_repair_deaths", str(lab.folder / "rivet.yaml"), place, cwd=lab.folder)
    assert done.returncode in (0, DIED), done.stderr
    return done.returncode


@pytest.fixture
def lab(tmp_path: Path, fresh_sqlite: str, monkeypatch: pytest.MonkeyPatch) -> Lab:
    """A database with no order yet, and an empty folder."""
    monkeypatch.setenv("LAB_URL", fresh_sqlite)
    monkeypatch.chdir(tmp_path)
    laboratory = Lab(tmp_path, fresh_sqlite, SQLITE)
    laboratory.create("orders", {"id": "whole", "note": "note"})
    return laboratory


@pytest.mark.matrix
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_second_repair_ends_clean_wherever_the_first_one_died(lab: Lab, case: Case, place: str) -> None:
    """After a death each window shows its old rows or its new ones; after the second repair the new, no more."""
    for start in (1, 21, 41) if "incremental" in case.block else (1,):
        last = start + 20 if "incremental" in case.block else 61
        lab.insert("orders", [{"id": number, "note": f"note {number}"} for number in range(start, last)])
        assert lab.export(case.block).success
    cursor = lab.state.cursor("orders")
    lab.sql("DELETE FROM orders WHERE id IN (25, 45)")

    died = repair(lab, place)
    between = tuple(lab.ids("orders"))
    second = repair(lab, "nowhere")

    assert died == DIED or place.startswith("effect")  # fewer writes than that: nobody died
    halves = {tuple(each for each in case.old if each not in gone) for gone in ((), (25,), (45,), (25, 45))}
    assert between in (halves if "incremental" in case.block else {case.old, case.new})  # two windows, each whole
    assert second == 0
    assert list(case.new) == lab.ids("orders")
    config = load_config(lab.folder / "rivet.yaml")
    root = lab.root("orders")
    named = {part.path for manifest in lab.manifests("orders").values() for part in manifest.parts}
    assert named == {path for path in root.list() if path.endswith(".parquet")}
    assert root.sweep(keep=()) == 0
    assert cursor == lab.state.cursor("orders")
    assert [] == [flaw for each in validate_export(config.exports[0], state=lab.state) for flaw in each.all_flaws]


if __name__ == "__main__":
    main()
