"""What to be warned of before a run, beside the verdict: memory, connections, keys, cursors, checkpoints. Pure.

Belongs here: one function per warning of `contract.md`, section 13.1, and the plan rules that are no faults of the
file. Not here: the verdict (`verdict.py`), faults (`config/load.py`), what a change log demands (`doctor/examine.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from rivet_assets.preflight.verdict import MILLION, SMALL_ROWS, Access, VerdictFacts, free_connections, rows_at_most
from rivet_resources.contracts.evidence import Finding

MIB = 1024 * 1024
# `engine.md`, section 9, measured: a task is planned with so much, and the budget of the original is 2 GB.
TASK_MB, BUDGET_MB = 450, 2048
PAGE_MB = 32  # of Arrow, the most a page aims at; twice while it is decoded
WINDOW_MB = 256  # of the source, in one chunk
SPARSE_DENSITY, SPARSE_CHUNKS = 0.1, 10
# Assumed of a disk that others use too; says when a timeout is worth a thought.
SCANNED_PER_SECOND = 100 * MIB
UNIQUE_ROWS = 10 * MILLION


@dataclass(frozen=True)
class PreflightPlan:
    """What the export's own block says, and what its plan came to, as far as warnings need it."""

    facts: VerdictFacts
    access: Access
    widest: int | None = None  # whole numbers between the smallest and the largest key; None: not numbers, or unknown
    batch_rows: int | None = None  # the user's own `batch_size`
    has_checkpoint: bool = False  # finished chunks outlive a run that dies
    is_dense: bool = False  # chunk_dense
    has_fallback: bool = False  # of the cursor
    fails_on_nulls: bool = False
    unique_columns: tuple[str, ...] = ()
    is_stdout: bool = False


Warn = Callable[[PreflightPlan], Iterator[Finding]]


def findings(plan: PreflightPlan) -> tuple[Finding, ...]:
    """List what to be warned of, the gravest first."""
    return tuple(found for rule in RULES for found in rule(plan))


def _warn(name: str, text: str, fix: str = "") -> Finding:
    return Finding(name, "warn", text, fix)


# --- high ----------------------------------------------------------------------------------------


def connections(plan: PreflightPlan) -> Iterator[Finding]:
    """Warn of tasks that would take the last connections."""
    facts, free = plan.facts, free_connections(plan.facts)
    if free is None or facts.parallel <= free:
        return
    why = f"{facts.connections} of {facts.connections_limit} connections are in use, three of them kept for people"
    if facts.own_limit is not None and free == facts.own_limit:
        why = f"max_connections of its source is {facts.own_limit}, so tasks wait for each other"
    yield _warn("connections", f"parallel is {facts.parallel}, and {why}", f"parallel: {max(1, free)}")


def memory(plan: PreflightPlan) -> Iterator[Finding]:
    """Warn of pages and tasks that would not fit together, and of rows so wide that a page of them would not."""
    facts = plan.facts
    page_mb = (plan.batch_rows or 0) * facts.row_bytes / MIB
    each_mb = TASK_MB + max(0.0, 2 * (page_mb - PAGE_MB))
    if facts.parallel > 1 and facts.parallel * each_mb > BUDGET_MB:
        yield _warn(
            "parallel-memory",
            f"{facts.parallel} tasks of about {each_mb:.0f} MB each come to {facts.parallel * each_mb:.0f} MB; "
            f"{BUDGET_MB} MB are reckoned with",
            f"parallel: {max(1, int(BUDGET_MB // each_mb))}",
        )
    if page_mb > WINDOW_MB:
        yield _warn(
            "wide-rows",
            f"batch_size {plan.batch_rows} × about {facts.row_bytes:,} bytes a row is {page_mb:.0f} MB a page",
            f"tuning: {{batch_size_memory_mb: {PAGE_MB}}}  # instead of batch_size",
        )


def statement_timeout(plan: PreflightPlan) -> Iterator[Finding]:
    """Warn of a statement that may have to go through more than its timeout allows."""
    facts = plan.facts
    limit = facts.pace.statement_timeout_s
    is_long = plan.access == "stream" or (plan.access in ("once", "each") and facts.reader != "blocks")
    if not limit or not is_long or facts.size_bytes is None:
        return
    seconds = facts.size_bytes / SCANNED_PER_SECOND
    if seconds > limit / 2:
        yield _warn(
            "statement-timeout",
            f"one statement may go through {facts.size_bytes // MIB:,} MB, about {seconds:.0f} s at 100 MB/s, and "
            f"statement_timeout_s is {limit}",
            f"tuning: {{statement_timeout_s: {int(seconds * 3)}}}",
        )


# --- medium --------------------------------------------------------------------------------------


