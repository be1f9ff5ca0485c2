"""Pages of PostgreSQL: snapshots shared, faults asked again, limits obeyed, relations of every shape."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest

from rivet_resources.conformance.lines import Lines, hang_up, listening
from rivet_resources.contracts.relation import Chunk, Relation
from rivet_resources.contracts.settings import Tuning, pace
from rivet_resources.engines.postgres import errors as postgres_errors
from rivet_resources.engines.postgres.session import PostgresSession
from rivet_resources.engines.postgres.source import Postgres
from rivet_resources.engines.shared.paging import ValueTooLarge
from rivet_resources.errors import (
    ConfigError,
    SnapshotLost,
    SourceChanged,
    SourceError,
    SourceLost,
    SourcePermission,
    StatementTimeout,
    UnknownColumn,
    UnknownTable,
)
from tests.engines.postgres.reads import EAGER, READERS, chunk_for, pages, rules, run, session, whole


def describe(planning: PostgresSession, table: str = "t") -> Relation:
    """Describe a table with default rules."""
    return planning.describe(table=table, query=None, params={}, rules=rules())


def ids(url: str, relation: Relation, *chunks: Chunk, snapshot: str | None) -> list[int]:
    """Read chunks and give all ids, sorted."""
    found = [page.table for chunk in chunks for page in pages(url, relation, chunk, snapshot=snapshot)]
    return sorted(row for table in found for row in table.column("id").to_pylist())


def make(url: str, rows: int = 1000) -> None:
    """Make a small keyed table."""
    run(
        url,
        "CREATE TABLE t (id int PRIMARY KEY, word text)",
        f"INSERT INTO t SELECT i, repeat('x', i % 50) FROM generate_series(1, {rows}) i",
        "ANALYZE t",
    )


# --- one instant ---------------------------------------------------------------------------------


@pytest.mark.parametrize("reader", READERS)
def test_two_importers_see_the_rows_of_one_instant(fresh_database: str, reader: str) -> None:
    """What a writer commits after the snapshot is in neither reader, whatever the order."""
    make(fresh_database)

    with session(fresh_database) as planning:
        relation = describe(planning)
        chunk = chunk_for(reader, relation)
        before = ids(fresh_database, relation, chunk, snapshot=planning.snapshot)
        run(
            fresh_database, "INSERT INTO t SELECT i, '' FROM generate_series(1001, 2000) i", "UPDATE t SET word = 'new'"
        )
        after = ids(fresh_database, relation, chunk, snapshot=planning.snapshot)

    assert (list(range(1, 1001)), list(range(1, 1001))) == (before, after)


def test_blocks_of_all_chunks_hold_each_row_once(fresh_database: str) -> None:
    """Chunks cut by blocks overlap nowhere and leave nothing out."""
    make(fresh_database, 20_000)

    with session(fresh_database) as planning:
        relation = describe(planning)
        chunks = planning.chunks(relation, pieces=7)
        found = ids(fresh_database, relation, *chunks, snapshot=planning.snapshot)

    assert (7, list(range(1, 20_001))) == (len(chunks), found)


def test_ended_snapshot_is_not_replaced_by_another(fresh_database: str) -> None:
    """When the exporter is gone, a reader refuses instead of mixing two instants."""
    make(fresh_database)
    with session(fresh_database) as planning:
        relation = describe(planning)
        snapshot = planning.snapshot

    with pytest.raises(SnapshotLost, match="run again"):
        ids(fresh_database, relation, chunk_for("blocks", relation), snapshot=snapshot)


def refused(planning: PostgresSession) -> str:
    """Stand in for a server that cannot export a snapshot."""
    raise SourceError("snapshots are not for sharing here")


def test_without_snapshot_a_key_cuts_the_table(fresh_database: str) -> None:
    """A server that cannot share a snapshot gets key ranges, says so, and every row is read once."""
    make(fresh_database, 5000)

    with session(fresh_database, export=refused) as planning:
        relation = describe(planning)
        chunks = planning.chunks(relation, pieces=4)
        found = ids(fresh_database, relation, *chunks, snapshot=planning.snapshot)

    assert ("per_query", None, ["keyset"] * 4) == (planning.consistency, planning.snapshot, [c.reader for c in chunks])
    assert "cannot share a snapshot" in planning.note
    assert len({chunk.identity for chunk in chunks}) == 4
    assert list(range(1, 5001)) == found


def test_without_snapshot_and_key_one_cursor_reads_one_instant(fresh_database: str) -> None:
    """No key and no shared snapshot: one stream in one transaction, reported as single."""
    run(fresh_database, "CREATE TABLE t AS SELECT i AS id FROM generate_series(1, 700) i")

    with session(fresh_database, export=refused) as planning:
        relation = describe(planning)
        chunks = planning.chunks(relation, pieces=4)
        found = ids(fresh_database, relation, *chunks, snapshot=planning.snapshot)

    assert (["cursor"], "single", 700) == ([c.reader for c in chunks], planning.consistency, len(found))


@contextmanager
def pooler(host: str, port: int) -> Iterator[int]:
    """Stand before a server like PgBouncer: refuse the startup parameter `options`, pass everything else on."""

    def pump(here: socket.socket, there: socket.socket) -> None:
        try:
            while piece := here.recv(65536):
                there.sendall(piece)
        finally:
            hang_up(here)
            hang_up(there)

    def serve(lines: Lines, client: socket.socket) -> None:
        length = int.from_bytes(client.recv(4, socket.MSG_WAITALL), "big")
        body = client.recv(length - 4, socket.MSG_WAITALL)
        if length == 8:  # TLS or GSS asked for: no
            client.sendall(b"N")
            return serve(lines, client)
        if b"\0options\0" in body:
            fields = b"SFATAL\0VFATAL\0C08P01\0Munsupported startup parameter: options\0\0"
            client.sendall(b"E" + (len(fields) + 4).to_bytes(4, "big") + fields)
            return hang_up(client)
        server = lines.connect(host, port)
        server.sendall(length.to_bytes(4, "big") + body)
        lines.start(pump, client, server)
        return pump(server, client)

    with listening(serve) as front:
        yield front


@pytest.mark.parametrize("reader", READERS)
def test_pooler_that_refuses_startup_options_is_pinned_inside_the_transaction(
    fresh_real_database: str, reader: str
) -> None:
    """Where `options` are refused, the same settings hold inside the transaction, and cells are the same."""
    run(
        fresh_real_database,
        f"ALTER DATABASE {psycopg.conninfo.conninfo_to_dict(fresh_real_database)['dbname']} SET IntervalStyle = "
        f"'postgres'",
        "CREATE TABLE t (id int PRIMARY KEY, i interval)",
        "INSERT INTO t VALUES (1, '1 day')",
    )
    known = psycopg.conninfo.conninfo_to_dict(fresh_real_database)

    with pooler(str(known["host"]), int(str(known["port"]))) as port:
        url = fresh_real_database.replace(f":{known['port']}/", f":{port}/")
        with session(url) as planning:
            relation = describe(planning)
            table = whole(relation, pages(url, relation, chunk_for(reader, relation), snapshot=planning.snapshot))

    assert [{"id": 1, "i": "P1D"}] == table.to_pylist()


# --- faults --------------------------------------------------------------------------------------


@pytest.mark.parametrize("reader", ["blocks", "keyset", "cursor"])
def test_server_looks_whether_the_task_is_still_there(fresh_database: str, reader: str) -> None:
    """While it works on a statement: one that nobody waits for any more ends within ten seconds."""
    make(fresh_database, 3)

    with session(fresh_database) as planning:
        relation = describe(planning)
        chunk = chunk_for(reader, relation)
        looking = Chunk(**{**vars(chunk), "where": "current_setting('client_connection_check_interval') = '5s'"})
        table = whole(relation, pages(fresh_database, relation, looking, snapshot=planning.snapshot))

    assert 3 == table.num_rows


READING = """
SELECT pid FROM pg_stat_activity
WHERE application_name = 'rivet:test' AND state = 'active' AND query ~ 'pg_sleep|FETCH'
  AND datname = current_database()"""


def end_reader_once(url: str, ended: list[int]) -> None:
    """Wait for a slow page and end its backend, once."""
    with psycopg.connect(url, autocommit=True) as connection:
        deadline = time.monotonic() + 20
        while not ended and time.monotonic() < deadline:
            ended += [row[0] for row in connection.execute(READING)]
            for pid in ended:
                connection.execute("SELECT pg_terminate_backend(%s)", (pid,))
            time.sleep(0.02)


SLOW = "pg_sleep(0.02) IS NOT NULL"  # per row: a page that is long enough to be caught


@pytest.mark.parametrize("reader", ["blocks", "keyset"])
def test_page_whose_backend_is_killed_is_asked_again(
    fresh_database: str, reader: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page that dies in the middle is read again on a fresh connection, under the same snapshot."""
    monkeypatch.setitem(postgres_errors.PASSING, "57P01", 0.0)  # not the 15 s a real failover deserves
    make(fresh_database, 60)
    ended: list[int] = []

    with session(fresh_database) as planning:
        relation = describe(planning)
        whole_table = chunk_for(reader, relation)
        chunk = Chunk(**{**vars(whole_table), "where": SLOW})
        killer = threading.Thread(target=end_reader_once, args=(fresh_database, ended))
        killer.start()
        read = list(pages(fresh_database, relation, chunk, snapshot=planning.snapshot))
        killer.join()

    assert (1, 1, list(range(1, 61))) == (
        len(ended),
        sum(page.retries for page in read),
        sorted(i for page in read for i in page.table.column("id").to_pylist()),
    )


