"""Drain a change log: from the checkpoint to where the log ended, window by window, each step durable before the next.

Belongs here: the order of effects (`cdc.md`, sections 1 and 16), written once for every engine. Not here: reading a log
(`changes/`), files (`change_parts.py`), making a manifest visible (`commit.py`), keeping a position (`state/`).

    lease → survey → checkpoint → (first run: begin, copy) → { read → parts → manifests → checkpoint → acknowledge }*

Death at any line repeats work, never skips a change and shows none twice: a window's manifest is named by where its
table's last one ended, so the repeated window replaces it, and the source is told to forget only what is committed.
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from rivet_resources.change_lines import lines
from rivet_resources.change_parts import TableWindow, WindowParts, scratch_of
from rivet_resources.changes.protocol import (
    Capture,
    Commit,
    Finding,
    Handover,
    Lag,
    Log,
    LogSource,
    Position,
    Survey,
)
from rivet_resources.commit import Ledger, Step, pass_over, publish
from rivet_resources.destinations.protocol import Destination, Root
from rivet_resources.errors import CheckpointUnusable, LogSetup, RivetError, SourceLost
from rivet_resources.extract import CursorMove, Extract, Measures, MetaColumns, Relation, Staged, Window
from rivet_resources.formats.protocol import Format
from rivet_resources.manifest import Manifest, current_manifests, window_manifest
from rivet_resources.settings import Pace
from rivet_resources.state.checkpoint import Checkpoint, Checkpoints
from rivet_resources.state.leases import Lease
from rivet_resources.transforms.protocol import Transform

WINDOW_CHANGES = 200_000  # a PostgreSQL peek pays for itself from here on (`cdc.md`, 4.3)
IDLE_SECONDS = 1.0  # between two looks of a drain that has no end

# What a checkpoint's metadata says of the drain's life.
BEGINNING = "beginning"  # the slot may or may not be there
COPYING = "copying"  # the position is fixed; the first copy is not published
DRAINING = "draining"
NOWHERE = Position("", BEGINNING, "Custom")  # sorts before no other, so any may follow


@dataclass(frozen=True)
class DrainPlan:
    """What to drain, decided; plain data. `folders` names what each table's windows are kept as."""

    capture: Capture
    source: LogSource
    destination: Destination
    format: Format
    pace: Pace
    key: str  # of the checkpoint
    run_id: str
    started_at: datetime
    folders: Mapping[str, str]
    steps: tuple[Transform, ...] = ()
    exported_at: bool = False
    initial: bool = False
    until_current: bool = True
    as_lines: bool = False  # one object per change, both images nested: for people and pipes
    rollover: int = 100_000
    rollover_bytes: int = 64 << 20

    @property
    def export(self) -> str:
        """Name the export."""
        return self.capture.export

    def run_of(self, table: str) -> str:
        """Name the run of one table: its own where several share the drain, with the same time and nonce."""
        folder = self.folders[table]
        return self.run_id if folder == self.export else f"{folder.replace('/', '.')}_{self.run_id[-26:]}"


class Copy(Protocol):
    """Stages what comes before the first change of a table."""

    def __call__(self, table: str, position: Position, handover: Handover | None) -> Staged:
        """Stage the window `after=start`: all rows under the handover's instant; none without a handover."""


class Judge(Protocol):
    """Says whether a table's columns may be published."""

    def __call__(self, table: str, staged: Staged, *, is_between: bool = False) -> None:
        """Compare with the last commit.

        Args:
            is_between: the columns are of parts inside the window, which ends with others.

        Raises:
            DriftRefused
        """


@dataclass(frozen=True)
class Hands:
    """What a drain touches, and whom it tells."""

    state: Ledger
    checkpoints: Checkpoints
    lease: Lease
    roots: Mapping[str, Root]  # by table
    copy: Copy
    judge: Judge
    scratch: Path
    tell: Callable[[str], None] = lambda text: None
    step: Step = pass_over
    is_asked_to_end: Callable[[], bool] = lambda: False


@dataclass
class TableDrained:
    """What one table got in this run."""

    rows: int = 0
    windows: int = 0
    files: int = 0
    size_bytes: int = 0
    measures: Measures = field(default_factory=Measures)
    last: Staged | None = None
    manifest: Manifest | None = None


@dataclass
class Drained:
    """What a drain did. `lag` is measured at its end; `commit_at` is the last commit it saw of our tables."""

    position: Position
    started_from: Position | None
    tables: dict[str, TableDrained]
    windows: int = 0
    changes: int = 0
    transactions: int = 0
    copied_rows: int = 0
    commit_at: datetime | None = None
    disorder: int = 0  # rows out of the log's order; 0 is what must be
    lag: Lag | None = None  # None: nothing was there to drain, and nobody asked
    findings: tuple[Finding, ...] = ()  # of the preflight; only a first run asks
    seconds: dict[str, float] = field(default_factory=dict)


