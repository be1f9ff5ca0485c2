"""The manifest of a window: the JSON that makes its parts visible, and the only thing readers go by.

Belongs here: its fields, reading, and which of a set of manifests are current. Not here: its pieces
(`manifest_entries.py`), the order in which it is written (`publish.py`), which older manifests a new one replaces
(`supersede.py`), where the cursor stands (`chain.py`).
"""

from __future__ import annotations

import base64
import json
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any, Literal

import pyarrow as pa
import xxhash
from pydantic import Field, ValidationError, model_validator

from rivet_resources.commit.manifest_entries import (
    ColumnChecksum,
    Compaction,
    Entry,
    Extraction,
    ManifestChunk,
    ManifestCursor,
    ManifestDestination,
    ManifestEdge,
    ManifestMeasures,
    ManifestPart,
    ManifestRange,
    ManifestSchema,
    ManifestSource,
    Quarantine,
    RefusingChunk,
    Superseded,
    pieces_of,
)
from rivet_resources.contracts.addressing import MANIFESTS, WindowFolder
from rivet_resources.contracts.destination import ReadableRoot
from rivet_resources.contracts.extract import AppliedChanges, Extract, Staged, Window
from rivet_resources.contracts.parts import Measures, Part
from rivet_resources.contracts.provenance import Provenance
from rivet_resources.contracts.relation import Chunk, Consistency, Relation
from rivet_resources.contracts.rows.boundary import BoundaryEnds, Edge, boundary_after
from rivet_resources.contracts.rows.profile import WindowProfile
from rivet_resources.errors import ManifestUnreadable
from rivet_resources.fan_out import in_threads
from rivet_resources.registry import FORMATS
from rivet_resources.shape.rowhash.hash import RENDER
from rivet_resources.shape.transforms.mask_tags import tagged_columns
from rivet_resources.write.checksums.sums import ALGORITHM

VERSION = 1
# Beyond these a manifest would be larger than its parts: no chunks are told, or no sums of each.
MOST_CHUNKS, MOST_CHUNK_SUMS = 10_000, 100_000
# An export that keeps a manifest per increment has thousands of them.
READ_THREADS = 16


