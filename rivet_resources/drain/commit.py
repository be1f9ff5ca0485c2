"""Committing the tables of a drain: each window as an Extract, staged, published under the drain's lease.

Belongs here: what a table's window is named and how it becomes visible. Not here: the order of effects over all
tables (`drain.py`), that of one window (`commit/publish.py`).
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import cast

import pyarrow as pa

from rivet_resources.commit.manifest import Manifest, window_manifest
from rivet_resources.commit.publish import Ledger, publish
from rivet_resources.commit.remembered import Remembered
from rivet_resources.contracts.change_log import LogSource, Position
from rivet_resources.contracts.destination import ReadableRoot
from rivet_resources.contracts.extract import CursorMove, Extract, MetaColumns, Staged, Window
from rivet_resources.contracts.messages import Registered, Topic, value_schema
from rivet_resources.contracts.provenance import Provenance
from rivet_resources.contracts.relation import Relation
from rivet_resources.contracts.rows.boundary import Boundary
from rivet_resources.contracts.source import Source
from rivet_resources.contracts.transform import Transform
from rivet_resources.drain.checkpoint_book import CheckpointBook
from rivet_resources.drain.parts import TableWindow
from rivet_resources.drain.plan import DrainPlan, DrainServices, TableDrained
from rivet_resources.drain.tags import is_by_tags


@dataclass(frozen=True)
class Committing:
    """How the tables of one drain are committed."""

    plan: DrainPlan
    hands: DrainServices
    book: CheckpointBook
    seen: dict[str, Remembered] = field(default_factory=dict)  # by table, for its next window

    def look(self, table: str, seen: Remembered | None) -> None:
        """Take what was read of a table's place, if anything was."""
        if seen is not None:
            self.seen[table] = seen

    def extract(self, table: str, low: str | None) -> Extract:
        """Describe a table's window as far as it is known before its first change.

        Args:
            low: where its window before ended.
        """
        plan = self.plan
        return Extract(
            export=plan.folders[table],
            mode="cdc",
            # Named by where it starts: read again after a death, it has the same name and takes its own place.
            window=Window("after=start" if low is None else f"after={low}"),
            run_id=plan.run_of(table),
            relation=Relation(name=table, sql=table, columns=(), is_table=True),
            chunks=(),
            source=plan.source,
            destination=plan.destination,
            format=plan.format,
            pace=plan.pace,
            consistency="log",
            transforms=plan.steps,
            meta=MetaColumns(exported_at=plan.started_at if plan.exported_at else None),
            cursor=CursorMove(low=low, high=None, column="__pos"),
            message_key=plan.keys.get(table, ()),
        )

    def provenance(self, table: str) -> Provenance:
        """Return whose changes they are: the identity of the log's source, as its checkpoint keeps it."""
        return provenance_of(self.plan.source, self.plan.source_name, self.book.identity, table)

    def staged(self, extract: Extract, window: TableWindow, end: Position) -> Staged:
        """Return a table's window, complete but invisible."""
        root = self.hands.roots[extract.relation.name]
        # Read before the swap and compared with it: a run that took the window in between wins it.
        standing = window_manifest(self._seen(extract.relation.name), extract.window) if root.keeps_manifests else None
        assert extract.cursor is not None
        return Staged(
            extract=replace(
                extract,
                transforms=_settled(extract.transforms, window),
                relation=replace(extract.relation, columns=window.columns),
                # The low end is the extract's since before the first change; the high end is known only now.
                cursor=replace(extract.cursor, high=end.key),
            ),
            parts=window.parts,
            measures=window.measures,
            schema_ipc=window.schema.serialize().to_pybytes(),
            previous=standing[1] if standing else None,
            started_at=self.plan.started_at,
            consistency="log",
        )

    def publish(self, table: str, staged: Staged, end: Position, mine: TableDrained) -> None:
        """Make it visible, and count it.

        Raises:
            WindowTaken: another run has the lease, or took the window.
        """
        staged, registered = self._complete(table, staged)
        # One window's cursor is not moved by its publishing: the checkpoint is one for all tables, and is saved
        # after the last of them.
        root = self.hands.roots[table]
        # The next one begins where this one ends, so nothing else of the chain need be looked at.
        seen = self.seen.pop(table, None) or Remembered(root)
        manifest = publish(
            staged, root=root, state=_Elsewhere(self.hands.state), step=self._before, registered=registered, seen=seen,
        )  # fmt: skip
        if manifest is not None and not isinstance(root, Topic):
            self.seen[table] = seen.only(manifest.path)
        self._note(table, staged, manifest, end, mine)

    def publish_together(
        self, windows: Mapping[str, Staged], end: Position, tables: Mapping[str, TableDrained]
    ) -> None:
        """Make the first copies of several topics visible in one transaction, and count them.

        Raises:
            WindowTaken: another run has the lease, or took one of the windows.
        """
        from rivet_resources.commit.together import OfTopic, publish_together  # start

        complete = {table: self._complete(table, staged) for table, staged in windows.items()}
        found = publish_together(
            [
                OfTopic(staged, cast(Topic, self.hands.roots[table]), registered)
                for table, (staged, registered) in complete.items()
            ],
            state=_Elsewhere(self.hands.state),
            step=self._before,
        )
        for (table, (staged, _)), manifest in zip(complete.items(), found, strict=True):
            self._note(table, staged, manifest, end, tables[table])

    def _complete(self, table: str, staged: Staged) -> tuple[Staged, Registered | None]:
        """Add whose rows they are, which goes into the manifest itself, and how messages are registered."""
        # The next run admits a table by it.
        staged = replace(staged, extract=replace(staged.extract, provenance=self.provenance(table)))
        registered = self.hands.registered(table)
        if registered is not None:
            schema = pa.ipc.read_schema(pa.py_buffer(staged.schema_ipc))
            staged = replace(staged, extract=replace(staged.extract, registered=registered(value_schema(schema))))
        return staged, registered

    def _note(self, table: str, staged: Staged, manifest: Manifest | None, end: Position, mine: TableDrained) -> None:
        """Count a window that was published."""
        mine.rows += staged.measures.rows
        mine.windows += 1
        mine.files += len(staged.parts)
        mine.size_bytes += sum(part.size_bytes for part in staged.parts)
        mine.measures += staged.measures
        mine.last, mine.manifest = staged, manifest
        # The first link begins where the window before this run ended, so that a gap between two runs shows.
        before = self.book.chain.get(table)
        if not mine.links and before is not None:
            mine.links.append((None, before))
        mine.links.append((manifest.cursor.low if manifest and manifest.cursor else before, end.key))
        # In memory only. It becomes durable with the checkpoint, when all tables have their window.
        self.book.chain[table] = end.key

    def _seen(self, table: str) -> ReadableRoot:
        """Return a table's place as the window at hand knows it."""
        root = self.hands.roots[table]
        return root if isinstance(root, Topic) else self.seen.setdefault(table, Remembered(root))

    def _before(self, step: str) -> None:
        """Prove the lease before parts get their names, and again right before the swap."""
        # Staging may have taken longer than a lease lasts, if the process stood still.
        if step in ("parts", "manifest"):
            self.hands.lease.check()
        self.hands.step(step)


