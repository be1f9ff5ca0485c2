"""`rivet check` on real servers: every mode looked at without reading a row, and every way it can go wrong told."""

from __future__ import annotations

import json
import time
from pathlib import Path

import psycopg
import pytest
from click.testing import CliRunner

from rivet_assets.cli.main import commands
from rivet_assets.preflight.check import check_exports, facts_of_check
from rivet_assets.preflight.checked import Checked
from rivet_assets.preflight.report import document, exit_code, render
from rivet_resources import registry
from rivet_resources.contracts.types import Column
from rivet_resources.errors import ConfigError
from tests.emulators.tds import server as tds
from tests.engines.test_modes import ALL_IDS, ORDERS, WHOLE_TABLE, order
from tests.lab import Lab, lab_in
from tests.lab_engines import ENGINES, Engine

pytestmark = pytest.mark.wide

everywhere = pytest.mark.parametrize("engine", ENGINES, indirect=True)
on_servers = pytest.mark.parametrize("engine", ["postgres", "mariadb", "mysql"], indirect=True)
on_postgres = pytest.mark.parametrize("engine", ["postgres"], indirect=True)

MODES = {
    **WHOLE_TABLE,
    "full in parallel": "{name: orders, table: orders, mode: full, parallel: 4}",
    "time_window": "{name: orders, table: orders, mode: time_window, time_column: at, start: 2026-01-01}",
    "time_window of dates": "{name: orders, table: orders, mode: time_window, time_column: day, start: 2026-01-01}",
    "poll": "{name: orders, table: orders, mode: poll, updated_at_column: at, primary_key: [id]}",
    "poll of marks": """{name: orders, table: orders, mode: poll, updated_at_column: at, primary_key: [id],
                         delete_detection: {type: soft_delete, column: moved}}""",
    "fallback": """{name: orders, table: orders, mode: incremental, cursor_column: moved,
                    incremental_cursor_mode: coalesce, cursor_fallback_column: at}""",
}


@pytest.fixture
def engine(request: pytest.FixtureRequest) -> Engine:
    """The engine a test runs on."""
    return ENGINES[request.param]