class Manifest(Entry):
    """One committed window. `evidence` fields of `contract.md` 12.1 that no issue fills yet are null."""

    manifest_version: Literal[1] = 1
    run_id: str
    export_name: str
    export_family: str
    mode: Literal["batch", "cdc"] = "batch"
    started_at: datetime
    finished_at: datetime
    status: Literal["success"] = "success"
    window: str  # the key: all, 2026-01-31, after=…
    window_start: datetime | None = None  # aware UTC, end exclusive; only windows of time have bounds
    window_end: datetime | None = None
    window_folder: WindowFolder = ""
    window_excludes: tuple[str, ...] | None = None  # of the window of all other values: partitions that are not in it
    cursor: ManifestCursor | None = None
    consistency: Consistency
    source: ManifestSource
    destination: ManifestDestination
    format: str
    compression: str
    schema_fingerprint: str
    schema_ipc: str
    row_count: int
    part_count: int
    parts: tuple[ManifestPart, ...]
    measures: ManifestMeasures = ManifestMeasures()
    supersedes: tuple[Superseded, ...] = ()
    applied: AppliedChanges | None = None  # tables made from changes: how much of them
    chunks: tuple[ManifestChunk, ...] = ()  # windows cut by key ranges only
    column_checksums: tuple[ColumnChecksum, ...] | None = None
    checksum_render: str | None = None  # how the sums were made: xxh3-64-sum-v2
    checksum_key_column: str | None = None  # hashed before each cell; None: cells alone
    row_hash: dict[str, Any] | None = None
    split_window: dict[str, Any] | None = None
    # Keys that came later are left out where they say nothing, so that the bytes of a usual manifest stay as they were.
    quarantine: Quarantine | None = Field(None, exclude_if=lambda found: found is None)  # None: every row fitted
    registered_schema: ManifestSchema | None = Field(None, exclude_if=lambda found: found is None)
    profile: WindowProfile | None = Field(None, exclude_if=lambda found: found is None)  # None: nobody asked
    # The run's time that rows of it hold; None: they hold none.
    clock: datetime | None = Field(None, exclude_if=lambda found: found is None)
    # Column of the source → the tag by which it is masked; None: nobody asked.
    masked: dict[str, str] | None = Field(None, exclude_if=lambda found: found is None)
    compacted: Compaction | None = Field(None, exclude_if=lambda found: found is None)  # None: as it was committed
    # Of a window that continues a chain: nothing but that chain was there, as somebody looked; None: nobody did.
    is_alone: Literal[True] | None = Field(None, alias="alone", exclude_if=lambda found: found is None)

    @model_validator(mode="after")
    def counts_agree(self) -> Manifest:
        """Refuse a manifest whose totals are not the sums of its committed parts."""
        # A manifest may have been edited, or cut off by a copy. Totals that disagree are the cheapest sign, and a
        # reader that believed the list would lose rows without a word.
        committed = [part for part in self.parts if part.status == "committed"]
        rows = sum(part.rows for part in committed)
        if (self.row_count, self.part_count) != (rows, len(committed)):
            raise ValueError(
                f"says {self.row_count} rows in {self.part_count} parts, but lists {rows} in {len(committed)}"
            )
        return self

    @property
    def file_format(self) -> type[Any]:
        """Return the class of its parts' format.

        Raises:
            ManifestUnreadable: there is none of that word, as where a plugin is not installed here.
        """
        try:
            return FORMATS[self.format]
        except KeyError:
            raise ManifestUnreadable(
                f"Window {self.window} of export {self.export_name} is committed in format {self.format!r}, which this "
                f"Rivet does not know. Install the package that brings it (`rivet plugins`), or restore the manifest."
            ) from None

    @property
    def entry(self) -> Superseded:
        """Name this commit of its window, for a later manifest that hides it."""
        return Superseded(window=self.window, run_id=self.run_id)

    @property
    def path(self) -> str:
        """Name its place below the export's folder."""
        return manifest_path(Window(self.window))

    @property
    def content(self) -> bytes:
        """Serialise, readable by eye; the same manifest gives the same bytes."""
        return self.model_dump_json(by_alias=True, indent=2).encode() + b"\n"

    @property
    def folder_copy(self) -> bytes:
        """Serialise for `manifest.json` in the window's folder, whose readers look for the parts beside that file.

        Files that were written before 2026-11-22 have the paths of `content`, below the export's folder.
        """
        if not self.window_folder:
            return self.content
        # Readers of the original resolve paths against the file's own folder; ours resolve them against the export's.
        above = f"{self.window_folder}/"
        beside = tuple(part.model_copy(update={"path": part.path.removeprefix(above)}) for part in self.parts)
        # The quarantine lies outside of that folder, and is no business of its readers.
        return self.model_copy(update={"parts": beside, "quarantine": None}).content

    @property
    def files(self) -> tuple[ManifestPart, ...]:
        """Return all files that belong to it: its parts, and its dead letters."""
        return (*self.parts, *(self.quarantine.parts if self.quarantine else ()))

    @property
    def size_bytes(self) -> int:
        """Add up the sizes of the parts."""
        return sum(part.size_bytes for part in self.parts)


# --- writing -------------------------------------------------------------------------------------


