"""Pages of MySQL and MariaDB: keys of every kind walked exactly, one instant, faults asked again, limits obeyed."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from rivet_resources.contracts.relation import Chunk
from rivet_resources.contracts.settings import Pace, Tuning, pace
from rivet_resources.engines.mysql.connect import connect
from rivet_resources.engines.mysql.source import MySql
from rivet_resources.engines.mysql.wire import stream as mysql_stream
from rivet_resources.errors import SourceChanged, SourceError, SourceLost, StatementTimeout
from tests.engines.mysql.reads import EAGER, SERVERS, chunked, describe, pages, run, session, table, whole
from tests.servers.mysql import connection


@pytest.fixture(params=SERVERS)
def url(request: pytest.FixtureRequest) -> str:
    """The URL of an empty database, of each server in turn."""
    return str(request.getfixturevalue(request.param))


def tuned(**settings: Any) -> Pace:
    """Return a pace without pauses."""
    return pace(Tuning(profile="fast", retry_backoff_ms=1, **{"max_retries": 2, **settings}), None)


SMALL = tuned(batch_size=7)
NUMBERS = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {}) "


def make(url: str, rows: int = 1000) -> None:
    """Make a small keyed table."""
    run(
        url,
        "CREATE TABLE t (id INT PRIMARY KEY, word TEXT)",
        f"INSERT INTO t {NUMBERS.format(rows)} SELECT i, REPEAT('x', i % 50) FROM n",
    )


# --- keys ----------------------------------------------------------------------------------------

NASTY = (
    "",
    "a",
    "A'",
    "a%",
    "a_",
    "key_99\\max",
    'b"',
    "é",
    "ü",
    "ß",
    "🎉",
    "日本",
    "z;--",
    "#x",
    "`q`",
    "\\",
    "\\'",
    "Zz",
)
TEXTS = ", ".join("('" + text.replace("\\", "\\\\").replace("'", "''") + "')" for text in NASTY)
WITHOUT_SS = TEXTS.replace("('ß'), ", "")  # it sorts as ss there
TRAILING = ", ('trail'), ('trail\t'), ('trail!'), ('t rail')"
# Table, its key columns, rows as VALUES.
KEYS = {
    "unsigned bigint": ("k BIGINT UNSIGNED PRIMARY KEY", "(0), (1), (9223372036854775807), (9223372036854775808), "
                        "(17777777777777777777), (18446744073709551614), (18446744073709551615)"),
    "negative": ("k BIGINT PRIMARY KEY", "(-9223372036854775808), (-1), (0), (1), (9223372036854775807)"),
    "decimal": ("k DECIMAL(60, 3) PRIMARY KEY", "(-780780780.780), (0.001), (0.002), (1), "
                "(123456789012345678901234567890.125)"),
    "date": ("k DATE PRIMARY KEY", "('1000-01-01'), ('1999-12-31'), ('2000-01-01'), ('9999-12-31')"),
    "datetime": ("k DATETIME(6) PRIMARY KEY", "('1000-06-15'), ('2020-01-01 00:00:00.000001'), "
                 "('2020-01-01 00:00:00.000002'), ('9999-12-31 23:59:59.999999')"),
    "timestamp": ("k TIMESTAMP(3) PRIMARY KEY", "('1991-08-31 12:34:56'), ('2020-01-01 00:00:00.001'), "
                  "('2020-01-01 00:00:00.002'), ('2037-12-31 23:59:59.999')"),
    "time": ("k TIME(6) PRIMARY KEY", "('00:00:00'), ('00:00:00.000001'), ('12:00:00'), ('23:59:59.999999')"),
    "uuid text": ("k CHAR(36) PRIMARY KEY", ", ".join("(UUID())" for _ in range(40))),
    "binary": ("k BINARY(4) PRIMARY KEY", "(x'00000000'), (x'00000001'), (x'5C270000'), (x'80000000'), "
               "(x'FFFFFFFF'), (x'27')"),
    "varbinary": ("k VARBINARY(9) PRIMARY KEY", "(x''), (x'00'), (x'0000'), (x'5C'), (x'27'), (x'FF'), (x'FFFF')"),
    "bit": ("k BIT(20) PRIMARY KEY", "(0), (1), (932067), (b'10000000000000000000')"),
    "year": ("k YEAR PRIMARY KEY", "(1901), (1970), (2018), (2155)"),
    "bool": ("k BOOL PRIMARY KEY", "(0), (1)"),
    "utf8mb4_bin": ("k VARCHAR(50) COLLATE utf8mb4_bin PRIMARY KEY", TEXTS + TRAILING + ", ('ZZ'), ('zz')"),
    "utf8mb4_general_ci": ("k VARCHAR(50) COLLATE utf8mb4_general_ci PRIMARY KEY", TEXTS + TRAILING),
    "utf8mb4_unicode_ci": ("k VARCHAR(50) COLLATE utf8mb4_unicode_ci PRIMARY KEY", WITHOUT_SS + TRAILING),
    "latin1": ("k VARCHAR(50) CHARACTER SET latin1 PRIMARY KEY", "('café'), ('cafe!'), ('Ü'), ('z'), ('~'), ('ÿ')"),
    "ucs2": ("k VARCHAR(50) CHARACTER SET ucs2 PRIMARY KEY", "('日本'), ('a'), ('ñ'), ('b')"),
    "char": ("k CHAR(9) PRIMARY KEY", "('a  '), ('b'), ('ab ')"),
    "unique and not null": ("k INT NOT NULL, UNIQUE (k)", "(3), (1), (2)"),
    "descending": ("k INT, PRIMARY KEY (k DESC)", "(3), (1), (2)"),
}  # fmt: skip


@pytest.mark.parametrize("kind", KEYS)
@pytest.mark.parametrize("pieces", [1, 3])
def test_each_row_is_read_once_along_a_key_of_any_type(url: str, kind: str, pieces: int) -> None:
    """Pages of two rows, in one chunk or three, give what one plain SELECT gives, in its order."""
    column, values = KEYS[kind]
    run(url, f"CREATE TABLE t ({column}, x INT DEFAULT 5)", f"INSERT INTO t (k) VALUES {values}")
    with session(url) as planning:
        relation = describe(planning)
        chunk = Chunk(index=0, reader="cursor", relation=relation.sql, order_by=("`k`",), one_instant=True)
        expected = whole(relation, pages(url, relation, chunk)).column("k").to_pylist()

    read = chunked(url, pieces=pieces, speed=tuned(batch_size=2))

    assert ("k",) == relation.key
    assert expected == [key for part in read for key in part.column("k").to_pylist()]
    assert len(expected) > 1


COMPOSITE = [
    ("a INT, b VARCHAR(9) COLLATE utf8mb4_general_ci, c DATE, PRIMARY KEY (a, b, c)", ("a", "b", "c")),
    ("a VARCHAR(9), b BIGINT UNSIGNED, c DATE NOT NULL, PRIMARY KEY (a, b)", ("a", "b")),
    ("a VARCHAR(9) NOT NULL, b INT NOT NULL, c DATE NOT NULL, UNIQUE u (b, a, c)", ("b", "a", "c")),
]


@pytest.mark.parametrize(("columns", "key"), COMPOSITE)
@pytest.mark.parametrize("pieces", [1, 4])
def test_composite_keys_are_walked_in_full(url: str, columns: str, key: tuple[str, ...], pieces: int) -> None:
    """Ties of the first parts cross the edges of pages and chunks, and no row is lost or repeated."""
    run(
        url,
        f"CREATE TABLE t ({columns})",
        f"INSERT INTO t (a, b, c) {NUMBERS.format(60)} SELECT i % 3, i DIV 2, '2020-01-01' + INTERVAL i DAY FROM n "
        "ON DUPLICATE KEY UPDATE c = c",
    )
    with session(url) as planning:
        relation = describe(planning)
        rows = planning.count(relation)

    read = [row for part in chunked(url, pieces=pieces, speed=SMALL) for row in part.to_pylist()]

    assert key == relation.key
    assert (rows, rows) == (len(read), len({tuple(row.values()) for row in read}))


# Columns of a table whose keys cannot be walked exactly.
NO_KEY = [
    "k INT, x INT",
    "k INT, x INT, UNIQUE (k)",  # NULLs may repeat
    "k VARCHAR(200) NOT NULL, x INT, UNIQUE (k(3))",
    "k DOUBLE PRIMARY KEY, x INT",
    "k FLOAT PRIMARY KEY, x INT",
    "k ENUM ('b', 'a', 'c') PRIMARY KEY, x INT",
    "k SET ('b', 'a', 'c') PRIMARY KEY, x INT",
    "k VARCHAR(9) CHARACTER SET sjis PRIMARY KEY, x INT",
]


@pytest.mark.parametrize("columns", NO_KEY)
def test_table_without_a_usable_key_is_read_by_one_statement_and_says_so(url: str, columns: str) -> None:
    """All rows come, in bites, and the plan warns that one statement reads them."""
    rows = (
        "('b', 1), ('a', 2), ('c', 3)"
        if "INT," not in columns[:6] and "DOUBLE" not in columns
        else "(1, 1), (2, 2), (3, 3)"
    )
    rows = "(1, 1), (2, 2), (3, 3)" if "FLOAT" in columns else rows
    run(url, f"CREATE TABLE t ({columns})", f"INSERT INTO t VALUES {rows}")

    with session(url) as planning:
        relation = describe(planning)
        (chunk,) = planning.chunks(relation, pieces=4)
        note = planning.note
    read = whole(relation, pages(url, relation, chunk))

    assert ((), [1, 2, 3]) == (relation.key, sorted(read.column("x").to_pylist()))
    assert (
        "t has no unique key that pages can follow: it is read by one long statement; statement_timeout_s covers"
        in note
    )


def test_key_whose_type_is_overridden_is_not_walked_wrongly(url: str) -> None:
    """A key read in another zone does not lead back to its row, so the table counts as one without a key."""
    run(url, "CREATE TABLE t (k DATETIME PRIMARY KEY)", "INSERT INTO t VALUES ('2020-01-01'), ('2020-07-01')")
    from rivet_resources.contracts.source import ColumnRule

    rule = ColumnRule(type="timestamp_tz", timezone="+02:00")
    with session(url) as planning:
        relation = describe(planning, columns={"k": rule})

    read = table(url, columns={"k": rule})

    assert () == relation.key
    assert ["2019-12-31T22:00:00+00:00", "2020-06-30T22:00:00+00:00"] == [
        k.isoformat() for k in read.column("k").to_pylist()
    ]


def test_wanted_order_is_followed_where_an_index_serves_it(url: str) -> None:
    """An incremental read walks the cursor's index, ties told apart by the key; NULLs are left to the key's walk."""
    run(
        url,
        "CREATE TABLE t (id INT PRIMARY KEY, at DATETIME, KEY (at))",
        f"INSERT INTO t {NUMBERS.format(40)} SELECT i, '2020-01-01' + INTERVAL (i * 7) % 5 DAY FROM n",
        "INSERT INTO t VALUES (99, NULL)",
    )
    with session(url) as planning:
        relation = describe(planning)
        order = ("`at`", "`id`")
        later = planning.chunks(relation, where="`at` > '2020-01-01' AND `at` <= '2020-01-03'", order_by=order)
        first = planning.chunks(relation, where="(`at` <= '2020-01-03' OR `at` IS NULL)", order_by=order)

    read = whole(relation, pages(url, relation, later[0], speed=SMALL)).to_pylist()
    everything = whole(relation, pages(url, relation, first[0], speed=SMALL)).to_pylist()

    assert (("at", "id"), ("id",)) == (later[0].key, first[0].key)
    assert [(row["at"], row["id"]) for row in read] == sorted((row["at"], row["id"]) for row in read)
    assert (16, 25) == (len(read), len(everything))


# --- bounds --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rows", "pieces"), [(1000, 7), (10, 3), (3, 8), (1, 4), (0, 3)])
def test_bounds_of_a_key_cut_exactly_equal_pieces(url: str, rows: int, pieces: int) -> None:
    """Every piece but the last holds the same number of rows; no piece is empty."""
    run(url, "CREATE TABLE t (id BIGINT UNSIGNED PRIMARY KEY)")
    if rows:
        run(url, f"INSERT INTO t {NUMBERS.format(rows)} SELECT CAST(9223372036854775800 AS UNSIGNED) + i * i FROM n")
    with session(url) as planning:
        relation = describe(planning)
        bounds = planning.keyset_bounds(relation, ("id",), pieces)
        chunks = planning.chunks(relation, pieces=pieces)

    sizes = [whole(relation, pages(url, relation, chunk)).num_rows for chunk in chunks]

    size = -(-rows // pieces) if rows else 0
    assert len(bounds) + 1 == len(sizes)
    assert (rows, [size] * (len(sizes) - 1)) == (sum(sizes), sizes[:-1])
    assert rows == 0 or 0 < sizes[-1] <= size


def test_a_cursor_that_no_index_serves_is_told(url: str) -> None:
    """Rows of a window are then looked for in the whole table, which a reader of the plan must know."""
    run(url, "CREATE TABLE t (id INT PRIMARY KEY, a INT, b INT, KEY (b, a))", "INSERT INTO t VALUES (1, 1, 1)")
    notes = {}
    for name in ("a", "b"):
        with session(url) as planning:
            planning.chunks(describe(planning), where=f"`{name}` > 0", order_by=(f"`{name}`", "`id`"))
            notes[name] = planning.note

    assert notes["a"].startswith("no index begins with `a`")
    assert "" == notes["b"]


def test_quantiles_need_an_index(url: str) -> None:
    """Values are cut by a walk along an index that the column leads; without one nothing is promised."""
    run(
        url,
        "CREATE TABLE t (id INT PRIMARY KEY, a INT, b INT, KEY (b, a))",
        f"INSERT INTO t {NUMBERS.format(100)} SELECT i, i, i DIV 10 FROM n",
    )
    with session(url) as planning:
        relation = describe(planning)
        a, b = relation.column("a"), relation.column("b")
    assert a is not None
    assert b is not None
    with session(url) as planning:
        found = planning.quantiles(relation, a, 4), planning.quantiles(relation, b, 2)

    assert () == found[0]
    assert [True] == [0 < int(bound) < 10 for bound in found[1]]


# --- one instant ---------------------------------------------------------------------------------


def test_one_chunk_is_of_one_instant(url: str) -> None:
    """What others commit between two pages is not seen, whether it is new or changed."""
    make(url)
    with session(url) as planning:
        relation = describe(planning)
        (chunk,) = planning.chunks(relation)
        told = planning.consistency, planning.snapshot, planning.note
    read = pages(url, relation, chunk, speed=SMALL)
    first = next(read)

    run(url, "UPDATE t SET word = 'new'", "INSERT INTO t VALUES (2000, 'new')", "DELETE FROM t WHERE id = 1000")
    rest = [page.table for page in read]

    words = pa.concat_tables([first.table, *rest])
    assert ("single", None, "") == told
    assert list(range(1, 1001)) == words.column("id").to_pylist()
    assert "new" not in words.column("word").to_pylist()


def test_several_chunks_say_that_each_has_its_own_instant(url: str) -> None:
    """The plan does not promise what the engine cannot give."""
    make(url)
    with session(url) as planning:
        chunks = planning.chunks(describe(planning), pieces=4)

    assert ("per_query", 4, {False}) == (planning.consistency, len(chunks), {chunk.one_instant for chunk in chunks})
    assert "MySQL cannot share a snapshot between connections" in planning.note


def test_engine_without_snapshots_is_named(url: str) -> None:
    """A table that no snapshot holds still is not called consistent."""
    run(url, "CREATE TABLE t (id INT PRIMARY KEY) ENGINE = MyISAM", "INSERT INTO t VALUES (1)")
    with session(url) as planning:
        planning.chunks(describe(planning))

    assert "per_query" == planning.consistency
    assert "stored by MyISAM, which has no snapshots" in planning.note


# --- faults --------------------------------------------------------------------------------------


@contextmanager
def killed_between_pages(url: str, read: Iterator[Any]) -> Iterator[Any]:
    """Read one page, then end the reader's connection from another one."""
    first = next(read)
    with connection(url) as other, other.cursor() as cursor:
        cursor.execute(
            "SELECT id FROM information_schema.processlist WHERE db = DATABASE() AND id <> CONNECTION_ID() "
            "AND command = 'Sleep'"
        )
        for (number,) in cursor.fetchall():
            cursor.execute(f"KILL {number}")
        time.sleep(0.1)
    yield first


