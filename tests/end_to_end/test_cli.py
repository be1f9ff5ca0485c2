"""The command line as a user meets it: arguments in; exit code, stderr and stdout out."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest
import yaml

from rivet_assets.cli.commands.completions import SHELLS
from rivet_assets.config.load import config_json_schema
from tests import processes

ROOT = Path(__file__).parents[2]
TABLES = """
CREATE TABLE orders (id bigint PRIMARY KEY, at timestamptz NOT NULL, note text);
INSERT INTO orders
SELECT n, timestamptz '2026-01-01 00:00+00' + n * interval '1 hour', NULLIF('note ' || n % 3, 'note 0')
FROM generate_series(0, 95) n;
"""
ORDERS = {"name": "orders", "table": "orders", "mode": "incremental", "cursor_column": "id"}
ALL = {"name": "all", "table": "orders"}
DAYS = {"name": "days", "table": "orders", "mode": "time_window", "time_column": "at", "start": "2026-01-01"}
MISSING = {"name": "missing", "table": "no_such_table"}


@dataclass(frozen=True)
class Answer:
    """What a command left on the terminal."""

    code: int
    out: str
    err: str


@dataclass(frozen=True)
class Shell:
    """A folder with a rivet.yaml, and a way to run commands there."""

    folder: Path
    environment: dict[str, str]

    def configure(self, *exports: dict[str, object], spark: object = "inline") -> None:
        """Write rivet.yaml with these exports, as Parquet into ./lake."""
        common = {"format": "parquet", "destination": {"type": "local", "path": "lake"}}
        source = {"type": "postgres", "url_env": "SHOP_URL", "environment": "local"}
        document = {"source": source, "spark": spark, "exports": [common | export for export in exports]}
        (self.folder / "rivet.yaml").write_text(yaml.safe_dump(document, sort_keys=False))

    def rivet(self, *arguments: str) -> Answer:
        """Run `rivet …` to its end, in a process of its own."""
        done = processes.run(processes.RIVET, *arguments, cwd=self.folder, env=self.environment)
        return Answer(done.returncode, done.stdout, done.stderr)


@pytest.fixture
def shell(tmp_path: Path, fresh_database: str) -> Shell:
    """A folder, and a database with 96 hourly orders over four days."""
    with psycopg.connect(fresh_database, autocommit=True) as connection:
        connection.execute(TABLES)
    kept = {name: text for name, text in os.environ.items() if not name.startswith(("DAGSTER_HOME", "RIVET_"))}
    return Shell(tmp_path, {**kept, "SHOP_URL": fresh_database, "PYTHONPATH": str(ROOT)})


def test_version_answers_without_loading_anything_heavy() -> None:
    """`rivet --version` imports neither Dagster nor Spark nor a driver."""
    heavy = ("dagster", "pyspark", "pyarrow", "psycopg")
    code = f"import rivet_assets.cli.main, sys; print([name for name in {heavy} if name in sys.modules])"

    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, text=True, capture_output=True, check=True)

    assert "[]" == done.stdout.strip()


def test_run_says_what_it_did_on_stderr_only(shell: Shell) -> None:
    """The summary names status, rows, files and quality; stdout stays free; the parts are there."""
    shell.configure({**ALL, "quality": {"row_count_min": 96}})

    answer = shell.rivet("run")

    assert (0, "") == (answer.code, answer.out)
    for line in ("export:", "status:   success", "rows:     96", "files:    1", "quality:  pass"):
        assert line in answer.err
    assert len(list((shell.folder / "lake" / "all").glob("*.parquet"))) == 1


def test_json_is_one_document_on_stdout(shell: Shell) -> None:
    """`--json` leaves exactly one JSON document on stdout."""
    shell.configure(ALL, ORDERS)

    document = json.loads(shell.rivet("run", "--json").out)

    assert (True, 192) == (document["success"], document["rows"])
    assert ["all", "orders"] == [export["export"] for export in document["exports"]]


@pytest.mark.spark
def test_tiny_table_through_spark(shell: Shell) -> None:
    """Without `spark: inline` the same happens in a JVM."""
    shell.configure(ALL, spark={"master": "local[2,3]"})

    answer = shell.rivet("run")

    assert (0, True) == (answer.code, "rows:     96" in answer.err)


def test_failed_export_does_not_stop_its_siblings(shell: Shell) -> None:
    """The sibling is committed; the fault is one clear line without traceback or address; the exit code is 1."""
    shell.configure(MISSING, ALL)

    answer = shell.rivet("run")

    assert 1 == answer.code
    assert "no_such_table" in answer.err
    assert "Traceback" not in answer.err
    assert shell.environment["SHOP_URL"] not in answer.err
    assert (shell.folder / "lake" / "all" / "_SUCCESS").exists()


def test_worst_exit_code_wins(shell: Shell) -> None:
    """A refused window (3) outweighs a missing table (1)."""
    shell.configure(MISSING, {**ALL, "quality": {"row_count_min": 1000}})

    answer = shell.rivet("run")

    assert 3 == answer.code
    assert "quality:  FAIL (row_count_min)" in answer.err


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (("run", "-e", "ordrs"), 1, "all, orders, days"),
        (("run", "-c", "absent.yaml"), 1, "absent.yaml"),
        (("run", "-p", "x"), 1, "-p KEY=VALUE"),
        (("run", "-e", "all", "--partition", "2026-01-01"), 1, "no partitions"),
        (("run", "-e", "days", "--partition", "2025-12-31"), 1, "2025-12-31"),
        (("run", "-e", "days", "--partition-range", "2026-01-03...2026-01-02"), 1, "ends before it begins"),
        (("run", "--partition-range", "2026-01-03"), 1, "..."),
        (("run", "--no-such-option"), 1, "No such option"),
        (("state", "reset", "-e", "ordrs"), 1, "ordrs"),
    ],
)
def test_wrong_arguments_say_what_is_allowed(shell: Shell, arguments: tuple[str, ...], code: int, told: str) -> None:
    """A wrong argument runs nothing and names what there is."""
    shell.configure(ALL, ORDERS, DAYS)

    answer = shell.rivet(*arguments)

    assert (code, "") == (answer.code, answer.out)
    assert told in answer.err
    assert "Traceback" not in answer.err
    assert not (shell.folder / "lake").exists()


def test_range_of_windows_runs_each_of_them(shell: Shell) -> None:
    """Both ends of a range belong to it; other exports are left alone."""
    shell.configure(DAYS, ALL)

    answer = shell.rivet("run", "--partition-range", "2026-01-02...2026-01-03")

    assert 0 == answer.code, answer.err
    assert ["dt=2026-01-02", "dt=2026-01-03"] == sorted(p.name for p in (shell.folder / "lake/days").glob("dt=*"))
    assert not (shell.folder / "lake" / "all").exists()


def test_windows_that_do_not_follow_each_other(shell: Shell) -> None:
    """`--partition` may be repeated; windows between are not touched."""
    shell.configure(DAYS)

    answer = shell.rivet("run", "--partition", "2026-01-01", "--partition", "2026-01-04")

    assert 0 == answer.code, answer.err
    assert ["dt=2026-01-01", "dt=2026-01-04"] == sorted(p.name for p in (shell.folder / "lake/days").glob("dt=*"))


def test_params_fill_the_config(shell: Shell) -> None:
    """`-p KEY=VALUE` fills `${KEY}`."""
    shell.configure({"name": "few", "query": "SELECT * FROM orders WHERE id < ${MOST}"})

    answer = shell.rivet("run", "-p", "MOST=7")

    assert (0, True) == (answer.code, "rows:     7" in answer.err), answer.err


def test_state_is_shown_reset_and_rebuilt(shell: Shell) -> None:
    """`show` has the cursor, `files` the parts, `reset` forgets, `rebuild` finds both again from the manifests."""
    shell.configure(ORDERS)
    shell.rivet("run")
    shown = shell.rivet("state", "show", "--json")
    files = shell.rivet("state", "files", "-e", "orders")
    shell.rivet("state", "reset", "-e", "orders")
    forgotten = shell.rivet("state", "show", "--json")
    (shell.folder / ".rivet_state.db").unlink()
    rebuilt = shell.rivet("state", "rebuild")
    again = shell.rivet("state", "show", "--json")

    cursors = [json.loads(answer.out)[0]["cursor"] for answer in (shown, forgotten, again)]
    assert ["95", "(reset)", "95"] == cursors
    assert ".parquet" in files.out
    assert 0 == rebuilt.code, rebuilt.err


def test_metrics_list_runs_newest_first(shell: Shell) -> None:
    """Each run is a line: mode, status, rows."""
    shell.configure(ORDERS, ALL)
    shell.rivet("run", "-e", "orders")
    shell.rivet("run", "-e", "all")

    runs = json.loads(shell.rivet("metrics", "--json").out)

    assert [("all", "success", 96), ("orders", "success", 96)] == [
        (run["export"], run["status"], run["total_rows"]) for run in runs
    ]
    assert "incremental" in shell.rivet("metrics", "-e", "orders").out


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupt_is_one_line(shell: Shell, number: int) -> None:
    """Ctrl-C ends a run with 130 and no traceback, and the statement that it waits for at the server."""
    shell.configure({"name": "slow", "query": "SELECT pg_sleep(30)::text AS a"})
    process = processes.Process(processes.RIVET, "run", cwd=shell.folder, env=shell.environment)
    sleeping = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND datname = current_database()"
    with psycopg.connect(shell.environment["SHOP_URL"], autocommit=True) as connection:
        while process.poll() is None and connection.execute(sleeping).fetchone() == (0,):
            pass
        process.send_signal(number)
        _, err = process.communicate(timeout=60)
        left = connection.execute(sleeping).fetchone()

    assert (130, False, (0,)) == (process.returncode, "Traceback" in err, left), err


@pytest.mark.parametrize("shell_name", SHELLS)
def test_completion_script(shell: Shell, shell_name: str) -> None:
    """There is a script for each shell."""
    answer = shell.rivet("completions", shell_name)

    assert (0, True) == (answer.code, "_RIVET_COMPLETE" in answer.out)


def test_schema_for_editors(shell: Shell) -> None:
    """`rivet schema config` prints the schema the loader uses."""
    assert config_json_schema() == json.loads(shell.rivet("schema", "config").out)


# --- the README ----------------------------------------------------------------------------------


def test_shortest_example_of_the_readme_runs(tmp_path: Path) -> None:
    """The first example needs no database and no variable, and publishes what the README shows."""
    example = re.findall(r"```yaml\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)[0]
    (tmp_path / "rivet.yaml").write_text(f"{example}\nspark: inline\n")
    kept = {name: text for name, text in os.environ.items() if not name.startswith(("DAGSTER_HOME", "RIVET_"))}

    answer = Shell(tmp_path, {**kept, "PYTHONPATH": str(ROOT)}).rivet("run")

    assert 0 == answer.code, answer.err
    assert "rows:     88,823" in answer.err
