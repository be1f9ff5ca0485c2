"""A command of many exports connects once a lane, and no session sees anything of the one before it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from rivet_assets.dagster.sensors.values_sensor import tick, values_sensors
from rivet_assets.launch.run_exports import run_exports
from rivet_resources.contracts.settings import Pace, Tuning, pace
from rivet_resources.contracts.source import Session
from rivet_resources.engines.mysql.source import MySql
from rivet_resources.engines.postgres.source import Postgres
from rivet_resources.engines.shared.kept_connections import keeping
from tests.lab import Lab, lab_in
from tests.lab_engines import ENGINES, Engine

SPEED = pace(Tuning(profile="fast", retry_backoff_ms=1, max_retries=0), None)
EXPORTS = 6
READERS = {"postgres": 2, "mariadb": 1, "mysql": 1}  # connections of one reader
OTHERS = (
    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() "
    "AND backend_type = 'client backend'"
)


@dataclass(frozen=True)
class Server:
    """What the tests ask of an engine, in its words."""

    source: Callable[..., Any]
    connections: str  # how many were ever opened, by whoever
    number: str  # of this connection
    end: str  # ends the connection of a number
    leave: tuple[str, ...]  # leaves things of a session behind
    left: str  # what is there of them
    nothing: str


SERVERS: Mapping[str, Server] = {
    "postgres": Server(
        Postgres,
        "SELECT sessions FROM pg_stat_database WHERE datname = current_database()",
        "SELECT pg_backend_pid()",
        "SELECT pg_terminate_backend({}, 10000)",
        ("SELECT pg_advisory_lock(7)", "SET SESSION search_path = nowhere", "SET SESSION statement_timeout = 1"),
        "SELECT concat((SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()), "
        "current_setting('search_path') = 'nowhere', current_setting('statement_timeout') = '1ms')",
        "0ff",
    ),
    "mariadb": Server(
        MySql,
        "SHOW GLOBAL STATUS LIKE 'Connections'",
        "SELECT connection_id()",
        "KILL {}",
        ("SELECT get_lock('x', 1)", "SET @left = 7, SESSION sql_mode = 'ANSI_QUOTES', SESSION net_read_timeout = 7"),
        "SELECT concat(coalesce(is_used_lock('x'), 0), coalesce(@left, 0), "
        "@@sql_mode = 'ANSI_QUOTES', @@net_read_timeout = 7)",
        "0000",
    ),
}  # fmt: skip


@pytest.fixture(params=["postgres", "mariadb", "mysql"])
def engine(request: pytest.FixtureRequest) -> Engine:
    """An engine whose connections can be cleaned."""
    return ENGINES[request.param]


@pytest.fixture
def lab(tmp_path: Path, engine: Engine, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Lab:
    """An empty database and an empty folder."""
    return lab_in(tmp_path, engine, request, monkeypatch)


@pytest.fixture
def server(engine: Engine) -> Server:
    """The engine's words; MySQL's are MariaDB's."""
    return SERVERS["mariadb" if engine.name == "mysql" else engine.name]


@contextmanager
def planning(
    lab: Lab, server: Server, *, application: str = "rivet:one", speed: Pace = SPEED, **keys: Any
) -> Iterator[Session]:
    """Open a planning session."""
    with server.source(url=lab.url, **keys).session(application=application, pace=speed, snapshot=False) as session:
        yield session


def told(session: Session, statement: str) -> str:
    """Ask one thing."""
    return str(session.ask(statement, doing="testing")[0][-1])  # type: ignore[attr-defined]  # both engines have it


def test_next_session_has_the_connection_and_nothing_of_the_one_before(lab: Lab, server: Server) -> None:
    """Locks, variables and settings are gone, and what is pinned is pinned again."""
    with keeping():
        with planning(lab, server) as session:
            number = told(session, server.number)
            for statement in server.leave:
                session.ask(statement, doing="leaving")  # type: ignore[attr-defined]
        with planning(lab, server, application="rivet:two") as session:
            found = told(session, server.number), told(session, server.left)

    assert (number, server.nothing) == found


