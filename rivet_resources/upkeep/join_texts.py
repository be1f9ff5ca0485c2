"""The lines of several committed text parts put into one as they are: no cell is read and spelled again.

Belongs here: CSV and NDJSON, compressed or not, and the proof that nothing but the lines is in the joined file. Not
here: parts whose cells come back exactly (`rewrite.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import xxhash

from rivet_resources.contracts.format import FileFormat
from rivet_resources.errors import PartCorrupt
from rivet_resources.write.checksums.sums import WHOLE, column_sums
from rivet_resources.write.formats.text_codec import counted
from rivet_resources.write.formats.text_writer import BLOCK, TextWriter


def is_text(form: FileFormat | type[FileFormat]) -> bool:
    """Return whether parts of a format are lines of text behind at most a header."""
    return bool(getattr(form, "is_text", False))


class JoinedText:
    """One text file that grows by the lines of finished parts."""

    def __init__(self, file: Path, form: FileFormat, schema: pa.Schema) -> None:
        writer = form.writer(file, schema)
        assert isinstance(writer, TextWriter)
        self._file, self._form, self._schema, self._writer = file, form, schema, writer
        self._digest = xxhash.xxh3_128(writer.head)
        self._sums: Counter[str] | None = Counter()

    def append(self, part: Path) -> None:
        """Copy the lines of a finished part.

        Raises:
            PartCorrupt: it does not begin with the header of the schema, or its compressed bytes are damaged.
        """
        with counted(part) as text:
            # A part of other columns, in another order or with another header, would shift every cell behind it.
            if text.read(len(self._writer.head)) != self._writer.head:
                raise PartCorrupt(f"Part {part.name} does not begin with the header of its columns.")
            for block in iter(lambda: text.read(BLOCK), b""):
                self._writer.append(block)
                # A text that is read and written again need not be the same text, so its bytes are copied, and proved
                # to be the same.
                self._digest.update(block)
        if self._sums is not None:
            found = exact_sums(part, self._form, self._schema)
            if found is None:
                self._sums = None
            else:
                self._sums.update(found)

    def finish(self, rows: int) -> dict[str, int]:
        """Close the file and read it again; the sums over its cells as a reader gets them, {} where it takes no sums.

        Args:
            rows: as many records it must have.

        Raises:
            PartCorrupt: it is not what was put in.
        """
        # Read again, the joined file must hold exactly these bytes and as many records; the sums of the cells that a
        # reader of the format gives back are taken too, and compared at the destination.
        self._writer.close()
        digest = xxhash.xxh3_128()
        with counted(self._file) as text:
            for block in iter(lambda: text.read(BLOCK), b""):
                digest.update(block)
        found = self._form.rows(self._file, self._schema)
        if digest.digest() != self._digest.digest() or found != rows:
            raise PartCorrupt(
                f"The joined part {self._file.name} holds other lines than its parts ({found} rows, not {rows}). "
                f"Check the disk below {self._file.parent}; nothing was changed."
            )
        return {name: value % WHOLE for name, value in (self._sums or {}).items()}


def exact_sums(part: Path, form: FileFormat, schema: pa.Schema) -> Counter[str] | None:
    """Add up the cells of the columns that the format gives back; None where its reader takes no such spelling."""
    names = form.exact_columns(schema)
    sums: Counter[str] = Counter()
    try:
        for table in _exact(form.batches(part, schema), names):
            sums.update(column_sums(table))
    except pa.ArrowException:
        return None
    return sums


def _exact(tables: Iterator[pa.Table], names: frozenset[str]) -> Iterator[pa.Table]:
    return (table.select([name for name in table.column_names if name in names]) for table in tables)


def comparable(form: FileFormat, schema: pa.Schema) -> frozenset[str]:
    """Return the columns whose cells, read from text, have the sums that were taken when their rows passed.

    Not of CSV's texts, where NULL looks like an empty one, and not of numbers with a NaN, of which text keeps no bits.
    """
    return frozenset(
        name
        for name in form.exact_columns(schema)
        if not pa.types.is_floating(kind := schema.field(name).type)
        and (form.tells_null or not (pa.types.is_string(kind) or pa.types.is_large_string(kind)))
    )
