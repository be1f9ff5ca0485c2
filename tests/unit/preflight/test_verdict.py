"""What facts about an export mean: the verdict's table, what helps, advice, and every warning; no source is asked."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest

from rivet_assets.preflight.findings import RULES as WARNINGS
from rivet_assets.preflight.findings import PreflightPlan, findings
from rivet_assets.preflight.verdict import (
    RULES,
    VERDICTS,
    Access,
    VerdictFacts,
    access_of,
    judge,
    verdict_of,
    worst,
)
from rivet_resources.contracts.evidence import Explained
from rivet_resources.contracts.settings import pace
from rivet_resources.registry import ENGINES

MILLION = 1_000_000
SCAN, INDEX = Explained("SELECT 1", "scan"), Explained("SELECT 1", "index", index="orders_at")
FULL = VerdictFacts(
    "orders", "full", ENGINES["postgres"].facts, "full(blocks)", '"public"."orders"', pace(None, None), reader="blocks"
)
LATE = replace(
    FULL, mode="incremental", column="at", index_columns=('"at"', '"id"'), index_name='"rivet_orders_at"', rows=MILLION
)
SERVED = replace(LATE, is_indexed=True, reader="cursor")
CHUNKED = replace(LATE, mode="chunked", column="id", chunks=20, reader="cursor", key=("key",), narrows=True)


def facts_for(access: Access, rows: int | None) -> VerdictFacts:
    """Make facts that are gone through in this way."""
    found = {
        "range": SERVED,
        "pages": FULL,
        "stream": replace(FULL, engine=ENGINES["mysql"].facts, reader="cursor"),
        "once": LATE,
        "each": CHUNKED,
    }[access]
    return replace(found, rows=rows)


# Rows either side of every limit of the table, written out a second time and by hand.
CASES = [
    ("range", 0, "EFFICIENT"),
    ("range", 10 * MILLION, "EFFICIENT"),
    ("range", 10 * MILLION + 1, "ACCEPTABLE"),
    ("range", None, "ACCEPTABLE"),
    ("pages", 0, "ACCEPTABLE"),
    ("pages", 10_000 * MILLION, "ACCEPTABLE"),
    ("pages", None, "ACCEPTABLE"),
    ("stream", 99_999, "ACCEPTABLE"),
    ("stream", 100_000, "DEGRADED"),
    ("stream", MILLION, "DEGRADED"),
    ("stream", MILLION + 1, "UNSAFE"),
    ("stream", None, "UNSAFE"),
    ("once", 99_999, "ACCEPTABLE"),
    ("once", 100_000, "DEGRADED"),
    ("once", 50 * MILLION, "DEGRADED"),
    ("once", 50 * MILLION + 1, "UNSAFE"),
    ("once", None, "UNSAFE"),
    ("each", 99_999, "ACCEPTABLE"),
    ("each", 100_000, "DEGRADED"),
    ("each", MILLION, "DEGRADED"),
    ("each", MILLION + 1, "UNSAFE"),
    ("each", None, "UNSAFE"),
]


@pytest.mark.parametrize(("access", "rows", "verdict"), CASES)
def test_verdict_follows_from_access_and_rows(access, rows, verdict):
    """Both sides of every limit."""
    judged = judge(facts_for(access, rows))

    assert (access, verdict) == (judged.access, judged.verdict)


def test_verdict_table_is_complete():
    """Every way through a table has rules, the last holds whatever the rows, and every rule has a case above."""
    assert set(get_args(Access)) == set(RULES)
    assert all(rules[-1].at_most is None for rules in RULES.values())
    limits = {(access, rule.at_most) for access, rules in RULES.items() for rule in rules}
    assert limits - {(access, None) for access in RULES} <= {(access, rows) for access, rows, _ in CASES}
    assert {verdict for _, _, verdict in CASES} == set(VERDICTS)


@pytest.mark.parametrize("access", get_args(Access))
def test_more_rows_never_make_a_better_verdict(access):
    """And an unknown number is as bad as any."""
    found = [VERDICTS.index(verdict_of(access, rows)) for rows in (0, 10**5, 10**6, 10**7, 10**8, 10**9, None)]

    assert sorted(found) == found


def test_worst_of_several_decides():
    """Of a drain's tables."""
    assert "DEGRADED" == worst(["EFFICIENT", "DEGRADED", "ACCEPTABLE"])


# --- how a table is gone through -----------------------------------------------------------------

