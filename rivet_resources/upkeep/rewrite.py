"""The rows of several committed parts written into one, batch by batch.

Belongs here: reading parts whose bytes are as committed, and writing what they hold as parts of an export are written.
Not here: which parts (`plan.py`), making the result visible (`compact.py`).

A row is copied, not shaped again: the joined part has exactly the schema of its parts. Memory holds a batch and what
the format's writer holds of a row group; of a store's parts a few lie on this machine at a time. Of text formats the
lines are copied (`join_texts.py`).
"""

from __future__ import annotations

import base64
import hashlib
import re
import shutil
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from rivet_resources.commit.manifest import read_schema
from rivet_resources.commit.manifest_entries import ManifestPart
from rivet_resources.contracts.addressing import CHANGE_STEM
from rivet_resources.contracts.destination import Destination, Root
from rivet_resources.contracts.extract import Extract, Window
from rivet_resources.contracts.format import FileFormat
from rivet_resources.contracts.parts import Measures, Part
from rivet_resources.contracts.relation import Chunk, Relation
from rivet_resources.contracts.settings import Tuning, pace
from rivet_resources.contracts.source import Page
from rivet_resources.errors import PartCorrupt
from rivet_resources.scratch import temporary
from rivet_resources.upkeep.join_texts import JoinedText, is_text
from rivet_resources.upkeep.plan import PartGroup, PlannedJoin
from rivet_resources.write.file_checksums import checksums
from rivet_resources.write.measures import Tally
from rivet_resources.write.parts import PartFiles, part_path

# An object store answers each part in tenths of a second; so many copies lie here at once.
FETCH_THREADS = 8
COPY_BYTES = 1 << 20
NAMED_BY_POSITION = re.compile(rf"(?P<stem>{CHANGE_STEM.pattern})_")


@dataclass(frozen=True)
class RewriteSite:
    """Where parts are read and staged, and how they are written."""

    root: Root
    destination: Destination
    format: FileFormat
    run_id: str


@dataclass(frozen=True)
class JoinedPart:
    """A part that was staged, and what was counted of the rows on their way into it."""

    part: Part
    measures: Measures


def rewrite(join: PlannedJoin, site: RewriteSite, *, export: str) -> tuple[JoinedPart, ...]:
    """Stage one part for each group that has rows; on any fault nothing of it is left.

    Raises:
        PartCorrupt: a committed part is not what its manifest says.
        DestinationError, DiskFull
    """
    groups = [group for group in join.groups if group.rows]
    extract = _extract(join, site, export=export, count=len(groups))
    done: list[JoinedPart] = []
    try:
        for index, group in enumerate(groups):
            done.append(_join(group, extract, index, site))
    except BaseException:
        site.root.discard(each.part for each in done)
        raise
    return tuple(done)


def _extract(join: PlannedJoin, site: RewriteSite, *, export: str, count: int) -> Extract:
    """Describe the joined parts as an export's writer wants to be told."""
    head = join.head
    chunks = tuple(Chunk(number, "cursor", head.export_name) for number in range(count))
    return Extract(
        export=export,
        mode=head.source.extraction.strategy,
        window=Window(head.window, folder=head.window_folder),
        run_id=site.run_id,
        relation=Relation(head.export_name, "", (), is_table=True),
        chunks=chunks,
        source=None,  # type: ignore[arg-type]  # nothing is read from one
        destination=site.destination,
        format=site.format,
        # No source is read, so there is nobody to be gentle to.
        pace=pace(None, Tuning(profile="fast")),
        consistency=head.consistency,
        part_prefix=_prefix(join.groups),
    )


def _prefix(groups: Sequence[PartGroup]) -> str:
    """Return how parts of changes are named, by where they start; '' where parts are named by their export."""
    names = (part.path.rpartition("/")[2] for group in groups for part in group.parts)
    # Parts of changes sort by their names as they do by their positions, and a joined one has to take its place among
    # them.
    found = (NAMED_BY_POSITION.match(name) for name in names)
    return next((match["stem"] for match in found if match), "")


