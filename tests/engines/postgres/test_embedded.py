"""The embedded PostgreSQL: who starts it shares it, and it ends with the last of them, whatever kills them."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from rivet_resources.embedded_postgres import serving
from tests import room

SERVE = """
import sys, time
from pathlib import Path
from rivet_resources.embedded_postgres import serving
with serving(Path(sys.argv[1])) as server:
    print(server.url(), flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that the server's own user can enter."""
    with tempfile.TemporaryDirectory(prefix="rivet-embedded-", dir=room.chosen()) as name:
        os.chmod(name, 0o755)
        yield Path(name)


def serve(folder: Path) -> tuple[subprocess.Popen[str], str]:
    """Start another process that serves the folder; it and the URL it printed."""
    process = subprocess.Popen(
        [sys.executable, "-c", SERVE, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


def answers(url: str) -> bool:
    try:
        with psycopg.connect(url) as connection:
            return connection.execute("SELECT 1").fetchone() == (1,)
    except psycopg.OperationalError:
        return False


def is_down(folder: Path) -> bool:
    """Wait for the server to be gone: it ends within a second, but nobody promises that on a busy machine."""
    deadline = time.monotonic() + 60
    while (folder / "pgdata" / "postmaster.pid").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    return not (folder / "pgdata" / "postmaster.pid").exists()


def test_server_ends_with_the_block(folder: Path) -> None:
    """After the block nothing runs, and the rows are there the next time."""
    with serving(folder / "db") as server, psycopg.connect(server.url(), autocommit=True) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 7 AS n")
    ended = is_down(folder / "db")
    with serving(folder / "db") as server, psycopg.connect(server.url()) as connection:
        found = connection.execute("SELECT n FROM kept").fetchone()

    assert (True, (7,)) == (ended, found)


@pytest.mark.faults
def test_killed_process_leaves_no_server(folder: Path) -> None:
    """A server whose only user is killed ends by itself, and starts again."""
    process, url = serve(folder / "db")
    answered = answers(url)
    process.send_signal(signal.SIGKILL)
    process.wait()
    ended = is_down(folder / "db")
    with serving(folder / "db") as server:
        again = answers(server.url())

    assert (True, True, True) == (answered, ended, again)


def test_two_processes_share_one_server(folder: Path) -> None:
    """The one who started it may leave first."""
    first, url = serve(folder / "db")
    with serving(folder / "db") as server:
        first.communicate()
        shared = (server.url() == url, answers(url))

    assert ((True, True), True) == (shared, is_down(folder / "db"))


def test_path_longer_than_a_socket_takes(folder: Path) -> None:
    """A deep folder gets its socket elsewhere."""
    with serving(folder / ("deep" * 30) / "db") as server:
        answered = answers(server.url())

    assert answered


@pytest.mark.skipif(os.geteuid() != 0, reason="only root's server runs as another user")
def test_folder_closed_to_others_works_for_root() -> None:
    """Root's own home lets nobody in: the files lie outside, with a link, and no permission is widened."""
    with tempfile.TemporaryDirectory(prefix="rivet-closed-", dir=room.chosen()) as name:
        closed = Path(name)
        with serving(closed / "db") as server:
            answered = answers(server.url())
        outside = (closed / "db" / "outside").resolve()
        mode = closed.stat().st_mode & 0o777

    assert (True, True, 0o700) == (answered, outside.is_dir(), mode)
    shutil.rmtree(outside)
