"""`rivet doctor` on real servers: each trouble is made, found, and ended by running the fix as it is printed."""

from __future__ import annotations

import dataclasses
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
import yaml

from rivet_assets.cli import main as cli
from rivet_assets.config.load import RivetConfig, load_config
from rivet_assets.doctor.examine import examine
from rivet_assets.doctor.report import document, render
from rivet_assets.doctor.row import Row
from rivet_assets.launch.run_exports import run_exports
from rivet_resources.commit.manifest import current_manifests
from rivet_resources.destinations.azure import Azure
from rivet_resources.destinations.gcs import Gcs
from rivet_resources.destinations.local import Local
from rivet_resources.destinations.probe import probe
from rivet_resources.destinations.s3 import S3
from rivet_resources.engines.datagen.source import Datagen
from rivet_resources.engines.mysql.source import MySql
from rivet_resources.engines.postgres.source import Postgres
from rivet_resources.engines.sqlite.source import Sqlite
from rivet_resources.engines.sqlserver.source import SqlServer
from tests.emulators.tds import server as tds
from tests.engines.postgres.reads import EAGER
from tests.servers import mysql as servers_mysql
from tests.servers import own as servers_own
from tests.servers.own import PASSWORD, Own
from tests.servers.postgres import AZURITE_ACCOUNT

CANARY = "canary-in-a-coal-mine"
TUNING = {"profile": "fast", "max_retries": 1, "retry_backoff_ms": 100}
ROWS = 2_000


@pytest.fixture(scope="module")
def server(server_folder: Path) -> Iterator[Own]:
    """A PostgreSQL 15 with a table, a role that may read it, and one that may not."""
    if not servers_own.is_there():
        pytest.skip("no PostgreSQL 15: apt-get install postgresql-15")
    data = servers_own.initialise(server_folder / "doctored")
    with servers_own.postgres(data) as own:
        own.run(
            f"CREATE ROLE rivet LOGIN PASSWORD '{PASSWORD}'",
            "GRANT pg_read_all_stats TO rivet",
            "CREATE TABLE orders (id bigint PRIMARY KEY, note text, at timestamptz)",
            f"INSERT INTO orders SELECT g, 'note ' || g, '2026-01-01Z' FROM generate_series(1, {ROWS}) AS g",
            "ANALYZE orders",
            "GRANT SELECT ON orders TO rivet",
        )
        yield own


def config(folder: Path, url: str, *exports: dict[str, Any], kind: str = "postgres", **source: Any) -> RivetConfig:
    """Write a rivet.yaml over one server, and load it; exports are of `orders` unless they say otherwise."""
    os.environ["DOCTOR_URL"] = url
    lake = {"type": "local", "path": str(folder / "lake")}
    blocks = exports or ({"name": "orders", "table": "orders"},)
    head = {"source": {"type": kind, "url_env": "DOCTOR_URL", "tuning": TUNING, **source}, "spark": "inline"}
    path = folder / "rivet.yaml"
    path.write_text(
        yaml.safe_dump(head | {"exports": [{"format": "parquet", "destination": lake, **block} for block in blocks]})
    )
    return load_config(path)


@pytest.fixture(autouse=True)
def url_is_forgotten() -> Iterator[None]:
    """Each test names its own server."""
    yield
    os.environ.pop("DOCTOR_URL", None)


def asked(loaded: RivetConfig) -> dict[str, Row]:
    """Ask the doctor, and give what it says of sources and exports by name."""
    rows = examine(loaded)
    assert PASSWORD not in str(render(rows)) + str(document(rows, config_path=None))
    return {row.name: row for row in rows if row.about.startswith(("source", "export"))}


def troubles(rows: dict[str, Row]) -> dict[str, str]:
    """Return what is not well, by name."""
    return {name: row.status for name, row in rows.items() if row.status != "ok"}


# --- a server that is well -----------------------------------------------------------------------


def test_server_that_is_well_is_all_ok(server: Own, tmp_path: Path) -> None:
    """Everything that is looked at is told, in the order in which people look."""
    rows = asked(config(tmp_path, server.url(user="rivet")))

    assert {} == troubles(rows)
    assert [
        "credentials", "connect", "clock", "version", "tls", "time_zone", "pooler", "standby", "connections",
        "pg_read_all_stats", "table orders", "provenance",
    ] == list(rows)  # fmt: skip


