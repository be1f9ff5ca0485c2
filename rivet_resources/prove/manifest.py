"""Whether a manifest agrees with itself, and its window's folder with it.

Belongs here: what can be seen in the small files alone. Not here: parts (`part.py`). Somebody who edits a
manifest and everything that follows from it is not seen here; its parts then differ, at depth `full`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pydantic import ValidationError

from rivet_resources.commit.manifest import Manifest, parse, schema_fingerprint, schema_of, success_marker
from rivet_resources.commit.manifest_entries import ColumnChecksum
from rivet_resources.commit.publish import below
from rivet_resources.contracts.destination import Root
from rivet_resources.errors import ManifestUnreadable, RivetError
from rivet_resources.prove.flaws import Flaw
from rivet_resources.prove.replace_chunks import is_copy
from rivet_resources.write.checksums.sums import ALGORITHM, WHOLE

MANIFEST_BYTES = 64 << 20  # no reader takes more (`contract.md`, 10.4)
MARKER_BYTES = 4 << 10
MARKER = re.compile(rb"xxh3:[0-9a-f]{16}\n")


@dataclass(frozen=True)
class ManifestFile:
    """A manifest's file: its bytes, what they say, and what is the matter with it."""

    path: str
    content: bytes = b""
    manifest: Manifest | None = None
    flaws: tuple[Flaw, ...] = ()


def read(root: Root, path: str, size: int) -> ManifestFile | None:
    """Read one manifest and compare it with itself; None: it was removed since it was listed."""
    if size > MANIFEST_BYTES:
        text = f"has {size} bytes, and no reader takes more than {MANIFEST_BYTES}"
        return ManifestFile(path, flaws=(Flaw("MANIFEST_READ_ERROR", path, text),))
    try:
        found = root.read(path)
    except RivetError as error:
        return ManifestFile(path, flaws=(Flaw("MANIFEST_READ_ERROR", path, f"cannot be read: {error}"),))
    if found is None:
        return None
    try:
        manifest = parse(found[0], where=path)
    except ManifestUnreadable as error:
        return ManifestFile(
            path, found[0], flaws=(Flaw(_parse_fault(error), path, str(error).removeprefix(f"{path} ")),)
        )
    flaws = tuple(Flaw("MANIFEST_INCONSISTENT", path, text, manifest.window) for text in disagreements(manifest, path))
    return ManifestFile(path, found[0], manifest, flaws)


def _parse_fault(error: ManifestUnreadable) -> str:
    """Return the flaw of a file: its totals disagree, or it is no manifest at all."""
    cause = error.__cause__
    # Pydantic's word for what a validator of ours raised: every field could be read, and totals disagree.
    rule_broken = isinstance(cause, ValidationError) and cause.errors()[0]["type"] == "value_error"
    return "MANIFEST_INCONSISTENT" if rule_broken else "MANIFEST_READ_ERROR"


def disagreements(manifest: Manifest, path: str) -> list[str]:
    """Return where a manifest contradicts itself, or the name of its file."""
    told = []
    # A copy under another name would be read as another window, and its rows be there twice.
    if manifest.path != path:
        told.append(f"is of window {manifest.window}, whose place is {manifest.path}")
    for what in ("path", "part_id"):
        twice = [each for each, count in Counter(getattr(part, what) for part in manifest.parts).items() if count > 1]
        if twice:
            told.append(f"lists {what} {twice[0]} more than once")
    if any(part.rows < 0 or part.size_bytes < 0 for part in manifest.parts):
        told.append("lists a part with fewer than 0 rows or bytes")
    if (letters := manifest.quarantine) and sum(part.rows for part in letters.parts) != letters.rows:
        told.append(
            f"says {letters.rows} dead letters, and lists files with {sum(part.rows for part in letters.parts)}"
        )
    told += _columns(manifest)
    if manifest.chunks and sum(chunk.rows for chunk in manifest.chunks) != manifest.row_count:
        rows = sum(chunk.rows for chunk in manifest.chunks)
        told.append(f"says {manifest.row_count} rows, but its chunks have {rows}")
    return told + _chunk_sums(manifest)


