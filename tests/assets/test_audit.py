"""The audit log: who ran, approved, repaired, reset and replayed what, by the commands and in Dagster."""

from __future__ import annotations

import getpass
import json
import socket
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from rivet_assets.config.load import load_config
from rivet_assets.definitions import definitions_of
from rivet_assets.run.actor import actor_of_run, command_line
from rivet_resources.state.store import State, default_url, open_state
from tests import processes

ME = f"{getpass.getuser()}@{socket.gethostname()}"
BLOCK = """
source: {type: sqlite, path: FOLDER/shop.db}
spark: inline
exports:
  - name: orders
    table: orders
    mode: incremental
    cursor_column: id
    format: parquet
    on_error: dead_letter
    transforms: [{type: cast, columns: {note: int8}}]
    destination: {type: local, path: FOLDER/lake}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A configuration and its database: three orders, one of which does not fit."""
    (tmp_path / "rivet.yaml").write_text(BLOCK.replace("FOLDER", str(tmp_path)))
    with closing(sqlite3.connect(tmp_path / "shop.db")) as connection:
        connection.executescript(
            "CREATE TABLE orders (id integer PRIMARY KEY, note TEXT);INSERT INTO orders VALUES (1, '1'), (2, 'hunter2')"
        )
    return tmp_path


def rivet(folder: Path, *words: str, code: int = 0) -> str:
    """Run a command to its end; what it printed."""
    done = processes.run(processes.RIVET, *words, cwd=folder)
    assert code == done.returncode, done.stderr
    return done.stdout


def log_of(folder: Path, *words: str) -> list[dict[str, Any]]:
    """Read the audit log by its command."""
    found: list[dict[str, Any]] = json.loads(rivet(folder, "audit", "--json", *words))
    return found


def test_commands_are_noted_with_who_typed_them(folder: Path) -> None:
    """In their order, each with what it was about; looking at things is no action."""
    rivet(folder, "run", "-q")
    rivet(folder, "plan", "-o", "plan.json")
    rivet(folder, "apply", "plan.json")
    for words in (("status",), ("check",), ("reconcile",), ("quarantine", "replay"), ("quarantine", "drop")):
        rivet(folder, *words)
    rivet(folder, "quarantine", "replay", "--execute")
    rivet(folder, "quarantine", "drop", "--execute")
    rivet(folder, "state", "reset", "-e", "orders")
    found = log_of(folder)

    assert ["run", "apply", "run", "replay", "repair", "run", "drop", "reset"] == [each["action"] for each in found]
    assert {ME} == {each["actor"] for each in found}
    assert {"orders"} == {each["export"] for each in found}
    plan = json.loads((folder / "plan.json").read_text())
    assert plan["plan_id"] == found[1]["detail"]["plan_id"]
    assert "2" == found[-1]["detail"]["committed"]
    assert [True, False] == [bool(found[number]["run_id"]) for number in (0, 1)]
    assert ["run", "run"] == [each["action"] for each in log_of(folder, "--action", "run", "--last", "2")]
    assert "hunter2" not in json.dumps(found)
    assert ME in rivet(folder, "audit")


def test_run_that_fails_was_asked_for_all_the_same(folder: Path) -> None:
    """What was tried stays in the log."""
    text = (folder / "rivet.yaml").read_text()
    (folder / "rivet.yaml").write_text(text.replace("    on_error: dead_letter\n", ""))
    rivet(folder, "run", "-q", code=3)

    assert ["run"] == [each["action"] for each in log_of(folder)]


def test_dagster_is_named_with_who_asked_it(folder: Path) -> None:
    """A schedule, a backfill, a user of Dagster+; else it was somebody at the page, of whom Dagster knows no name."""
    config = load_config(folder / "rivet.yaml")
    job = definitions_of(config).resolve_implicit_global_asset_job_def()
    with dg.DagsterInstance.ephemeral() as instance:
        for tags in ({}, {"dagster/schedule_name": "nightly"}, {"user": "anna"}):
            assert job.execute_in_process(instance=instance, tags=tags).success
    found = [each["actor"] for each in log_of(folder)]

    assert [f"Dagster, {word} ({ME})" for word in ("by hand", "schedule nightly", "user anna")] == found


def test_user_without_a_name_has_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in containers that run under any number."""

    def refuse() -> str:
        raise KeyError("getpwuid(): uid not found: 1000700000")

    monkeypatch.setattr(getpass, "getuser", refuse)

    assert command_line().partition("@")[0].isdigit()
    assert "Dagster, backfill abc" in actor_of_run({"dagster/backfill": "abc"})


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_log_is_kept_by_export_and_project(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """The newest are shown, oldest of them first; another export's are not among them."""
    url = default_url(tmp_path) if kind == "sqlite" else request.getfixturevalue("fresh_database")
    with closing(open_state(url)) as opened:
        state: State = opened.used_by("anna@here")
        for number in range(3):
            state.note_action("reset", "orders", {"number": number})
        state.used_by("ben@there").note_action("repair", "customers", {})

        newest = state.audit_log("orders", last=2)
        repaired = state.audit_log(action="repair")

    assert [1, 2] == [each.detail["number"] for each in newest]
    assert [("customers", "ben@there")] == [(each.export, each.actor) for each in repaired]