ENGINES = [
    ("fresh_database", "postgres"), ("fresh_mariadb", "mariadb"), ("fresh_mysql", "mysql"),
    ("fresh_sqlserver", "sqlserver"), ("fresh_sqlserver_odbc", "sqlserver-odbc"), ("fresh_sqlite", "sqlite"),
    ("", "datagen"),
]  # fmt: skip


@pytest.mark.parametrize(("fixture", "kind"), ENGINES, ids=[kind for _, kind in ENGINES])
def test_every_engine_is_judged_and_every_trouble_has_a_fix(
    request: pytest.FixtureRequest, fixture: str, kind: str
) -> None:
    """Names of findings are unique, the version is told, and nothing changes at the source."""
    place = str(request.getfixturevalue(fixture)) if fixture else ""
    source: Any = {
        "postgres": lambda: Postgres(url=place), "mariadb": lambda: MySql(url=place), "mysql": lambda: MySql(url=place),
        "sqlserver": lambda: SqlServer(url=place),
        "sqlserver-odbc": lambda: SqlServer(url=place, driver="odbc", odbc_driver="FreeTDS"),
        "sqlite": lambda: Sqlite(path=place),
        "datagen": lambda: Datagen(pattern="orders", max_events=10),
    }[kind]()  # fmt: skip

    with source.session(application="rivet:x", pace=EAGER, snapshot=False) as session:
        found = session.examine(tables=("nowhere",), connections=2)
        again = session.examine()

    names = [finding.name for finding in found]
    assert ("version", len(names)) == (names[0], len(set(names)))
    assert [] == [finding for finding in found if finding.status != "ok" and not finding.fix]
    assert {finding.name for finding in again} <= set(names)


# --- signing in ----------------------------------------------------------------------------------


def test_wrong_password_is_a_matter_of_auth(server: Own, tmp_path: Path) -> None:
    """And of nothing else; the variable it came from is named."""
    rows = asked(config(tmp_path, server.url(user="rivet", password=CANARY)))

    assert ("fail", "auth") == (rows["connect"].status, rows["connect"].category)
    assert "the variable DOCTOR_URL (from url_env), set" == rows["credentials"].text
    assert CANARY not in "".join(row.text + row.fix for row in rows.values())


def test_expired_certificate_is_a_matter_of_tls(server_folder: Path, tmp_path: Path) -> None:
    """The certificate is what is wrong, so nobody is sent to look for passwords."""
    if not servers_own.is_there():
        pytest.skip("no PostgreSQL 15: apt-get install postgresql-15")
    folder = server_folder / "expired"
    servers_own.make_certificates(folder / "tls")
    data = servers_own.initialise(folder)
    held = {e: servers_own.hand_over(folder / f"tls/expired.{e}", folder / f"server.{e}") for e in ("pem", "key")}
    with servers_own.postgres(data, ssl="on", ssl_cert_file=str(held["pem"]), ssl_key_file=str(held["key"])) as own:
        rows = asked(config(tmp_path, own.url(), tls={"ca_file": str(folder / "tls/ours.pem")}))

    assert ("fail", "tls", "RIVET_SOURCE_TLS") == (
        rows["connect"].status, rows["connect"].category, rows["connect"].code
    )  # fmt: skip
    assert "its certificate has expired" in rows["connect"].text


# --- rights --------------------------------------------------------------------------------------


def test_grants_that_are_missing_in_postgres_are_one_script(server: Own, tmp_path: Path) -> None:
    """A revoked table and one in a closed schema: the script is run as it is printed, and then all is well."""
    server.run(
        'CREATE SCHEMA IF NOT EXISTS "Back office"',
        'CREATE TABLE IF NOT EXISTS "Back office"."Say ""hi""" (id int PRIMARY KEY)',
        "REVOKE SELECT ON orders FROM rivet",
    )
    loaded = config(
        tmp_path, server.url(user="rivet"),
        {"name": "orders", "table": "orders"}, {"name": "said", "table": '"Back office"."Say ""hi"""'},
    )  # fmt: skip

    before = asked(loaded)
    server.run(before["grants"].fix)
    after = asked(loaded)

    assert ("fail", "permission") == (before["grants"].status, before["grants"].category)
    assert (
        'GRANT USAGE ON SCHEMA "Back office" TO "rivet"; '
        'GRANT SELECT ON TABLE "public"."orders", "Back office"."Say ""hi""" TO "rivet";'
    ) == before["grants"].fix
    assert before["grants"].fix == before["table orders"].fix
    assert {} == troubles(after)
    assert {"orders": "success", "said": "success"} == {o.export: o.status for o in run_exports(loaded)}


