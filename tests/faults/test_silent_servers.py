"""Servers that keep the line and answer nothing: every wait ends, and the fault may pass.

Belongs here: silence at each place where something waits. Not here: lines that break, servers that are away
(`test_outages.py`, `test_drain_outages.py`), the clock of the waits (`unit/test_deadlines.py`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rivet_resources import deadlines
from rivet_resources.conformance.lines import Proxy, proxied
from rivet_resources.contracts.relation import Chunk, Relation
from rivet_resources.contracts.settings import Pace, Tuning, pace
from rivet_resources.contracts.source import Session, Source, TypeRules
from rivet_resources.destinations import azure_client, gcs_client, s3_client, stores
from rivet_resources.destinations.azure import Azure
from rivet_resources.destinations.gcs import Gcs
from rivet_resources.destinations.s3 import S3
from rivet_resources.engines.mysql.source import MySql
from rivet_resources.engines.postgres.source import Postgres
from rivet_resources.engines.sqlserver.source import SqlServer
from rivet_resources.errors import RivetError, SourceLost
from rivet_resources.state import database
from rivet_resources.state.store import open_state
from tests import processes
from tests.faults.shop import begun, mysql_shop, postgres_shop
from tests.lab import Lab, lab_in
from tests.lab_engines import MARIADB, POSTGRES, SQLSERVER, SQLSERVER_ODBC, Engine
from tests.servers import postgres as servers
from tests.servers.logical import logical_database

pytestmark = pytest.mark.faults

BOUND_SECONDS = 100  # generous: one wait takes 6 s, a connection 20 s
SHORT = Tuning(profile="fast", statement_timeout_s=1, max_retries=0, retry_backoff_ms=1, batch_size=500)
SPEED = pace(SHORT, None)
ROWS = 40_000
ENGINES = (POSTGRES, MARIADB, SQLSERVER, SQLSERVER_ODBC)
SOURCES = {
    "postgres": Postgres,
    "mariadb": MySql,
    "sqlserver": SqlServer,
    "sqlserver-odbc": partial(SqlServer, driver="odbc", odbc_driver="FreeTDS"),
}
WHAT = {"table": "items", "query": None, "params": {}, "rules": TypeRules(columns={})}


@pytest.fixture(params=ENGINES, ids=lambda engine: engine.name)
def engine(request: pytest.FixtureRequest) -> Engine:
    """One engine after the other."""
    chosen: Engine = request.param
    return chosen


@pytest.fixture
def lab(engine: Engine, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Lab:
    """A database with a table of many rows."""
    made = lab_in(tmp_path, engine, request, monkeypatch)
    made.create("items", {"id": "whole", "note": "note"})
    made.insert("items", ({"id": number, "note": "x" * 100} for number in range(2000)))
    return made


@pytest.fixture
def line(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Proxy, str]]:
    """A proxy before the laboratory's server, and the URL that leads through it."""
    with proxied(lab.url) as (proxy, url):
        monkeypatch.setenv("LAB_URL", url)
        yield proxy, url


def ended(work: Callable[[], Any]) -> BaseException | None:
    """Do it in a thread, which must end; what it raised."""
    raised: list[BaseException | None] = [None]

    def run() -> None:
        try:
            work()
        except BaseException as error:
            raised[0] = error

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(BOUND_SECONDS)
    assert not thread.is_alive(), "it waits for ever"
    return raised[0]


def must_pass(error: BaseException | None) -> None:
    """Report that a fault may pass by itself, and holds no secret."""
    assert isinstance(error, RivetError), repr(error)
    assert (True, 2) == (error.retry, error.exit_code), repr(error)


def fall_silent(proxy: Proxy, piece: str | bytes | int) -> None:
    """Let a proxy fall silent when it hears this, or has passed on so many bytes of the server's."""
    if isinstance(piece, int):
        proxy.silent_after = piece
    else:
        proxy.silent_at = piece.encode() if isinstance(piece, str) else piece


def utf16(engine: Engine, piece: str) -> bytes:
    """Spell a piece of a statement as the engine's wire has it."""
    return piece.encode("utf-16le") if engine in (SQLSERVER, SQLSERVER_ODBC) else piece.encode()


# --- connecting and planning ---------------------------------------------------------------------


