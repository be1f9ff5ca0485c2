"""Record the archive of loaded classes: `python -m rivet_resources.spark.jvm_training`, in an image or beside.

Belongs here: the small job whose classes are worth having at hand, and the build. Not here: which flags
use the archive (`jvm_archive.py`).
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from rivet_resources.contracts.settings import Spark
from rivet_resources.spark import jvm, jvm_archive
from rivet_resources.spark.runtime import SparkRuntime


def build(java: jvm.Java) -> Path | None:
    """Run a small job under recording and put the archive in its place; None when nothing came of it."""
    file = jvm_archive.archive(java)
    if file is None:
        return None
    file.parent.mkdir(parents=True, exist_ok=True)
    # The archive is written under another name and renamed, so that a run never sees half of one.
    unfinished = file.with_name(f"{file.name}.{os.getpid()}")
    try:
        _record(jvm_archive.record(java, unfinished))
        unfinished.rename(file)
    except OSError:
        return None
    finally:
        jvm_archive.claim_of(file).unlink(missing_ok=True)
        unfinished.unlink(missing_ok=True)
    jvm_archive.prune(file)
    return file


def _record(flags: tuple[str, ...]) -> None:
    """Run what runs do: plain tasks, tasks through Arrow, reading parts back; then wait until all is written."""
    runtime = SparkRuntime(Spark.model_validate({}), archive=flags)
    context, session = runtime.context(), runtime.session()
    # Nobody else's: this process is ours.
    assert context is not None
    context.parallelize(range(2), 1).mapPartitions(_echo).collect()
    runtime.task_session().range(0, 1, 1, 1).mapInArrow(_echo, "id long").collect()
    with tempfile.TemporaryDirectory() as scratch:
        part = f"{scratch}/part.parquet"
        pq.write_table(pa.table({"a": [1, 2], "b": ["x", None]}), part)
        session.read.parquet(part).where("a > 1").groupBy("b").count().collect()
    process = runtime.process
    runtime.stop()
    if process is not None:
        # The JVM writes the archive while it ends, for some seconds; until then there is nothing to rename.
        process.wait(timeout=jvm_archive.STALE_SECONDS)


def _echo(given: Iterator[Any]) -> Iterator[Any]:
    yield from given


if __name__ == "__main__":
    if "--claimed" in sys.argv:
        os.nice(19)
    began = time.monotonic()
    built = build(jvm.find_java())
    print(f"{built} in {time.monotonic() - began:.0f} s" if built else "no archive was built")
