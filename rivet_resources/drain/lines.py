"""Changes as one object each, both images nested: what `rivet cdc` prints (`cdc.md`, section 2).

Belongs here: that form. Not here: the envelope of files (`shape/change_envelope.py`), JSON itself
(`formats/ndjson.py`).
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from rivet_resources.contracts.change_log import BEFORE, ENVELOPE


def lines(changes: pa.Table, schema: str, name: str) -> pa.Table:
    """Return columns op, schema, table, before, after, pos, seq; an insert has no `before`, a delete no `after`."""
    own = {field.name for field in ENVELOPE} | {BEFORE}
    fields = [field for field in changes.schema if field.name not in own]
    cells = [_whole(changes.column(field.name)) for field in fields]
    op = _whole(changes.column("__op"))
    gone, new = pc.equal(op, "delete"), pc.equal(op, "insert")
    # A truncate is of no row, so it has neither image.
    emptied = pc.equal(op, "truncate")
    # The mask makes the whole object null. Cells alone would print `{"id": null, …}` for an image that does not
    # exist.
    after = pa.StructArray.from_arrays(cells, fields=fields, mask=pc.or_(gone, emptied))
    before = pa.StructArray.from_arrays(cells, fields=fields, mask=pc.invert(gone))
    if BEFORE in changes.schema.names:
        known = _whole(changes.column(BEFORE))
        # A delete has its old row in the columns themselves, an update in the struct; where no row of the batch has
        # a struct there is nothing to take from it.
        before = pc.if_else(gone, before, known.cast(before.type)) if known.null_count < len(known) else before
        before = pc.if_else(new, pa.nulls(len(before), before.type), before)
    count = changes.num_rows
    columns = {
        "op": op,
        "schema": pa.repeat(pa.scalar(schema, pa.string()), count),
        "table": pa.repeat(pa.scalar(name, pa.string()), count),
        "before": before,
        "after": after,
        "pos": _whole(changes.column("__pos")),
        "seq": _whole(changes.column("__seq")),
    }
    return pa.table(columns)


def _whole(column: pa.ChunkedArray) -> pa.Array:
    found = column.combine_chunks()
    return found.chunk(0) if isinstance(found, pa.ChunkedArray) else found
