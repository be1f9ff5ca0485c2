"""What sources tell of themselves while they are read: pressure, counters, and what a reading cost them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from rivet_resources.contracts.evidence import Effort, Gauge, Pressure
from rivet_resources.contracts.settings import Tuning, pace
from rivet_resources.contracts.source import TypeRules
from rivet_resources.engines.datagen.source import Datagen
from rivet_resources.engines.mysql.gauge import digest
from rivet_resources.engines.mysql.source import MySql
from rivet_resources.engines.postgres.source import Postgres
from rivet_resources.engines.shared.gauge import pressure_of
from rivet_resources.engines.sqlite.source import Sqlite
from rivet_resources.engines.sqlserver import gauge as sqlserver_gauge
from rivet_resources.engines.sqlserver.source import SqlServer
from tests.lab import Lab
from tests.lab_engines import ENGINES, Engine

pytestmark = pytest.mark.wide

ROWS = 3_000
SESSIONS = 9  # more than the server can have besides
PACE = pace(Tuning(throttle_ms=0), None)
SOURCES: dict[str, Callable[[str], Any]] = {
    "postgres": lambda url: Postgres(url=url),
    "mariadb": lambda url: MySql(type="mariadb", url=url),
    "mysql": lambda url: MySql(url=url),
    "sqlserver": lambda url: SqlServer(url=url),
    "sqlite": lambda path: Sqlite(path=path),
}
# What each engine tells to a user who may see everything. The emulator of SQL Server has few of its views.
SERVER = {"active", "lock_waits", "log_waits", "connections", "connections_limit"}
TOLD = {
    "postgres": SERVER,
    "mariadb": SERVER,
    "mysql": SERVER,
    "sqlserver": {"connections", "connections_limit"},
    "sqlite": set[str](),
}
on_servers = pytest.mark.parametrize("engine", ["postgres", "mariadb", "mysql"], indirect=True)


@pytest.fixture
def engine(request: pytest.FixtureRequest) -> Engine:
    """The engine a test runs on."""
    return ENGINES[request.param]


@pytest.fixture
def lab(tmp_path: Path, engine: Engine, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Lab:
    """A database with one table of some thousand rows."""
    laboratory = Lab(tmp_path, request.getfixturevalue(engine.fixture), engine)
    monkeypatch.setenv("LAB_URL", laboratory.url)
    laboratory.create("orders", {"id": "whole", "note": "note"})
    laboratory.insert("orders", ({"id": i, "note": f"note {i}"} for i in range(ROWS)))
    laboratory.analyze("orders")
    return laboratory


def source_of(lab: Lab) -> Any:
    """Return the laboratory's database as a source."""
    return SOURCES[lab.engine.name](lab.url)


def gauge_of(lab: Lab) -> Any:
    """Open its gauge."""
    return source_of(lab).gauge(application="rivet:orders", pace=PACE)


def await_look(gauge: Gauge, is_wanted: Callable[[Pressure], bool]) -> Pressure:
    """Look until it is so, for at most ten seconds; the last look."""
    until = time.monotonic() + 10
    while not is_wanted(look := gauge.look()) and time.monotonic() < until:
        time.sleep(0.05)
    return look


@contextmanager
def beside(work: Callable[[], None]) -> Iterator[None]:
    """Do something else meanwhile."""
    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        thread.join(timeout=20)


def read(lab: Lab, where: str = "") -> tuple[int, Effort]:
    """Read the table as a task does; its rows, and what the reading cost."""
    source, rows, efforts = source_of(lab), 0, []
    with source.session(application="rivet:orders", pace=PACE) as session:
        relation = session.describe(table="orders", query=None, params={}, rules=TypeRules(columns={}))

        def reading(chunk: Any) -> Iterator[Any]:
            efforts.append(
                (yield from source.pages(
                    chunk, relation.columns, snapshot=session.snapshot, application="rivet:orders", pace=PACE,
                    wait=lambda rows: None,
                ))
            )  # fmt: skip

        for chunk in session.chunks(relation, where=where, pieces=1):
            rows += sum(page.table.num_rows for page in reading(chunk))
    (effort,) = efforts
    return rows, effort


@pytest.mark.parametrize("engine", ENGINES, indirect=True)
def test_look_tells_what_the_engine_tells(lab: Lab) -> None:
    """A look has a latency and exactly the numbers that this engine has; nothing is made up."""
    with gauge_of(lab) as gauge:
        look = gauge.look()
        counters = gauge.counters()

    assert 0 < look.latency_ms < 2_000
    assert TOLD[lab.engine.name] == {name for name in SERVER if getattr(look, name) is not None}
    assert (TOLD[lab.engine.name] == SERVER) == bool(counters)
    assert all(value >= 0 for value in counters.values())


@on_servers
def test_session_that_waits_for_a_lock_is_seen_until_it_has_it(lab: Lab) -> None:
    """One session holds a row, another wants it: one lock wait, which ends with the wait."""
    update = "UPDATE orders SET note = 'held' WHERE id = 1"
    with gauge_of(lab) as gauge, lab.writer() as holding:
        holding.execute(update)
        with beside(lambda: lab.sql(update)):
            waiting = await_look(gauge, lambda look: look.lock_waits == 1)
            holding.commit()
        after = await_look(gauge, lambda look: look.lock_waits == 0)

    assert (1, 0) == (waiting.lock_waits, after.lock_waits)


