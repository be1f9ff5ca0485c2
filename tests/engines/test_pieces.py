"""Mirrors that keep what no change touches: exact, and only what was touched is written again."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from rivet_resources.commit.manifest import Manifest
from rivet_resources.commit.publish import publish
from rivet_resources.prove.validate import validate
from rivet_resources.shape.change_envelope import as_inserts
from rivet_resources.state.store import open_state
from rivet_resources.tables.mirror import stage_mirror
from tests.applying import TABLE, Change, Lake, Shop, position

pytestmark = pytest.mark.spark


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make each part a piece of its own, and each new end of the keys."""
    for name in ("tables.places.SPREAD_BYTES", "tables.places.PIECE_BYTES", "tables.pieces.PIECE_BYTES"):
        monkeypatch.setattr(f"rivet_resources.{name}", 1)
    monkeypatch.setattr("rivet_resources.tables.places.MOST_PIECES", 10**6)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """An empty folder and a state store."""
    return Lake.at(tmp_path / "lake", open_state(f"sqlite:///{tmp_path}/state.db"))


def copied(lake: Lake, rows: list[dict[str, Any]], *, pieces: int, schema: pa.Schema = TABLE) -> None:
    """Publish a first copy in several parts."""
    lake.window(as_inserts(pa.Table.from_pylist(rows, schema), position(1)), high=position(1), pieces=pieces)


def applied(lake: Lake, spark: Any, **more: Any) -> Manifest:
    """Publish the next version; all that it says of its rows is true."""
    derived = lake.derived("mirror", **more)
    staged = stage_mirror(derived, spark=spark)
    assert staged is not None
    manifest = publish(staged, root=derived.root, state=lake.state)
    assert manifest is not None
    assert not validate(derived.root, export=derived.export, depth="full").all_flaws
    assert manifest.row_count == sum(part.rows for part in manifest.parts) == len(lake.rows("mirror"))
    assert {path for path in derived.root.list() if path.endswith(".parquet")} == {p.path for p in manifest.parts}
    return manifest


def paths(manifest: Manifest) -> set[str]:
    """Name the parts."""
    return {part.path for part in manifest.parts}


def numbered(first: int, last: int) -> list[dict[str, Any]]:
    """Make rows by their keys."""
    return [{"id": n, "area": "n", "note": str(n), "paid": None} for n in range(first, last + 1)]


def changed(op: str, number: int, at: int, note: str = "new") -> Change:
    """Make a change that carries its whole row."""
    row = {"id": number, "area": "n", "note": note, "paid": None}
    return {"__op": op, "__pos": position(at), "__seq": 1, "__ts": None, "__unchanged": None, **row}


@pytest.mark.parametrize("seed", range(3))
def test_random_cuts_give_what_the_table_is(seed: int, tmp_path: Path, spark_runtime: Any) -> None:
    """Updates, deletes and moved keys of a table in many pieces; versions keep some of them."""
    lake = Lake.at(tmp_path / "lake", open_state(f"sqlite:///{tmp_path}/state.db"))
    shop = Shop.lived(seed, carries_all=True, ids=tuple(range(60)), copied=40, truncates=0.0)
    copied(lake, sorted(shop.copied.values(), key=lambda one: one["id"]), pieces=8)
    before, kept, begin = paths(applied(lake, spark_runtime)), 0, 0
    for end in (4, 8, len(shop.log)):
        lake.drain([one for part in shop.log[begin:end] for one in part.changes], high=position(end + 1), pieces=2)
        begin = end
        now = paths(applied(lake, spark_runtime))
        before, kept = now, kept + len(now & before)

        assert Counter(tuple(r.values()) for r in shop.log[end - 1].after.values()) == Counter(lake.rows("mirror"))
    assert kept