def test_server_that_takes_the_line_and_says_nothing(engine: Engine, line: tuple[Proxy, str]) -> None:
    """A connection that is never greeted ends by itself."""
    proxy, url = line
    proxy.silence()

    def work() -> None:
        with SOURCES[engine.name](url=url).session(application="rivet:test", pace=SPEED):
            pass

    must_pass(ended(work))


# Engine → pieces of what it is asked while a window is planned.
PLANNED = [
    *((POSTGRES, piece) for piece in ("pg_stat_activity", "REPEATABLE READ", "pg_export_snapshot", "SET TRANSACTION "
                                      "SNAPSHOT", "pg_attribute", "count(*)", "clock_timestamp")),
    *((MARIADB, piece) for piece in ("SHOW SESSION VARIABLES", "CURRENT_USER", ".columns WHERE", "COUNT(*)")),
    *((SQLSERVER, piece) for piece in ("DATEFORMAT", "SUSER_SNAME", "sys.columns", "COUNT_BIG")),
    *((SQLSERVER_ODBC, piece) for piece in ("DATEFORMAT", "COUNT_BIG")),
]  # fmt: skip


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("engine", "piece"), PLANNED, ids=lambda value: getattr(value, "name", value), indirect=["engine"]
)
def test_server_that_falls_silent_while_a_window_is_planned(
    engine: Engine, piece: str, line: tuple[Proxy, str]
) -> None:
    """Whatever it was asked last."""
    proxy, url = line
    proxy.silent_at = utf16(engine, piece)

    def work() -> None:
        with SOURCES[engine.name](url=url).session(application="rivet:test", pace=SPEED) as session:
            relation = session.describe(**WHAT)
            session.count(relation)
            session.now()

    must_pass(ended(work))
    assert proxy.is_silent


def test_query_that_is_prepared_by_a_silent_server(fresh_database: str) -> None:
    """libpq's own way to prepare would wait in C and hold the interpreter's lock."""
    with proxied(fresh_database) as (proxy, url):
        proxy.silent_at = b"SELECT 4711"

        def work() -> None:
            with Postgres(url=url).session(application="rivet:test", pace=SPEED) as session:
                session.describe(table=None, query="SELECT 4711 AS n", params={}, rules=TypeRules(columns={}))

        must_pass(ended(work))
        assert proxy.is_silent


# --- reading -------------------------------------------------------------------------------------

READ = [
    *((POSTGRES, piece) for piece in ("typreceive", "BEGIN ISOLATION", "SET TRANSACTION SNAPSHOT", "COPY ", 150_000)),
    *((MARIADB, piece) for piece in ("SHOW SESSION VARIABLES", "SELECT `", 150_000)),
    *((each, piece) for each in (SQLSERVER, SQLSERVER_ODBC) for piece in ("DATEFORMAT", "SELECT TOP", 150_000)),
]


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("engine", "piece"), READ, ids=lambda value: getattr(value, "name", value), indirect=["engine"]
)
def test_server_that_falls_silent_while_a_chunk_is_read(
    engine: Engine, piece: str | int, line: tuple[Proxy, str], lab: Lab
) -> None:
    """While the reader connects, when a page is asked for, and in the middle of its rows."""
    proxy, url = line
    source = SOURCES[engine.name](url=url)
    with SOURCES[engine.name](url=lab.url).session(application="rivet:test", pace=SPEED) as session:
        relation = session.describe(**WHAT)
        (chunk,) = session.chunks(relation)
        fall_silent(proxy, utf16(engine, piece) if isinstance(piece, str) else piece)

        must_pass(ended(partial(read_all, source, session, chunk, relation, SPEED)))
    assert proxy.is_silent


def read_all(source: Source, session: Session, chunk: Chunk, relation: Relation, speed: Pace) -> None:
    """Read a chunk to its end, in the session's instant, at so high a pace."""
    columns, snapshot = relation.columns, session.snapshot
    for _ in source.pages(
        chunk, columns, snapshot=snapshot, application="rivet:test", pace=speed, wait=lambda rows: None
    ):
        pass


SILENT_AT = {"postgres": "COPY ", "mariadb": "SELECT `", "sqlserver": "SELECT TOP", "sqlserver-odbc": "SELECT TOP"}