def test_killed_connection_is_replaced_where_pages_stand_alone(url: str) -> None:
    """A page whose connection was killed is asked again on a new one, and the retry is counted."""
    make(url)
    with session(url) as planning:
        relation = describe(planning)
        chunk = planning.chunks(relation, pieces=2)[0]
    read = pages(url, relation, chunk, speed=SMALL)

    with killed_between_pages(url, read) as first:
        rest = list(read)

    found = [i for page in [first, *rest] for i in page.table.column("id").to_pylist()]
    assert (list(range(1, 501)), 1) == (found, sum(page.retries for page in rest))


def test_killed_connection_ends_a_chunk_of_one_instant(url: str) -> None:
    """A new connection would be another instant: the chunk starts over instead."""
    make(url)
    with session(url) as planning:
        relation = describe(planning)
        (chunk,) = planning.chunks(relation)
    read = pages(url, relation, chunk, speed=SMALL)

    with killed_between_pages(url, read), pytest.raises(SourceLost, match="so the chunk starts over"):
        list(read)


def kill_soon(url: str, pattern: str, *, how: str) -> threading.Thread:
    """End the first statement that looks like `pattern`, from another connection."""

    def kill() -> None:
        with connection(url) as other, other.cursor() as cursor:
            for _ in range(300):
                cursor.execute(
                    "SELECT id FROM information_schema.processlist WHERE info LIKE %s AND id <> CONNECTION_ID() "
                    "AND command <> 'Prepare'",  # who is killed there goes on
                    (pattern,),
                )
                found = cursor.fetchall()
                if found:
                    cursor.execute(f"KILL {how} {found[0][0]}")
                    return
                time.sleep(0.01)

    thread = threading.Thread(target=kill)
    thread.start()
    return thread