@pytest.fixture
def lab(tmp_path: Path, engine: Engine, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Lab:
    """A database with 240 hourly orders, an index on `at` and none on anything else, and an empty folder."""
    laboratory = lab_in(tmp_path, engine, request, monkeypatch)
    laboratory.create("orders", {**ORDERS, "moved": "instant"}, index=["at"])
    laboratory.insert("orders", map(order, ALL_IDS))
    laboratory.analyze("orders")
    return laboratory


def named(blocks: dict[str, str]) -> list[str]:
    """Return the blocks, each with a name of its own."""
    return [block.replace("name: orders", f"name: e{number}") for number, block in enumerate(blocks.values())]


def checked(lab: Lab, block: str, *, with_types: bool = False) -> Checked:
    """Check one export."""
    (found,) = check_exports(lab.config(block), with_types=with_types)
    return found


# --- what is told --------------------------------------------------------------------------------


@everywhere
def test_every_mode_is_checked_on_every_engine(lab: Lab) -> None:
    """A verdict, a strategy and the planner's word for each, and one table as small as this is never bad."""
    found = check_exports(lab.config(*named(MODES)))

    told = dict(zip(MODES, found, strict=True))
    assert {} == {mode: str(each.error) for mode, each in told.items() if each.error}
    unknown = {"chunk_by_days of dates"} if lab.engine.name == "sqlite" else set()
    bad = {mode for mode, each in told.items() if each.verdict not in ("EFFICIENT", "ACCEPTABLE")}
    assert bad <= unknown | {mode for mode in told if "query" in mode}  # SQLite estimates no rows of a query
    assert all(each.strategy and each.explained and each.reasons for each in found)
    assert all("orders" in each.explained[0].statement for each in found)
    assert {"EFFICIENT"} == {told[mode].verdict for mode in ("incremental", "chunk_size", "time_window", "poll")}


@pytest.mark.parametrize("engine", ["sqlserver"], indirect=True)
@pytest.mark.parametrize("mode", ["full", "incremental by number", "chunk_size", "keyset"])
def test_explained_statement_is_the_one_that_a_run_sends(lab: Lab, mode: str) -> None:
    """Seen on the wire: the page of the run is, to the letter, what was explained."""
    if not tds.is_emulated():
        pytest.skip("a real server does not tell what it was sent")
    told = checked(lab, WHOLE_TABLE[mode])
    tds.forget(lab.url)

    assert lab.export(WHOLE_TABLE[mode]).success

    assert told.explained[0].statement in tds.seen(lab.url)


@on_postgres
def test_check_goes_through_no_table(lab: Lab) -> None:
    """PostgreSQL counts scans: there is none, whatever the mode; only samples of blocks, of some 20,000 rows each."""

    def scans() -> tuple[int, int]:
        with psycopg.connect(lab.url, autocommit=True) as connection:
            row = connection.execute(
                "SELECT seq_scan, seq_tup_read FROM pg_stat_user_tables WHERE relname = 'orders'"
            ).fetchone()
        assert row is not None
        return row[0], row[1]

    lab.sql(
        "INSERT INTO orders (id, at, day, epoch, amount) SELECT n, now() - n * interval '1 min', current_date, n, 1 "
        "FROM generate_series(1000, 300000) AS n",
        "VACUUM ANALYZE orders",
        "SELECT pg_stat_force_next_flush()",
    )
    before = scans()
    found = check_exports(lab.config(*named(MODES)))

    deadline = time.monotonic() + 5  # counters of a session arrive a moment after its end
    while time.monotonic() < deadline and scans() == before:
        time.sleep(0.1)
    time.sleep(0.5)
    after = scans()
    assert [None] * len(MODES) == [each.error for each in found]
    assert before[0] == after[0]
    assert after[1] - before[1] < 100_000


@on_servers
def test_committed_cursor_makes_the_statement_of_the_next_run(lab: Lab) -> None:
    """What is explained then asks for what is new, and for the last value again, as each night does."""
    block = WHOLE_TABLE["incremental"]
    first = checked(lab, block)
    assert lab.export(block).success

    later = checked(lab, block)

    assert " >= " not in first.explained[0].statement
    assert " >= " in later.explained[0].statement


@everywhere
def test_range_of_an_indexed_cursor_is_read_at_its_two_ends(lab: Lab) -> None:
    """Exactly; of a column without index only where statistics tell, and then it is called an estimate."""
    indexed = checked(lab, WHOLE_TABLE["incremental by number"])
    other = checked(lab, "{name: orders, table: orders, mode: incremental, cursor_column: epoch}")

    assert (("0", "239"), True) == (indexed.cursor_range, indexed.range_is_exact)
    assert not other.range_is_exact


@pytest.mark.parametrize("engine", ["postgres", "mariadb"], indirect=True)
def test_drain_is_told_by_its_logs_preflight_and_its_tables(lab: Lab) -> None:
    """What the log demands, that there is no checkpoint, and how the copy would be read."""
    block = "{name: orders, tables: [orders], mode: cdc, cdc: {checkpoint: place.json, INITIAL}}"

    bare = checked(lab, block.replace(", INITIAL", ""))
    copied = checked(lab, block.replace("INITIAL", "initial: snapshot"))

    demanded = "wal_level" if lab.engine.name == "postgres" else "binlog_format"
    names = {finding.name: finding.status for finding in bare.findings}
    assert ("warn", "ok") == (names["cdc-checkpoint"], names[demanded])
    assert "ok" == {finding.name: finding.status for finding in copied.findings}["cdc-checkpoint"]
    assert ("ACCEPTABLE", True) == (bare.verdict, bare.strategy.startswith("cdc(initial=none, "))
    assert not (lab.folder / "place.json").exists()


def test_made_up_rows_are_checked_without_a_server(tmp_path: Path) -> None:
    """Nothing can hurt them."""
    told = made_up(tmp_path, "mode: chunked, chunk_column: _sequence, chunk_size: 1000, parallel: 2")

    assert ("EFFICIENT", 100_000, "other") == (told.verdict, told.rows_estimate, told.explained[0].scan)


def made_up(folder: Path, mode: str) -> Checked:
    """Check an export of a made-up stream."""
    from rivet_assets.config.load import load_text

    text = f"""
        source: {{type: datagen, max_events: 100000, include_sequence: true, seed: 1}}
        exports:
          - {{name: made, table: events, format: csv, destination: {{type: local, path: {folder}}}, {mode}}}
    """
    config = load_text(text, file=folder / "rivet.yaml")
    stream = config.source_of(config.exports[0])[1].stream.relation
    export = config.exports[0].model_copy(update={"table": stream})
    (found,) = check_exports(config.model_copy(update={"exports": (export,)}))
    return found


@everywhere
def test_parameters_of_a_query_are_not_shown(lab: Lab) -> None:
    """One may be a secret; the statement shows its name."""
    query = "query: 'SELECT * FROM orders WHERE note <> :token', params: {token: it's hush-hush}"

    told = checked(lab, f"{{name: orders, mode: full, {query}}}")

    assert (None, True) == (told.error, ":token" in told.explained[0].statement)
    assert "hush" not in json.dumps(document([told], config_path=None))


# --- large tables, told by their statistics --------------------------------------------------------


def pretend(lab: Lab, rows: int, *, table: str = "orders") -> None:
    """Write into PostgreSQL's catalog that a table is large."""
    lab.sql(f"UPDATE pg_class SET reltuples = {rows} WHERE relname = '{table}'")


@on_postgres
@pytest.mark.parametrize(
    ("mode", "rows", "verdict"),
    [
        ("mode: incremental, cursor_column: epoch", 10_000_000, "DEGRADED"),
        ("mode: incremental, cursor_column: epoch", 60_000_000, "UNSAFE"),
        ("mode: incremental, cursor_column: id", 10_000_000, "EFFICIENT"),
        ("mode: chunked, chunk_column: epoch, chunk_count: 16", 10_000_000, "UNSAFE"),
        ("mode: chunked, chunk_column: id, chunk_count: 16", 10_000_000, "EFFICIENT"),
        ("mode: time_window, time_column: day, start: 2026-01-01", 10_000_000, "UNSAFE"),
        ("mode: full", 10_000_000, "ACCEPTABLE"),
    ],
)
def test_missing_index_hurts_where_the_table_is_large(lab: Lab, mode: str, rows: int, verdict: str) -> None:
    """Each verdict that is not good comes with the index that would help, and the index does help."""
    pretend(lab, rows)
    block = f"{{name: orders, table: orders, {mode}}}"

    told = checked(lab, block)

    assert (verdict, rows) == (told.verdict, told.rows_estimate)
    if verdict in ("DEGRADED", "UNSAFE"):
        lab.sql(told.suggestions[0])
        pretend(lab, rows)
        assert checked(lab, block).verdict == ("EFFICIENT" if rows <= 10_000_000 else "ACCEPTABLE")


@on_postgres
def test_view_is_judged_by_the_planner_and_offered_no_index(lab: Lab) -> None:
    """It can have none; what lies behind it may."""
    lab.sql("CREATE VIEW shown AS SELECT * FROM orders")
    pretend(lab, 60_000_000)

    bad = checked(lab, "{name: a, table: shown, mode: incremental, cursor_column: epoch}")
    good = checked(lab, "{name: b, table: shown, mode: incremental, cursor_column: at}")

    assert "UNSAFE" == bad.verdict
    assert not any("CREATE INDEX" in suggestion for suggestion in bad.suggestions)
    assert ("ACCEPTABLE", "index") == (good.verdict, good.explained[0].scan)


@on_postgres
def test_unsafe_export_fails_only_a_strict_check(lab: Lab) -> None:
    """0 also for DEGRADED; the block and the document tell why."""
    pretend(lab, 90_000_000)
    told = [checked(lab, "{name: orders, table: orders, mode: incremental, cursor_column: epoch}")]

    assert (0, 1) == (exit_code(told, strict=False), exit_code(told, strict=True))
    assert "orders  UNSAFE" in str(render(told))
    assert "CREATE INDEX CONCURRENTLY" in str(render(told))
    (exported,) = json.loads(json.dumps(document(told, config_path=None)))["exports"]
    assert ("UNSAFE", "blocks") == (exported["verdict"], exported["explained"][0]["scan"])
    facts = facts_of_check(told[0])
    assert ("UNSAFE", 90_000_000) == (facts["verdict"], facts["rows_estimate"])
    assert all(isinstance(value, str | int | float | list) for value in facts.values())


@on_servers
def test_suggested_index_can_be_pasted_into_every_engine(lab: Lab) -> None:
    """Names are quoted as the engine does it, even evil ones."""
    quote = lab.engine.quote
    evil = 'at"`]; DROP TABLE orders; --'
    lab.sql(f"ALTER TABLE orders ADD COLUMN {quote(evil)} int NOT NULL DEFAULT 0")
    block = f"{{name: orders, table: orders, mode: incremental, cursor_column: {json.dumps(evil)}}}"
    told = checked(lab, block)

    from rivet_assets.preflight.verdict import VerdictFacts, create_index
    from rivet_resources.contracts.settings import pace

    relation = quote("orders")
    engine = registry.ENGINES[lab.engine.name].facts
    facts = VerdictFacts("orders", "incremental", engine, "", relation, pace(None, None), column=evil,
                  index_columns=(quote(evil), quote("id")), index_name=quote("rivet_orders_evil"))  # fmt: skip
    lab.sql(create_index(facts))

    assert (None, "ACCEPTABLE") == (told.error, told.verdict)
    assert "EFFICIENT" == checked(lab, block).verdict
    assert "ACCEPTABLE" == checked(lab, WHOLE_TABLE["full"]).verdict  # the table is still there


@pytest.mark.parametrize("engine", ["sqlite"], indirect=True)
def test_command_answers_with_an_exit_code(lab: Lab) -> None:
    """0 for a good export; 1 and the known names for an unknown one; one document with --json."""
    lab.config(WHOLE_TABLE["full"])
    ask = CliRunner()

    good = ask.invoke(commands, ["check", "--type-report"], standalone_mode=False)
    document_ = ask.invoke(commands, ["check", "-e", "orders", "--json", "--strict"], standalone_mode=False)
    unknown = ask.invoke(commands, ["check", "-e", "ordres"], standalone_mode=False)

    assert (0, True) == (good.return_value, "1 export: 1 ACCEPTABLE" in good.stdout)
    assert ["orders"] == [each["export"] for each in json.loads(document_.stdout)["exports"]]
    assert isinstance(unknown.exception, ConfigError)
    assert "there are orders" in str(unknown.exception)


@pytest.mark.parametrize("engine", ["sqlite"], indirect=True)
def test_check_leaves_nothing_behind(lab: Lab) -> None:
    """No store of state, no folder at the destination."""
    checked(lab, WHOLE_TABLE["incremental"])

    assert {"rivet.yaml", "source.db"} == {path.name for path in lab.folder.iterdir() if "-" not in path.name}


def test_made_up_values_are_ordered() -> None:
    """For every type that a key or a stamp can have; others get none."""
    import pyarrow as pa

    from rivet_assets.preflight.dry_session import make_up_bounds as made
    from rivet_resources.contracts.types import INSTANT, NAIVE, UUID

    kinds = [pa.int64(), pa.decimal128(9, 2), pa.float64(), pa.string(), pa.date32(), NAIVE, INSTANT, UUID]
    told = [made(Column("k", "", kind, "k"), rows=10) for kind in kinds]

    assert all(pair is not None and pair[0] < pair[1] for pair in told)
    assert made(Column("k", "", pa.binary(), "k"), rows=10) is None
