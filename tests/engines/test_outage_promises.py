"""What packages' engines with a server promise when that is away: Rivet's own keep it, and it is broken by some."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest

from rivet_resources.conformance import OUTAGE_PROMISES, PromiseBroken, proxied
from rivet_resources.conformance.outages import refused_line_is_transient
from rivet_resources.contracts.source import Source
from rivet_resources.engines.mysql.source import MySql
from rivet_resources.engines.postgres.source import Postgres
from rivet_resources.errors import SourceUnreachable
from tests.servers.mysql import connection

pytestmark = pytest.mark.wide

Served = tuple[Callable[[int], Source], int]
ROWS = 300


def at(url: str, port: int) -> str:
    """Return an address with another port of this machine."""
    parts = urlsplit(url)
    user = parts.netloc.rpartition("@")[0]
    return urlunsplit(parts._replace(netloc=f"{user}@127.0.0.1:{port}"))


@pytest.fixture(params=["postgres", "mariadb", "mysql"])
def served(request: pytest.FixtureRequest) -> Iterator[Served]:
    """A server with a table of some hundred rows; what makes a source at a port, and its port."""
    if request.param == "postgres":
        url = request.getfixturevalue("fresh_database")
        with psycopg.connect(url, autocommit=True) as line:
            line.execute("CREATE TABLE t (id int PRIMARY KEY, note text)")
            line.execute(f"INSERT INTO t SELECT i, 'n' || i FROM generate_series(1, {ROWS}) i")
    else:
        url = request.getfixturevalue(f"fresh_{request.param}")
        with connection(url) as line, line.cursor() as cursor:
            cursor.execute("CREATE TABLE t (id int PRIMARY KEY, note varchar(20))")
            cursor.executemany("INSERT INTO t VALUES (%s, %s)", [(i, f"n{i}") for i in range(1, ROWS + 1)])
            line.commit()
    kind: Any = Postgres if request.param == "postgres" else MySql
    with proxied(url) as (front, through):  # a server on a Unix socket has no port
        yield lambda port: kind(url=at(through, port)), front.front


@pytest.mark.parametrize("promise", OUTAGE_PROMISES, ids=lambda each: each.__name__)
def test_engines_of_rivet_keep_what_is_promised(served: Served, promise: Callable[..., None]) -> None:
    """A server that is away, a line that breaks, a server that is silent."""
    source_at, port = served
    promise(source_at, port, "t")


def test_engine_that_gives_up_for_good_breaks_it(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check tells a permanent fault from a transient one."""
    source_at, port = served
    monkeypatch.setattr(SourceUnreachable, "exit_code", 1)

    with pytest.raises(PromiseBroken, match="has exit code 1"):
        refused_line_is_transient(source_at, port, "t")
