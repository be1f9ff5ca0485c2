"""Changes of one table as rows: what each is now, what it was before, and whether its key moved.

Belongs here: old and new halves of an update, unchanged TOAST, rows before. Not here: which changes are wanted
(window.py), bytes (messages.py).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rivet_resources.contracts.change_log import UNCHANGED
from rivet_resources.engines.postgres.log import messages
from rivet_resources.engines.postgres.log.lsn import Mask, Numbers
from rivet_resources.engines.postgres.log.messages import Bytes, Messages, TupleCells
from rivet_resources.engines.postgres.log.relations import CapturedRelation


@dataclass
class LogRows:
    """Changes of one table: what each row is now, and what it was where the log says so."""

    kinds: Bytes
    now: list[TupleCells]  # of a delete, what it was
    old: list[TupleCells]  # NULLs where there is none
    has_old: Mask
    moved: Mask  # updates that changed the key

    @classmethod
    def of(cls, batch: Messages, captured: CapturedRelation, rows: Numbers) -> LogRows:
        """Walk the rows; unchanged values are taken from the old row where it has them.

        Raises:
            LogRefused: a row does not end inside of its message.
        """
        count = len(captured.columns)
        # Behind the message's kind (1 byte) and the table's oid (4)
        # stands what comes: K or O an old row, N the new one.
        places, kinds = batch.starts[rows] + 5, batch.kinds[rows]
        if len(places) and int(places.max()) >= len(batch.buffer):
            raise messages.malformed_bytes("A row")
        tags = batch.buffer[places]
        has_old = (tags == messages.KEY) | (tags == messages.WHOLE)
        begins_old = has_old & (kinds == messages.UPDATE)
        nothing = np.zeros(len(rows), np.int64)
        moved = np.zeros(len(rows), bool)
        old = [
            TupleCells(np.full(len(rows), messages.NULL, np.uint8), nothing.copy(), nothing.copy())
            for _ in range(count)
        ]
        if begins_old.any():
            came, ends = messages.walk(batch.buffer, places[begins_old] + 1, count)
            places = places.copy()
            places[begins_old] = ends
            for cells, given in zip(old, came, strict=True):
                cells.fill(begins_old, given)
        now, ends = messages.walk(batch.buffer, places + 1, count)
        # Cells of the next message would be taken for this one's.
        if (ends > batch.ends[rows]).any():
            raise messages.malformed_bytes("A row")
        is_deleted = kinds == messages.DELETE
        for i, (cells, new) in enumerate(zip(old, now, strict=True)):
            if begins_old.any():
                from_old = begins_old & (new.kinds == messages.UNCHANGED)
                # In an old row of kind K all but the identity's columns are NULL whatever they held.
                from_old &= (tags == messages.WHOLE) | (i in captured.key)
                new.fill(from_old, cells.at(from_old))
            # A delete has only the one row, which is what it was.
            if is_deleted.any():
                cells.fill(is_deleted, new.at(is_deleted))
        # Only of updates that bring an old row: PostgreSQL sends one where the identity changed, or the identity is
        # the whole row.
        for i in captured.key if begins_old.any() else ():
            moved |= begins_old & _differs(batch.buffer, old[i], now[i], begins_old)
        return cls(kinds, now, old, has_old, moved)

    def at(self, rows: Mask) -> LogRows:
        """Take some of the rows."""
        return LogRows(
            self.kinds[rows],
            [cells.at(rows) for cells in self.now],
            [cells.at(rows) for cells in self.old],
            self.has_old[rows],
            self.moved[rows],
        )


def _differs(buffer: Bytes, old: TupleCells, new: TupleCells, rows: Mask) -> Mask:
    """Return which rows have another cell than before; NULL equals NULL."""
    a, b = messages.gather(buffer, old.at(rows)), messages.gather(buffer, new.at(rows))
    same = pc.fill_null(pc.equal(a, b), False).to_numpy(zero_copy_only=False)
    both = pc.and_(pc.is_null(a), pc.is_null(b)).to_numpy(zero_copy_only=False)
    mask = np.zeros(len(rows), bool)
    mask[rows] = ~(same | both)
    return mask


def name_unchanged(captured: CapturedRelation, found: LogRows) -> pa.Array | None:
    """Name, row by row, the columns the log did not carry; None when it carried all."""
    missing = [cells.kinds == messages.UNCHANGED for cells in found.now]
    if not any(mask.any() for mask in missing):
        return None
    names: list[list[str] | None] = [None] * len(found.kinds)
    for column, mask in zip(captured.columns, missing, strict=True):
        for row in np.nonzero(mask)[0].tolist():
            names[row] = [*(names[row] or []), column.name]
    return pa.array(names, UNCHANGED.type)


def row_type(captured: CapturedRelation) -> pa.DataType:
    return pa.struct(list(captured.schema))


def before(captured: CapturedRelation, columns: list[pa.Array], found: LogRows, *, is_given: Mask) -> pa.Array:
    """Put the rows before together; no row before is NULL, not a row of NULLs."""
    if not columns:
        return pa.nulls(len(found.kinds), row_type(captured))
    return pa.StructArray.from_arrays(columns, fields=list(captured.schema), mask=pa.array(~is_given))


def join_in_order(first: pa.Array, second: pa.Array, order: Numbers) -> pa.Array:
    """Concatenate two arrays of one type and put them in order, extension types by their storage."""
    arrow = first.type
    if isinstance(arrow, pa.BaseExtensionType):
        plain = pa.concat_arrays([first.storage, second.storage]).take(pa.array(order))
        return pa.ExtensionArray.from_storage(arrow, plain)
    return pa.concat_arrays([first, second]).take(pa.array(order))
