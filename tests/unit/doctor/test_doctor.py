"""What `rivet doctor` asks, and how it says what does not answer."""

import json
import os
import sqlite3
import stat
import sys
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest

from rivet_assets.config.load import load_text
from rivet_assets.doctor import examine as doctor
from rivet_assets.doctor import machine as doctor_machine
from rivet_assets.doctor.examine import examine
from rivet_assets.doctor.report import document, exit_code, render
from rivet_assets.doctor.row import CATEGORIES, Row, fault_row
from rivet_assets.run.admit.scope import state_of
from rivet_assets.run.drain import LEASE
from rivet_resources import errors, extras
from rivet_resources.contracts.engine_facts import EngineFacts
from rivet_resources.contracts.evidence import Finding
from rivet_resources.engines.sqlserver import driver as sqlserver_driver
from rivet_resources.errors import ConfigError, LogBusy, RivetError, SourceAuth, SourcePermission
from rivet_resources.fan_out import side_by_side
from rivet_resources.state.checkpoints.stores import Checkpoint, state_checkpoints
from tests.fake_logs import IDENTITY, FakeLog, FakeSource, Gate, place, settle

FILES = """
source: {type: sqlite, path: SHOP}
spark: inline
exports:
  - {name: orders, table: orders, format: parquet, destination: {type: local, path: LAKE}}
  - {name: names, query: "SELECT name FROM orders", format: csv, destination: {type: local, path: LAKE}}
"""
CHANGES = """
source: {type: postgres, url_env: NOWHERE}
spark: inline
exports:
  - {name: changes, table: orders, mode: cdc, format: parquet, destination: {type: local, path: LAKE}}
"""


@pytest.fixture
def shop(tmp_path):
    """A configuration over a real SQLite file."""
    with closing(sqlite3.connect(tmp_path / "shop.db")) as connection:
        connection.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, name TEXT)")
    return loaded(tmp_path, FILES)


def loaded(folder: Path, text: str):
    """Load a configuration whose places are below a folder."""
    text = text.replace("SHOP", str(folder / "shop.db")).replace("LAKE", str(folder / "lake"))
    return load_text(text, file=folder / "rivet.yaml")


class Ward:
    """A change export whose source is a fake."""

    def __init__(self, folder: Path) -> None:
        self.log = FakeLog()
        self.source = FakeSource({"changes": self.log})
        self.config = loaded(folder, CHANGES).model_copy(update={"source": self.source})

    def drained(self, number: int, *, identity: str = IDENTITY, state: str = "draining", timestamp: int = 0) -> None:
        """Save a checkpoint as a drain does."""
        with closing(state_of(self.config)) as store:
            checkpoints, at = state_checkpoints(store), place(number)
            _, generation = checkpoints.take("postgres.changes")
            checkpoints.save(
                Checkpoint(
                    key="postgres.changes",
                    source_type="postgres",
                    position_type=at.type,
                    position=at.text,
                    sort_key=at.key,
                    metadata={"state": state},
                    generation=generation,
                    source_identity=identity,
                    run_id="r1",
                    timestamp=timestamp,
                )
            )

    def rows(self, about: str = "export changes") -> dict[str, Row]:
        """Ask, and give the rows of one subject by name."""
        return {row.name: row for row in examine(self.config) if row.about == about}


@pytest.fixture
def ward(tmp_path):
    """A change export, never drained."""
    return Ward(tmp_path)


def told(rows: list[Row]) -> list[tuple[str, str, str]]:
    """Return subject, name and status of each row."""
    return [(row.about.partition(" ")[0], row.name, row.status) for row in rows]


# --- files ---------------------------------------------------------------------------------------


def test_healthy_exports_are_all_ok(shop):
    """One connection per source, one probe per destination, one line per table."""
    rows = examine(shop)

    assert told(rows) == [
        ("spark", "engine", "ok"),
        ("machine", "drivers", "ok"),
        ("machine", "scratch", "ok"),
        ("machine", "dagster_home", "ok"),
        ("state", "open", "ok"),
        ("source", "connect", "ok"),
        ("source", "clock", "ok"),
        ("source", "version", "ok"),
        ("source", "journal_mode", "ok"),
        ("source", "folder", "ok"),
        ("export", "table orders", "ok"),
        ("export", "query", "ok"),
        ("destination", "write", "ok"),
        ("destination", "space", "ok"),
        ("export", "provenance", "ok"),
        ("export", "provenance", "ok"),
    ]
    assert ["2 columns"] == [row.text for row in rows if row.name == "table orders"]
    assert 0 == exit_code(rows)


