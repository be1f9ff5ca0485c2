"""The same cells through three readers: pyarrow, DuckDB and Spark agree on every type of the contract."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from tests.engines.postgres.test_types import CASES
from tests.lab import Lab

# Cells inside Arrow's range but outside a reader's own: checked through pyarrow only.
BEYOND = {
    "duckdb": ("294276", "294247", "BC", "54321"),
    "spark": ("294276", "294247", "BC", "54321"),
}


@pytest.fixture
def lab(tmp_path: Path, fresh_database: str, monkeypatch: pytest.MonkeyPatch) -> Lab:
    """A table with one column per case of the type contract, and one row."""
    monkeypatch.setenv("LAB_URL", fresh_database)
    monkeypatch.chdir(tmp_path)
    laboratory = Lab(tmp_path, fresh_database)
    columns = ", ".join(f"c{i} {ddl}" for i, (ddl, *_) in enumerate(PLAIN))
    values = ", ".join(literal for _, literal, *_ in PLAIN)
    laboratory.sql(f"CREATE TABLE cells ({columns})", f"INSERT INTO cells VALUES ({values})")
    return laboratory


# Types that a CREATE TABLE alone gives; enums, domains and extensions have their own tests. DuckDB 2.0 refuses a
# whole file for one lone surrogate in a column marked JSON, which PostgreSQL's `json` may hold: not here.
PLAIN = [
    case
    for case in CASES
    if "ud800" not in case[1]
    and case[0].split("(")[0].rstrip("[]").strip() in
    {"bool", "int2", "int4", "int8", "oid", "float4", "float8", "numeric", "money", "text", "varchar", "char", "bytea",
     "date", "time", "timetz", "timestamp", "timestamptz", "interval", "uuid", "json", "jsonb", "bit", "varbit", "inet",
     "cidr", "int4range"}
]  # fmt: skip


def spell(cell: Any) -> str:
    """Write a cell so that equal cells of any reader are equal texts."""
    if isinstance(cell, float):
        return "NaN" if math.isnan(cell) else repr(cell)
    if isinstance(cell, bytes | bytearray | memoryview):
        return bytes(cell).hex()
    if isinstance(cell, list):
        return f"[{', '.join(map(spell, cell))}]"
    return str(cell)


def cells(table: pa.Table, skip: tuple[str, ...]) -> dict[str, str]:
    """Return the only row, by column, without those beyond a reader's range."""
    kept = [f"c{i}" for i, (_, literal, *_) in enumerate(PLAIN) if not any(word in literal for word in skip)]
    narrow = [
        pa.field(name, pa.int64()) if pa.types.is_timestamp(table.schema.field(name).type) else
        pa.field(name, pa.int32()) if pa.types.is_date(table.schema.field(name).type) else table.schema.field(name)
        for name in kept
    ]  # fmt: skip
    plain = pa.table([table.column(field.name).cast(field.type) for field in narrow], names=kept)
    return {name: spell(plain.column(name)[0].as_py()) for name in kept}


def part_of(lab: Lab) -> str:
    """Export the table and give its one file."""
    outcome = lab.export("{name: cells, table: cells, mode: full}")
    assert outcome.success, outcome.message
    (manifest,) = lab.manifests("cells").values()
    return str(lab.folder / "lake/cells" / manifest.parts[0].path)


def test_duckdb_reads_the_cells_pyarrow_reads(lab: Lab) -> None:
    """A portable file opens in DuckDB with default settings, cell for cell."""
    path = part_of(lab)
    import pyarrow.parquet as pq

    found = duckdb.sql(f"SELECT * FROM read_parquet('{path}')").to_arrow_table()

    assert cells(pq.read_table(path), BEYOND["duckdb"]) == cells(found, BEYOND["duckdb"])


@pytest.mark.spark
def test_spark_reads_the_cells_pyarrow_reads(lab: Lab, spark_runtime: Any) -> None:
    """A portable file opens in Spark with default settings, cell for cell."""
    path = part_of(lab)
    import pyarrow.parquet as pq

    found = spark_runtime.session().read.parquet(path).toArrow()

    assert cells(pq.read_table(path), BEYOND["spark"]) == cells(found, BEYOND["spark"])
