"""Opening a state store: where it lies, how it migrates, and what is said when it cannot be used."""

from __future__ import annotations

import os
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import inspect, text

from rivet_resources.errors import StateError
from rivet_resources.state import database as database_module
from rivet_resources.state import store
from rivet_resources.state.database import METADATA, Database, StateUnavailable
from rivet_resources.state.migrations import MIGRATIONS, migrate
from rivet_resources.state.store import default_url, open_state, state_url
from tests import room

LATER = (*MIGRATIONS, ("CREATE TABLE later (id INTEGER PRIMARY KEY)", "ALTER TABLE export_state ADD COLUMN note TEXT"))


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty place in each of the two databases."""
    return default_url(tmp_path) if request.param == "sqlite" else request.getfixturevalue("fresh_database")


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user can reach, unlike pytest's."""
    with tempfile.TemporaryDirectory(dir=room.chosen()) as folder:
        os.chmod(folder, 0o777)
        yield Path(folder)


@contextmanager
def ordinary_user() -> Iterator[None]:
    """The rights of an ordinary user, since root may write everywhere."""
    is_root = os.geteuid() == 0
    if is_root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if is_root:
            os.seteuid(0)


# --- where ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variable", "configured", "expected"),
    [
        (None, None, "sqlite:////shop/.rivet_state.db"),
        (None, "sqlite:////other.db", "sqlite:////other.db"),
        ("postgresql://server/state", None, "postgresql://server/state"),
        ("postgresql://server/state", "sqlite:////other.db", "postgresql://server/state"),
    ],
)
def test_environment_then_config_then_the_file_beside_it(
    monkeypatch: pytest.MonkeyPatch, variable: str | None, configured: str | None, expected: str
):
    """RIVET_STATE_URL wins over the config's `state`, and that over the default."""
    monkeypatch.delenv("RIVET_STATE_URL", raising=False)
    if variable:
        monkeypatch.setenv("RIVET_STATE_URL", variable)

    assert expected == state_url(configured, folder=Path("/shop"))


@pytest.mark.parametrize("folder", ["with space", "100%", "a#b", "Ω"])
def test_folder_with_a_difficult_name_holds_its_store(tmp_path: Path, folder: str):
    """The default URL leads back to the very folder it was made from."""
    (tmp_path / folder).mkdir()
    open_state(default_url(tmp_path / folder)).close()

    assert (tmp_path / folder / ".rivet_state.db").is_file()


def test_relative_file_stays_the_same_after_a_change_of_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A relative path means the folder in which the store was opened, for child processes too."""
    monkeypatch.chdir(tmp_path)
    state = open_state("sqlite:///here.db")
    monkeypatch.chdir("/")

    assert open_state(state.url).url == f"sqlite:///{tmp_path}/here.db"


def test_file_uses_a_write_ahead_log(tmp_path: Path):
    """Readers never wait for the writer."""
    open_state(default_url(tmp_path)).close()

    with sqlite3.connect(tmp_path / ".rivet_state.db") as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


# --- migrations ----------------------------------------------------------------------------------


def test_tables_in_code_are_the_tables_the_migrations_make(url: str):
    """The DDL of all migrations together gives exactly the columns, nullability and keys that the code uses."""
    database = Database(url)
    migrate(database)
    assert set(store.__dict__) >= {"cursors", "leases", "chunks", "runs", "files", "schemas"}  # all families are loaded
    with database.read() as connection:
        found = inspect(connection)
        made = {
            name: (
                {column["name"]: column["nullable"] for column in found.get_columns(name)},
                set(found.get_pk_constraint(name)["constrained_columns"]),
            )
            for name in found.get_table_names()
            if name != "rivet_store"
        }
    database.close()

    keys = {name: {column.name for column in table.primary_key} for name, table in METADATA.tables.items()}
    used = {
        name: ({column.name: bool(column.nullable) for column in table.columns}, keys[name])
        for name, table in METADATA.tables.items()
    }
    # SQLite calls a TEXT PRIMARY KEY nullable; what is in a key is not compared for it.
    assert {
        name: ({c for c, n in columns.items() if n} - key, set(columns), key) for name, (columns, key) in used.items()
    } == {
        name: ({c for c, n in columns.items() if n} - key, set(columns), key) for name, (columns, key) in made.items()
    }


def test_older_store_is_migrated_and_keeps_what_it_knew(url: str):
    """A newer program adds its steps to an existing store, once."""
    state = open_state(url)
    state.advance_cursor("orders", "10", expected=None)
    database = Database(url)

    assert (migrate(database, LATER), migrate(database, LATER)) == (len(MIGRATIONS), len(LATER))
    assert state.cursor("orders").value == "10"
    state.close()
    database.close()


def test_migration_that_fails_leaves_the_older_store_whole(url: str):
    """All steps of an upgrade are one transaction: half of one is never seen."""
    database = Database(url)
    migrate(database)

    with pytest.raises(StateError):
        migrate(database, (*MIGRATIONS, ("CREATE TABLE half (id INTEGER)", "CREATE NONSENSE")))
    with database.read() as connection:
        assert "half" not in inspect(connection).get_table_names()
    assert migrate(database) == len(MIGRATIONS)
    database.close()


def test_newer_store_is_refused(url: str):
    """A program that does not know the store's version does not touch it."""
    database = Database(url)
    migrate(database, LATER)
    database.close()

    with pytest.raises(
        StateError, match=rf"version {len(LATER)}; this Rivet knows up to {len(MIGRATIONS)}\. Upgrade Rivet"
    ):
        open_state(url)


