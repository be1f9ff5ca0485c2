"""Every state the rows of a table have had, from its changes (`apply: history`).

Belongs here: one new version of a history, staged. Not here: what opens and closes a version of a row
(`versions.py`), publishing (`commit/publish.py`).

A history keeps columns that the table has lost, behind those it has: they are what once was. Each version of the
history is written whole, also the rows that no change touched.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from rivet_resources.commit.manifest import schema_of
from rivet_resources.contracts.change_log import ENVELOPE
from rivet_resources.contracts.extract import Staged
from rivet_resources.contracts.transform import run_clock_columns
from rivet_resources.errors import UnsupportedColumn
from rivet_resources.spark.runtime import SparkRuntime
from rivet_resources.tables import frames
from rivet_resources.tables.mirror import newest_of, table_schema
from rivet_resources.tables.places import refuse_shared_keys
from rivet_resources.tables.reading import EnvelopeSurvey, PendingWindows, frame_of, pending, survey
from rivet_resources.tables.versions import NAMES, OWN, VERSION, opened, versioned
from rivet_resources.tables.writing import Derived, input_bytes, rows_job, session_for, stage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MODE = "history"


def stage_history(derived: Derived, *, spark: SparkRuntime) -> Staged | None:
    """Apply what is new and leave the next version staged: complete, verified, invisible.

    Returns:
        None when the last version holds all changes: nothing was written.

    Raises:
        ManifestUnreadable: changes between the last version and the oldest window are gone.
        WindowConflict: something other than a history is committed at its place.
        UnknownColumn: the changes do not have a key column.
        KeyShared: two rows have one key, where nobody knew it to be unique.
        UnsupportedColumn: a column of the table has a name that versions need.
        RivetError: the first fault of a task.
    """
    todo = pending(derived.changes, derived.root, mode=MODE, key=derived.key, anew=derived.anew)
    if todo is None:
        return None
    table = _all_columns(todo, derived)
    session = session_for(spark, input_bytes(todo))
    seen = survey(spark.task_session(), derived.changes, todo.changes, newest=todo.newest, key=derived.key)
    refuse_shared_keys(derived, todo, seen, table, runtime=spark, is_of_versions=True)
    base = _base(session, todo, derived, table)
    made = _apply_changes(session, base, todo, seen, derived, table) if seen.rows or base is None else base
    schema = pa.schema([*VERSION, *table])
    job = rows_job(made, spark)
    return stage(job, derived, todo, mode=MODE, schema=schema, newest=newest_of(todo, seen), runtime=spark)


def _base(session: SparkSession, todo: PendingWindows, derived: Derived, table: pa.Schema) -> DataFrame | None:
    """Return the versions that changes go onto: the history's own, or those that the first copy opens."""
    if todo.base is not None:
        return frame_of(session, derived.root, [todo.base], pa.schema([*VERSION, *table]))
    copy = frame_of(session, derived.changes, todo.copy, pa.schema([*ENVELOPE, *table])) if todo.copy else None
    return opened(copy, table.names) if copy is not None else None


def _apply_changes(
    session: SparkSession,
    base: DataFrame | None,
    todo: PendingWindows,
    seen: EnvelopeSurvey,
    derived: Derived,
    table: pa.Schema,
) -> DataFrame:
    """Return the versions after the changes."""
    changes = frame_of(session, derived.changes, todo.changes, pa.schema([*ENVELOPE, *table]))
    rows = frames.beyond(changes, todo.newest)
    if lacking := [name for name in table.names if name in seen.lacking]:
        # What the log did not carry is as it was in the row's present state; closed ones are of an earlier one.
        standing = base.where("is_current") if base is not None else None
        rows = frames.filled(rows, standing, derived.key, lacking, moves=seen.moves)
    names, truncates, own = table.names, seen.truncates, {*OWN, *run_clock_columns(table)}
    return versioned(base, rows, derived.key, names, truncates=truncates, null_keys=seen.null_keys, own=own)


def _all_columns(todo: PendingWindows, derived: Derived) -> pa.Schema:
    """Join the columns of the newest window, of older ones, and of the history so far.

    Raises:
        UnsupportedColumn: one has a name that versions need.
    """
    table = table_schema(todo.schema, derived.key, export=derived.export)
    if taken := next((name for name in table.names if name in NAMES), None):
        raise UnsupportedColumn(
            f"Export {derived.export}: the table has a column {taken!r}, a name that a history needs for itself; it "
            f"takes {', '.join(NAMES)}. Rename the column on its way with `transforms: [{{type: rename, …}}]`."
        )
    fields = {field.name: field for field in table}
    for manifest in reversed(todo.windows):
        older = table_schema(schema_of(manifest), (), export=derived.export)
        fields |= {field.name: field for field in older if field.name not in fields}
    kept = schema_of(todo.base) if todo.base else ()
    fields |= {field.name: field for field in kept if field.name not in fields and field.name not in NAMES}
    return pa.schema(list(fields.values()))
