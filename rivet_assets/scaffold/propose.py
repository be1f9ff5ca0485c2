"""What export a table deserves, judged from the catalog alone (`contract.md`, 13.1, `init`).

Belongs here: the choice of mode, cursor, chunk key and gates, each with the evidence that led to it. Not here: scoring
cursors (`cursors.py`), the text of the YAML (`yaml.py`), asking a database (`Session.tables`).

Pure: facts in, proposals out. Estimates decide how a table is read, never which of its rows: whatever is chosen exports
every row that is there.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from rivet_assets.modes.registry import MODES
from rivet_assets.scaffold.cursors import (
    CLOCK,
    GOOD,
    TIMES,
    UPDATED,
    CursorCandidate,
    cursor_candidates,
    is_counted,
    leading_index,
    snake,
)
from rivet_resources.contracts.engine_facts import EngineFacts
from rivet_resources.contracts.evidence import ColumnFacts, TableFacts

Mode = Literal["full", "incremental", "chunked", "time_window"]

FULL_ROWS = 100_000  # up to so many rows, a plain copy is quicker than anything cleverer
MANY_ROWS = 5_000_000  # from here on four readers, two below
FILE_ROWS = 1_000_000  # about ten files per ten million rows
CHUNK_BYTES = 512 * 1024**2  # of the source, at most, in one chunk of wide rows
UNIQUE_ROWS = 10_000_000  # a rule of uniqueness keeps every value on disk while the run lasts
CERTAIN_ROWS = 1_000  # so many by statistics: the table is not empty
ROW_OVERHEAD, COLUMN_BYTES = 28, 12  # bytes of a row and of a cell, where only the table's size is known

# Families whose columns pages can walk along.
KEYS = frozenset({"integer", "text", "uuid", "timestamp", "timestamptz", "date", "numeric", "binary"})
LOGLIKE = re.compile(r"(.*_)?(logs?|events?|history|audit(_logs?)?|journal|ledger|clicks?|page_?views|measurements?)")
CHANGING = re.compile(r"(.*_)?(status|state|deleted(_at)?|is_deleted|archived(_at)?|version|closed_at|resolved_at)")
COPIES = "each run copies the whole table anew"


@dataclass(frozen=True)
class ChunkKey:
    """A column that the table can be cut by."""

    column: str
    way: Literal["keyset", "range"]
    reason: str


@dataclass(frozen=True)
class Proposal:
    """One table's export: its mode and further keys as in YAML, and why. `refused` says why there is none."""

    facts: TableFacts
    mode: Mode = "full"
    keys: Mapping[str, Any] = field(default_factory=dict)
    reasons: tuple[str, ...] = ()
    caveats: tuple[str, ...] = ()
    refused: str = ""
    rows: int | None = None
    cursors: tuple[CursorCandidate, ...] = ()
    chunk_keys: tuple[ChunkKey, ...] = ()

    @property
    def quality(self) -> dict[str, Any]:
        """Return the gates that the evidence supports; {} where it supports none."""
        if not MODES[self.mode].answers.cuts or self.facts.kind not in ("table", "partitioned"):
            return {}
        found: dict[str, Any] = {}
        if (self.facts.rows_estimate or 0) >= CERTAIN_ROWS:
            found["row_count_min"] = 1
        key = self.facts.key
        if len(key) == 1 and _column(self.facts, key[0]).family in KEYS and (self.rows or 0) <= UNIQUE_ROWS:
            found["unique_columns"] = [key[0]]
        return found


def propose(facts: TableFacts, *, engine: EngineFacts) -> Proposal:
    """Choose the export of one table."""
    rows = rows_of(facts)
    refused = _refusal(facts)
    if refused:
        return Proposal(facts, refused=refused, rows=rows)
    cursors = cursor_candidates(facts, rows=rows)
    chunk_keys = _chunk_keys(facts)
    chosen = _Choosing(facts, rows, cursors, chunk_keys, engine).proposal()
    return Proposal(
        facts,
        mode=chosen.mode,
        keys=chosen.keys,
        reasons=chosen.reasons,
        caveats=(*chosen.caveats, *_caveats(facts)),
        rows=rows,
        cursors=cursors,
        chunk_keys=chunk_keys,
    )


def about_rows(rows: int | None) -> str:
    """Return how many rows there are: about 1,200 rows."""
    if rows is None:
        return "an unknown number of rows"
    return f"about {rows:,} {'row' if rows == 1 else 'rows'}" if rows else "no rows"


def rows_of(facts: TableFacts) -> int | None:
    """Estimate rows: by statistics, else by the size of the table; None when neither is known."""
    size = facts.bytes_estimate
    guessed = None if size is None else size // (ROW_OVERHEAD + COLUMN_BYTES * max(1, len(facts.columns)))
    counted = facts.rows_estimate
    if counted is None or (counted == 0 and (guessed or 0) > FULL_ROWS):  # 0 also means: nobody has counted
        return guessed
    return counted


