"""What is left and told after a run: summary, files, journal, proofs, messages to people, errors for scripts."""

from __future__ import annotations

import json
import os
import pty
import re
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import dagster as dg
import pytest
import yaml
from click.shell_completion import BashComplete

from rivet_assets.cli import main as cli
from rivet_assets.config.load import load_config
from rivet_assets.dagster.sensors import failure_sensor
from rivet_assets.dagster.sensors.failure_sensor import NAME, NotifiedConfig, tell_failure
from rivet_assets.definitions import definitions_of
from rivet_assets.launch.prove_after_run import proved
from rivet_assets.launch.run_exports import run_exports
from rivet_assets.prove.prove_run import Proofs
from rivet_assets.run.admit.scope import state_of
from tests.servers.receiver import Receiver, receiver

ROOT = Path(__file__).parents[2]
CANARY = "4929-1234-canary"
GOOD = {"name": "orders", "table": "orders"}
REFUSED = {"name": "refused", "table": "orders", "quality": {"unique_columns": ["card"]}}
MISSING = {"name": "missing", "table": "nowhere"}


@dataclass
class Answer:
    """What a command left on the terminal."""

    code: int
    out: str
    err: str

    @property
    def last(self) -> dict[str, str]:
        """Read the last line of stderr as JSON."""
        told: dict[str, str] = json.loads(self.err.splitlines()[-1])
        return told


@dataclass
class Place:
    """A folder with a SQLite file of orders and a rivet.yaml; commands run in this process."""

    folder: Path
    monkeypatch: pytest.MonkeyPatch
    capsys: pytest.CaptureFixture[str]

    def configure(self, *exports: dict[str, object], **more: object) -> None:
        """Write rivet.yaml with these exports, as Parquet into ./lake."""
        common = {"format": "parquet", "destination": {"type": "local", "path": "lake"}}
        source = {"type": "sqlite", "path": "shop.db", "tuning": {"profile": "fast"}}
        document = {"source": source, "spark": "inline", "exports": [common | export for export in exports], **more}
        (self.folder / "rivet.yaml").write_text(yaml.safe_dump(document, sort_keys=False))

    def sql(self, text: str) -> None:
        """Change the source."""
        with closing(sqlite3.connect(self.folder / "shop.db")) as connection:
            connection.executescript(text)

    def rivet(self, *arguments: str) -> Answer:
        """Run `rivet …` to its end."""
        self.monkeypatch.setattr(sys, "argv", ["rivet", *arguments])
        self.capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main()
        told = self.capsys.readouterr()
        return Answer(int(ended.value.code or 0), told.out, told.err)

    def summaries(self, export: str) -> list[dict[str, object]]:
        """Read the summary files of an export, oldest first."""
        files = sorted((self.folder / ".rivet" / "runs").glob(f"{export}_*/summary.json"))
        return [json.loads(file.read_text()) for file in files]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Place:
    """A folder and 20 orders, two with the same card."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DAGSTER_HOME", raising=False)
    made = Place(tmp_path, monkeypatch, capsys)
    made.sql(
        "CREATE TABLE orders (id INTEGER PRIMARY KEY, card TEXT);"
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 20) "
        f"INSERT INTO orders SELECT i, CASE WHEN i > 2 THEN 'card ' || i ELSE '{CANARY}' END FROM n;"
    )
    return made


@pytest.fixture
def hooks(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Receiver, Receiver]]:
    """Serve a Slack and a webhook at $SLACK and $HOOK."""
    with receiver() as slack, receiver() as hook:
        monkeypatch.setenv("SLACK", slack.url)
        monkeypatch.setenv("HOOK", hook.url)
        yield slack, hook


EVERYTHING = ["failure", "schema_change", "degraded", "recovered"]
TOLD = {
    "slack": {"webhook_url_env": "SLACK", "on": EVERYTHING},
    "webhook": {"url_env": "HOOK", "on": EVERYTHING},
}


def test_run_leaves_summary_files_and_a_journal(place: Place) -> None:
    """Both files, the aggregate and the journal tell of the same runs; the refused one says how to go on."""
    place.configure(GOOD, REFUSED)

    answer = place.rivet("run", "--summary-output", "all.json")

    (good,), (bad,) = place.summaries("orders"), place.summaries("refused")
    total = json.loads((place.folder / "all.json").read_text())
    assert (3, 3, 20) == (answer.code, total["exit_code"], total["rows"])
    assert ("success", 20, "sqlite", "local") == (
        good["status"], good["total_rows"], good["source_engine"], good["destination_kind"],
    )  # fmt: skip
    assert ("failed", "RIVET_QUALITY_REFUSED") == (bad["status"], bad["error_code"])
    assert str(bad["resume_command"]).endswith("-e refused")
    entries = json.loads(place.rivet("journal", "-e", "refused", "--json").out)
    events = [entry["event"] for entry in entries]
    assert ["PlanResolved", "ChunkCompleted", "QualityIssue", "RunCompleted"] == [
        e for e in events if e != "PlanWarning"
    ]
    assert {bad["run_id"]} == {entry["run_id"] for entry in entries}
    assert "RIVET_QUALITY_REFUSED" in place.rivet("journal", "--run-id", str(bad["run_id"])).out
    files = [path.read_text() for path in (place.folder / ".rivet").rglob("summary.*")]
    assert CANARY not in "".join(files) + json.dumps(entries) + json.dumps(total)


def test_metrics_tell_where_rows_went_and_what_it_cost(place: Place) -> None:
    """A run's row has source, destination, rows read and harm; one run is shown whole by its id."""
    place.configure(GOOD)
    place.rivet("run")

    (run,) = json.loads(place.rivet("metrics", "--json").out)
    whole = place.rivet("metrics", "--run-id", run["run_id"])
    unknown = place.rivet("metrics", "--run-id", "nothing")

    assert ("sqlite", "local", 20) == (run["source_type"], run["destination_type"], run["rows_read"])
    assert run["harm"]["longest_statement_ms"] > 0
    assert re.search(r"total_rows +20\b", whole.out)
    assert (1, True) == (unknown.code, "`rivet metrics` lists" in unknown.err)