def build_manifest(
    staged: Staged, parts: tuple[Part, ...], *, supersedes: tuple[Superseded, ...] = (), is_alone: bool = False
) -> Manifest:
    """Describe a staged window as it will be once published; parts that stand already come first."""
    # Numbers of parts are their places in this order, so what stands keeps its numbers.
    extract, parts = staged.extract, (*staged.standing, *parts)
    window = extract.window
    schema = pa.ipc.read_schema(pa.py_buffer(staged.schema_ipc))
    uri = extract.destination.root(extract.export).uri
    return Manifest(
        run_id=extract.run_id,
        export_name=extract.export,
        export_family=extract.export,
        mode="cdc" if extract.mode == "cdc" else "batch",
        started_at=staged.started_at,
        finished_at=datetime.now(UTC),
        window=window.key,
        window_start=window.start,
        window_end=window.end,
        window_folder=window.folder,
        window_excludes=window.excludes,
        cursor=describe_cursor(staged),
        consistency=staged.consistency,
        source=describe_source(staged),
        destination=ManifestDestination(kind=extract.destination.type, uri=uri),
        format=extract.format.type,
        compression=extract.format.codec,
        schema_fingerprint=schema_fingerprint(schema),
        schema_ipc=base64.b64encode(staged.schema_ipc).decode(),
        row_count=sum(part.rows for part in parts),
        part_count=len(parts),
        parts=describe_parts(staged, parts),
        chunks=describe_chunks(staged),
        measures=ManifestMeasures(nulls=staged.measures.nulls, special_values=staged.measures.special_values),
        column_checksums=describe_checksums(staged.measures),
        checksum_render=ALGORITHM if staged.measures.checksums else None,
        supersedes=supersedes,
        row_hash=describe_row_hash(extract.meta.row_hash),
        applied=extract.applied,
        quarantine=describe_quarantine(staged),
        registered_schema=ManifestSchema(**extract.registered.facts) if extract.registered else None,
        profile=staged.profile,
        clock=extract.clock,
        masked=describe_masks(extract),
        is_alone=True if is_alone else None,
    )


def describe_masks(extract: Extract) -> dict[str, str] | None:
    """Return which columns are masked by a tag; None where tags mask none."""
    found = tagged_columns(extract.transforms, extract.relation)
    return {each.name: each.tag for each in found} if found is not None else None


def describe_cursor(staged: Staged) -> ManifestCursor | None:
    """Return from where to where a window reaches, and which rows at its ends are its own; None without a cursor."""
    moved = staged.extract.cursor
    if moved is None:
        return None
    if moved.ends is None:
        low, high, until = moved.low, moved.high, moved.repeats_until
        return ManifestCursor(column=moved.column, low=low, high=high, repeats_until=until)
    ends, measures = moved.ends, staged.measures
    return ManifestCursor(
        column=moved.column,
        low=moved.low,
        high=moved.high,
        visit=ends.before.visit,
        high_visit=boundary_after(ends, measures).visit,
        scheme=ends.scheme,
        low_edge=describe_edge(measures.low_edge, ends),
        high_edge=describe_edge(measures.high_edge, ends),
    )


def describe_edge(edge: Edge, ends: BoundaryEnds) -> ManifestEdge | None:
    """Name the rows at one end, but not by hashes of what the parts do not show; None where there is none."""
    # A hash of a masked or unselected cell would let a reader test guesses of a value that the parts hide on purpose.
    return ManifestEdge(rows=edge.rows, ids=edge.ids if ends.is_public else None) if edge.rows else None


def describe_checksums(measures: Measures) -> tuple[ColumnChecksum, ...] | None:
    """Return the sums over the cells as decimal texts; None where rows passed that were not summed."""
    # As texts: the sums have 64 bits, and many readers of JSON keep 53 of a number.
    sums = tuple(ColumnChecksum(name=name, checksum=str(found)) for name, found in measures.checksums.items())
    return sums or None


def describe_quarantine(staged: Staged) -> Quarantine | None:
    """Return which rows could not be exported; None where all could."""
    chunks = tuple(
        RefusingChunk(
            chunk=result.chunk,
            dead=dict(sorted(result.measures.dead.items())),
            skipped=dict(sorted(result.measures.skipped.items())),
            parts=tuple(describe_part(number, part) for number, part in enumerate(result.dead_letters)),
        )
        for result in staged.refusing
    )
    return Quarantine(chunks=chunks, block=staged.extract.block) if chunks else None


def describe_row_hash(covered: tuple[str, ...] | None) -> dict[str, Any] | None:
    """Return how the row hash was made, so that others can make it again; None without one."""
    if covered is None:
        return None
    return {"column": "_rivet_row_hash", "covered": list(covered), "render": RENDER}