def drain(plan: DrainPlan, hands: Hands) -> Drained:
    """Read the log from the checkpoint to its end, or to `max_events`, and commit every window on the way.

    Raises:
        LogSetup: a prerequisite is missing; the message names each with its fix.
        CheckpointUnusable, PositionLost: going on would lose changes; nothing was acknowledged.
        RivetError: whatever reading, writing and publishing raise; the next run starts at the last checkpoint.
    """
    application = f"rivet:{plan.export}"
    with plan.source.open_log(plan.capture, application=application, pace=plan.pace) as log:
        return _Drain(plan, hands, log).run()


class _Drain:
    """One run over an open log."""

    def __init__(self, plan: DrainPlan, hands: Hands, log: Log) -> None:
        self.plan, self.hands, self.log = plan, hands, log
        self.seconds: dict[str, float] = {}
        self.began = time.monotonic()
        self.generation = 0
        self.identity = ""
        self.chain: dict[str, str] = {}  # table → where its last window ended
        self.seen = ""  # what the first copy holds of the log, until the drain has passed it
        self.seen_until = ""

    def run(self) -> Drained:
        survey = self.log.survey()
        self.identity = survey.identity
        stored, self.generation = self.hands.checkpoints.take(self.plan.key)
        done = Drained(survey.target, None, {table: TableDrained() for table in self.plan.capture.tables})
        position = self._resume(stored, survey) if stored is not None else None
        done.started_from = position
        if stored is None or position is None:
            position = self._first(stored, survey, done)
            survey = self.log.survey()
        self.seconds["begin"] = time.monotonic() - self.began
        done.position = self._windows(position, survey, done)
        if done.changes or done.started_from is None:  # an idle drain asks the source no more than it must
            done.lag = self.log.lag(done.position)
        done.seconds = {**self.seconds, "drain": time.monotonic() - self.began}
        return done

    # --- where to start --------------------------------------------------------------------------

    def _resume(self, stored: Checkpoint, survey: Survey) -> Position | None:
        """Take up a checkpoint; None when the run that made it died before its first window.

        Raises:
            CheckpointUnusable: it is of another source, or the tables are others now.
            PositionLost
        """
        if stored.source_identity != self.identity:
            raise CheckpointUnusable(
                f"Checkpoint {self.plan.key} in {self.hands.checkpoints.name} is of source {stored.source_identity}, "
                f"and this one is {self.identity}: it was restored or replaced. Point the source back, or begin anew "
                f"with `rivet state reset -e {self.plan.export}`."
            )
        facts = stored.metadata
        if facts.get("state") in (BEGINNING, COPYING):
            return None
        self.chain = json.loads(facts.get("chain", "{}"))
        self.seen, self.seen_until = facts.get("seen", ""), facts.get("seen_until", "")
        added = [table for table in self.plan.capture.tables if table not in self.chain]
        if added:
            raise CheckpointUnusable(
                f"Export {self.plan.export}: {', '.join(added)} joined the drain after it began, so their earlier "
                f"rows are not in it. Give them an export of their own, or begin anew with "
                f"`rivet state reset -e {self.plan.export}`."
            )
        position = position_of(stored)
        self.log.refuse_lost(position, survey)
        return position

    def _first(self, stored: Checkpoint | None, survey: Survey, done: Drained) -> Position:
        """Begin: fix the position from which nothing will be missed, then publish what comes before it.

        Raises:
            LogSetup: prerequisites are missing.
            CheckpointUnusable: changes are published, so there was a checkpoint.
        """
        if stored is None:
            self._refuse_forgotten()
        done.findings = self._refuse_unready()
        if stored is None or stored.metadata.get("state") != COPYING:
            position = self._fixed(stored)
        else:
            position = position_of(stored)
            self.log.refuse_lost(position, survey)
        self.hands.tell(f"{self.plan.export}: begins at {position.text}.")
        if self.plan.initial:
            with self.log.handover() as handover:
                staged = self._copied(position, handover)
                self.seen = handover.seen()
        else:
            staged = self._copied(position, None)
        for table, each in staged.items():
            self._publish(table, each, done)
            self.chain[table] = position.key
        done.copied_rows = sum(each.measures.rows for each in staged.values())
        self.seen_until = self.log.survey().target.key if self.seen else ""
        self.hands.step("checkpoint")
        self._save(position, DRAINING)
        return position

    def _refuse_forgotten(self) -> None:
        """Refuse to begin over changes that a forgotten run published: a new first window replaces all of them.

        A binary log keeps no account of its readers, so the destination is the only witness. Giving a checkpoint
        up leaves a note in its store, and a store that was lost has none.

        Raises:
            CheckpointUnusable
        """
        if self.hands.checkpoints.resets(self.plan.key):
            return
        for root in self.hands.roots.values():
            known = current_manifests(root).values() if root.keeps_manifests else ()
            if any(manifest.source.extraction.strategy == "cdc" for manifest in known):
                raise CheckpointUnusable(
                    f"Export {self.plan.export} has no checkpoint in {self.hands.checkpoints.name}, and changes are "
                    f"published at {root.uri}: the state store or the checkpoint was lost, or is another one now. "
                    f"Restore it; or begin anew, which replaces what is published: run "
                    f"`rivet state reset -e {self.plan.export}`."
                )

    def _refuse_unready(self) -> tuple[Finding, ...]:
        """Judge the prerequisites before the first byte, and tell what is only worth a warning.

        Raises:
            LogSetup: naming each that is missing, with its fix.
        """
        findings = self.log.preflight()
        for finding in findings:
            if finding.status == "warn":
                self.hands.tell(f"{self.plan.export}: {finding.text}{f' Fix: {finding.fix}' if finding.fix else ''}")
        failed = [finding for finding in findings if finding.status == "fail"]
        if failed:
            told = "\n".join(f"{f.name}: {f.text}{f' Fix: {f.fix}' if f.fix else ''}" for f in failed)
            raise LogSetup(f"Export {self.plan.export} cannot follow the log yet.\n{told}")
        return findings

    def _fixed(self, stored: Checkpoint | None) -> Position:
        """Make the place in the log; noted before and after, so that a run that dies between finds its own slot."""
        if stored is None:
            self._save(NOWHERE, BEGINNING)
        self.hands.step("begin")
        try:
            position = self.log.begin(again=stored is not None)
        except RivetError as error:
            if stored is None and not isinstance(error, SourceLost):
                self.hands.checkpoints.delete(self.plan.key)
            raise
        self.hands.step("begun")
        self._save(position, COPYING)
        return position

    def _copied(self, position: Position, handover: Handover | None) -> dict[str, Staged]:
        """Stage the first window of every table; what was staged goes when one of them fails."""
        staged: dict[str, Staged] = {}
        try:
            for table in self.plan.capture.tables:
                self.hands.step("copy")
                staged[table] = self.hands.copy(table, position, handover)
                self.hands.judge(table, staged[table])
        except BaseException:
            for table, each in staged.items():
                self.hands.roots[table].discard(each.parts)
            raise
        return staged

    # --- windows ---------------------------------------------------------------------------------

    def _windows(self, position: Position, survey: Survey, done: Drained) -> Position:
        most = self.plan.capture.max_events
        target = survey.target
        while True:
            while position.key < target.key and (most is None or done.changes < most):
                if self.hands.is_asked_to_end():
                    return position
                position = self._window(position, target, done)
            if self.plan.until_current or (most is not None and done.changes >= most) or self.hands.is_asked_to_end():
                return position
            time.sleep(IDLE_SECONDS)
            target = self.log.survey().target

    def _window(self, start: Position, target: Position, done: Drained) -> Position:
        """Read, commit and acknowledge one window."""
        limit = WINDOW_CHANGES
        if self.plan.capture.max_events is not None:
            limit = min(limit, self.plan.capture.max_events - done.changes)
        tables = {table: (self._extract(table), self.hands.roots[table]) for table in self.plan.capture.tables}
        with scratch_of(self.plan.run_id, self.hands.scratch) as folder:
            parts = WindowParts(
                tables,
                start=start.key,
                rows=self.plan.rollover,
                size_bytes=self.plan.rollover_bytes,
                shape=self._line if self.plan.as_lines else None,
                scratch=folder,
            )
            clock = time.monotonic()
            try:
                commit = self._read(start, target, parts, limit)
                clock = self._note("read", clock)
                self.hands.step("staged")
                windows = parts.close()
                staged = {table: self._staged(table, window, commit) for table, window in windows.items()}
                for table, each in staged.items():
                    for schema in schemas_between(each):
                        self.hands.judge(table, replace(each, schema_ipc=schema), is_between=True)
                    self.hands.judge(table, each)
                clock = self._note("write", clock)
            except BaseException:
                parts.abandon()
                raise
        if commit.position.key <= start.key:
            raise SourceLost(
                f"Export {self.plan.export}: the log of the source did not move on from {start.text}, though it "
                f"reaches to {target.text}. Run again; if it stays so, look at the source's log."
            )
        for table, each in staged.items():
            self._publish(table, each, done)
            self.chain[table] = commit.position.key
        clock = self._note("publish", clock)
        if self.seen and commit.position.key >= self.seen_until:
            self.seen = self.seen_until = ""
        self.hands.step("checkpoint")
        self._save(commit.position, DRAINING)
        self.hands.step("source")
        self.log.acknowledge(commit.position)
        self.hands.step("acknowledged")
        self._note("acknowledge", clock)
        done.windows += bool(staged)
        done.changes += parts.changes
        done.disorder += parts.disorder
        done.transactions += commit.transactions
        done.commit_at = commit.committed_at or done.commit_at
        return commit.position

    def _line(self, changes: pa.Table, table: str) -> pa.Table:
        schema, name = self.plan.source.lineage_name(table)
        return lines(changes, schema, name)

    def _read(self, start: Position, target: Position, parts: WindowParts, limit: int) -> Commit:
        """Hand what the log yields to the writer.

        Raises:
            SourceLost: the log ended without saying where.
        """
        self.hands.step("read")
        for item in self.log.read(start, target, most=limit, seen=self.seen):
            if isinstance(item, Commit):
                return item
            parts.add(item)
            self.hands.step("part")
        raise SourceLost(f"Export {self.plan.export}: the log ended in the middle of a window. Run again.")

    def _note(self, name: str, since: float) -> float:
        now = time.monotonic()
        self.seconds[name] = self.seconds.get(name, 0.0) + now - since
        return now

    # --- commit ----------------------------------------------------------------------------------

    def _extract(self, table: str) -> Extract:
        """Describe a table's window as far as it is known before its first change."""
        plan = self.plan
        low = self.chain.get(table)
        return Extract(
            export=plan.folders[table],
            mode="cdc",
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
        )

    def _staged(self, table: str, window: TableWindow, commit: Commit) -> Staged:
        extract = self._extract(table)
        root = self.hands.roots[table]
        standing = window_manifest(root, extract.window) if root.keeps_manifests else None
        assert extract.cursor is not None
        return Staged(
            extract=replace(
                extract,
                relation=replace(extract.relation, columns=window.columns),
                cursor=replace(extract.cursor, high=commit.position.key),
            ),
            parts=window.parts,
            measures=window.measures,
            schema_ipc=window.schema.serialize().to_pybytes(),
            previous=standing[1] if standing else None,
            started_at=self.plan.started_at,
            consistency="log",
        )

    def _publish(self, table: str, staged: Staged, done: Drained) -> None:
        manifest = publish(staged, root=self.hands.roots[table], state=_Elsewhere(self.hands.state), step=self._before)
        mine = done.tables[table]
        mine.rows += staged.measures.rows
        mine.windows += 1
        mine.files += len(staged.parts)
        mine.size_bytes += sum(part.size_bytes for part in staged.parts)
        mine.measures += staged.measures
        mine.last, mine.manifest = staged, manifest

    def _before(self, step: str) -> None:
        """Prove the lease before parts get their names, and again right before the swap."""
        if step in ("parts", "manifest"):
            self.hands.lease.check()
        self.hands.step(step)

    def _save(self, position: Position, state: str) -> None:
        """Make the position durable, with what the next run needs to go on."""
        facts: dict[str, Any] = {
            "state": state,
            "chain": json.dumps(self.chain, sort_keys=True),
            "more": json.dumps(dict(position.more), sort_keys=True),
        }
        if self.seen:
            facts |= {"seen": self.seen, "seen_until": self.seen_until}
        self.hands.checkpoints.save(
            Checkpoint(
                key=self.plan.key,
                source_type=self.plan.source.type,
                position_type=position.type,
                position=position.text,
                sort_key=position.key,
                metadata=facts,
                generation=self.generation,
                source_identity=self.identity,
                pipeline=self.plan.export,
                run_id=self.plan.run_id,
                timestamp=int(datetime.now(UTC).timestamp()),
                transaction_id=None,
            )
        )


@dataclass(frozen=True)
class _Elsewhere:
    """A ledger whose cursor is the drain's checkpoint, moved once for all tables."""

    ledger: Ledger

    def advance_cursor(self, export: str, value: str, *, expected: str | None) -> None:
        """Leave it: the checkpoint is saved when every table is committed."""

    def record_commit(self, manifest: Manifest) -> None:
        self.ledger.record_commit(manifest)

    def live_runs(self, export: str) -> set[str]:
        return self.ledger.live_runs(export)

    def resumable_runs(self, export: str) -> set[str]:
        return self.ledger.resumable_runs(export)

    def known_runs(self, export: str) -> set[str]:
        return self.ledger.known_runs(export)


def schemas_between(staged: Staged) -> list[bytes]:
    """Give the schemas that parts of a window have and its end has not."""
    return [base64.b64decode(text) for text in dict.fromkeys(part.schema for part in staged.parts) if text]


def position_of(stored: Checkpoint) -> Position:
    """Read the place back that a checkpoint keeps."""
    more: dict[str, str] = json.loads(stored.metadata.get("more", "{}"))
    return Position(stored.sort_key, stored.position, stored.position_type, more)