def test_one_column_is_one_column(tmp_path):
    """And a table is described, not read."""
    with closing(sqlite3.connect(tmp_path / "shop.db")) as connection:
        connection.execute("CREATE TABLE orders (name TEXT)")

    rows = examine(loaded(tmp_path, FILES), ["orders"])

    assert ["1 column"] == [row.text for row in rows if row.name == "table orders"]


def test_nothing_is_left_behind(shop, tmp_path):
    """The probe is gone, no manifest and no part appeared."""
    examine(shop)

    assert [] == [path for path in (tmp_path / "lake").rglob("*") if path.is_file()]


def test_one_export_is_asked_for_by_name(shop):
    """Others, and what only they need, are left alone."""
    rows = examine(shop, ["names"])

    of_export = [row for row in told(rows) if row[0] == "export"]
    assert [("export", "query", "ok"), ("export", "provenance", "ok")] == of_export
    with pytest.raises(ConfigError, match="no export 'nams'"):
        examine(shop, ["nams"])


def test_missing_table_is_told_and_the_next_one_still_asked(tmp_path):
    """A refused statement may break its connection; the rest gets a new one."""
    with closing(sqlite3.connect(tmp_path / "shop.db")) as connection:
        connection.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, name TEXT)")
    config = loaded(tmp_path, FILES.replace("table: orders", "table: ordres"))

    rows = {(row.about, row.name): row for row in examine(config)}

    missing = rows["export orders", "table ordres"]
    assert ("fail", "not-found", "RIVET_SOURCE_UNKNOWN_TABLE") == (missing.status, missing.category, missing.code)
    assert "ok" == rows["export names", "query"].status
    assert 1 == exit_code(list(rows.values()))


@pytest.mark.skipif(os.getuid() == 0, reason="root may write anywhere")
def test_destination_that_refuses_is_told(shop, tmp_path):
    """By class: this one is a matter of rights."""
    (tmp_path / "lake").mkdir()
    (tmp_path / "lake").chmod(stat.S_IRUSR | stat.S_IXUSR)

    (row,) = [row for row in examine(shop) if row.name == "write"]

    assert ("fail", "permission") == (row.status, row.category)


def test_destination_that_is_a_file_is_told(shop, tmp_path):
    """The first export's folder cannot be made."""
    (tmp_path / "lake").write_text("a file")

    (row,) = [row for row in examine(shop) if row.name == "write"]

    assert ("fail", "destination", "RIVET_DESTINATION_REFUSED") == (row.status, row.category, row.code)


def test_state_store_that_cannot_be_opened_is_one_row(shop, tmp_path, monkeypatch):
    """The others are asked all the same."""
    monkeypatch.setenv("RIVET_STATE_URL", f"sqlite:///{tmp_path}/no/such/folder/state.db")

    rows = examine(shop)

    assert ("state", "open", "fail") in told(rows)
    assert ("source", "connect", "ok") in told(rows)


def test_java_is_found_without_starting_it(tmp_path, shop, monkeypatch):
    """Its version is read from a file; one that cannot run Spark is told with what helps."""
    config = shop.model_copy(update={"spark": loaded(tmp_path, FILES.replace("spark: inline", "spark: spark")).spark})
    found = {row.name: row for row in examine(config) if row.about == "spark"}
    assert {"java": "ok", "spark": "ok"} == {name: row.status for name, row in found.items()}

    monkeypatch.setattr(doctor_machine, "find_java", lambda: refuse(errors.SparkUnavailable("Spark needs Java 17.")))
    (row,) = [row for row in examine(config) if row.about == "spark"]
    assert ("java", "fail", "spark") == (row.name, row.status, row.category)


def test_drivers_are_told_with_their_versions(monkeypatch):
    """Each extra once, whoever needs it; what is missing is told with the command that brings it."""
    monkeypatch.setattr(doctor_machine, "version", lambda package: "1.0")
    monkeypatch.setitem(sys.modules, "pymysql", None)

    needed = [extras.POSTGRES, extras.MYSQL, extras.S3, extras.POSTGRES]
    rows = {row.name: row for row in doctor_machine.machine_rows(needed)}

    assert ("fail", 'pip install "rivet[mysql]"') == (rows["mysql"].status, rows["mysql"].fix)
    assert "pyarrow 1.0, psycopg 1.0, adbc-driver-postgresql 1.0, boto3 1.0" == rows["drivers"].text