def test_proofs_are_in_summary_and_progression(place: Place) -> None:
    """`--reconcile` validates too; what is proved of the current commit is the verified boundary."""
    place.configure(GOOD)
    before = json.loads(place.rivet("state", "progression", "--json").out)

    answer = place.rivet("run", "--reconcile", "--json")

    (export,) = json.loads(answer.out)["exports"]
    (after,) = json.loads(place.rivet("state", "progression", "--json").out)
    assert (0, True, True) == (answer.code, export["validation"]["passed"], export["reconciliation"]["matched"])
    assert "validated: parts pass, source rows pass" in answer.err
    assert [(None, None)] == [(row["committed"], row["verified"]) for row in before]
    assert ("all", "all", "reconcile", 1) == (
        after["committed"], after["verified"], after["verified_by"], after["matching"],
    )  # fmt: skip


def test_export_that_must_be_reconciled_is_without_being_asked(place: Place) -> None:
    """`reconcile_required: true` proves that export after each run, and no other."""
    place.configure(GOOD | {"reconcile_required": True}, GOOD | {"name": "other"})

    answer = place.rivet("run", "--json")

    strict, other = json.loads(answer.out)["exports"]
    assert (0, True, None) == (answer.code, strict["reconciliation"]["matched"], other["reconciliation"])


def test_source_that_has_more_rows_than_were_published_is_exit_code_3(place: Place) -> None:
    """What is published stays; the outcome fails with a code and says so."""
    place.configure(GOOD)
    config = load_config(place.folder / "rivet.yaml")
    (outcome,) = run_exports(config)
    place.sql("INSERT INTO orders VALUES (99, 'late')")

    with closing(state_of(config)) as state:
        found = proved(config, outcome, Proofs(validate=True, reconcile=True), state=state, tell=print)

    assert ("success", "failed", 3, "RIVET_RECONCILE_MISMATCH") == (
        outcome.status, found.status, found.exit_code, found.code,
    )  # fmt: skip
    assert {"source_count": 21, "exported_rows": 20, "matched": False}.items() <= (found.reconciliation or {}).items()
    assert "is published, but does not match its source" in found.message


