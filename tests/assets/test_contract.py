"""`contract:` from the file to Dagster: refused windows, yellow checks, contracts in files."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from importlib.resources import files
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import yaml
from click.testing import CliRunner
from jsonschema import Draft201909Validator

from rivet_assets.cli.main import commands
from rivet_assets.config.load import RivetConfig, load_config
from rivet_assets.launch.run_exports import Outcome, run_exports
from rivet_assets.plan.planner import plan_exports
from rivet_assets.preflight.check import check_exports
from rivet_assets.preflight.contract import check_contract, look
from rivet_assets.preflight.judged_rules import BEFORE, FILES, HASHES, ONE_PASS, contract_lines
from rivet_assets.preflight.report import exit_code
from rivet_assets.prove.quarantine import dead_letters
from rivet_assets.scaffold.odcs import document_of, text_of
from rivet_resources.commit.manifest import current_manifests
from rivet_resources.destinations.local import Local
from rivet_resources.errors import ConfigError
from tests.backfills import launch


class Orders:
    """A table of ten orders, of which the last is wrong, and an export of it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        rows = [(n, n % 3, "new", f"{n}@x", n, f"2026-01-0{1 + n % 2}T00:00:00") for n in range(9)]
        self.sql(
            "CREATE TABLE orders (id INTEGER PRIMARY KEY, line INTEGER, status TEXT, email TEXT, total INT, at TEXT)"
        )
        for row in [*rows, (9, 9, "lost", None, -1, "2026-01-01T00:00:00")]:
            self.sql("INSERT INTO orders VALUES (?, ?, ?, ?, ?, ?)", *row)

    def sql(self, statement: str, *values: object) -> None:
        """Run one statement at the source."""
        with closing(sqlite3.connect(self.folder / "shop.db")) as connection, connection:
            connection.execute(statement, values)

    def config(self, contract: Any, **keys: Any) -> RivetConfig:
        """Write and load the configuration."""
        export = {
            "name": "orders", "table": "orders", "format": "parquet", "columns": {"at": "timestamp"},
            "destination": {"type": "local", "path": str(self.folder / "lake")}, "contract": contract, **keys,
        }  # fmt: skip
        document = {"source": {"type": "sqlite", "path": str(self.folder / "shop.db")}, "spark": "inline"}
        path = self.folder / "rivet.yaml"
        path.write_text(yaml.safe_dump({**document, "exports": [export]}))
        return load_config(path)

    def run(self, contract: Any, *partitions: str, **keys: Any) -> Outcome:
        """Run the export under a contract."""
        [outcome] = run_exports(self.config(contract, **keys), partitions=partitions)
        return outcome

    @property
    def windows(self) -> set[str]:
        """Name what is published."""
        return set(current_manifests(Local(type="local", path=str(self.folder / "lake")).root("orders")))


