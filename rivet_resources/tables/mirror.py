"""The table as it is at the source now, from its changes (`apply: mirror`).

Belongs here: one new version of a mirror, staged. Not here: publishing it (`commit/publish.py`), judging it
(`rivet_assets/`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from rivet_resources.contracts.change_log import BEFORE, ENVELOPE
from rivet_resources.contracts.extract import Extract, Staged
from rivet_resources.errors import UnknownColumn
from rivet_resources.shape.shape import schema_of
from rivet_resources.spark.runtime import SparkRuntime
from rivet_resources.tables import frames
from rivet_resources.tables.places import lay_out, mirror_job, refuse_shared_keys, suits
from rivet_resources.tables.reading import EnvelopeSurvey, PendingWindows, frame_of, pending, survey
from rivet_resources.tables.writing import Derived, describe, input_bytes, rows_job, session_for, stage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MODE = "mirror"
# So few changed keys are sent to the base, rather than the base shuffled to them.
BROADCAST_ROWS = 200_000


def stage_mirror(derived: Derived, *, spark: SparkRuntime) -> Staged | None:
    """Apply what is new and leave the next version staged: complete, verified, invisible.

    Returns:
        None when the last version holds all changes: nothing was written.

    Raises:
        ManifestUnreadable: changes between the last version and the oldest window are gone.
        WindowConflict: something other than a mirror is committed at its place.
        UnknownColumn: the changes do not have a key column.
        KeyShared: two rows have one key, where nobody knew it to be unique.
        RivetError: the first fault of a task.
    """
    todo = pending(derived.changes, derived.root, mode=MODE, key=derived.key, anew=derived.anew)
    if todo is None:
        return None
    table = table_schema(todo.schema, derived.key, export=derived.export)
    seen = survey(spark.task_session(), derived.changes, todo.changes, newest=todo.newest, key=derived.key)
    do = partial(
        stage, derived=derived, todo=todo, mode=MODE, schema=table, newest=newest_of(todo, seen), runtime=spark
    )
    # Rows become Spark's only where some change did not carry all of its own.
    if seen.lacking_of(table.names) or not suits(derived, table):
        refuse_shared_keys(derived, todo, seen, table, runtime=spark)
        return do(_rows_job(derived, todo, seen, table, spark))
    layout = lay_out(derived, todo, seen, written_schema(derived, todo, table), parallelism=spark.parallelism)
    job = mirror_job(derived, todo, seen, table, layout=layout, runtime=spark)
    return do(job, chunks=layout.chunks, kept=layout.kept)


def written_schema(derived: Derived, todo: PendingWindows, table: pa.Schema) -> pa.Schema:
    """Return the schema that parts of the table get, with what they say of each column."""
    # The newest window of changes decides the columns: one that was dropped is gone, one that was added is NULL in rows
    # that were not written since, one that was altered is read as its new type.
    return schema_of(describe(derived, todo, mode=MODE, schema=table, newest="", parallelism=1))


def _rows_job(
    derived: Derived, todo: PendingWindows, seen: EnvelopeSurvey, table: pa.Schema, spark: SparkRuntime
) -> Callable[[Extract], DataFrame]:
    session = session_for(spark, input_bytes(todo))
    # Nothing that stood before a truncate is left.
    base = None if seen.truncates else _base(session, todo, derived, table)
    made = _apply_changes(session, base, todo, seen, derived, table) if seen.rows or base is None else base
    return rows_job(made, spark)


def _base(session: SparkSession, todo: PendingWindows, derived: Derived, table: pa.Schema) -> DataFrame | None:
    """Return the rows that changes go onto: the last version's, or those of the first copy."""
    if todo.base is not None:
        return frame_of(session, derived.root, [todo.base], table)
    return frame_of(session, derived.changes, todo.copy, table) if todo.copy else None


def _apply_changes(
    session: SparkSession,
    base: DataFrame | None,
    todo: PendingWindows,
    seen: EnvelopeSurvey,
    derived: Derived,
    table: pa.Schema,
) -> DataFrame:
    """Return the rows after the changes."""
    changes = frame_of(session, derived.changes, todo.changes, pa.schema([*ENVELOPE, *table]))
    cut = seen.truncates[-1] if seen.truncates else None
    rows = frames.beyond(changes, todo.newest, (cut.pos, cut.seq) if cut else None)
    lacking = seen.lacking_of(table.names)
    if lacking:
        rows = frames.filled(rows, base, derived.key, lacking, moves=seen.moves)
    few = seen.rows <= BROADCAST_ROWS
    return frames.mirrored(base, rows, derived.key, table.names, null_keys=seen.null_keys, broadcast=few)


def table_schema(changes: pa.Schema, key: tuple[str, ...], *, export: str) -> pa.Schema:
    """Take the columns of the table out of a schema of changes.

    Raises:
        UnknownColumn: one of the key is not among them.
    """
    envelope = {field.name for field in ENVELOPE} | {BEFORE}
    table = pa.schema([field.with_nullable(True) for field in changes if field.name not in envelope])
    if unknown := next((name for name in key if name not in table.names), None):
        raise UnknownColumn(unknown, relation=f"The changes that {export} is made of", known=table.names, key="key")
    return table


def newest_of(todo: PendingWindows, seen: EnvelopeSurvey) -> str:
    """Return the highest position whose changes the new version holds."""
    return max(todo.newest, seen.newest)