def test_only_touched_pieces_are_written_again(lake: Lake, spark_runtime: Any) -> None:
    """One row of eight parts: seven stay where they are, with what was counted of them."""
    copied(lake, numbered(1, 80), pieces=8)
    first = applied(lake, spark_runtime)
    lake.drain([changed("update", 35, 2)], high=position(3))
    second = applied(lake, spark_runtime)

    assert (8, 8, 7) == (len(paths(first)), len(paths(second)), len(paths(first) & paths(second)))
    assert 80 == second.row_count
    assert first.column_checksums != second.column_checksums
    assert {"35": "new"}.items() <= {str(row[0]): row[2] for row in lake.rows("mirror")}.items()


def test_keys_beyond_the_last_come_as_a_piece_of_their_own(lake: Lake, spark_runtime: Any) -> None:
    """A table that grows at its end is not written again."""
    copied(lake, numbered(1, 40), pieces=4)
    first = applied(lake, spark_runtime)
    lake.drain([changed("insert", number, 2) for number in (41, 42)], high=position(3))
    second = applied(lake, spark_runtime)

    assert paths(first) < paths(second)
    assert 42 == second.row_count


def test_piece_whose_rows_all_go_is_gone(lake: Lake, spark_runtime: Any) -> None:
    """No empty part stays, and a key may come back later."""
    copied(lake, numbered(1, 40), pieces=4)
    first = applied(lake, spark_runtime)
    lake.drain([changed("delete", number, 2) for number in range(11, 21)], high=position(3))
    second = applied(lake, spark_runtime)
    lake.drain([changed("insert", 15, 4)], high=position(5))
    third = applied(lake, spark_runtime)

    assert paths(second) < paths(first)
    assert 31 == third.row_count
    assert 1 == sum(row[0] == 15 for row in lake.rows("mirror"))


def test_window_without_changes_writes_no_part(lake: Lake, spark_runtime: Any) -> None:
    """The position moves, and nothing else."""
    copied(lake, numbered(1, 40), pieces=4)
    first = applied(lake, spark_runtime)
    lake.drain([], high=position(5))
    second = applied(lake, spark_runtime)

    assert paths(first) == paths(second)
    assert first.column_checksums == second.column_checksums
    assert second.applied is not None
    assert position(5) == second.applied.high


@pytest.mark.parametrize("why", ["truncate", "null key", "unique", "new column"])
def test_what_nobody_can_keep_is_written_whole(lake: Lake, spark_runtime: Any, why: str) -> None:
    """An emptied table, a changed key that is NULL, values that are to be unique, columns that changed."""
    copied(lake, numbered(1, 40), pieces=4)
    more = {"unique_columns": ("note",)} if why == "unique" else {}
    first = applied(lake, spark_runtime, **more)
    changes, schema = [changed("update", 5, 2)], TABLE
    if why == "truncate":
        changes.insert(0, {**changed("truncate", 0, 2), "__seq": 0, "id": None, "area": None, "note": None})
    if why == "null key":
        changes[0]["id"] = None
    if why == "new column":
        schema = TABLE.append(pa.field("more", pa.string()))
    lake.drain(changes, high=position(3), schema=schema)
    second = applied(lake, spark_runtime, **more)

    assert not paths(first) & paths(second)
    assert {"truncate": 1, "null key": 41}.get(why, 40) == second.row_count


def test_version_that_lost_the_race_removes_nothing_of_the_winner(lake: Lake, spark_runtime: Any) -> None:
    """What both keep by reference stays."""
    from rivet_resources.errors import WindowTaken

    copied(lake, numbered(1, 40), pieces=4)
    applied(lake, spark_runtime)
    lake.drain([changed("update", 5, 2)], high=position(3))
    derived = lake.derived("mirror")
    slower = stage_mirror(derived, spark=spark_runtime)
    winner = applied(lake, spark_runtime)

    assert slower is not None
    with pytest.raises(WindowTaken):
        publish(slower, root=derived.root, state=lake.state)
    assert paths(winner) == {path for path in derived.root.list() if path.endswith(".parquet")}
    assert 40 == len(lake.rows("mirror"))
