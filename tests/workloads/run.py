"""Do a workload: write, run, kill and alter as its steps say, and have every run judged.

Belongs here: steps at a real database, by the public ways in. Not here: choosing them (`plan.py`), what must hold
(`judge.py`).
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import yaml

from rivet_assets.launch.outcome import Outcome
from rivet_assets.launch.run_exports import run_exports
from tests import processes
from tests.emulators.tds import server as tds
from tests.engines.sqlserver.changes import ENABLE, enabling
from tests.faults.dying import DIED
from tests.faults.shop import drop_slot
from tests.lab import Lab
from tests.workloads.judge import Attempt, ChangeJudge, Judge, Wrong, judge_of
from tests.workloads.plan import LATER_PLACES
from tests.workloads.published import Windows, published, strays
from tests.workloads.steps import (
    Ddl,
    Delete,
    Insert,
    Killed,
    Late,
    Maintain,
    Run,
    Step,
    Twice,
    Update,
    Validate,
    Workload,
)
from tests.workloads.table import Table

TRIES, PAUSE_SECONDS = 20, 0.25  # of a run whose exit code says that it may succeed later: a dead one's session ends
DRIFTED = "RIVET_DRIFT_REFUSED"
UNTOLD = ("RIVET_LOG_POSITION_LOST", "RIVET_LOG_REFUSED")
Signature = frozenset[tuple[str, str]]
UNKNOWN: Signature = frozenset()


@dataclass
class Doing:
    """One workload at one database."""

    workload: Workload
    lab: Lab
    table: Table
    judge: Judge
    slot: str = field(default_factory=lambda: f"w_{secrets.token_hex(4)}")
    told: list[str] = field(default_factory=list)  # what was done, for the message of a failure
    baselines: set[Signature] = field(default_factory=set)  # columns that the last commit may have had

    # --- the whole -------------------------------------------------------------------------------

    def all(self) -> None:
        """Do every step, then run to a good end.

        Raises:
            Wrong: what is published is not what was promised.
        """
        self._create()
        for number, step in enumerate(self.workload.steps):
            self.told.append(f"{number}: {brief(step)}")
            DOING[type(step)](self, step)
        self.told.append("end")
        self._end()

    def _create(self) -> None:
        table, lab = self.table, self.lab
        if self.workload.engine == "postgres":  # a log is read as far as it is flushed
            lab.sql(f"ALTER DATABASE {urlsplit(lab.url).path[1:]} SET synchronous_commit = on")
        if self.workload.engine == "sqlserver" and self.workload.mode == "cdc":
            lab.sql(ENABLE, *table.create(), enabling("t"))
        else:
            lab.sql(*table.create())
        self._insert([table.completed(table.resolved(row)) for row in self.workload.rows])
        if self.workload.seed % 2:
            lab.analyze("t")

    def _end(self) -> None:
        self._settle()
        self.run()
        if "chunk_checkpoint" in self.workload.block or self.workload.seed % 3 == 0:
            self.run()
        self.judge.final(self.published())
        folder = self.lab.folder / "lake/t"
        if found := strays(folder):
            raise Wrong(f"files that no manifest names: {found}")
        if any((folder / "_staged").glob("*/*")):
            raise Wrong(f"left staged: {[str(path) for path in (folder / '_staged').glob('*/*')]}")
        if self.workload.seed % 4 == 0:
            self._validate("full")

    def _settle(self) -> None:
        if self.workload.is_clock_real:
            time.sleep(self.table.able.settled_seconds)

    # --- the export ------------------------------------------------------------------------------

    def block(self) -> str:
        """Spell the export, with the types that the table's columns need by now."""
        block = {"table": "t", **self.workload.block}
        if self.workload.mode == "cdc":
            block["cdc"] = {**block["cdc"], "slot": self.slot}  # type: ignore[dict-item]
        needed = self.lab.engine.columns
        typed = {c.name: needed[c.word] for c in self.table.columns.values() if c.word in needed}
        return yaml.safe_dump(block | ({"columns": typed} if typed else {}))

    def configure(self) -> str:
        """Write the file; its path."""
        self.lab.config(self.block())
        return str(self.lab.folder / "rivet.yaml")

    def partitions(self, window: int | None = None) -> tuple[str, ...]:
        """Name the windows to run, one or all."""
        windows = self.workload.windows
        if not windows:
            return ()
        return (windows[window],) if window is not None else (f"{windows[0]}...{windows[-1]}",)

    def published(self) -> Windows:
        """Read what a reader finds."""
        return published(self.lab.folder / "lake/t", self.table.words)

    @property
    def signature(self) -> Signature:
        """Tell the columns, as drift is judged by."""
        return frozenset((c.name, c.word) for c in self.table.columns.values())

    # --- runs ------------------------------------------------------------------------------------

    def run(self, window: int | None = None, *, is_alone: bool = True) -> None:
        """Run until it ends well, or is refused as it must be; then take the way out that is named.

        Raises:
            Wrong
        """
        attempt = Attempt(True, is_alone=is_alone, window=window)
        self.judge.before(attempt)
        outcome = self._patient(window)
        if outcome.success:
            self._accepted(attempt)
            return
        self._check_refusal(outcome)
        self.judge.after(Attempt(False, is_alone=is_alone), self.published())
        self._begin_anew()
        anew = Attempt(True, is_alone=is_alone, is_anew=True)
        self.judge.before(anew)
        outcome = self._patient(None)
        if not outcome.success:
            raise Wrong(f"refused after a reset: {outcome.code} {outcome.message}")
        self.baselines.clear()
        self._accepted(anew)

    def _patient(self, window: int | None) -> Outcome:
        self.configure()
        for _ in range(TRIES):
            (outcome,) = run_exports(self.lab.config(self.block()), partitions=self.partitions(window))
            if outcome.success or outcome.exit_code != 2:
                break
            time.sleep(PAUSE_SECONDS)
        return outcome

    def _accepted(self, attempt: Attempt) -> None:
        fails = self.workload.block.get("on_schema_drift") == "fail"
        if fails and self.baselines and not {self.signature, UNKNOWN} & self.baselines:
            raise Wrong("on_schema_drift is fail, the columns have changed, and the run went on")
        self.baselines = {self.signature}
        self.judge.after(attempt, self.published())

    def _check_refusal(self, outcome: Outcome) -> None:
        """See that a refusal is one that the README tells of.

        Raises:
            Wrong
        """
        may = any(each not in (self.signature, UNKNOWN) for each in self.baselines)
        fails = self.workload.block.get("on_schema_drift") == "fail"
        if may and fails and (outcome.code, outcome.exit_code) == (DRIFTED, 4):
            return
        if self.table.is_altered and self.workload.mode == "cdc" and outcome.code in UNTOLD:
            return
        raise Wrong(f"refused: {outcome.code} ({outcome.exit_code}) {outcome.message}\n{outcome.traceback[-3000:]}")

    def _begin_anew(self) -> None:
        done = processes.run(processes.RIVET, "state", "reset", "-c", self.configure(), "-e", "t")
        if done.returncode:
            raise Wrong(f"state reset: {done.stderr}")
        if self.workload.mode == "cdc" and self.workload.engine == "postgres":
            drop_slot(self.lab.url, self.slot)

    def _died(self, step: Killed) -> Attempt:
        """Run in a process that may die; an attempt that ended well if it did not."""
        arguments = self.partitions()
        path = self.configure()
        if step.place == "ms":
            ranged = ("--partition-range", *arguments) if arguments else ()
            process = processes.Process(processes.RIVET, "run", "-c", path, *ranged)
            time.sleep(step.after_ms / 1000)
            process.kill()
            process.communicate(timeout=60)
            return Attempt(process.returncode == 0)
        if self.workload.mode == "cdc":
            done = processes.run("tests.faults.drain_run", path, step.place, str(step.nth))
        else:
            done = processes.run("tests.faults.dying", path, step.place, *arguments)
        if done.returncode == DIED:
            return Attempt(False)
        failed = any(line.startswith("failed") for line in done.stdout.splitlines())
        ended_well = done.returncode == 0 and not failed
        if self._must_die(step) and done.returncode == 0:
            raise Wrong(f"changes were written, and the drain never came to {step.place}")
        self.told.append(f"   nobody died: {done.returncode} {done.stdout.strip()[-200:]}{done.stderr.strip()[-300:]}")
        return Attempt(ended_well)

    def _must_die(self, step: Killed) -> bool:
        """Return whether a drain surely passes this place: it has begun, and rows were inserted just before."""
        has_begun = isinstance(self.judge, ChangeJudge) and self.judge.has_begun
        return has_begun and step.place in LATER_PLACES and step.nth == 1

    # --- steps -----------------------------------------------------------------------------------

    def _insert(self, rows: list[dict[str, object]]) -> None:
        self.lab.sql(*self.table.inserting(rows))
        self.table.insert(rows)

    def insert(self, step: Insert) -> None:
        """Insert."""
        self._insert([self.table.completed(self.table.resolved(row)) for row in step.rows])

    def update(self, step: Update) -> None:
        """Update."""
        self.lab.sql(*self.table.update(step))

    def delete(self, step: Delete) -> None:
        """Delete."""
        self.lab.sql(*self.table.delete(step))

    def ddl(self, step: Ddl) -> None:
        """Change the columns."""
        self.lab.sql(self.table.alter(step))

    def maintain(self, step: Maintain) -> None:
        """Keep house."""
        house = self.table.able.house
        self.lab.sql(house[step.number % len(house)])

    def run_step(self, step: Run) -> None:
        """Run once."""
        self.run(step.window, is_alone=not self.workload.is_clock_real)

    def killed(self, step: Killed) -> None:
        """Run, and be killed."""
        is_alone = not self.workload.is_clock_real
        self.judge.before(Attempt(False))
        died = self._died(step)
        self.told.append(f"   {'ended well' if died.ended_well else 'died'}")
        if died.ended_well:
            self._accepted(Attempt(True, is_alone=is_alone))
            return
        # Columns are kept last: a first run that died may have published, and kept none.
        self.baselines |= {self.signature} if self.baselines else {self.signature, UNKNOWN}
        self.judge.after(Attempt(False, is_alone=is_alone), self.published())

    def twice(self, step: Twice) -> None:
        """Run twice at once; one wins, or both one after the other."""
        path = self.configure()
        ranged = ("--partition-range", *self.partitions()) if self.workload.windows else ()
        self.judge.before(Attempt(True))
        runs = [processes.Process(processes.RIVET, "run", "-c", path, *ranged) for _ in range(2)]
        told = [run.communicate(timeout=120)[1] for run in runs]
        codes = sorted(run.returncode or 0 for run in runs)
        self.told.append(f"   exit codes {codes}")
        if codes in ([0, 0], [0, 2]):
            self._accepted(Attempt(True, is_alone=not self.workload.is_clock_real))
        elif set(codes) <= {2} or self.table.is_altered:
            self.run(is_alone=not self.workload.is_clock_real)
        else:
            raise Wrong(f"two runs at once ended with {codes}: {told}")

    def late(self, step: Late) -> None:
        """Write in a transaction that outlives the start of a run, or the run."""
        table, judge = self.table, self.judge
        with self.lab.writer() as writer:
            if self.workload.engine != "sqlserver":
                writer.execute("SELECT 1")
            rows = [table.completed(table.resolved(row)) for row in step.rows]
            for statement in table.inserting(rows):
                writer.execute(statement)
            if step.others:
                self.insert(Insert(step.others))
            if step.during_ms is None:
                self.run(is_alone=self.workload.mode not in ("by id", "by time", "by batch", "poll"))
                writer.commit()
                table.insert(rows)
                return
            judge.before(Attempt(True))
            ranged = ("--partition-range", *self.partitions()) if self.workload.windows else ()
            process = processes.Process(processes.RIVET, "run", "-c", self.configure(), *ranged)
            time.sleep(step.during_ms / 1000)
            writer.commit()
            table.insert(rows)
        _, errors = process.communicate(timeout=120)
        if process.returncode == 0:
            self._accepted(Attempt(True, is_alone=False, is_exact=self.workload.engine == "postgres"))
        elif process.returncode == 2 or table.is_altered:
            judge.after(Attempt(False, is_alone=False), self.published())
            self.run(is_alone=not self.workload.is_clock_real)
        else:
            raise Wrong(f"a run beside a late writer ended with {process.returncode}: {errors}")

    def validate(self, step: Validate) -> None:
        """Run, and look at the files."""
        self.run(is_alone=not self.workload.is_clock_real)
        self._validate(step.depth)

    def _validate(self, depth: str) -> None:
        done = processes.run(processes.RIVET, "validate", "-c", self.configure(), "--depth", depth)
        if done.returncode:
            raise Wrong(f"validate --depth {depth} ended with {done.returncode}: {done.stdout}{done.stderr}")


