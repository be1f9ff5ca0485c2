"""Frames of changes, many random tables at a time in one job, against tables that know their own past."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest

from rivet_resources.contracts.change_log import change_schema
from rivet_resources.shape.change_envelope import as_inserts
from rivet_resources.shape.shape import EXPORTED_AT
from rivet_resources.tables import frames
from rivet_resources.tables.frames import LACKING, Differences, mirror_differences
from rivet_resources.tables.versions import NAMES, VERSION, opened, versioned
from rivet_resources.tables.writing import COMPILED_BYTES, session_for
from tests.applying import KEY, TABLE, Shop, instant, position

pytestmark = pytest.mark.spark

TABLES = 60
SPAN = 20  # transactions to a table, at most
CHANGES = change_schema(TABLE)


@pytest.fixture(scope="module")
def spark(spark_runtime: Any) -> Any:
    """A session with the settings of small jobs."""
    return session_for(spark_runtime, 0)


@pytest.fixture(scope="module")
def compiled(spark_runtime: Any) -> Any:
    """A session with the settings of large jobs, but for the number of their partitions."""
    session = session_for(spark_runtime, COMPILED_BYTES)
    assert session.conf.get("spark.sql.codegen.wholeStage") == "true"
    return session


@pytest.fixture(scope="module")
def shops() -> list[Shop]:
    """Many tables with keys and positions of their own: one stream to Spark, each its own oracle."""
    return [
        Shop.lived(seed, ids=(10 * seed, 10 * seed + 1, 10 * seed + 2), begin=seed * SPAN + 1, truncates=0)
        for seed in range(TABLES)
    ]


def changes_of(shops: Iterable[Shop], *, first: int = 0, last: int = SPAN) -> pa.Table:
    """Join what the logs hold of some transactions, in disorder and with every third change twice."""
    changes = [one for shop in shops for part in shop.log[first:last] for one in part.changes]
    Shop.lived(0, transactions=0).random.shuffle(changes)
    return pa.Table.from_pylist(changes + changes[::3], CHANGES)


def copies_of(shops: Iterable[Shop]) -> pa.Table:
    """Join the first copies, with the envelope that rows of a copy have."""
    return pa.concat_tables(
        as_inserts(pa.Table.from_pylist(list(shop.copied.values()), TABLE), position(shop.begin)) for shop in shops
    )


def frame(spark: Any, table: pa.Table) -> Any:
    """Return a table to Spark."""
    return spark.createDataFrame(table)


def cells(made: Any) -> Counter[tuple[Any, ...]]:
    """Collect rows, their cells as pyarrow gives them."""
    return Counter(tuple(row.values()) for row in made.toArrow().to_pylist())


def states(shops: Iterable[Shop]) -> Counter[tuple[Any, ...]]:
    """Join what the tables hold."""
    return Counter(row for shop in shops for row in shop.states())


def mirror(base: Any, changes: Any) -> Any:
    """Do what a mirror does with changes of which none is a truncate."""
    rows = frames.filled(frames.beyond(changes, ""), base, KEY, ["note"], moves=True)
    return frames.mirrored(base, rows, KEY, TABLE.names).drop(LACKING)


def history(base: Any, changes: Any) -> Any:
    """Do what a history does."""
    rows = frames.filled(frames.beyond(changes, ""), base.where("is_current"), KEY, ["note"], moves=True)
    return versioned(base, rows, KEY, TABLE.names).drop(LACKING)


@pytest.mark.parametrize(("cut", "session"), [(0, "spark"), (6, "compiled")])
def test_changes_make_the_table_as_it_is(
    request: pytest.FixtureRequest, shops: list[Shop], cut: int, session: str
) -> None:
    """In whatever order changes come, however often, and in two goes as in one, the mirror is the table."""
    spark = request.getfixturevalue(session)
    base = frame(spark, copies_of(shops)).select(*TABLE.names)
    base = frame(spark, mirror(base, frame(spark, changes_of(shops, last=cut))).toArrow()) if cut else base

    assert states(shops) == cells(mirror(base, frame(spark, changes_of(shops, first=cut))))


@pytest.mark.parametrize(("cut", "session"), [(0, "compiled"), (7, "spark")])
def test_changes_make_every_state_the_table_had(
    request: pytest.FixtureRequest, shops: list[Shop], cut: int, session: str
) -> None:
    """Versions in one go, and in two, are those the table went through."""
    spark = request.getfixturevalue(session)
    base = opened(frame(spark, copies_of(shops)), TABLE.names)
    base = frame(spark, history(base, frame(spark, changes_of(shops, last=cut))).toArrow()) if cut else base

    made = cells(history(base, frame(spark, changes_of(shops, first=cut))))

    assert Counter(row for shop in shops for row in shop.versions()) == made


def test_value_that_nobody_knows_is_named(spark: Any) -> None:
    """An update of an unseen key leaves NULL where the log says `as before`, and LACKING names the column."""
    envelope = {"__op": "update", "__pos": position(5), "__seq": 1, "__ts": None, "__unchanged": ["note"]}
    change = {**envelope, "id": 1, "area": "n", "note": None, "paid": None}
    rows = frame(spark, pa.Table.from_pylist([change], CHANGES))

    (row,) = frames.filled(rows, None, KEY, ["note"], moves=False).collect()

    assert (None, ["note"]) == (row["note"], row[LACKING])


def test_value_travels_along_a_chain_of_key_changes(spark: Any) -> None:
    """A row that changes its key three times in one batch keeps the value that the log never repeated."""
    chain = [1, 2, 3, 4]
    made: list[dict[str, Any]] = []
    for number, (old, new) in enumerate(pairwise(chain)):
        at = {"__pos": position(9), "__ts": None, "area": None, "note": None, "paid": None}
        made.append({**at, "__op": "delete", "__seq": 2 * number, "__unchanged": None, "id": old})
        made.append({**at, "__op": "update", "__seq": 2 * number + 1, "__unchanged": ["note"], "id": new})
    base = frame(spark, pa.Table.from_pylist([{"id": 1, "area": None, "note": "kept", "paid": None}], TABLE))

    found = cells(mirror(base, frame(spark, pa.Table.from_pylist(made, CHANGES))))

    assert Counter({(4, None, "kept", None): 1}) == found


@pytest.mark.parametrize("broadcast", [True, False])
@pytest.mark.parametrize("null_keys", [True, False])
def test_base_rows_with_null_keys_stay_however_the_join_is_made(spark: Any, broadcast: bool, null_keys: bool) -> None:
    """A base row whose key is NULL goes only with a change of that very key."""
    base = frame(spark, pa.Table.from_pylist([row(None, "n"), row(1, None), row(2, "n")], TABLE))
    envelope = {"__op": "delete", "__pos": position(5), "__seq": 1, "__ts": None, "__unchanged": None}
    gone = [row(2, "n"), *([row(None, "n")] if null_keys else [])]
    changes = frame(spark, pa.Table.from_pylist([{**envelope, **one} for one in gone], CHANGES))

    made = frames.mirrored(base, changes, KEY, TABLE.names, null_keys=null_keys, broadcast=broadcast)

    kept = {(1, None, None, None)} | (set() if null_keys else {(None, "n", None, None)})
    assert Counter(kept) == cells(made)


def row(id_: int | None, area: str | None, note: str | None = None) -> dict[str, Any]:
    """Make a row of TABLE."""
    return {"id": id_, "area": area, "note": note, "paid": None}


def test_versions_begin_with_the_columns_that_are_promised(spark: Any, shops: list[Shop]) -> None:
    """The frame of versions has the columns of VERSION, in order, then those of the table."""
    made = opened(frame(spark, copies_of(shops[:1])), TABLE.names)

    assert [*NAMES, *TABLE.names] == made.columns == history(made, frame(spark, changes_of(shops[:1]))).columns
    assert [field.name for field in VERSION] == list(NAMES)


def test_later_export_of_the_same_row_is_no_new_state(spark: Any) -> None:
    """Rivet's own columns differ from run to run and say nothing of the row."""
    table = TABLE.append(EXPORTED_AT)
    envelope = {"__op": "update", "__seq": 1, "__ts": None, "__unchanged": None}
    made = [{**envelope, **row(1, "n", "a"), "__pos": position(n), EXPORTED_AT.name: instant(n)} for n in (2, 3)]
    rows = frame(spark, pa.Table.from_pylist(made, change_schema(table)))

    (version,) = versioned(None, rows, KEY, table.names).collect()

    assert (position(2), True) == (version["valid_from_pos"], version["is_current"])