THROUGH = {
    "full reads blocks, with no index at all": (FULL, "pages"),
    "an index on the cursor": (SERVED, "range"),
    "a cursor without index": (LATE, "once"),
    "chunks without index": (CHUNKED, "each"),
    "a single chunk without index": (replace(CHUNKED, chunks=1), "once"),
    "chunks nobody can count": (replace(CHUNKED, chunks=0), "each"),
    "windows without index": (replace(LATE, mode="time_window", chunks=1), "each"),
    "MySQL without key": (replace(FULL, engine=ENGINES["mysql"].facts, reader="cursor"), "stream"),
    "a query's cursor on PostgreSQL": (replace(FULL, relation="", reader="cursor"), "pages"),
    "an empty table": (replace(CHUNKED, reader=""), "pages"),
    "a query whose plan takes an index": (replace(LATE, relation="", narrows=True, explained=INDEX), "range"),
    "a query whose plan scans": (replace(LATE, relation="", narrows=True, explained=SCAN), "once"),
    "a planner that declines the index": (replace(SERVED, narrows=True, explained=SCAN), "once"),
    "a first run, which wants all rows": (replace(SERVED, narrows=False, explained=SCAN), "range"),
    "a small table, which is scanned faster": (replace(SERVED, rows=500, narrows=True, explained=SCAN), "range"),
    "few chunks, each a large part": (replace(CHUNKED, is_indexed=True, chunks=4, explained=SCAN), "range"),
    "many chunks, each scanned": (replace(CHUNKED, is_indexed=True, explained=SCAN), "each"),
}


@pytest.mark.parametrize(("facts", "access"), THROUGH.values(), ids=THROUGH)
def test_access_follows_from_index_reader_and_plan(facts, access):
    """The catalog tells of tables, the planner of queries; it may overrule the catalog."""
    assert access == access_of(facts)[0]


def test_table_without_statistics_is_judged_by_its_size():
    """8 MB hold at most 262,144 rows, so a scan of them cannot be UNSAFE."""
    judged = judge(replace(LATE, rows=None, size_bytes=8 << 20))

    assert "DEGRADED" == judged.verdict
    assert "at most 262,144 rows" in " ".join(judged.reasons)


# --- what helps ----------------------------------------------------------------------------------


def test_missing_index_is_suggested_ready_to_paste():
    """With the key behind the cursor, without stopping writers."""
    judged = judge(replace(LATE, rows=10 * MILLION))

    assert 'CREATE INDEX CONCURRENTLY ON "public"."orders" ("at", "id");' == judged.suggestions[0]


def test_index_of_a_partitioned_table_is_not_built_concurrently():
    """PostgreSQL refuses that."""
    judged = judge(replace(LATE, rows=10 * MILLION, parts=3))

    assert 'CREATE INDEX ON "public"."orders" ("at", "id");' == judged.suggestions[0]


@pytest.mark.parametrize("engine", [word for word, made in ENGINES.items() if made.facts.create_index])
def test_every_engine_has_its_own_words_for_an_index(engine):
    """Table and columns as they were quoted by the source."""
    suggested = judge(replace(LATE, engine=ENGINES[engine].facts, rows=10 * MILLION)).suggestions[0]

    assert suggested.startswith("CREATE INDEX")
    assert '"public"."orders" ("at", "id")' in suggested


def test_index_that_is_declined_is_not_suggested_again():
    """Statistics are what may be wrong."""
    judged = judge(replace(SERVED, rows=20 * MILLION, narrows=True, explained=SCAN))

    assert "DEGRADED" == judged.verdict
    assert 'ANALYZE "public"."orders";' == judged.suggestions[0]


@pytest.mark.parametrize("access", ["stream", "once", "each"])
def test_bad_verdict_always_comes_with_something_to_do(access):
    """Good ones need nothing."""
    assert judge(facts_for(access, 10**9)).suggestions
    assert () == judge(facts_for(access, 10)).suggestions


# --- advice --------------------------------------------------------------------------------------

PROFILES = [
    (SERVED, MILLION, "fast"),
    (SERVED, MILLION + 1, "balanced"),
    (SERVED, 10 * MILLION + 1, "safe"),
    (SERVED, None, "balanced"),
    (LATE, 100_000, "balanced"),
    (replace(LATE, parallel=2), 100_000, "safe"),
    (LATE, MILLION, "balanced"),
    (LATE, MILLION + 1, "safe"),
    (LATE, None, "safe"),
]


@pytest.mark.parametrize(("facts", "rows", "profile"), PROFILES)
def test_profile_follows_from_access_and_rows(facts, rows, profile):
    """As in the contract."""
    assert profile == judge(replace(facts, rows=rows)).profile.value


PARALLEL = [
    (SERVED, 10 * MILLION, "1"),
    (FULL, 49_999, "1"),
    (FULL, 50_000, "2"),
    (FULL, 500_000, "4"),
    (FULL, None, "1"),
    (CHUNKED, MILLION, "2"),
    (CHUNKED, 5 * MILLION + 1, "1"),
    (replace(CHUNKED, is_indexed=True), 5 * MILLION, "4"),
    (replace(FULL, connections=94, connections_limit=100), MILLION, "3"),
    (replace(FULL, connections=100, connections_limit=100), MILLION, "1"),
    (replace(FULL, connections=100, connections_limit=0), MILLION, "4"),  # SQL Server's word for no limit
    (replace(FULL, own_limit=2), MILLION, "2"),
    (replace(FULL, engine=ENGINES["mysql"].facts, reader="cursor"), MILLION, "1"),
]