def slow_chunk(url: str) -> tuple[Any, Chunk]:
    """Make a table, and a chunk whose page takes a second a row."""
    make(url, 5)
    with session(url) as planning:
        relation = describe(planning)
    return relation, Chunk(index=0, reader="keyset", relation=relation.sql, key=("id",), where="SLEEP(1) = 0")


def test_kill_in_the_middle_of_a_page_is_a_lost_line(url: str) -> None:
    """A connection killed while it reads is asked again as often as the pace says, then given up as lost."""
    relation, chunk = slow_chunk(url)
    killer = kill_soon(url, "%rivet:test%SLEEP%", how="CONNECTION")

    with pytest.raises(SourceLost):
        list(pages(url, relation, chunk, speed=tuned(max_retries=0)))

    killer.join()


def test_cancelled_statement_is_not_asked_again(url: str) -> None:
    """Who cancels a statement means it."""
    relation, chunk = slow_chunk(url)
    chunk = replace(chunk, where=SLOW)
    killer = kill_soon(url, "%rivet:test%information_schema.columns c3%", how="QUERY")

    with pytest.raises(SourceError, match="someone at the source cancelled the statement"):
        list(pages(url, relation, chunk))

    killer.join()


SLOW = f"(SELECT COUNT(*) FROM {', '.join(f'information_schema.columns c{i}' for i in range(4))}) > 0"