@pytest.fixture(params=["fresh_mariadb", "fresh_mysql"])
def poor(request: pytest.FixtureRequest) -> Iterator[tuple[str, str]]:
    """A database with a table `orders`, its URL, and the URL of a user who may do nothing in it."""
    url = str(request.getfixturevalue(request.param))
    name = urlsplit(url).path[1:]
    user = f"poor_{name}"
    servers_mysql.run(
        url, "CREATE TABLE orders (id bigint PRIMARY KEY)", "CREATE TABLE `a ``quoted`` one` (id bigint PRIMARY KEY)",
        "INSERT INTO orders VALUES (1)", f"CREATE USER {user}@'%' IDENTIFIED BY '{PASSWORD}'",
        f"CREATE TABLE {name}.open_one (id int PRIMARY KEY)", f"GRANT SELECT ON {name}.open_one TO {user}@'%'",
    )  # fmt: skip
    parts = urlsplit(url)
    yield url, f"mysql://{user}:{PASSWORD}@{parts.hostname}:{parts.port}/{name}"
    servers_mysql.run(url, f"DROP USER {user}@'%'")


def test_grants_that_are_missing_in_mysql_are_one_script(poor: tuple[str, str], tmp_path: Path) -> None:
    """Tables that are hidden, and the right to see other transactions: both fixes are run as they are printed."""
    url, theirs = poor
    loaded = config(
        tmp_path, theirs,
        {"name": "orders", "table": "orders"}, {"name": "other", "table": '"a `quoted` one"'},
        kind="mysql", tls={"mode": "require"},
    )  # fmt: skip

    before = asked(loaded)
    statements = f"{before['grants'].fix} {before['PROCESS'].fix}".split(";")
    servers_mysql.run(url, *filter(None, map(str.strip, statements)))
    after = asked(loaded)

    assert {"grants": "fail", "PROCESS": "warn"}.items() <= troubles(before).items()
    assert ("fail", "permission") == (before["grants"].status, before["grants"].category)
    assert {} == troubles(after)
    assert ["success"] * 2 == [outcome.status for outcome in run_exports(loaded)]


def test_grants_that_are_missing_in_sql_server_are_spelled(fresh_sqlserver: str, sqlserver_url: str) -> None:
    """The emulator hides tables named so; it cannot grant, so the script is compared and not run."""
    if not tds.is_emulated():
        pytest.skip("a real server needs a login that lacks the right")
    tds.execute(fresh_sqlserver, "CREATE TABLE secret_orders (id int NOT NULL PRIMARY KEY)")

    with SqlServer(url=tds.as_reader(fresh_sqlserver)).session(application="rivet:x", pace=EAGER) as session:
        found = {finding.name: finding for finding in session.examine(tables=("secret_orders",))}

    assert "GRANT SELECT ON OBJECT::[dbo].[secret_orders] TO [reader];" == found["grants"].fix
    assert ("warn", "GRANT VIEW SERVER STATE TO [reader];") == (
        found["VIEW SERVER STATE"].status, found["VIEW SERVER STATE"].fix
    )  # fmt: skip


def test_role_that_sees_nobody_is_told_and_helped(server: Own, tmp_path: Path) -> None:
    """Without the right late commits cannot be seen; the GRANT is run as it is printed."""
    server.run("REVOKE pg_read_all_stats FROM rivet")
    loaded = config(tmp_path, server.url(user="rivet"))

    before = asked(loaded)
    server.run(before["pg_read_all_stats"].fix)

    assert {"pg_read_all_stats": "warn"} == troubles(before)
    assert {} == troubles(asked(loaded))


# --- limits --------------------------------------------------------------------------------------


