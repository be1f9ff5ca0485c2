"""One part against what its manifest says: there, of this size, these bytes, these rows, these cells.

Belongs here: looking at a single part. Not here: what the parts of a window come to (`validate.py`).
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from rivet_resources.commit.manifest import Manifest, read_schema, schema_of
from rivet_resources.commit.manifest_entries import ManifestPart
from rivet_resources.contracts.change_log import POS, SEQ
from rivet_resources.contracts.destination import Root, TellsContent
from rivet_resources.contracts.format import FileFormat
from rivet_resources.errors import PartCorrupt, RivetError
from rivet_resources.prove.flaws import Depth, Flaw
from rivet_resources.scratch import temporary
from rivet_resources.shape.change_envelope import SNAPSHOT_SEQ
from rivet_resources.write.checksums.sums import column_sums
from rivet_resources.write.file_checksums import checksums

COPY_BYTES = 1 << 20
Place = tuple[str, int]  # __pos and __seq of a change


@dataclass
class PartSeen:
    """What was found in one part; `sums` is None where its cells were not read."""

    flaws: list[Flaw] = field(default_factory=list)
    sums: Counter[str] | None = None
    empty_texts: Counter[str] = field(default_factory=Counter)  # in CSV, where NULL looks the same
    inexact: set[str] = field(default_factory=set)  # columns whose cells did not come back exactly
    disorder: int = 0  # changes that do not stand above the one before
    first: Place | None = None
    last: Place | None = None


def examine(
    root: Root,
    manifest: Manifest,
    part: ManifestPart,
    *,
    listing: Mapping[str, int],
    depth: Depth,
    is_read: bool = True,
) -> PartSeen:
    """Look at one part as far as the depth says; of dead letters (`is_read` false) the bytes only, not the rows."""
    seen = PartSeen()

    def flaw(short: str, text: str) -> PartSeen:
        seen.flaws.append(Flaw(short, part.path, text, manifest.window))
        return seen

    size = listing.get(part.path)
    # The cheapest first, and each ends the look: a part of another size has other bytes, and to read it would prove no
    # more.
    if size is None:
        return flaw("PART_MISSING", f"is listed with {part.rows} rows in {part.size_bytes} bytes, and is not there")
    if size != part.size_bytes:
        return flaw("PART_SIZE_MISMATCH", f"has {size} bytes, the manifest says {part.size_bytes}")
    if depth != "full":
        try:
            if depth == "sample" and _is_told_whole(root, part) is False:
                flaw("PART_CHECKSUM_MISMATCH", "is another object by the store's own checksum than the manifest says")
        except RivetError as error:
            flaw("PART_READ_ERROR", f"cannot be looked at: {error}")
        return seen
    if not part.content_md5 or not part.content_fingerprint:
        return flaw("CONTENT_UNMET", "has no MD5 or no fingerprint in the manifest, so its bytes prove nothing")
    try:
        with at_hand(root, part.path) as file:
            found = checksums(file)
            # Cells are read again only when the bytes are those that were written: of others no reader's answer means
            # anything.
            if found != (part.size_bytes, part.content_fingerprint, part.content_md5):
                text = f"has {found[0]} bytes of {found[1]}, MD5 {found[2]}; the manifest says {part.size_bytes} bytes "
                return flaw("PART_CHECKSUM_MISMATCH", f"{text}of {part.content_fingerprint}, MD5 {part.content_md5}")
            if is_read:
                _rows(seen, file, manifest, part)
    except (RivetError, OSError) as error:
        return flaw("PART_READ_ERROR", f"cannot be read: {_kind_of(error)}")
    return seen


def _is_told_whole(root: Root, part: ManifestPart) -> bool | None:
    """Ask the store for its own checksum; None where it has none, or nobody wrote down what it should be."""
    if not isinstance(root, TellsContent) or not part.content_md5:
        return None
    sums = part.upload.sums if part.upload is not None else None
    return root.told_whole(part.path, size=part.size_bytes, md5=part.content_md5, sums=sums)


def _kind_of(error: Exception) -> str:
    """Return the text of a fault; of Arrow's own, which may quote a cell, only its class."""
    return str(error) if isinstance(error, RivetError) else getattr(error, "strerror", None) or type(error).__name__