def test_part_that_is_gone_is_exit_code_3(place: Place) -> None:
    """A damaged lake is told with the code of what is wrong."""
    place.configure(GOOD)
    config = load_config(place.folder / "rivet.yaml")
    (outcome,) = run_exports(config)
    for part in (place.folder / "lake").rglob("*.parquet"):
        part.unlink()

    with closing(state_of(config)) as state:
        found = proved(config, outcome, Proofs(validate=True), state=state, tell=print)

    assert ("failed", 3, "RIVET_VERIFY_PART_MISSING") == (found.status, found.exit_code, found.code)
    assert found.validation is not None
    assert (False, 1) == (found.validation["passed"], found.validation["manifest"]["parts_failed"])


# --- messages ------------------------------------------------------------------------------------


def test_people_hear_of_failure_and_recovery_but_of_no_row(place: Place, hooks: tuple[Receiver, Receiver]) -> None:
    """A refused run, then a good one: two messages each, without any cell of the table; a good one more is silent."""
    slack, hook = hooks
    place.configure(REFUSED, notifications=TOLD)
    place.rivet("run")
    place.sql("UPDATE orders SET card = 'other' WHERE id = 1")
    place.rivet("run")

    place.rivet("run")

    assert [("failure", "failed"), ("recovered", "success")] == [(b["event"], b["status"]) for b in hook.bodies]
    assert "RIVET_QUALITY_REFUSED" == hook.bodies[0]["code"]
    assert ["#e74c3c", "#f39c12"] == [body["attachments"][0]["color"] for body in slack.bodies]
    assert CANARY not in b"".join(slack.raw + hook.raw).decode()


def test_drift_is_told(place: Place, hooks: tuple[Receiver, Receiver]) -> None:
    """A column more: the run succeeds, its summary says which, and whoever asked hears of it."""
    place.configure(GOOD, notifications=TOLD)
    place.rivet("run")
    place.sql("ALTER TABLE orders ADD COLUMN nick TEXT")

    answer = place.rivet("run")

    assert "schema:   CHANGED: added nick" in answer.err
    assert [("schema_change", True)] == [(body["event"], body["schema_changed"]) for body in hooks[1].bodies]
    assert "added nick" == place.summaries("orders")[-1]["schema_changes"]


