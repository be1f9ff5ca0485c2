"""Run a command and measure its whole process tree, and what it asked of the server meanwhile.

Belongs here: CPU, peaks and longest statement of one run, from /proc and pg_stat_activity. Not here: what is
run. Sampled, since children of Spark's Python daemon are reaped unseen and their times are in no parent's account.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psycopg

TICKS = os.sysconf("SC_CLK_TCK")
TREE_SECONDS = 0.05
MEMORY_SECONDS = 0.25
STATEMENT_SECONDS = 0.02
LONGEST = """
    SELECT max(extract(epoch FROM clock_timestamp() - query_start)) FROM pg_stat_activity
    WHERE datname = current_database() AND state = 'active' AND pid <> pg_backend_pid()
      AND backend_type = 'client backend'
"""


Watch = Callable[[str], AbstractContextManager[list[float]]]  # given a URL; seconds of the longest statement so far


@dataclass
class Figures:
    """What one run cost. CPU in seconds of all its processes; peaks in MB, None where there was no such process."""

    wall: float = 0.0
    cpu: float = 0.0
    python_mb: float = 0.0  # largest PSS of a task's process; of the whole script where there are no tasks
    jvm_mb: float | None = None
    longest_statement: float = 0.0
    output: str = ""
    shares: str = ""  # CPU by role: driver + tasks + JVM


@dataclass
class _Process:
    """One process of the tree as last seen."""

    name: str
    cpu: float
    pss_mb: float = 0.0
    rss_mb: float = 0.0
    is_task: bool = False


@dataclass
class _Tree:
    """All processes that descend from one; orphans stay in it."""

    root: int
    seen: dict[tuple[int, int], _Process] = field(default_factory=dict)  # by pid and start time

    def sample(self, *, memory: bool) -> None:
        """Look at every process once."""
        table = dict(_processes())
        mine = {pid for pid, _ in self.seen} & set(table) | {self.root}
        grown = True
        while grown:
            more = {pid for pid, (parent, *_) in table.items() if parent in mine} - mine
            mine |= more
            grown = bool(more)
        for pid in mine & set(table):
            parent, name, cpu, started = table[pid]
            process = self.seen.setdefault((pid, started), _Process(name, cpu))
            process.name, process.cpu = name, cpu
            if memory:
                self._weigh(pid, parent, process, table)

    def _weigh(
        self, pid: int, parent: int, process: _Process, table: Mapping[int, tuple[int, str, float, int]]
    ) -> None:
        try:
            sizes = Path(f"/proc/{pid}/smaps_rollup").read_text()
            peak = Path(f"/proc/{pid}/status").read_text()
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            return
        process.pss_mb = max(process.pss_mb, _kilobytes(sizes, "Pss:") / 1024)
        process.rss_mb = max(process.rss_mb, _kilobytes(peak, "VmHWM:") / 1024)
        forked = parent in table and table[parent][1] == process.name and process.name.startswith("python")
        process.is_task |= b"pyspark.worker" in command and forked


def _processes() -> Iterator[tuple[int, tuple[int, str, float, int]]]:
    """Read every process: pid, then parent, name, CPU seconds, start time."""
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                text = Path(entry.path, "stat").read_text()
            except OSError:
                continue
            name = text[text.index("(") + 1 : text.rindex(")")]
            rest = text[text.rindex(")") + 2 :].split()
            yield int(entry.name), (int(rest[1]), name, (int(rest[11]) + int(rest[12])) / TICKS, int(rest[19]))


def _kilobytes(text: str, key: str) -> int:
    return next((int(line.split()[1]) for line in text.splitlines() if line.startswith(key)), 0)


def measure(
    command: Sequence[str], *, url: str, env: Mapping[str, str], cwd: Path, watch: Watch | None = None
) -> Figures:
    """Run a command to its end and tell what it cost.

    Args:
        watch: asks the server at `url` for its longest statement meanwhile; default: PostgreSQL's way.

    Raises:
        RuntimeError: it failed; with the end of what it wrote.
    """
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER: a JVM that outlives its parent stays visible
    with (watch or _longest_statement)(url) as longest:
        began = time.monotonic()
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=dict(env), cwd=cwd, text=True
        ) as child:
            tree, stop = _Tree(child.pid), threading.Event()
            watching = threading.Thread(target=_watch, args=(tree, stop))
            watching.start()
            output = child.communicate()[0]
        wall = time.monotonic() - began
        time.sleep(1.5)  # the JVM leaves in its own time; its CPU counts
        stop.set()
        watching.join()
    if child.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {child.returncode}:\n{output[-3000:]}")
    processes = list(tree.seen.values())
    tasks = [one for one in processes if one.is_task] or [one for one in processes if one.name != "java"]
    shares = (
        sum(one.cpu for one in processes if one.name != "java" and not one.is_task),
        sum(one.cpu for one in processes if one.is_task),
        sum(one.cpu for one in processes if one.name == "java"),
    )
    jvms = [one.rss_mb for one in processes if one.name == "java"]
    return Figures(
        wall,
        sum(shares),
        max(one.pss_mb for one in tasks),
        max(jvms, default=None),
        longest[0],
        output,
        " + ".join(f"{share:.1f}" for share in shares),
    )


def _watch(tree: _Tree, stop: threading.Event) -> None:
    weighed = 0.0
    while not stop.wait(TREE_SECONDS):
        memory = time.monotonic() - weighed > MEMORY_SECONDS
        tree.sample(memory=memory)
        if memory:
            weighed = time.monotonic()


@contextmanager
def _longest_statement(url: str) -> Iterator[list[float]]:
    """Ask the server for its longest running statement again and again."""
    longest, stop = [0.0], threading.Event()

    def ask() -> None:
        with psycopg.connect(url, autocommit=True) as connection:
            while not stop.wait(STATEMENT_SECONDS):
                row = connection.execute(LONGEST).fetchone()
                longest[0] = max(longest[0], float(row[0] or 0) if row else 0.0)

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        yield longest
    finally:
        stop.set()
        asking.join()


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Lay rows out as a text table."""
    texts = [list(header), *([_cell(cell) for cell in row] for row in rows)]
    widths = [max(len(row[column]) for row in texts) for column in range(len(header))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in texts]
    return "\n".join([lines[0], "  ".join("-" * width for width in widths), *lines[1:]])


def _cell(cell: object) -> str:
    if cell is None:
        return "–"
    return f"{cell:.2f}" if isinstance(cell, float) else str(cell)
