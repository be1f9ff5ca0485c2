"""What goes wrong outside: one clear message, the right exit code, nothing published, and the next run succeeds."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest

from rivet_resources.engines.postgres.source import Postgres
from tests.lab import Lab

TABLE = (
    "CREATE TABLE orders (id bigint PRIMARY KEY, at timestamptz NOT NULL, amount numeric(12,2))",
    "CREATE INDEX ON orders (at)",
    "INSERT INTO orders SELECT n, timestamptz '2026-01-01' + n * interval '1 h', n FROM generate_series(0, 99) n",
    "ANALYZE orders",
)
INCREMENTAL = "{name: orders, table: orders, mode: incremental, cursor_column: at}"
CHUNKED = "{name: orders, table: orders, mode: chunked, chunk_column: id, chunk_size: 10}"


@pytest.fixture
def lab(tmp_path: Path, fresh_database: str, monkeypatch: pytest.MonkeyPatch) -> Lab:
    """A database with a hundred orders."""
    monkeypatch.setenv("LAB_URL", fresh_database)
    monkeypatch.chdir(tmp_path)
    laboratory = Lab(tmp_path, fresh_database)
    laboratory.sql(*TABLE)
    return laboratory


CAUSES = {
    "table missing": ("DROP TABLE orders", TABLE, INCREMENTAL, 1, "orders"),
    "column missing": (
        "ALTER TABLE orders RENAME COLUMN at TO created",
        ("ALTER TABLE orders RENAME COLUMN created TO at",),
        INCREMENTAL,
        1,
        "has no column 'at'",
    ),
    "value does not fit": (
        "UPDATE orders SET amount = 'NaN' WHERE id = 5",
        ("UPDATE orders SET amount = 0 WHERE id = 5",),
        INCREMENTAL,
        3,
        "holds NaN",
    ),
    "duplicated column": (
        "SELECT 1",
        (),
        "{name: orders, query: 'SELECT id, id FROM orders', mode: full}",
        1,
        "more than once",
    ),
    "syntax error": ("SELECT 1", (), "{name: orders, query: 'SELEC id FROM orders', mode: full}", 1, "syntax error"),
}


@pytest.mark.parametrize("cause", CAUSES)
def test_cause_at_the_source_is_named_and_its_end_lets_the_next_run_through(lab: Lab, cause: str) -> None:
    """The message names what is wrong, nothing is published, and the cursor is where it was."""
    breaks, mends, block, exit_code, words = CAUSES[cause]
    lab.sql(breaks)

    failed = lab.export(block)

    assert (False, exit_code) == (failed.success, failed.exit_code), failed.message
    assert words in failed.message
    assert {} == lab.manifests("orders")
    assert lab.state.cursor("orders") is None
    lab.sql(*mends)
    again = lab.export(INCREMENTAL)
    assert again.success, again.message
    assert list(range(100)) == lab.ids("orders")


def test_wrong_password_is_told_without_showing_it(
    real_postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A refused login names user and server, and shows neither password nor URL, in no file either."""
    parts = urlsplit(real_postgres_url)
    wrong = f"postgresql://{parts.username}:open-sesame@{parts.hostname}:{parts.port}/postgres"
    monkeypatch.setenv("LAB_URL", wrong)
    monkeypatch.chdir(tmp_path)

    outcome = Lab(tmp_path, wrong).export(INCREMENTAL)

    assert (False, 1) == (outcome.success, outcome.exit_code)
    assert "RIVET_SOURCE_AUTH" == outcome.code
    assert "open-sesame" not in outcome.message + outcome.traceback
    assert [] == [path for path in tmp_path.rglob("*") if path.is_file() and b"open-sesame" in path.read_bytes()]


def test_unreachable_host_is_transient_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that is starting up and a wrong port look alike, so who asks later may be answered."""
    monkeypatch.setenv("LAB_URL", "postgresql://rivet@127.0.0.1:9/shop")
    monkeypatch.chdir(tmp_path)

    outcome = Lab(tmp_path, "").export(INCREMENTAL)

    assert (False, 2) == (outcome.success, outcome.exit_code)
    assert "127.0.0.1:9" in outcome.message


def test_remote_host_without_tls_is_refused_before_connecting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No byte leaves unprotected unless the config says so."""
    monkeypatch.setenv("LAB_URL", "postgresql://rivet@db.example.com/shop")
    monkeypatch.chdir(tmp_path)

    outcome = Lab(tmp_path, "").export(INCREMENTAL)

    assert (False, 1) == (outcome.success, outcome.exit_code)
    assert "tls" in outcome.message


