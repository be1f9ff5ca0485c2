"""Priorities, gates, the sealed file, who runs beside whom, and waves written into a YAML: all without a source."""

from __future__ import annotations

import copy
import json
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from rivet_assets.config.load import load_config
from rivet_assets.dagster.export_asset import build_export_asset
from rivet_assets.plan import artefact as plan_artefact
from rivet_assets.plan.annotate_waves import annotate, with_waves
from rivet_assets.plan.artefact import (
    Computed,
    Diagnostics,
    PlanArtefact,
    PlanEntry,
    PlannedWindow,
    PlanUnusable,
    Prioritization,
)
from rivet_assets.plan.fingerprint import collect_hidden, export_fingerprint, redact
from rivet_assets.plan.priority import (
    COSTS,
    POINTS,
    PriorityFacts,
    RunHistory,
    Standing,
    age_gates,
    cost_of,
    cursor_worth,
    is_narrow,
    prioritise,
    world_gates,
)
from rivet_assets.plan.report import metadata, render
from rivet_assets.plan.schedule import Turn, run_turns, startable
from rivet_resources.errors import ConfigError

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
LONG = RunHistory(runs=3, average_seconds=300.0)
MID = 200_000  # rows that say nothing

# One case per signal of `contract.md`, 13.2: facts that give exactly this one, and its points.
SIGNALS: dict[str, tuple[PriorityFacts, int]] = {
    "rows_few": (PriorityFacts("cdc", rows=99_999), 12),
    "rows_many": (PriorityFacts("cdc", rows=10_000_000), -15),
    "rows_unknown": (PriorityFacts("cdc"), -3),
    "full": (PriorityFacts("full", rows=MID), 5),
    "cursor_strong": (PriorityFacts("incremental", rows=MID, cursor="strong"), 18),
    "cursor_weak": (PriorityFacts("incremental", rows=MID, cursor="weak"), -8),
    "cursor_fallback": (PriorityFacts("incremental", rows=MID, cursor="fallback"), -14),
    "cursor_none": (PriorityFacts("incremental", rows=MID, cursor="none"), -12),
    "chunked_large": (PriorityFacts("chunked", rows=MID, chunks=2), -10),
    "sparse_keys": (PriorityFacts("chunked", rows=MID, is_sparse=True), -18),
    "reconcile_required": (PriorityFacts("cdc", rows=MID, reconcile_required=True), -12),
    "window_narrow": (PriorityFacts("time_window", rows=MID, is_narrow=True), 6),
    "verdict_efficient": (PriorityFacts("cdc", rows=MID, verdict="EFFICIENT"), 8),
    "verdict_degraded": (PriorityFacts("cdc", rows=MID, verdict="DEGRADED"), -12),
    "verdict_unsafe": (PriorityFacts("cdc", rows=MID, verdict="UNSAFE"), -25),
    "last_run_failed": (PriorityFacts("cdc", rows=MID, history=RunHistory(1, last_failed=True)), -8),
    "retries_many": (PriorityFacts("cdc", rows=MID, history=RunHistory(3, retry_rate=0.31)), -5),
    "runs_long": (PriorityFacts("cdc", rows=MID, history=LONG), -4),
    "warnings_many": (PriorityFacts("cdc", rows=MID, warnings=4), -4),
}


@pytest.mark.parametrize("name", SIGNALS)
def test_signal_gives_the_points_of_the_contract(name: str) -> None:
    """Each signal alone moves the base of 50 by its own points."""
    facts, points = SIGNALS[name]

    priority = prioritise(facts)

    assert ({name: points}, 50 + points) == (dict(priority.signals), priority.score)


def test_every_signal_has_a_case() -> None:
    """A signal that nobody tests is one that nobody can trust."""
    assert set(POINTS) == set(SIGNALS)


