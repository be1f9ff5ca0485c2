"""`rivet plan` and `rivet apply` on real databases: what was reviewed is what runs, and nothing else ever does."""

from __future__ import annotations

import json
import subprocess
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from rivet_assets.config.load import RivetConfig, load_config
from rivet_assets.launch.apply_plan import AppliedPlan, PlanExpired, PlanStale, apply_plan
from rivet_assets.launch.recorder import News
from rivet_assets.launch.run_exports import run_exports
from rivet_assets.plan import artefact as plan_artefact
from rivet_assets.plan.artefact import PlanArtefact
from rivet_assets.plan.planner import UnsealedPlan, plan_exports
from rivet_assets.plan.report import metadata, render
from rivet_resources.errors import RivetError, WindowBusy
from tests import processes
from tests.lab import Lab, lab_in
from tests.lab_engines import ENGINES, Engine

pytestmark = pytest.mark.wide

FIRST = datetime(2026, 1, 1, tzinfo=UTC)
IDS = list(range(240))
MODES = {
    "full": "{name: orders, table: orders, mode: full}",
    "query": "{name: orders, query: 'SELECT * FROM orders', mode: full}",
    "incremental": "{name: orders, table: orders, mode: incremental, cursor_column: at}",
    "chunked": "{name: orders, table: orders, mode: chunked, chunk_column: id, chunk_size: 50}",
    "poll": "{name: orders, table: orders, mode: poll, updated_at_column: at, visibility: lag_window}",
}
everywhere = pytest.mark.parametrize("engine", ENGINES, indirect=True)
DAYS = "{name: orders, table: orders, mode: time_window, time_column: at, start: 2026-01-01}"
FULL, INCREMENTAL = MODES["full"], MODES["incremental"]


@pytest.fixture(params=["sqlite", "postgres"])
def engine(request: pytest.FixtureRequest) -> Engine:
    """The engine a test runs on."""
    return ENGINES[request.param]