CASES: dict[str, tuple[Sequence[dict[str, Any]], Sequence[dict[str, Any]], Differences]] = {
    "equal": ([row(1, "n", "a"), row(None, None)], [row(None, None), row(1, "n", "a")], Differences(0, 0, 0, 2)),
    "missing": ([], [row(1, None)], Differences(1, 0, 0, 0)),
    "extra": ([row(1, None), row(2, None)], [row(2, None)], Differences(0, 1, 0, 1)),
    "different": ([row(1, "n", None), row(2, "n", "a")], [row(1, "n", "a"), row(2, "n", "b")], Differences(0, 0, 2, 0)),
    "all of them": (
        [row(1, "n", "a"), row(2, "n", "a"), row(3, "n")],
        [row(1, "n", "b"), row(3, "n"), row(4, "n")],
        Differences(1, 1, 1, 1),
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_differences_are_counted_by_kind(
    spark: Any, case: tuple[Sequence[dict[str, Any]], Sequence[dict[str, Any]], Differences]
) -> None:
    """Rows that only one side has, and rows that differ, are told apart; NULL equals NULL."""
    ours, theirs, expected = case
    mirror_rows = frame(spark, pa.Table.from_pylist(list(ours), TABLE))
    source_rows = frame(spark, pa.Table.from_pylist(list(theirs), TABLE))

    found = mirror_differences(mirror_rows, source_rows, KEY)

    assert expected == found
    assert (expected.missing + expected.extra + expected.different > 0) == found.any


def test_column_that_the_mirror_lacks_is_null_in_it(spark: Any) -> None:
    """A column added at the source differs only where it holds a value."""
    source_rows = frame(spark, pa.Table.from_pylist([row(1, "n", "a"), row(2, "n", None)], TABLE))
    mirror_rows = source_rows.drop("note")

    assert Differences(0, 0, 1, 1) == mirror_differences(mirror_rows, source_rows, KEY)
