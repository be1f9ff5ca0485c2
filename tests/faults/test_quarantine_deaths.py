"""Whatever line a run, a replay or a drop dies on: each row is in the export or in the quarantine, in one of them."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from rivet_assets.config.load import load_config
from rivet_assets.launch.run_exports import run_exports
from rivet_assets.prove.quarantine import dead_letters, drop_letters, flagged_for_replay
from rivet_assets.prove.repair import repair_export
from rivet_assets.prove.validate import validate_export
from rivet_assets.run.admit.scope import state_of
from rivet_resources.read.stage import Exporter
from rivet_resources.spark.runtime import SparkRuntime
from tests import processes
from tests.faults.dying import DIED, die_after_parts
from tests.faults.test_repair_deaths import die_before_write
from tests.lab import Lab
from tests.lab_engines import SQLITE

BAD = (5, 25, 45)
WORKS = ("run", "replay", "drop")
PLACES = ("part", *(f"effect {number}" for number in range(10)))  # parts and letters, swap, two files, what goes
CASES = {
    "chunked": "{name: orders, table: orders, mode: chunked, chunk_column: id, chunk_size: 10}",
    "incremental": "{name: orders, table: orders, mode: incremental, cursor_column: id}",
    "full": "{name: orders, table: orders}",
}
pytestmark = pytest.mark.faults


def main() -> None:
    """Do the work, and die there."""
    path, work, place = sys.argv[1:]
    config = load_config(Path(path))
    export, state = config.exports[0], state_of(config)
    root = type(export.destination.root(export.name))
    if place == "part":
        die_after_parts(root, 2)
    elif place.startswith("effect"):
        die_before_write(root, int(place.removeprefix("effect ")))
    if work == "run":
        (outcome,) = run_exports(config)
        assert outcome.success, outcome.message
    elif work == "drop":
        drop_letters(export, (), state=state)
    else:
        exporter = Exporter(SparkRuntime(config.spark), state)
        letters = flagged_for_replay(export)
        repair_export(config, export, letters, execute=True, exporter=exporter, state=state, tell=print)
    sys.stdout.flush()
    os._exit(0)


def dying(lab: Lab, work: str, place: str) -> int:
    """Do the work in a process of its own that dies at `place`; its exit code."""
    done = processes.run(
        "tests.faults.test_quarantine_deaths", str(lab.folder / "rivet.yaml"), work, place, cwd=lab.folder
    )
    assert done.returncode in (0, DIED), done.stderr
    return done.returncode


@pytest.fixture
def lab(tmp_path: Path, fresh_sqlite: str, monkeypatch: pytest.MonkeyPatch) -> Lab:
    """60 orders; the notes of three are no numbers."""
    monkeypatch.setenv("LAB_URL", fresh_sqlite)
    monkeypatch.chdir(tmp_path)
    laboratory = Lab(tmp_path, fresh_sqlite, SQLITE)
    laboratory.create("orders", {"id": "whole", "note": "note"})
    laboratory.insert("orders", [{"id": n, "note": "odd" if n in BAD else str(n)} for n in range(1, 61)])
    return laboratory


def standing(lab: Lab) -> tuple[list[object], list[int]]:
    """Return the ids in the export, and those of the dead letters."""
    export = load_config(lab.folder / "rivet.yaml").exports[0]
    return lab.ids("orders"), sorted(each["key"]["id"] for each in dead_letters(export))


@pytest.mark.matrix
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("work", WORKS)
@pytest.mark.parametrize("block", CASES.values(), ids=CASES)
def test_each_row_is_in_one_place_wherever_a_process_died(lab: Lab, block: str, work: str, place: str) -> None:
    """Between the deaths readers see the state before or after, whole; the second try ends clean."""
    lenient = f"{block[:-1]}, on_error: dead_letter, transforms: [{{type: cast, columns: {{note: int8}}}}]}}"
    config = lab.config(lenient)
    everything, good = list(range(1, 61)), [n for n in range(1, 61) if n not in BAD]
    before: tuple[list[object], list[int]] = ([], [])
    if work != "run":
        (outcome,) = run_exports(config)
        assert outcome.success, outcome.message
        before = (good, list(BAD))
    if work == "replay":
        lab.sql("UPDATE orders SET note = '5' WHERE id = 5")
    after = {"run": (good, list(BAD)), "replay": ([n for n in everything if n not in (25, 45)], [25, 45])}
    wanted = after.get(work, (good, []))

    died = dying(lab, work, place)
    between = standing(lab)
    second = dying(lab, work, "nowhere")

    assert died == DIED or place != "effect 0"
    assert between in (before, wanted)
    assert (0, wanted) == (second, standing(lab))
    root, manifests = lab.root("orders"), lab.manifests("orders").values()
    lab.sql("DELETE FROM orders WHERE 1 = 0")
    if work == "drop":  # files that a death left behind go with the next run's sweep
        root.delete(path for path in root.list() if path.endswith(".ndjson") and not between[1])
    assert {part.path for manifest in manifests for part in manifest.files} == {
        path for path in root.list() if path.endswith((".parquet", ".ndjson"))
    }
    assert [] == [flaw for each in validate_export(config.exports[0], state=lab.state) for flaw in each.all_flaws]


if __name__ == "__main__":
    main()
