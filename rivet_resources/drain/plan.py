"""What a drain is told and what it tells: plain values, and the hands it works with.

Belongs here: shapes. Not here: the order of effects (`drain.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Protocol

from rivet_resources.commit.manifest import Manifest
from rivet_resources.commit.publish import Ledger, Step, no_hook
from rivet_resources.commit.remembered import Remembered
from rivet_resources.contracts.change_log import Capture, Handover, Lag, LogSource, Position
from rivet_resources.contracts.destination import Destination, Root
from rivet_resources.contracts.evidence import Finding
from rivet_resources.contracts.extract import Staged
from rivet_resources.contracts.format import Format
from rivet_resources.contracts.messages import Registered
from rivet_resources.contracts.parts import Measures
from rivet_resources.contracts.provenance import Provenance
from rivet_resources.contracts.relation import Relation
from rivet_resources.contracts.settings import Pace
from rivet_resources.contracts.transform import Transform
from rivet_resources.drain.window_size import WINDOW_BYTES
from rivet_resources.state.checkpoints.stores import Checkpoints
from rivet_resources.state.leases import Lease


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
    source_name: str = ""
    as_lines: bool = False  # one object per change, both images nested: for people and pipes
    keys: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # of messages, by table; {}: there are none
    rollover: int = 100_000
    rollover_bytes: int = 64 << 20
    # About, of the changes of a window: it is all or nothing in scratch room, and in what a death repeats.
    window_bytes: int = WINDOW_BYTES
    # Seconds, about: no window takes longer, and none follows sooner at the log's end.
    commit_every: float | None = None

    @property
    def export(self) -> str:
        """Name the export."""
        return self.capture.export

    def run_of(self, table: str) -> str:
        """Name the run of one table: its own where several share the drain, with the same time and nonce."""
        return table_run(self.run_id, self.folders[table], export=self.export)


def table_run(run_id: str, folder: str, *, export: str) -> str:
    """Name the run of one table of a drain: the drain's own where the folder is the export's.

    The last 26 characters of a run's id are its stamp and its random end (`new_run_id`).
    """
    # The stamp and the random end stay, so that runs of several tables are seen to be of one drain.
    return run_id if folder == export else f"{folder.replace('/', '.')}_{run_id[-26:]}"


def write_finding(finding: Finding) -> str:
    """Write a finding as one sentence, or two with its fix."""
    return f"{finding.text}{f'. Fix: {finding.fix}' if finding.fix else ''}"


# Told a table and whose changes it gets, before the first one is written; returns what it read of the place, None for
# nothing; raises ProvenanceRefused.
Admit = Callable[[str, Provenance], Remembered | None]


class StageCopy(Protocol):
    """Stages what comes before the first change of a table."""

    def __call__(self, table: str, position: Position, handover: Handover | None, *, absent: frozenset[str]) -> Staged:
        """Stage the window `after=start`: all rows under the handover's instant; none without a handover.

        Args:
            absent: columns that no change will carry, so the copy leaves them out.
        """


class Judge(Protocol):
    """Says whether a table's columns may be published."""

    def __call__(self, table: str, staged: Staged, *, is_between: bool = False) -> None:
        """Compare with the last commit.

        Args:
            is_between: the columns are of parts inside the window, which ends with others.

        Raises:
            DriftRefused
        """


# Told a table with columns as its log has them and comments as they are now; returns it with what is remembered of
# columns that are gone; raises DriftRefused, ColumnTagRefused.
JudgeTags = Callable[[str, Relation], Relation]

# Raises `EndOverdue` in its block, so many seconds after an end was asked for.
EndWithin = Callable[[float], AbstractContextManager[None]]


def never_ends(seconds: float) -> AbstractContextManager[None]:
    """Stand in for `EndWithin` where nobody asks for an end."""
    return nullcontext()


@dataclass(frozen=True)
class DrainServices:
    """What a drain touches, and whom it tells."""

    state: Ledger
    checkpoints: Checkpoints
    lease: Lease
    roots: Mapping[str, Root]  # by table
    copy: StageCopy
    judge: Judge
    scratch: Path
    admit: Admit = lambda table, found: None
    # Told once of each table that gets rows in this run.
    begin: Callable[[str], None] = lambda table: None
    # So that all tables are admitted, whether or not they have changes.
    is_adopting: bool = False
    tell: Callable[[str], None] = lambda text: None
    step: Step = no_hook
    is_asked_to_end: Callable[[], bool] = lambda: False
    end_within: EndWithin = never_ends
    registered: Callable[[str], Registered | None] = lambda table: None  # schemas of a table's messages
    judge_tags: JudgeTags = lambda table, relation: relation


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
    links: list[tuple[str | None, str]] = field(default_factory=list)  # (low, high] of the window before, and of these


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
    # None: nothing was left to drain, and the source was not asked for it.
    lag: Lag | None = None
    # Of the preflight, which only a first run asks for, and of the last look.
    findings: tuple[Finding, ...] = ()
    seconds: dict[str, float] = field(default_factory=dict)