def test_connections_that_run_out_are_told_before_they_do(server: Own, tmp_path: Path) -> None:
    """From four fifths on a warning; a failure when the widest export would not fit."""
    narrow = config(tmp_path, server.url(user="rivet"))
    used = {count: None for count in (0, 21)}
    with ExitStack() as opened:
        for count in used:
            while len(opened._exit_callbacks) < count:  # type: ignore[attr-defined]
                opened.enter_context(psycopg.connect(server.url()))
            used[count] = asked(narrow)["connections"]  # type: ignore[assignment]
        wide = config(
            tmp_path, server.url(user="rivet"),
            {"name": "orders", "table": "orders", "mode": "chunked", "chunk_size": 100, "parallel": 8},
        )  # fmt: skip
        too_wide = asked(wide)["connections"]

    idle, crowded = used.values()
    assert ("ok", "warn", "fail") == (idle.status, crowded.status, too_wide.status)  # type: ignore[attr-defined]
    assert "the widest export opens up to 10" in too_wide.text
    assert "max_connections" in too_wide.fix


def test_limit_of_the_role_is_told_and_lifted(server: Own, tmp_path: Path) -> None:
    """A role may have a limit of its own, far below the server's."""
    server.run("ALTER ROLE rivet CONNECTION LIMIT 2")
    loaded = config(tmp_path, server.url(user="rivet"))

    before = asked(loaded)
    server.run(before["role_connections"].fix)

    assert {"role_connections": "fail"} == troubles(before)
    assert {} == troubles(asked(loaded))


def test_limit_of_mariadb_is_told_and_lifted(mariadb_url: str, server_folder: Path, tmp_path: Path) -> None:
    """The fix is a SET GLOBAL, so it holds at once."""
    folder = server_folder / "narrow"
    folder.mkdir()
    with servers_own.mariadb(folder, "--max-connections=10") as port, ExitStack() as opened:
        url = f"mysql://rivet:{PASSWORD}@127.0.0.1:{port}/shop"
        servers_mysql.run(url, "CREATE TABLE orders (id int PRIMARY KEY)")
        for _ in range(8):
            opened.enter_context(servers_mysql.connection(url))
        loaded = config(tmp_path, url, kind="mariadb")
        before = asked(loaded)["connections"]
        servers_mysql.run(url, before.fix.partition(";")[0])
        after = asked(loaded)["connections"]

    assert ("fail", "ok") == (before.status, after.status)


def test_limits_that_would_end_a_snapshot_are_told_and_lifted(fresh_database: str) -> None:
    """PostgreSQL 17's transaction_timeout ends the transaction that all readers share; ours is not set by it."""
    name = urlsplit(fresh_database).path[1:]
    with psycopg.connect(fresh_database, autocommit=True) as connection:
        connection.execute(f"ALTER DATABASE {name} SET transaction_timeout = '10min'".encode())
        connection.execute(f"ALTER DATABASE {name} SET statement_timeout = '3s'".encode())
        before = findings(fresh_database)
        connection.execute(before["transaction_timeout"].fix.encode())
        after = findings(fresh_database)
        connection.execute("ALTER ROLE postgres RESET transaction_timeout")

    assert ("warn", "ok") == (before["transaction_timeout"].status, before["statement_timeout"].status)
    assert "gives way to this session's no limit" in before["statement_timeout"].text
    assert "transaction_timeout" not in after


def findings(url: str, **more: Any) -> dict[str, Any]:
    """Let a PostgreSQL be judged."""
    with Postgres(url=url).session(application="rivet:x", pace=EAGER, snapshot=False) as session:
        return {finding.name: finding for finding in session.examine(**more)}


def test_table_that_was_never_analysed_is_told_and_analysed(fresh_real_database: str) -> None:
    """Chunks are cut by its statistics."""
    with psycopg.connect(fresh_real_database, autocommit=True) as connection:
        connection.execute("CREATE TABLE orders AS SELECT generate_series(1, 1000) AS id")
        before = findings(fresh_real_database, tables=("orders",))
        connection.execute(before["statistics"].fix.encode())
        after = findings(fresh_real_database, tables=("orders",))

    assert ("warn", 'ANALYZE "public"."orders";') == (before["statistics"].status, before["statistics"].fix)
    assert "statistics" not in after


