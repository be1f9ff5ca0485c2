"""What tests of the binary log share: a source on a database, a log on tables, a window read whole."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from rivet_resources.contracts.change_log import Capture, Changes, Commit, Position
from rivet_resources.contracts.settings import Tuning, pace
from rivet_resources.contracts.source import ColumnRule, TypeRules
from rivet_resources.engines.mysql.binlog.log import MySqlLog
from rivet_resources.engines.mysql.source import MySql
from tests.servers.mysql import connection

EAGER = pace(Tuning(profile="fast", retry_backoff_ms=1, max_retries=2), None)
NO_RULES: Mapping[str, Any] = {}


@dataclass
class Window:
    """What one or more calls of `read` gave."""

    changes: list[Changes] = field(default_factory=list)
    commits: list[Commit] = field(default_factory=list)

    def rows(self, *without: str) -> list[dict[str, Any]]:
        """Return all rows; the envelope without what no test of rows wants."""
        left_out = {"__ts", "__unchanged", *without}
        return [
            {name: cell for name, cell in row.items() if name not in left_out}
            for each in self.changes
            for row in each.data.to_pylist()
        ]

    def tables(self, table: str) -> list[pa.Table]:
        """Return the pieces of one table."""
        return [each.data for each in self.changes if each.table == table]

    @property
    def position(self) -> Position:
        """Where it stopped."""
        return self.commits[-1].position


def rules(columns: Mapping[str, Any] = NO_RULES, **keys: Any) -> TypeRules:
    """Write the user's rules; a text is a type."""
    entries = {name: {"type": rule} if isinstance(rule, str) else rule for name, rule in columns.items()}
    return TypeRules({name: ColumnRule(**entry) for name, entry in entries.items()}, **keys)


@contextmanager
def log(url: str, *tables: str, typed: TypeRules | None = None, **keys: Any) -> Iterator[MySqlLog]:
    """Open the log of a database's tables."""
    capture = Capture("e", tables, typed or rules(), **{"deployment": "tests", **keys})
    with MySql(url=url).open_log(capture, application="rivet:test", pace=EAGER) as opened:  # type: ignore[arg-type]
        yield opened  # type: ignore[misc]


def window(opened: MySqlLog, after: Position, *, most: int = 1_000_000, upto: Position | None = None) -> Window:
    """Read windows until the log's end, or `upto`."""
    found, upto = Window(), upto or opened.survey().target
    while after.key < upto.key:
        for item in opened.read(after, upto, most=most):
            if isinstance(item, Commit):
                found.commits.append(item)
                after = item.position
            else:
                found.changes.append(item)
    return found


def run(url: str, *statements: str) -> None:
    """Run statements in one session, each committed by itself unless they say otherwise."""
    with connection(url) as opened, opened.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
