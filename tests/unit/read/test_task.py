"""The life of a task: what it stages, what it proves, and that a fault leaves nothing behind."""

from __future__ import annotations

import base64
import hashlib
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash

from rivet_resources.contracts.extract import Extract, MetaColumns, Window
from rivet_resources.contracts.parts import ChunkResult
from rivet_resources.contracts.settings import Tuning, pace
from rivet_resources.errors import (
    DestinationError,
    DiskFull,
    PartCorrupt,
    SnapshotLost,
    SourceChanged,
    SourceLost,
    ValueDoesNotFit,
)
from rivet_resources.read.task import run_chunk
from rivet_resources.read.throttle import MemoryGate, Throttle
from rivet_resources.shape.shape import schema_of
from rivet_resources.write.formats.csv import Csv
from rivet_resources.write.formats.parquet import Parquet
from tests.fakes import FAST, NOON, FolderRoot, TableSource, columns_of, extract_of

FORMATS: list[Any] = [Parquet(), Csv()]


def orders(rows: int = 30_000) -> pa.Table:
    """Return a small table with a key, a NULL in every third row, and a repeated column."""
    notes = [None if i % 3 else f"note {i}" for i in range(rows)]
    return pa.table({"id": np.arange(rows), "note": notes, "customer": np.arange(rows) % 1_000})


def run(extract: Extract, folder: Path) -> list[ChunkResult]:
    """Run every chunk once."""
    return [run_chunk(extract, chunk, attempt=0, scratch=folder / "scratch") for chunk in extract.chunks]


def root_of(extract: Extract) -> FolderRoot:
    """Address the folder where parts are staged."""
    root = extract.destination.root(extract.export)
    assert isinstance(root, FolderRoot)
    return root


def lying(extract: Extract, results: list[ChunkResult]) -> list[Path]:
    """List the staged files in the order of parts."""
    return [root_of(extract).folder / part.staged["path"] for result in results for part in result.parts]


@pytest.mark.parametrize("pieces", [1, 3])
def test_chunks_together_stage_every_row_once(pieces: int, tmp_path: Path) -> None:
    """The staged parts hold the table, in chunks and in one."""
    extract = extract_of(orders(), tmp_path, pieces=pieces)

    results = run(extract, tmp_path)

    read = pa.concat_tables([pq.read_table(file) for file in lying(extract, results)])
    assert orders().equals(read)
    assert 30_000 == sum(part.rows for result in results for part in result.parts)
    assert 30_000 == sum((result.measures for result in results[1:]), results[0].measures).rows


@pytest.mark.parametrize("fmt", FORMATS, ids=["parquet", "csv"])
def test_part_carries_size_fingerprint_and_md5_of_its_bytes(fmt: Any, tmp_path: Path) -> None:
    """What the part claims is what lies there."""
    extract = extract_of(orders(), tmp_path, format=fmt)

    (part,) = run(extract, tmp_path)[0].parts

    content = (root_of(extract).folder / part.staged["path"]).read_bytes()
    assert (30_000, len(content)) == (part.rows, part.size_bytes)
    assert f"xxh3:{xxhash.xxh3_64_hexdigest(content)}" == part.fingerprint
    assert base64.b64encode(hashlib.md5(content).digest()).decode() == part.md5


STEM = "orders_20260131_120000_123_abc123"
DAY = Window("2026-01-31", folder="dt=2026-01-31")
NAMES = [
    (1, {}, [f"{STEM}.parquet"]),
    (2, {}, [f"{STEM}_chunk0.parquet", f"{STEM}_chunk1.parquet"]),
    (1, {"window": DAY}, [f"dt=2026-01-31/{STEM}.parquet"]),
    (1, {"format": Csv()}, [f"{STEM}.csv"]),
    (1, {"format": Csv(), "max_file_bytes": 200_000}, [f"{STEM}_part0.csv", f"{STEM}_part1.csv"]),
    (1, {"format": Csv(), "max_file_bytes": 4_000_000}, [f"{STEM}.csv"]),
    (1, {"run_id": "adhoc"}, ["orders_00000000_000000_000_5231e9.parquet"]),
    (2, {"max_file_bytes": 1}, [f"{STEM}_chunk{c}_part{n}.parquet" for c in (0, 1) for n in (0, 1)]),
]