def test_cursor_whose_backend_is_killed_gives_the_chunk_back(
    fresh_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cursor dies with its backend; the chunk must start over, so the fault goes up as retryable."""
    monkeypatch.setitem(postgres_errors.PASSING, "57P01", 0.0)
    make(fresh_database, 60)

    with session(fresh_database) as planning:
        relation = describe(planning)
        chunk = Chunk(index=0, reader="cursor", relation=relation.sql, where=SLOW)
        threading.Thread(target=end_reader_once, args=(fresh_database, [])).start()
        with pytest.raises(SourceLost, match="57P01"):
            list(pages(fresh_database, relation, chunk, snapshot=planning.snapshot))


@pytest.mark.parametrize("reader", READERS)
def test_statement_timeout_is_permanent(fresh_database: str, reader: str) -> None:
    """The same statement would time out again, so it is not asked again as it was."""
    make(fresh_database, 100)
    hasty = pace(Tuning(profile="fast", statement_timeout_s=1, retry_backoff_ms=1), None)

    with session(fresh_database) as planning:
        relation = describe(planning)
        chunk = Chunk(**{**vars(chunk_for(reader, relation)), "where": "pg_sleep(0.2) IS NOT NULL"})
        with pytest.raises(StatementTimeout, match="statement_timeout_s"):
            list(pages(fresh_database, relation, chunk, snapshot=planning.snapshot, speed=hasty))


def test_pause_between_pages_counts_for_no_timeout(fresh_database: str) -> None:
    """The throttle sleeps between statements, so a pause longer than the limit kills nothing."""
    make(fresh_database, 1200)
    hasty = pace(Tuning(statement_timeout_s=1, batch_size=500), None)

    with session(fresh_database) as planning:
        relation = describe(planning)
        read = pages(
            fresh_database,
            relation,
            chunk_for("cursor", relation),
            snapshot=planning.snapshot,
            speed=hasty,
            wait=lambda rows: time.sleep(0.7),
        )
        counts = [page.table.num_rows for page in read]

    assert [500, 500, 200] == counts


def test_error_in_mid_stream_is_permanent_and_shows_no_value(fresh_database: str) -> None:
    """A cell the query cannot compute fails at once; the server's quote of it is not shown."""
    run(
        fresh_database, "CREATE TABLE t (id int PRIMARY KEY, word text)", "INSERT INTO t VALUES (1, '7'), (2, 's3cret')"
    )

    with session(fresh_database) as planning:
        relation = planning.describe(table=None, query="SELECT id, word::int AS n FROM t", params={}, rules=rules())
        with pytest.raises(SourceError, match="invalid input syntax") as failure:
            list(pages(fresh_database, relation, planning.chunks(relation)[0], snapshot=planning.snapshot))

    assert (SourceError, False) == (type(failure.value), "s3cret" in str(failure.value))


@pytest.mark.parametrize("change", ["DROP TABLE t", "ALTER TABLE t DROP COLUMN word"])
def test_table_changed_while_it_is_read_is_named(fresh_database: str, change: str) -> None:
    """A table dropped or altered in mid-run stops the window with one clear sentence."""
    make(fresh_database)
    with session(fresh_database) as planning:
        relation = describe(planning)
    run(fresh_database, change)

    with pytest.raises(SourceChanged, match=r"public\.t was dropped or altered"):
        list(pages(fresh_database, relation, chunk_for("keyset", relation), snapshot=None))


# --- limits --------------------------------------------------------------------------------------


@pytest.mark.parametrize("reader", READERS)
def test_explicit_batch_size_caps_every_page(fresh_database: str, reader: str) -> None:
    """The user's own batch_size is the most rows a page ever has, give or take a block."""
    make(fresh_database, 20_000)
    small = pace(Tuning(batch_size=300, throttle_ms=0), None)

    with session(fresh_database) as planning:
        relation = describe(planning)
        read = pages(fresh_database, relation, chunk_for(reader, relation), snapshot=planning.snapshot, speed=small)
        counts = [page.table.num_rows for page in read]

    assert (20_000, True) == (sum(counts), max(counts) <= (480 if reader == "blocks" else 300))


def test_wide_rows_make_small_pages(fresh_database: str) -> None:
    """Pages keep to their bytes where rows are wide, also those that lie in TOAST."""
    run(
        fresh_database,
        "CREATE TABLE t (id int PRIMARY KEY, word text)",
        "ALTER TABLE t ALTER word SET STORAGE EXTERNAL",
        "INSERT INTO t SELECT i, repeat('x', 100000) FROM generate_series(1, 2000) i",
    )

    with session(fresh_database) as planning:
        relation = describe(planning)
        sizes = {
            reader: [
                page.table.nbytes
                for page in pages(fresh_database, relation, chunk_for(reader, relation), snapshot=planning.snapshot)
            ]
            for reader in READERS
        }

    assert {reader: True for reader in READERS} == {reader: max(seen) < 100 * 2**20 for reader, seen in sizes.items()}


def test_cell_above_the_limit_is_refused(fresh_database: str) -> None:
    """A cell above max_value_mb names table and column."""
    run(fresh_database, "CREATE TABLE t (id int PRIMARY KEY, w text)", "INSERT INTO t VALUES (1, repeat('x', 3000000))")
    tight = pace(Tuning(max_value_mb=1), None)

    with session(fresh_database) as planning:
        relation = describe(planning)
        with pytest.raises(ValueTooLarge, match=r"`public\.t\.w` holds a cell of 2 MB"):
            list(
                pages(fresh_database, relation, chunk_for("blocks", relation), snapshot=planning.snapshot, speed=tight)
            )


# --- relations -----------------------------------------------------------------------------------

# What makes a table of rows 1 to 6 with (id, word), in every shape a table can have.
SHAPES = {
    "partitioned, leaf with another column order": (
        "CREATE TABLE t (id int, word text) PARTITION BY RANGE (id)",
        "CREATE TABLE low PARTITION OF t FOR VALUES FROM (1) TO (4)",
        "CREATE TABLE high (word text, gone int, id int)",
        "ALTER TABLE high DROP COLUMN gone",
        "ALTER TABLE t ATTACH PARTITION high FOR VALUES FROM (4) TO (100)",
        "INSERT INTO t SELECT i, 'w' || i FROM generate_series(1, 6) i",
    ),
    "inheritance": (
        "CREATE TABLE t (id int, word text)",
        "CREATE TABLE child (extra int) INHERITS (t)",
        "INSERT INTO t SELECT i, 'w' || i FROM generate_series(1, 3) i",
        "INSERT INTO child SELECT i, 'w' || i FROM generate_series(4, 6) i",
    ),
    "dropped and generated columns": (
        "CREATE TABLE t (gone int, id int, word text GENERATED ALWAYS AS ('w' || id::text) STORED)",
        "ALTER TABLE t DROP COLUMN gone",
        "INSERT INTO t (id) SELECT generate_series(1, 6)",
    ),
    "materialised view": (
        "CREATE MATERIALIZED VIEW t AS SELECT i AS id, 'w' || i AS word FROM generate_series(1, 6) i",
    ),
    "view": ("CREATE VIEW t AS SELECT i AS id, 'w' || i AS word FROM generate_series(1, 6) i",),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_table_of_any_shape_gives_each_row_once(fresh_database: str, shape: str) -> None:
    """Columns go by name, ghosts do not appear, and the counts agree."""
    run(fresh_database, *SHAPES[shape])

    with session(fresh_database) as planning:
        relation = describe(planning)
        chunks = planning.chunks(relation, pieces=2)
        read = [
            row
            for c in chunks
            for p in pages(fresh_database, relation, c, snapshot=planning.snapshot)
            for row in p.table.to_pylist()
        ]
        count = planning.count(relation)

    assert ("cursor" if shape == "view" else "blocks", 6) == (chunks[0].reader, count)
    assert [{"id": i, "word": f"w{i}"} for i in range(1, 7)] == sorted(read, key=lambda row: row["id"])


def test_empty_table_has_one_chunk_and_no_page(fresh_database: str) -> None:
    """Nothing to read is a plan like any other."""
    run(fresh_database, "CREATE TABLE t (id int)")

    with session(fresh_database) as planning:
        relation = describe(planning)
        chunks = planning.chunks(relation, pieces=4)
        read = [page for c in chunks for page in pages(fresh_database, relation, c, snapshot=planning.snapshot)]

    assert (1, []) == (len(chunks), read)


def test_composite_key_pages_by_row_comparison(fresh_database: str) -> None:
    """A key of several columns, one of them a decimal, pages to the end without a gap."""
    run(
        fresh_database,
        "CREATE TABLE t (day date, n numeric, id int, PRIMARY KEY (day, n))",
        "INSERT INTO t SELECT date '2020-01-01' + i % 3, i / 7.0, i FROM generate_series(1, 2000) i",
    )

    with session(fresh_database) as planning:
        relation = describe(planning)
        chunk = Chunk(index=0, reader="keyset", relation=relation.sql, key=relation.key)
        found = ids(fresh_database, relation, chunk, snapshot=planning.snapshot)

    assert (("day", "n"), list(range(1, 2001))) == (relation.key, found)


KEYS = [
    ("int8", "i * 1000000007::int8"),
    ("numeric(12,3)", "i / 8.0"),
    ("text", "'key_' || i || E'\\\\ '' % \"'"),
    ("uuid", "md5(i::text)::uuid"),
    ("date", "date '1999-12-01' + i"),
    ("timestamp", "timestamp '1969-12-31 23:59:59.5' + i * interval '1 microsecond'"),
    ("timestamptz", "timestamptz '1969-12-31 23:59:59.5Z' + i * interval '1 microsecond'"),
    ("float8", "i / 3.0"),
    ("char(8)", "i::text"),
    ("inet", "'10.0.0.0'::inet + i"),
    ("bytea", "decode(md5(i::text), 'hex')"),
]


@pytest.mark.parametrize("typing", ["portable", "native"])
@pytest.mark.parametrize(("ddl", "value"), KEYS)
def test_key_of_any_type_pages_to_the_end(fresh_database: str, ddl: str, value: str, typing: str) -> None:
    """Each key type's literal is read back as the very value it was made from, so no page skips or repeats a row."""
    run(
        fresh_database,
        f"CREATE TABLE t (k {ddl} PRIMARY KEY, id int)",
        f"INSERT INTO t SELECT {value}, i FROM generate_series(1, 1300) i",
        "ANALYZE t",
    )

    with session(fresh_database, export=refused) as planning:
        relation = planning.describe(table="t", query=None, params={}, rules=rules(typing=typing))
        found = ids(fresh_database, relation, *planning.chunks(relation, pieces=3), snapshot=None)

    assert list(range(1, 1301)) == found


# Query, what the message says.
BAD_QUERIES = [
    ("  -- nothing\n", ConfigError, "empty"),
    (" ; -- nothing\n;", ConfigError, "empty"),
    ("SELECT 1 AS a, 2 AS a", ConfigError, "'a' more than once"),
    ("SELECT 1 AS a WHERE 1 = :lo", ConfigError, "known parameters: high"),
    ("SELECT nope FROM t", SourceError, "does not exist"),
    ("SELECT 1 FROM nowhere", UnknownTable, "nowhere"),
    ("SELECT 1 AS a; SELECT 2", SourceError, "syntax error"),
    ("DELETE FROM t RETURNING id", SourceError, "syntax error"),
]


@pytest.mark.parametrize(("query", "kind", "words"), BAD_QUERIES)
def test_bad_query_gets_one_clear_message(fresh_database: str, query: str, kind: type[Exception], words: str) -> None:
    """Each fault of a query is named before a row is read, and the session lives on."""
    make(fresh_database, 1)

    with session(fresh_database) as planning:
        with pytest.raises(kind, match=words):
            planning.describe(table=None, query=query, params={"high": "1"}, rules=rules())
        assert planning.count(describe(planning)) == 1


def test_parameters_are_rendered_outside_quotes_only(fresh_database: str) -> None:
    """`:name` in text, comments, casts and slices is left alone; quotes in a value stay a value."""
    query = "SELECT ':a'::text AS x, (ARRAY[1,2])[1:1] AS y, $$:a$$ AS z, :a::text AS v /* :a */ -- :a"

    with session(fresh_database) as planning:
        relation = planning.describe(table=None, query=query, params={"a": "it's"}, rules=rules())
        rows = whole(
            relation, pages(fresh_database, relation, planning.chunks(relation)[0], snapshot=planning.snapshot)
        )

    assert [{"x": ":a", "y": [1], "z": ":a", "v": "it's"}] == rows.to_pylist()


def test_unknown_names_list_what_exists(fresh_database: str) -> None:
    """A wrong table suggests its neighbour; a wrong column of `columns:` lists the right ones."""
    make(fresh_database, 1)

    with session(fresh_database) as planning:
        with pytest.raises(UnknownTable, match=r"Did you mean public\.t\?"):
            describe(planning, "T")
        with pytest.raises(UnknownColumn, match="it has id, word"):
            planning.describe(table="t", query=None, params={}, rules=rules(columns={"nope": "text"}))


def test_missing_grant_is_named(fresh_real_database: str) -> None:
    """A user without SELECT reads which GRANT would help."""
    make(fresh_real_database, 1)
    run(fresh_real_database, "DROP ROLE IF EXISTS weak", "CREATE ROLE weak LOGIN PASSWORD 'weak'")
    known = psycopg.conninfo.conninfo_to_dict(fresh_real_database)
    weak = f"postgresql://weak:weak@{known['host']}:{known['port']}/{known['dbname']}"

    try:
        with (
            session(weak) as planning,
            pytest.raises(SourcePermission, match=r'GRANT SELECT ON "public"\."t" TO "weak"'),
        ):
            describe(planning)
    finally:
        run(fresh_real_database, "DROP ROLE weak")


def test_planning_facts_come_from_the_catalog(fresh_database: str) -> None:
    """Keys, leading index columns, NOT NULL, bounds and inner bounds are what the table says."""
    run(
        fresh_database,
        "CREATE TABLE t (a int NOT NULL UNIQUE, b timestamptz, c text UNIQUE, d numeric)",
        "CREATE INDEX ON t (b, a)",
        "CREATE INDEX ON t (d) WHERE d > 0",
        "INSERT INTO t SELECT i, '2020-01-01 00:00:00.000001+00', NULL, i FROM generate_series(1, 1000) i",
        "ANALYZE t",
    )

    with session(fresh_database) as planning:
        relation = describe(planning)
        bounds = planning.bounds(relation, "b")
        nulls = planning.bounds(relation, "c", where="a < 10").nulls
        walk = planning.keyset_bounds(relation, ("a",), 4)
        column = relation.column("a")
        assert column is not None
        quantiles = [int(bound) for bound in planning.quantiles(relation, column, 4)]

    assert (("a",), {"a", "b", "c"}) == (relation.key, set(relation.indexed))
    assert [False, True, True, True] == [column.nullable for column in relation.columns]
    assert ("2020-01-01T00:00:00.000001Z", "2020-01-01T00:00:00.000001Z", 1) == (bounds.low, bounds.high, nulls)
    assert ("250", "500", "750") == walk
    assert [True] * 3 == [abs(q - e) < 20 for q, e in zip(quantiles, (250, 500, 750), strict=True)]


def test_source_reads_through_its_own_methods(fresh_real_database: str) -> None:
    """The YAML block itself opens the session and reads, over TCP with a password from the environment."""
    make(fresh_real_database, 10)
    source = Postgres(url=fresh_real_database)

    with source.session(application="rivet:x", pace=EAGER) as planning:
        relation = planning.describe(table="public.t", query=None, params={}, rules=rules())
        chunk = planning.chunks(relation, where='"id" > 4', order_by=('"id"',))[0]
        read = source.pages(
            chunk, relation.columns, snapshot=planning.snapshot, application="rivet:x", pace=EAGER, wait=print
        )
        found = [row for page in read for row in page.table.column("id").to_pylist()]

    assert ("cursor", [5, 6, 7, 8, 9, 10]) == (chunk.reader, found)