@pytest.fixture
def orders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Orders:
    """A shop in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DAGSTER_HOME", raising=False)
    return Orders(tmp_path)


BROKEN = {
    "columns": {
        "id": {"type": "int8", "key": True},
        "line": {"key": True},
        "status": {"accepted_values": ["new", "paid"]},
        "email": {"required": True, "matches": "@"},
        "total": {"min": 0, "max": 8},
    },
    "rows": {"small": "total <= id"},
    "row_count": {"min": 10, "max": 10},
}
FAILED = {"accepted_values__status", "required__email", "min__total"}


def test_broken_rules_keep_the_window_back_and_are_named(orders):
    """One pass finds all of them; nothing is published."""
    outcome = orders.run(BROKEN)

    assert ("failed", 3, FAILED) == (outcome.status, outcome.exit_code, set(outcome.checks_failed))
    assert set() == orders.windows


def test_rules_that_warn_are_told_of_and_the_window_is_published(orders):
    """The same contract with `severity: warn`; one rule alone may still stop."""
    outcome = orders.run({**BROKEN, "severity": "warn"})

    assert ("success", ()) == (outcome.status, outcome.checks_failed)
    assert FAILED == {warning.partition(":")[0] for warning in outcome.warnings}
    assert {"all"} == orders.windows


def test_columns_that_differ_stop_before_a_row_is_read_and_are_a_red_check(orders):
    """The check that a person looks at says what differs."""
    instance = dg.DagsterInstance.ephemeral()

    run = launch(orders.config({"columns": {"gone": {}, "id": {"type": "text"}}}), instance)

    events = [each for each in run.all_events if each.event_type_value == "ASSET_CHECK_EVALUATION"]
    [found] = [each.asset_check_evaluation_data for each in events]
    assert ("contract_columns", False, dg.AssetCheckSeverity.ERROR) == (found.check_name, found.passed, found.severity)
    assert {"observed": 2, "threshold": 0, "rows": 0, "breaches": "gone, id"} == {
        name: value.value for name, value in found.metadata.items()
    }
    assert not run.success


def test_windows_are_judged_each_by_itself(orders):
    """A bad day is refused alone; both days have the verdicts of the contract."""
    days = {"mode": "time_window", "time_column": "at", "start": "2026-01-01", "end": "2026-01-03"}
    rules = {"columns": {"total": {"min": 0}}, "freshness": {"column": "at", "max_age": "1d"}}

    outcome = orders.run(rules, "2026-01-01...2026-01-02", **days)

    assert ("failed", {"2026-01-02"}) == (outcome.status, orders.windows)
    assert ("min__total 2026-01-01",) == outcome.checks_failed


def test_columns_that_differ_are_told_of_each_window(orders):
    """Each window has its red check, not only the run its failure."""
    days = {"mode": "time_window", "time_column": "at", "start": "2026-01-01", "end": "2026-01-03"}

    outcome = orders.run({"columns": {"gone": {}}}, "2026-01-01...2026-01-02", **days)

    assert {"contract_columns 2026-01-01", "contract_columns 2026-01-02"} == set(outcome.checks_failed)


def test_chunks_are_judged_together(orders):
    """Rows that break a rule are counted over all chunks, and a key repeats across them."""
    orders.sql("UPDATE orders SET line = 0, total = -2")
    rules = {"columns": {"line": {"unique": True}, "total": {"max": -3}}}

    outcome = orders.run(rules, mode="chunked", chunk_column="id", chunk_size=4, columns={})

    assert {"unique__line", "max__total"} == set(outcome.checks_failed)
    assert "max__total: 10 of 10 rows" in outcome.message
    assert "unique__line: 9 rows" in outcome.message


def test_masked_columns_are_judged_as_they_are_written(orders):
    """A rule sees the mask, not what is under it."""
    mask = [{"type": "mask", "fields": ["email"], "method": "redact"}]
    seen = {"columns": {"email": {"accepted_values": ["nothing of this kind"], "severity": "warn"}}}

    outcome = orders.run(seen, transforms=mask)

    assert "@" not in str(outcome.warnings)
    assert outcome.warnings


def test_contract_in_a_file_is_the_same_contract(orders):
    """`contract: file`, beside the configuration or below."""
    (orders.folder / "contracts").mkdir()
    (orders.folder / "contracts" / "orders.yaml").write_text(yaml.safe_dump(BROKEN))

    assert orders.config(BROKEN).exports == orders.config("contracts/orders.yaml").exports


def test_fault_in_a_contracts_file_has_its_line_there(orders):
    """And the line of the configuration that names the file."""
    (orders.folder / "c.yaml").write_text("columns:\n  id: {}\n  total:\n    min: 3\n    max: 1\n    mox: 2\n")

    with pytest.raises(ConfigError) as caught:
        orders.config("c.yaml")

    assert "c.yaml:6: contract.columns.total.mox" in str(caught.value)
    (orders.folder / "c.yaml").write_text("columns:\n  id: {}\n  total:\n    min: 3\n    max: 1\n")
    with pytest.raises(ConfigError, match=r"c.yaml:3: contract.columns.total: min 3 is above max 1"):
        orders.config("c.yaml")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (None, "cannot be read"),
        ("", "is empty"),
        ("a: [", "line 1"),
        ("- a", "is not a block"),
        ("a: 1\na: 2", "line 2"),
    ],
)
def test_file_that_is_no_contract_is_refused(orders, text, told):
    """Missing, empty, no YAML, a list, a key twice."""
    if text is not None:
        (orders.folder / "c.yaml").write_text(text)

    with pytest.raises(ConfigError, match=told):
        orders.config("c.yaml")


@pytest.mark.parametrize(
    ("contract", "told"),
    [
        ({"columns": {"total": {"accepted_values": ["many"]}}}, "no whole number"),
        ({"freshness": {"column": "email", "max_age": 1}}, "wants a date"),
        ({"freshness": {"column": "gone", "max_age": 1}}, "'gone'"),
        ({"rows": {"odd": "total + 1"}}, "true or false"),
        ({"sql": {"odd": "select count(*) from rows where nothing > 1"}}, "nothing"),
        ({"sql": {"odd": "select count(*) from '/etc/passwd'"}}, "sql__odd"),
        ({"sql": {"odd": "select count(*) from read_text('rivet.yaml')"}}, "PermissionException"),
        ({"sql": {"odd": "drop table rows"}}, "one SELECT"),
        ({"sql": {"odd": "select id, total from rows"}}, "no single number"),
        ({"sql": {"odd": 'select max("at") from rows'}}, "no single number"),
    ],
)
def test_rule_that_does_not_fit_the_table_is_refused_before_a_row_is_read(orders, contract, told):
    """With the values that the configuration gives, and what to do."""
    outcome = orders.run(contract)

    assert ("failed", 0) == (outcome.status, outcome.rows)
    assert told in outcome.message


def test_sql_reads_the_whole_window_before_it_is_published(orders):
    """All chunks and files of it, as one table; the number and its bound are told."""
    rules = {
        "sql": {
            "no_negative": "select count(*) from rows where total < 0",
            "all_there": {"query": "select count(distinct id) from rows", "min": 10, "max": 10},
            "middle": {"query": "select avg(total) from rows", "max": 100, "severity": "warn"},
        }
    }

    outcome = orders.run(rules, mode="chunked", chunk_column="id", chunk_size=4)

    assert ("failed", ("sql__no_negative",)) == (outcome.status, outcome.checks_failed)
    assert "sql__no_negative: 1, 0 wanted" in outcome.message
    assert set() == orders.windows


def test_sql_that_gives_null_is_no_number_and_passes_for_none(orders):
    """`sum` over no row is NULL, which is within no bounds; the text says what to write instead."""
    nothing = "select sum(total) from rows where id > 1000"

    outcome = orders.run(
        {"sql": {"open": nothing, "nan": "select 'nan'::float", "zero": f"select coalesce(({nothing}), 0)"}}
    )

    assert {"sql__open", "sql__nan"} == set(outcome.checks_failed)
    assert "gives NULL, which is no number (write coalesce(…, 0)" in outcome.message


def test_check_tells_before_a_run_what_a_contract_judges_and_what_it_costs(orders):
    """Severities, the rules that the one pass does not answer, and columns that a run would be stopped for."""
    rules = {
        "columns": {"id": {"unique": True}, "total": {"min": 0, "severity": "warn"}, "gone": {}},
        "sql": {"no": "select 0"},
    }

    [checked] = check_exports(orders.config(rules))

    told = {each.check: (each.severity, each.cost) for each in checked.contract}
    assert {"contract_columns": ("stop", BEFORE), "min__total": ("warn", ONE_PASS)}.items() <= told.items()
    assert {"unique__id": ("stop", HASHES), "sql__no": ("stop", FILES)}.items() <= told.items()
    assert [("contract_columns", "fail")] == [(each.name, each.status) for each in checked.findings][:1]
    assert 1 == exit_code([checked], strict=False)
    assert "only warns: min__total" in [*contract_lines(checked.contract)]


def test_plan_says_what_a_contract_judges(orders):
    """As notes, beside what the source says."""
    unsealed = plan_exports(orders.config({"row_count": {"min": 1}}))

    [entry] = unsealed.artefact.exports
    assert "contract: keeps a window back: row_count_min" in entry.computed.notes


def test_sql_of_a_window_without_rows_sees_an_empty_table(orders):
    """There is no file to read."""
    orders.sql("DELETE FROM orders")

    outcome = orders.run({"sql": {"none": "select count(*) from rows"}})

    assert ("success", ()) == (outcome.status, outcome.checks_failed)


def test_sql_where_no_file_can_be_read_is_refused_by_the_configuration(orders):
    """Formats of text, and stores that show nothing before it is published."""
    with pytest.raises(ConfigError, match="reads Parquet parts from a local disk"):
        orders.config({"sql": {"none": "select 1"}}, format="csv")


def test_volume_is_held_against_the_runs_of_before(orders):
    """Five like one another, then one that lost half of its rows: it is kept back."""
    rules = {"volume": {"history": 5, "at_least": 2}}
    first, second = orders.run(rules), orders.run(rules)
    orders.sql("DELETE FROM orders WHERE id > 4")

    third = orders.run(rules)

    assert ("success", "success", "failed") == (first.status, second.status, third.status)
    assert "volume: 5, at least 9 and at most 11 wanted; by the last 2 runs" in third.message


# --- the commands --------------------------------------------------------------------------------


def test_exported_contract_is_of_the_standard_and_holds_for_its_own_table(orders):
    """What `rivet contract export` writes, a run keeps; and the standard's own schema takes it."""
    config = orders.config(None)
    text = text_of(document_of("orders", *look(config, config.export("orders"))))
    (orders.folder / "orders.odcs.yaml").write_text(text)

    Draft201909Validator(json.loads((files("open_data_contract_standard") / "schema.json").read_text())).validate(
        yaml.safe_load(text)
    )
    outcome = orders.run("orders.odcs.yaml")

    assert ("success", ()) == (outcome.status, outcome.warnings)
    assert {"name": "id", "logicalType": "integer", "physicalType": "INTEGER", "primaryKey": True}.items() <= (
        yaml.safe_load(text)["schema"][0]["properties"][0].items()
    )