@on_servers
def test_our_own_reading_is_no_activity_and_that_of_others_is(lab: Lab) -> None:
    """Long statements count when others run them, not when tasks of ours do; the server has guests besides them."""
    sleep = {"postgres": "SELECT pg_sleep(2)"}.get(lab.engine.name, "SELECT SLEEP(2)")

    def others() -> None:
        lab.sql(sleep)

    def ours() -> None:
        if lab.engine.name == "postgres":
            with psycopg.connect(lab.url, application_name="rivet:billing") as connection:
                connection.execute(sleep.encode())
        else:
            lab.sql(f"/* rivet:billing */ {sleep}")

    with gauge_of(lab) as gauge:
        with many(others, SESSIONS):
            seen = await_look(gauge, lambda look: (look.active or 0) >= SESSIONS)
        await_look(gauge, lambda look: (look.active or 0) < SESSIONS)
        with many(ours, SESSIONS):
            connected = await_look(gauge, lambda look: (look.connections or 0) > SESSIONS)
            active = [gauge.look().active or 0 for _ in range(10) if not time.sleep(0.05)]

    assert (seen.active or 0) >= SESSIONS
    assert (connected.connections or 0) > SESSIONS
    assert max(active) < SESSIONS


@contextmanager
def many(work: Callable[[], None], times: int) -> Iterator[None]:
    """Do the same in many threads meanwhile."""
    with ExitStack() as stack:
        for _ in range(times):
            stack.enter_context(beside(work))
        yield


def test_server_that_hides_its_sessions_leaves_the_rest(fresh_database: str) -> None:
    """A user who may not see others' sessions gets no number of them, not a wrong one; what he may see stays."""
    with psycopg.connect(fresh_database, autocommit=True) as admin:
        admin.execute("CREATE ROLE gauged LOGIN PASSWORD 'gauged'")
        try:
            url = fresh_database.replace("postgres@", "gauged:gauged@") if "postgres@" in fresh_database else ""
            source = Postgres(url=url) if url else Postgres(url=fresh_database + "&user=gauged&password=gauged")
            with source.gauge(application="rivet:orders", pace=PACE) as gauge:
                look = gauge.look()
        finally:
            admin.execute("DROP ROLE gauged")

    assert (None, None) == (look.active, look.lock_waits)
    assert look.connections is not None
    assert look.connections >= 2
    assert look.connections_limit


def test_counter_grows_with_what_the_server_spills(fresh_database: str) -> None:
    """A sort that does not fit into memory shows in the growth of temp_bytes."""
    with Postgres(url=fresh_database).gauge(application="rivet:orders", pace=PACE) as gauge:
        before = gauge.counters()
        with psycopg.connect(fresh_database) as connection:
            connection.execute("SET work_mem = '64kB'")
            connection.execute("SELECT count(*) FROM (SELECT i FROM generate_series(1, 200000) AS i ORDER BY -i) AS s")
        until = time.monotonic() + 10
        while gauge.counters()["temp_bytes"] == before["temp_bytes"] and time.monotonic() < until:
            time.sleep(0.05)

        assert gauge.counters()["temp_bytes"] > before["temp_bytes"] + 500_000


@on_servers
def test_reading_a_whole_table_costs_the_server_each_row_once(lab: Lab) -> None:
    """Rows scanned are rows read, over one connection."""
    rows, effort = read(lab)

    assert ROWS == rows
    assert effort.rows_scanned is not None
    assert ROWS <= effort.rows_scanned <= ROWS * 1.02
    assert 1 == effort.connections
    assert effort.longest_transaction_ms > 0


@on_servers
def test_looking_for_few_rows_without_an_index_is_told(lab: Lab) -> None:
    """A predicate that no index serves makes the server go through the table, and that shows: but not in the rows."""
    rows, effort = read(lab, where="note = 'note 7'")

    assert 1 == rows
    assert effort.rows_scanned is not None
    # PostgreSQL counts what a block scan returns, after its filter; the others what the scan goes through.
    assert effort.rows_scanned >= (1 if lab.engine.name == "postgres" else ROWS)


@pytest.mark.parametrize("engine", ["sqlite", "sqlserver"], indirect=True)
def test_engine_that_counts_no_rows_tells_its_transaction(lab: Lab) -> None:
    """What is not counted is not told; connections and the longest transaction always are."""
    rows, effort = read(lab)

    assert (ROWS, None, 1) == (rows, effort.rows_scanned, effort.connections)
    assert effort.longest_transaction_ms > 0


def test_made_up_rows_burden_nobody() -> None:
    """The gauge of a source without a server has nothing to tell."""
    source = Datagen(max_events=10)
    with source.gauge(application="rivet:made", pace=PACE) as gauge:
        assert (Pressure(latency_ms=0.0), {}) == (gauge.look(), gauge.counters())


def test_recorded_answer_of_mysql_leaves_our_statements_out() -> None:
    """Of five running threads two are ours, the gauge's own among them."""
    rows = [
        ("Threads_running", "5", "2"),
        ("THREADS_CONNECTED", "40", "2"),
        ("Innodb_row_lock_current_waits", "1", "2"),
    ]

    assert {"active": 3, "connections": 40, "lock_waits": 1} == digest(rows)


def test_recorded_answer_of_sql_server_becomes_a_pressure() -> None:
    """NULLs, what a server without Always On or a user without the permission gets, are not known."""
    row = (3, 1, 57, 32767, None)
    found = dict(zip(sqlserver_gauge.PARTS, row, strict=True))

    expected = Pressure(latency_ms=1.5, active=3, lock_waits=1, connections=57, connections_limit=32767)
    assert expected == pressure_of(1.5, found)
    assert {"deadlocks": 4.0} == sqlserver_gauge.digest([("number of deadlocks/sec", 4), ("unknown", 1)])
