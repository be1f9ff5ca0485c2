"""Parquet: codecs and levels, row groups, encodings, metadata, and what a damaged file says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from rivet_resources.errors import PartCorrupt, UnknownColumn, UnsupportedColumn
from rivet_resources.write.formats.parquet import COMPRESSION_PROFILES, Parquet, ParquetOptions

CODECS = [
    ("zstd", None, "zstd(3)", "ZSTD"),
    ("zstd", 1, "zstd(1)", "ZSTD"),
    ("zstd", 22, "zstd(22)", "ZSTD"),
    ("gzip", None, "gzip(6)", "GZIP"),
    ("gzip", 0, "gzip(0)", "GZIP"),
    ("gzip", 10, "gzip(9)", "GZIP"),
    ("snappy", None, "snappy", "SNAPPY"),
    ("lz4", None, "lz4", "LZ4"),
    ("none", None, "none", "UNCOMPRESSED"),
]


def orders(rows: int = 30_000) -> pa.Table:
    """Return a table with one column per kind of encoding."""
    draw = np.random.default_rng(1)
    fields = [
        pa.field("id", pa.int64(), nullable=False, metadata={"rivet.native_type": "bigint", "rivet.fidelity": "exact"}),
        pa.field("created_at", pa.timestamp("us", "UTC")),
        pa.field("customer", pa.int64()),
        pa.field("token", pa.int64()),
        pa.field("score", pa.float64()),
        pa.field("rate", pa.float64()),
        pa.field("amount", pa.decimal128(12, 2)),
        pa.field("name", pa.string()),
        pa.field("status", pa.string()),
        pa.field("paid", pa.bool_()),
        pa.field("tags", pa.list_(pa.field("item", pa.string()))),
        pa.field("a.b", pa.string()),
    ]
    cells = [
        np.arange(rows) * 3, pa.array(np.arange(rows) * 1_000_000, pa.timestamp("us", "UTC")),
        draw.integers(0, 100, rows), draw.integers(0, 2**62, rows), draw.random(rows),
        draw.integers(0, 9, rows) / 4, pa.array(draw.integers(0, 10**6, rows)).cast(pa.decimal128(21, 2)),
        [f"name {i}" for i in range(rows)], [("new", None, "done")[i % 3] for i in range(rows)],
        draw.random(rows) > 0.5, [["x", None] if i % 2 else [] for i in range(rows)], ["same"] * rows,
    ]  # fmt: skip
    columns = [c if isinstance(c, pa.Array) else pa.array(c, f.type) for c, f in zip(cells, fields, strict=True)]
    columns[6] = columns[6].cast(pa.decimal128(12, 2))
    return pa.table(columns, schema=pa.schema(fields))


def write(table: pa.Table, path: Path, fmt: Parquet, *, page_rows: int = 10_000, **more: Any) -> pq.FileMetaData:
    """Write a table page by page; give the footer."""
    writer = fmt.writer(path, table.schema, **more)
    for start in range(0, table.num_rows, page_rows):
        writer.write(table.slice(start, page_rows))
    writer.close()
    return pq.read_metadata(path)


def groups(footer: pq.FileMetaData) -> list[int]:
    """List the rows of each row group."""
    return [footer.row_group(index).num_rows for index in range(footer.num_row_groups)]


def encodings(footer: pq.FileMetaData) -> dict[str, set[str]]:
    """List the encodings of each leaf in the first row group."""
    columns = [footer.row_group(0).column(index) for index in range(footer.num_columns)]
    return {column.path_in_schema: set(column.encodings) for column in columns}


@pytest.mark.parametrize(("codec", "level", "name", "stored"), CODECS)
def test_every_codec_and_level_writes_what_it_names(
    codec: Any, level: int | None, name: str, stored: str, tmp_path: Path
) -> None:
    """Each codec is applied, named as applied, and gives the same rows back."""
    table, fmt = orders(3_000), Parquet(compression=codec, compression_level=level)

    footer = write(table, tmp_path / "a.parquet", fmt)

    assert (name, stored) == (fmt.codec, footer.row_group(0).column(0).compression)
    assert table.equals(pq.read_table(tmp_path / "a.parquet"))
    assert 3_000 == fmt.rows(tmp_path / "a.parquet", table.schema)


@pytest.mark.parametrize(
    ("codec", "level"), [("zstd", 0), ("zstd", 23), ("gzip", 11), ("gzip", -1), ("snappy", 1), ("lz4", 3), ("none", 0)]
)
def test_level_that_a_codec_does_not_have_is_refused(codec: Any, level: int) -> None:
    """The message names the level, and what is allowed."""
    with pytest.raises(ValidationError, match=f"compression_level {level}"):
        Parquet(compression=codec, compression_level=level)


def test_gzip_ten_is_lowered_with_a_warning() -> None:
    """Old configs keep working, and nobody believes in a level that was not applied."""
    schema = pa.schema([("id", pa.int64())])

    assert () == Parquet(compression="gzip", compression_level=9).check_schema(schema, export="orders")
    warnings = Parquet(compression="gzip", compression_level=10).check_schema(schema, export="orders")

    assert ("Export orders: gzip level 10 is written as level 9.",) == warnings


def test_compression_profiles_are_valid_settings() -> None:
    """Every profile of the contract names a codec and level that exist."""
    named = {p: Parquet(compression=c, compression_level=level).codec for p, (c, level) in COMPRESSION_PROFILES.items()}

    assert {"none": "none", "fast": "snappy", "balanced": "zstd(3)", "compact": "zstd(9)"} == named


def test_encodings_follow_what_the_first_row_group_shows(tmp_path: Path) -> None:
    """Delta on what ascends, byte stream split on distinct floats, a dictionary only where values repeat."""
    found = encodings(write(orders(), tmp_path / "a.parquet", Parquet()))

    assert {"id", "created_at"} == {c for c, e in found.items() if "DELTA_BINARY_PACKED" in e}
    assert {"score"} == {c for c, e in found.items() if "BYTE_STREAM_SPLIT" in e}
    repeated = {"customer", "rate", "status", "tags.list.item", "a.b"}
    assert repeated == {c for c, e in found.items() if "RLE_DICTIONARY" in e}


def test_key_is_delta_even_where_its_values_repeat(tmp_path: Path) -> None:
    """The first column of the order in which rows arrive ascends by construction."""
    table = pa.table({"day": np.sort(np.arange(20_000) % 50), "x": np.arange(20_000) % 7})

    found = encodings(write(table, tmp_path / "a.parquet", Parquet(), key=("day", "x")))

    assert "DELTA_BINARY_PACKED" in found["day"]
    assert "RLE_DICTIONARY" in found["x"]


@pytest.mark.parametrize(
    ("distinct", "has_dictionary"), [(100, True), (60_000, True), (90_000, True), (250_000, False), (10**9, False)]
)
def test_more_than_half_distinct_values_lose_the_dictionary(
    distinct: int, has_dictionary: bool, tmp_path: Path
) -> None:
    """The sample judges the whole group, not itself: 60,000 values repeat little in a sample of 20,000."""
    table = pa.table({"x": np.random.default_rng(1).integers(0, distinct, 200_000)})

    found = encodings(write(table, tmp_path / "a.parquet", Parquet()))

    assert has_dictionary == ("RLE_DICTIONARY" in found["x"])


def test_users_word_on_an_encoding_wins(tmp_path: Path) -> None:
    """`parquet.columns` overrides what the rows show."""
    words = {
        "id": {"encoding": "plain"}, "token": {"encoding": "delta"}, "score": {"dictionary": True},
        "rate": {"encoding": "byte_stream_split"}, "status": {"dictionary": False}, "name": {"encoding": "delta"},
    }  # fmt: skip
    fmt = Parquet(options=ParquetOptions.model_validate({"columns": words}))
    table = orders()
    fmt.check_schema(table.schema, export="orders")

    found = encodings(write(table, tmp_path / "a.parquet", fmt))

    assert {"RLE", "PLAIN"} >= found["id"]
    assert "DELTA_BINARY_PACKED" in found["token"]
    assert "RLE_DICTIONARY" in found["score"]
    assert "BYTE_STREAM_SPLIT" in found["rate"]
    assert "RLE_DICTIONARY" not in found["status"]
    assert "DELTA_BYTE_ARRAY" in found["name"]
    assert table.equals(pq.read_table(tmp_path / "a.parquet"))


def test_encoding_of_an_unknown_or_unfit_column_is_refused() -> None:
    """Before a row is read, naming what exists or what cannot be stored so."""
    schema = orders(1).schema

    with pytest.raises(UnknownColumn, match=r"no column 'nmae'.*parquet\.columns"):
        Parquet(options=ParquetOptions.model_validate({"columns": {"nmae": {"encoding": "plain"}}})).check_schema(
            schema, export="orders"
        )
    with pytest.raises(UnsupportedColumn, match="'paid' is bool"):
        Parquet(options=ParquetOptions.model_validate({"columns": {"paid": {"encoding": "delta"}}})).check_schema(
            schema, export="orders"
        )


GROUPS = [
    ({}, 30_000, [30_000]),
    ({"row_group_strategy": "fixed_rows", "row_group_rows": 12_000}, 30_000, [12_000, 12_000, 6_000]),
    ({"row_group_strategy": "fixed_rows", "row_group_rows": 4_000}, 10_000, [4_000, 4_000, 2_000]),
    ({"row_group_strategy": "auto", "target_row_group_mb": 1}, 30_000, [10_000, 10_000, 10_000]),
    ({"row_group_strategy": "fixed_memory", "target_row_group_mb": 3}, 30_000, [20_000, 10_000]),
    ({"max_row_group_mb": 1}, 30_000, [10_000, 10_000, 10_000]),
]


@pytest.mark.parametrize(("options", "rows", "expected"), GROUPS)
def test_row_groups_follow_their_strategy(
    options: dict[str, Any], rows: int, expected: list[int], tmp_path: Path
) -> None:
    """Rows are cut exactly, bytes at the page that fills the group: pages have 10,000 rows of about 200 bytes."""
    table = pa.table({"id": range(rows), "x": [f"{i:0200d}" for i in range(rows)]})

    footer = write(table, tmp_path / "a.parquet", Parquet(options=ParquetOptions.model_validate(options)))

    assert expected == groups(footer)
    assert table.equals(pq.read_table(tmp_path / "a.parquet"))


def test_default_row_group_ends_at_the_original_row_count(tmp_path: Path) -> None:
    """Very narrow rows stop at about 1,048,576, whatever their bytes."""
    table = pa.table({"x": np.zeros(2_200_000, np.int8)})

    assert [1_100_000, 1_100_000] == groups(write(table, tmp_path / "a.parquet", Parquet(), page_rows=100_000))


@pytest.mark.parametrize(
    "options",
    [
        {"row_group_strategy": "fixed_rows"},
        {"row_group_rows": 5},
        {"row_group_strategy": "auto", "row_group_rows": 5},
        {"target_row_group_mb": 5},
        {"row_group_strategy": "sometimes"},
        {"columns": {"x": {"encoding": "delta", "dictionary": True}}},
        {"types": "duckdb"},
        {"page_size": 3},
    ],
)
def test_option_that_would_be_ignored_is_refused(options: dict[str, Any]) -> None:
    """A size without its strategy, two encodings for one column, an unknown key."""
    with pytest.raises(ValidationError):
        ParquetOptions.model_validate(options)


def test_limit_closes_row_groups_early(tmp_path: Path) -> None:
    """With a limit, `bytes_written` is true by the time the limit is reached, and no page late."""
    table = orders()
    writer = Parquet().writer(tmp_path / "a.parquet", table.schema, limit_bytes=200_000)

    written = [0]
    while written[-1] < 200_000:
        writer.write(table.slice(len(written) * 500, 500))
        written.append(writer.bytes_written)
    writer.close()

    assert len(written) * 500 < table.num_rows
    assert 200_000 <= writer.bytes_written < 260_000


def test_metadata_checksums_and_page_index_are_written(tmp_path: Path) -> None:
    """Field metadata survives, list children are called item, pages carry checksums and an index."""
    footer = write(orders(), tmp_path / "a.parquet", Parquet())

    with pq.ParquetFile(tmp_path / "a.parquet", page_checksum_verification=True) as file:
        read = file.read()
    column = footer.row_group(0).column(0)
    assert read.schema.equals(orders(1).schema, check_metadata=True)
    assert (True, True) == (column.has_column_index, column.has_offset_index)
    assert "tags.list.item" in encodings(footer)
    assert column.statistics.has_min_max


def test_equal_rows_give_equal_bytes(tmp_path: Path) -> None:
    """The fingerprint of a part can serve as a key: nothing of the clock or the machine is in a file."""
    write(orders(), tmp_path / "a.parquet", Parquet())
    write(orders(), tmp_path / "b.parquet", Parquet())

    assert (tmp_path / "a.parquet").read_bytes() == (tmp_path / "b.parquet").read_bytes()


def test_file_without_rows_keeps_its_schema(tmp_path: Path) -> None:
    """A writer that was closed without a page leaves a readable file."""
    schema = orders(1).schema

    assert [] == groups(write(schema.empty_table(), tmp_path / "a.parquet", Parquet()))
    assert 0 == Parquet().rows(tmp_path / "a.parquet", schema)


def test_damaged_or_foreign_file_is_corrupt(tmp_path: Path) -> None:
    """A cut file and a file of other columns are told apart from a good one."""
    table, path = orders(1_000), tmp_path / "a.parquet"
    write(table, path, Parquet())

    with pytest.raises(PartCorrupt, match="has the columns"):
        Parquet().rows(path, table.schema.remove(0))
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(PartCorrupt, match="footer"):
        Parquet().rows(path, table.schema)


@pytest.mark.parametrize("arrow", [pa.duration("us"), pa.month_day_nano_interval(), pa.decimal128(5, -2)])
def test_type_without_a_faithful_form_is_refused(arrow: pa.DataType) -> None:
    """Naming the column and the override."""
    with pytest.raises(UnsupportedColumn, match=r"columns: \{span: text\}"):
        Parquet().check_schema(pa.schema([("span", arrow)]), export="orders")


@pytest.mark.parametrize("arrow", [pa.time64("us"), pa.timestamp("ns"), pa.decimal256(60, 4), pa.uuid()])
def test_native_type_that_readers_refuse_is_a_warning(arrow: pa.DataType) -> None:
    """Who asked for native types is told which readers cannot open the file."""
    (warning,) = Parquet().check_schema(pa.schema([("x", arrow)]), export="orders")

    assert "'x'" in warning
    assert "portable" in warning
