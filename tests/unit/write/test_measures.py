"""What is counted while rows pass, and duplicates over all chunks of a window."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from rivet_resources.contracts.parts import Measures
from rivet_resources.contracts.source import Page
from rivet_resources.errors import PartCorrupt, UnknownColumn, UnsupportedColumn, ValueDoesNotFit
from rivet_resources.write import measures
from rivet_resources.write.measures import Tally, cell_hashes, count_duplicates
from tests.fakes import FolderDestination


def duplicates(pieces: list[pa.Array], folder: Path) -> int:
    """Count the duplicates of a column that comes in so many chunks, as the driver does."""
    root = FolderDestination(folder / "lake").root("orders")
    paths = []
    for index, piece in enumerate(pieces):
        scratch = folder / f"chunk{index}"
        scratch.mkdir()
        table = pa.table({"x": piece})
        tally = Tally(table.schema, unique_columns=("x",), scratch=scratch)
        for start in range(0, max(len(piece), 1), 1_000):
            tally.add(Page(table.slice(start, 1_000), {}, 0.0))
        for number, file in enumerate(tally.sidecars()["x"]):
            paths.append(f"_staged/run/unique/0-chunk{index}-{number}.u128")
            root.put(paths[-1], file.read_bytes())
    return count_duplicates(root, paths)


def test_rows_nulls_special_values_and_cost_add_up_over_pages(tmp_path: Path) -> None:
    """Every page counts once; the longest statement is a maximum, the rest are sums."""
    table = pa.table({"id": [1, 2, 3], "born": [None, 5, None]})
    tally = Tally(table.schema, scratch=tmp_path)

    tally.add(Page(table, {"born": {"infinity": 2}}, statement_ms=7.0, retries=1))
    tally.add(Page(table.slice(1), {"born": {"infinity": 1, "bc": 4}}, statement_ms=3.0))
    found = tally.result(retries=2, throttled_seconds=0.5)

    assert (5, {"id": 0, "born": 3}) == (found.rows, found.nulls)
    assert {"born": {"infinity": 3, "bc": 4}} == found.special_values
    assert (2, 3, 7.0, 0.5) == (found.pages, found.retries, found.longest_statement_ms, found.throttled_seconds)
    assert found.arrow_bytes == table.nbytes + table.slice(1).nbytes
    assert found.cpu_seconds > 0
    assert found.peak_mb > 10


def test_column_without_nulls_is_counted_as_zero_also_without_rows(tmp_path: Path) -> None:
    """A null ratio of an empty window can be computed for every column."""
    schema = pa.schema([("id", pa.int64()), ("x", pa.string())])

    assert {"id": 0, "x": 0} == Tally(schema, scratch=tmp_path).result().nulls


def test_null_where_the_catalog_says_there_is_none_fails(tmp_path: Path) -> None:
    """Loudly, naming the column and no value."""
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False)])
    table = pa.Table.from_arrays([pa.array([1, None])], schema=schema)

    with pytest.raises(ValueDoesNotFit, match="'id' is NOT NULL"):
        Tally(schema, scratch=tmp_path).add(Page(table, {}, 0.0))


UNIQUE = [
    ("int", pa.array([1, 2, 3, -1]), 0),
    ("int", pa.array([1, 2, 1, 1, None, None]), 2),
    ("int8", pa.array([-1, 127, -1], pa.int8()), 1),
    ("uint64", pa.array([2**64 - 1, 2**63, 2**64 - 1], pa.uint64()), 1),
    ("bool", pa.array([True, False, None, True]), 1),
    ("float", pa.array([0.0, -0.0, float("nan"), float("nan"), 1.5]), 2),
    ("float32", pa.array([0.1, 0.2, 0.1], pa.float32()), 1),
    ("text", pa.array(["a", "", "a", None, "A", "a "]), 1),
    ("text with zero bytes", pa.array(["a", "a\0", "\0a"]), 0),
    ("large text", pa.array(["a", "b", "a"], pa.large_string()), 1),
    ("binary", pa.array([b"", b"\0", b"\0\0", b"\0"]), 1),
    ("decimal", pa.array([Decimal("1.10"), Decimal("1.1"), Decimal("-1.1")], pa.decimal128(38, 2)), 1),
    ("decimal256", pa.array([Decimal("1.1"), Decimal("1.1"), Decimal("2.0")], pa.decimal256(60, 2)), 1),
    ("date", pa.array([0, 1, 0], pa.int32()).view(pa.date32()), 1),
    ("instant", pa.array([0, -1, 0], pa.int64()).view(pa.timestamp("us", "UTC")), 1),
    ("time", pa.array([0, 1, 0], pa.int64()).view(pa.time64("us")), 1),
    ("uuid", pa.ExtensionArray.from_storage(pa.uuid(), pa.array([b"a" * 16, b"b" * 16, b"a" * 16], pa.binary(16))), 1),
    ("fixed", pa.array([b"abc", b"abd", b"abc"], pa.binary(3)), 1),
    ("dictionary", pa.array(["x", "y", "x"]).dictionary_encode(), 1),
    ("all null", pa.array([None, None], pa.string()), 0),
    ("empty", pa.array([], pa.int64()), 0),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "cells", "expected"), UNIQUE, ids=[f"{k}{i}" for i, (k, _, _) in enumerate(UNIQUE)])
def test_duplicates_are_rows_beyond_the_first_of_each_value(
    kind: str, cells: pa.Array, expected: int, tmp_path: Path
) -> None:
    """In one chunk and, cut anywhere, in two; NULLs are not values."""
    assert expected == duplicates([cells], tmp_path / _new(tmp_path, "whole"))
    for cut in range(1, len(cells)):
        assert expected == duplicates([cells.slice(0, cut), cells.slice(cut)], _new(tmp_path, f"cut{cut}"))


def _new(folder: Path, name: str) -> Path:
    """Make a folder."""
    (folder / name).mkdir()
    return folder / name


@pytest.mark.parametrize("as_text", [False, True])
def test_duplicates_are_exact_beyond_one_spill_and_one_bucket(
    as_text: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small limits give many files and many buckets, and still the count of an honest set."""
    monkeypatch.setattr(measures, "SPILL_CELLS", 2_000)
    monkeypatch.setattr(measures, "BUCKET_CELLS", 700)
    numbers = np.random.default_rng(3).integers(-4_000, 4_000, 15_000)
    cells = pa.array([f"customer {n}" for n in numbers]) if as_text else pa.array(numbers)

    found = duplicates([cells.slice(0, 7_000), cells.slice(7_000)], tmp_path)

    assert len(numbers) - len(set(numbers.tolist())) == found