# --- what stands between, and standbys -----------------------------------------------------------


def test_standby_is_told_and_exports_one_instant(server: Own, server_folder: Path, tmp_path: Path) -> None:
    """A read-only standby shares snapshots as a primary does; what may cancel a long one is a warning with its fix."""
    data = servers_own.standby_of(server, server_folder / "standby")
    with servers_own.postgres(data) as standby:
        loaded = config(
            tmp_path, standby.url(user="rivet"),
            {"name": "orders", "table": "orders"},
            {"name": "wide", "table": "orders", "mode": "chunked", "chunk_size": 500, "parallel": 2},
        )  # fmt: skip
        before = asked(loaded)["standby"]
        outcomes = run_exports(loaded)
        for statement in before.fix.partition("  --")[0].split(";")[:-1]:
            standby.run(statement)
        standby.run("SELECT pg_sleep(0.1)")
        after = asked(loaded)["standby"]

    assert ("warn", "ok") == (before.status, after.status)
    assert "max_standby_streaming_delay = 30s" in before.text
    assert {"orders": ("success", ROWS), "wide": ("success", ROWS)} == {o.export: (o.status, o.rows) for o in outcomes}
    assert {"snapshot"} == {told for name in ("orders", "wide") for told in consistencies(tmp_path, name)}


def consistencies(folder: Path, export: str) -> list[str]:
    """Read of how many instants an export's windows say they are."""
    root = Local(type="local", path=str(folder / "lake")).root(export)
    return [manifest.consistency for manifest in current_manifests(root).values()]


# What its file says more → what the doctor says of it, and whether a change log could be read.
POOLS = {
    "transaction": ((), "hands each transaction to another backend"),
    "settings ignored": (("ignore_startup_parameters = options",), "drops session settings"),
    "one backend": (("default_pool_size = 1",), "hands each transaction to another backend"),
    "session": (("pool_mode = session",), "keeps a backend for each connection"),
}


@pytest.mark.parametrize("pool", POOLS)
def test_pooler_is_told(server: Own, server_folder: Path, tmp_path: Path, pool: str) -> None:
    """Without asking PgBouncer anything, through which nobody but its administrators could."""
    more, words = POOLS[pool]
    with pooled(server, server_folder / f"pool-{pool.replace(' ', '-')}", *more) as through:
        found = asked(config(tmp_path, through.url(user="rivet")))["pooler"]

    assert ("warn", True) == (found.status, words in found.text)


def test_export_through_a_pool_of_transactions_is_right(server: Own, server_folder: Path, tmp_path: Path) -> None:
    """Planner and tasks each hold one transaction, settings are pinned in it, and one snapshot serves them all."""
    with pooled(server, server_folder / "pool-run") as through:
        loaded = config(
            tmp_path, through.url(user="rivet"),
            {"name": "orders", "table": "orders"},
            {"name": "asked", "query": "SELECT id, at FROM orders"},
            {"name": "wide", "table": "orders", "mode": "chunked", "chunk_size": 500, "parallel": 3},
        )  # fmt: skip
        outcomes = run_exports(loaded)

    assert {(name, "success", ROWS) for name in ("orders", "asked", "wide")} == {
        (outcome.export, outcome.status, outcome.rows) for outcome in outcomes
    }
    assert {"snapshot"} == {told for name in ("orders", "asked", "wide") for told in consistencies(tmp_path, name)}


def test_pool_of_one_connection_is_enough_for_one_task(server: Own, server_folder: Path, tmp_path: Path) -> None:
    """No snapshot can be shared through it, which the run says; the planner lets go before the task comes."""
    narrow = ("default_pool_size = 1", "query_wait_timeout = 1")
    with pooled(server, server_folder / "pool-one", *narrow) as through:
        (outcome,) = run_exports(config(tmp_path, through.url(user="rivet")))

    assert ("success", ROWS) == (outcome.status, outcome.rows), outcome.message
    assert {"per_query"} == set(consistencies(tmp_path, "orders"))


