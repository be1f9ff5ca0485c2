"""Staged rows as messages: keys, values in Confluent's wire format or plain JSON, headers of changes.

Belongs here: what a row becomes. Not here: cells (`write/formats/avro_cells.py`, `ndjson_cells.py`,
`protobuf_cells.py`), schema ids (`schema_registry/`), brokers. Source of the wire format: Confluent documentation,
"Schema Registry Serializer and Deserializer Overview", "Wire format": a zero byte, the schema's id in four bytes, of
Protobuf the path to the message, the value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from rivet_resources.contracts.change_log import OP, POS, SEQ, TS, UNCHANGED
from rivet_resources.contracts.messages import RUN_HEADER, WINDOW_HEADER, Encoding, Header, MessageBatch, value_schema
from rivet_resources.contracts.schema_registry import RegisteredSchema
from rivet_resources.errors import ValueDoesNotFit
from rivet_resources.shape.cell_text import renderer
from rivet_resources.write.formats import avro_cells, ndjson_cells, protobuf_cells
from rivet_resources.write.formats.staged_messages import StagedMessages
from rivet_resources.write.formats.text_writer import SLICE_BYTES, SLICE_ROWS

Spell = Callable[[pa.RecordBatch], pa.Array]


@dataclass(frozen=True)
class RowEncoding:
    """How the rows of a window become messages."""

    encoding: Encoding
    key: tuple[str, ...]
    run_id: str
    window: str
    spell: Callable[[pa.Schema], Spell]  # returns what spells the values of rows with these columns

    def messages(self, path: Path, schema: pa.Schema) -> Iterator[MessageBatch]:
        """Yield the messages of a staged file, in the order of its rows.

        Raises:
            ValueDoesNotFit: a row has a NULL in its key, or a value that the encoding cannot hold.
        """
        spell = self.spell(value_schema(schema))
        form = StagedMessages(type=self.encoding, key=self.key)
        for table in form.batches(path, schema):
            wide = max(1, table.nbytes // max(1, table.num_rows))
            for batch in table.to_batches(max_chunksize=max(1, min(SLICE_ROWS, SLICE_BYTES // wide))):
                yield self._of_rows(batch, spell)

    def _of_rows(self, rows: pa.RecordBatch, spell: Spell) -> MessageBatch:
        common: tuple[Header, ...] = ((RUN_HEADER, self.run_id.encode()), (WINDOW_HEADER, self.window.encode()))
        values = spell(rows.select(value_schema(rows.schema).names))
        if OP.name not in rows.schema.names:
            return MessageBatch(self._keys(rows, None), values, common)
        ops = rows.column(OP.name)
        is_truncate = pc.equal(ops, "truncate")
        # No value is a tombstone: compacted topics forget the key then.
        values = pc.if_else(pc.or_(pc.equal(ops, "delete"), is_truncate), pa.scalar(None, values.type), values)
        return MessageBatch(
            self._keys(rows, is_truncate),
            values,
            common,
            _headers(rows, common),
            # A truncate concerns the rows of every partition, so its message goes to each of them.
            is_truncate.to_pylist() if pc.any(is_truncate).as_py() else None,
            # Kept with the window's record, so that a drain can prove that it goes on behind what the topic has.
            pc.max(rows.column(POS.name)).as_py(),
        )

    def _keys(self, rows: pa.RecordBatch, is_truncate: pa.Array | None) -> pa.Array | None:
        """Spell keys; a truncate has none."""
        # A key is a JSON object of the key columns, without a schema id: an id in it would move every key to another
        # partition with each new version of the schema, and the order of a row's changes with it (decided 2026-11).
        if not self.key:
            return None
        cells = rows.select(list(self.key))
        for name, column in zip(self.key, cells.columns, strict=True):
            missing = column.is_null() if is_truncate is None else pc.and_not(column.is_null(), is_truncate)
            # Refused and not sent without: such a message goes to any partition, behind or before the changes of its
            # own row.
            if pc.any(missing).as_py():
                raise ValueDoesNotFit(
                    f"Key column {name} holds NULL, and messages with such a key have no row they are about. Name "
                    f"other columns as `key` of the destination, or clean the source."
                )
        keys = ndjson_cells.render_rows(cells)
        return keys if is_truncate is None else pc.if_else(is_truncate, pa.scalar(None, keys.type), keys)


def _headers(rows: pa.RecordBatch, common: tuple[Header, ...]) -> list[list[Header]]:
    """Return the headers of changes: what happened, where in the log, and when."""
    spell = renderer(TS.type, is_uuid=False)
    assert spell is not None
    texts = [
        rows.column(OP.name).to_pylist(),
        rows.column(POS.name).to_pylist(),
        rows.column(SEQ.name).cast(pa.string()).to_pylist(),
        spell(rows.column(TS.name)).cast(pa.string()).to_pylist(),
        rows.column(UNCHANGED.name).to_pylist(),
    ]
    given = list(common)
    made = []
    for op, pos, seq, at, unchanged in zip(*texts, strict=True):
        own = [*given, (OP.name, op.encode()), (POS.name, pos.encode()), (SEQ.name, seq.encode())]
        if at is not None:
            own.append((TS.name, at.encode()))
        if unchanged:
            own.append((UNCHANGED.name, ",".join(unchanged).encode()))
        made.append(own)
    return made


def spelling(encoding: Encoding, registered: RegisteredSchema | None) -> Callable[[pa.Schema], Spell]:
    """Return what spells values; `registered` None: as plain JSON."""
    head = b"" if registered is None else b"\0" + registered.id.to_bytes(4, "big")
    if encoding == "protobuf":
        assert registered is not None, "the configuration refuses such messages without a registry"
        numbers = registered.numbers or {}
        # The path to the message: the first of its text.
        first = head + b"\0"
        return lambda schema: lambda batch: protobuf_cells.render_rows(batch, first, numbers)
    if encoding == "avro":
        return lambda schema: lambda batch: avro_cells.render_rows(batch, head)
    return lambda schema: lambda batch: _behind(head, ndjson_cells.render_rows(batch))


def _behind(head: bytes, rows: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise(pa.scalar(head, pa.binary()), rows, b"") if head else rows
