"""How the change-capture tests of SQL Server read: captured tables, one open log, all changes of a drain.

Belongs here: capturing a table, waiting for the capture job of a real server, windows. Not here: how the emulator
captures (tds/cdc.py).
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rivet_resources.contracts.change_log import Capture, Changes, Commit, Position
from rivet_resources.contracts.settings import Pace
from rivet_resources.engines.sqlserver.log.log import SqlServerLog
from rivet_resources.errors import LogBusy
from tests.emulators.tds import server as tds
from tests.engines.sqlserver.reads import EAGER, rules, source

ENABLE = "EXEC sys.sp_cdc_enable_db"
ORDERS = (
    "CREATE TABLE orders (id int NOT NULL PRIMARY KEY, name nvarchar(40) NULL, note nvarchar(max) NULL, old text NULL)"
)
_marks = itertools.count(1)


def enabling(table: str, *, instance: str = "", columns: str = "") -> str:
    """Write what captures a table of dbo."""
    named = f", @capture_instance = N'{instance}'" if instance else ""
    listed = f", @captured_column_list = N'{columns}'" if columns else ""
    return (
        f"EXEC sys.sp_cdc_enable_table @source_schema = N'dbo', @source_name = N'{table}', @role_name = NULL, "
        f"@supports_net_changes = 0{named}{listed}"
    )


def captured_tables(url: str, *creates: str) -> None:
    """Make tables and capture them."""
    tds.execute(url, ENABLE)
    if not tds.is_emulated():
        tds.execute(url, "CREATE TABLE rivet_marks (id int NOT NULL PRIMARY KEY)", enabling("rivet_marks"))
    for create in creates:
        tds.execute(url, create, enabling(create.split()[2]))
    settle(url)


def write(url: str, *statements: str) -> None:
    """Run statements, each a transaction, and wait until the log has them."""
    tds.execute(url, *statements)
    settle(url)


def settle(url: str, *, seconds: float = 60) -> None:
    """Wait until a real server's capture job has passed a mark written now; the emulator's is never behind."""
    if tds.is_emulated():
        return
    mark = next(_marks)
    deadline = time.monotonic() + seconds
    with tds.connect(url) as execute:
        execute(f"INSERT INTO rivet_marks VALUES ({mark})")
        while not execute(f"SELECT id FROM cdc.dbo_rivet_marks_CT WHERE id = {mark}"):
            assert time.monotonic() < deadline, "the capture job does not run"
            time.sleep(0.2)


def capture(*tables: str, export: str = "orders", **settings: Any) -> Capture:
    """Ask for tables' changes."""
    given = rules(columns=settings.pop("columns", {}), **settings.pop("typing", {}))
    return Capture(export, tables or ("orders",), given, **settings)


@contextmanager
def opened(url: str, *tables: str, speed: Pace = EAGER, **settings: Any) -> Iterator[SqlServerLog]:
    """Open a log."""
    with source(url).open_log(capture(*tables, **settings), application="test", pace=speed) as log:
        assert isinstance(log, SqlServerLog)
        yield log


def start_of(url: str, *tables: str, **settings: Any) -> Position:
    """Begin, and give where; once the server has noticed that the log before this one was closed."""
    until = time.monotonic() + 10
    while True:
        try:
            with opened(url, *tables, **settings) as log:
                return log.begin()
        except LogBusy:
            if time.monotonic() > until:
                raise
            time.sleep(0.05)


def window(log: SqlServerLog, after: Position, *, most: int = 100_000) -> tuple[list[Changes], Commit]:
    """Read one window up to the log's end."""
    items = list(log.read(after, log.survey().target, most=most))
    changes = [item for item in items if isinstance(item, Changes)]
    (commit,) = [item for item in items if isinstance(item, Commit)]
    assert items[-1] is commit
    return changes, commit


def rows(changes: list[Changes]) -> list[dict[str, Any]]:
    """Return the rows of all changes."""
    return [row for item in changes for row in item.data.to_pylist()]


def drained(url: str, after: Position, *tables: str, most: int = 100_000, **settings: Any) -> list[dict[str, Any]]:
    """Read everything after a position, window by window."""
    found: list[dict[str, Any]] = []
    with opened(url, *tables, **settings) as log:
        target = log.survey().target
        while after.key < target.key:
            changes, commit = window(log, after, most=most)
            assert commit.position.key > after.key
            found += rows(changes)
            after = commit.position
    return found


def brief(found: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """Return operation, id and name of each change."""
    return [(row["__op"], row["id"], row.get("name")) for row in found]