def test_pool_that_is_too_small_is_named(server: Own, server_folder: Path, tmp_path: Path) -> None:
    """Somebody holds the one connection, and the planner waits for another; the refusal says how many are needed."""
    narrow = ("default_pool_size = 1", "query_wait_timeout = 1")
    with pooled(server, server_folder / "pool-narrow", *narrow) as through:
        loaded = config(tmp_path, through.url(user="rivet"))
        with psycopg.connect(through.url(user="rivet")) as other:
            other.execute("SELECT 1")  # a transaction, which is not ended
            (outcome,) = run_exports(loaded)

    assert ("failed", True) == (outcome.status, "raise default_pool_size" in outcome.message), outcome.message


def pooled(server: Own, folder: Path, *more: str) -> Any:
    """Put a PgBouncer before a server."""
    if shutil.which("pgbouncer") is None:
        pytest.skip("no pgbouncer: apt-get install pgbouncer")
    return _Pooled(server, folder, more)


class _Pooled:
    """The server as it is seen through PgBouncer."""

    def __init__(self, server: Own, folder: Path, more: tuple[str, ...]) -> None:
        self.server = server
        self.pool = servers_own.pgbouncer(server, folder, users=("rivet", "postgres"), more=more)

    def __enter__(self) -> Own:
        return dataclasses.replace(self.server, port=self.pool.__enter__())

    def __exit__(self, *details: Any) -> None:
        self.pool.__exit__(*details)


def test_proxy_that_hands_out_numbers_of_its_own_is_told(fresh_mariadb: str) -> None:
    """The number of the handshake is not the server's; no proxy is at hand, so the handshake's is changed."""
    from rivet_resources.engines.mysql import preflight as mysql_examine

    with MySql(url=fresh_mariadb).session(application="rivet:x", pace=EAGER) as session:
        found = {
            f.name: f for f in mysql_examine.examine(session, session.conn_params, told_id=-1, tables=(), connections=1)
        }  # type: ignore[arg-type,attr-defined]

    assert ("warn", True) == (found["pooler"].status, "a proxy stands between" in found["pooler"].text)


# --- object stores -------------------------------------------------------------------------------