DOING: dict[type, Callable[[Doing, Any], None]] = {
    Insert: Doing.insert,
    Update: Doing.update,
    Delete: Doing.delete,
    Ddl: Doing.ddl,
    Maintain: Doing.maintain,
    Run: Doing.run_step,
    Killed: Doing.killed,
    Twice: Doing.twice,
    Late: Doing.late,
    Validate: Doing.validate,
}


def brief(step: Step) -> str:
    """Tell a step in one line."""
    match step:
        case Insert():
            return f"insert {len(step.rows)}"
        case Update():
            return f"update {len(step.changes)}"
        case Delete():
            return f"delete {len(step.keys)}"
        case Late():
            when = "after a run" if step.during_ms is None else f"{step.during_ms} ms after its start"
            return f"late writer of {len(step.rows)}, {len(step.others)} by others, commits {when}"
    return repr(step)


@contextmanager
def doing(workload: Workload, lab: Lab) -> Iterator[Doing]:
    """Open a workload at an empty database; what it holds at the server goes with it."""
    table = Table(workload)
    made = Doing(workload, lab, table, judge_of(table))
    try:
        yield made
    finally:
        if workload.mode == "cdc" and workload.engine == "postgres":
            drop_slot(lab.url, made.slot)
        if workload.mode == "cdc" and workload.engine == "sqlserver" and tds.is_emulated():
            tds.forget(lab.url)