def append_only(facts: TableFacts, rows: int | None) -> str:
    """Return why rows seem never to change once they are there; '' when they may."""
    names = ("inserts", "updates", "deletes")
    counted = [int(facts.facts[name]) for name in names if name in facts.facts]
    if len(counted) == 3 and any(counted):
        inserts, updates, deletes = counted
        # Far more inserts than rows: TRUNCATE, which no counter shows, took the others.
        is_told = not updates and not deletes and (rows or 0) / 2 <= inserts <= (rows or 0) * 1.5
        return f"the server counted {inserts:,} inserts, no update and no delete" if is_told else ""
    changing = [column.name for column in facts.columns if _may_change(column)]
    if changing or not LOGLIKE.fullmatch(snake(facts.name)):
        return ""
    return "by its name and columns it is a log, whose rows never change (check that)"


def _may_change(column: ColumnFacts) -> bool:
    name = snake(column.name)
    return bool(UPDATED.fullmatch(name) or CHANGING.fullmatch(name) or "on update" in column.note)


def _column(facts: TableFacts, name: str) -> ColumnFacts:
    return next(column for column in facts.columns if column.name == name)


def _refusal(facts: TableFacts) -> str:
    """Return why a table cannot be exported as it is; '' when it can."""
    if unreadable := facts.facts.get("unreadable"):
        return f"it cannot be read: {unreadable}"
    if not facts.columns:
        return "it has no columns"
    if unsupported := facts.facts.get("unsupported"):
        return f"no form of {unsupported} is known that loses nothing; export a query without"
    lower = Counter(column.name.lower() for column in facts.columns)
    same = [column.name for column in facts.columns if lower[column.name.lower()] > 1]
    if same:
        return (
            f"its columns {' and '.join(same)} differ only in case, which Spark and many readers cannot tell apart; "
            f"export a query that renames one with AS"
        )
    return ""


def _chunk_keys(facts: TableFacts) -> tuple[ChunkKey, ...]:
    """List the columns to cut by, best first."""
    found = []
    if len(facts.key) == 1 and _column(facts, facts.key[0]).family in KEYS:
        found.append(ChunkKey(facts.key[0], "keyset", "unique, NOT NULL and indexed: every page ends exactly"))
    for column in facts.columns:
        index = leading_index(facts, column.name)
        if column.family == "integer" and not column.nullable and index and column.name not in facts.key[1:]:
            found.append(ChunkKey(column.name, "range", f"whole numbers, NOT NULL, index {index} begins with it"))
    return tuple(found)


def _caveats(facts: TableFacts) -> tuple[str, ...]:
    """Return what a reader of this export has to know."""
    own = facts.facts
    found = []
    if not facts.key and facts.kind in ("table", "partitioned"):
        found.append("no primary key and no unique key without NULLs: rows cannot be told apart downstream")
    if own.get("inherits"):
        found.append(f"its rows are also rows of {own['inherits']}, which inherits them; export one of the two")
    if own.get("hidden"):
        found.append(f"this user may not read {own['hidden']}; the query leaves them out")
    if own.get("no_snapshots"):
        found.append(f"{own['no_snapshots']} tables obey no snapshot: rows written during the run may be there or not")
    return tuple(found)


