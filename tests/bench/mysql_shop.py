"""The MySQL bench's server and its narrow table: the rows of `mariadb_shop.py` in a real MySQL.

Belongs here: where the server comes from, and how rows are made without MariaDB's sequence tables. Not here: columns
and values (`mariadb_shop.py`), what is measured (`rivals.py`). The server ends with the last process that uses it, so
it is filled each time.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tests.bench import mariadb_shop
from tests.servers.mysql import release_all, shared_mysql

NUMBERS = """
    FROM (WITH RECURSIVE numbers (seq) AS (
        SELECT {first} UNION ALL SELECT seq + 1 FROM numbers WHERE seq < {last}) SELECT seq FROM numbers) AS numbers"""
FILL = mariadb_shop.FILL["narrow"].replace("FROM seq_{first}_to_{last}", NUMBERS)
FILL = FILL.replace("md5(seq)", "left(sha2(seq, 256), 32)")  # MySQL 9.6 has no md5


@contextmanager
def server() -> Iterator[str]:
    """Serve MySQL over TCP with a password; the URL of a database of the bench's own."""
    url = shared_mysql()
    base = url.rsplit("/", 1)[0]
    try:
        with mariadb_shop.connect(url) as connection, connection.cursor() as cursor:
            cursor.execute(f"CREATE DATABASE IF NOT EXISTS {mariadb_shop.DATABASE}")
            cursor.execute("SET GLOBAL innodb_buffer_pool_size = 1 << 30")
        yield f"{base}/{mariadb_shop.DATABASE}"
    finally:
        release_all()


def fill(url: str, rows: int) -> None:
    """Make the narrow table anew with so many rows."""
    step = mariadb_shop.STEPS["narrow"]
    with mariadb_shop.connect(url) as connection, connection.cursor() as cursor:
        cursor.execute("SET SESSION cte_max_recursion_depth = %s, sql_log_bin = 0, sql_mode = ''", [step])
        cursor.execute("DROP TABLE IF EXISTS narrow")
        cursor.execute(mariadb_shop.CREATE["narrow"])
        for first in range(1, rows + 1, step):
            cursor.execute(FILL.format(first=first, last=min(first + step - 1, rows)))
        cursor.execute("ANALYZE TABLE narrow")