@pytest.mark.parametrize(("pieces", "changes", "names"), NAMES)
def test_parts_are_named_as_the_contract_says(
    pieces: int, changes: dict[str, Any], names: list[str], tmp_path: Path
) -> None:
    """Chunks are named when there are several, parts when a chunk was split, the folder when the window has one."""
    results = run(extract_of(orders(), tmp_path, pieces=pieces, **changes), tmp_path)

    assert names == [part.path for result in results for part in result.parts]


@pytest.mark.parametrize("fmt", FORMATS, ids=["parquet", "csv"])
def test_split_parts_exceed_the_limit_by_less_than_a_page(fmt: Any, tmp_path: Path) -> None:
    """Every part but the last reaches the limit, none passes it by more than one page, and no row is lost."""
    table = pa.table({"id": np.arange(20_000), "token": np.random.default_rng(1).integers(0, 2**62, 20_000)})
    source = TableSource(table, page_rows=1_000)
    extract = extract_of(table, tmp_path, format=fmt, source=source, max_file_bytes=60_000)

    (result,) = run(extract, tmp_path)

    sizes = [part.size_bytes for part in result.parts]
    assert len(sizes) > 2
    assert min(sizes[:-1]) >= 60_000
    assert max(sizes) < 60_000 + 30_000
    assert 20_000 == sum(part.rows for part in result.parts)
    assert len({part.path for part in result.parts}) == len(sizes)


def test_chunk_without_rows_makes_no_part(tmp_path: Path) -> None:
    """An empty window has zero parts and measures of zero."""
    extract = extract_of(orders(0), tmp_path, unique_columns=("id",))

    (result,) = run(extract, tmp_path)

    assert () == result.parts
    assert (0, {"id": 0, "note": 0, "customer": 0}) == (result.measures.rows, result.measures.nulls)
    assert {"id": []} == result.measures.unique
    assert set() == root_of(extract).staged()


def test_exported_at_is_one_instant_in_every_row_and_never_null(tmp_path: Path) -> None:
    """The meta column comes last, as microseconds UTC, the same over chunks."""
    extract = extract_of(orders(), tmp_path, pieces=2, meta=MetaColumns(exported_at=NOON))

    read = pa.concat_tables([pq.read_table(file) for file in lying(extract, run(extract, tmp_path))])

    assert read.schema.field(-1) == pa.field("_rivet_exported_at", pa.timestamp("us", "UTC"), nullable=False)
    assert {NOON} == set(read.column(-1).unique().to_pylist())


def test_written_schema_carries_the_catalogs_words(tmp_path: Path) -> None:
    """Native type, fidelity and nullability stand in the part as they do in the manifest's schema."""
    columns = (replace(columns_of(orders())[0], native="bigint", nullable=False), *columns_of(orders())[1:])
    extract = extract_of(orders(), tmp_path)
    extract = replace(extract, relation=replace(extract.relation, columns=columns))

    (file,) = lying(extract, run(extract, tmp_path))

    assert pq.read_schema(file).equals(schema_of(extract), check_metadata=True)
    assert b"bigint" == pq.read_schema(file).field("id").metadata[b"rivet.native_type"]
    assert not pq.read_schema(file).field("id").nullable


def test_unique_columns_leave_sidecars_beside_the_staged_parts(tmp_path: Path) -> None:
    """Invisible, one set per chunk and column, named by both and by the attempt."""
    extract = extract_of(orders(), tmp_path, pieces=2, unique_columns=("customer", "id"))

    results = run(extract, tmp_path)

    folder = f"_staged/{extract.run_id}/unique"
    assert [f"{folder}/2-chunk1-0.0-0.u128"] == results[1].measures.unique["customer"]
    assert [f"{folder}/0-chunk1-0.0-0.u128"] == results[1].measures.unique["id"]
    assert set(results[0].measures.unique["id"]) <= root_of(extract).staged()
    assert {} == root_of(extract).list()