def test_missing_grant_is_named(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user who may not read the table is told the GRANT that helps."""
    role = f"reader_{lab.folder.name[-1]}"
    lab.sql(f"DROP ROLE IF EXISTS {role}", f"CREATE ROLE {role} LOGIN")
    monkeypatch.setenv("LAB_URL", lab.url.replace("//postgres@", f"//{role}@").replace("//postgres:@", f"//{role}@"))

    outcome = lab.export(INCREMENTAL)

    lab.sql(f"DROP ROLE {role}")
    assert (False, "RIVET_SOURCE_PERMISSION") == (outcome.success, outcome.code), outcome.message
    assert "GRANT SELECT ON" in outcome.message


@pytest.mark.parametrize("statement", ["DROP TABLE orders", "ALTER TABLE orders DROP COLUMN amount"])
def test_table_changed_in_mid_run_publishes_nothing(lab: Lab, monkeypatch: pytest.MonkeyPatch, statement: str) -> None:
    """A table that is dropped or altered between two chunks fails the window; the earlier rows stay readable."""
    lab.export(CHUNKED)
    original = Postgres.pages

    def pages(self: Postgres, chunk, *args, **kwargs):  # type: ignore[no-untyped-def]
        if chunk.index == 3:
            with psycopg.connect(lab.url, autocommit=True) as connection:
                # The planning session holds a lock on the table until it ends: nobody can alter it before.
                connection.execute("SET lock_timeout = '300ms'")
                with pytest.raises(psycopg.errors.LockNotAvailable):
                    connection.execute(statement)
        yield from original(self, chunk, *args, **kwargs)

    monkeypatch.setattr(Postgres, "pages", pages)

    outcome = lab.export(CHUNKED)

    assert outcome.success, outcome.message
    assert list(range(100)) == lab.ids("orders")


def test_connections_cut_in_mid_run_are_opened_again(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page whose connection is killed is asked again; every row comes once."""
    original = Postgres.pages
    killed: list[int] = []

    def pages(self: Postgres, chunk, *args, **kwargs):  # type: ignore[no-untyped-def]
        for page in original(self, chunk, *args, **kwargs):
            yield page
            if chunk.index == 3 and not killed:
                killed.append(1)
                lab.sql(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                    "WHERE application_name LIKE 'rivet:%' AND state = 'idle in transaction' "
                    "AND query NOT LIKE '%export%'"
                )

    monkeypatch.setattr(Postgres, "pages", pages)

    outcome = lab.export(CHUNKED.replace("}", ", tuning: {batch_size: 3, throttle_ms: 0}}"))

    assert [1] == killed
    if outcome.success:  # the planning session may be among the killed: then the snapshot is lost, and told so
        assert list(range(100)) == lab.ids("orders")
    else:
        assert 2 == outcome.exit_code, outcome.message
        assert {} == lab.manifests("orders")


@pytest.mark.parametrize("place", ["file", "proc"])
def test_destination_that_cannot_be_written_is_named(lab: Lab, place: str) -> None:
    """A path below a file, or on a read-only tree, fails with its name, and the cursor stays."""
    (lab.folder / "file").write_text("not a folder")
    path = lab.folder / "file/lake" if place == "file" else Path("/proc/rivet")

    outcome = lab.export(INCREMENTAL.replace("}", f", destination: {{type: local, path: {path}}}}}"))

    assert not outcome.success
    assert str(path.parent) in outcome.message
    assert lab.state.cursor("orders") is None


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KB."""
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(folder)], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_full_disk_is_named_and_leaves_nothing(lab: Lab, small_disk: Path) -> None:
    """Without space the run ends with the disk's name and exit code 2; with space the next run succeeds."""
    lab.sql("CREATE TABLE wide AS SELECT n AS id, repeat(md5(n::text), 50) AS note FROM generate_series(1, 9000) n")
    query = "SELECT id, md5(id::text) || md5((id*7)::text) || note AS note FROM wide"
    block = f"{{name: wide, query: '{query}', compression: none}}"

    outcome = lab.export(block.replace("}", f", destination: {{type: local, path: {small_disk}}}}}"))

    assert (False, 2, "RIVET_DESTINATION_FULL") == (outcome.success, outcome.exit_code, outcome.code), outcome.message
    assert [] == list(small_disk.rglob("*.parquet"))
    again = lab.export(block)
    assert again.success, again.message


@pytest.mark.parametrize("store", ["s3", "gcs"])
def test_missing_bucket_is_named(lab: Lab, request: pytest.FixtureRequest, store: str) -> None:
    """A bucket that does not exist is never created, and named."""
    server = request.getfixturevalue(f"{store}_server")
    where = f"type: {store}, bucket: nowhere, endpoint: '{server.endpoint}'"
    extra = ", region: us-east-1" if store == "s3" else ", allow_anonymous: true"

    outcome = lab.export(INCREMENTAL.replace("}", f", destination: {{{where}{extra}}}}}"))

    assert (False, "RIVET_DESTINATION_BUCKET_MISSING") == (outcome.success, outcome.code), outcome.message
    assert "nowhere" in outcome.message
    assert lab.state.cursor("orders") is None