@pytest.fixture
def lab(tmp_path: Path, engine: Engine, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Lab:
    """A database with 240 hourly orders over ten days, and an empty folder."""
    laboratory = lab_in(tmp_path, engine, request, monkeypatch)
    laboratory.create("orders", {"id": "whole", "at": "instant", "note": "note"}, index=["at"])
    laboratory.insert("orders", map(order, IDS))
    laboratory.analyze("orders")
    return laboratory


def order(number: int) -> dict[str, object]:
    """Make the order of an hour."""
    return {"id": number, "at": FIRST + timedelta(hours=number), "note": f"note {number}"}


def planned(config: RivetConfig, **asked: object) -> PlanArtefact:
    """Plan, and take the plan through its file, as people do."""
    found: UnsealedPlan = plan_exports(config, **asked)  # type: ignore[arg-type]
    assert () == found.unplanned
    path = config.folder / f"{found.artefact.plan_id}.json"
    plan_artefact.write(path, plan_artefact.seal(found.artefact))
    return plan_artefact.read(path)


def applied(config: RivetConfig, plan: PlanArtefact, **asked: object) -> AppliedPlan:
    """Apply a plan in silence."""
    return apply_plan(config, plan, watch=lambda news: None, **asked)  # type: ignore[arg-type]


# --- plan, then apply ----------------------------------------------------------------------------


@everywhere
@pytest.mark.matrix
@pytest.mark.parametrize("mode", MODES)
def test_plan_reads_no_row_and_applying_it_commits_what_it_says(lab: Lab, mode: str) -> None:
    """A plan leaves no manifest and no cursor; applied, its window is there with every row."""
    config = lab.config(MODES[mode])

    plan = planned(config)
    assert ({}, None) == (lab.manifests("orders"), lab.state.cursor("orders"))
    done = applied(config, plan)

    assert (["success"], ()) == ([outcome.status for outcome in done.outcomes], done.forced)
    assert [window.key for window in plan.exports[0].computed.windows] == list(lab.manifests("orders"))
    assert IDS == sorted(row["id"] for row in lab.rows("orders"))


def test_windows_of_a_plan_are_the_only_ones_that_run(lab: Lab) -> None:
    """Days that were not planned stay unread."""
    config = lab.config(DAYS)

    plan = planned(config, partitions=["2026-01-02...2026-01-03", "2026-01-05"])
    applied(config, plan)

    assert ["2026-01-02", "2026-01-03", "2026-01-05"] == sorted(lab.manifests("orders"))
    assert 3 * 24 == len(lab.rows("orders"))


def test_second_plan_says_what_is_replaced_and_what_is_new(lab: Lab) -> None:
    """Rows and bytes that readers lose are named, and an incremental export tells its cursor and its horizon."""
    blocks = [FULL.replace("orders,", "whole,", 1), INCREMENTAL]
    config = lab.config(*blocks)
    applied(config, planned(config))

    plan = planned(config)

    by_name = {entry.export_name: entry for entry in plan.exports}
    (window,) = by_name["whole"].computed.windows
    manifest = lab.manifests("whole")["all"]
    assert (manifest.run_id, 240, manifest.size_bytes) == (
        window.replaces_run_id, window.replaces_rows, window.replaces_bytes,
    )  # fmt: skip
    assert lab.state.cursor("orders").value == by_name["orders"].computed.cursor_snapshot
    assert 0 == by_name["orders"].computed.row_estimate
    text = str(render(plan))
    assert "~ whole" in text
    assert "= orders" in text
    assert "nothing new above at" in text


def test_plan_shows_the_statement_and_chunks_of_the_run(lab: Lab) -> None:
    """What is reviewed is the SQL that a task will send, and the ranges of all chunks."""
    (entry,) = planned(lab.config(MODES["chunked"])).exports

    assert 5 == entry.computed.chunk_count == len(entry.computed.chunk_ranges)
    (window,) = entry.computed.windows
    assert "orders" in window.statement
    assert "SELECT" in window.statement


def test_drift_since_the_last_commit_stands_in_the_plan(lab: Lab) -> None:
    """A reviewer sees that columns were added before a run tells it."""
    config = lab.config(FULL)
    applied(config, planned(config))
    lab.sql("ALTER TABLE orders ADD COLUMN nick integer")

    (entry,) = planned(config).exports

    assert "added nick" == entry.diagnostics.drift


def test_failed_run_lowers_the_priority_of_the_next_plan(lab: Lab) -> None:
    """History speaks: an export that failed last time is put back, and its usual duration is known."""
    config = lab.config(f"{FULL[:-1]}, quality: {{row_count_min: 1000}}}}")
    done = applied(config, planned(config))

    (entry,) = planned(config).exports

    assert "failed" == done.outcomes[0].status
    assert -8 == entry.prioritization.signals["last_run_failed"]


def test_plan_of_a_change_log_follows_its_position(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A drain is planned from its position, with what is unread; a drain since then makes the plan stale."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rivet.yaml").write_text(
        "source: {type: datagen, seed: 1, max_events: 50, events_per_second: 100000}\nspark: inline\nexports:\n"
        "  - {name: events, table: datagen, mode: cdc, format: parquet, destination: {type: local, path: lake}}\n"
    )
    config = load_config("rivet.yaml")
    first, rival = planned(config), planned(config)

    done = applied(config, first)

    assert [50] == [outcome.rows for outcome in done.outcomes]
    with pytest.raises(PlanStale, match="committed boundary was none"):
        applied(config, rival)
    (entry,) = planned(config).exports
    assert (0, "=") == (entry.computed.row_estimate, str(render(planned(config))).split("\n  ")[1][0])
    assert entry.computed.cursor_snapshot is not None


# --- the world moves between plan and apply ------------------------------------------------------


def move_cursor(lab: Lab) -> None:
    """Let another run commit first."""
    assert lab.export(INCREMENTAL).success


def add_column(lab: Lab) -> None:
    """Change the table."""
    lab.sql("ALTER TABLE orders ADD COLUMN nick integer")


def drop_table(lab: Lab) -> None:
    """Take the table away."""
    lab.sql("DROP TABLE orders")


def edit_config(lab: Lab) -> None:
    """Change the export in the file."""
    lab.config(f"{INCREMENTAL[:-1]}, format: csv}}")


def remove_export(lab: Lab) -> None:
    """Give the export another name."""
    lab.config(INCREMENTAL.replace("name: orders", "name: items"))


MOVES = {
    "a cursor moved": (move_cursor, "committed boundary", True),
    "a column added": (add_column, "added nick", True),
    "a table dropped": (drop_table, "not there as planned", False),
    "a config edited": (edit_config, "configuration is not the planned one", True),
    "an export gone": (remove_export, "no longer has it", False),
}


@pytest.mark.parametrize("move", MOVES)
def test_plan_of_another_world_is_refused(lab: Lab, move: str) -> None:
    """Nothing runs, the exit code says drift, and the message names what moved."""
    plan = planned(lab.config(INCREMENTAL))
    change, words, _ = MOVES[move]
    change(lab)
    before = lab.manifests("orders")

    with pytest.raises(PlanStale, match=words) as refused:
        applied(load_config("rivet.yaml"), plan)

    assert (4, before) == (refused.value.exit_code, lab.manifests("orders"))
    assert [] == lab.state.journal(run_id=plan.plan_id)


@pytest.mark.parametrize("move", [name for name, (_, _, can_run) in MOVES.items() if can_run])
def test_forced_plan_runs_and_every_gate_is_recorded(lab: Lab, move: str) -> None:
    """What was passed over stands in the journal under plan and run, and in the outcome."""
    plan = planned(lab.config(INCREMENTAL))
    change, words, _ = MOVES[move]
    change(lab)

    done = applied(load_config("rivet.yaml"), plan, force=True)

    (outcome,) = done.outcomes
    assert "success" == outcome.status
    assert any(words in warning for warning in outcome.warnings)
    for run_id in (plan.plan_id, outcome.run_ids[0]):
        told = [entry.detail for entry in lab.state.journal(run_id=run_id) if entry.event == "PlanWarning"]
        assert [(gate.name, gate.text) for gate in done.forced] == [(each["forced"], each["text"]) for each in told]
        assert {plan.plan_id} == {each["plan_id"] for each in told}


def test_dropped_table_fails_the_forced_run_alone(lab: Lab) -> None:
    """Force passes a gate; it does not make a table."""
    lab.create("items", {"id": "whole"})
    lab.insert("items", [{"id": 1}])
    config = lab.config(FULL, "{name: items, table: items, mode: full}")
    plan = planned(config)
    lab.sql("DROP TABLE orders")

    done = applied(config, plan, force=True)

    assert {"orders": "failed", "items": "success"} == {each.export: each.status for each in done.outcomes}


def test_export_that_the_config_lost_cannot_be_forced(lab: Lab) -> None:
    """There is nothing to run."""
    plan = planned(lab.config(INCREMENTAL))
    remove_export(lab)

    with pytest.raises(PlanStale, match="no longer has it"):
        applied(load_config("rivet.yaml"), plan, force=True)


def test_rows_inserted_since_are_taken_along(lab: Lab) -> None:
    """New rows are no drift: the window begins where it was planned to, and ends where the source is."""
    config = lab.config(INCREMENTAL)
    plan = planned(config)
    lab.insert("orders", [order(240), order(241)])

    done = applied(config, plan)

    assert ((), [*IDS, 240, 241]) == (done.forced, lab.ids("orders"))


def test_edit_beside_the_planned_export_is_only_told(lab: Lab) -> None:
    """A comment, or another export, spoils no plan."""
    config = lab.config(FULL)
    plan = planned(config)
    file = lab.folder / "rivet.yaml"
    file.write_text(f"# reviewed\n{file.read_text()}")

    done = applied(load_config(file), plan)

    assert ["success"] == [outcome.status for outcome in done.outcomes]
    assert "was edited" in done.warnings[0]


def test_expired_plan_is_refused_until_forced(lab: Lab) -> None:
    """Age has its own error and exit code 1; forced, it runs and says so. One hour warns."""
    config = lab.config(FULL)
    plan = planned(config, lifetime=timedelta(hours=2))
    later = plan.created_at + timedelta(hours=2)

    with pytest.raises(PlanExpired, match="expired at") as refused:
        applied(config, plan, at=later)
    assert (1, {}) == (refused.value.exit_code, lab.manifests("orders"))
    done = applied(config, plan, at=later, force=True)
    assert ["expired"] == [gate.name for gate in done.forced]

    again = applied(config, planned(config), at=datetime.now(UTC) + timedelta(hours=1, minutes=1))
    assert "1.0 h old" in again.warnings[0]


@pytest.mark.parametrize("force", [False, True])
def test_export_that_moved_while_earlier_waves_ran_fails_alone(lab: Lab, force: bool) -> None:
    """The world is compared again when an export's turn comes; forced, it runs and the journal says so."""
    first = "{name: first, table: orders, mode: full, wave: 1}"
    config = lab.config(first, f"{INCREMENTAL[:-1]}, wave: 2}}")
    plan = planned(config)
    moved = (FIRST + timedelta(hours=100)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")

    def watch(news: News) -> None:
        if (news.what, news.export) == ("finished", "first"):
            lab.state.advance_cursor("orders", moved, expected=None)

    done = apply_plan(config, plan, watch=watch, force=force)

    status = {outcome.export: (outcome.status, outcome.exit_code) for outcome in done.outcomes}
    assert {"first": ("success", 0), "orders": ("success", 0) if force else ("failed", 4)} == status
    assert (IDS[101:] if force else []) == lab.ids("orders")
    journal = lab.state.journal(run_id=plan.plan_id)
    assert (["boundary"] if force else []) == [entry.detail["forced"] for entry in journal]


def test_drift_that_the_run_will_refuse_is_a_warning_of_the_plan(lab: Lab) -> None:
    """A reviewer need not know the policies by heart."""
    config = lab.config(f"{FULL[:-1]}, on_schema_drift: fail}}")
    applied(config, planned(config))
    add_column(lab)

    (entry,) = planned(config).exports

    assert "the run will stop" in entry.diagnostics.warnings[0]


def test_many_windows_are_all_planned_and_some_looked_at(lab: Lab) -> None:
    """A backfill of forty days lists forty windows, and guesses the rows of those that were not asked about."""
    config = lab.config(DAYS)

    (entry,) = planned(config, partitions=["2026-01-01...2026-02-09"]).exports

    assert (40, None) == (len(entry.computed.windows), entry.computed.chunk_count)
    assert [True] * 31 + [False] * 9 == [bool(window.statement) for window in entry.computed.windows]


# --- races ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["full", "incremental"])
def test_second_of_two_plans_is_refused(lab: Lab, mode: str) -> None:
    """Two reviewers of one state: the first wins, and the second is told that its window was committed since."""
    config = lab.config(MODES[mode])
    one, other = planned(config), planned(config)
    applied(config, one)
    before = lab.manifests("orders")

    with pytest.raises(PlanStale, match="committed"):
        applied(config, other)

    assert before == lab.manifests("orders")


def test_two_plans_applied_at_once_commit_once(lab: Lab) -> None:
    """Only one application of an export goes on at a time, and the other one sees what it left."""
    config = lab.config(INCREMENTAL)
    plans = [planned(config), planned(config)]
    meeting, ended = threading.Barrier(2, timeout=30), list[object]()

    def go(plan: PlanArtefact) -> None:
        meeting.wait()
        try:
            ended.append(applied(config, plan))
        except RivetError as error:
            ended.append(error)

    threads = [threading.Thread(target=go, args=(plan,)) for plan in plans]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)

    (done,) = [each for each in ended if isinstance(each, AppliedPlan)]
    assert "success" == done.outcomes[0].status
    assert [True] == [isinstance(each, PlanStale | WindowBusy) for each in ended if each is not done]
    assert IDS == lab.ids("orders")


# --- order ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("pool", [None, 1])
def test_waves_run_one_after_another(lab: Lab, pool: int | None) -> None:
    """No export of a wave begins before the last one has ended; all of them end well, side by side or not."""
    blocks = [f"{{name: o{n}, table: orders, mode: full, wave: {wave}}}" for n, wave in enumerate([3, 1, 3, 1, 2])]
    config = lab.config(*blocks)
    told: list[tuple[str, int]] = []
    waves = {f"o{n}": wave for n, wave in enumerate([3, 1, 3, 1, 2])}

    def watch(news: News) -> None:
        if news.what in ("started", "finished"):
            told.append((news.what, waves[news.export]))

    done = apply_plan(config, planned(config), watch=watch, pool=pool)

    assert {"success"} == {outcome.status for outcome in done.outcomes}
    assert [1, 1, 2, 3, 3] == [waves[outcome.export] for outcome in done.outcomes]
    if pool is None:
        assert [1] * 4 + [2] * 2 + [3] * 4 == [wave for _, wave in told]


# --- the file ------------------------------------------------------------------------------------


def test_plan_file_holds_no_secret(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the source's address nor anything that came in by `${NAME}` is written down, even in statements."""
    monkeypatch.setenv("TOKEN", "hunter2")
    block = "{name: orders, query: \"SELECT * FROM orders WHERE note <> '${TOKEN}'\", mode: full}"

    plan = planned(lab.config(block))

    text = (lab.folder / f"{plan.plan_id}.json").read_text() + str(render(plan))
    assert "${TOKEN}" in text
    assert "hunter2" not in text
    assert lab.url not in text


def test_export_that_cannot_be_planned_does_not_hide_the_others(lab: Lab) -> None:
    """One missing table is told by its name; the plan of the rest stands beside it."""
    config = lab.config(FULL, "{name: lost, table: nowhere, mode: full}")

    found = plan_exports(config)

    assert (["orders"], ["lost"]) == (
        [entry.export_name for entry in found.artefact.exports], [missing.export for missing in found.unplanned],
    )  # fmt: skip
    assert "! lost cannot be planned" in str(render(found.artefact, found.unplanned))
    assert json.dumps(plan_artefact.seal(found.artefact))


@pytest.mark.parametrize("engine", ["postgres"], indirect=True)
def test_plan_says_how_long_at_the_rate_of_its_runs(lab: Lab) -> None:
    """Unknown before the first run; afterwards on the terminal, in the artefact and on the asset's page."""
    config = lab.config(MODES["chunked"])
    (before,) = plan_exports(config).artefact.exports
    assert before.diagnostics.duration == ""

    (outcome,) = run_exports(config)
    assert outcome.success, outcome.message
    found = plan_exports(config).artefact

    told = found.exports[0].diagnostics.duration
    assert told.endswith("rows/s as its largest run")
    assert told in str(render(found))
    assert told == metadata(found.exports[0])["rivet/plan_duration"]


def rivet(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command line in the current folder."""
    return processes.run(processes.RIVET, *arguments, cwd=Path.cwd())


@pytest.mark.parametrize("engine", ["sqlite"], indirect=True)
def test_commands_plan_annotate_apply_and_refuse(lab: Lab) -> None:
    """The way of a user: plan with waves, apply once, be refused the second time, and after an edit of the file."""
    config = lab.config(FULL, "{name: items, table: orders, mode: incremental, cursor_column: id}")
    before = (lab.folder / "rivet.yaml").read_text()

    made = rivet("plan", "-o", "plan.json", "--expires", "2h", "--annotate-waves")
    assert (0, True) == (made.returncode, "rivet apply plan.json" in made.stderr)
    assert "Plan: 2 exports, 2 windows, about" in made.stdout
    waved = (lab.folder / "rivet.yaml").read_text()
    assert before.splitlines() == [line for line in waved.splitlines() if "wave:" not in line]
    assert {1, 2} >= {export.wave for export in load_config("rivet.yaml").exports}

    done = rivet("apply", "plan.json", "--json")
    document = json.loads(done.stdout)
    assert (0, [], []) == (done.returncode, document["forced"], document["warnings"])
    assert {"orders", "items"} == {export["export"] for export in document["exports"]}
    assert IDS == lab.ids("items")

    refused = rivet("apply", "plan.json")
    assert (4, True) == (refused.returncode, "was committed since" in refused.stderr)
    forced = rivet("apply", "plan.json", "--force", "--pool", "2")
    assert (0, True) == (forced.returncode, "forced: window all was committed since" in forced.stderr)

    plan = json.loads((lab.folder / "plan.json").read_text())
    (lab.folder / "plan.json").write_text(json.dumps(plan | {"expires_at": "2099-01-01T00:00:00Z"}))
    edited = rivet("apply", "plan.json", "--force")
    assert (1, True) == (edited.returncode, "its seal does not fit" in edited.stderr)
    assert config.exports[0].name == "orders"


@pytest.mark.parametrize("engine", ["sqlite"], indirect=True)
def test_plan_of_a_missing_table_exits_with_the_error_and_writes_nothing(lab: Lab) -> None:
    """Half a plan is no file."""
    lab.config(FULL, "{name: lost, table: nowhere, mode: full}")

    made = rivet("plan", "-o", "plan.json", "--json")

    assert (1, "", False) == (made.returncode, made.stdout, (lab.folder / "plan.json").exists())
    assert "~ orders" in made.stderr or "+ orders" in made.stderr
    assert "nowhere" in made.stderr.splitlines()[-1]