@pytest.mark.parametrize("one_instant", [True, False])
def test_statement_timeout_is_the_servers_own(url: str, one_instant: bool) -> None:
    """Both dialects stop a statement at the limit; a page is asked once more, smaller, then it is final."""
    make(url, 5)
    with session(url) as planning:
        relation = describe(planning)
    chunk = Chunk(index=0, reader="keyset", relation=relation.sql, key=("id",), where=SLOW, one_instant=one_instant)
    started = time.monotonic()

    with pytest.raises(StatementTimeout, match=r"tuning\.statement_timeout_s"):
        list(pages(url, relation, chunk, speed=tuned(statement_timeout_s=1)))

    assert time.monotonic() - started < 30


def test_dropped_table_is_a_change(url: str) -> None:
    """A table that goes away between two pages is not a lost line."""
    make(url)
    with session(url) as planning:
        relation = describe(planning)
        chunk = planning.chunks(relation, pieces=2)[1]
    run(url, "DROP TABLE t")

    with pytest.raises(SourceChanged, match=r"was dropped or altered while it was read"):
        list(pages(url, relation, chunk))


# --- long answers --------------------------------------------------------------------------------


def test_long_answer_comes_in_bites_of_whole_rows(url: str) -> None:
    """Bites of any size hold each row once and in order, and the connection works on."""
    make(url)
    opened = connect(MySql(url=url).conn_params("rivet:test", EAGER))

    for target in (1, 100, 10_000, 10_000_000):
        bites = list(mysql_stream.stream(opened, "SELECT id, word FROM t ORDER BY id", target_bytes=target))
        assert 1000 == sum(len(bite.starts) for bite in bites)
        assert (target < 10_000) == (len(bites) > 1) or target == 10_000

    empty = list(mysql_stream.stream(opened, "SELECT id FROM t WHERE id < 0", target_bytes=1))
    opened.close()
    assert [0] == [len(bite.starts) for bite in empty]


