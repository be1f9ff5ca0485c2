"""What a commit tells the store, and the rows that follow from it.

Belongs here: the shape of a commit, and reading it. Not here: the transaction that writes them (`store.py`).
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

import pyarrow as pa

from rivet_resources.errors import StateError
from rivet_resources.state.files import CommitOrigin, Published
from rivet_resources.state.runs import RunRecord
from rivet_resources.state.schemas import Columns


class Moved(Protocol):
    """How far an incremental commit went, as a manifest says it."""

    @property
    def low(self) -> str | None: ...
    @property
    def high(self) -> str | None: ...


class Committed(Protocol):
    """What a commit tells the store: `manifest.Manifest` has these, and so may any other object."""

    @property
    def run_id(self) -> str: ...
    @property
    def export_name(self) -> str: ...
    @property
    def window(self) -> str: ...  # the key
    @property
    def started_at(self) -> datetime: ...
    @property
    def finished_at(self) -> datetime: ...
    @property
    def format(self) -> str: ...
    @property
    def compression(self) -> str: ...
    @property
    def row_count(self) -> int: ...
    @property
    def consistency(self) -> str: ...
    @property
    def cursor(self) -> Moved | None: ...
    @property
    def parts(self) -> Sequence[Published]: ...
    @property
    def schema_ipc(self) -> str: ...  # base64


def origin_of(manifest: Committed, *, key: str) -> CommitOrigin:
    """Name the commit that its files share, under the key of its export."""
    return CommitOrigin(
        export=key,
        window=manifest.window,
        run_id=manifest.run_id,
        format=manifest.format,
        compression=manifest.compression,
        created_at=manifest.finished_at,
    )


def columns_of(manifest: Committed) -> Columns:
    """Read the columns of a commit.

    Raises:
        StateError: its manifest holds no schema.
    """
    try:
        schema = pa.ipc.read_schema(pa.BufferReader(base64.b64decode(manifest.schema_ipc, validate=True)))
    except (ValueError, pa.ArrowException) as error:
        raise StateError(
            f"The manifest of window {manifest.window} of export {manifest.export_name} has a schema_ipc that is no "
            f"schema. Restore it from a copy."
        ) from error
    return [(field.name, str(field.type)) for field in schema]


def run_of(manifest: Committed, *, key: str, schema_changed: bool) -> RunRecord:
    """Make the record of the run that committed, under the key of its export."""
    moved = manifest.cursor
    return RunRecord(
        run_id=manifest.run_id,
        export=key,
        window=manifest.window,
        status="success",
        started_at=manifest.started_at,
        finished_at=manifest.finished_at,
        duration_ms=round((manifest.finished_at - manifest.started_at).total_seconds() * 1000),
        total_rows=manifest.row_count,
        files_produced=len(manifest.parts),
        bytes_written=sum(part.size_bytes for part in manifest.parts),
        format=manifest.format,
        compression=manifest.compression,
        consistency=manifest.consistency,
        cursor_low=moved.low if moved else None,
        cursor_high=moved.high if moved else None,
        schema_changed=schema_changed,
    )