def test_two_attempts_at_one_chunk_do_not_touch_each_other(tmp_path: Path) -> None:
    """Spark may run a task twice: same final name, different staged files, both whole."""
    extract = extract_of(orders(), tmp_path, unique_columns=("id",))
    (chunk,) = extract.chunks

    first = run_chunk(extract, chunk, attempt=0, scratch=tmp_path / "scratch")
    second = run_chunk(extract, chunk, attempt=1, scratch=tmp_path / "scratch")

    assert first.parts[0].path == second.parts[0].path
    assert 4 == len(root_of(extract).staged())


def test_lost_chunk_is_read_again_from_its_start_and_its_parts_forgotten(tmp_path: Path) -> None:
    """The parts and measures of the broken reading are gone; the retry is counted."""
    source = TableSource(orders(), faults=[SourceLost("the line broke"), SourceLost("and again")])
    extract = extract_of(
        orders(), tmp_path, source=source, max_file_bytes=1, pace=FAST.model_copy(update={"max_retries": 2})
    )

    results = run(extract, tmp_path)

    assert (3, 2, 30_000) == (source.readings, results[0].measures.retries, results[0].measures.rows)
    assert {part.staged["path"] for part in results[0].parts} == root_of(extract).staged()
    assert orders().equals(pa.concat_tables([pq.read_table(file) for file in lying(extract, results)]))


FAULTS = [
    SourceLost("the line broke"),
    SnapshotLost("the snapshot ended"),
    ValueDoesNotFit("column born holds infinity"),
    KeyboardInterrupt(),
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: type(f).__name__)
def test_fault_leaves_no_staged_part_and_no_scratch_file(fault: Any, tmp_path: Path) -> None:
    """Whatever ends a task, nothing of it stays, and the fault itself comes out."""
    source = TableSource(orders(), page_rows=1_000, faults=[fault])
    extract = extract_of(
        orders(), tmp_path, source=source, max_file_bytes=1, pace=FAST.model_copy(update={"max_retries": 0})
    )

    with pytest.raises(type(fault)):
        run(extract, tmp_path)

    assert set() == root_of(extract).staged()
    assert [] == list((tmp_path / "scratch").iterdir())


def test_scratch_is_empty_after_a_good_run_too(tmp_path: Path) -> None:
    """Parts leave the machine's scratch folder when they are staged."""
    run(extract_of(orders(), tmp_path, unique_columns=("id",)), tmp_path)

    assert [] == list((tmp_path / "scratch").iterdir())


def test_null_in_a_not_null_column_stops_the_chunk(tmp_path: Path) -> None:
    """The catalog's word is checked row by row."""
    extract = extract_of(orders(), tmp_path)
    columns = (columns_of(orders())[0], replace(columns_of(orders())[1], nullable=False), columns_of(orders())[2])

    with pytest.raises(ValueDoesNotFit, match="'note' is NOT NULL"):
        run(replace(extract, relation=replace(extract.relation, columns=columns)), tmp_path)


@dataclass(frozen=True)
class Elsewhere:
    """A format that writes to another file than it is told."""

    inner: Any
    device: Path
    type: str = "elsewhere"
    extension: str = "x"
    codec: str = "none"
    holds_lists: bool = True

    def writer(self, path: Path, schema: pa.Schema, **more: Any) -> Any:
        """Open the other file."""
        return self.inner.writer(self.device, schema, **more)


@pytest.mark.parametrize("fmt", FORMATS, ids=["parquet", "csv"])
def test_full_disk_is_said_as_such(fmt: Any, tmp_path: Path) -> None:
    """ENOSPC from the encoder becomes DiskFull: transient, with what to do."""
    extract = extract_of(orders(), tmp_path, format=Elsewhere(fmt, Path("/dev/full")))

    with pytest.raises(DiskFull, match="No space is left below"):
        run(extract, tmp_path)