def test_answer_beyond_its_limit_is_dropped_and_the_transaction_lives(url: str) -> None:
    """A page that passes its limit costs the answer, not the instant."""
    make(url)
    opened = connect(MySql(url=url).conn_params("rivet:test", EAGER))

    dropped = mysql_stream.read_or_drop(opened, "SELECT * FROM t", limit_bytes=100)
    kept = mysql_stream.read_or_drop(opened, "SELECT * FROM t LIMIT 3", limit_bytes=1_000_000)

    opened.close()
    assert (None, 3) == (dropped, None if kept is None else len(kept.starts))


def test_row_of_many_packets_is_one_row(url: str) -> None:
    """A row of more than 16 MB spans packets, in pages and in bites."""
    run(url, "CREATE TABLE t (id INT PRIMARY KEY, body LONGTEXT)")
    with connection(url) as opened, opened.cursor() as cursor:
        cursor.execute("SELECT @@max_allowed_packet")
        if cursor.fetchone()[0] < 40 * 1024**2:
            pytest.skip("the server's max_allowed_packet is below 40 MB")
        for size in (17_000_000, 5, 33_600_000):
            cursor.execute("INSERT INTO t VALUES (%s, REPEAT('ab', %s))", (size, size // 2))
    with session(url) as planning:
        relation = describe(planning)
        chunks = [*planning.chunks(relation), Chunk(index=0, reader="cursor", relation=relation.sql)]

    read = [whole(relation, pages(url, relation, chunk)) for chunk in chunks]

    expected = {17_000_000: 17_000_000, 5: 4, 33_600_000: 33_600_000}
    assert [expected] * 2 == [{row["id"]: len(row["body"]) for row in part.to_pylist()} for part in read]


def test_throttle_waits_between_statements_not_behind_the_last(url: str) -> None:
    """The pace is told the rows of each page that another one follows."""
    make(url, 30)
    told: list[int] = []
    with session(url) as planning:
        relation = describe(planning)
        chunk = planning.chunks(relation)[0]

    list(pages(url, relation, chunk, speed=tuned(batch_size=10), wait=told.append))

    assert [10, 10, 10] == told
