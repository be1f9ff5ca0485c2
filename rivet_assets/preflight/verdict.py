"""What the facts about one export mean for its source: verdict, profile, parallelism, and what would help. Pure.

Belongs here: the rules of `contract.md`, section 13.1, as tables. Not here: gathering the facts (`check.py`),
warnings beside the verdict (`findings.py`), wording of the whole (`report.py`).

Where we depart from 13.1, and why (2026-11):
* What counts is not whether a table has an index, but how often it is gone through. PostgreSQL's `full` reads heap
  blocks under one snapshot, and every engine walks a key in short pages: all rows are wanted and each is read once, so
  that is ACCEPTABLE at any size, with or without an index. An unindexed cursor goes through the whole table once a
  run, an unindexed chunk or time column once a chunk or window: those hurt.
* A planner that declines an index counts as no index, where each statement asks for a small part of a large table.
* "Row width known and predicted memory in budget" does not turn UNSAFE into DEGRADED: pages bound our memory whatever
  the table, and a scan costs the server the same. Memory has a finding of its own.
* `full` gains from `parallel` too: its blocks and key ranges are read side by side.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from rivet_assets.modes.registry import MODES
from rivet_resources.contracts.engine_facts import EngineFacts
from rivet_resources.contracts.evidence import Explained
from rivet_resources.contracts.mode_facts import ModeFacts
from rivet_resources.contracts.settings import Pace

Verdict = Literal["EFFICIENT", "ACCEPTABLE", "DEGRADED", "UNSAFE"]
VERDICTS: tuple[Verdict, ...] = ("EFFICIENT", "ACCEPTABLE", "DEGRADED", "UNSAFE")  # from best to worst
# range: an index leads to just the rows a chunk, window or run asks for. pages: all rows are wanted, and come in short
# statements. stream: all rows, by one long statement. once: part of the rows, for which each run goes through the
# table. each: so does every chunk or window.
Access = Literal["range", "pages", "stream", "once", "each"]

MILLION = 1_000_000
SMALL_ROWS = 100_000  # a scan of fewer is nothing
# A table without statistics has at most so many rows, told by its size: a row takes at least so many bytes.
LEAST_ROW_BYTES = 32
# From so many pieces on, a planner that scans for one of them scans too often.
MANY_PIECES = 8


@dataclass(frozen=True)
class VerdictFacts:
    """What is known of one export before a row is read. None: unknown."""

    export: str
    mode: str
    engine: EngineFacts
    strategy: str  # as the mode writes it
    relation: str  # quoted, ready to stand after ON; '' for a query
    pace: Pace
    rows: int | None = None
    size_bytes: int | None = None
    row_bytes: int = 0  # of one row in memory, estimated from the types
    parts: int = 1  # leaves of a partitioned table
    column: str = ""  # decides which rows a chunk, window or run reads; '' where all are wanted
    is_indexed: bool = False  # an index begins with `column`
    is_nullable: bool = False  # `column` is
    index_columns: tuple[str, ...] = ()  # quoted: what an index that would help begins with; () where none would
    index_name: str = ""  # quoted: how it may be called
    key: tuple[str, ...] = ()
    reader: str = ""  # blocks, keyset, cursor; '' where nothing is to be read
    chunks: int = 1  # 0: nobody knows how many without a scan
    narrows: bool = False  # the explained statement asks for a part of the rows
    explained: Explained | None = None
    parallel: int = 1
    connections: int | None = None
    connections_limit: int | None = None
    own_limit: int | None = None  # `max_connections` of the source's block

    @property
    def answers(self) -> ModeFacts:
        """Return what its mode is like."""
        return MODES[self.mode].answers


@dataclass(frozen=True)
class Advice:
    """A setting to choose, and why."""

    value: str
    reason: str


@dataclass(frozen=True)
class Judgement:
    """What the facts mean."""

    verdict: Verdict
    access: Access
    reasons: tuple[str, ...]
    suggestions: tuple[str, ...]
    profile: Advice
    parallel: Advice


@dataclass(frozen=True)
class VerdictRule:
    """A row of the verdict's table: holds up to so many rows, both ends included; None: whatever their number."""

    at_most: int | None
    verdict: Verdict