@dataclass(frozen=True)
class Forgetful:
    """A format that drops the last row of every page."""

    inner: Any
    type: str = "forgetful"
    extension: str = "x"
    codec: str = "none"
    holds_lists: bool = True

    def writer(self, path: Path, schema: pa.Schema, **more: Any) -> Any:
        """Open a writer that forgets."""
        writer = self.inner.writer(path, schema, **more)
        keep = writer.write
        writer.write = lambda table: keep(table.slice(0, table.num_rows - 1))
        return writer

    def rows(self, path: Path, schema: pa.Schema) -> int:
        """Count honestly."""
        return int(self.inner.rows(path, schema))


@pytest.mark.parametrize("fmt", FORMATS, ids=["parquet", "csv"])
def test_part_that_reads_back_with_fewer_rows_is_never_staged(fmt: Any, tmp_path: Path) -> None:
    """Written and read-back rows are compared for every part."""
    extract = extract_of(orders(), tmp_path, format=Forgetful(fmt))

    with pytest.raises(PartCorrupt, match="holds 29997 rows, 30000 were written"):
        run(extract, tmp_path)
    assert set() == root_of(extract).staged()


def test_special_values_are_counted_over_chunks(tmp_path: Path) -> None:
    """What a policy replaced is in the measures of the chunk that replaced it."""
    source = TableSource(orders(), special={"note": {"nan": 2}})

    results = run(extract_of(orders(), tmp_path, source=source, pieces=2), tmp_path)

    assert Counter(nan=4) == Counter(results[0].measures.special_values["note"]) + Counter(
        results[1].measures.special_values["note"]
    )


def test_throttle_pauses_in_proportion_to_rows(tmp_path: Path) -> None:
    """Half a batch pauses half as long; the waiting is in the measures."""
    slow = pace(None, Tuning(batch_size=10_000, throttle_ms=2))
    throttle = Throttle(slow)

    throttle.wait(10_000)
    throttle.wait(5_000)
    throttle.wait(0)
    (result,) = run(extract_of(orders(), tmp_path, pace=slow), tmp_path)

    assert 0.003 == pytest.approx(throttle.waited_seconds)
    assert 0.006 == pytest.approx(result.measures.throttled_seconds)


def test_memory_gate_gives_up_with_a_warning_and_lets_the_chunk_go_on(caplog: pytest.LogCaptureFixture) -> None:
    """A threshold below what Python itself needs must not stop the export for ever, and is said once."""
    gate = MemoryGate(FAST.model_copy(update={"memory_threshold_mb": 1}), patience_seconds=0.0)

    gate.wait()
    gate.wait()

    assert 1 == len(caplog.records)
    assert "memory_threshold_mb 1" in caplog.text


def test_memory_gate_is_open_when_it_is_off_or_memory_is_low() -> None:
    """Zero means off; a high threshold does not wait."""
    for threshold in (0, 1_000_000):
        gate = MemoryGate(FAST.model_copy(update={"memory_threshold_mb": threshold}))
        gate.wait()

        assert 0.0 == gate.waited_seconds


def test_page_of_another_type_than_planned_is_refused(tmp_path: Path) -> None:
    """A table altered in mid-run is said so; nothing is cast in silence."""
    altered = orders().set_column(2, "customer", orders().column("customer").cast(pa.int32()))
    extract = extract_of(orders(), tmp_path, source=TableSource(altered))

    with pytest.raises(SourceChanged, match=r"main\.orders\.customer arrived as int32, planned was int64"):
        run(extract, tmp_path)


def test_scratch_that_cannot_be_made_is_said_so(tmp_path: Path) -> None:
    """The message names the folder and the variable that moves it."""
    (tmp_path / "scratch").write_text("a file where a folder should be")

    with pytest.raises(DestinationError, match=r"scratch.*cannot be made.*TMPDIR"):
        run(extract_of(orders(), tmp_path), tmp_path)
