"""Avro's own Java library, which comes with Spark, as a second opinion on our files and on our rules."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from rivet_resources.schema_registry.languages.avro_compatibility import misread
from rivet_resources.write.formats.avro import Avro
from tests.avro_cases import CASES
from tests.unit.write.test_avro import CASES as TYPES

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "zstd"])
def test_java_reads_every_row_of_every_type(tmp_path: Path, spark_runtime: Any, codec: Any) -> None:
    """Its parser takes the schema, its reader every block and cell."""
    table = pa.table({name: pa.concat_arrays([cells] * 9) for name, (cells, _, _) in TYPES.items()})
    writer = Avro(compression=codec).writer(tmp_path / "x.avro", table.schema)
    writer.write(table)
    writer.close()
    java = spark_runtime.session()._jvm
    file = java.java.io.File(str(tmp_path / "x.avro"))

    reader = java.org.apache.avro.file.DataFileReader(file, java.org.apache.avro.generic.GenericDatumReader())
    rows = []
    while reader.hasNext():
        row = reader.next()
        rows.append((row.get("i64"), row.get("double"), None if row.get("text") is None else str(row.get("text"))))
    reader.close()

    assert list(zip(*(table.column(name).to_pylist() for name in ("i64", "double", "text")), strict=True)) == rows


def test_java_judges_readers_as_we_do(spark_runtime: Any) -> None:
    """Each pair of the table, by `SchemaCompatibility` of Avro."""
    java = spark_runtime.session()._jvm
    told = {}
    for name, (reader, writer, _) in CASES.items():
        pair = [java.org.apache.avro.Schema.Parser().parse(json.dumps(each)) for each in (reader, writer)]
        told[name] = java.org.apache.avro.SchemaCompatibility.checkReaderWriterCompatibility(*pair).getType().name()

    assert told == {
        name: "INCOMPATIBLE" if misread(reader, writer) else "COMPATIBLE" for name, (reader, writer, _) in CASES.items()
    }
