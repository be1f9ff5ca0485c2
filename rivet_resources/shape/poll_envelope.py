"""What a row of a polled table becomes in a stream of changes: pure, page by page.

Belongs here: operation, position and time of a row, told from its own stamps. Not here: which rows a run reads
(`poll/places.py`), how far it has come (`poll/watermark.py`), rows that are gone (`poll/full_diff.py`).

A poll sees states, not operations. `delete` is certain: the row has its mark, or its key is no longer in the table.
`insert` or `update` is a guess by `created_at`, and a mirror treats the two alike. They stay in `__op` (2026-11; a
separate `__op_hint` was rejected: whoever applies changes would then need two ways), and the field says so.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rivet_resources.contracts.change_log import OP, POS, SEQ, TS, UNCHANGED, change_schema
from rivet_resources.contracts.rows.poll import PollShape

GUESS = {
    "rivet.op": "insert and update are a guess by created_at = updated_at; delete is certain",
    "rivet.pos": "the row's updated_at, of a marked row the later of updated_at and its mark",
}
# `__seq` has the number of the window, of the chunk in it, and of the row in that one. No two rows of an export share
# one: many rows may carry one stamp, and so one `__pos`, in a window or in several. What comes later is higher: of a
# key, its deletion by a mark is in a later chunk than its row, and what a full diff finds is in the last one.
CHUNK_BITS, ROW_BITS = 2, 34
# Metadata of a page that a full diff made: its position.
DIFFED = b"rivet.diffed"
NAIVE_NS, NAIVE_US = pa.timestamp("ns"), pa.timestamp("us")


def first_seq(window: int, chunk: int) -> int:
    """Return the `__seq` of the first row of a chunk; the rows behind it count on."""
    # 27 bits are left for windows: 134 million of them, each with 17 billion rows a chunk.
    return (((window << CHUNK_BITS) + chunk) << ROW_BITS) + 1


def poll_schema(rows: pa.Schema) -> pa.Schema:
    """Return the schema of parts of a polled table: that of changes, with a word on what `__op` and `__pos` are."""
    schema = change_schema(rows)
    told = [schema.field(0).with_metadata({"rivet.note": GUESS["rivet.op"]}),
            schema.field(1).with_metadata({"rivet.note": GUESS["rivet.pos"]})]  # fmt: skip
    return pa.schema([*told, *list(schema)[2:]])


def positions(stamps: pa.ChunkedArray | pa.Array) -> pa.ChunkedArray | pa.Array:
    """Render stamps as texts of equal length that sort like them, `2026-01-31T03:15:00.000000`; NULL stays NULL."""
    return pc.strftime(naive(stamps), format="%Y-%m-%dT%H:%M:%S")


def position_of(canonical: str) -> str:
    """Return the position of a canonical text of a stamp."""
    return canonical.removesuffix("Z")


def naive(stamps: pa.ChunkedArray | pa.Array) -> pa.ChunkedArray | pa.Array:
    """Take the zone off: instants in UTC, naive stamps as they are; microseconds unless they are finer."""
    kind = NAIVE_NS if stamps.type.unit == "ns" else NAIVE_US
    return pc.cast(stamps, pa.timestamp(kind.unit, stamps.type.tz)).cast(kind)


def diffed(rows: pa.Table, *, position: str) -> pa.Table:
    """Mark a page as what a full diff found at `position`: rows without `updated_at` are gone."""
    return rows.replace_schema_metadata({DIFFED: position.encode()})


def enveloped(table: pa.Table, shape: PollShape, *, first: int) -> tuple[pa.ChunkedArray | pa.Array, ...]:
    """Make the columns of ENVELOPE for a page of rows as the source typed them, in their order.

    `__ts` is `updated_at`, of a marked row its mark; a stamp without a zone is taken for UTC.

    Args:
        first: `__seq` of the page's first row; see `first_seq`.
    """
    seq = pa.array(np.arange(first, first + table.num_rows, dtype=np.int64), SEQ.type)
    if table.schema.metadata and DIFFED in table.schema.metadata:
        return _found_by_diff(table, shape, seq)
    stamps = _stamps(table, shape)
    unit = "ns" if any(table.column(name).type.unit == "ns" for name in _named(shape)) else "us"
    at = naive(stamps).cast(pa.timestamp(unit))
    is_marked: pa.ChunkedArray | pa.Array = pa.repeat(pa.scalar(False), table.num_rows)
    happened = at
    if shape.deleted_at:
        marks = naive(table.column(shape.deleted_at)).cast(at.type)
        is_marked = marks.is_valid()
        happened = pc.if_else(is_marked, marks, at)
        at = pc.max_element_wise(at, marks)  # a clock that stamps a mark before the last update must not undo it
    op = pc.if_else(is_marked, "delete", _guess(table, shape, stamps))
    return _cast_envelope(op, positions(at), seq, happened)


def _stamps(table: pa.Table, shape: PollShape) -> pa.ChunkedArray:
    stamps = table.column(shape.updated_at)
    return pc.coalesce(stamps, table.column(shape.fallback).cast(stamps.type)) if shape.fallback else stamps


def _named(shape: PollShape) -> Sequence[str]:
    return [name for name in (shape.updated_at, shape.deleted_at) if name]


def _guess(table: pa.Table, shape: PollShape, stamps: pa.ChunkedArray) -> pa.ChunkedArray | pa.Scalar:
    """Return insert where a row was never touched after it was made; without `created_at` all are updates."""
    if not shape.created_at:
        return pa.scalar("update")
    created = naive(table.column(shape.created_at))
    finest = pa.timestamp("ns" if "ns" in (created.type.unit, stamps.type.unit) else "us")
    is_new = pc.fill_null(pc.equal(created.cast(finest), naive(stamps).cast(finest)), False)
    return pc.if_else(is_new, "insert", "update")


def _found_by_diff(table: pa.Table, shape: PollShape, seq: pa.Array) -> tuple[pa.ChunkedArray | pa.Array, ...]:
    position = table.schema.metadata[DIFFED].decode()
    stamps = naive(_stamps(table, shape))
    is_gone = stamps.is_null()
    detected = pa.scalar(position).cast(stamps.type)
    op = pc.if_else(is_gone, "delete", _guess(table, shape, _stamps(table, shape)))
    where = pa.repeat(pa.scalar(position, POS.type), table.num_rows)
    return _cast_envelope(op, where, seq, pc.if_else(is_gone, detected, stamps))


def _cast_envelope(
    op: pa.ChunkedArray | pa.Array,
    position: pa.ChunkedArray | pa.Array,
    seq: pa.ChunkedArray | pa.Array,
    at: pa.ChunkedArray | pa.Array,
) -> tuple[pa.ChunkedArray | pa.Array, ...]:
    # Finer than microseconds is cut here; `__pos` and the column itself keep it.
    instant = pc.assume_timezone(at.cast(NAIVE_US, safe=False), "UTC")
    nothing = pa.nulls(len(op), UNCHANGED.type)
    return op.cast(OP.type), position.cast(POS.type), seq, instant.cast(TS.type), nothing