@pytest.mark.parametrize(("facts", "rows", "tasks"), PARALLEL)
def test_parallel_follows_from_rows_and_free_connections(facts, rows, tasks):
    """Always with a reason."""
    advised = judge(replace(facts, rows=rows)).parallel

    assert tasks == advised.value
    assert advised.reason


# --- warnings ------------------------------------------------------------------------------------

QUIET = PreflightPlan(replace(SERVED, rows=1000), "range")
BIG = replace(CHUNKED, is_indexed=True, rows=5 * MILLION, size_bytes=1 << 30)
WARNED = {
    "connections": PreflightPlan(replace(FULL, parallel=8, connections=92, connections_limit=100), "pages"),
    "parallel-memory": PreflightPlan(replace(FULL, parallel=5), "pages"),
    "wide-rows": PreflightPlan(replace(FULL, row_bytes=100_000), "pages", batch_rows=10_000),
    "statement-timeout": PreflightPlan(replace(FULL, reader="cursor", size_bytes=30 << 30), "stream"),
    "sparse-key": PreflightPlan(BIG, "range", widest=10**9, has_checkpoint=True),
    "wide-window": PreflightPlan(replace(BIG, size_bytes=100 << 30), "range", has_checkpoint=True),
    "resume-no-checkpoint": PreflightPlan(BIG, "range"),
    "late-null-cursors": PreflightPlan(replace(QUIET.facts, is_nullable=True), "range"),
    "null-times": PreflightPlan(replace(QUIET.facts, mode="time_window", is_nullable=True), "range"),
    "null-keys": PreflightPlan(replace(BIG, rows=10, is_nullable=True), "range"),
    "sort": PreflightPlan(replace(SERVED, explained=replace(SCAN, sorts=True)), "range"),
    "quality-unique-no-cap": PreflightPlan(replace(FULL, rows=20 * MILLION), "pages", unique_columns=("id",)),
    "dense-surrogate": PreflightPlan(BIG, "range", is_dense=True, has_checkpoint=True),
    "stdout-manifest-phantom": replace(QUIET, is_stdout=True),
}
SILENT = {
    "connections": PreflightPlan(replace(FULL, parallel=5, connections=92, connections_limit=100), "pages"),
    "parallel-memory": PreflightPlan(replace(FULL, parallel=4), "pages"),
    "wide-rows": PreflightPlan(replace(FULL, row_bytes=100), "pages", batch_rows=10_000),
    "statement-timeout": PreflightPlan(replace(LATE, size_bytes=30 << 30), "once"),  # blocks: short pages
    "sparse-key": PreflightPlan(BIG, "range", widest=6 * MILLION),
    "wide-window": PreflightPlan(BIG, "range"),
    "resume-no-checkpoint": PreflightPlan(BIG, "range", has_checkpoint=True),
    "late-null-cursors": PreflightPlan(replace(QUIET.facts, is_nullable=True), "range", has_fallback=True),
    "null-times": PreflightPlan(replace(QUIET.facts, mode="time_window"), "range"),
    "null-keys": PreflightPlan(BIG, "range"),
    "sort": PreflightPlan(replace(SERVED, rows=1000, explained=replace(SCAN, sorts=True)), "range"),
    "quality-unique-no-cap": PreflightPlan(replace(FULL, rows=MILLION), "pages", unique_columns=("id",)),
    "dense-surrogate": PreflightPlan(BIG, "range"),
    "stdout-manifest-phantom": PreflightPlan(FULL, "pages", is_stdout=True),
}


@pytest.mark.parametrize("name", WARNED)
def test_warning_is_given_where_it_holds_and_only_there(name):
    """One plan that has the fault, one that is nearly like it and has not; every text says what is wrong."""
    given = {found.name: found for found in findings(WARNED[name])}

    assert name in given
    assert ("warn", True) == (given[name].status, bool(given[name].text))
    assert name not in {found.name for found in findings(SILENT[name])}


def test_every_rule_of_warnings_has_a_case():
    """A rule that no plan sets off would be no rule."""
    silent = [rule.__name__ for rule in WARNINGS if not any(list(rule(plan)) for plan in WARNED.values())]

    assert [] == silent
    assert WARNED.keys() == SILENT.keys()


def test_cap_of_the_source_is_a_connection_limit_too():
    """It is the user's own, and the text says so."""
    (found,) = findings(PreflightPlan(replace(FULL, parallel=4, own_limit=2), "pages"))

    assert ("connections", "parallel: 2") == (found.name, found.fix)
    assert "max_connections of its source is 2" in found.text


def test_plain_export_is_warned_of_nothing():
    """Findings are not noise."""
    assert () == findings(QUIET)