def test_contract_is_held_against_the_source_without_a_row(orders):
    """A column that was dropped since is told of before any run."""
    config = orders.config({"columns": {"id": {}, "email": {"min": "a"}}})
    before = check_contract(config, "orders")
    orders.sql("ALTER TABLE orders DROP COLUMN email")

    after = check_contract(config, "orders")

    assert (True, False, "email is not there") == (before.columns.passed, after.columns.passed, after.columns.text)
    with pytest.raises(ConfigError, match="has no `contract:`"):
        check_contract(orders.config(None), "orders")


ASIDE = {
    "columns": {
        "status": {"accepted_values": ["new"], "severity": "dead_letter"},
        "email": {"required": True, "severity": "dead_letter"},
        "total": {"min": 0},
    },
    "rows": {"small": {"check": "total <> 4", "severity": "dead_letter"}},
}
CHUNKED = {"mode": "chunked", "chunk_column": "id", "chunk_size": 4}


@pytest.mark.parametrize("steps", [[], [{"type": "filter", "where": "id <> 2"}]])
@pytest.mark.parametrize("mode", [{}, CHUNKED])
def test_rows_that_break_a_contract_are_set_aside_and_the_others_published(orders, mode, steps):
    """Each for its first rule, with its own key, also behind a filter; rules that stop judge what is left."""
    outcome = orders.run(ASIDE, transforms=steps, **mode)

    [manifest] = current_manifests(Local(type="local", path=str(orders.folder / "lake")).root("orders")).values()
    letters = [*dead_letters(orders.config(ASIDE, transforms=steps, **mode).exports[0])]
    assert ("success", (), 8 - len(steps)) == (outcome.status, outcome.checks_failed, manifest.row_count)
    assert {(4, "breaks small"), (9, "is NULL")} == {(each["key"]["id"], each["reason"]) for each in letters}
    assert {"required__email", "rows__small", "row_errors"} <= {
        warning.partition(":")[0] for warning in outcome.warnings
    }


