"""What was written as NDJSON is read by Spark, cell by cell, through the manifest's schema."""

from __future__ import annotations

import base64
import math
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from rivet_resources.commit.manifest import Manifest
from rivet_resources.commit.manifest_entries import Extraction, ManifestDestination, ManifestPart, ManifestSource
from rivet_resources.commit.reader import read_parts
from rivet_resources.contracts.types import JSON
from rivet_resources.destinations.local import Local
from rivet_resources.write.formats.ndjson import Ndjson
from tests.fakes import column

UTC_US = pa.timestamp("us", "UTC")
UUID_BYTES = bytes.fromhex("550e8400e29b41d4a716446655440000")


@pytest.mark.spark
def test_spark_reads_the_cells_that_were_written(tmp_path: Path, spark_runtime: Any):
    """Through the manifest's schema Spark has every cell: exact numbers, instants, bytes, lists, JSON as text."""
    cells: dict[str, tuple[pa.DataType, Any, Any]] = {
        "id": (pa.int64(), 2**63 - 1, 2**63 - 1),
        "u": (pa.uint64(), 2**64 - 1, Decimal(2**64 - 1)),
        "amount": (pa.decimal128(38, 10), Decimal("-0.0000000001"), Decimal("-0.0000000001")),
        "wide": (pa.decimal256(60, 0), Decimal("9" * 60), "9" * 60),
        "f": (pa.float64(), float("inf"), math.inf),
        "day": (pa.date32(), 19737, datetime(2024, 1, 15).date()),
        "at": (UTC_US, 1705314600123456, datetime(2024, 1, 15, 10, 30, 0, 123456, UTC)),
        "naive": (pa.timestamp("us"), 1705314600123456, datetime(2024, 1, 15, 10, 30, 0, 123456)),
        "clock": (pa.time64("us"), 1, "00:00:00.000001"),
        "raw": (pa.binary(), b"\x00\xff", b"\x00\xff"),
        "key": (pa.uuid(), UUID_BYTES, "550e8400-e29b-41d4-a716-446655440000"),
        "doc": (JSON, '{"a":  1.10}', '{"a":  1.10}'),
        "note": (pa.string(), 'two\nlines "x"', 'two\nlines "x"'),
        "tags": (pa.list_(pa.field("item", pa.string())), ["a", None], ["a", None]),
    }
    table = pa.table({name: column(kind, [cell, None]) for name, (kind, cell, _) in cells.items()})
    root = Local(path=str(tmp_path)).root("orders")
    folder = Path(root.uri)
    folder.mkdir(exist_ok=True)
    writer = Ndjson().writer(folder / "part.ndjson", table.schema)
    writer.write(table)
    writer.close()
    content = (folder / "part.ndjson").read_bytes()
    part = ManifestPart(
        part_id=0, path="part.ndjson", rows=2, size_bytes=len(content), content_fingerprint="xxh3:0", content_md5=""
    )
    manifest = Manifest(
        run_id="r1",
        export_name="orders",
        export_family="orders",
        started_at=datetime.now(UTC),
        finished_at=datetime.now(UTC),
        window="all",
        consistency="snapshot",
        source=ManifestSource(engine="postgres", extraction=Extraction(strategy="full")),
        destination=ManifestDestination(kind="local", uri=root.uri),
        format="ndjson",
        compression="none",
        schema_fingerprint="xxh3:0",
        schema_ipc=base64.b64encode(table.schema.serialize().to_pybytes()).decode(),
        row_count=2,
        part_count=1,
        parts=(part,),
    )

    first, second = read_parts(spark_runtime.session(), root, [manifest]).toArrow().to_pylist()

    assert {name: expected for name, (_, _, expected) in cells.items()} == first
    assert {None} == set(second.values())