@pytest.mark.parametrize(
    "facts",
    [
        PriorityFacts("cdc", rows=MID),
        PriorityFacts("cdc", rows=9_999_999),
        PriorityFacts("chunked", rows=1_000_000, chunks=1),
        PriorityFacts("cdc", rows=MID, verdict="ACCEPTABLE"),
        PriorityFacts("cdc", rows=MID, history=RunHistory(2, retry_rate=5.0, average_seconds=900.0)),
        PriorityFacts("cdc", rows=MID, history=RunHistory(9, retry_rate=0.3, average_seconds=299.0)),
        PriorityFacts("cdc", rows=MID, warnings=3),
    ],
)
def test_what_is_just_below_a_limit_gives_no_signal(facts: PriorityFacts) -> None:
    """Limits are where the contract puts them, not one row before."""
    assert (50, {}) == (prioritise(facts).score, dict(prioritise(facts).signals))


def test_chunked_export_of_many_rows_is_large_even_in_one_chunk() -> None:
    """More than a million rows count as much as several chunks."""
    assert "chunked_large" in prioritise(PriorityFacts("chunked", rows=1_000_001, chunks=1)).signals


def test_score_stays_between_0_and_100() -> None:
    """Signals may add up beyond the scale; the score does not leave it."""
    worst = PriorityFacts(
        "chunked", rows=10**7, verdict="UNSAFE", chunks=9, is_sparse=True, reconcile_required=True, warnings=9,
        history=RunHistory(9, last_failed=True, retry_rate=1, average_seconds=999),
    )  # fmt: skip

    assert 0 == prioritise(worst).score