@contextmanager
def at_hand(root: Root, path: str) -> Iterator[Path]:
    """Yield a published part as a file of this machine; a store's is copied, and the copy removed."""
    here = root.local_path(path)
    if here is not None:
        yield here
        return
    with temporary("validate") as folder:
        copy = folder / "part"
        with root.open(path) as source, copy.open("wb") as target:
            # Through the disk, in blocks, so that memory holds a batch of rows and never a part.
            shutil.copyfileobj(source, target, COPY_BYTES)
        yield copy


def _rows(seen: PartSeen, file: Path, manifest: Manifest, part: ManifestPart) -> None:
    """Count the rows, and read the cells where the format gives them back."""
    schema = schema_of_part(manifest, part)
    try:
        rows = manifest.file_format().rows(file, schema)
    except PartCorrupt as error:
        told = str(error).replace(file.name, part.path.rpartition("/")[2])
        seen.flaws.append(Flaw("PART_ROW_COUNT", part.path, f"cannot be counted: {told}", manifest.window))
        return
    if rows != part.rows:
        text = f"holds {rows} rows, the manifest says {part.rows}"
        seen.flaws.append(Flaw("PART_ROW_COUNT", part.path, text, manifest.window))
    try:
        _cells(seen, file, manifest, schema)
    except pa.ArrowException:
        # A text format's reader that does not take what its writer may write.
        seen.sums, seen.inexact = None, set(schema.names)


def _cells(seen: PartSeen, file: Path, manifest: Manifest, schema: pa.Schema) -> None:
    """Sum the cells of all columns that the format gives back exactly, and watch the order of changes."""
    wanted = [each.name for each in manifest.column_checksums or ()]
    form: FileFormat = manifest.file_format()
    exact = form.exact_columns(schema)
    seen.inexact |= {name for name in wanted if name in schema.names and name not in exact}
    columns = [name for name in wanted if name in exact]
    is_capture = manifest.mode == "cdc" and {POS.name, SEQ.name} <= {*schema.names}
    seen.sums = Counter()
    if not columns and not is_capture:
        return
    for table in form.batches(file, schema):
        summed = table.select([name for name in columns if name in table.column_names])
        for name, found in column_sums(summed).items():
            seen.sums[name] += found
        if not form.tells_null:
            for name in summed.column_names:
                if pa.types.is_string(schema.field(name).type) or pa.types.is_large_string(schema.field(name).type):
                    seen.empty_texts[name] += int(pc.sum(pc.equal(summed.column(name), "")).as_py() or 0)
        if not form.keeps_types:
            seen.inexact |= {name for name in summed.column_names if _has_nan(summed.column(name))}
        if is_capture and table.num_rows:
            _watch(seen, table)


def schema_of_part(manifest: Manifest, part: ManifestPart) -> pa.Schema:
    """Return the schema of one part: its own where the table was altered inside the window."""
    if part.schema_ipc is None:
        return schema_of(manifest)
    return read_schema(part.schema_ipc, where=manifest.path)


def _has_nan(column: pa.ChunkedArray) -> bool:
    """Return whether a text format held a NaN, of which only the name is written and not the bits."""
    return bool(pa.types.is_floating(column.type) and pc.any(pc.is_nan(column)).as_py())


def _watch(seen: PartSeen, table: pa.Table) -> None:
    """Count the changes of a batch that do not stand above the one before.

    Rows of a first copy share one position, with sequence number 0.
    """
    pos, seq = (pa.concat_arrays(table.column(name).chunks) for name in (POS.name, SEQ.name))
    pos = pos.cast(pa.string())
    first, last = (pos[0].as_py(), seq[0].as_py()), (pos[-1].as_py(), seq[-1].as_py())
    low, high = slice(None, -1), slice(1, None)
    # Rows of a first copy share one position, with sequence number 0: among them there is no order to be kept.
    above = pc.or_(pc.greater(seq[high], seq[low]), pc.and_(_is_copy(seq[high]), _is_copy(seq[low])))
    fine = pc.or_(pc.greater(pos[high], pos[low]), pc.and_(pc.equal(pos[high], pos[low]), above))
    seen.disorder += len(fine) - int(pc.sum(fine).as_py() or 0)
    seen.disorder += seen.last is not None and not follows(seen.last, first)
    seen.first, seen.last = seen.first or first, last


def _is_copy(seq: pa.Array) -> pa.Array:
    return pc.equal(seq, SNAPSHOT_SEQ)


def follows(before: Place, after: Place) -> bool:
    """Return whether one change may stand behind another."""
    return after > before or (after == before and after[1] == SNAPSHOT_SEQ)
