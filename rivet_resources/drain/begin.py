"""The first run of a drain: prerequisites, the place in the log, and what comes before the first change.

Belongs here: everything up to the first published window. Not here: windows after it (`drain.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from rivet_resources.commit.manifest import current_manifests
from rivet_resources.contracts.change_log import Handover, Log, Position, Survey
from rivet_resources.contracts.evidence import Finding
from rivet_resources.contracts.extract import Staged
from rivet_resources.contracts.messages import Topic
from rivet_resources.drain.checkpoint_book import BEGINNING, COPYING, DRAINING, NOWHERE, CheckpointBook
from rivet_resources.drain.commit import Committing
from rivet_resources.drain.in_topics import copied
from rivet_resources.drain.plan import Drained, DrainPlan, DrainServices, table_run, write_finding
from rivet_resources.errors import CheckpointUnusable, LogSetup, RivetError, SourceLost


@dataclass(frozen=True)
class Beginning:
    """A drain's first run over an open log."""

    plan: DrainPlan
    hands: DrainServices
    log: Log
    book: CheckpointBook
    committing: Committing

    def position(self, survey: Survey, done: Drained) -> Position:
        """Fix the position from which nothing will be missed, publish what comes before it, and give it.

        Raises:
            LogSetup: prerequisites are missing.
            CheckpointUnusable: changes are published, so there was a checkpoint.
        """
        # Nothing stored and changes published: the store was lost. With a checkpoint the question does not arise.
        if self.book.stored is None:
            self._refuse_forgotten()
        done.findings = self._refuse_unready()
        # A copy that died begins again at the same, older position, with a new snapshot: an overlap is harmless, a
        # gap is not (`cdc.md`, section 8).
        if self.book.is_copying:
            position = self.book.position
            # The slot, or the file of the binary log, may be gone since the run that died: a copy over a gap would
            # look complete.
            self.log.refuse_lost(position, survey)
            if self._was_copied(position):
                return position
        else:
            position = self._fix_start()
        self.hands.tell(f"{self.plan.export}: begins at {position.text}.")
        end: str = ""
        repeats: str | None = None  # without a copy nobody knows which rows are there
        if self.plan.initial:
            with self.log.handover() as handover:
                staged = self._copy_tables(position, handover)
                # Asked while the handover is open: the snapshot, and what it says of itself, ends with it.
                self.book.seen = handover.seen()
            # After the copy's snapshot was taken: transactions that it holds have ended below here.
            end = self.log.survey().target.key
            repeats = handover.repeats_until(end)
        else:
            staged = self._copy_tables(position, None)
        self.book.seen_until = end if self.book.seen else ""
        staged = {table: _repeating(each, repeats) for table, each in staged.items()}
        # A copy that is produced cannot be made again: what it has seen must be known before.
        if self._is_final():
            self.book.save(position, COPYING)
        # Manifests before the checkpoint, as in every window: a death in between copies again, over the same
        # windows.
        if self._is_final() and len(staged) > 1:
            # One of them alone could not be made again beside the others: the snapshot that all are of is gone then.
            self.committing.publish_together(staged, position, done.tables)
        else:
            for table, each in staged.items():
                self.committing.publish(table, each, position, done.tables[table])
        done.copied_rows = sum(each.measures.rows for each in staged.values())
        self.hands.step("checkpoint")
        self.book.save(position, DRAINING)
        return position

    def _is_final(self) -> bool:
        """Return whether a copy, once it is published, cannot be replaced."""
        return self.plan.initial and any(isinstance(root, Topic) for root in self.hands.roots.values())

    def _was_copied(self, position: Position) -> bool:
        """Go on behind copies that an earlier run produced before it died; return whether there are any.

        Raises:
            CheckpointUnusable: a table joined since, or they are those of another run than the one that is noted.
        """
        found = copied(self.hands.roots, position) if self._is_final() else {}
        if not found:
            return False
        # They are produced together. What else is missing was not captured then, and has no rows of that snapshot.
        if joined := [table for table in self.hands.roots if table not in found]:
            raise CheckpointUnusable(
                f"Export {self.plan.export}: the first copies of {', '.join(found)} are in their topics, and "
                f"{', '.join(joined)} joined since a run died behind them. Take {', '.join(joined)} out of `tables`, "
                f"and give it an export of its own."
            )
        assert self.book.stored is not None
        # A run that hung may have committed behind the look of another one, whose snapshot is the one that is noted:
        # by that, changes would be left out which these copies do not have.
        noted = {table: table_run(self.book.stored.run_id, self.plan.folders[table], export=self.plan.export)
                 for table in found}  # fmt: skip
        if strange := [table for table, manifest in found.items() if manifest.run_id != noted[table]]:
            raise CheckpointUnusable(
                f"Export {self.plan.export}: the first copy of {strange[0]} in its topic is that of run "
                f"{found[strange[0]].run_id}, and the snapshot that is noted is another run's. Two runs worked at "
                f"once, so which changes the copy holds is not known. Name another topic, run "
                f"`rivet state reset -e {self.plan.export}`, and let one run work at a time."
            )
        facts = self.book.stored.metadata
        self.book.seen, self.book.seen_until = facts.get("seen", ""), facts.get("seen_until", "")
        for table, manifest in found.items():
            # The run that died may have produced the manifest and told the store nothing of it.
            self.hands.state.record_commit(manifest)
            self.book.chain[table] = position.key
        self.book.save(position, DRAINING)
        return True

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
                self.hands.tell(f"{self.plan.export}: {write_finding(finding)}")
        failed = [finding for finding in findings if finding.status == "fail"]
        if failed:
            reasons = "\n".join(f"{finding.name}: {write_finding(finding)}" for finding in failed)
            raise LogSetup(f"Export {self.plan.export} cannot follow the log yet.\n{reasons}")
        return findings

    def _fix_start(self) -> Position:
        """Make the place in the log; noted before and after, so that a run that dies between finds its own slot."""
        is_new = self.book.stored is None
        # Before the slot is made. Dying between the two leaves a slot that the next run knows to be its own; the
        # other way round nobody would know whose it is, and it would hold the log back.
        if is_new:
            self.book.save(NOWHERE, BEGINNING)
        self.hands.step("begin")
        try:
            position = self.log.begin(again=not is_new)
        except RivetError as error:
            # A refusal made nothing at the source, so there is nothing to
            # remember. A line that broke may have made the slot.
            if is_new and not isinstance(error, SourceLost):
                self.hands.checkpoints.delete(self.plan.key)
            raise
        self.hands.step("begun")
        self.book.save(position, COPYING)
        return position

    def _copy_tables(self, position: Position, handover: Handover | None) -> dict[str, Staged]:
        """Stage the first window of every table; what was staged goes when one of them fails."""
        staged: dict[str, Staged] = {}
        try:
            for table in self.plan.capture.tables:
                self.hands.step("copy")
                staged[table] = self.hands.copy(table, position, handover, absent=self.log.absent(table))
                # Judged before the next one is copied: a copy may take hours, and a refusal of the first table
                # needs none of them.
                self.hands.judge(table, staged[table])
        except BaseException:
            # None of them is published yet, so the copies that finished are invisible; without this they would lie
            # there until a sweep.
            for table, each in staged.items():
                self.hands.roots[table].discard(each.parts)
            raise
        return staged


def _repeating(staged: Staged, until: str | None) -> Staged:
    """Note up to where the log may tell again what a copy holds."""
    assert staged.extract.cursor is not None
    return replace(staged, extract=replace(staged.extract, cursor=replace(staged.extract.cursor, repeats_until=until)))