@pytest.mark.parametrize(
    ("score", "rank", "wave"),
    [(100, "high", 1), (75, "high", 1), (74, "high", 2), (70, "high", 2), (69, "medium", 2), (55, "medium", 2),
     (54, "medium", 3), (40, "medium", 3), (39, "low", 3), (35, "low", 3), (34, "low", 4), (0, "low", 4)],
)  # fmt: skip
def test_class_and_wave_follow_from_the_score(
    score: int, rank: str, wave: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limits 70 and 40, and 75, 55 and 35, are inclusive below."""
    monkeypatch.setattr("rivet_assets.plan.priority.BASE", score)

    priority = prioritise(PriorityFacts("cdc", rows=MID))

    assert (score, rank, wave) == (priority.score, priority.rank, priority.wave)


def test_wave_of_the_yaml_wins_over_that_of_the_score() -> None:
    """People know what machines do not."""
    assert 4 == prioritise(PriorityFacts("full", rows=1, verdict="EFFICIENT", wave=4)).wave


@pytest.mark.parametrize(
    ("rows", "cost"),
    [(0, "low"), (99_999, "low"), (100_000, "medium"), (10**6, "high"), (10**7, "very high"), (None, "medium")],
)
def test_cost_follows_from_rows(rows: int | None, cost: str) -> None:
    """Each bound belongs to the dearer class; what nobody counted is taken to be medium."""
    assert cost == cost_of(rows)
    assert {"low", "medium", "high", "very high"} == {name for _, name in COSTS}


def test_cursor_is_strong_only_when_indexed_and_never_null() -> None:
    """One of the two missing makes it weak, both make it none; a fallback is its own case."""
    found = [
        cursor_worth(is_indexed=indexed, is_nullable=nullable, has_fallback=fallback)
        for indexed, nullable, fallback in [(1, 0, 0), (1, 1, 0), (0, 0, 0), (0, 1, 0), (1, 0, 1)]
    ]

    assert ["strong", "weak", "weak", "none", "fallback"] == found


def test_windows_are_narrow_when_few_or_recent() -> None:
    """A week altogether is narrow wherever it lies, and so is anything of the last week."""
    day = timedelta(days=1)
    old_week = [(NOW - 100 * day, NOW - 93 * day)]
    old_months = [(NOW - 100 * day, NOW - 40 * day)]

    assert [True, False, False] == [is_narrow(windows, at=NOW) for windows in (old_week, old_months, [])]


@pytest.mark.parametrize(
    ("wave", "tags"), [(None, {}), (1, {"dagster/priority": "2"}), (4, {"dagster/priority": "-1"})]
)
def test_wave_is_a_priority_of_dagster(wave: int | None, tags: dict[str, str], tmp_path: Path) -> None:
    """Steps of an earlier wave come first in a run of Dagster; without a word nothing is said."""
    line = f", wave: {wave}" if wave else ""
    (tmp_path / "rivet.yaml").write_text(f"source: {{type: datagen, max_events: 1}}\nexports:\n  - {BLOCK}{line}}}\n")
    config = load_config(tmp_path / "rivet.yaml")

    asset = build_export_asset(config.exports[0], config=config)

    assert tags == {name: value for name, value in asset.op.tags.items() if name == "dagster/priority"}


# --- gates ---------------------------------------------------------------------------------------

PLANNED = Standing("xxh3:1", (("id", "int64"), ("at", "date32")), "5", {"all": "run_1", "2026-01-01": None})
CHANGED: dict[str, tuple[Standing, str, str]] = {
    "fingerprint": (replace(PLANNED, fingerprint="xxh3:2"), "config", "configuration"),
    "columns": (replace(PLANNED, columns=(("id", "int32"),)), "schema", "removed at; id int64 → int32"),
    "boundary": (replace(PLANNED, boundary="9"), "boundary", "was '5' and is '9'"),
    "manifests": (replace(PLANNED, manifests={"all": "run_2"}), "manifest", "by run run_2"),
    "lost": (replace(PLANNED, columns=(), lost="no such table"), "relation", "no such table"),
}


def test_plan_of_an_unchanged_world_has_no_gate() -> None:
    """What is as it was planned may be applied without a word."""
    assert [] == world_gates("orders", PLANNED, PLANNED)


@pytest.mark.parametrize("part", CHANGED)
def test_every_change_of_the_world_shuts_a_gate(part: str) -> None:
    """Each thing that a plan rests on is compared, and its gate says what became of it; drift exits with 4."""
    now, name, words = CHANGED[part]

    (gate,) = world_gates("orders", PLANNED, now)

    assert (name, "orders", 4, True) == (gate.name, gate.export, gate.exit_code, gate.yields)
    assert words in gate.text


def test_everything_that_a_plan_rests_on_has_a_gate() -> None:
    """A new field of Standing needs a gate, or it proves nothing."""
    assert {field.name for field in fields(Standing)} == set(CHANGED)


@pytest.mark.parametrize(
    ("window", "run_id"), [("2026-01-01", "run_9"), ("all", None)], ids=["somebody committed it", "the commit is gone"]
)
def test_gate_shuts_for_the_window_that_is_not_as_planned(window: str, run_id: str | None) -> None:
    """A window that was free and is taken counts, and so does one whose commit is gone."""
    (gate,) = world_gates("orders", PLANNED, replace(PLANNED, manifests={**PLANNED.manifests, window: run_id}))

    assert window in gate.text


@pytest.mark.parametrize(
    ("age", "gates", "warned"),
    [
        ("59m", [], False),
        ("1h", [], True),
        ("23h", [], True),
        ("24h", ["expired"], False),
        ("-2h", ["from_the_future"], False),
    ],
)
def test_age_is_silent_then_warns_then_refuses(age: str, gates: list[str], warned: bool) -> None:
    """Under an hour nothing is said, up to the expiry a warning, from then on the gate is shut, with exit code 1."""
    hours = float(age[:-1]) / (60 if age.endswith("m") else 1)

    found, text = age_gates(created_at=NOW, expires_at=NOW + timedelta(hours=24), at=NOW + timedelta(hours=hours))

    assert gates == [gate.name for gate in found]
    assert warned == bool(text)
    assert all(gate.exit_code == 1 for gate in found)


# --- the sealed file -----------------------------------------------------------------------------


def artefact(*entries: PlanEntry) -> PlanArtefact:
    """Make a plan of these entries."""
    return PlanArtefact(
        plan_id="plan_1",
        created_at=NOW,
        expires_at=NOW + timedelta(hours=24),
        config_path="/etc/rivet.yaml",
        config_fingerprint="xxh3:f",
        exports=entries,
    )


def entry(name: str = "orders", **changes: Any) -> PlanEntry:
    """Make a full entry: no list in it is empty, so that every one can be tampered with."""
    window = PlannedWindow(
        key="all", table="t", text="all rows", statement="SELECT 1", chunk_count=2, chunk_ranges=("id[1,5]",),
        row_estimate=9, replaces_run_id="run_0", replaces_rows=240, replaces_bytes=3000,
    )  # fmt: skip
    computed = Computed(
        windows=(window,), chunk_count=2, chunk_ranges=("id[1,5]",), cursor_snapshot="5", cursor_high="9",
        row_estimate=9, columns=(("id", "int64"),), notes=("cut by range",),
    )  # fmt: skip
    told = Diagnostics(
        verdict="EFFICIENT", warnings=("slow",), recommended_profile="fast", strategy_rationale="indexed",
        suggestions=("add an index",), drift="added nick", first_run=False,
    )  # fmt: skip
    order = Prioritization(
        score=70, signals={"full": 5}, rank="high", wave=2, cost="low", seconds=1.5, parallel_safe=True,
        source_group="shop",
    )  # fmt: skip
    return PlanEntry(
        export_name=name, source_name="shop", source_type="sqlite", strategy="full", plan_fingerprint="xxh3:1",
        resolved_plan={"table": "orders", "params": {"a": "b"}}, computed=computed, diagnostics=told,
        prioritization=order,
    ).model_copy(update=changes)  # fmt: skip


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """List the way to each value that is not a container."""
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(inner, (*path, key))
    else:
        yield path


SEALED = plan_artefact.seal(artefact(entry()))


def stored(folder: Path, document: object) -> Path:
    """Write a document as a plan file."""
    path = folder / "plan.json"
    path.write_text(json.dumps(document))
    return path


def tampered(path: tuple[Any, ...], change: Callable[[Any, Any], None]) -> Any:
    """Return a copy of the sealed plan with one place changed."""
    document = copy.deepcopy(SEALED)
    parent = document
    for key in path[:-1]:
        parent = parent[key]
    change(parent, path[-1])
    return document


def test_plan_survives_being_written_and_read(tmp_path: Path) -> None:
    """What is read is what was sealed, whatever the order of keys in the file."""
    path = tmp_path / "plan.json"
    plan_artefact.write(path, SEALED)
    backwards = stored(tmp_path, dict(reversed(SEALED.items())))

    expected = artefact(entry()).model_copy(update={"integrity": SEALED["integrity"]})
    assert expected == plan_artefact.read(path) == plan_artefact.read(backwards)


def test_source_that_is_called_as_its_type_is_named_once() -> None:
    """A `source:` without a name is called as its type."""
    assert "~ orders (sqlite, full)" in str(render(artefact(entry(source_name="sqlite"))))
    assert "~ orders (sqlite shop, full)" in str(render(artefact(entry())))


def test_plan_is_readable_by_its_owner_alone(tmp_path: Path) -> None:
    """Queries stand in a plan."""
    plan_artefact.write(tmp_path / "plan.json", SEALED)

    assert 0o600 == (tmp_path / "plan.json").stat().st_mode & 0o777


def test_plan_written_over_a_readable_file_is_readable_by_its_owner_alone(tmp_path: Path) -> None:
    """The old file's mode goes with it, and nothing is left beside."""
    path = tmp_path / "plan.json"
    path.write_text("{}")
    path.chmod(0o644)

    plan_artefact.write(path, SEALED)

    assert 0o600 == path.stat().st_mode & 0o777
    assert [path] == list(tmp_path.iterdir())


def test_plan_goes_through_a_link_to_where_it_leads(tmp_path: Path) -> None:
    """As /dev/stdout is one: it stays."""
    path, link = tmp_path / "plan.json", tmp_path / "out"
    path.touch()
    link.symlink_to(path)

    plan_artefact.write(link, SEALED)

    assert link.is_symlink()
    assert plan_artefact.read(path) == plan_artefact.read(link)


@pytest.mark.parametrize("path", leaves(SEALED), ids=lambda path: ".".join(map(str, path)))
def test_plan_changed_at_any_field_is_refused(path: tuple[Any, ...], tmp_path: Path) -> None:
    """No field of the file, the seal among them, can be edited without being noticed."""

    def change(parent: Any, key: Any) -> None:
        value = parent[key]
        parent[key] = not value if isinstance(value, bool) else value + 1 if isinstance(value, int | float) else "x"

    with pytest.raises(PlanUnusable) as refused:
        plan_artefact.read(stored(tmp_path, tampered(path, change)))

    assert 1 == refused.value.exit_code


@pytest.mark.parametrize("path", leaves(SEALED), ids=lambda path: ".".join(map(str, path)))
def test_plan_that_lacks_a_field_is_refused(path: tuple[Any, ...], tmp_path: Path) -> None:
    """Nor can a field be taken out."""
    with pytest.raises(PlanUnusable):
        plan_artefact.read(stored(tmp_path, tampered(path, lambda parent, key: parent.pop(key))))


def test_plan_with_a_field_more_is_refused_even_with_a_new_seal(tmp_path: Path) -> None:
    """Whoever makes a seal of his own still cannot say what this version does not know."""
    document = {key: value for key, value in SEALED.items() if key != "integrity"} | {"run_as": "root"}
    document["integrity"] = plan_artefact.fingerprint(document)

    with pytest.raises(PlanUnusable, match="run_as"):
        plan_artefact.read(stored(tmp_path, document))


@pytest.mark.parametrize(
    ("content", "words"),
    [("", "not JSON"), ("[]", "no seal"), ("{}", "no seal"), ('{"integrity": "x", "version": 2}', "Upgrade Rivet"),
     ('{"integrity": "x", "version": "two"}', "changed after")],
)  # fmt: skip
def test_file_that_is_no_plan_says_so(content: str, words: str, tmp_path: Path) -> None:
    """Each way in which a file is no plan has its sentence."""
    (tmp_path / "plan.json").write_text(content)

    with pytest.raises(PlanUnusable, match=words):
        plan_artefact.read(tmp_path / "plan.json")


def test_missing_plan_is_named(tmp_path: Path) -> None:
    """The message says which file, and how to make one."""
    with pytest.raises(PlanUnusable, match=r"nothing\.json cannot be read.*rivet plan -o"):
        plan_artefact.read(tmp_path / "nothing.json")


def test_text_of_a_plan_names_what_a_reviewer_looks_for() -> None:
    """Export, wave, window, statement, what is replaced, drift, warnings and the reasons of the score are all there."""
    text = str(render(artefact(entry(), entry("items"))))

    for words in (
        "Wave 2", "~ orders (sqlite shop, full)", "t all: all rows", "SELECT 1", "240 rows, 2.9 KB, of run run_0",
        "added nick", "slow", "70 (high), cost low: full +5", "never beside another of group shop",
        "Plan: 2 exports, 2 windows, about 18 rows; replaces 480 rows (5.9 KB) of 2 windows.",
    ):  # fmt: skip
        assert words in text


def test_metadata_of_an_entry_is_flat() -> None:
    """Dagster gets names with texts and numbers, and nothing that is empty."""
    facts = metadata(entry())

    assert ("EFFICIENT", 9, 240, "full +5") == (
        facts["rivet/plan_verdict"], facts["rivet/plan_rows"], facts["rivet/plan_replaces_rows"],
        facts["rivet/plan_signals"],
    )  # fmt: skip
    assert all(isinstance(value, str | int | float) and value != "" for value in facts.values())


# --- what a configuration resolves to ------------------------------------------------------------

CANARIES = {"CANARY_URL": "postgresql://rivet:canary-1@localhost:5432/shop", "CANARY_WORD": "canary-2"}
CANARY_YAML = """
source: {type: postgres, url_env: CANARY_URL}
exports:
  - name: orders
    query: "SELECT * FROM orders WHERE token = '${CANARY_WORD}' AND note = :note"
    params: {note: "${CANARY_PARAM}"}
    format: parquet
    destination: {type: local, path: "${CANARY_PATH:-./lake}"}
    transforms: [{type: mask, fields: [token], method: hash, key: canary-4}]
"""


@pytest.fixture
def canaries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A configuration with a secret in every place that may hold one."""
    for name, value in CANARIES.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "rivet.yaml").write_text(CANARY_YAML)
    return tmp_path / "rivet.yaml"


def test_resolved_plan_holds_no_secret(canaries: Path) -> None:
    """Passwords are gone, what came from outside is its reference again, and names of variables stay."""
    config = load_config(canaries, params={"CANARY_PARAM": "canary-3"})
    hide = collect_hidden(config, {"CANARY_PARAM": "canary-3"})

    shown = json.dumps(redact(config, config.exports[0], hide))

    assert "canary-" not in shown
    for words in ("${CANARY_WORD}", "${CANARY_PARAM}", "CANARY_URL", "./lake"):
        assert words in shown
    assert "canary" not in hide.text(f"{CANARIES['CANARY_URL']} canary-1 canary-2 canary-3")


def test_written_password_is_hidden_too(tmp_path: Path) -> None:
    """A URL or password that stands in the file itself is in no plan."""
    written = CANARY_YAML.replace("url_env: CANARY_URL", "url: 'postgresql://rivet:canary-5@localhost/shop'")
    (tmp_path / "rivet.yaml").write_text(written.replace("${CANARY_WORD}", "w").replace("${CANARY_PARAM}", "p"))
    config = load_config(tmp_path / "rivet.yaml")

    shown = json.dumps(redact(config, config.exports[0], collect_hidden(config, {})))

    assert "canary" not in shown
    assert '"url": "(hidden)"' in shown


BLOCK = "{name: orders, table: orders, format: parquet, destination: {type: local, path: ./lake}"
EDITS = {
    "table": (f"{BLOCK.replace('table: orders', 'table: items')}}}", {}, True),
    "format": (f"{BLOCK.replace('parquet', 'csv')}}}", {}, True),
    "destination": (f"{BLOCK.replace('./lake', './sea')}}}", {}, True),
    "parallel": (f"{BLOCK}, parallel: 4}}", {}, True),
    "tuning": (f"{BLOCK}, tuning: {{profile: safe}}}}", {}, True),
    "another database": (f"{BLOCK}}}", {"CANARY_URL": "postgresql://rivet:canary-1@localhost:5432/other"}, True),
    "another host": (f"{BLOCK}}}", {"CANARY_URL": "postgresql://rivet:canary-1@127.0.0.1:5432/shop"}, True),
    "another password": (f"{BLOCK}}}", {"CANARY_URL": "postgresql://rivet:canary-9@localhost:5432/shop"}, False),
    "wave": (f"{BLOCK}, wave: 3}}", {}, False),
    "schedule": (f"{BLOCK}, schedule: '0 3 * * *'}}", {}, False),
    "owners": (f"{BLOCK}, owners: ['team:shop']}}", {}, False),
}


@pytest.mark.parametrize("edit", EDITS)
def test_fingerprint_changes_with_what_decides_rows_and_files(
    edit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a run reads and writes is in it, another database behind the same name too; passwords and waves are not."""
    block, environment, is_another = EDITS[edit]

    def fingerprint(text: str, variables: dict[str, str]) -> str:
        for name, value in (CANARIES | variables).items():
            monkeypatch.setenv(name, value)
        (tmp_path / "rivet.yaml").write_text(f"source: {{type: postgres, url_env: CANARY_URL}}\nexports:\n  - {text}\n")
        config = load_config(tmp_path / "rivet.yaml")
        return export_fingerprint(config, config.exports[0])

    before = fingerprint(f"{BLOCK}}}", {})

    assert is_another == (before != fingerprint(block, environment))


# --- who runs beside whom ------------------------------------------------------------------------


def turn(name: str, **changes: Any) -> Turn:
    """Make a turn of wave 1, of little cost."""
    return replace(Turn(name, wave=1, cost="low", seconds=1.0), **changes)


def many(count: int, **changes: Any) -> list[Turn]:
    """Make several turns."""
    return [turn(f"t{number}", **changes) for number in range(count)]


STARTS: dict[str, tuple[list[Turn], list[Turn], int | None, str | None]] = {
    "the longest first": ([turn("short"), turn("long", seconds=9)], [], None, "long"),
    "an earlier wave first": ([turn("late", wave=2, seconds=9), turn("early")], [], None, "early"),
    "a later wave waits for the one before": ([turn("late", wave=2)], [turn("early")], None, None),
    "in a pool nobody waits for a wave": ([turn("late", wave=2)], [turn("early")], 2, "late"),
    "in a pool the longest is first, whatever its wave": ([turn("late", wave=4, seconds=9), turn("a")], [], 2, "late"),
    "a full pool": ([turn("b")], many(2), 2, None),
    "ten of low cost": ([turn("b")], many(9), None, "b"),
    "no eleventh of low cost": ([turn("b")], many(10), None, None),
    "three of medium cost": ([turn("b", cost="medium")], many(2, cost="medium"), None, "b"),
    "no fourth of medium cost": ([turn("b", cost="medium")], many(3, cost="medium"), None, None),
    "no third of high cost": ([turn("b", cost="high")], many(2, cost="high"), None, None),
    "no third of very high cost": ([turn("b", cost="very high")], many(2, cost="very high"), None, None),
    "the dearest decides": ([turn("b")], [turn("a", cost="very high"), turn("c")], None, None),
    "a cheap one passes a dear one": ([turn("b", cost="high", seconds=9), turn("c")], many(3), None, "c"),
    "nothing beside one that wants to be alone": ([turn("b")], [turn("a", parallel_safe=False)], None, None),
    "one that wants to be alone waits": ([turn("b", parallel_safe=False)], [turn("a")], None, None),
    "one that wants to be alone starts alone": ([turn("b", parallel_safe=False)], [], None, "b"),
    "alone in a pool too": ([turn("b", parallel_safe=False)], [turn("a")], 5, None),
    "no two of a group": ([turn("b", source_group="g")], [turn("a", source_group="g")], None, None),
    "two of two groups": ([turn("b", source_group="g")], [turn("a", source_group="h")], None, "b"),
    "nobody waits": ([], [turn("a")], None, None),
}


@pytest.mark.parametrize("case", STARTS)
def test_turn_starts_when_the_rules_allow(case: str) -> None:
    """Waves, limits by cost, pools, groups and exports that want to be alone, each as the contract says."""
    waiting, running, pool, expected = STARTS[case]

    found = startable(waiting, running, pool=pool)

    assert expected == (found.name if found else None)


def test_turns_of_a_wave_really_run_side_by_side() -> None:
    """Two turns that wait for each other both come to their end."""
    meeting = threading.Barrier(2, timeout=10)

    run_turns(many(2), lambda _: meeting.wait() and None)

    assert not meeting.broken


@pytest.mark.parametrize("pool", [None, 1, 3])
def test_every_turn_runs_once_and_never_too_many_at_once(pool: int | None) -> None:
    """Whatever the limits, all work is done, none twice, and no wave overlaps another."""
    turns = [turn(f"t{n}", wave=1 + n % 3, cost="medium", seconds=n, parallel_safe=n % 5 != 0) for n in range(20)]
    lock, now, most, done = threading.Lock(), set[Turn](), [0], list[str]()

    def work(mine: Turn) -> None:
        with lock:
            now.add(mine)
            most[0] = max(most[0], len(now))
            assert pool or {each.wave for each in now} == {mine.wave}
            assert mine.parallel_safe or now == {mine}
        with lock:
            now.remove(mine)
            done.append(mine.name)

    run_turns(turns, work, pool=pool)

    assert sorted(each.name for each in turns) == sorted(done)
    assert most[0] <= 3


def test_error_of_a_turn_is_raised_and_nothing_new_starts() -> None:
    """A fault of the program is not swallowed by a thread."""
    started = []

    def work(mine: Turn) -> None:
        started.append(mine.name)
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        run_turns([turn("a", parallel_safe=False, seconds=9), turn("b", parallel_safe=False)], work)

    assert ["a"] == started


# --- waves in the YAML ---------------------------------------------------------------------------

# What stands between « and » is what `annotate` writes; between ‹ and › what it takes out.
WAVED = {
    "block": "exports:\n  - name: a  # mine\n«    wave: 2\n»    table: t\n",
    "name is not the first key": "exports:\n- table: t\n  name: 'a'\n«  wave: 2\n»  format: csv\n",
    "flow": "exports: [{name: a«, wave: 2», table: t}, {name: b}]\n",
    "old wave": "exports:\n  - wave:   ‹1›«2» # x\n    name: a\n",
    "no newline at the end": "exports:\n  - name: a«\n    wave: 2»",
    "windows": "exports:\r\n  - name: a\r\n«    wave: 2\r\n»    table: t\r\n",
    "references": "x: {y: ${Z:-a: [b}}\nexports:\n  - name: a # é ${N}\n«    wave: 2\n»",
    "byte order mark": "\ufeffexports:\n  - name: a\n«    wave: 2\n»",
    "right already": "exports:\n  - {name: a, wave: 2}\n",
    "others stay": "# top\n\nexports:\n\n  - name: c\n    wave: 4\n",
}


@pytest.mark.parametrize("case", WAVED)
def test_wave_is_written_and_every_other_byte_stays(case: str, tmp_path: Path) -> None:
    """Comments, order, quoting, line ends and blank lines are the author's; one line is ours."""
    before = re.sub("«[^»]*»|[‹›]", "", WAVED[case])
    after = re.sub("‹[^›]*›|[«»]", "", WAVED[case])
    path = tmp_path / "rivet.yaml"
    path.write_bytes(before.encode())

    changed = annotate(path, {"a": 2})

    assert after.encode() == path.read_bytes()
    assert changed == (["a"] if before != after else [])
    assert after == with_waves(after, {"a": 2})[0]  # a second time changes nothing


def test_several_exports_get_their_waves_at_once() -> None:
    """Edits do not shift each other."""
    text, changed = with_waves("exports:\n- name: a\n- {name: b}\n- wave: 1\n  name: c\n", {"a": 1, "b": 22, "c": 333})

    assert "exports:\n- name: a\n  wave: 1\n- {name: b, wave: 22}\n- wave: 333\n  name: c\n" == text
    assert ["a", "b", "c"] == changed


@pytest.mark.parametrize(
    "text",
    ["base: &b {name: a}\nexports: [*b, *b]\n", "base: &b {table: t}\nexports:\n  - <<: *b\n    name: a\n"],
    ids=["anchor", "merge"],
)
def test_export_behind_an_anchor_is_left_to_people(text: str, tmp_path: Path) -> None:
    """One text that stands for several exports cannot get two waves; the file is not touched."""
    (tmp_path / "rivet.yaml").write_text(text)

    with pytest.raises(ConfigError, match="by hand"):
        annotate(tmp_path / "rivet.yaml", {"a": 2})

    assert text == (tmp_path / "rivet.yaml").read_text()


def test_file_keeps_its_permissions_and_stays_a_link(tmp_path: Path) -> None:
    """The swap of the file is not to be seen but in its content."""
    real, link = tmp_path / "real.yaml", tmp_path / "rivet.yaml"
    real.write_text("exports:\n  - name: a\n")
    real.chmod(0o640)
    link.symlink_to(real)

    annotate(link, {"a": 3})

    assert link.is_symlink()
    assert (0o640, "exports:\n  - name: a\n    wave: 3\n") == (real.stat().st_mode & 0o777, real.read_text())
