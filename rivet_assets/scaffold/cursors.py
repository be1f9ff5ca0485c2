"""How well a column would serve as the cursor of an incremental export, judged from the catalog alone.

Belongs here: what counts for a column and what against, as a score with its reasons. Not here: which mode a table gets
(`propose.py`). Pure: facts in, candidates out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from rivet_resources.contracts.evidence import ColumnFacts, TableFacts
from rivet_resources.contracts.types import Family

Role = Literal["updated", "created", "key", "other"]
GOOD = 60  # of 100: from here on a cursor may be chosen without asking
NEARLY_ALL, SOME = 0.5, 0.01  # share of values that differ
IN_ORDER = 0.9  # correlation of values with their order on disk

# Points for a type. A date is no good alone: rows of today go on to appear under a cursor that was already passed.
TYPES: Mapping[Family, int] = {"timestamptz": 30, "timestamp": 30, "integer": 25, "date": 10}
TIMES = ("timestamptz", "timestamp", "date")

# Names, in snake case, of the time of a row's last change, and of its first appearance.
UPDATED = re.compile(
    r"((last_)?(updated?|modified|modification|changed?|edited|upd|mod)(_(at|on|ts|time|date|utc|timestamp))?"
    r"|(last_)?(update|modify|modification|change)_?(time|date|at|on|ts|timestamp)|mtime|dw_updated|sys_updated_on)"
)
CREATED = re.compile(
    r"(created|inserted|added|occurred|happened|logged|recorded|received|posted|placed|registered|ingested)"
    r"(_(at|on|ts|time|date|utc|timestamp))?"
    r"|(event|log|create|creation|insert)_(at|on|ts|time|date|utc|timestamp)|ctime|timestamp|ts|at"
)
COUNTED = re.compile(r"\b(identity|auto_?increment|nextval)", re.IGNORECASE)  # in a column's note
CLOCK = re.compile(r"\b(now\(\)|current_timestamp|sys(utc)?datetime|sysdatetimeoffset|get(utc)?date)", re.IGNORECASE)
KEPT = ("set on update by", "on update current_timestamp")


@dataclass(frozen=True)
class CursorCandidate:
    """One column that could tell what is new, with points out of 100."""

    column: str
    role: Role
    score: int
    reasons: tuple[str, ...]
    is_safe: bool  # NOT NULL, leads an index, and no row can appear behind it but by a late commit
    is_kept: bool  # the database itself moves it with every update


def cursor_candidates(facts: TableFacts, *, rows: int | None) -> tuple[CursorCandidate, ...]:
    """Score every column that could be a cursor, best first."""
    found = [_candidate(column, facts, rows) for column in facts.columns if _could_be(column, facts)]
    return tuple(sorted(found, key=lambda candidate: (-candidate.score, candidate.column)))


def snake(name: str) -> str:
    """Spell a name in snake case: UpdatedAt, updatedAt and UPDATED-AT are updated_at."""
    split = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name)
    return re.sub(r"[^a-z0-9]+", "_", split.lower()).strip("_")


def is_counted(column: ColumnFacts) -> bool:
    """Return whether the database numbers the rows by this column."""
    return column.family == "integer" and bool(COUNTED.search(column.note))


def leading_index(facts: TableFacts, column: str) -> str | None:
    """Name an index that begins with the column."""
    return next((index.name for index in facts.indexes if index.columns[:1] == (column,)), None)


def _could_be(column: ColumnFacts, facts: TableFacts) -> bool:
    is_number = column.family == "integer" and (is_counted(column) or facts.key == (column.name,))
    return column.family in TIMES or is_number


def _role(column: ColumnFacts) -> Role:
    name = snake(column.name)
    if column.family == "integer":
        return "key"
    if UPDATED.fullmatch(name) or any(word in column.note for word in KEPT):
        return "updated"
    return "created" if CREATED.fullmatch(name) else "other"


def _candidate(column: ColumnFacts, facts: TableFacts, rows: int | None) -> CursorCandidate:
    points = list(_points(column, facts, rows))
    is_indexed = leading_index(facts, column.name) is not None
    return CursorCandidate(
        column=column.name,
        role=_role(column),
        score=max(0, min(100, sum(each for each, _ in points))),
        reasons=tuple(f"{each:+d} {reason}" for each, reason in points),
        is_safe=not column.nullable and is_indexed and column.family != "date",
        is_kept=any(word in column.note for word in KEPT),
    )


def _points(column: ColumnFacts, facts: TableFacts, rows: int | None) -> Iterator[tuple[int, str]]:
    """Yield points with their reasons."""
    yield (
        TYPES[column.family],
        f"{column.native}{', which many rows of a day share' if column.family == 'date' else ''}",
    )
    if not column.nullable:
        yield 20, "NOT NULL"
    elif column.null_share == 0:
        yield 10, "may be NULL, but statistics saw none"
    else:
        yield -20, "may be NULL: such rows are exported once and never again"
    index = leading_index(facts, column.name)
    yield (20, f"index {index} begins with it") if index else (-10, "no index begins with it: each run reads all rows")
    role = _role(column)
    if role == "updated":
        yield 10, "named like the time of a change"
    if role == "created":
        yield 5, "named like the time of creation"
    if any(word in column.note for word in KEPT):
        yield 15, next(part for part in column.note.split("; ") if part.startswith(KEPT))
    elif is_counted(column):
        yield 10, "the database numbers rows by it"
    elif CLOCK.search(column.note):
        yield 5, "the database's clock is its default"
    if facts.key == (column.name,):
        yield 10, "the key: no two rows share it"
    elif column.distinct is not None and rows:
        yield _distinctness(column.distinct / rows)
    if column.correlation is not None and column.correlation >= IN_ORDER:
        yield 5, f"grows with the table: correlation {column.correlation:.2f}"


def _distinctness(share: float) -> tuple[int, str]:
    if share >= NEARLY_ALL:
        return 10, "nearly every row has a value of its own"
    return (5, "many values differ") if share >= SOME else (-10, "few values differ: many rows share one")
