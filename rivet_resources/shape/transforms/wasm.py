"""A step that somebody else wrote and nobody has to trust: WebAssembly (`type: wasm`).

Belongs here: the block, its plan, and what its answers must be. Not here: the sandbox (`shape/wasm_sandbox.py`), the
bytes that it answers with (`shape/wasm_output.py`).

A module sees the columns that are named and nothing else, and what it returns stands in their place: it cannot lose a
row, add one, or touch another column.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field, PrivateAttr, model_validator

from rivet_resources.contracts.rows.row_errors import Places
from rivet_resources.contracts.settings import Settings, Size, beside_config
from rivet_resources.contracts.transform import RowRefused, StepPlan, TransformError
from rivet_resources.extras import WASM, Extra
from rivet_resources.shape import wasm_sandbox
from rivet_resources.shape.transforms.conditions import OnError, When
from rivet_resources.shape.transforms.fields import derived, matching, with_columns
from rivet_resources.shape.wasm_output import OutputRefused, batch_of, schema_of
from rivet_resources.shape.wasm_sandbox import CallEnded, Limits, ModuleRefused

REFUSED = "rivet_refused"  # a column of answers only: which rows the module cannot take
SHARE_OF_MEMORY = 8  # a call gets at most this part of the module's memory: it holds input, output and what is between


class Wasm(Settings):
    """Columns go through a WebAssembly module, which gets nothing else; docs/guides/plugins.md has its interface."""

    type: Literal["wasm"]
    module: Path = Field(description="the .wasm file; a relative path is looked up beside the configuration")
    sha256: str = Field("", pattern="^([0-9a-f]{64})?$", description="digest the file must have; default: any")
    columns: tuple[str, ...] = Field(min_length=1, description="names or globs of the columns that the module gets")
    config: dict[str, Any] = Field(default_factory=dict, description="for the module's `rivet_init`, as JSON")
    memory: Size = Field(64 * 1024**2, ge=1024**2, le=2 * 1024**3, description="most that a call may hold")
    seconds: float = Field(10.0, gt=0, le=600, description="longest call, of at most a page of rows")
    masks: bool = Field(True, description="its columns count as masked: no quarantine shows what it was given")
    when: When = None
    on_error: OnError = None
    extra: ClassVar[Extra] = WASM
    _code: bytes = PrivateAttr(b"")  # travels to Spark's workers, which do not have the file

    @model_validator(mode="after")
    def _read(self) -> Wasm:
        """Read the file once, where the configuration is: later, another file could stand there.

        Raises:
            ValueError: it cannot be read, or is not the one that `sha256` names.
        """
        try:
            self._code = beside_config(self.module).read_bytes()
        except OSError as error:
            raise ValueError(f"module {str(self.module)!r} cannot be read: {error.strerror}") from None
        digest = hashlib.sha256(self._code).hexdigest()
        if self.sha256 and self.sha256 != digest:
            raise ValueError(f"module {str(self.module)!r} has another `sha256`: {digest}")
        # Frozen, and still its own validator's to complete: plans and fingerprints then follow the file's content.
        object.__setattr__(self, "sha256", digest)
        return self

    def plan(self, schema: pa.Schema) -> StepPlan:
        """Ask the module what becomes of the columns.

        Raises:
            ExtraMissing: wasmtime is not installed.
            TransformError: a column is missing, or the module is refused, ends badly or plans what cannot be.
        """
        names = self._names(schema)
        try:
            wasm_sandbox.check(self._code)
            planned = schema_of(self._plan(_bare(schema, names)))
        except (ModuleRefused, CallEnded, OutputRefused) as error:
            raise TransformError(f"module {str(self.module)!r} {error}.") from None
        return self._planned(schema, names, planned)

    def apply(self, table: pa.Table) -> pa.Table:
        """Have the module shape a page, in pieces that fit its memory.

        Raises:
            RowRefused
        """
        names = self._names(table.schema)
        given = table.select(names).cast(_bare(table.schema, names))
        pieces = [self._shape(piece) for piece in self._pieces(given)] or [self._shape(given)]
        bad = np.concatenate([marks for _, marks in pieces])
        if bad.any():
            raise self._refused(given, f"refused {np.count_nonzero(bad)} of them", rows=bad)
        shaped = pa.concat_tables([columns for columns, _ in pieces])
        kept = table.drop_columns([name for name in names if name not in shaped.column_names])
        return with_columns(kept, {name: shaped.column(name) for name in shaped.column_names})

    def _names(self, schema: pa.Schema) -> tuple[str, ...]:
        return matching(schema, self.columns, ignore_missing=False)

    def _planned(self, schema: pa.Schema, names: tuple[str, ...], planned: pa.Schema) -> StepPlan:
        """Put what the module planned in place of its columns.

        Raises:
            TransformError
        """
        others = [name for name in schema.names if name not in names]
        twice = sorted({n for n in planned.names if planned.names.count(n) > 1 or n in others or n == REFUSED})
        if twice:
            raise TransformError(
                f"module {str(self.module)!r} plans {', '.join(map(repr, twice))}, which exists or is reserved; name "
                f"the column in `columns`, so that it is replaced, or drop it before."
            )
        by = f"wasm({self.module.name})"
        made = {f.name: derived(f.name, f.type, by, of=_field(schema, f.name)) for f in planned}
        fields = [made.pop(f.name, f) for f in schema if f.name in others or f.name in made]
        origins = {name: frozenset({name}) for name in others} | {f.name: frozenset(names) for f in planned}
        return StepPlan(
            pa.schema([*fields, *made.values()], metadata=schema.metadata),
            origins,
            frozenset(planned.names),
            frozenset(names) if self.masks else frozenset(),
        )

    def _pieces(self, given: pa.Table) -> Iterator[pa.Table]:
        rows = given.num_rows
        calls = max(1, -(-given.nbytes * SHARE_OF_MEMORY // self.memory))
        step = max(1, -(-rows // calls))
        for start in range(0, rows, step):
            yield given.slice(start, step)

    def _shape(self, given: pa.Table) -> tuple[pa.Table, Places]:
        """Call the module for some rows; what it made of them, and which it refuses.

        Raises:
            RowRefused: it made nothing of them.
        """
        why, is_of_rows = "", False
        try:
            shaped = batch_of(
                wasm_sandbox.call(
                    self._code, "rivet_transform", _stream(given), config=self._config(), limits=self._limits()
                )
            )
        except (ModuleRefused, OutputRefused) as error:
            why = str(error)
        except CallEnded as error:
            why, is_of_rows = str(error), error.is_of_data
        if why:
            raise self._refused(given, why, is_of_rows=is_of_rows)
        marks = shaped.column(REFUSED) if shaped.column_names[-1:] == [REFUSED] else None
        if marks is not None:
            shaped = shaped.drop_columns([REFUSED])
        planned = schema_of(self._plan(given.schema))
        if (shaped.schema.names, shaped.schema.types) != (planned.names, planned.types):
            raise self._refused(given, "answered with other columns than it planned", is_of_rows=False)
        if shaped.num_rows != given.num_rows:
            raise self._refused(given, f"answered with {shaped.num_rows} rows", is_of_rows=False)
        if marks is None:
            return shaped, np.zeros(given.num_rows, np.bool_)
        if not pa.types.is_boolean(marks.type):
            raise self._refused(given, f"answered with a {REFUSED} that is no boolean", is_of_rows=False)
        return shaped, pc.fill_null(marks, True).to_numpy()

    def _refused(self, given: pa.Table, why: str, *, is_of_rows: bool = True, rows: Places | None = None) -> RowRefused:
        way = "Clean the source, or set `on_error`." if is_of_rows else "The module must be mended."
        error = RowRefused(f"module {str(self.module)!r}, given {given.num_rows} rows, {why}. {way}")
        return error.blame(rows, why=f"module {self.module.name!r} refuses it", is_of_rows=is_of_rows)

    def _plan(self, given: pa.Schema) -> bytes:
        """Ask once for all pages of a schema."""
        return _planned_once(self._code, given.serialize().to_pybytes(), self._config(), self._limits())

    def _config(self) -> bytes:
        return json.dumps(self.config, sort_keys=True).encode() if self.config else b""

    def _limits(self) -> Limits:
        return Limits(self.memory, self.seconds)


@lru_cache(maxsize=32)
def _planned_once(code: bytes, given: bytes, config: bytes, limits: Limits) -> bytes:
    return wasm_sandbox.call(code, "rivet_plan", given, config=config, limits=limits)


def _bare(schema: pa.Schema, names: tuple[str, ...]) -> pa.Schema:
    """Return some fields without what is known of them: a comment of the database is none of the module's business."""
    return pa.schema([schema.field(name).remove_metadata() for name in names])


def _field(schema: pa.Schema, name: str) -> pa.Field | None:
    return schema.field(name) if name in schema.names else None


def _stream(table: pa.Table) -> bytes:
    """Write rows as one plain batch."""
    sink = pa.BufferOutputStream()
    # Copied: of a slice that begins at its buffers' start, Arrow 26 writes the whole buffers, neighbours' cells too.
    batches = table.take(np.arange(table.num_rows)).combine_chunks().to_batches()
    batch = batches[0] if batches else pa.RecordBatch.from_pylist([], schema=table.schema)
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_batch(batch)
    return bytes(memoryview(sink.getvalue()))
