"""Which rows of which parts live: keys meet in buckets, whatever their type, and the last change decides."""

from __future__ import annotations

import json
import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rivet_resources.contracts.change_log import change_schema
from rivet_resources.contracts.relation import Chunk
from rivet_resources.contracts.types import JSON, UUID
from rivet_resources.read.executor import rebuild
from rivet_resources.shape.change_envelope import as_inserts
from rivet_resources.tables.buckets import BUCKETS_DDL, REFUSED, RowAddress, SurvivingRows, decide, spread_keys
from rivet_resources.tables.places import Living
from rivet_resources.tables.reading import Truncate
from rivet_resources.tables.writing import columns_of
from tests.applying import KEY, TABLE, Shop, position
from tests.fakes import FolderRoot

SPAN = 20  # transactions to a table, at most


def parts_at(folder: Path, tables: list[pa.Table], *, row_group_size: int = 1_000) -> tuple[RowAddress, ...]:
    """Write parts, to be read again as a destination gives them."""
    for number, table in enumerate(tables):
        pq.write_table(table, folder / f"{number}.parquet", row_group_size=row_group_size)
    root = FolderRoot(folder)
    return tuple(
        RowAddress(root, f"{number}.parquet", table.num_rows, chunk=number % 2) for number, table in enumerate(tables)
    )


def decided(choice: SurvivingRows) -> dict[int, list[int]]:
    """Do what Spark's tasks and its exchange do; the living rows by part."""
    numbers = [pa.RecordBatch.from_pydict({"id": [number]}) for number in range(len(choice.places))]
    met: dict[int, list[dict[str, Any]]] = {}
    for batch in spread_keys(iter(numbers), choice=choice):
        assert [field.split()[0] for field in BUCKETS_DDL.split(", ")] == batch.schema.names
        for message in batch.to_pylist():
            met.setdefault(message["bucket"], []).append(message)
    assert set(met) <= set(range(choice.buckets))
    living: dict[int, list[int]] = {}
    for messages in met.values():
        for batch in decide(iter([pa.RecordBatch.from_pylist(messages)]), choice=choice):
            for one in batch.to_pylist():
                if one["part"] == REFUSED:
                    raise rebuild(json.loads(one["rows"]))
                assert choice.places[one["part"]].chunk == one["chunk"]
                living.setdefault(one["part"], []).extend(np.frombuffer(one["rows"], np.uint32).tolist())
    return {part: sorted(rows) for part, rows in living.items()}


def rows_of(choice: SurvivingRows, table: pa.Schema) -> Iterator[tuple[Any, ...]]:
    """Read the rows that live."""
    parts = [(choice.places[n], np.array(rows, np.uint32)) for n, rows in decided(choice).items()]
    for page in Living(parts, KEY[0]).pages(Chunk(0, "cursor", "orders"), columns_of(table)):
        yield from (tuple(row.values()) for row in page.table.to_pylist())


def changes_of(shops: list[Shop]) -> pa.Table:
    """Join logs, in disorder and with every third change twice."""
    changes = [one for shop in shops for part in shop.log for one in part.changes]
    shops[0].random.shuffle(changes)
    return pa.Table.from_pylist(changes + changes[::3], change_schema(TABLE))


def choose(places: tuple[RowAddress, ...], base_parts: int, **more: Any) -> SurvivingRows:
    """Describe a decision over TABLE."""
    key = pa.schema([TABLE.field(name) for name in KEY])
    return replace(SurvivingRows(places, base_parts, key, newest="", cut=None, buckets=5), **more)


@pytest.mark.parametrize("buckets", [1, 2, 7])
def test_many_random_tables_are_as_they_are(tmp_path: Path, buckets: int) -> None:
    """In whatever order changes come, however often, in parts and buckets of any number, the rows are the tables'."""
    shops = [
        Shop.lived(seed, ids=(10 * seed, 10 * seed + 1, None if seed == 5 else 10 * seed + 2), begin=seed * SPAN + 1,
                   truncates=0, carries_all=True)
        for seed in range(60)
    ]  # fmt: skip
    copied = [as_inserts(pa.Table.from_pylist(list(shop.copied.values()), TABLE), position(1)) for shop in shops]
    base, changes = pa.concat_tables(copied), changes_of(shops)
    tables = [base.slice(0, 100), base.slice(100), changes.slice(0, 7), changes.slice(7, 500), changes.slice(507)]
    choice = choose(parts_at(tmp_path, tables, row_group_size=64), 2, buckets=buckets)

    found = Counter(rows_of(choice, TABLE))

    assert Counter(row for shop in shops for row in shop.states()) == found


@pytest.mark.parametrize("seed", range(25))
def test_nothing_before_the_last_truncate_lives(tmp_path: Path, seed: int) -> None:
    """A table that was emptied is what was written since, also by the rest of the very transaction."""
    shop = Shop.lived(seed, truncates=0.15, carries_all=True)
    emptied = [one for part in shop.log for one in part.changes if one["__op"] == "truncate"]
    cut = Truncate(emptied[-1]["__pos"], emptied[-1]["__seq"], None) if emptied else None
    base = [pa.Table.from_pylist(list(shop.copied.values()), TABLE)] if cut is None else []
    places = parts_at(tmp_path, [*base, changes_of([shop])])

    assert Counter(shop.states()) == Counter(rows_of(choose(places, len(base), cut=cut), TABLE))


