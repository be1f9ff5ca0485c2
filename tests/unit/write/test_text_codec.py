"""Compressed text: the same text, equal bytes each time, one member or frame, read by everybody, damage found."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import duckdb
import pandas
import pyarrow as pa
import pytest

from rivet_resources.contracts.format import FormatKeys
from rivet_resources.errors import PartCorrupt
from rivet_resources.registry import FORMATS
from rivet_resources.write.formats.text_codec import NAMES

ROWS = 40_000  # more than a slice of the writer, so that several writes meet in one stream
TABLE = pa.table({"id": pa.array(range(ROWS), pa.int64()), "note": [f'ä, "{n % 97}"\n…' for n in range(ROWS)]})
KINDS = [(form, codec) for form in ("csv", "ndjson") for codec in ("gzip", "zstd")]
each_kind = pytest.mark.parametrize(("form", "codec"), KINDS)


def written(folder: Path, form: str, codec: str | None, *, limit: int | None = None, stop: bool = False) -> Path:
    """Write the rows into a file named as a part of that format; with `stop`, until the limit is reached."""
    settings = FORMATS[form].from_keys(FormatKeys(text_compression=codec))
    path = folder / f"part.{settings.extension}"
    writer = settings.writer(path, TABLE.schema, limit_bytes=limit)
    for start in range(0, ROWS, 1000):
        writer.write(TABLE.slice(start, 1000))
        if stop and limit is not None and writer.bytes_written >= limit:
            assert writer.bytes_written == path.stat().st_size
            break
    writer.close()
    return path


def unpacked(path: Path) -> bytes:
    """Return the text in a file, by other programs' rules."""
    if path.suffix == ".gz":
        return gzip.decompress(path.read_bytes())
    with pa.CompressedInputStream(path, "zstd") as stream:
        return bytes(stream.read())


@each_kind
def test_compressed_part_holds_the_text_of_a_plain_one(form: str, codec: str, tmp_path: Path) -> None:
    """Byte for byte; named by both formats, counted, and read back as a plain one is, without any setting."""
    plain, packed = written(tmp_path, form, None), written(tmp_path, form, codec)
    reader = FORMATS[form]()

    assert f"part.{form}.{'gz' if codec == 'gzip' else 'zst'}" == packed.name
    assert plain.read_bytes() == unpacked(packed)
    assert packed.stat().st_size < plain.stat().st_size / 2
    assert ROWS == reader.rows(packed, TABLE.schema)
    for path in (plain, packed):
        with path.open("rb") as file:
            assert TABLE == pa.concat_tables(reader.tables(file, TABLE.schema)).cast(TABLE.schema)
        assert TABLE == pa.concat_tables(reader.batches(path, TABLE.schema)).cast(TABLE.schema)


@each_kind
def test_equal_rows_make_equal_bytes(form: str, codec: str, tmp_path: Path) -> None:
    """No time, name or machine stands in a file."""
    first = written(tmp_path, form, codec).read_bytes()

    assert first == written(tmp_path, form, codec).read_bytes()
    if codec == "gzip":
        assert bytes(5) == first[3:8]  # no name, no comment, no time. Source: RFC 1952, 2.3


@each_kind
def test_other_readers_see_every_row(form: str, codec: str, tmp_path: Path) -> None:
    """pandas reads a single frame of zstd and no second one: there is one."""
    path = written(tmp_path, form, codec)
    read: dict[str, Any] = {"csv": pandas.read_csv, "ndjson": lambda file: pandas.read_json(file, lines=True)}

    assert ROWS == len(read[form](path))
    function = "read_csv" if form == "csv" else "read_json"
    assert [(ROWS,)] == duckdb.sql(f"SELECT count(*) FROM {function}('{path}')").limit(1).fetchall()


@each_kind
def test_limit_of_a_part_counts_compressed_bytes(form: str, codec: str, tmp_path: Path) -> None:
    """Where the caller may have to close a file, what is counted is what lies on the disk."""
    limit = 20_000

    size = written(tmp_path, form, codec, limit=limit, stop=True).stat().st_size

    assert limit <= size < 2 * limit


@each_kind
@pytest.mark.parametrize("damage", ["short", "other"])
def test_damaged_part_is_told_as_such(form: str, codec: str, damage: str, tmp_path: Path) -> None:
    """A file that was cut, or whose bytes were changed, is no part."""
    path = written(tmp_path, form, codec)
    content = bytearray(path.read_bytes())
    if damage == "short":
        content = content[: len(content) // 2]
    else:
        content[len(content) // 2 : len(content) // 2 + 64] = bytes(64)
    path.write_bytes(bytes(content))

    with pytest.raises(PartCorrupt, match="Run again"):
        FORMATS[form]().rows(path, TABLE.schema)


def test_codec_is_named_as_manifests_name_it() -> None:
    """Nothing of before changes: without the key a text is plain, whatever `compression` says."""
    made = [FORMATS["csv"].from_keys(FormatKeys(compression="zstd", text_compression=codec)) for codec in NAMES]

    assert ["none", "gzip(6)", "zstd(1)"] == [each.codec for each in made]
    assert ["csv", "csv.gz", "csv.zst"] == [each.extension for each in made]
