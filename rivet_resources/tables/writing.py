"""From a frame to staged parts: the rows of each Spark partition are written as the task of an export writes its chunk.

Belongs here: the description of a derived table as an Extract, the Spark session and its settings, the bridge into
the executors. Not here: what a task does with pages (`read/task.py`), how it tells faults (`read/executor.py`).

No row passes through the driver: a task gives back one small row, with the parts it staged and what it counted.
"""

from __future__ import annotations

import json
import logging
import pickle
import time
import uuid
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from rivet_resources import scratch
from rivet_resources.contracts.destination import Destination, Root
from rivet_resources.contracts.extract import AppliedChanges, Extract, Piece, Staged, Window
from rivet_resources.contracts.format import Format
from rivet_resources.contracts.parts import ChunkResult
from rivet_resources.contracts.relation import Chunk, Relation
from rivet_resources.contracts.settings import Pace, Tuning, pace
from rivet_resources.contracts.source import Page
from rivet_resources.contracts.types import Column
from rivet_resources.errors import RivetError
from rivet_resources.read.executor import ROWS, ROWS_DDL, TaskAttempt, TaskFailed, outcome, rebuild, result_of
from rivet_resources.shape.shape import schema_of
from rivet_resources.spark.cells import from_spark
from rivet_resources.spark.cluster import cluster_fault, with_variables
from rivet_resources.spark.runtime import TASK_CONF, SparkRuntime
from rivet_resources.tables.frames import LACKING
from rivet_resources.tables.pieces import MOST_SUMS, Edge, Span, measures_of, piece_of, standing_parts
from rivet_resources.tables.reading import PendingWindows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger(__name__)

MB = 1024 * 1024
PART_BYTES = 128 * MB  # what a part aims at
SPREAD_BYTES = 16 * MB  # below it a part is not worth a core of its own
SHUFFLE_BYTES = 4 * MB  # of compressed input per shuffle partition: tens of MB in memory, sorted without a spill
# Below it Spark compiles for longer than the compiled code saves.
COMPILED_BYTES = 8 * MB
# Kind of special value: the log said `as before`, and nobody knows what that was.
UNKNOWN = "unchanged_unknown"

# These jobs move rows through the JVM, unlike those of `spark.TASK_CONF`.
CONF: Mapping[str, str] = {
    "spark.sql.adaptive.enabled": "true",
    "spark.sql.codegen.wholeStage": "true",
    "spark.sql.codegen.factoryMode": "FALLBACK",
    "spark.sql.caseSensitive": "true",  # a table may have `id` and `Id`
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",  # our files are proleptic; else year 1 is refused
    "spark.sql.execution.arrow.maxRecordsPerBatch": "20000",
    "spark.sql.execution.arrow.maxBytesPerBatch": str(64 * MB),
}


@dataclass(frozen=True)
class Derived:
    """A table to be made from the changes of another: where they are, by which key, where it goes and how."""

    export: str  # its own name: of its folder and its parts
    changes: Root  # the change export's folder
    key: tuple[str, ...]
    destination: Destination
    format: Format
    run_id: str
    unique_columns: tuple[str, ...] = ()  # measured exactly, for `quality:`
    max_file_bytes: int | None = None
    anew: bool = False  # from all changes, and not from the last version
    judges_key: bool = False  # nobody knows it to be unique: two rows that have one are looked for
    pace: Pace = field(default_factory=lambda: pace(None, Tuning(profile="fast")))

    @property
    def root(self) -> Root:
        """Address its folder."""
        return self.destination.root(self.export)


@dataclass(frozen=True)
class TableOrigin:
    """The table behind the changes, as a manifest names its source; nothing is read from it."""

    type: str
    schema: str | None
    table: str | None
    tuning: None = None

    def lineage_name(self, table: str) -> tuple[str | None, str | None]:
        """Name schema and table."""
        return self.schema, self.table


@dataclass
class Arriving:
    """The rows of one Spark partition as a source of pages."""

    batches: Iterator[pa.RecordBatch]
    type: str = "spark"
    tuning: None = None

    def pages(self, chunk: Chunk, columns: tuple[Column, ...], **_: Any) -> Generator[Page]:
        """Yield the rows with the types that the columns had before Spark held them."""
        for batch in self.batches:
            if batch.num_rows:
                cells = [from_spark(batch.column(column.name), column.arrow) for column in columns]
                table = pa.Table.from_arrays(cells, names=[column.name for column in columns])
                yield Page(table, _unknown(batch), statement_ms=0.0)


def _unknown(batch: pa.RecordBatch) -> dict[str, dict[str, int]]:
    """Count the cells that nobody knows, by column."""
    if LACKING not in batch.schema.names:
        return {}
    names = batch.column(LACKING).flatten()
    return {one["values"]: {UNKNOWN: one["counts"]} for one in names.value_counts().to_pylist()}