def test_too_many_rows_set_aside_keep_the_window_back(orders):
    """`max_errors` bounds them with all others."""
    outcome = orders.run(ASIDE, max_errors=1)

    assert ("failed", ("row_errors",), set()) == (outcome.status, outcome.checks_failed, orders.windows)


def test_replay_of_single_chunks_keeps_to_the_contract(orders):
    """A row that fits by now comes back; one of the same chunk that does not stays a dead letter."""
    config = orders.config(ASIDE, **CHUNKED)
    run_exports(config)
    orders.sql("UPDATE orders SET status = 'new', email = 'a@x', total = 1 WHERE id = 9")
    orders.sql("UPDATE orders SET email = NULL WHERE id = 5")

    ended = CliRunner().invoke(commands, ["quarantine", "replay", "--execute"])

    assert (0, True) == (ended.exit_code, "read again" in ended.output), ended.output
    [manifest] = current_manifests(Local(type="local", path=str(orders.folder / "lake")).root("orders")).values()
    assert {4, 5} == {each["key"]["id"] for each in dead_letters(config.exports[0])}
    assert (8, 2) == (manifest.row_count, manifest.quarantine.rows)


@pytest.mark.parametrize(
    ("contract", "keys", "told"),
    [
        ({"columns": {"id": {"type": "int8", "severity": "dead_letter"}}}, {}, "no rule is about single rows"),
        (ASIDE, {"destination": {"type": "stdout"}}, "stdout keeps none"),
        ({"severity": "dead_letter"}, {}, "severity"),
    ],
)
def test_rows_cannot_be_set_aside_where_none_are_judged_or_kept(orders, contract, keys, told):
    """When the file is read."""
    with pytest.raises(ConfigError, match=told):
        orders.config(contract, **keys)