def describe_source(staged: Staged) -> ManifestSource:
    """Name engine, table and strategy."""
    extract = staged.extract
    relation: Relation = extract.relation
    # Of a query nobody can say which table: NULL, as the original has it.
    schema, table = extract.source.lineage_name(relation.sql) if relation.is_table else (None, None)
    extraction = Extraction(strategy=extract.mode, source_row_count=staged.measures.rows_read)
    if extract.cursor is not None:
        column = relation.column(extract.cursor.column)
        extraction = Extraction(
            strategy=extract.mode,
            cursor_column=extract.cursor.column,
            cursor_type=str(column.arrow) if column else None,
            cursor_low=extract.cursor.low,
            cursor_high=extract.cursor.high,
            source_row_count=staged.measures.rows_read,
        )
    known = extract.provenance or Provenance(extract.source.type)
    return ManifestSource(
        engine=extract.source.type,
        schema=schema,
        table=table,
        extraction=extraction,
        name=known.source_name or None,
        database=known.database or None,
        servers=known.servers,
    )


def describe_chunks(staged: Staged) -> tuple[ManifestChunk, ...]:
    """Return what each key range brought, so that it can be compared, and read again, by itself; () without ranges."""
    chunks, measured = staged.extract.chunks, staged.chunk_measures
    # A chunk without counts (taken over from a run of an older Rivet) makes the list of no use to a comparison, which
    # must account for every row of the window.
    if not measured or len(chunks) > MOST_CHUNKS or {chunk.index for chunk in chunks} != measured.keys():
        return ()
    # Sums are per chunk and column; a wide table would be over the limit long before the number of chunks is.
    few = len(chunks) * max(len(each.nulls) for each in measured.values()) <= MOST_CHUNK_SUMS
    return tuple(
        # Only the bounds are kept, as texts that go through `source.literal` again: no SQL is ever read from a
        # manifest.
        describe_chunk(chunk, measured[chunk.index], with_sums=few)
        for chunk in chunks
        if chunk.range is not None
    )


def describe_chunk(chunk: Chunk, measured: Measures, *, with_sums: bool) -> ManifestChunk:
    """Return what one key range brought."""
    assert chunk.range is not None
    return ManifestChunk(
        chunk=chunk.index,
        range=ManifestRange.model_validate(asdict(chunk.range)),
        rows=measured.rows,
        source_row_count=measured.rows_read,
        column_checksums=describe_checksums(measured) if with_sums else None,
        measures=ManifestMeasures(
            nulls={name: count for name, count in measured.nulls.items() if count},
            special_values=measured.special_values,
        ),
    )


def describe_parts(staged: Staged, parts: tuple[Part, ...]) -> tuple[ManifestPart, ...]:
    """Name the parts, each with its chunk where chunks are told."""
    ranged = bool(describe_chunks(staged))
    return tuple(describe_part(number, part, in_chunk=ranged) for number, part in enumerate(parts))


def describe_part(number: int, part: Part, *, in_chunk: bool = False) -> ManifestPart:
    """Name one part with its checksums."""
    return ManifestPart(
        part_id=number,
        path=part.path,
        rows=part.rows,
        size_bytes=part.size_bytes,
        content_fingerprint=part.fingerprint,
        content_md5=part.md5,
        schema_ipc=part.schema or None,
        chunk=part.chunk if in_chunk else None,
        partition=part.partition or None,
        upload=pieces_of(part),
    )


def schema_fingerprint(schema: pa.Schema) -> str:
    """Hash lines `name<TAB>type`, sorted by name (`contract.md`, 12.1)."""
    lines = sorted(f"{field.name}\t{field.type}\n" for field in schema)
    return f"xxh3:{xxhash.xxh3_64_hexdigest(''.join(lines).encode())}"


def success_marker(manifest: bytes) -> bytes:
    """Return the content of `_SUCCESS`: one line, the hash of the exact manifest bytes."""
    # Of `manifest.json` beside it, not of the manifest below `_rivet`: the two differ in their paths.
    return f"xxh3:{xxhash.xxh3_64_hexdigest(manifest)}\n".encode()


# --- reading -------------------------------------------------------------------------------------


def manifest_path(window: Window) -> str:
    """Name the place of a window's manifest below the export's folder."""
    return f"{MANIFESTS}/{window.file_name}"