@pytest.mark.parametrize(("home", "status"), [(None, "ok"), ("here", "ok"), (".", "warn"), ("nowhere", "fail")])
def test_dagsters_home_is_looked_at(tmp_path, monkeypatch, home, status):
    """A relative one depends on where Rivet is started, and one that is not there ends every run."""
    monkeypatch.delenv("DAGSTER_HOME", raising=False)
    if home is not None:
        monkeypatch.setenv("DAGSTER_HOME", {"here": str(tmp_path), "nowhere": f"{tmp_path}/no"}.get(home, home))

    (row,) = [row for row in doctor_machine.machine_rows([]) if row.name == "dagster_home"]

    assert status == row.status


@pytest.mark.parametrize(("skew", "expected"), [(0, []), (-60, [("clock", "warn")])])
def test_clock_of_the_state_store_is_compared(skew, expected):
    """Leases end by it, so a store on another host must agree with ours."""
    state = SimpleNamespace(now=lambda: datetime.now(UTC) + timedelta(seconds=skew))

    assert expected == [(row.name, row.status) for row in doctor_machine._store_clock(state)]


def refuse(error: Exception):
    """Raise it."""
    raise error


# --- sources -------------------------------------------------------------------------------------


def test_variable_that_is_not_set_is_told_before_any_connection(tmp_path, monkeypatch):
    """A real source, and nobody home: the row names the variable."""
    monkeypatch.delenv("NOWHERE", raising=False)

    rows = {(row.about, row.name): row for row in examine(loaded(tmp_path, CHANGES))}

    row = rows["source postgres", "connect"]
    assert ("fail", "config") == (row.status, row.category)
    assert "NOWHERE" in row.text


def test_server_that_is_not_there_is_a_matter_of_connectivity(tmp_path, monkeypatch):
    """Port 1 of this machine refuses at once; the password stays unsaid."""
    monkeypatch.setenv("NOWHERE", "postgresql://user:hunter2@127.0.0.1:1/shop")

    rows = examine(loaded(tmp_path, CHANGES))

    (row,) = [row for row in rows if (row.about, row.name) == ("source postgres", "connect")]
    assert ("fail", "connectivity", "RIVET_SOURCE_UNREACHABLE") == (row.status, row.category, row.code)
    assert "hunter2" not in str(render(rows)) + json.dumps(document(rows, config_path=None))


@pytest.mark.parametrize(
    ("error", "expected"),
    [(SourceAuth("No such user."), "auth"), (SourcePermission("GRANT SELECT ON orders TO u;"), "permission")],
)
def test_refusals_are_sorted(ward, error, expected):
    """People look for the kind first."""
    ward.source.refusal = error

    assert expected == ward.rows("source postgres")["connect"].category


@pytest.mark.parametrize(
    ("skew", "status", "text"),
    [(0, "ok", "s apart"), (90, "warn", "90 s ahead of"), (-3600, "warn", "3600 s behind")],
)
def test_clocks_are_compared(ward, skew, status, text):
    """Lags and windows of time are compared across both."""
    ward.source.clock = timedelta(seconds=skew)

    row = ward.rows("source postgres")["clock"]

    assert status == row.status
    assert text in row.text


def test_silent_source_ends_in_a_row(ward, monkeypatch):
    """Whatever hangs, the others have answered."""

    def impatient(asks, *, seconds):
        return side_by_side(asks, seconds=0.5)

    monkeypatch.setattr(doctor, "side_by_side", impatient)
    gate = ward.source.wait = Gate()

    row = ward.rows()["answer"]
    gate.open()
    settle()

    assert ("fail", "silent", "no answer in 0.5 s.") == (row.status, row.category, row.text)


def test_bug_shows_its_class_and_no_text(ward):
    """Texts of others may hold a secret."""
    ward.source.refusal = ValueError("postgresql://user:hunter2@db/shop")

    row = ward.rows("source postgres")["answer"]

    assert ("bug", "ValueError was raised, which is a bug of Rivet.") == (row.category, row.text)