@dataclass(frozen=True)
class _Elsewhere:
    """A ledger whose cursor is the drain's checkpoint, moved once for all tables."""

    ledger: Ledger

    def advance_cursor(
        self, export: str, value: str, *, expected: str | None, visit: int = 0, boundary: Boundary | None = None
    ) -> None:
        """Leave it: the checkpoint is saved when every table is committed."""

    def record_commit(self, manifest: Manifest) -> None:
        self.ledger.record_commit(manifest)

    def live_runs(self, export: str) -> set[str]:
        return self.ledger.live_runs(export)

    def resumable_runs(self, export: str) -> set[str]:
        return self.ledger.resumable_runs(export)

    def known_runs(self, export: str) -> set[str]:
        return self.ledger.known_runs(export)

    def failures_to_sweep(self, export: str, place: str) -> int | None:
        return self.ledger.failures_to_sweep(export, place)


def provenance_of(source: LogSource | Source, source_name: str, identity: str, table: str) -> Provenance:
    """Join the identity of a log's source, as its checkpoint keeps it, with the table whose changes are read."""
    return Provenance(source.type, source_name, (identity,), "", ".".join(source.lineage_name(table)))


def _settled(steps: tuple[Transform, ...], window: TableWindow) -> tuple[Transform, ...]:
    """Put in the place of masks by tag what they masked in a window, for its manifest."""
    return (window.tagged, *steps[1:]) if is_by_tags(steps) else steps


def schemas_between(staged: Staged) -> list[bytes]:
    """Return the schemas that parts of a window have and its end has not."""
    # In their order, each once: a part carries a schema only where it differs from the window's last one.
    return [base64.b64decode(text) for text in dict.fromkeys(part.schema for part in staged.parts) if text]
