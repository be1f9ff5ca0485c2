"""Runs that died before the store was told of their commit, and stores that were lost: what columns came is known.

Belongs here: `on_schema_drift` beside a window that only its manifest tells of. Not here: what each policy refuses
(`unit/run/test_drift.py`), columns that change in a drain (`test_drain_schemas.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rivet_resources.errors import DriftRefused
from rivet_resources.state.store import default_url
from tests import processes
from tests.faults.dying import DIED
from tests.faults.shop import Shop, mysql_shop, postgres_shop
from tests.lab import Lab, lab_in
from tests.lab_engines import ENGINES

pytestmark = pytest.mark.faults

MODES = {
    "full": ("mode: full", ()),
    "chunked": ("mode: chunked, chunk_column: id, chunk_size: 5", ()),
    "incremental": ("mode: incremental, cursor_column: id", ()),
    "poll": ("mode: poll, updated_at_column: at, primary_key: [id]", ()),
    "time_window": ("mode: time_window, time_column: at, start: 2026-01-01, end: 2026-01-03", ("2026-01-01",)),
}
AFTER_THE_MANIFEST = ("success", "cursor", "acknowledge", "metrics")
DAYS = ("2026-01-01 08:00:00", "2026-01-02 08:00:00")


@pytest.fixture(params=ENGINES)
def lab(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    """A table of eight items of two days."""
    made = lab_in(tmp_path, ENGINES[request.param], request, monkeypatch)
    made.create("items", {"id": "whole", "at": "moment", "note": "note"}, index=["at"])
    made.insert("items", [{"id": number, "at": DAYS[number // 4], "note": "x"} for number in range(8)])
    return made


def block(mode: str, policy: str = "fail") -> str:
    """Spell the export."""
    return f"{{name: items, table: items, {MODES[mode][0]}, on_schema_drift: {policy}}}"


def die(lab: Lab, mode: str, place: str, *, policy: str = "fail") -> None:
    """Run the export in a process of its own, which must die at this step of publishing."""
    lab.config(block(mode, policy))
    process = processes.run("tests.faults.dying", str(lab.folder / "rivet.yaml"), place, *MODES[mode][1])
    assert process.returncode == DIED, process.stdout + process.stderr


def run(lab: Lab, mode: str, *, policy: str = "fail") -> tuple[str, int]:
    """Run the export; how it ended."""
    outcome = lab.export(block(mode, policy), partitions=MODES[mode][1])
    return outcome.status, outcome.exit_code


def alter(lab: Lab, change: str = "add") -> None:
    """Add the column `nick`, or drop it again."""
    word = "ADD" if lab.engine.name == "sqlserver" else "ADD COLUMN"
    added = f"{word} nick {lab.engine.types['note']}"
    lab.sql(f"ALTER TABLE items {added if change == 'add' else 'DROP COLUMN nick'}")


def lose_state(lab: Lab) -> None:
    """Remove the state store."""
    Path(default_url(lab.folder).removeprefix("sqlite:///")).unlink()


REFUSED, DONE = ("failed", 4), ("success", 0)


@pytest.mark.matrix
@pytest.mark.parametrize("place", AFTER_THE_MANIFEST)
@pytest.mark.parametrize("mode", MODES)
def test_first_run_that_died_after_its_manifest_has_set_the_columns(lab: Lab, mode: str, place: str) -> None:
    """Its window is what readers see, so other columns beside it are refused, until a reset accepts them."""
    die(lab, mode, place)
    alter(lab)
    before = lab.rows("items")

    refused = run(lab, mode)
    unchanged = lab.rows("items") == before
    lab.state.reset("items")

    assert (REFUSED, True, DONE) == (refused, unchanged, run(lab, mode))
    assert {"nick"} <= set(lab.schema("items"))


@pytest.mark.matrix
@pytest.mark.parametrize("mode", MODES)
def test_lost_store_does_not_make_other_columns_pass(lab: Lab, mode: str) -> None:
    """The manifests are there; without a change the next run goes on."""
    assert run(lab, mode) == DONE
    lose_state(lab)
    unaltered = run(lab, mode)
    lose_state(lab)
    alter(lab)

    assert (DONE, REFUSED) == (unaltered, run(lab, mode))


@pytest.mark.matrix
def test_reset_forgets_the_columns_and_only_those_before_it(lab: Lab) -> None:
    """A run after a reset takes what it finds; when it dies after its manifest, that one counts."""
    assert run(lab, "full") == DONE
    lab.state.reset("items")
    alter(lab)
    die(lab, "full", "metrics")
    alter(lab, "drop")

    assert run(lab, "full") == REFUSED


@pytest.mark.matrix
@pytest.mark.parametrize("mode", ["full", "incremental"])
def test_later_run_that_died_has_set_the_columns_too(lab: Lab, mode: str) -> None:
    """The store remembers an older commit; a column that came with the newest may not go in silence."""
    assert run(lab, mode, policy="warn") == DONE
    alter(lab)
    lab.insert("items", [{"id": 8, "at": DAYS[1], "note": "x"}])
    die(lab, mode, "metrics", policy="warn")
    alter(lab, "drop")
    lab.insert("items", [{"id": 9, "at": DAYS[1], "note": "x"}])

    assert run(lab, mode) == REFUSED


# --- drains --------------------------------------------------------------------------------------


@pytest.fixture(params=["postgres", "mariadb"])
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shop]:
    """A shop whose position is kept in a file, so that it outlives the state store."""
    kept = f", checkpoint: '{tmp_path}/position.json', accept_untold: columns"
    if request.param == "postgres":
        with postgres_shop(request.getfixturevalue("fresh_database"), tmp_path / "shop", settings=kept) as made:
            yield made
    else:
        yield mysql_shop(request.getfixturevalue("fresh_mariadb"), tmp_path / "shop", settings=kept)


@pytest.mark.matrix
@pytest.mark.parametrize("place", ["success", "metrics", "checkpoint"])
def test_drain_whose_first_run_died_after_its_manifest_has_set_the_columns(shop: Shop, place: str) -> None:
    """The copy is there for readers; a table with another column is not copied over it."""
    shop.configure(export=", on_schema_drift: fail")
    shop.write()
    shop.die(place)
    shop.run("ALTER TABLE orders ADD COLUMN nick varchar(20)")

    with shop.refused(DriftRefused, "added nick", "rivet state reset -e orders"):
        shop.drain()


@pytest.mark.matrix
def test_drain_that_lost_the_store_holds_to_its_columns(shop: Shop) -> None:
    """Its position is in a file, and goes on; its columns are in the manifests."""
    shop.configure(export=", on_schema_drift: fail")
    shop.write()
    shop.drain()
    Path(default_url(shop.folder).removeprefix("sqlite:///")).unlink()
    shop.run("ALTER TABLE orders ADD COLUMN nick varchar(20)")
    shop.write()

    with shop.refused(DriftRefused, "added nick"):
        shop.drain()