# --- change logs ---------------------------------------------------------------------------------


def test_findings_of_the_server_are_told_of_the_source(ward):
    """Between the clock and the tables, with their fix; a missing right is a matter of permission."""
    ward.source.findings = (
        Finding("pooler", "warn", "a pooler stands between", "Name the server."),
        Finding("grants", "fail", "user u may not read orders", "GRANT SELECT ON orders TO u;"),
    )

    rows = ward.rows("source postgres")

    assert ["connect", "clock", "pooler", "grants"] == list(rows)
    assert ("", "permission") == (rows["pooler"].category, rows["grants"].category)


def test_findings_of_the_preflight_come_with_their_fix(ward):
    """As the log judged them, in its order."""
    ward.log.findings = (
        Finding("wal_level", "ok", "logical"),
        Finding("replica_identity orders", "fail", "no key", "ALTER TABLE orders REPLICA IDENTITY FULL"),
    )

    rows = ward.rows()

    assert ["checkpoint", "wal_level", "replica_identity orders"] == [
        name for name in rows if not name.startswith("table")
    ]
    assert "ALTER TABLE orders REPLICA IDENTITY FULL" == rows["replica_identity orders"].fix


@pytest.mark.parametrize(("drained", "expected"), [(False, False), (True, True)])
def test_log_that_is_not_set_up_is_looked_at_only_from_a_position(ward, drained, expected):
    """Before the first drain the look would repeat in other words what the findings say."""
    ward.log.findings = (Finding("cdc", "fail", "not enabled"),)
    ward.log.fault = errors.LogSetup("Change capture is not enabled.")
    if drained:
        ward.drained(90)

    assert expected == ("log" in ward.rows())


def test_checkpoint_is_told_with_its_age(ward):
    """None is fine before the first drain."""
    assert "none yet: the first drain begins where the log ends then" == ward.rows()["checkpoint"].text

    ward.drained(90)
    rows = ward.rows()

    assert rows["checkpoint"].text.endswith("ago by run r1")
    assert ("ok", "ok", "ok") == tuple(rows[name].status for name in ("position", "lag", "slot_budget"))
    assert "10 bytes unread" in rows["lag"].text


def test_first_run_that_did_not_come_far_is_a_warning(ward):
    """It goes on where it began."""
    ward.drained(90, state="copying")

    row = ward.rows()["checkpoint"]

    assert "warn" == row.status
    assert "(copying)" in row.text


@pytest.mark.parametrize(
    ("identity", "oldest", "category"), [("system_identifier:8", 0, "checkpoint"), (IDENTITY, 95, "position")]
)
def test_position_that_is_no_good_is_told(ward, identity, oldest, category):
    """A restored server, and a log that is gone: both need a new snapshot."""
    ward.drained(90, identity=identity)
    ward.log.oldest = oldest

    row = ward.rows()["position"]

    assert ("fail", category) == (row.status, row.category)
    assert "rivet state reset" in row.fix


def test_lag_is_judged(ward):
    """As the asset's check does."""
    ward.drained(90)
    ward.log.budget, ward.log.facts = 0.6, {"wal_status": "lost"}

    rows = ward.rows()

    assert ("warn", "fail") == (rows["lag"].status, rows["slot_budget"].status)


def test_damaged_checkpoint_is_told_and_the_log_still_asked(ward):
    """Two troubles are told at once."""
    ward.drained(90)
    with (
        closing(state_of(ward.config)) as state,
        state._database.write() as connection,
    ):
        connection.exec_driver_sql("UPDATE checkpoint SET position = '0/FF'")
    ward.log.findings = (Finding("wal_level", "fail", "replica"),)

    rows = ward.rows()

    assert ("fail", "checkpoint") == (rows["checkpoint"].status, rows["checkpoint"].category)
    assert "fail" == rows["wal_level"].status


def test_drain_that_runs_is_no_failure(ward):
    """The holder is named; a log that is busy is a warning."""
    ward.log.fault = LogBusy("Slot s is read by 17.")
    with closing(state_of(ward.config)) as state, state.lease("changes", LEASE, "r2"):
        rows = ward.rows()

    assert rows["drain"].text.startswith("run r2")
    assert ("warn", "busy") == (rows["log"].status, rows["log"].category)
    assert 0 == exit_code(list(rows.values()))