def test_server_without_a_limit_that_falls_silent_is_not_waited_for_for_ever(
    engine: Engine, line: tuple[Proxy, str], lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With `statement_timeout_s: 0` the server has no limit, and the client still has one."""
    monkeypatch.setattr(deadlines, "LONGEST_SILENCE_SECONDS", 2.0)
    unlimited = pace(SHORT.model_copy(update={"statement_timeout_s": 0}), None)
    proxy, url = line
    source = SOURCES[engine.name](url=url)
    with SOURCES[engine.name](url=lab.url).session(application="rivet:test", pace=unlimited) as session:
        relation = session.describe(**WHAT)
        (chunk,) = session.chunks(relation)
        proxy.silent_at = utf16(engine, SILENT_AT[engine.name])

        must_pass(ended(partial(read_all, source, session, chunk, relation, unlimited)))
    assert proxy.is_silent


@pytest.mark.matrix
def test_export_from_a_server_that_falls_silent_is_transient(line: tuple[Proxy, str], lab: Lab) -> None:
    """The whole run ends with exit code 2; when the server is back, the same command succeeds."""
    proxy, _ = line
    proxy.silent_after = 250_000 if lab.engine is POSTGRES else 120_000  # ADBC asks for types
    tuning = "{statement_timeout_s: 1, max_retries: 0, retry_backoff_ms: 10, batch_size: 500}"
    block = f"{{name: items, table: items, mode: full, tuning: {tuning}}}"
    outcomes = []

    assert ended(lambda: outcomes.append(lab.export(block))) is None
    assert proxy.is_silent
    proxy.reset()
    proxy.speak()
    outcomes.append(lab.export(block))

    assert [("failed", 2), ("success", 0)] == [(outcome.status, outcome.exit_code) for outcome in outcomes]
    assert [*range(2000)] == lab.ids("items")


# --- change logs ---------------------------------------------------------------------------------


@pytest.mark.matrix
@pytest.mark.parametrize("small_bytes", [4 << 20, 0], ids=["copied", "adbc"])
@pytest.mark.parametrize(
    "piece", ["pg_replication_slots", "pg_logical_slot_peek", "pg_replication_slot_advance", 20_000]
)
def test_postgres_that_falls_silent_in_a_drain(
    postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece: str | int, small_bytes: int
) -> None:
    """At the survey, the peek, the acknowledgement and amid the answer; nothing is lost."""
    from rivet_resources.engines.postgres.log import log as postgres
    from rivet_resources.engines.postgres.log import peek as postgres_peek

    monkeypatch.setattr(postgres, "SMALL_BYTES", small_bytes)
    monkeypatch.setattr(postgres_peek, "MARGIN_SECONDS", 3.0)
    with (
        logical_database(postgres_url) as direct,
        proxied(direct) as (proxy, url),
        postgres_shop(direct, tmp_path, rollover=500) as shop,
    ):
        begun(shop)
        shop.run("INSERT INTO orders SELECT n, 0 FROM generate_series(1000, 2000) AS n")
        shop.configure(url=url, export=", tuning: {statement_timeout_s: 1, max_retries: 0}")
        fall_silent(proxy, piece)
        error = ended(shop.drain)
        assert proxy.is_silent
        assert error is None or isinstance(error, SourceLost), repr(error)
        assert piece == "pg_replication_slot_advance" or error is not None
        proxy.reset()
        proxy.speak()
        shop.drain()
        shop.must_hold()


def test_long_work_at_the_slot_is_waited_for(
    postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that decodes for longer than every limit, and says so when asked, is no silent one."""
    from rivet_resources.engines.postgres.log import log as postgres
    from rivet_resources.engines.postgres.log import peek as postgres_peek

    monkeypatch.setattr(postgres, "SMALL_BYTES", 0)
    with logical_database(postgres_url) as url, postgres_shop(url, tmp_path, rollover=50_000) as shop:
        begun(shop)
        shop.run("INSERT INTO orders SELECT n, 0 FROM generate_series(1000, 150000) AS n")
        shop.run("UPDATE orders SET total = total + 1")
        asked: list[bool] = []
        is_at_work = postgres_peek.Wire._is_at_work

        def counted(wire: postgres_peek.Wire) -> bool:
            asked.append(is_at_work(wire))
            return asked[-1]

        monkeypatch.setattr(postgres_peek.Wire, "_is_at_work", counted)
        monkeypatch.setattr(postgres_peek, "MARGIN_SECONDS", 0.1)
        shop.configure(export=", tuning: {statement_timeout_s: 0, max_retries: 0}")
        shop.drain()

        shop.must_hold()
        assert True in asked  # the last question may come when the answer is on its way


@pytest.mark.matrix
@pytest.mark.parametrize("piece", ["GET_LOCK", "SHOW BINARY LOGS", "master_binlog_checksum", 3000])
def test_mariadb_that_falls_silent_in_a_drain(fresh_mariadb: str, tmp_path: Path, piece: str | int) -> None:
    """At the survey, at the dump's begin and amid its events."""
    with proxied(fresh_mariadb) as (proxy, url):
        shop = begun(mysql_shop(fresh_mariadb, tmp_path))
        shop.configure(url=url, export=", tuning: {statement_timeout_s: 1, max_retries: 0}")
        fall_silent(proxy, piece)
        must_pass(ended(shop.drain))
        assert proxy.is_silent
        proxy.reset()
        proxy.speak()
        shop.drain()
        shop.must_hold()


# --- the state store, destinations ---------------------------------------------------------------


def test_silent_state_store_is_unavailable(fresh_database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """When it is opened, and when it falls silent later; it goes on when the store speaks again."""
    monkeypatch.setattr(database, "POSTGRES_ANSWER_SECONDS", 1.0)
    monkeypatch.setattr(database, "PATIENCE_SECONDS", 3.0)
    with proxied(fresh_database) as (proxy, url):
        proxy.silence()
        must_pass(ended(lambda: open_state(f"{url}?connect_timeout=2")))
        proxy.speak()
        state = open_state(f"{url}?connect_timeout=2")
        state.advance_cursor("orders", "1", expected=None)
        proxy.silent_at = b"export_state"
        must_pass(ended(lambda: state.cursor("orders")))
        proxy.reset()
        proxy.speak()

        assert "1" == state.cursor("orders").value
        state.close()


@pytest.fixture(params=["s3", "gcs", "azure"])
def silent_store(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Proxy, Any]]:
    """A place in an object store behind a proxy."""
    monkeypatch.setattr(stores, "PATIENCE_SECONDS", 2.0)
    if request.param == "s3":
        monkeypatch.setattr(s3_client, "READ_SECONDS", 1)
        with servers.moto_s3() as store, proxied(store.endpoint) as (proxy, url):
            yield proxy, S3(type="s3", bucket=store.bucket, endpoint=url, region="us-east-1").root("orders")
    elif request.param == "azure":
        store = request.getfixturevalue("azure_server")
        monkeypatch.setattr(azure_client, "READ_SECONDS", 1)
        with proxied(store.endpoint) as (proxy, url):
            keys = {"account": servers.AZURITE_ACCOUNT, "account_key_env": "AZURE_KEY", "container": store.bucket}
            yield proxy, Azure(**keys, endpoint=url).root("orders")
    else:
        monkeypatch.setattr(gcs_client, "REQUEST_SECONDS", 1)
        with servers.emulated_gcs() as store, proxied(store.endpoint) as (proxy, url):
            monkeypatch.setenv("STORAGE_EMULATOR_HOST", url)
            yield proxy, Gcs(type="gcs", bucket=store.bucket, endpoint=url, allow_anonymous=True).root("orders")


def test_silent_object_store_is_unreachable(silent_store: tuple[Proxy, Any]) -> None:
    """Writing and reading end, and may pass."""
    proxy, root = silent_store
    root.put("note.json", b"{}")
    proxy.silence()

    must_pass(ended(lambda: root.put("note.json", b"[]")))
    must_pass(ended(lambda: root.read("note.json")))


# --- looking -------------------------------------------------------------------------------------


@pytest.mark.matrix
@pytest.mark.parametrize("command", ["doctor", "check"])
def test_looking_at_a_silent_source_ends(
    lab: Lab, line: tuple[Proxy, str], command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`rivet doctor` and `rivet check` say that the source cannot be reached."""
    proxy, _ = line
    lab.config("{name: items, table: items, mode: full}")
    proxy.silence()

    found = processes.run(processes.RIVET, command, cwd=lab.folder, timeout=BOUND_SECONDS)

    assert 1 == found.returncode
    assert "cannot be reached" in found.stdout + found.stderr or "no answer" in found.stdout + found.stderr