def _columns(manifest: Manifest) -> list[str]:
    """Compare the schema with its fingerprint, and the names of the checksums with the schema."""
    try:
        schema = schema_of(manifest)
    except ManifestUnreadable:
        return ["has a schema that cannot be read"]
    told = []
    if schema_fingerprint(schema) != manifest.schema_fingerprint:
        told.append(f"has schema fingerprint {manifest.schema_fingerprint}, its schema {schema_fingerprint(schema)}")
    sums = manifest.column_checksums or ()
    if any(not _is_sum(each) for each in sums):
        told.append("has a column checksum that is no number from 0 to 2^64 - 1")
    # Its older columns have checksums too.
    altered = any(part.schema_ipc for part in manifest.parts)
    unknown = [each.name for each in sums if each.name not in schema.names]
    if unknown and not altered:
        told.append(f"has a checksum of column {unknown[0]!r}, which its schema lacks")
    return told


def _chunk_sums(manifest: Manifest) -> list[str]:
    """Compare the checksums of the chunks with those of the window, where every chunk with rows has them."""
    if manifest.column_checksums is None or any(each.rows and not each.column_checksums for each in manifest.chunks):
        return []
    if not manifest.chunks or not all(map(_is_sum, _every(manifest))):
        return []
    total: Counter[str] = Counter()
    for chunk in manifest.chunks:
        for each in chunk.column_checksums or ():
            total[each.name] += int(each.checksum)
    differing = [each.name for each in manifest.column_checksums if total[each.name] % WHOLE != int(each.checksum)]
    return [f"has checksums of chunks that do not add up to that of column {name!r}" for name in differing[:1]]


def _every(manifest: Manifest) -> Sequence[ColumnChecksum]:
    chunks = [each for chunk in manifest.chunks for each in chunk.column_checksums or ()]
    return [*(manifest.column_checksums or ()), *chunks]


def _is_sum(each: ColumnChecksum) -> bool:
    # ASCII: `\d` takes the digits of every script otherwise, and so does `int`.
    return re.fullmatch(r"\d{1,20}", each.checksum, re.ASCII) is not None and int(each.checksum) < WHOLE


def sums_of(manifest: Manifest) -> Mapping[str, int]:
    """Return the checksums that can be made again; {} where there are none, or of another kind."""
    # Of another version or with a key: such sums are no others, they are made in another way, and prove nothing here.
    if manifest.checksum_render != ALGORITHM or manifest.checksum_key_column is not None:
        return {}
    return {each.name: int(each.checksum) for each in manifest.column_checksums or () if _is_sum(each)}


# --- the original's two files --------------------------------------------------------------------


def success_flaws(
    root: Root, folder: str, current: Sequence[ManifestFile], listing: Mapping[str, int]
) -> tuple[Flaw, ...]:
    """Compare a folder's `_SUCCESS` with its `manifest.json`, and that with the manifests of the folder's windows."""
    marker_path, copy_path = below(folder, "_SUCCESS"), below(folder, "manifest.json")
    missing = [path for path in (copy_path, marker_path) if path not in listing]
    if missing:
        return (Flaw("SUCCESS_STALE", missing[0], "is missing; readers that go by it take the folder for incomplete"),)
    if listing[marker_path] > MARKER_BYTES:
        return (Flaw("SUCCESS_MALFORMED", marker_path, f"has {listing[marker_path]} bytes, a marker has 22"),)
    if listing[copy_path] > MANIFEST_BYTES:
        return (Flaw("MANIFEST_READ_ERROR", copy_path, f"has {listing[copy_path]} bytes, more than any reader takes"),)
    try:
        marker, copy = root.read(marker_path), root.read(copy_path)
    except RivetError as error:
        return (Flaw("SUCCESS_READ_ERROR", marker_path, f"cannot be read: {error}"),)
    if marker is None or copy is None:
        return (Flaw("SUCCESS_READ_ERROR", marker_path, "was removed while it was looked at"),)
    if not MARKER.fullmatch(marker[0]):
        return (Flaw("SUCCESS_MALFORMED", marker_path, "is not `xxh3:`, 16 hexadecimal digits and a line feed"),)
    wanted = success_marker(copy[0])
    if marker[0] != wanted:
        text = f"says {marker[0].decode().strip()}, and manifest.json has {wanted.decode().strip()}"
        return (Flaw("SUCCESS_STALE", marker_path, text),)
    # Any of the folder's windows: several share a folder, and the last to be committed has written the marker.
    if not any(is_copy(copy[0], each.content, of=each.manifest) for each in current):
        text = f"agrees with manifest.json, which is none of the {len(current)} committed manifests of its folder"
        return (Flaw("SUCCESS_STALE", marker_path, text),)
    return ()
