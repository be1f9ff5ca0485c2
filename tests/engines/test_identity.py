"""What each engine's database says of itself, asked by `Session.identity` on real servers and the emulator."""

from __future__ import annotations

from urllib.parse import urlsplit

import psycopg
import pytest

from rivet_resources.contracts.provenance import DatabaseIdentity
from rivet_resources.contracts.settings import pace
from rivet_resources.contracts.source import Source
from rivet_resources.engines.mysql.source import MySql
from rivet_resources.engines.postgres.source import Postgres
from rivet_resources.engines.sqlite.source import Sqlite
from rivet_resources.engines.sqlserver.source import SqlServer
from tests.servers.postgres import create_database, drop_database


def identity(source: Source, *, snapshot: bool = True) -> DatabaseIdentity:
    """Ask, and see that the session goes on working."""
    with source.session(application="test", pace=pace(source.tuning, None), snapshot=snapshot) as session:
        told = session.identity()
        assert told == session.identity()
        assert session.now() is not None
        if snapshot and source.type == "postgres":
            assert session.snapshot is not None
    return told


def test_postgres_tells_cluster_and_database(fresh_database: str, fresh_real_database: str):
    """Two databases of a cluster share the identifier, two clusters do not; the snapshot survives the question."""
    with psycopg.connect(fresh_database) as connection:
        (number,) = connection.execute("SELECT system_identifier FROM pg_control_system()").fetchone() or (0,)
    one, other = identity(Postgres(url=fresh_database)), identity(Postgres(url=fresh_real_database))

    assert (f"system_identifier:{number}",) == one.servers
    assert urlsplit(fresh_database).path[1:] == one.database
    assert one.servers != other.servers


def test_postgres_user_without_the_right_to_ask_is_told_by_address(real_postgres_url: str):
    """The function may be taken from PUBLIC; the export goes on, its planning transaction too."""
    url = create_database(real_postgres_url)
    try:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("REVOKE EXECUTE ON FUNCTION pg_control_system() FROM PUBLIC")
            connection.execute("CREATE ROLE nobody_special LOGIN PASSWORD 'open-sesame'")
        parts = urlsplit(url)
        theirs = parts._replace(netloc=f"nobody_special:open-sesame@{parts.hostname}:{parts.port}").geturl()

        told = identity(Postgres(url=theirs))

        assert (f"address:{parts.hostname}:{parts.port}",) == told.servers
        assert parts.path[1:] == told.database
    finally:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("DROP ROLE IF EXISTS nobody_special")
        drop_database(real_postgres_url, url)


@pytest.mark.parametrize(("fixture", "kind"), [("fresh_mariadb", "mariadb"), ("fresh_mysql", "server_uuid")])
def test_mysql_and_mariadb_tell_their_server_and_database(fixture: str, kind: str, request: pytest.FixtureRequest):
    """The same after a new connection; the database is the URL's."""
    url = request.getfixturevalue(fixture)

    told = identity(MySql(url=url))

    assert told.servers[0].startswith(f"{kind}:")
    assert urlsplit(url).path[1:] == told.database


def test_sql_server_tells_the_guids_of_its_database(fresh_sqlserver: str):
    """Both where the user may see both; they go with the database."""
    told = identity(SqlServer(url=fresh_sqlserver))

    assert "broker_guid" == told.servers[0].partition(":")[0]
    assert told.database


def test_sqlite_tells_its_file_name_wherever_it_lies(fresh_sqlite: str):
    """A folder that is moved takes the file with it."""
    assert DatabaseIdentity((), fresh_sqlite.rpartition("/")[2]) == identity(
        Sqlite.model_validate({"path": fresh_sqlite})
    )