def test_changes_that_the_base_holds_are_not_applied_again(tmp_path: Path) -> None:
    """What stands at or below the base's newest position comes late, and means nothing."""
    shop = Shop.lived(4, truncates=0, carries_all=True)
    base = pa.Table.from_pylist([dict(zip(TABLE.names, row, strict=True)) for row in shop.states()], TABLE)
    places = parts_at(tmp_path, [base, changes_of([shop])])

    assert {0: list(range(base.num_rows))} == decided(choose(places, 1, newest=position(len(shop.log))))


def extension(kind: pa.DataType, stored: list[object]) -> pa.Array:
    """Make an array of an extension type."""
    return pa.ExtensionArray.from_storage(kind, pa.array(stored, kind.storage_type))


# Four different keys of each type, the last of them NULL; the third and the NULL are changed.
KEYS = {
    "int8": pa.array([1, 2, -3, None], pa.int8()),
    "int64": pa.array([0, 2**62, -1, None], pa.int64()),
    "uint64": pa.array([0, 1, 2**64 - 1, None], pa.uint64()),
    "decimal": pa.array([Decimal("1.10"), Decimal("-1.10"), Decimal(0), None], pa.decimal128(20, 2)),
    "wide decimal": pa.array([Decimal(1), Decimal("9" * 60), Decimal(0), None], pa.decimal256(60, 0)),
    "text": pa.array(["", "é", "a" * 200, None]),
    "bytes": pa.array([b"", b"\x00", b"\xff\x00", None]),
    "fixed bytes": pa.array([b"a" * 16, b"\xff" * 16, b"\x00" * 16, None], pa.binary(16)),
    "date": pa.array([date(1, 1, 1), date(2026, 1, 1), date(9999, 12, 31), None]),
    "time": pa.array([time(0), time(1), time(23, 59, 59, 999_999), None], pa.time64("us")),
    "instant": pa.array([datetime(1, 1, 1), datetime(2026, 1, 1), datetime.max, None], pa.timestamp("us", "UTC")),
    "nanoseconds": pa.array([1, 2, 3, None], pa.timestamp("ns")),
    "uuid": extension(UUID, [uuid.UUID(int=1).bytes, uuid.UUID(int=2).bytes, uuid.UUID(int=3).bytes, None]),
    "json": extension(JSON, ["1", "2", "{}", None]),
}  # fmt: skip


@pytest.mark.parametrize("cells", KEYS.values(), ids=KEYS)
@pytest.mark.parametrize("alone", [True, False], ids=["one column", "two columns"])
def test_equal_keys_of_any_type_meet(tmp_path: Path, cells: pa.Array, alone: bool) -> None:
    """A changed key replaces its base row and no other; NULL equals NULL."""
    table = pa.table({"key": cells, "area": ["n", None, "n", None]})
    changed = table.take(pa.array([3, 2]))
    base = pa.concat_tables([pa.table({"key": cells.slice(0, 0), "area": pa.array([], pa.string())}), table])
    made = as_inserts(changed, position(2))
    made = made.set_column(0, made.schema.field("__op"), pa.array(["update", "delete"]))
    places = parts_at(tmp_path, [base, made])
    key = pa.schema([table.schema.field(name) for name in (["key"] if alone else ["area", "key"])])

    assert {0: [0, 1], 1: [0]} == decided(choose(places, 1, key=key, buckets=8))


def test_key_of_an_older_narrower_type_meets_its_newer_one(tmp_path: Path) -> None:
    """A key that was widened since is still the same key."""
    base = pa.table({"id": pa.array([1, 2], pa.int32())})
    changes = as_inserts(pa.table({"id": pa.array([2, 2**40])}), position(2))
    key = pa.schema([("id", pa.int64())])

    assert {0: [0], 1: [0, 1]} == decided(choose(parts_at(tmp_path, [base, changes]), 1, key=key))


def test_part_without_a_key_column_has_null_there(tmp_path: Path) -> None:
    """A column added to the key later is NULL in rows of before."""
    base = pa.table({"id": pa.array([1, 2])})
    changes = as_inserts(pa.table({"id": pa.array([1, 2]), "area": pa.array([None, "n"])}), position(2))
    key = pa.schema([("id", pa.int64()), ("area", pa.string())])

    assert {0: [1], 1: [0, 1]} == decided(choose(parts_at(tmp_path, [base, changes]), 1, key=key))


@pytest.mark.parametrize("rows", [[0, 3, 8], [5], [], list(range(9)), None])
def test_rows_told_are_the_rows_read(tmp_path: Path, rows: list[int] | None) -> None:
    """Across row groups, and past those that hold none; a column the part lacks is NULL, one altered is cast."""
    (place,) = parts_at(
        tmp_path, [pa.table({"id": pa.array(range(9), pa.int32()), "gone": ["x"] * 9})], row_group_size=4
    )
    wanted = pa.schema([("id", pa.int64()), ("new", pa.string())])
    told = None if rows is None else np.array(rows, np.uint32)

    pages = Living([(place, told)], wanted.names[0]).pages(Chunk(0, "cursor", "orders"), columns_of(wanted))

    tables = [page.table for page in pages]
    assert all(table.schema.types == wanted.types for table in tables)
    expected = list(range(9)) if rows is None else rows
    assert [(number, None) for number in expected] == [tuple(r.values()) for t in tables for r in t.to_pylist()]