# The first rule that holds. `contract.md`, 13.1, as changed above.
RULES: Mapping[Access, Sequence[VerdictRule]] = {
    "range": (VerdictRule(10 * MILLION, "EFFICIENT"), VerdictRule(None, "ACCEPTABLE")),
    "pages": (VerdictRule(None, "ACCEPTABLE"),),
    "stream": (
        VerdictRule(SMALL_ROWS - 1, "ACCEPTABLE"),
        VerdictRule(MILLION, "DEGRADED"),
        VerdictRule(None, "UNSAFE"),
    ),
    "once": (
        VerdictRule(SMALL_ROWS - 1, "ACCEPTABLE"),
        VerdictRule(50 * MILLION, "DEGRADED"),
        VerdictRule(None, "UNSAFE"),
    ),
    "each": (VerdictRule(SMALL_ROWS - 1, "ACCEPTABLE"), VerdictRule(MILLION, "DEGRADED"), VerdictRule(None, "UNSAFE")),
}
SAID: Mapping[Access, str] = {
    "range": "an index on {column} finds the rows of each statement",
    "pages": "every row is wanted, and each is read once, in short pages",
    "stream": "without a unique key it is read by one long statement, which statement_timeout_s covers as a whole",
    "once": "{lack}, so every run goes through the whole table",
    "each": "{lack}, so every chunk or window goes through the whole table",
}


def judge(facts: VerdictFacts) -> Judgement:
    """Judge one export; see the table RULES."""
    access, doubt = access_of(facts)
    verdict = verdict_of(access, rows_at_most(facts))
    lack = doubt or f"no index begins with {facts.column}"
    if not facts.relation:
        lack = f"the planner takes no index for {facts.column}"
    reasons: tuple[str, ...] = (SAID[access].format(column=facts.column, lack=lack),)
    if facts.explained is not None and facts.explained.sorts and (rows_at_most(facts) or SMALL_ROWS) >= SMALL_ROWS:
        reasons += ("all rows of a chunk are sorted before the first comes back",)
    reasons += (_rows_told(facts),)
    return Judgement(
        verdict,
        access,
        reasons,
        tuple(suggestions(facts, access, verdict, doubt=doubt)) if verdict in ("DEGRADED", "UNSAFE") else (),
        profile_advice(facts, access),
        parallel_advice(facts, access),
    )


def worst(verdicts: Sequence[Verdict]) -> Verdict:
    """Return the worst of some verdicts."""
    return max(verdicts, key=VERDICTS.index)


def verdict_of(access: Access, rows: int | None) -> Verdict:
    """Look a verdict up; an unknown number of rows satisfies no limit."""
    return next(
        rule.verdict for rule in RULES[access] if rule.at_most is None or (rows is not None and rows <= rule.at_most)
    )


def rows_at_most(facts: VerdictFacts) -> int | None:
    """Return the rows as estimated; of a table without statistics, the most that its size allows."""
    if facts.rows is not None or facts.size_bytes is None:
        return facts.rows
    # An upper bound serves: what is harmless at most is harmless, and the text says that statistics are missing.
    return facts.size_bytes // LEAST_ROW_BYTES


def access_of(facts: VerdictFacts) -> tuple[Access, str]:
    """Return how the table is gone through, and why an index that is there does not help; '' when it does."""
    if not facts.reader:
        return "pages", ""
    if not facts.column:
        return ("stream" if facts.reader == "cursor" and not facts.engine.pages_cursors else "pages"), ""
    seen = facts.explained
    large = (rows_at_most(facts) or SMALL_ROWS) >= SMALL_ROWS
    if facts.is_indexed:
        # A planner that declines an index counts as no index, but only where each statement asks for a small part of a
        # large table: of a half of it a scan is the better way, and of a small one it costs nothing.
        is_small_part = facts.narrows and (not facts.answers.by_ranges or not 1 <= facts.chunks <= MANY_PIECES)
        if seen is not None and seen.scan == "scan" and is_small_part and large:
            return _access_without_index(facts), f"an index begins with {facts.column}, but the planner does not use it"
        return "range", ""
    # Of a query the catalog tells no index; what the planner takes is the only word on it.
    if not facts.relation and seen is not None and seen.scan == "index" and facts.narrows:
        return "range", ""
    return _access_without_index(facts), ""


def _access_without_index(facts: VerdictFacts) -> Access:
    # An unindexed cursor goes through the whole table once a run, an unindexed chunk or time column once a chunk or
    # window: that is what counts, not whether there is an index.
    is_once = facts.answers.keeps_cursor or (facts.answers.by_ranges and facts.chunks == 1)
    return "once" if is_once else "each"


