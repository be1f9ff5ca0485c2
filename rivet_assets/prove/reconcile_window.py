"""Judge one committed window against the source: by counts, by sums over columns, row by row.

Belongs here: the verdict on one window of a mode that reads rows. Not here: which windows (`reconcile.py`), the
words (`reconcile_result.py`), reading again (`modes/again.py`, `prove/reread.py`), rows on both sides
(`prove/compare_rows.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, cast

from rivet_assets.modes.protocol import Planning
from rivet_assets.modes.reread import (
    Again,
    above,
    below,
    chunk_column,
    chunks_again,
    extract_chunks,
    gaps,
    range_predicate,
)
from rivet_assets.prove.reconcile_result import (
    REMEDY,
    REMEDY_OF_TOPICS,
    Answer,
    ChunkVerdict,
    Depth,
    WindowVerdict,
    word_verdict,
)
from rivet_assets.run.attempt import new_run_id
from rivet_resources.commit.manifest import Manifest, window_manifest
from rivet_resources.commit.manifest_entries import ColumnChecksum, ManifestPart
from rivet_resources.contracts.extract import Extract, Window
from rivet_resources.contracts.messages import Topic
from rivet_resources.contracts.parts import Measures
from rivet_resources.contracts.relation import KeyRange, Relation
from rivet_resources.contracts.rows.value_windows import snapshot_day
from rivet_resources.contracts.types import Column
from rivet_resources.errors import BoundsUnusable, EndsUnknown, PartCorrupt
from rivet_resources.prove.compare_rows import RowDifferences, add_up, compare_rows
from rivet_resources.prove.reread import read_again
from rivet_resources.read.connections import Permits
from rivet_resources.read.stage import Exporter
from rivet_resources.shape.shape import planned, schema_of
from rivet_resources.write.checksums.sums import UNSUMMED

if TYPE_CHECKING:
    from rivet_assets.blocks.export import Export
    from rivet_resources.contracts.destination import Root
    from rivet_resources.contracts.source import Session, Source

SEVERAL_INSTANTS = (
    "this server shares no snapshot, so each count is of its own instant: if the table is written to, compare again"
)


@dataclass(frozen=True)
class _Found:
    """What the source has now: of a window, or of one of its chunks."""

    rows: int
    sums: dict[str, int] | None = None  # None: only counted


@dataclass(frozen=True)
class WindowComparison:
    """One committed window and its source."""

    export: Export
    source: Source
    session: Session
    relation: Relation
    root: Root
    exporter: Exporter
    permits: Permits
    manifest: Manifest
    windows: Mapping[str, Manifest]  # current ones of the export

    def verdict(self, depth: Depth) -> WindowVerdict:
        """Judge it; what cannot be told is unknown, never a match."""
        if not isinstance(self.root, Topic):
            return self._verdict_to(depth)
        found = self._verdict_to("checksums" if depth == "rows" else depth)
        text = found.text.replace(REMEDY, REMEDY_OF_TOPICS)
        if depth == "rows" and found.verdict != "match":
            text += "; which rows differ can be told of files only"
        return replace(found, text=text)

    def _verdict_to(self, depth: Depth) -> WindowVerdict:
        manifest = self.manifest
        if self.export.window_kind != Window(manifest.window).kind:  # another mode committed it
            mode, now = manifest.source.extraction.strategy, self.export.mode
            edited = f"a window of mode {now} has no such key: was the manifest edited? `rivet validate` says"
            return self._verdict(
                "unknown", edited if mode == now else f"it was committed by mode {mode}, and the export has mode {now}"
            )
        today = datetime.now(UTC).date().isoformat()
        if self.export.first_snapshot is not None and snapshot_day(manifest.window) != today:
            return self._verdict("unknown", "it is a snapshot of another day, and the source has today's rows only")
        if not manifest.chunks and manifest.source.extraction.source_row_count is None:
            return self._verdict("unknown", "its manifest does not say how many rows were read; run that window again")
        try:
            found = self._judge_chunks(depth) if manifest.chunks else self._whole(depth)
        except BoundsUnusable as error:
            return self._verdict("mismatch", str(error))
        except EndsUnknown as error:
            return self._verdict("unknown", str(error))
        return self._unless_replaced(found)

    # --- windows of one piece --------------------------------------------------------------------

    def _whole(self, depth: Depth) -> WindowVerdict:
        manifest, again = self.manifest, cast(Again, self.export)
        where = again.predicate(self._planning, manifest)
        shared, newer = again.shares(self._planning, manifest)
        summed = depth != "counts" and is_summed(manifest.column_checksums, manifest.row_count)
        if summed:
            staged = read_again(again.again(self._planning, manifest), self.exporter, permits=self.permits)
            found = _find(staged.measures)
        else:
            found = _Found(self.session.count(self.relation, where=where) + shared)
        exported = manifest.source.extraction.source_row_count
        columns = differing(manifest.column_checksums, found.sums)
        base = replace(self._verdict("match", ""), source_count=found.rows, exported_rows=exported, columns=columns)
        base = replace(base, newer_rows=newer)
        if found.rows != exported or columns:
            base = replace(base, verdict="mismatch")
        if depth == "rows" and (base.verdict == "mismatch" or not summed):
            return self._with_rows(base, self._rows(again.again(self._planning, manifest), manifest.parts))
        if depth != "counts" and base.verdict == "match" and not summed:
            return self._without_sums(base)
        return replace(base, text=word_verdict(base, self.export.answers))

    # --- windows of chunks -----------------------------------------------------------------------

    def _judge_chunks(self, depth: Depth) -> WindowVerdict:
        manifest, planning = self.manifest, self._planning
        column = chunk_column(manifest, self.relation)
        # The table as a whole, without any bound: a bound that does not mean what it says would hide rows from all
        # counts below. Only where it takes no longer than they do; first, so that rows of meanwhile are not missed.
        whole = self.session.count(self.relation) if len(manifest.chunks) == 1 else 0
        wanted = chunks_again(planning, manifest, {chunk.chunk for chunk in manifest.chunks})
        outside = sum(self._count(keys, column) for keys in (*gaps(manifest, column), below(manifest)))
        if column.nullable:
            outside += self.session.count(self.relation, where=f"{self.source.quote(column.name)} IS NULL")
        newer = self._count(above(manifest), column)
        summed = depth != "counts" and all(is_summed(each.column_checksums, each.rows) for each in manifest.chunks)
        if summed:
            extract = extract_chunks(self.export, planning, manifest, {chunk.index for chunk in wanted})
            staged = read_again(extract, self.exporter, permits=self.permits)
            here = {number: _find(measures) for number, measures in staged.chunk_measures.items()}
        else:
            here = {each.index: _Found(self.session.count(self.relation, where=each.where)) for each in wanted}
        # Negative where rows were added since `whole` was counted.
        outside += max(0, whole - newer - outside - sum(each.rows for each in here.values()))
        wrong = self._wrong_chunks(here)
        base = replace(
            self._verdict("mismatch" if wrong or outside else "match", ""),
            source_count=sum(each.rows for each in here.values()) + outside,
            exported_rows=sum(chunk.source_row_count for chunk in manifest.chunks),
            newer_rows=newer,
            outside_rows=outside,
            chunks_compared=len(manifest.chunks),
            chunks=wrong,
        )
        if depth == "rows":
            return self._chunk_rows(base, all_of_them=not summed)
        if depth != "counts" and base.verdict == "match" and not summed:
            return self._without_sums(base)
        return replace(base, text=word_verdict(base, self.export.answers))

    def _wrong_chunks(self, here: dict[int, _Found]) -> tuple[ChunkVerdict, ...]:
        verdicts = (
            ChunkVerdict(
                chunk.chunk,
                here[chunk.chunk].rows,
                chunk.source_row_count,
                differing(chunk.column_checksums, here[chunk.chunk].sums),
            )
            for chunk in self.manifest.chunks
        )
        return tuple(each for each in verdicts if each.columns or each.source_count != each.exported_rows)

    def _count(self, keys: KeyRange | None, column: Column) -> int:
        if keys is None:
            return 0
        return self.session.count(self.relation, where=range_predicate(keys, column, self._planning))

    def _chunk_rows(self, base: WindowVerdict, *, all_of_them: bool) -> WindowVerdict:
        """Compare the rows of the chunks that differ; of all, where the manifest has no sums to tell."""
        known = {each.chunk: each for each in base.chunks}
        told: list[ChunkVerdict] = []
        for chunk in self.manifest.chunks:
            if chunk.chunk not in known and not all_of_them:
                continue
            parts = [part for part in self.manifest.parts if part.chunk == chunk.chunk]
            rows = self._rows(extract_chunks(self.export, self._planning, self.manifest, {chunk.chunk}), parts)
            one = known.get(chunk.chunk) or ChunkVerdict(chunk.chunk, chunk.source_row_count, chunk.source_row_count)
            if chunk.chunk in known or rows.is_any:
                told.append(replace(one, rows=rows))
        base = replace(base, chunks=tuple(told), verdict="mismatch" if told or base.outside_rows else "match")
        return self._with_rows(base, add_up([each.rows for each in told if each.rows]) if told else None)

    # --- rows ------------------------------------------------------------------------------------

    def _rows(self, extract: Extract, parts: Sequence[ManifestPart]) -> RowDifferences:
        """Compare row by row; parts that cannot be read are told, not raised: the window differs all the same."""
        key, masked = row_key(self.relation, self.export)
        try:
            found = compare_rows(
                extract, self.manifest, parts, root=self.root, exporter=self.exporter,
                permits=self.permits, key=key,
                shaped=schema_of(extract),
            )  # fmt: skip
        except PartCorrupt as error:
            return RowDifferences(0, 0, 0, note=str(error), is_unreadable=True)
        if key and not masked:
            return found
        note = (
            f"keys are not shown, {', '.join(sorted(masked))} is masked"
            if key
            else "no key tells rows apart, so a changed row is one missing and one extra"
        )
        return replace(found, examples=(), note="; ".join(filter(None, (note, found.note))))

    def _with_rows(self, base: WindowVerdict, rows: RowDifferences | None) -> WindowVerdict:
        differs = rows is not None and rows.is_any
        base = replace(base, rows=rows, verdict="mismatch" if differs else base.verdict)
        return replace(base, text=word_verdict(base, self.export.answers))

    # --- words -----------------------------------------------------------------------------------

    def _verdict(self, verdict: Answer, text: str) -> WindowVerdict:
        manifest = self.manifest
        return WindowVerdict(manifest.window, manifest.run_id, verdict, text, committed_at=manifest.finished_at)

    def _without_sums(self, base: WindowVerdict) -> WindowVerdict:
        return replace(
            base,
            verdict="unknown",
            text=f"the source has {base.source_count} rows, as exported, and the manifest has no sums of their cells; "
            f"run that window again, or compare with --depth rows",
        )

    def _unless_replaced(self, found: WindowVerdict) -> WindowVerdict:
        """Take a mismatch back when another run committed the window meanwhile."""
        if found.verdict != "mismatch":
            return found
        now = window_manifest(self.root, Window(self.manifest.window))
        if now is not None and now[0].run_id == self.manifest.run_id:
            return replace(found, text="; ".join(filter(None, (found.text, self._instants))))
        return self._verdict("unknown", "it was committed anew while it was compared; reconcile again")

    @property
    def _instants(self) -> str:
        """Warn where what was compared is not of one moment; '' for one count of a whole table."""
        is_one = self.session.consistency == "snapshot" or (self.manifest.window == "all" and not self.manifest.chunks)
        return "" if is_one else SEVERAL_INSTANTS

    @property
    def _planning(self) -> Planning:
        manifest, now = self.manifest, datetime.now(UTC)
        window = Window(
            manifest.window, manifest.window_start, manifest.window_end, manifest.window_folder,
            manifest.window_excludes,
        )  # fmt: skip
        return Planning(
            source=self.source,
            session=self.session,
            relation=self.relation,
            window=window,
            cursor=manifest.cursor.low if manifest.cursor else None,
            run_id=new_run_id(self.export.name, now),
            started_at=now,
            tasks=self.export.parallel,
            windows=self.windows,
        )


# --- sums and keys -------------------------------------------------------------------------------


def is_summed(committed: Sequence[ColumnChecksum] | None, rows: int) -> bool:
    """Return whether the manifest has sums; no row has none, and needs none."""
    return committed is not None or rows == 0


def differing(committed: Sequence[ColumnChecksum] | None, found: Mapping[str, int] | None) -> tuple[str, ...]:
    """Name the columns whose sums differ; a column without a cell has no sum, or 0. () where nothing was summed."""
    if found is None:
        return ()
    held = {each.name: each.checksum for each in committed or () if each.name not in UNSUMMED}
    now = {name: str(value) for name, value in found.items() if name not in UNSUMMED}
    return tuple(name for name in dict.fromkeys((*held, *now)) if held.get(name, "0") != now.get(name, "0"))


def row_key(relation: Relation, export: Export) -> tuple[tuple[str, ...], frozenset[str]]:
    """Name the columns of shaped rows that hold the relation's key, () when one is gone; and those that are masked."""
    plan = planned(relation, export.steps)
    names = []
    for key in relation.key:
        held = [name for name, origins in plan.origins.items() if origins == {key}]
        if not held:
            return (), frozenset()
        names.append(key if key in held else held[0])
    return tuple(names), plan.masked & set(relation.key)


def _find(measures: Measures) -> _Found:
    return _Found(measures.rows_read, dict(measures.checksums))