def session_for(runtime: SparkRuntime, size_bytes: int) -> SparkSession:
    """Return a session with the settings of these jobs, for so many bytes of parts."""
    session = runtime.session()
    if runtime.settings.remote:
        return session
    # A session of its own: these settings would change the plans of whoever else uses this Spark.
    session = session.newSession()
    partitions = max(runtime.parallelism, -(-size_bytes // SHUFFLE_BYTES))
    compiling = {} if size_bytes >= COMPILED_BYTES else TASK_CONF
    for name, value in {**CONF, **compiling, "spark.sql.shuffle.partitions": str(partitions)}.items():
        session.conf.set(name, value)
    return session


def columns_of(schema: pa.Schema) -> tuple[Column, ...]:
    """Describe the columns of parts as they were described when they were first written; every cell may be missing."""
    return tuple(_column(each) for each in schema)


def _column(each: pa.Field) -> Column:
    facts = {name.decode(): text.decode() for name, text in (each.metadata or {}).items()}
    return Column(
        name=each.name,
        native=facts.get("rivet.native_type", str(each.type)),
        arrow=each.type,
        select="",
        fidelity=facts.get("rivet.fidelity", "exact"),
        logical=facts.get("rivet.logical_type", ""),
    )


def stage(
    job: Callable[[Extract], DataFrame],
    derived: Derived,
    todo: PendingWindows,
    *,
    mode: str,
    schema: pa.Schema,
    newest: str,
    runtime: SparkRuntime,
    chunks: int | None = None,
    kept: Sequence[Piece] = (),
) -> Staged:
    """Run a job and leave its rows staged: complete, verified, invisible.

    Args:
        job: makes the frame of shape `executor.ROWS`, one row for each chunk of the extract (`rows_job`, `places.py`).
        schema: of the parts.
        newest: the highest position among what is applied, for the manifest.
        chunks: in so many tasks; None: by the size of what is read.
        kept: pieces of the version before that are part of this one too.

    Raises:
        RivetError: the first fault of a task; what the others staged is removed.
    """
    started, clock = datetime.now(UTC), time.monotonic()
    extract = describe(derived, todo, mode=mode, schema=schema, newest=newest, parallelism=runtime.parallelism)
    if chunks is not None:
        extract = replace(extract, chunks=tuple(replace(extract.chunks[0], index=each) for each in range(chunks)))
    written = _run(job, extract, runtime) if extract.chunks else []
    results = [each.result for each in written]
    pieces = pieces_of(written, kept, columns=len(schema))
    assert extract.applied is not None
    return Staged(
        extract=replace(extract, applied=replace(extract.applied, pieces=pieces)),
        parts=tuple(part for result in results for part in result.parts),
        standing=standing_parts(kept, todo.base.parts if todo.base else ()),
        measures=sum((result.measures for result in results), measures_of(kept)),
        schema_ipc=schema_of(extract).serialize().to_pybytes(),
        # The fence of the swap: the version of the manifest that these changes were put onto.
        previous=todo.fence,
        started_at=started,
        seconds={"apply": time.monotonic() - clock},
        consistency="log",
    )


def describe(
    derived: Derived, todo: PendingWindows, *, mode: str, schema: pa.Schema, newest: str, parallelism: int
) -> Extract:
    """Describe the one window of a derived table."""
    last = todo.windows[-1]
    size = input_bytes(todo)
    pieces = max(1, -(-size // PART_BYTES), min(parallelism, -(-size // SPREAD_BYTES)))
    source = TableOrigin(last.source.engine, last.source.schema_name, last.source.table)
    return Extract(
        export=derived.export,
        mode=mode,
        window=Window("all"),
        run_id=derived.run_id,
        relation=Relation(
            last.export_name, last.source.table or "", columns_of(schema), is_table=True, key=derived.key
        ),
        chunks=tuple(Chunk(number, "cursor", last.export_name) for number in range(pieces)),
        source=source,  # type: ignore[arg-type]
        destination=derived.destination,
        format=derived.format,
        pace=derived.pace,
        consistency="log",
        max_file_bytes=derived.max_file_bytes,
        unique_columns=derived.unique_columns,
        applied=AppliedChanges(
            derived.changes.uri, todo.origin, derived.key, todo.high, newest, repeats_until=todo.repeats_until
        ),
    )


def input_bytes(todo: PendingWindows) -> int:
    """Add up the sizes of the parts that go into a version."""
    return sum(each.size_bytes for each in (*todo.windows, todo.base) if each)


def rows_job(rows: DataFrame, runtime: SparkRuntime) -> Callable[[Extract], DataFrame]:
    """Return the job that writes a frame; it has the columns by name, and LACKING where something was filled."""

    def job(extract: Extract) -> DataFrame:
        packed = pickle.dumps(extract)
        write = with_variables(rows.sparkSession, partial(_write, packed, runtime.task_attempts), extract)
        # Unlike `repartition` it moves no row.
        return rows.coalesce(len(extract.chunks)).mapInArrow(write, ROWS_DDL)

    return job


@dataclass(frozen=True)
class TaskReport:
    """What a task tells: its result, and the range of its keys where it knows it."""

    result: ChunkResult
    span: Sequence[Edge | None] | None


def pieces_of(written: Sequence[TaskReport], kept: Sequence[Piece], *, columns: int) -> tuple[Piece, ...]:
    """Describe the pieces of a version; () where one has no range, or all would be more than a manifest should hold."""
    filled = [each for each in written if each.result.parts]
    spans = [each.span for each in filled]
    # Without pieces the next version is written whole: dearer, and never wrong.
    if None in spans or (len(filled) + len(kept)) * columns > MOST_SUMS:
        return ()
    return (*kept, *(piece_of(each.result, each.span) for each in filled if each.span is not None))


def _run(job: Callable[[Extract], DataFrame], extract: Extract, runtime: SparkRuntime) -> list[TaskReport]:
    """Write in as many tasks as the extract has chunks; what they tell, in order."""
    tag = f"rivet-{uuid.uuid4().hex}"
    # Held by the driver too, so that no sweep takes the folder away between two tasks of this machine.
    with scratch.held(scratch.folder_of(extract.run_id)):
        try:
            return _results(job, extract, runtime, tag)
        except BaseException:
            # Also when the run is stopped: its tasks would go on staging behind the clearing.
            runtime.call_off(tag)
            _clear(extract)
            raise


def _results(
    job: Callable[[Extract], DataFrame], extract: Extract, runtime: SparkRuntime, tag: str
) -> list[TaskReport]:
    from py4j.protocol import Py4JError  # Spark
    from pyspark.errors import PySparkException  # Spark

    # Asked before: after a fault there may be another one.
    context = runtime.context() if runtime.is_cluster else None
    try:
        with runtime.tagged(tag):
            # A row per chunk with a result, never rows of the table: those stay in the tasks, which write them.
            rows = job(extract).collect()
    except (PySparkException, Py4JError) as error:
        raise cluster_fault(str(error), context) or _job_failed(extract, str(error)) from None
    if fault := next((json.loads(row["body"]) for row in rows if not row["done"]), None):
        # The first fault as the task met it, with its class: whether to retry is decided by that, not by Spark's
        # wrapping.
        raise rebuild(fault)
    told = [TaskReport(result_of(row["body"]), json.loads(row["body"]).get("span")) for row in rows]
    return sorted(told, key=lambda each: each.result.chunk)


def _clear(extract: Extract) -> None:
    """Remove what this run staged, also what tasks staged that could not tell any more; others' stays."""
    root = extract.destination.root(extract.export)

    # Asked after the listing: a run that began since keeps what it has.
    def others() -> Iterator[str]:
        yield from root.staged_runs() - {extract.run_id}

    try:
        root.sweep(keep=others())
    except RivetError as error:
        log.warning("Staged parts of %s could not be removed now: %s", extract.export, error)


def _job_failed(extract: Extract, told: str) -> RivetError:
    """Return that the job died, by kind only: Spark's text may hold a value of a row."""
    reason = next((text for sign, text in DEATHS.items() if sign in told), "Spark gave up on it")
    return TaskFailed(
        f"Export {extract.export}: {reason} while changes were applied. Run again with RIVET_SPARK_LOG=- to see "
        f"Spark's own log. Nothing was published."
    )


DEATHS: Mapping[str, str] = {
    "OutOfMemoryError": "the JVM had too little memory (raise `spark: driver_memory`)",
    "crashed": "a Python process died",
    "exited unexpectedly": "a Python process died",
    "ArrowInvalid": "a column was altered, and a cell of its old type has no place in the new one,",
    "ArrowNotImplementedError": "a column was altered to a type that its old one does not turn into",
}


def _write(packed: bytes, attempts: int, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Run in an executor: write and stage one partition, as `mapInArrow` wants it."""
    yield told(packed, attempts, Arriving(batches))


def told(packed: bytes, attempts: int, source: Any) -> pa.RecordBatch:
    """Run in an executor: stage the pages of `source` as the chunk of this partition, and tell what came of it."""
    from pyspark import TaskContext  # Spark

    context = TaskContext.get()
    number = context.attemptNumber() if context else 0
    extract: Extract = pickle.loads(packed)
    chunk = extract.chunks[context.partitionId() if context else 0]
    row = outcome(replace(extract, source=source), chunk, TaskAttempt(number, last=number + 1 >= attempts))
    if row["done"] and isinstance(span := getattr(source, "span", None), Span):
        row["body"] = json.dumps({**json.loads(row["body"]), "span": span.told})
    return pa.RecordBatch.from_pylist([row], schema=ROWS)