def test_store_of_another_program_is_refused(url: str):
    """The original keeps a file of the same name: it is neither read nor changed."""
    database = Database(url)
    with database.write() as connection:
        connection.execute(text("CREATE TABLE export_state (export_name TEXT, last_cursor_value TEXT)"))
    database.close()

    with pytest.raises(StateError, match="tables of another program"):
        open_state(url)


# --- what cannot be used -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("not a url", "is not a URL"),
        ("mysql://u:s3cret@h/d", "'mysql' is not one of sqlite, postgresql"),
        ("sqlite://", "in memory would be forgotten"),
        ("sqlite:///:memory:", "in memory would be forgotten"),
        ("sqlite:////no/such/folder/state.db", "folder /no/such/folder does not exist"),
        ("sqlite:////tmp", "is a folder"),
        ("postgresql://u:s3cret@127.0.0.1:1/d", "cannot be reached"),
        ("postgres://u:s3cret@127.0.0.1:1/d", "postgresql://u:***@127.0.0.1:1/d"),
        ("postgresql+psycopg://u:s3cret@no-such-host.invalid/d", "cannot be reached"),
    ],
)
def test_url_that_leads_nowhere_is_refused_with_the_reason(url: str, said: str):
    """Every wrong URL gets one sentence of its own, and none shows a password."""
    with pytest.raises(StateError) as caught:
        open_state(url)

    assert said in str(caught.value)
    assert "s3cret" not in f"{caught.value} {caught.value.__cause__}"


def test_wrong_password_is_refused_without_showing_it(real_postgres_url: str):
    """The server's refusal is passed on, the password is not."""
    with pytest.raises(StateError) as caught:
        open_state(real_postgres_url.replace("correct-horse", "wrong-donkey"))

    assert "password authentication failed" in str(caught.value)
    assert "wrong-donkey" not in f"{caught.value} {caught.value.__cause__}"


def test_file_that_is_no_database_is_refused(tmp_path: Path):
    """A damaged file is named, with the way back: the manifests."""
    (tmp_path / ".rivet_state.db").write_bytes(b"no database, but longer than its header of a hundred bytes" * 10)

    with pytest.raises(StateError, match=r"damaged or not a state store.*rivet state rebuild"):
        open_state(default_url(tmp_path))


def test_file_damaged_inside_is_refused(tmp_path: Path):
    """A good header over bad pages is damage too."""
    open_state(default_url(tmp_path)).close()
    file = tmp_path / ".rivet_state.db"
    content = file.read_bytes()
    file.write_bytes(content[:100] + b"\xff" * (len(content) - 100))

    with pytest.raises(StateError, match="damaged or not a state store"):
        open_state(default_url(tmp_path))


def test_folder_that_may_not_be_written_is_refused(open_folder: Path):
    """A store cannot be made where its user may not write."""
    open_folder.chmod(0o555)

    with ordinary_user(), pytest.raises(StateError, match=r"cannot be written .*folder writable"):
        open_state(default_url(open_folder))


def test_file_that_may_not_be_written_is_refused_at_once(open_folder: Path):
    """Opening finds out, not the first commit after an hour of reading."""
    open_state(default_url(open_folder)).close()
    (open_folder / ".rivet_state.db").chmod(0o444)

    with ordinary_user(), pytest.raises(StateError, match="cannot be written"):
        open_state(default_url(open_folder))


def test_server_user_who_may_not_create_tables_is_told_the_grant(fresh_database: str):
    """The refusal names the GRANT."""
    database = Database(fresh_database)
    with database.write() as connection:
        connection.execute(text("REVOKE ALL ON SCHEMA public FROM PUBLIC"))
        connection.execute(text("DROP ROLE IF EXISTS state_visitor"))
        connection.execute(text("CREATE ROLE state_visitor LOGIN"))
        user = connection.execute(text("SELECT current_user")).scalar_one()
    visitor = database.url.set(username="state_visitor", password=None).render_as_string(hide_password=False)
    try:
        with pytest.raises(StateError, match=r"GRANT CREATE, USAGE ON SCHEMA public TO state_visitor"):
            open_state(visitor)
    finally:
        with database.write() as connection:
            connection.execute(text("DROP ROLE state_visitor"))
        database.close()
    assert user != "state_visitor"


def test_file_that_stays_locked_may_be_asked_again_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Another program that sits on the write lock is a passing fault; nothing was written."""
    monkeypatch.setattr(database_module, "SQLITE_BUSY_SECONDS", 0.01)
    state = open_state(default_url(tmp_path))
    blocker = sqlite3.connect(tmp_path / ".rivet_state.db", isolation_level=None)
    blocker.execute("BEGIN IMMEDIATE")

    with pytest.raises(StateUnavailable, match="stayed locked by another process") as caught:
        state.advance_cursor("orders", "10", expected=None)
    assert caught.value.retry
    assert state.cursor("orders") is None  # readers do not wait for writers
    blocker.execute("ROLLBACK")
    blocker.close()
    state.advance_cursor("orders", "10", expected=None)
    state.close()


def test_server_that_goes_away_may_be_asked_again_later(
    fresh_database: str, postgres_url: str, monkeypatch: pytest.MonkeyPatch
):
    """A store that served before and does not answer now is a passing fault; when it is back, the same State works."""
    monkeypatch.setattr("rivet_resources.state.database.PATIENCE_SECONDS", 1.0)
    state = open_state(fresh_database)
    admin = Database(postgres_url)
    name = Database(fresh_database).url.database
    with admin.write() as connection:
        connection.execute(text(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false"))
        connection.execute(
            text("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = :n"), {"n": name}
        )

    with pytest.raises(StateUnavailable) as caught:
        state.cursor("orders")
    with admin.write() as connection:
        connection.execute(text(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true"))
    assert (caught.value.retry, caught.value.exit_code) == (True, 2)
    assert state.cursor("orders") is None
    state.close()
    admin.close()
