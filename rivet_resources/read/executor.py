"""What runs inside a Spark executor: descriptors come in, one small row per finished chunk goes out.

Belongs here: the bridge between a job and `task.py`, and how a fault travels back as plain text. Not
here: anything of the driver; this module is imported in every worker, so its imports are few.

Faults are told, not thrown, where throwing would only make Spark try in vain (`retry` is False) or would
hand the driver a Java stack instead of the fault (the last attempt). Otherwise they are thrown, and Spark retries.
"""

from __future__ import annotations

import functools
import gc
import importlib
import json
import os
import pickle
import socket
import traceback
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa

from rivet_resources import scratch
from rivet_resources.contracts.extract import Extract
from rivet_resources.contracts.parts import ChunkResult
from rivet_resources.contracts.relation import Chunk
from rivet_resources.errors import RivetError
from rivet_resources.read.gathering import leave
from rivet_resources.read.task import run_chunk
from rivet_resources.read.throttle import tell_speed
from rivet_resources.secrets import Variables, lend

Task = Callable[[Iterator[int]], Iterator[dict[str, Any]]]
ROWS_DDL = "done boolean, body string"
ROWS = pa.schema([("done", pa.bool_()), ("body", pa.string())])


class TaskFailed(RivetError):
    """A task ended in a way nobody foresaw: its process died, or a program error; all its attempts did.

    The message of a foreign exception may hold a row's value, so only its type and place are told.
    """

    code = "RIVET_TASK_FAILED"
    retry = True
    exit_code = 2


@dataclass(frozen=True)
class TaskAttempt:
    """Which try this is, and whether it is the last that Spark grants; the first is 0.

    `speed`: what the governor allows, told from afar; None: this host sees it by itself.
    """

    number: int
    last: bool
    speed: float | None = None


def run_descriptors(
    packed: bytes, lent: Variables, attempts: int, speed: float | None, descriptors: Iterator[int]
) -> Iterator[dict[str, Any]]:
    """Run the chunks whose descriptors come in, up to the first fault; rows of shape `ROWS`, as `mapPartitions` wants.

    Args:
        packed: the pickled Extract, with the chunks of this job only; a descriptor is a position among them. A secret
            given inline travels in here and nowhere else.
        lent: variables that the driver has and this host may lack; only over encrypted lines (`spark/cluster.py`).
        attempts: how often Spark starts a task at most.
        speed: what the governor allows now, where this host cannot see the driver's file; None: it can.
    """
    from pyspark import TaskContext  # Spark

    context = TaskContext.get()
    number = context.attemptNumber() if context else 0
    attempt = TaskAttempt(number, last=number + 1 >= attempts, speed=speed)
    # Before the first chunk connects: its source and its destination resolve their secrets from these variables.
    lend(lent)
    extract = unpack(packed)
    try:
        for descriptor in descriptors:
            row = outcome(extract, extract.chunks[descriptor], attempt)
            yield row
            # A fault that was told ends the task without an exception; going on would read chunks of a run that is
            # called off.
            if not row["done"]:
                return
    finally:
        # The aligned source keeps a connection open between the chunks of a group, and a worker lives longer than
        # its task.
        leave(extract)


def run_in_arrow(task: Task, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Run a task whose descriptors come in batches, as `mapInArrow` wants it; a batch for each row."""
    for row in task(each for batch in batches for each in batch.column(0).to_pylist()):
        yield pa.RecordBatch.from_pylist([row], schema=ROWS)


@functools.lru_cache(maxsize=1)
def unpack(packed: bytes) -> Extract:
    """Unpickle an Extract, once for all attempts of a task in one worker."""
    extract: Extract = pickle.loads(packed)
    _freeze_imports()
    return extract


@functools.cache
def _freeze_imports() -> None:
    # Pyspark collects garbage after each task: 30 ms over the imports alone, measured.
    gc.freeze()


def outcome(extract: Extract, chunk: Chunk, attempt: TaskAttempt) -> dict[str, Any]:
    """Run a chunk and tell what came of it, a result or a fault that is not worth another attempt.

    Raises:
        Exception: whatever happened, when another attempt is granted and may help.
    """
    try:
        with scratch.held(scratch.folder_of(extract.run_id)) as folder:
            if attempt.speed is not None:
                tell_speed(folder, attempt.speed)
            result = run_chunk(extract, chunk, attempt=attempt.number, scratch=folder)
    except RivetError as error:
        # Thrown for Spark to try again. Told instead where a try is in vain, or where it was the last one: Spark
        # would wrap it in a Java stack, out of which the driver cannot take the class of the fault.
        if error.retry and not attempt.last:
            raise
        return {"done": False, "body": json.dumps(describe(error))}
    except Exception as error:
        if not attempt.last:
            raise
        # The message stays here: one of a driver or of Arrow may hold a row's value, and this text goes into logs.
        return {"done": False, "body": json.dumps(describe(_unforeseen(extract, chunk, error)))}
    return {"done": True, "body": json.dumps(asdict(result))}


def _unforeseen(extract: Extract, chunk: Chunk, error: Exception) -> TaskFailed:
    """Return where a foreign exception came from, without what it says."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f"{os.path.basename(frames[-1].filename)}:{frames[-1].lineno}" if frames else "unknown place"
    failed = TaskFailed(
        f"Export {extract.export}, chunk {chunk.index} ended in a {type(error).__name__} at {place} in every attempt. "
        f"Nothing was published; run again with RIVET_SPARK_LOG=- to see more, and report it if it stays."
    )
    # Places in the code only: `format_exception` would add what the exception says.
    failed.add_note("".join(traceback.format_list(frames)))
    return failed


def describe(error: RivetError) -> dict[str, Any]:
    """Take a fault apart into plain text and numbers."""
    kind = type(error)
    facts = {
        # Only what JSON can carry. What an exception holds beside that (a cause, a connection) is of this process.
        key: value
        for key, value in vars(error).items()
        if isinstance(value, str | int | float | bool | list | tuple)
    }
    told = {"module": kind.__module__, "name": kind.__qualname__, "message": str(error), "facts": facts}
    return {**told, "host": socket.gethostname()}


def rebuild(described: dict[str, Any]) -> RivetError:
    """Make a fault of the same class again; a class that this process does not know becomes a TaskFailed.

    It names the host where that is another one than ours: what is wrong there may be right here.
    """
    kind: Any = TaskFailed
    # A worker sends the name of a class; only those of our own packages are imported for it.
    if described["module"].partition(".")[0] in ("rivet_resources", "rivet_assets", "tests"):
        try:
            kind = functools.reduce(getattr, described["name"].split("."), importlib.import_module(described["module"]))
        except (ImportError, AttributeError):
            kind = TaskFailed
    if not (isinstance(kind, type) and issubclass(kind, RivetError)):
        kind = TaskFailed
    error: RivetError = kind.__new__(kind)
    # Its own `__init__` would compose the message once more.
    away = described["host"] != socket.gethostname()
    Exception.__init__(error, f"Host {described['host']}: {described['message']}" if away else described["message"])
    vars(error).update(described["facts"])
    return error


def result_of(body: str) -> ChunkResult:
    """Rebuild a result from its row."""
    return ChunkResult.of(json.loads(body))
