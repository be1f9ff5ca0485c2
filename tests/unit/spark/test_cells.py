"""What Spark has no type for goes there and comes back as it was."""

from __future__ import annotations

import uuid
from datetime import time
from decimal import Decimal

import pyarrow as pa
import pytest

from rivet_resources.contracts.types import JSON, UUID
from rivet_resources.spark.cells import from_spark, spark_type, to_spark


def extension(kind: pa.DataType, stored: list[object]) -> pa.Array:
    """Make an array of an extension type."""
    return pa.ExtensionArray.from_storage(kind, pa.array(stored, kind.storage_type))


ID, OTHER = uuid.UUID(int=7).bytes, uuid.uuid4().bytes
CELLS = {
    "time": pa.array([time(1, 2, 3, 4), time(0), None, time(23, 59, 59, 999_999)], pa.time64("us")),
    "timestamp ns": pa.array([1, None, 1_700_000_000_000_000_001], pa.timestamp("ns")),
    "instant ns": pa.array([1, None, -5], pa.timestamp("ns", "UTC")),
    "wide decimal": pa.array([Decimal("1.5"), None, Decimal("-" + "9" * 40 + ".123")], pa.decimal256(50, 3)),
    "uuid": extension(UUID, [ID, None, OTHER]),
    "json": extension(JSON, ['{"a": 1}', None, "null"]),
    "uint64": pa.array([2**64 - 1, None, 0], pa.uint64()),
    "fixed bytes": pa.array([b"a" * 16, None], pa.binary(16)),
    "list of times": pa.array([[time(1)], None, [], [None, time(2)]], pa.list_(pa.time64("us"))),
    "list of uuids": pa.ListArray.from_arrays(
        pa.array([0, 2, 2, 3], pa.int32()), extension(UUID, [ID, None, OTHER]), mask=pa.array([False, True, False])
    ),
    "list of wide decimals": pa.array([[Decimal(1)], None], pa.list_(pa.decimal256(50, 0))),
    "plain": pa.array(["a", None, ""]),
}


@pytest.mark.parametrize("cells", CELLS.values(), ids=CELLS)
@pytest.mark.parametrize("start", [0, 1])
def test_cells_come_back_from_spark_as_they_went(cells: pa.Array, start: int) -> None:
    """`from_spark` undoes `to_spark`, also for a slice of an array."""
    cells = cells.slice(start)

    there = to_spark(cells, cells.type)

    assert spark_type(cells.type) == there.type
    assert cells.equals(from_spark(there, cells.type))


def test_cells_of_an_older_type_become_the_newer_one() -> None:
    """A column that was widened since gives cells of its new type."""
    assert pa.array([1, None], pa.int64()).equals(to_spark(pa.array([1, None], pa.int32()), pa.int64()))
    assert pa.array([Decimal(7)], pa.decimal128(20, 0)).equals(to_spark(pa.array([7], pa.int32()), pa.uint64()))


def test_cell_without_a_place_in_the_newer_type_is_refused() -> None:
    """A text that is no number stops the reading."""
    with pytest.raises(pa.ArrowInvalid):
        to_spark(pa.array(["seven"]), pa.int64())