def sparse_key(plan: PreflightPlan) -> Iterator[Finding]:
    """Warn of ranges of a key most of which would be empty."""
    facts, width = plan.facts, plan.widest
    if not facts.answers.by_ranges or plan.is_dense or not facts.rows or not width or facts.chunks <= SPARSE_CHUNKS:
        return
    density = facts.rows / width
    if density < SPARSE_DENSITY:
        yield _warn(
            "sparse-key",
            f"{facts.column} has {density:.1%} of the values between its ends, so most of {facts.chunks} chunks are "
            f"nearly empty",
            "chunk_dense: true  # or a larger chunk_size, or chunk_by_key",
        )


def wide_window(plan: PreflightPlan) -> Iterator[Finding]:
    """Warn of chunks so large that one that fails costs much."""
    facts = plan.facts
    if not facts.answers.by_ranges or facts.size_bytes is None or facts.chunks < 1:
        return
    each_mb = facts.size_bytes / facts.chunks / MIB
    if each_mb > WINDOW_MB:
        yield _warn(
            "wide-window",
            f"each of {facts.chunks} chunks reads about {each_mb:,.0f} MB",
            f"chunk_count: {-(-facts.size_bytes // (128 * MIB))}  # about 128 MB each",
        )


def no_checkpoint(plan: PreflightPlan) -> Iterator[Finding]:
    """Warn of a long chunked run that would begin anew when it dies (plan rule resume-no-checkpoint)."""
    rows = rows_at_most(plan.facts)
    if plan.facts.answers.by_ranges and not plan.has_checkpoint and rows is not None and rows >= SMALL_ROWS:
        yield _warn("resume-no-checkpoint", f"a run of {rows:,} rows that dies begins anew", "chunk_checkpoint: true")


def nullable(plan: PreflightPlan) -> Iterator[Finding]:
    """Warn of NULLs in the column that decides: what becomes of such rows differs by mode."""
    facts = plan.facts
    if not facts.is_nullable:
        return
    if facts.answers.keeps_boundary and not plan.has_fallback and not plan.fails_on_nulls:
        yield _warn(
            "late-null-cursors",
            f"{facts.column} may be NULL: only the first run exports such rows, later ones never",
            "incremental_cursor_mode: coalesce, with a cursor_fallback_column that is NOT NULL",
        )
    if facts.answers.has_windows:
        yield _warn("null-times", f"{facts.column} may be NULL: such rows belong to no window", "")
    if facts.answers.refuses_nulls:
        yield _warn("null-keys", f"{facts.column} may be NULL: one such row refuses the run", "")


def sorting(plan: PreflightPlan) -> Iterator[Finding]:
    """Warn of a statement that sorts a large table before it answers."""
    facts, rows = plan.facts, rows_at_most(plan.facts)
    if facts.explained is not None and facts.explained.sorts and rows is not None and rows >= MILLION:
        yield _warn(
            "sort", f"the planner sorts up to {rows:,} rows before the first page, on disk if they do not fit", ""
        )


def unique_cost(plan: PreflightPlan) -> Iterator[Finding]:
    """Warn of an exact test of uniqueness over very many rows (plan rule quality-unique-no-cap)."""
    rows = rows_at_most(plan.facts)
    if plan.unique_columns and rows is not None and rows > UNIQUE_ROWS:
        yield _warn(
            "quality-unique-no-cap",
            f"unique_columns {', '.join(plan.unique_columns)} keeps a hash of each of {rows:,} cells until the end",
            "Leave it to a UNIQUE index of the source, or to a check of the mirror.",
        )


# --- low -----------------------------------------------------------------------------------------


def dense_surrogate(plan: PreflightPlan) -> Iterator[Finding]:
    """Warn of chunks by row number: the whole key is counted and walked before the first row is read."""
    if plan.is_dense:
        yield _warn(
            "dense-surrogate",
            f"chunk_dense counts and walks all of {plan.facts.column} before the first row is read",
            "chunk_by_key pages along the key without that",
        )


def stdout_cursor(plan: PreflightPlan) -> Iterator[Finding]:
    """Warn of a cursor that moves although nobody can prove the rows arrived (plan rule stdout-manifest-phantom)."""
    if plan.is_stdout and plan.facts.answers.keeps_cursor:
        yield _warn(
            "stdout-manifest-phantom",
            "stdout keeps no manifest: the cursor moves on once the rows are written, whether or not anybody kept them",
            "",
        )


# Plan rules `stdout-no-split`, `stdout-no-chunked` and `stdout-no-keyset` are faults of the configuration here
# (RIVET_CONFIG_STDOUT_SPLIT, RIVET_CONFIG_STDOUT_CHUNKED), and `quality-chunked-partial` cannot happen: quality judges
# the whole window.
RULES: Sequence[Warn] = (
    connections,
    memory,
    statement_timeout,
    sparse_key,
    wide_window,
    no_checkpoint,
    nullable,
    sorting,
    unique_cost,
    dense_surrogate,
    stdout_cursor,
)
