"""The bench's server and its two tables: narrow (ten columns of all kinds) and wide (16 KB of text a row).

Belongs here: a real PostgreSQL 15 over TCP and deterministic rows. Not here: what is measured. The server's
files stay in the folder, so that a second run need not fill it again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

from rivet_resources.embedded_postgres import serving
from tests.servers.postgres import DEBIAN_POSTGRES

SETTINGS = {
    "shared_buffers": "1GB", "max_connections": "60", "fsync": "off", "synchronous_commit": "off",
    "full_page_writes": "off", "max_wal_size": "8GB", "timezone": "UTC", "log_timezone": "UTC",
}  # fmt: skip
NARROW = """
    CREATE TABLE narrow (
        id bigint PRIMARY KEY, customer_id integer NOT NULL, status text, amount numeric(12,2), weight double precision,
        created_at timestamptz NOT NULL, shipped_on date, uid uuid, payload jsonb, note text)
"""
FILL_NARROW = """
    INSERT INTO narrow SELECT i, (i * 7919) %% 100003, (ARRAY['new','paid','shipped','returned'])[1 + i %% 4],
        ((i * 31) %% 10000000) / 100.0, CASE WHEN i %% 11 = 0 THEN NULL ELSE (i %% 9973) / 7.0 END,
        timestamptz '2025-01-01 00:00:00+00' + i * interval '6.3 seconds',
        CASE WHEN i %% 3 = 0 THEN NULL ELSE date '2025-01-01' + (i / 13715)::int END, md5(i::text)::uuid,
        jsonb_build_object('source', 'web', 'items', i %% 9, 'ref', i),
        CASE i %% 5 WHEN 0 THEN NULL WHEN 1 THEN '' ELSE 'note ' || (i * 104729) %% 1000003 END
    FROM generate_series(%s::bigint, %s::bigint) AS i
"""
WIDE = """
    CREATE TABLE wide (id bigint PRIMARY KEY, title text, body text);
    ALTER TABLE wide ALTER body SET STORAGE EXTERNAL
"""
FILL_WIDE = """
    INSERT INTO wide SELECT i, 'document ' || i,
        (SELECT string_agg(md5((i * 512 + j)::text), '') FROM generate_series(1, 512) AS j)
    FROM generate_series(%s::bigint, %s::bigint) AS i
"""
# What every contender selects; text for what has no common form in Parquet.
QUERIES = {
    "narrow": "SELECT id, customer_id, status, amount, weight, created_at, shipped_on, uid::text AS uid, "
    "payload::text AS payload, note FROM narrow",
    "wide": "SELECT id, title, body FROM wide",
}
# The same rows for comparing; long text by its digest.
COMPARED = {
    "narrow": "SELECT id, customer_id, status, amount::DECIMAL(12,2), weight, created_at::TIMESTAMPTZ, shipped_on, "
    "{uid} AS uid, payload::VARCHAR, note",
    "wide": "SELECT id, title, md5(body)",
}


@contextmanager
def server(folder: Path) -> Iterator[str]:
    """Serve PostgreSQL 15 over TCP with a password; the URL of its database."""
    with serving(folder, binaries=DEBIAN_POSTGRES, password="correct-horse", settings=SETTINGS) as found:
        yield found.url()


def fill(url: str, name: str, rows: int) -> None:
    """Make a table have exactly so many rows; does nothing when it has."""
    create, insert, step = {"narrow": (NARROW, FILL_NARROW, 250_000), "wide": (WIDE, FILL_WIDE, 10_000)}[name]
    with psycopg.connect(url, autocommit=True) as connection:
        there = connection.execute("SELECT to_regclass(%s)", [name]).fetchone()
        if there and there[0] and (connection.execute(f"SELECT count(*) FROM {name}").fetchone() or [0])[0] == rows:
            return
        connection.execute(f"DROP TABLE IF EXISTS {name}")
        connection.execute(create)
        for first in range(1, rows + 1, step):
            connection.execute(insert, [first, min(first + step - 1, rows)])
        connection.execute(f"VACUUM (ANALYZE, FREEZE) {name}")
