"""A table and a store that every host of a cluster reaches."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest

from tests.cluster.place import ROWS, seen_by_hosts
from tests.servers import postgres as servers
from tests.servers.spark_cluster import network


@pytest.fixture
def ends(fresh_real_database: str, s3_server: servers.ObjectStore) -> Iterator[tuple[str, str]]:
    """A table and a store, by addresses that every host reaches."""
    with psycopg.connect(fresh_real_database, autocommit=True) as connection:
        connection.execute("CREATE TABLE orders (id bigint PRIMARY KEY, note text NOT NULL)")
        connection.execute("INSERT INTO orders SELECT n, 'order ' || n FROM generate_series(1, %s) AS n", [ROWS])
    there, store = urlsplit(fresh_real_database), urlsplit(s3_server.endpoint)
    with (
        seen_by_hosts(there.hostname or "", there.port or 5432) as database,
        seen_by_hosts(store.hostname or "", store.port or 80) as lake,
    ):
        netloc = f"{there.netloc.rpartition('@')[0]}@{network().driver}:{database}"
        yield urlunsplit(there._replace(netloc=netloc)), f"http://{network().driver}:{lake}"