def test_source_without_a_log_is_told(ward, tmp_path):
    """Such as one whose engine has none."""
    config = ward.config.model_copy(update={"source": PlainSource()})

    (row,) = [row for row in examine(config) if row.name == "log"]

    assert ("fail", "setup") == (row.status, row.category)
    assert "mode: poll" in row.text


class PlainSource:
    """A source that cannot be opened for changes."""

    type = "sqlite"
    facts = EngineFacts()
    tuning = None
    session = FakeSource().session


# --- the report ----------------------------------------------------------------------------------

ROWS = [
    Row("connect", "ok", "postgres, signed in", about="source shop"),
    Row("table orders", "ok", "3 columns", about="export orders"),
    Row("clock", "warn", "90 s ahead", "Set both clocks.", "source shop"),
    Row(
        "log", "fail", "Slot s is gone.", "Take a new snapshot.", "export orders", "RIVET_LOG_POSITION_LOST", "position"
    ),
]


def test_report_is_read_from_top_to_bottom():
    """Rows of one subject stand together; what to do stands below what is wrong."""
    expected = """\
source shop
  ok    connect       postgres, signed in
  warn  clock         90 s ahead
                      → Set both clocks.

export orders
  ok    table orders  3 columns
  fail  log           position: Slot s is gone.
                      → Take a new snapshot.

4 checks: 2 ok, 1 warning, 1 failed"""

    assert expected == str(render(ROWS))


def test_document_has_the_fields_of_the_contract():
    """`contract.md`, 13.1; `ok` is false only for failures."""
    whole = document(ROWS, config_path=Path("rivet.yaml"))

    assert ("rivet.yaml", False) == (whole["config_path"], whole["all_ok"])
    assert whole["checks"][3] == {
        "about": "export orders", "name": "log", "ok": False, "status": "fail", "detail": "Slot s is gone.",
        "hint": "Take a new snapshot.", "code": "RIVET_LOG_POSITION_LOST", "category": "position",
    }  # fmt: skip
    assert [True, True, True, False] == [check["ok"] for check in whole["checks"]]
    assert document(ROWS[:3], config_path=None)["all_ok"]


def test_exit_code_is_one_only_for_failures():
    """A warning does not stop a deployment."""
    assert (0, 0, 1) == (exit_code([]), exit_code(ROWS[:3]), exit_code(ROWS))


def test_every_error_of_a_connection_has_a_category():
    """The table is complete: a class that a doctor may meet is not `other`."""
    met = (
        errors.SourceError,
        errors.DestinationError,
        errors.StateError,
        errors.CheckpointUnusable,
        errors.ConfigError,
    )
    kinds = [kind for kind in subclasses(RivetError) if issubclass(kind, met) and kind.__module__ == errors.__name__]
    unread = {  # raised while rows are read, which a doctor does not
        "StatementTimeout", "SnapshotLost", "UnknownColumn", "UnsupportedColumn", "SourceChanged", "LogRefused",
        "BoundsUnusable", "EndsUnknown", "SourceError",
    }  # fmt: skip

    sorted_out = {kind.__name__ for kind in kinds if any(issubclass(kind, known) for known, _, _ in CATEGORIES)}

    assert {kind.__name__ for kind in kinds} - unread == sorted_out
    assert all(fix for _, _, fix in CATEGORIES)


def subclasses(kind: type) -> list[type]:
    """List all descendants."""
    return [each for child in kind.__subclasses__() for each in (child, *subclasses(child))]


def test_unknown_error_keeps_its_text_and_code():
    """Nothing that Rivet says on purpose is lost."""
    row = fault_row("source shop", "connect", errors.SourceError("No."))

    assert ("fail", "No.", "RIVET_SOURCE_REFUSED", "other") == (row.status, row.text, row.code, row.category)


def test_driver_whose_library_is_missing_is_told_with_what_brings_it(monkeypatch):
    """It is installed, so only loading it shows; asked of the extra, whichever it is."""

    def broken() -> None:
        raise extras.LibraryMissing("The driver cannot be loaded: libltdl.so.7.")

    monkeypatch.setattr(sqlserver_driver, "load", broken)

    rows = {row.name: row for row in doctor_machine.machine_rows([extras.SQLSERVER])}

    row = rows["mssql-python"]
    assert ("fail", "driver", extras.SQLSERVER.libraries) == (row.status, row.category, row.fix)