def parse(content: bytes, *, where: str) -> Manifest:
    """Read a manifest.

    Raises:
        ManifestUnreadable: not JSON, fields missing, totals that disagree, or a newer version.
    """
    try:
        # Before the fields are looked at: a newer version may lack or rename some, and "field required" would blame the
        # file.
        version = json.loads(content).get("manifest_version")
        if isinstance(version, int) and version > VERSION:
            raise ManifestUnreadable(
                f"{where} has manifest_version {version}; this Rivet reads up to {VERSION}. Upgrade Rivet."
            )
        return Manifest.model_validate_json(content)
    except ValidationError as error:
        # Without the input: a manifest holds cursor values and bounds, which are values of rows.
        first = error.errors(include_input=False)[0]
        spot, told = ".".join(str(step) for step in first["loc"]), first["msg"].removeprefix("Value error, ")
        raise ManifestUnreadable(describe_damage(where, f"{spot}: {told}" if spot else told)) from error
    # JSON nested without end; the parser gives up by an error of Python's own, not by a ValueError.
    except RecursionError:
        raise ManifestUnreadable(describe_damage(where, "nested more deeply than any manifest is")) from None
    except (ValueError, AttributeError) as error:
        raise ManifestUnreadable(describe_damage(where, "not a JSON object")) from error


def describe_damage(where: str, fault: str) -> str:
    """Return that a manifest cannot be used, and the way out."""
    return (
        f"{where} cannot be read ({fault}). Restore it from a copy; or remove it and run its window again, of an "
        f"incremental export after `rivet state reset`, since its cursor stands behind these rows."
    )


def read_manifest(root: ReadableRoot, path: str) -> tuple[Manifest, str] | None:
    """Read one manifest with its version; None when absent."""
    found = root.read(path)
    return (parse(found[0], where=f"{root.uri}/{path}"), found[1]) if found else None


def window_manifest(root: ReadableRoot, window: Window) -> tuple[Manifest, str] | None:
    """Read a window's manifest with its version, whether or not another hides it; None when never committed.

    Raises:
        ManifestUnreadable
    """
    return read_manifest(root, manifest_path(window))


def manifest_paths(root: ReadableRoot) -> tuple[str, ...]:
    """List the manifests below an export's folder, in the order of their names."""
    return tuple(sorted(path for path in root.list(f"{MANIFESTS}/") if path.endswith(".json")))


def read_manifests(root: ReadableRoot, paths: tuple[str, ...]) -> tuple[Manifest, ...]:
    """Read several manifests, some at a time; those removed since they were listed are left out."""
    # One request each, and a store answers in tenths of a second: the wait is what threads save.
    found = in_threads(lambda path: read_manifest(root, path), paths, most=READ_THREADS)
    return tuple(each[0] for each in found if each)


def current_manifests(root: ReadableRoot) -> dict[str, Manifest]:
    """Read what a reader sees: {window key: manifest}, without those that another one supersedes.

    Raises:
        ManifestUnreadable
    """
    manifests = read_manifests(root, manifest_paths(root))
    hidden = collect_superseded(manifests)
    return {each.window: each for each in manifests if each.entry not in hidden}


def collect_superseded(manifests: tuple[Manifest, ...]) -> frozenset[Superseded]:
    """Collect what these manifests supersede."""
    return frozenset(entry for manifest in manifests for entry in manifest.supersedes)


def schema_of(manifest: Manifest) -> pa.Schema:
    """Return the Arrow schema of the parts, field metadata included.

    Raises:
        ManifestUnreadable: its bytes are no schema.
    """
    return read_schema(manifest.schema_ipc, where=manifest.path)


def read_schema(text: str, *, where: str) -> pa.Schema:
    """Read a schema as manifests carry it: base64 of its IPC form.

    Raises:
        ManifestUnreadable: it is not that.
    """
    try:
        return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text, validate=True)))
    except (ValueError, TypeError, OSError, EOFError, pa.ArrowException) as error:
        raise ManifestUnreadable(describe_damage(where, "schema_ipc: not a schema of Arrow in base64")) from error