def test_receiver_that_fails_changes_no_exit_code(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A refusing Slack and a missing variable are two warnings; the run's own code stands."""
    monkeypatch.delenv("HOOK", raising=False)
    place.configure(MISSING, notifications=TOLD)
    with receiver(403) as slack:
        monkeypatch.setenv("SLACK", slack.url)
        answer = place.rivet("run")

    assert 1 == answer.code
    assert "warning: notifications.slack was not told: HTTP 403" in answer.err
    assert "warning: notifications.webhook was not told: the environment variable HOOK is not set" in answer.err
    assert slack.url not in answer.err


# --- Dagster -------------------------------------------------------------------------------------


def test_dagster_tells_of_failures_by_sensor_and_of_the_rest_itself(
    place: Place, hooks: tuple[Receiver, Receiver]
) -> None:
    """A failed run is told by the sensor, once it will not be tried again; the good one after it tells by itself."""
    place.configure(REFUSED, notifications={**TOLD, "webserver_url": "http://localhost:3000"})
    config = load_config(place.folder / "rivet.yaml")
    job = definitions_of(config).resolve_implicit_global_asset_job_def()
    with dg.DagsterInstance.ephemeral() as instance:
        failed = job.execute_in_process(instance=instance, raise_on_error=False)
        unheard = len(hooks[1].raw)
        run = failed.dagster_run
        skipped = [
            tell_failure([NotifiedConfig(config)], run.with_tags({**run.tags, **tags}), instance)
            for tags in ({"dagster/will_retry": "true"}, {"rivet/started_by": "rivet run"})
        ]
        after_skips = len(hooks[1].raw)
        (sensor,) = [each for each in definitions_of(config).sensors or () if each.name == NAME]
        (event,) = [each for each in failed.all_events if each.event_type_value == "PIPELINE_FAILURE"]
        sensor(dg.build_run_status_sensor_context(NAME, event, instance, run))
        place.sql("UPDATE orders SET card = 'other' WHERE id = 1")
        again = job.execute_in_process(instance=instance)

    assert (0, [[], []], 0) == (unheard, skipped, after_skips)
    assert [("failure", run.run_id), ("recovered", "refused")] == [
        (body["event"], body["run_id"] if body["event"] == "failure" else body["run_id"].split("_")[0])
        for body in hooks[1].bodies
    ]
    assert "RIVET_QUALITY_REFUSED" == hooks[1].bodies[0]["code"]
    assert ["sqlite/refused", "sqlite/refused"] == [body["asset_key"] for body in hooks[1].bodies]
    assert [run.run_id, again.run_id] == [body["dagster_run_id"] for body in hooks[1].bodies]
    assert f"http://localhost:3000/runs/{run.run_id}" == hooks[1].bodies[0]["run_url"]
    assert CANARY not in b"".join(hooks[0].raw + hooks[1].raw).decode()


def test_run_that_crashed_is_told_for_what_it_was_to_make(place: Place, hooks: tuple[Receiver, Receiver]) -> None:
    """A process that dies leaves no failed step: the exports it was to make are told, with a code of their own."""
    place.configure(GOOD, notifications=TOLD)
    config = load_config(place.folder / "rivet.yaml")
    job = definitions_of(config).resolve_implicit_global_asset_job_def()
    with dg.DagsterInstance.ephemeral() as instance:
        run = instance.create_run_for_job(job, asset_selection=frozenset({dg.AssetKey(["sqlite", "orders"])}))
        lines = tell_failure([NotifiedConfig(config)], run, instance)

    assert [] == lines
    assert [("failure", "orders", "RIVET_RUN_STOPPED")] == [
        (body["event"], body["export"], body["code"]) for body in hooks[1].bodies
    ]


def test_tick_that_waited_for_a_receiver_ends_with_the_run_that_it_told_of(
    place: Place, hooks: tuple[Receiver, Receiver], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dagster ends a tick after a minute and forgets it: who answered would be told of five runs again and again."""
    monkeypatch.setattr(failure_sensor, "SLOW_SECONDS", 0.0)
    place.configure(MISSING, notifications=TOLD)
    definitions = definitions_of(load_config(place.folder / "rivet.yaml"))
    job, repository = definitions.resolve_implicit_global_asset_job_def(), definitions.get_repository_def()
    (sensor,) = [each for each in definitions.sensors or () if each.name == NAME]
    told = []
    with dg.DagsterInstance.ephemeral() as instance:

        def tick(cursor: str | None) -> str | None:
            context = dg.build_sensor_context(instance=instance, cursor=cursor, repository_def=repository)
            return sensor.evaluate_tick(context).cursor

        cursor = tick(None)
        for _ in range(2):
            job.execute_in_process(instance=instance, raise_on_error=False)
        for _ in range(3):
            cursor = tick(cursor)
            told.append(len(hooks[1].raw))

    assert [1, 2, 2] == told


def test_files_share_one_sensor_and_need_it_only_for_failures(place: Place) -> None:
    """Two configurations with `notifications:` make one sensor; without the block, or for recoveries only, none."""
    names = []
    for exports, block in ((GOOD, TOLD), (REFUSED, TOLD), (MISSING, {"slack": {"on": ["recovered"]}})):
        place.configure(exports, notifications=block)
        names.append(load_config(place.folder / "rivet.yaml"))

    def sensors(*configs: object) -> list[str]:
        found = definitions_of(*configs).sensors or ()  # type: ignore[arg-type]
        return [sensor.name for sensor in found if sensor.name == NAME]

    assert ([NAME], []) == (sensors(*names), sensors(names[2]))


# --- for scripts ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (("run", "-e", "ordrs"), 1, ("RIVET_CONFIG_INVALID", "permanent")),
        (("run", "-e", "missing"), 1, ("RIVET_SOURCE_UNKNOWN_TABLE", "permanent")),
        (("run", "-e", "refused", "-q"), 3, ("RIVET_QUALITY_REFUSED", "integrity")),
    ],
)
def test_json_error_is_the_last_line(
    place: Place, arguments: tuple[str, ...], code: int, told: tuple[str, str]
) -> None:
    """Whatever else stands on stderr, its last line is the error with its stable code; without the option it is not."""
    place.configure(GOOD, MISSING, REFUSED)

    answer = place.rivet("--json-errors", *arguments)
    plain = place.rivet(*arguments)

    assert (code, code) == (answer.code, plain.code)
    assert told == (answer.last["code"], answer.last["exit_class"])
    assert {"error", "code", "exit_class"} == set(answer.last)
    assert '"exit_class"' not in plain.err


def test_unknown_export_lists_those_that_exist(place: Place) -> None:
    """The line for scripts has the names too."""
    place.configure(GOOD, MISSING)

    assert "orders, missing" in place.rivet("--json-errors", "metrics", "-e", "ordrs").last["error"]


def test_command_that_only_found_something_has_the_line_too(place: Place) -> None:
    """Also where nothing was raised a script gets its one line."""
    place.configure(MISSING)

    answer = place.rivet("--json-errors", "doctor", "--json")

    assert (1, "RIVET_FINDINGS", "permanent") == (answer.code, answer.last["code"], answer.last["exit_class"])
    assert json.loads(answer.out)


@pytest.mark.parametrize("arguments", [("run", "--force"), ("run", "--parallel-exports"), ("run", "--nothing"), ("x",)])
def test_wrong_arguments_are_permanent(place: Place, arguments: tuple[str, ...]) -> None:
    """Exit code 1 and the line for scripts, as 2 means that it may pass; options of the original say what to do."""
    place.configure(GOOD)

    answer = place.rivet("--json-errors", *arguments)

    assert (1, "RIVET_USAGE", "permanent") == (answer.code, answer.last["code"], answer.last["exit_class"])
    if "--force" in arguments:
        assert "rivet state reset" in answer.err
    assert not (place.folder / "lake").exists()


def test_quiet_run_says_nothing_when_all_went_well(place: Place) -> None:
    """`-q --json` leaves one document on stdout and not a word on stderr."""
    place.configure(GOOD)

    answer = place.rivet("run", "-q", "--json", "--resume")

    assert (0, "", True) == (answer.code, answer.err, json.loads(answer.out)["success"])


def test_terminal_shows_live_lines_and_then_the_summary(place: Place) -> None:
    """On a real terminal the running export has a line, which is gone at the end."""
    place.configure(GOOD)
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ |= {"PYTHONPATH": str(ROOT), "TERM": "xterm", "COLUMNS": "100"}
        os.environ.pop("NO_COLOR", None)
        os.execv(sys.executable, [sys.executable, "-m", "rivet_assets.cli.main", "run"])
    written = b""
    try:
        while piece := os.read(terminal, 65536):
            written += piece
    except OSError:  # how Linux says that the other end is closed
        pass
    _, status = os.waitpid(pid, 0)
    text = written.decode()

    assert 0 == os.waitstatus_to_exitcode(status), text
    assert "orders: 0 of " in text
    assert "\r\x1b[2K" in text
    assert "orders: 0 of " not in text.rpartition("\x1b[2K")[2]
    assert "\x1b[32m  status:" in text  # green
    # A short export may be committed between two draws; its line is then drawn once more, and gone at the end.
    assert max(text.index("orders: 0 of "), text.index("orders committed")) < text.index("status:")


def test_completion_knows_commands_and_exports(place: Place) -> None:
    """Every command completes, and `-e` the names of the config that `-c` names."""
    place.configure(GOOD, REFUSED)
    (place.folder / "rivet.yaml").rename("other.yaml")
    shell = BashComplete(cli.commands, {}, "rivet", "_RIVET_COMPLETE")

    def offered(arguments: list[str], incomplete: str) -> list[str]:
        return [item.value for item in shell.get_completions(arguments, incomplete)]

    assert list(cli.COMMANDS) == offered([], "")
    assert ["orders"] == offered(["journal", "-c", "other.yaml", "-e"], "o")
    assert ["orders", "refused"] == offered(["run", "-c", "other.yaml", "--export"], "")
    assert [] == offered(["run", "-e"], "o")
    assert {"progression", "chunks"} <= set(offered(["state"], ""))
    assert "--summary-output" in offered(["run"], "--s")


def test_bash_completes(place: Place) -> None:
    """The script that `rivet completions bash` prints works in a bash."""
    place.configure(GOOD)
    script = place.rivet("completions", "bash").out
    (place.folder / "rivet").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m rivet_assets.cli.main "$@"\n')
    (place.folder / "rivet").chmod(0o755)
    ask = 'COMP_WORDS=(rivet journal -e o); COMP_CWORD=3; _rivet_completion rivet; echo "${COMPREPLY[@]}"'

    done = subprocess.run(
        ["bash", "-c", f"{script}\n{ask}"], cwd=place.folder, text=True, capture_output=True, check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PATH": f"{place.folder}:{os.environ['PATH']}"},
    )  # fmt: skip

    assert "orders" == done.stdout.strip()
