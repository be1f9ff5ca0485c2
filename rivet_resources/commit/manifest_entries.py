"""The pieces of a manifest, each as its JSON has it; keys of later writers of the same version are passed over.

Belongs here: their fields (`contract.md`, 12.1, and ours). Not here: the manifest as a whole (`manifest.py`).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer

from rivet_resources.contracts.addressing import Place
from rivet_resources.contracts.parts import Part, PieceSums
from rivet_resources.contracts.provenance import Provenance


class Entry(BaseModel):
    """A piece of a manifest: frozen; keys of later writers of the same version are passed over."""

    model_config = ConfigDict(frozen=True, extra="ignore", populate_by_name=True)


class ManifestEdge(Entry):
    """A window's own rows at one of its ends; see `contracts/rows/boundary.py`."""

    rows: int
    ids: str | None  # None: too many, or of cells that the parts do not show


class ManifestCursor(Entry):
    """How far an incremental window reaches, canonical texts: what came after `low`, up to and with `high`.

    Rows of the value `low` are in it where they came later than the windows that ended, or began, there; `visit` and
    `high_visit` count these.
    """

    column: str
    low: str | None
    high: str | None
    visit: int = 0
    high_visit: int = 0
    scheme: str = ""  # how rows at its ends were told apart; '' where none can come later, or they were not
    low_edge: ManifestEdge | None = None
    high_edge: ManifestEdge | None = None
    repeats_until: str | None = None  # of a log's first copy, see `contracts/extract.py`

    @model_serializer(mode="wrap")
    def _without_defaults(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Write the keys after `high` only where they say something: positions of a log have no use for them."""
        # A drain's cursor has only a column and two positions, and its manifests keep the bytes they had before visits
        # existed.
        fields = type(self).model_fields
        return {
            name: value
            for name, value in handler(self).items()
            if fields[name].is_required() or value != fields[name].default
        }


class Extraction(Entry):
    """How the rows were found; the original's names."""

    strategy: str
    cursor_column: str | None = None
    cursor_type: str | None = None
    cursor_low: str | None = None
    cursor_high: str | None = None
    source_row_count: int | None = None  # rows that left the source, before filters


class ManifestSource(Entry):
    """Where the rows come from; schema and table are None for a query. The rest is ours (`contracts/provenance.py`)."""

    engine: str
    schema_name: str | None = Field(None, alias="schema")
    table: str | None = None
    extraction: Extraction
    name: str | None = None  # of the source, as configured
    database: str | None = None
    servers: tuple[str, ...] = ()

    @property
    def provenance(self) -> Provenance:
        """Return whose rows they are, as far as it was written down: files of before know engine and table only."""
        # Files of before know engine and table only; what is unknown tells no two databases apart
        # (`state/provenances.py`).
        relation = f"{self.schema_name or ''}.{self.table}" if self.table else ""
        return Provenance(self.engine, self.name or "", self.servers, self.database or "", relation)


class ManifestDestination(Entry):
    """Where the parts are."""

    kind: str
    uri: str


class ManifestPieces(Entry):
    """The checksums of the pieces that a part was sent in, hexadecimal; all but the last are of `piece_bytes`."""

    algorithm: Literal["md5", "sha256"]
    piece_bytes: int
    pieces: tuple[str, ...]

    @property
    def sums(self) -> PieceSums:
        """Return them as destinations compare them."""
        return PieceSums(self.algorithm, self.piece_bytes, self.pieces)


class ManifestPart(Entry):
    """One part; `path` is relative to the export's folder."""

    part_id: int
    path: Place  # a manifest may have been edited, and what it names is read, and removed
    rows: int
    size_bytes: int
    content_fingerprint: str
    content_md5: str
    status: Literal["committed", "quarantined"] = "committed"
    schema_ipc: str | None = None  # where it is not the manifest's: the table was altered inside the window
    chunk: int | None = None  # of `chunks`, where there are several
    partition: str | None = None  # its folder below the window's: `created_at=2026-01-31`
    # None: it was sent whole, or by an older Rivet.
    upload: ManifestPieces | None = Field(None, exclude_if=lambda found: found is None)


def pieces_of(part: Part) -> ManifestPieces | None:
    """Return what a manifest keeps of how a part was sent."""
    return None if part.sums is None else ManifestPieces(**asdict(part.sums))


class RefusingChunk(Entry):
    """The rows of one chunk that could not be exported, by reason; `parts` hold those that were set aside."""

    chunk: int
    dead: dict[str, int] = {}
    skipped: dict[str, int] = {}
    parts: tuple[ManifestPart, ...] = ()


class ManifestSchema(Entry):
    """The version of a subject in a schema registry that describes the parts."""

    subject: str
    version: int
    id: int
    format: str
    md5: str
    sha256: str


class Quarantine(Entry):
    """The rows of a window that could not be exported."""

    chunks: tuple[RefusingChunk, ...]
    dropped: int = 0  # dead letters that somebody gave up
    # What decided the window's rows; '': an older Rivet, or rows of several blocks.
    block: str = Field("", exclude_if=lambda given: not given)

    @property
    def parts(self) -> tuple[ManifestPart, ...]:
        """Return the files with dead letters."""
        return tuple(part for chunk in self.chunks for part in chunk.parts)

    @property
    def dead(self) -> dict[str, int]:
        """Return how many dead letters there are, by reason."""
        return dict(sum((Counter(chunk.dead) for chunk in self.chunks), Counter[str]()))

    @property
    def skipped(self) -> dict[str, int]:
        """Return how many rows were left out, by reason."""
        return dict(sum((Counter(chunk.skipped) for chunk in self.chunks), Counter[str]()))

    @property
    def rows(self) -> int:
        """Return how many dead letters there are."""
        return sum(self.dead.values())

    def without_letters(self) -> Quarantine:
        """Return what is left when the dead letters are given up: the rows that were skipped, and a number."""
        # The number stays: a window must not look as if every row had fitted.
        left = tuple(each.model_copy(update={"dead": {}, "parts": ()}) for each in self.chunks if each.skipped)
        return Quarantine(chunks=left, dropped=self.dropped + self.rows, block=self.block)


class Compaction(Entry):
    """That windows, or the parts of one, were joined after they were committed: when last, and out of how many."""

    at: datetime
    windows: int = 1
    parts: int


class ColumnChecksum(Entry):
    """The sum over one column's cells (`contract.md`, 10.2, form B), a decimal text."""

    name: str
    checksum: str


class ManifestMeasures(Entry):
    """What was counted while the rows passed."""

    nulls: dict[str, int] = Field(default_factory=dict)
    special_values: dict[str, dict[str, int]] = Field(default_factory=dict)


class ManifestRange(Entry):
    """The key values that a chunk covers; canonical texts, None: open to that side."""

    column: str
    low: str | None = None
    high: str | None = None
    low_inclusive: bool = True
    high_inclusive: bool = True


class ManifestChunk(Entry):
    """One piece of a window that can be compared, and read again, by itself."""

    chunk: int
    range: ManifestRange
    rows: int
    source_row_count: int  # before filters
    column_checksums: tuple[ColumnChecksum, ...] | None = None
    measures: ManifestMeasures | None = None  # of columns that have any; None: written before they were kept


class Superseded(Entry):
    """A manifest that this one hides: that run's commit of that window, not a later one's."""

    window: str
    run_id: str
