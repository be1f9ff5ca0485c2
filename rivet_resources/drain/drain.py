"""Drain a change log: from the checkpoint to where the log ended, window by window, each step durable before the next.

Belongs here: the order of effects (`cdc.md`, sections 1 and 16), written once for every engine. Not here: reading a log
(`engines/*/log/`), files (`parts.py`), making a manifest visible (`commit/publish.py`), keeping a position (`state/`).

    lease → survey → checkpoint → (first run: begin, copy) → { read → parts → manifests → checkpoint → acknowledge }*

Death at any line repeats work, never skips a change and shows none twice: a window's manifest is named by where its
table's last one ended, so the repeated window replaces it, and the source is told to forget only what is committed.

While one window is published, from its judgement to its checkpoint, the next one is read and its parts are staged
(`publish_behind.py`, decided 2026-11). What the next one needs of the one before is known once that is read: where it
ended. All else is asked in its turn: columns are judged against the commit before, and refuse a window before the next
one is shown. Kafka's transactions take their turns as well, since a window is produced by its publication.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pyarrow as pa

from rivet_resources.commit.publish import Step
from rivet_resources.contracts.change_log import Changes, Commit, Log, Position, Survey
from rivet_resources.contracts.evidence import Finding
from rivet_resources.contracts.extract import Extract, Staged
from rivet_resources.deadlines import EndOverdue
from rivet_resources.drain.begin import Beginning
from rivet_resources.drain.checkpoint_book import DRAINING, CheckpointBook
from rivet_resources.drain.commit import Committing, schemas_between
from rivet_resources.drain.in_topics import catch_up
from rivet_resources.drain.lines import lines
from rivet_resources.drain.parts import TableWindow, WindowParts, scratch_of
from rivet_resources.drain.plan import Drained, DrainPlan, DrainServices, TableDrained, write_finding
from rivet_resources.drain.publish_behind import PublishBehind
from rivet_resources.drain.tags import TagLookup
from rivet_resources.drain.window_size import UNDER_WAY, WindowSize
from rivet_resources.errors import RivetError, SourceLost

IDLE_SECONDS = 1.0  # between two looks of a drain that has no end
ENDING_SECONDS = 5.0  # so long a window may still be read once an end was asked for; the next run reads it again


class _GivenUp(Exception):
    """A window was still being read when the drain had to end."""


def drain(plan: DrainPlan, hands: DrainServices) -> Drained:
    """Read the log from the checkpoint to its end, or to `max_events`, and commit every window on the way.

    Raises:
        LogSetup: a prerequisite is missing; the message names each with its fix.
        CheckpointUnusable, PositionLost: going on would lose changes; nothing was acknowledged.
        ProvenanceRefused: another source's changes lie at the destination.
        RivetError: whatever reading, writing and publishing raise; the next run starts at the last checkpoint.
    """
    application = f"rivet:{plan.export}"
    # One open log for the whole drain: what is surveyed, read and acknowledged is of the same server.
    with plan.source.open_log(plan.capture, application=application, pace=plan.pace) as log:
        return _Drain(plan, hands, log).run()


@dataclass
class _ReadWindow:
    """A window whose parts are staged, and not published yet."""

    parts: WindowParts
    extracts: Mapping[str, Extract]
    tables: Mapping[str, TableWindow]  # those with changes
    commit: Commit
    began: float
    seconds: float = 0.0  # from its first change to its commit; known when it is published


class _Drain:
    """One run over an open log."""

    def __init__(self, plan: DrainPlan, hands: DrainServices, log: Log) -> None:
        self.behind = PublishBehind[_ReadWindow]()
        self.plan, self.log = plan, log
        self.hands = replace(hands, step=partial(self._step, hands.step))
        self.book = CheckpointBook(plan, hands.checkpoints)
        self.committing = Committing(plan, self.hands, self.book)
        self.tags = TagLookup(plan.steps, log, hands.judge_tags)
        self.size = WindowSize(plan.window_bytes // UNDER_WAY, plan.commit_every)
        self.ends: dict[str, str] = {}  # table → where its last window ended that was read
        self.read_changes = 0
        self.seconds: dict[str, float] = {}
        self.admitted: set[str] = set()
        self.begun: set[str] = set()
        self.published: dict[str, str] = {}  # table → `__pos` up to which a topic has its changes
        self.began = time.monotonic()

    def run(self) -> Drained:
        # The end of the log is fixed before reading: a target that moves with the writers would never be reached.
        survey = self.log.survey()
        # The checkpoint is compared with the survey's identity before anything is read or published.
        self.book.take(survey.identity, roots=self.hands.roots)
        self.published = catch_up(self.book, self.hands.roots, self.hands.state)
        # All before a first copy; later the first, as all lie at one destination, and the others with their changes.
        # A run that was idle for months costs one look at one destination, not one at each of a hundred tables.
        is_going_on = self.book.has_begun and not self.hands.is_adopting
        for table in self.plan.capture.tables[: 1 if is_going_on else None]:
            self._admit(table)
            if not is_going_on:
                self._begin(table)
        done = Drained(survey.target, None, {table: TableDrained() for table in self.plan.capture.tables})
        if self.book.has_begun:
            position = done.started_from = self.book.position
        else:
            beginning = Beginning(self.plan, self.hands, self.log, self.book, self.committing)
            # A copy may take hours, and can only begin again: an end that is asked for does not wait for it.
            with self.hands.end_within(ENDING_SECONDS):
                position = beginning.position(survey, done)
            # A first copy may have taken hours: the log ends elsewhere by now.
            survey = self.log.survey()
        # At the start and after each pause: while nobody read, the source may have purged the log, or another may
        # have moved the slot.
        self._check_position(position, survey, done)
        self.seconds["begin"] = time.monotonic() - self.began
        done.position, target = self._windows(position, survey, done)
        is_idle = not done.changes and done.started_from is not None and done.position.key >= target.key
        # An idle drain asks the source no more than it must.
        if not is_idle:
            done.lag = self.log.lag(done.position)
        done.seconds = {**self.seconds, "drain": time.monotonic() - self.began}
        return done

    def _step(self, told: Step, name: str) -> None:
        """Begin a step, unless the drain was left meanwhile."""
        self.behind.go_on()
        told(name)

    def _admit(self, table: str) -> None:
        """Look at what lies at a table's destination, once.

        Raises:
            ProvenanceRefused
        """
        if table not in self.admitted:
            self.admitted.add(table)
            self.committing.look(table, self.hands.admit(table, self.committing.provenance(table)))

    def _begin(self, table: str) -> None:
        """Let a table have rows, which it must be admitted for.

        Raises:
            ProvenanceRefused
        """
        self._admit(table)
        if table not in self.begun:
            self.begun.add(table)
            self.hands.begin(table)
            self.hands.step("admitted")

    def _windows(self, position: Position, survey: Survey, done: Drained) -> tuple[Position, Position]:
        """Drain window by window; return where it ended, and where the log did when it was last looked at."""
        self.ends = dict(self.book.chain)
        with self.behind:
            try:
                found = self._follow(position, survey, done)
            except Exception:
                self._settle_failed()
                raise
            self._settle_in_time(done)
        return found

    def _follow(self, position: Position, survey: Survey, done: Drained) -> tuple[Position, Position]:
        """Read window by window, each while the one before is published; the last one may still be under way."""
        most = self.plan.capture.max_events
        target = survey.target
        while True:
            while position.key < target.key and (most is None or self.read_changes < most):
                # Asked between windows, where everything read is on its way and nothing has to be thrown away.
                if self.hands.is_asked_to_end():
                    return position, target
                try:
                    window = self._read_window(position, target, done)
                except _GivenUp:
                    # The window that was given up is not committed anywhere: its parts are gone, and the next run
                    # reads it from the same place.
                    self.hands.tell(f"{self.plan.export}: ends as asked, and leaves a window to the next run.")
                    return position, target
                try:
                    self._settle(done)
                except BaseException:
                    # Of what is read behind a window that failed nothing is ever shown.
                    window.parts.abandon()
                    raise
                self._publish_behind(window, done)
                position = window.commit.position
            # Whoever looks while this one waits finds all that was read.
            self._settle_in_time(done)
            # Only a drain without an end goes on below, with the target of a new survey.
            if (
                self.plan.until_current
                or (most is not None and self.read_changes >= most)
                or self.hands.is_asked_to_end()
            ):
                return position, target
            self._rest()
            survey = self.log.survey()
            self.tags.look_again()
            self._check_position(position, survey, done)
            target = survey.target

    def _rest(self) -> None:
        """Wait for changes to come, as long as windows are apart, unless an end is asked for."""
        until = time.monotonic() + max(IDLE_SECONDS, self.plan.commit_every or 0.0)
        while (left := until - time.monotonic()) > 0 and not self.hands.is_asked_to_end():
            time.sleep(min(left, IDLE_SECONDS))

    def _check_position(self, position: Position, survey: Survey, done: Drained) -> None:
        """Refuse a position that the source no longer serves, and tell what it warns of; each warning once a run.

        Raises:
            PositionLost
        """
        self._tell((*self.log.refuse_lost(position, survey), *survey.warnings), done)

    def _tell(self, findings: Iterable[Finding], done: Drained) -> None:
        """Report what is worth a warning, each once a run."""
        for finding in findings:
            if finding not in done.findings:
                done.findings += (finding,)
                self.hands.tell(f"{self.plan.export}: {write_finding(finding)}")

    def _read_window(self, start: Position, target: Position, done: Drained) -> _ReadWindow:
        """Read one window and stage its parts.

        Raises:
            _GivenUp
        """
        limit, began = self.size.changes, time.monotonic()
        if self.plan.capture.max_events is not None:
            # So that `max_events` ends soon after its number; a transaction is never parted, so it may be passed by
            # one.
            limit = min(limit, self.plan.capture.max_events - self.read_changes)
        extracts = {table: self.committing.extract(table, self.ends.get(table)) for table in self.plan.capture.tables}
        # The parts being written vanish with the block, whatever happened. Those that are staged outlive it, which
        # `abandon` is for.
        with scratch_of(self.plan.run_id, self.hands.scratch) as folder:
            parts = self._parts(start, extracts, folder)
            try:
                commit = self._read(start, target, parts, limit, done)
                self._tell(commit.warnings, done)
                with self._measure_time("write"):
                    self.hands.step("staged")
                    tables = parts.close()
                # Else the loop would ask for the same window for ever.
                if commit.position.key <= start.key:
                    raise SourceLost(
                        f"Export {self.plan.export}: the log of the source did not move on from {start.text}, though "
                        f"it reaches to {target.text}. Run again; if it stays so, look at the source's log."
                    )
            except BaseException:
                # An interrupt and the end that was asked for, too: what is staged without a manifest is known to
                # nobody.
                parts.abandon()
                raise
        self.size.learn(parts.changes, parts.size_bytes)
        return _ReadWindow(parts, extracts, tables, commit, began)

    def _publish_behind(self, window: _ReadWindow, done: Drained) -> None:
        self.ends |= dict.fromkeys(window.tables, window.commit.position.key)
        self.read_changes += window.parts.changes
        self.behind.begin(partial(self._publish, window, done))

    def _publish(self, window: _ReadWindow, done: Drained) -> _ReadWindow:
        """Publish one window and save its position; whoever reads the log acknowledges it (`_settle`).

        Raises:
            DriftRefused: its columns may not be published; nothing of it stays.
        """
        commit = window.commit
        try:
            staged = self._judged(window)
        except BaseException:
            window.parts.abandon()
            raise
        with self._measure_time("publish"):
            # All tables, then one checkpoint: dying after some of them repeats this window, and each table's
            # repeated window has the name of the one that stands there.
            for table, each in staged.items():
                self.committing.publish(table, each, commit.position, done.tables[table])
        # After the manifests and before the save, so that what is saved no longer holds a filter that is done with.
        self.book.pass_by(commit.position)
        with self._measure_time("acknowledge"):
            self.hands.step("checkpoint")
            self.book.save(commit.position, DRAINING)
        window.seconds = time.monotonic() - window.began
        return window

    def _judged(self, window: _ReadWindow) -> dict[str, Staged]:
        """Ask whether the columns of a window may be published, now that the one before is: {table: its window}.

        Raises:
            DriftRefused
        """
        end = window.commit.position
        staged = {
            table: self.committing.staged(window.extracts[table], each, end) for table, each in window.tables.items()
        }
        # Columns that came and went inside this window are judged as well, or a drift between two drains would
        # pass unseen.
        for table, each in staged.items():
            for schema in schemas_between(each):
                self.hands.judge(table, replace(each, schema_ipc=schema), is_between=True)
            self.hands.judge(table, each)
        return staged

    def _settle(self, done: Drained) -> None:
        """Wait until the window under way is published, then acknowledge it.

        Raises:
            RivetError: what publishing raised.
        """
        window = self.behind.settle()
        if window is None:
            return
        # From the first change to the commit, publishing too: the duration that `commit_every` bounds is the one a
        # reader waits.
        self.size.learn_seconds(window.parts.changes, window.seconds)
        done.windows += bool(window.tables)
        done.changes += window.parts.changes
        done.disorder += window.parts.disorder
        done.transactions += window.commit.transactions
        # An empty window has no commit of ours; the last one that was seen stays.
        done.commit_at = window.commit.committed_at or done.commit_at
        with self._measure_time("acknowledge"):
            self.hands.step("source")
            # Last: what the source forgets here stands in a manifest and behind a saved position.
            self.log.acknowledge(window.commit.position)
            self.hands.step("acknowledged")

    def _settle_in_time(self, done: Drained) -> None:
        """Settle; a store that hangs does not keep a drain that was asked to end."""
        with self.hands.end_within(ENDING_SECONDS):
            self._settle(done)

    def _settle_failed(self) -> None:
        """Settle what was read before the drain failed: it is whole, and its readers may have it.

        Raises:
            RivetError: what publishing raised, in place of the failure behind it.
        """
        with self.hands.end_within(ENDING_SECONDS):
            window = self.behind.settle()
        if window is not None:
            # The line may be what failed; the source is told at the next run.
            with suppress(RivetError):
                self.log.acknowledge(window.commit.position)

    def _parts(self, start: Position, extracts: Mapping[str, Extract], folder: Path) -> WindowParts:
        return WindowParts(
            {table: (extract, self.hands.roots[table]) for table, extract in extracts.items()},
            start=start.key,
            rows=self.plan.rollover,
            size_bytes=self.plan.rollover_bytes,
            shape=self._line if self.plan.as_lines else None,
            scratch=folder,
            after=self.published,
        )

    def _line(self, changes: pa.Table, table: str) -> pa.Table:
        schema, name = self.plan.source.lineage_name(table)
        return lines(changes, schema, name)

    def _read(self, start: Position, target: Position, parts: WindowParts, limit: int, done: Drained) -> Commit:
        """Hand what the log yields to the writer.

        Raises:
            SourceLost: the log ended without saying where.
            RivetError: what publishing the window before raised.
            _GivenUp: it takes too long for a drain that was asked to end.
        """
        asked_at: float | None = None
        with self._measure_time("read"):
            self.hands.step("read")
            settle = partial(self._settle, done)
            items = iter(self.log.read(start, target, most=limit, seen=self.book.seen, before_asking=settle))
            # A log ends a window only with a Commit. One that ends without it was cut, and taking it for the end
            # would lose changes.
            while (item := self._next(items)) is not None:
                if isinstance(item, Commit):
                    return item
                # At a table's first change: a capture of many tables looks only at the destinations that get rows.
                self._begin(item.table)
                parts.add(item, self.tags.steps_of(item.table, item.columns))
                self.hands.step("part")
                self.behind.raise_failed()
                if self.hands.is_asked_to_end():
                    asked_at = asked_at or time.monotonic()
                    # From the moment the end was asked for, not from the window's start: a long window that is
                    # nearly done may still finish; not two of them, one after the other.
                    if self.behind.is_busy or time.monotonic() - asked_at > ENDING_SECONDS:
                        raise _GivenUp
        raise SourceLost(f"Export {self.plan.export}: the log ended in the middle of a window. Run again.")

    def _next(self, items: Iterator[Changes | Commit]) -> Changes | Commit | None:
        """Wait for what the log yields next: a server may look through hours of its log before it says a word.

        Raises:
            _GivenUp: an end was asked for meanwhile.
        """
        try:
            # Between two items nothing of ours runs that could look at the clock: the server may search hours of
            # log for one change of our tables.
            with self.hands.end_within(ENDING_SECONDS):
                return next(items, None)
        except EndOverdue:
            raise _GivenUp from None

    @contextmanager
    def _measure_time(self, name: str) -> Iterator[None]:
        began = time.monotonic()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.monotonic() - began