def _join(group: PartGroup, extract: Extract, index: int, site: RewriteSite) -> JoinedPart:
    """Stage one part.

    Raises:
        PartCorrupt, DestinationError, DiskFull
    """
    schema = read_schema(group.schema_ipc, where=f"the manifest of {extract.window.key}")
    if is_text(site.format):
        return _join_texts(group, extract, index, site, schema)
    with temporary("compact") as folder:
        tally = Tally(schema, scratch=folder)
        files = PartFiles(
            extract, extract.chunks[index], schema=schema, root=site.root, folder=folder, label="0",
            partition=group.parts[0].partition or "",
        )  # fmt: skip
        try:
            for part, file in _at_hand(group.parts, site.root, folder):
                _copy_rows(part, file, schema, tally, files, site)
            (staged,) = files.finish()
        except BaseException:
            site.root.discard(files.staged)
            raise
        return JoinedPart(staged, tally.result())


def _join_texts(
    group: PartGroup, extract: Extract, index: int, site: RewriteSite, schema: pa.Schema
) -> JoinedPart:  # fmt: skip
    """Stage one part of lines as they are.

    Raises:
        PartCorrupt, DestinationError, DiskFull
    """
    chunk, partition = extract.chunks[index], group.parts[0].partition or ""
    with temporary("compact") as folder:
        file = folder / f"joined.{site.format.extension}"
        joined = JoinedText(file, site.format, schema)
        for part, source in _at_hand(group.parts, site.root, folder):
            _refuse_other_bytes(part, source, site)
            joined.append(source)
        sums = joined.finish(group.rows)
        size, fingerprint, md5 = checksums(file)
        path = part_path(extract, chunk, number=None, partition=partition)
        plain = site.root.stage(file, run_id=site.run_id, path=path, md5=md5)
        staged = Part(path, group.rows, size, fingerprint, md5, plain, chunk=chunk.index, partition=partition)
        return JoinedPart(staged, Measures(rows=group.rows, checksums=sums))


def _at_hand(parts: Sequence[ManifestPart], root: Root, folder: Path) -> Iterator[tuple[ManifestPart, Path]]:
    """Yield parts in their order, each as a file of this machine; those of a store are fetched some ahead."""

    def fetch(number: int) -> Path:
        copy = folder / f"from-{number}"
        with root.open(parts[number].path) as source, copy.open("wb") as target:
            shutil.copyfileobj(source, target, COPY_BYTES)
        return copy

    if parts and (here := root.local_path(parts[0].path)) is not None:
        for part in parts:
            here = root.local_path(part.path)
            assert here is not None
            yield part, here
        return
    with ThreadPoolExecutor(FETCH_THREADS) as pool:
        # Some ahead, in order: a store answers in tenths of a second, and the disk holds four parts and not all of
        # them.
        coming = deque(pool.submit(fetch, number) for number in range(min(FETCH_THREADS, len(parts))))
        for number, part in enumerate(parts):
            copy = coming.popleft().result()
            if number + FETCH_THREADS < len(parts):
                coming.append(pool.submit(fetch, number + FETCH_THREADS))
            yield part, copy
            copy.unlink()


def _copy_rows(
    part: ManifestPart, file: Path, schema: pa.Schema, tally: Tally, files: PartFiles, site: RewriteSite
) -> None:  # fmt: skip
    """Append the rows of one part.

    Raises:
        PartCorrupt: it is not what its manifest says.
    """
    rows = 0
    _refuse_other_bytes(part, file, site)
    for batch in site.format.batches(file, schema):
        if batch.schema.names != schema.names or batch.schema.types != schema.types:
            raise PartCorrupt(f"Part {part.path} at {site.root.uri} has other columns than its manifest says.")
        table = pa.Table.from_arrays(batch.columns, schema=schema)
        rows += table.num_rows
        tally.add(Page(table, {}, statement_ms=0.0))
        files.write(table)
    if rows != part.rows:
        raise PartCorrupt(f"Part {part.path} at {site.root.uri} holds {rows} rows, its manifest says {part.rows}.")


def _refuse_other_bytes(part: ManifestPart, file: Path, site: RewriteSite) -> None:
    """Raise where a part is not the one that was committed.

    Raises:
        PartCorrupt
    """
    # Before a row is read: joining a damaged part would give the damage a good checksum of its own.
    if _md5(file) != part.content_md5:
        raise PartCorrupt(
            f"Part {part.path} at {site.root.uri} is not the one that was committed; nothing was joined. "
            f"`rivet validate --depth full` says more, and `rivet repair` exports its window again."
        )


def _md5(file: Path) -> str:
    with file.open("rb") as stream:
        return base64.b64encode(hashlib.file_digest(stream, "md5").digest()).decode()
