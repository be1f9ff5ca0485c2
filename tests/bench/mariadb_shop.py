"""The MariaDB bench's server and its two tables: the narrow and the wide one of `shop.py`, in MariaDB's types.

Belongs here: Debian's MariaDB over TCP, deterministic rows, what is asked of every contender. Not here: what is
measured (`mariadb.py`). The server's files stay in the folder, so that a second run need not fill it again.
"""

from __future__ import annotations

import os
import pwd
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pymysql

from tests.servers.postgres import free_port

SETTINGS = (
    "--innodb-buffer-pool-size=1G", "--innodb-flush-log-at-trx-commit=0", "--innodb-doublewrite=0",
    "--innodb-log-file-size=512M", "--max-connections=60", "--bind-address=127.0.0.1", "--skip-log-bin",
    "--default-time-zone=+00:00", "--character-set-server=utf8mb4",
)  # fmt: skip
USER, PASSWORD, DATABASE = "bench", "correct-horse", "bench6"
STATEMENT_SECONDS = 0.02
LONGEST = """
    SELECT max(time_ms) / 1000 FROM information_schema.processlist
    WHERE command IN ('Query', 'Execute') AND id <> connection_id() AND db = database()
"""
CREATE = {
    "narrow": """
        CREATE TABLE narrow (
            id bigint PRIMARY KEY, customer_id bigint NOT NULL, status varchar(20), amount decimal(12,2),
            weight double, created_at datetime(6) NOT NULL, shipped_on date, uid char(36), payload longtext,
            note varchar(60)) CHARACTER SET utf8mb4""",
    "wide": "CREATE TABLE wide (id bigint PRIMARY KEY, title varchar(60), body mediumtext) CHARACTER SET utf8mb4",
}
FILL = {
    "narrow": """
        INSERT INTO narrow SELECT seq, (seq * 7919) % 100003, elt(1 + seq % 4, 'new', 'paid', 'shipped', 'returned'),
            ((seq * 31) % 10000000) / 100.0, CASE WHEN seq % 11 = 0 THEN NULL ELSE (seq % 9973) / 7e0 END,
            timestamp '2025-01-01 00:00:00' + interval seq * 6300000 microsecond,
            CASE WHEN seq % 3 = 0 THEN NULL ELSE date '2025-01-01' + interval floor(seq / 13715) day END,
            insert(insert(insert(insert(md5(seq), 9, 0, '-'), 14, 0, '-'), 19, 0, '-'), 24, 0, '-'),
            concat('{{"source": "web", "items": ', seq % 9, ', "ref": ', seq, '}}'),
            CASE seq % 5 WHEN 0 THEN NULL WHEN 1 THEN '' ELSE concat('note ', (seq * 104729) % 1000003) END
        FROM seq_{first}_to_{last}""",
    # Sixteen KB of digits that do not compress away within a page.
    "wide": """
        INSERT INTO wide SELECT s.seq, concat('document ', s.seq),
            (SELECT group_concat(md5(s.seq * 512 + j.seq) SEPARATOR '') FROM seq_1_to_512 AS j)
        FROM seq_{first}_to_{last} AS s""",
}
STEPS = {"narrow": 250_000, "wide": 5_000}
COLUMNS = {
    "narrow": "id, customer_id, status, amount, weight, created_at, shipped_on, uid, payload, note",
    "wide": "id, title, body",
}
# Rows of one page of arrow-odbc, and the longest text of each table, which sizes its buffers.
PAGES = {"narrow": (10_000, 128), "wide": (200, 20_000)}
# The same rows for comparing; long text by its digest.
COMPARED = {
    "narrow": "SELECT id, customer_id, status, amount::DECIMAL(12,2), weight, created_at::TIMESTAMP, shipped_on, uid, "
    "payload::VARCHAR, note",
    "wide": "SELECT id, title, md5(body)",
}


@contextmanager
def server(folder: Path) -> Iterator[str]:
    """Serve Debian's MariaDB over TCP with a password; the URL of its database."""
    files, socket, port = folder / "files", folder / "socket", free_port()
    if not files.exists():
        folder.mkdir(parents=True, exist_ok=True)
        install = [
            "mariadb-install-db",
            "--no-defaults",
            f"--datadir={files}",
            "--auth-root-authentication-method=normal",
        ]
        subprocess.run([*install, "--skip-test-db"], check=True, capture_output=True)
    command = ["/usr/sbin/mariadbd", "--no-defaults", f"--datadir={files}", f"--socket={socket}", f"--port={port}"]
    command.append(f"--user={_user()}")
    with subprocess.Popen([*command, *SETTINGS], stderr=(folder / "log").open("w")) as process:
        try:
            with _root(socket, process) as connection, connection.cursor() as cursor:
                cursor.execute(f"CREATE DATABASE IF NOT EXISTS {DATABASE}")
                cursor.execute(f"CREATE USER IF NOT EXISTS {USER}@'127.0.0.1' IDENTIFIED BY '{PASSWORD}'")
                cursor.execute(f"GRANT ALL ON *.* TO {USER}@'127.0.0.1'")
            yield f"mysql://{USER}:{PASSWORD}@127.0.0.1:{port}/{DATABASE}"
        finally:
            process.terminate()


def _user() -> str:
    return pwd.getpwuid(os.getuid()).pw_name


def _root(socket: Path, process: subprocess.Popen[bytes]) -> Any:
    """Wait for the server."""
    for _ in range(600):
        if process.poll() is not None:
            raise RuntimeError(f"mariadbd ended with {process.returncode}; see {socket.with_name('log')}")
        try:
            return pymysql.connect(unix_socket=str(socket), user="root", autocommit=True)
        except pymysql.err.OperationalError:
            time.sleep(0.1)
    raise RuntimeError("mariadbd did not answer within a minute")


def connect(url: str, **more: Any) -> Any:
    """Connect by PyMySQL."""
    parts = urlsplit(url)
    return pymysql.connect(
        host=parts.hostname, port=parts.port or 3306, user=parts.username, password=parts.password or "",
        database=parts.path[1:], autocommit=True, charset="utf8mb4", **more,
    )  # fmt: skip


def fill(url: str, name: str, rows: int) -> None:
    """Make a table have exactly so many rows; does nothing when it has."""
    with connect(url) as connection, connection.cursor() as cursor:
        cursor.execute("SET SESSION group_concat_max_len = 1000000, max_statement_time = 0, sql_mode = ''")
        cursor.execute("SELECT count(*) FROM information_schema.tables WHERE table_schema = database() "
                       "AND table_name = %s", [name])  # fmt: skip
        if cursor.fetchone()[0]:
            cursor.execute(f"SELECT count(*) FROM {name}")
            if cursor.fetchone()[0] == rows:
                return
        cursor.execute(f"DROP TABLE IF EXISTS {name}")
        cursor.execute(CREATE[name])
        for first in range(1, rows + 1, STEPS[name]):
            cursor.execute(FILL[name].format(first=first, last=min(first + STEPS[name] - 1, rows)))
        cursor.execute(f"ANALYZE TABLE {name}")


@contextmanager
def longest_statement(url: str) -> Iterator[list[float]]:
    """Ask the server for its longest running statement again and again."""
    longest, stop = [0.0], threading.Event()

    def ask() -> None:
        with connect(url) as connection, connection.cursor() as cursor:
            while not stop.wait(STATEMENT_SECONDS):
                cursor.execute(LONGEST)
                longest[0] = max(longest[0], float((cursor.fetchone() or [0])[0] or 0))

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        yield longest
    finally:
        stop.set()
        asking.join()