@dataclass(frozen=True)
class _Choosing:
    """One table on its way to a proposal: the first rule that fits decides."""

    facts: TableFacts
    rows: int | None
    cursors: tuple[CursorCandidate, ...]
    chunk_keys: tuple[ChunkKey, ...]
    engine: EngineFacts

    def proposal(self) -> Proposal:
        if self.facts.facts.get("endless"):
            return self._incremental(self.cursors[0], "the stream has no end") if self.cursors else self._full()
        if self.facts.kind in ("view", "foreign") or self.facts.facts.get("hidden"):
            return self._full()
        if self.rows is not None and self.rows <= FULL_ROWS:
            return self._small()
        if self.facts.kind != "materialized_view":
            grown = self._by_change() or self._by_growth()
            if grown:
                return grown
        return self._in_chunks() or self._full()

    def _small(self) -> Proposal:
        about = about_rows(self.rows) if self.rows else "no rows, by the estimate"
        return Proposal(self.facts, reasons=(f"mode full: {about}, and up to {FULL_ROWS:,} a plain copy is quickest",))

    def _by_change(self) -> Proposal | None:
        """Follow changes by a stamp that the database itself moves."""
        for cursor in self.cursors:
            if cursor.role == "updated" and cursor.is_safe and cursor.is_kept and cursor.score >= GOOD:
                chosen = self._incremental(cursor, "the database itself moves it with every update")
                versions = "a changed row comes again, so keep the newest per key downstream; deletes are not seen"
                return Proposal(self.facts, chosen.mode, chosen.keys, chosen.reasons, (versions,))
        return None

    def _by_growth(self) -> Proposal | None:
        """Take what was added, where rows seem never to change."""
        evidence = append_only(self.facts, self.rows)
        if window := self._window(evidence):
            return window
        if not evidence:
            return None
        ways = [cursor for cursor in self.cursors if cursor.is_safe and cursor.score >= GOOD]
        by_key = next((c for c in ways if c.role == "key" and is_counted(_column(self.facts, c.column))), None)
        by_time = next((c for c in ways if c.role == "created"), None)
        chosen = by_key or by_time
        return self._incremental(chosen, evidence) if chosen else None

    def _window(self, evidence: str) -> Proposal | None:
        """Export the days of a table that is partitioned by time, unless old rows are known to change."""
        name, start = self.facts.facts.get("partitioned_by", ""), self.facts.facts.get("partitions_from", "")
        day = re.match(r"\d{4}-\d\d-\d\d", start)
        column = next((column for column in self.facts.columns if column.name == name), None)
        changes = int(self.facts.facts.get("updates", 0)) + int(self.facts.facts.get("deletes", 0))
        if column is None or column.family not in TIMES or column.nullable or day is None or (changes and not evidence):
            return None
        keys = {"time_column": name, "granularity": "day", "start": day[0], "days_window": 3}
        why = f"mode time_window by {name}: the table is partitioned by it, from {day[0]} on"
        history = f"history is a backfill: rivet run -e <name> --partition-range {day[0]}...<yesterday>"
        late = "days_window re-reads the last 3 days for late rows; a changed row of an older day is not seen"
        return Proposal(self.facts, "time_window", keys, (why, *filter(None, (evidence,))), (history, late))

    def _incremental(self, cursor: CursorCandidate, evidence: str) -> Proposal:
        why = f"mode incremental by {cursor.column} ({cursor.score} of 100 points): {evidence}"
        told = "; ".join(cursor.reasons)
        late = "late commits are awaited: a run ends below every open transaction that the server shows"
        column = _column(self.facts, cursor.column)
        clocks = "if application servers set it, not the database, add cursor_lag: 10m for clocks that are late"
        caveats = () if column.family == "integer" or CLOCK.search(column.note) else (clocks,)
        return Proposal(self.facts, "incremental", {"cursor_column": cursor.column}, (why, told, late), caveats)

    def _in_chunks(self) -> Proposal | None:
        """Copy the whole table in pieces, by the best key there is."""
        if not self.chunk_keys or (self.rows is None and self.chunk_keys[0].way == "range"):
            return None
        key = self.chunk_keys[0]
        about = about_rows(self.rows)
        why = f"mode chunked by {key.column}: {about}; {key.reason}"
        if key.way == "keyset":
            keys: dict[str, Any] = {"chunk_by_key": key.column, "chunk_size": chunk_rows(self.facts, self.rows)}
        else:  # a count, not a width: a sparse key would make more chunks than rows
            keys = {"chunk_column": key.column, "chunk_count": max(2, -(-(self.rows or 0) // FILE_ROWS))}
        keys |= {"chunk_checkpoint": True, "parallel": self._parallel()}
        return Proposal(self.facts, "chunked", keys, (why, f"{COPIES}{self._cheaper()}"))

    def _cheaper(self) -> str:
        """Name the incremental export that would do if the user knows more than the catalog."""
        best = next((c for c in self.cursors if c.role in ("updated", "created") and c.is_safe), None)
        if best is None:
            return ""
        proof = "every update moves it" if best.role == "updated" else "rows never change"
        return f"; cheaper, if {proof}: mode: incremental with cursor_column: {best.column}"

    def _full(self) -> Proposal:
        facts = self.facts
        if facts.kind == "view":
            caveat = "a view has no key and no statistics: it is read as one stream, and its query runs to the end"
            return Proposal(facts, reasons=(f"mode full: a view; {COPIES}",), caveats=(caveat,))
        if facts.kind == "foreign":
            caveat = "a foreign table is read from another server, in one stream, with that server's limits"
            return Proposal(facts, reasons=(f"mode full: a foreign table; {COPIES}",), caveats=(caveat,))
        about = about_rows(self.rows)
        if facts.facts.get("hidden"):
            return Proposal(facts, reasons=(f"mode full: {about}, by a query of the columns this user may read",))
        if self.engine.reads_blocks and self.rows is not None:
            keys = {"parallel": self._parallel()}
            return Proposal(facts, "full", keys, (f"mode full: {about}, no usable key; read by blocks, side by side",))
        caveat = "WARNING: no usable key, so one stream that begins anew when it breaks; a one-column key would help"
        return Proposal(
            facts, reasons=(f"mode full: {about}, and no key or indexed whole number to cut by",), caveats=(caveat,)
        )

    def _parallel(self) -> int:
        if self.rows is None or self.rows <= FULL_ROWS:
            return 1
        return 2 if self.rows < MANY_ROWS else 4


def chunk_rows(facts: TableFacts, rows: int | None) -> int:
    """Return the rows of a chunk: about ten files, of a million rows at most, fewer where rows are wide."""
    wanted = FILE_ROWS if rows is None else min(max(-(-rows // 10), FULL_ROWS), FILE_ROWS)
    width = (facts.bytes_estimate or 0) / rows if rows else 0
    fitting = int(CHUNK_BYTES / width) if width else wanted
    whole = max(10_000, min(wanted, fitting))
    step = int("1" + "0" * (len(str(whole)) - 2))  # two digits are enough
    return -(-whole // step) * step