def test_value_that_fills_a_table_costs_one_cell_a_file(tmp_path: Path) -> None:
    """A hot value cannot blow up the driver: a sidecar holds distinct cells only."""
    table = pa.table({"x": ["same"] * 5_000})
    tally = Tally(table.schema, unique_columns=("x",), scratch=tmp_path)
    tally.add(Page(table, {}, 0.0))

    (file,) = tally.sidecars()["x"]

    assert 32 == file.stat().st_size
    assert [4_999, 1] == np.fromfile(file, "<u8")[:2].tolist()


@pytest.mark.parametrize("cells", [c for _, c, _ in UNIQUE], ids=[f"{k}{i}" for i, (k, _, _) in enumerate(UNIQUE)])
def test_hash_of_a_cell_does_not_depend_on_its_neighbours(cells: pa.Array) -> None:
    """Slicing a column gives the hashes of the slice."""
    whole = cell_hashes(cells)
    apart = [cell_hashes(cells.slice(index, 1)) for index in range(len(cells))]

    assert whole.tolist() == [pair for piece in apart for pair in piece.tolist()]


def test_neighbouring_integers_spread_over_all_buckets() -> None:
    """The first half of a cell is even, or one bucket would hold the table."""
    high = cell_hashes(pa.array(np.arange(100_000)))[:, 0]

    counts = np.bincount((high >> np.uint64(60)).astype(int), minlength=16)
    assert 0.9 < counts.min() / counts.mean() <= counts.max() / counts.mean() < 1.1


@pytest.mark.parametrize(("names", "error"), [(("nope",), UnknownColumn), (("tags",), UnsupportedColumn)])
def test_column_whose_uniqueness_cannot_be_measured_is_refused(
    names: tuple[str, ...], error: Any, tmp_path: Path
) -> None:
    """Before a row is read, naming the setting."""
    schema = pa.schema([("id", pa.int64()), ("tags", pa.list_(pa.string()))])

    with pytest.raises(error, match="unique_columns"):
        Tally(schema, unique_columns=names, scratch=tmp_path)


@pytest.mark.parametrize("content", [None, b"", b"\1" + b"\0" * 15 + b"cut", (2).to_bytes(16, "big")])
def test_missing_or_cut_sidecar_fails_instead_of_counting_less(content: bytes | None, tmp_path: Path) -> None:
    """A gate never passes on half of the evidence."""
    root = FolderDestination(tmp_path).root("orders")
    if content is not None:
        root.put("_staged/run/unique/0.u128", content)

    with pytest.raises(PartCorrupt):
        count_duplicates(root, ["_staged/run/unique/0.u128"])


def test_measures_of_two_chunks_add() -> None:
    """Sums add, peaks take the larger."""
    one = Measures(rows=1, nulls={"a": 1}, unique={"a": ["x"]}, peak_mb=5.0, longest_statement_ms=1.0)
    two = Measures(rows=2, nulls={"a": 2}, unique={"a": ["y"]}, peak_mb=3.0, longest_statement_ms=9.0)

    both = one + two

    assert (3, {"a": 3}, {"a": ["x", "y"]}, 5.0, 9.0) == (
        both.rows,
        both.nulls,
        both.unique,
        both.peak_mb,
        both.longest_statement_ms,
    )