def test_s3_that_honours_conditions_is_proved_to(s3_server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over HTTP, with the clock of its answers; nothing is left behind."""
    monkeypatch.setenv("KEY", "A")
    place = S3(bucket=s3_server.bucket, endpoint=s3_server.endpoint, access_key_env="KEY", secret_key_env="KEY")

    found = {finding.name: finding.status for finding in probe(place.root("probed"))}

    assert {"write": "ok", "conditional_write": "ok", "clock": "ok"} == found
    assert {} == place.root("probed").list()


def test_azure_that_honours_conditions_is_proved_to(azure_server: Any) -> None:
    """Over HTTP, with the clock of its answers and who signs in; nothing is left behind, no secret is told."""
    keys = {"account": AZURITE_ACCOUNT, "endpoint": azure_server.endpoint, "account_key_env": "AZURE_KEY"}
    place = Azure(container=azure_server.bucket, **keys)

    found = {finding.name: finding for finding in (*place.credentials(), *probe(place.root("probed")))}

    wanted = {"credentials": "ok", "endpoint": "ok", "write": "ok", "conditional_write": "ok", "clock": "ok"}
    assert wanted == {name: finding.status for name, finding in found.items()}
    assert "a key of the account in the variable AZURE_KEY, set" == found["credentials"].text
    assert {} == place.root("probed").list()


def test_store_that_ignores_conditions_is_found_out(gcs_server: Any) -> None:
    """The emulator takes every write, whatever generation it was meant for: on such a store two runs would mix."""
    place = Gcs(bucket=gcs_server.bucket, endpoint=gcs_server.endpoint, allow_anonymous=True)

    found = {finding.name: finding.status for finding in probe(place.root("probed"))}

    assert {"write": "ok", "conditional_write": "fail", "clock": "ok"} == found


def test_bucket_that_is_not_there_is_its_own_kind(
    s3_server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rivet creates none; the row says which."""
    monkeypatch.setenv("KEY", "A")
    place = {"type": "s3", "bucket": "nowhere", "endpoint": s3_server.endpoint, "region": "eu-west-1"}
    place |= {"access_key_env": "KEY", "secret_key_env": "KEY"}
    loaded = config(
        tmp_path, "postgresql://u@127.0.0.1:1/d", {"name": "orders", "table": "orders", "destination": place}
    )

    rows = {row.name: row for row in examine(loaded) if row.about.startswith("destination")}

    assert ("fail", "bucket-not-found") == (rows["write"].status, rows["write"].category)
    assert ("ok", True) == (rows["endpoint"].status, s3_server.endpoint in rows["endpoint"].text)


# --- no secret -----------------------------------------------------------------------------------

# Command → its words; FILE is the config, and URL the variable that holds the canary.
COMMANDS: dict[str, list[list[str]]] = {
    "run": [["-c", "FILE"]],
    "init": [["--source-env", "DOCTOR_URL", "-o", "OUT"]],
    "discover": [["--source-env", "DOCTOR_URL"]],
    "check": [["-c", "FILE"], ["-c", "FILE", "--json"]],
    "doctor": [["-c", "FILE"], ["-c", "FILE", "--json"]],
    "plan": [["-c", "FILE"], ["-c", "FILE", "-o", "PLAN"]],
    "apply": [["PLAN"]],
    "validate": [["-c", "FILE"]],
    "reconcile": [["-c", "FILE"]],
    "repair": [["-c", "FILE"]],
    "quarantine": [["list", "-c", "FILE"], ["replay", "-c", "FILE", "--execute"]],
    "cdc": [["--source-env", "DOCTOR_URL", "--table", "orders"]],
    "state": [["show", "-c", "FILE"], ["files", "-c", "FILE"]],
    "status": [["-c", "FILE"], ["-c", "FILE", "--lag"]],
    "metrics": [["-c", "FILE"]],
    "journal": [["-c", "FILE", "-e", "orders"]],
    "audit": [["-c", "FILE"], ["-c", "FILE", "-e", "orders", "--json"]],
    "compact": [["-c", "FILE"], ["-c", "FILE", "--dry-run"]],
    "retain": [["-c", "FILE"], ["-c", "FILE", "--dry-run"]],
    "profile": [["-c", "FILE"], ["-c", "FILE", "--json"]],
    "schema": [
        ["config"],
        ["show", "-c", "FILE", "-e", "orders"],
        ["list", "-c", "FILE"],
        ["check", "-c", "FILE", "-e", "orders"],
        ["register", "-c", "FILE", "-e", "orders"],
    ],
    "contract": [["export", "-c", "FILE", "-e", "orders"]],
    "spec": [[]],
    "plugins": [[], ["--json"]],
    "completions": [["bash"]],
}
LOCAL = {"demo"}  # has a server of its own, on a socket, without a password


def test_every_command_is_listened_to() -> None:
    """The table is complete."""
    assert set(cli.COMMANDS) - LOCAL == set(COMMANDS)


@pytest.mark.parametrize("is_right", [True, False])
def test_no_command_prints_a_password(
    server: Own, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], is_right: bool
) -> None:
    """Neither when all goes well, nor when the server refuses it."""
    server.run("DROP ROLE IF EXISTS canary", f"CREATE ROLE canary LOGIN PASSWORD '{CANARY if is_right else 'other'}'")
    server.run("GRANT SELECT ON orders TO canary")
    config(tmp_path, server.url(user="canary", password=CANARY))
    monkeypatch.chdir(tmp_path)
    said, codes = "", {}
    for command, calls in COMMANDS.items():
        for words in calls:
            places = {
                "FILE": str(tmp_path / "rivet.yaml"),
                "OUT": str(tmp_path / f"{command}.yaml"),
                "PLAN": str(tmp_path / "plan.json"),
            }
            monkeypatch.setattr(sys, "argv", ["rivet", command, *(places.get(word, word) for word in words)])
            with pytest.raises(SystemExit) as ended:
                cli.main()
            codes[command] = ended.value.code
            said += "".join(capfd.readouterr())
    server.run("REVOKE ALL ON orders FROM canary", "DROP ROLE canary")
    written = "".join(path.read_text() for path in [*tmp_path.glob("*.yaml"), *tmp_path.glob("*.json")])

    assert CANARY not in said + written
    assert [is_right] * 4 == [codes[command] == 0 for command in ("run", "check", "doctor", "plan")]
    assert "orders" in said
