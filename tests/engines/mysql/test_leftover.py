"""Statements of processes that died: ended by the next one that connects from this machine, and nobody else's."""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pymysql
import pytest

from rivet_resources.engines.mysql import leftover
from rivet_resources.engines.mysql.connect import connect, rows_of
from rivet_resources.engines.mysql.source import MySql
from tests import processes
from tests.engines.mysql.changes import EAGER
from tests.servers.mysql import connection

SLEEP = "SELECT SLEEP(300)"


@pytest.fixture(params=["mariadb", "mysql"])
def url(request: pytest.FixtureRequest) -> str:
    """An empty database."""
    found: str = request.getfixturevalue(f"fresh_{request.param}")
    return found


@pytest.fixture(autouse=True)
def own_notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Notes of a test are its own, and this process looks for them as one that has just begun."""
    monkeypatch.setattr(leftover, "_folder", lambda: tmp_path / "lines")
    monkeypatch.setattr(leftover, "_processes", [])
    return tmp_path / "lines"


def opened(url: str) -> tuple[Any, Any]:
    """Connect as a session does."""
    params = MySql(url=url).conn_params("rivet:orders", EAGER)  # type: ignore[arg-type]
    return connect(params), params


def sleep(url: str, notes: Path) -> None:
    """Ask for something long."""
    leftover._folder = lambda: notes
    line, params = opened(url)
    rows_of(line, params.comment + SLEEP)


def asked(url: str) -> dict[int, str]:
    """List the sleeping statements in a database: number of the connection, text."""
    with connection(url) as line, line.cursor() as cursor:
        cursor.execute("SHOW FULL PROCESSLIST")
        name = url.rpartition("/")[2]
        return {row[0]: row[7] for row in cursor.fetchall() if row[3] == name and SLEEP in (row[7] or "")}


@contextmanager
def sleeping(url: str, notes: Path) -> Iterator[Any]:
    """Run a process that waits for a statement."""
    process = processes.CONTEXT.Process(target=sleep, args=(url, notes))
    process.start()
    try:
        until(lambda: len(asked(url)) == 1)
        yield process
    finally:
        process.kill()
        process.join()


def until(met: Any) -> None:
    """Wait for what a server does a moment later."""
    deadline = time.monotonic() + 30
    while not met():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_statement_of_a_killed_process_is_ended_by_the_next_one(url: str, own_notes: Path) -> None:
    """Not while it lives; and its note is gone then."""
    with sleeping(url, own_notes) as process:
        opened(url)[0].close()
        while_it_lives = len(asked(url))
        process.kill()
        process.join()
        leftover._processes.clear()

        opened(url)[0].close()

        until(lambda: asked(url) == {})
        assert 1 == while_it_lives
        assert 2 == len(list(own_notes.iterdir()))  # of this process, before and behind its new beginning


def copied(url: str, text: str) -> Any:
    """Run a text on a connection of somebody else's; the connection, whose answer nobody waits for."""
    line = connection(url)
    line._execute_command(3, text)  # COM_QUERY
    return line


@pytest.mark.parametrize("of", ["text copied to another connection", "number given to another statement", "no pid"])
def test_statement_that_is_not_proven_to_be_a_dead_ones_stays(url: str, own_notes: Path, of: str) -> None:
    """Token and number have to agree; a note of another machine, or of a process that lives, is left alone."""
    opened(url)[0].close()
    own_notes.mkdir(exist_ok=True)
    text = f"/* rivet:orders feedfeedfeedfeed */ {SLEEP}" if of != "number given to another statement" else SLEEP
    line = copied(url, text)
    try:
        until(lambda: len(asked(url)) == 1)
        number = next(iter(asked(url))) + (1 if of == "text copied to another connection" else 0)
        params = MySql(url=url).conn_params("rivet:orders", EAGER)  # type: ignore[arg-type]
        node = "elsewhere" if of == "no pid" else platform.node()
        note = json.dumps([node, 0, params.where, params.address.user, number])
        (own_notes / "feedfeedfeedfeed.lines").write_text(f"{note}\n")
        leftover._processes.clear()

        opened(url)[0].close()

        time.sleep(0.1)
        assert 1 == len(asked(url))
    finally:
        line._force_close()
        with connection(url) as other, other.cursor() as cursor, suppress(pymysql.MySQLError):
            cursor.execute(f"KILL {line.thread_id()}")


def test_nothing_is_ended_behind_a_pooler(own_notes: Path) -> None:
    """Its own number of a connection is none of the server's, which may be serving anybody by now."""
    own_notes.mkdir()
    note = json.dumps([platform.node(), 0, "db:3306", "rivet", 7])
    (own_notes / "feedfeedfeedfeed.lines").write_text(f"{note}\n")
    said: list[str] = []

    def ask(statement: str) -> list[tuple[str | None, ...]]:
        said.append(statement)
        return [("4711",)] if "CONNECTION_ID" in statement else [("7",) + (None,) * 6 + ("/* x feedfeedfeedfeed */ S",)]

    assert 0 == leftover.end_leftovers(ask, where="db:3306", user="rivet", number=12)
    assert ["SELECT CONNECTION_ID()"] == said


def test_what_is_noted_of_other_servers_is_kept(own_notes: Path) -> None:
    """Each is asked when somebody connects to it."""
    own_notes.mkdir()
    notes = [[platform.node(), 0, where, "rivet", 7] for where in ("one:3306", "other:3306")]
    path = own_notes / "feedfeedfeedfeed.lines"
    path.write_text("".join(f"{json.dumps(note)}\n" for note in notes))

    for where in ("one:3306", "other:3306"):
        left = path.exists()
        leftover.end_leftovers(lambda _: [("12",)] * 0, where=where, user="rivet", number=12)

        assert left
    assert not path.exists()