def _rows_told(facts: VerdictFacts) -> str:
    if facts.rows is not None:
        return f"about {facts.rows:,} rows"
    most = rows_at_most(facts)
    if most is not None:
        return f"no statistics; at most {most:,} rows by its size (run ANALYZE)"
    return "the number of rows is unknown"


# --- what would help -----------------------------------------------------------------------------


def create_index(facts: VerdictFacts) -> str:
    """Write the statement that makes the index an export lacks; '' where there is none to make."""
    if not facts.relation or not facts.index_columns:
        return ""
    engine = facts.engine
    # PostgreSQL takes no CREATE INDEX CONCURRENTLY on a partitioned table.
    pattern = (engine.create_partitioned_index if facts.parts > 1 else "") or engine.create_index
    return pattern.format(name=facts.index_name, relation=facts.relation, columns=", ".join(facts.index_columns))


def suggestions(facts: VerdictFacts, access: Access, verdict: Verdict, *, doubt: str) -> list[str]:
    """List what to run or to write, best first."""
    found = []
    if doubt:
        found.append(facts.engine.analyze.format(relation=facts.relation))
    elif access in ("once", "each"):
        found.append(create_index(facts))
    if access == "each" and facts.answers.by_ranges:
        if facts.key:
            found.append(f"chunk_column: {facts.key[0]}  # the key has an index")
        found.append("mode: full  # goes through the table once, in pages")
    if access == "once":
        found.append("mode: full  # costs the source the same, and needs no cursor, while there is no index")
    if access == "stream":
        found.append("Give the table a primary key, or a UNIQUE index over NOT NULL columns: it is then read in pages.")
        found.append("tuning: {statement_timeout_s: 0}  # or the one statement is cut off")
    if verdict == "UNSAFE" and facts.pace.profile != "safe":
        found.append("tuning: {profile: safe}")
    return [each for each in found if each]


# --- advice --------------------------------------------------------------------------------------


def profile_advice(facts: VerdictFacts, access: Access) -> Advice:
    """Recommend a profile (`contract.md`, 13.1)."""
    rows = rows_at_most(facts)
    told = "an unknown number of rows" if rows is None else f"{rows:,} rows"
    if access in ("range", "pages"):
        value = "balanced" if rows is None else _first_fit(rows, ((MILLION, "fast"), (10 * MILLION, "balanced")))
        return Advice(value, f"{told}, read without going through more than is wanted")
    if rows is not None and rows <= SMALL_ROWS and facts.parallel > 1:
        return Advice("safe", f"{told}, of which {facts.parallel} tasks each go through more than they want")
    value = "safe" if rows is None else _first_fit(rows, ((MILLION, "balanced"),))
    return Advice(value, f"{told}, gone through for more than is wanted")


def parallel_advice(facts: VerdictFacts, access: Access) -> Advice:
    """Recommend `parallel` (`contract.md`, 13.1), never more than the source has connections for."""
    value, reason = _parallel(facts, access)
    free = free_connections(facts)
    if free is not None and value > max(1, free):
        return Advice(str(max(1, free)), f"the source has {free} connections to spare")
    return Advice(str(value), reason)


def _parallel(facts: VerdictFacts, access: Access) -> tuple[int, str]:
    rows = rows_at_most(facts)
    if not facts.answers.cuts or access == "stream":
        return 1, f"mode {facts.mode} reads one chunk" if access != "stream" else "one statement is one task"
    if rows is None:
        return 1, "the number of rows is unknown"
    if rows < 50_000:
        return 1, f"{rows:,} rows are read before a second task has begun"
    if access in ("once", "each"):
        return (1, "each task would scan all of it") if rows > 5 * MILLION else (2, "each task scans all of it")
    return (2, f"{rows:,} rows") if rows < 500_000 else (4, f"{rows:,} rows in pieces that do not touch each other")


def free_connections(facts: VerdictFacts) -> int | None:
    """Return how many connections tasks may take: three are left to people, as PostgreSQL reserves; None: unknown."""
    free = None
    # 0: no limit of its own.
    if facts.connections is not None and facts.connections_limit:
        free = facts.connections_limit - facts.connections - 3
    known = [each for each in (free, facts.own_limit) if each is not None]
    return min(known) if known else None


def _first_fit(rows: int, limits: Sequence[tuple[int, str]]) -> str:
    return next((value for limit, value in limits if rows <= limit), "safe")