def test_failed_statement_is_not_handed_on(lab: Lab, server: Server) -> None:
    """A transaction that the server gave up is rolled back before the next session begins its own."""
    with keeping():
        with pytest.raises(Exception, match="nowhere"), planning(lab, server) as session:
            told(session, "SELECT * FROM nowhere")
        with planning(lab, server) as session:
            found = told(session, "SELECT 1")

    assert found == "1"


def test_connection_that_died_while_it_waited_is_replaced(lab: Lab, server: Server) -> None:
    """The export that comes next is not the one to fail."""
    with keeping():
        with planning(lab, server) as session:
            number = told(session, server.number)
        lab.sql(server.end.format(number))
        with planning(lab, server) as session:
            found = told(session, server.number)

    assert number != found


def test_session_of_other_settings_or_another_user_has_a_connection_of_its_own(lab: Lab, server: Server) -> None:
    """A statement's limit is pinned when a connection is opened."""
    patient = pace(Tuning(profile="fast", statement_timeout_s=77), None)
    with keeping():
        with planning(lab, server) as session:
            number = told(session, server.number)
        with planning(lab, server, speed=patient) as session:
            found = told(session, server.number)

    assert number != found


def test_connection_is_closed_under_a_cap(lab: Lab, server: Server) -> None:
    """One that waits here would be one too many elsewhere."""
    with keeping():
        with planning(lab, server, max_connections=9) as session:
            number = told(session, server.number)
        with planning(lab, server, max_connections=9) as session:
            found = told(session, server.number)

    assert number != found


def test_connection_is_closed_with_the_command(lab: Lab, server: Server) -> None:
    """Nothing is left at the server of a command that has ended, and nothing is kept without one."""
    with keeping(), planning(lab, server) as session:
        number = told(session, server.number)
    with planning(lab, server) as session:
        second = told(session, server.number)
    with keeping(), planning(lab, server) as session:
        third = told(session, server.number)

    assert len({number, second, third}) == 3


def test_exports_that_find_nothing_new_share_connections(lab: Lab, server: Server) -> None:
    """A round of many exports is planned over no more connections than a round of one; who reads has one of its own."""
    names = [f"orders{number}" for number in range(EXPORTS)]
    for name in names:
        lab.create(name, {"id": "whole", "k": "whole"}, index=["k"])
        lab.insert(name, [{"id": 1, "k": 1}])
    blocks = [f"{{name: {name}, table: {name}, mode: incremental, cursor_column: k}}" for name in names]
    assert all(outcome.success for outcome in run_exports(lab.config(*blocks)))

    def cost(*exports: str) -> int:
        before = asked(lab, server)
        outcomes = run_exports(lab.config(*exports))
        assert [(True, 0)] * len(exports) == [(each.success, each.rows) for each in outcomes], outcomes
        return asked(lab, server) - before - 1

    readers = READERS[lab.engine.name]  # of the rows at the cursor's last value
    planned = cost(blocks[0]) - readers

    assert cost(*blocks) <= planned + EXPORTS * readers


def test_values_of_many_exports_are_asked_over_one_session(
    lab: Lab, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sensor of a hundred exports of one database connects as that of one; who reads has one of its own."""
    lab.create("region", {"id": "whole", "code": "note"})
    lab.insert("region", [{"id": 1, "code": "eu"}])
    blocks = [
        f"{{name: orders{number}, table: orders, partition_by: {{column: region, query: SELECT code FROM region}}}}"
        for number in range(EXPORTS)
    ]

    def cost(*exports: str) -> int:
        (sensor,) = values_sensors(lab.config(*exports))
        before = asked(lab, server)
        with dg.DagsterInstance.ephemeral() as instance:
            found = tick(sensor.asked, instance)
        assert len(exports) == len(found.dynamic_partitions_requests or ()), found.skip_reason
        return asked(lab, server) - before - 1

    one = cost(blocks[0])

    assert cost(*blocks) <= one + (EXPORTS - 1) * READERS[lab.engine.name]


def asked(lab: Lab, server: Server) -> int:
    """Ask the server how many connections it has seen, this one among them; PostgreSQL counts those that have ended."""
    with planning(lab, server) as session:
        while lab.engine.name == "postgres" and told(session, OTHERS) != "0":
            time.sleep(0.02)
        return int(told(session, server.connections))
