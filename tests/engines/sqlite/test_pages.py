"""Rows of SQLite by either way of paging: each once, of one instant, gently."""

from __future__ import annotations

import itertools
import random
import sqlite3
import struct
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest

from rivet_resources.canonical import canonical
from rivet_resources.contracts.relation import Chunk
from rivet_resources.contracts.settings import Tuning, pace
from rivet_resources.contracts.source import ColumnRule
from rivet_resources.engines.sqlite import reader as reader_module
from rivet_resources.engines.sqlite.source import Sqlite
from rivet_resources.errors import (
    ConfigError,
    SourceChanged,
    SourceError,
    SourceLost,
    SourceMissing,
    StatementTimeout,
    UnknownColumn,
    UnknownTable,
)
from tests.engines.sqlite.reads import EAGER, READERS, describe, read, rules, run, session, whole

SMALL = pace(Tuning(profile="fast", batch_size=7, retry_backoff_ms=1, max_retries=1, lock_timeout_s=1), None)
NUMBERS = "WITH RECURSIVE r (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r WHERE n < {})"


@pytest.fixture
def thousand(tmp_path: Path) -> Path:
    """A file with a table of 1000 rows."""
    return run(
        tmp_path / "t.db",
        "PRAGMA journal_mode = WAL",
        "CREATE TABLE t (id INTEGER PRIMARY KEY, name TEXT)",
        f"INSERT INTO t {NUMBERS.format(1000)} SELECT n, 'name ' || n FROM r",
    )


@pytest.mark.parametrize("reader", READERS)
def test_pages_hold_every_row_once(reader, thousand):
    """However small pages are, no row is missing or repeated."""
    relation = describe(thousand)
    chunk = Chunk(index=0, reader=reader, relation=relation.sql, key=("id",))

    assert read(thousand, relation, chunk, speed=SMALL).column("id").to_pylist() == list(range(1, 1001))


KEYS = {
    "nocase column, binary index": (
        "CREATE TABLE t (id TEXT COLLATE NOCASE NOT NULL, n INT)",
        "CREATE UNIQUE INDEX i ON t (id COLLATE BINARY)",
    ),
    "composite": ("CREATE TABLE t (id TEXT NOT NULL, n INT NOT NULL, PRIMARY KEY (id, n))",),
    "without rowid": ("CREATE TABLE t (id TEXT PRIMARY KEY, n INT) WITHOUT ROWID",),
    "without rowid, composite": ("CREATE TABLE t (n INT, id TEXT, PRIMARY KEY (n, id)) WITHOUT ROWID",),
}


@pytest.mark.parametrize("ddl", KEYS.values(), ids=KEYS.keys())
def test_text_keys_page_exactly_whatever_their_collation(ddl, tmp_path):
    """Keys are compared and ordered byte by byte in the same statement, so no page skips a row."""
    names = [f"{letter}{i}" for i in range(15) for letter in ("a", "B", "É", "é", "b", "'", "ß", "🎉")]
    path = run(tmp_path / "t.db", *ddl, *(f"INSERT INTO t (id, n) VALUES ({_quoted(n)}, 1)" for n in names))
    relation = describe(path)
    chunk = Chunk(index=0, reader="keyset", relation=relation.sql, key=relation.key)

    assert relation.key
    assert sorted(read(path, relation, chunk, speed=SMALL).column("id").to_pylist()) == sorted(names)


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


UNUSABLE = {
    "unique index of another collation": (
        "CREATE TABLE t (id TEXT COLLATE NOCASE NOT NULL)",
        "CREATE UNIQUE INDEX i ON t (id)",
    ),
    "partial": ("CREATE TABLE t (id TEXT NOT NULL)", "CREATE UNIQUE INDEX i ON t (id) WHERE id > 'a'"),
    "expression": ("CREATE TABLE t (id TEXT NOT NULL)", "CREATE UNIQUE INDEX i ON t (lower(id))"),
    "nullable": ("CREATE TABLE t (id TEXT UNIQUE)",),
    "none": ("CREATE TABLE t (id TEXT)",),
}


@pytest.mark.parametrize("ddl", UNUSABLE.values(), ids=UNUSABLE.keys())
def test_index_that_cannot_page_is_no_key(ddl, tmp_path):
    """Only whole unique indexes without NULLs, compared byte by byte, are keys."""
    assert describe(run(tmp_path / "t.db", *ddl)).key == ()


def test_chunk_sees_one_instant_while_others_write(thousand):
    """Rows committed while a chunk is read are not of it."""
    relation = describe(thousand)
    with session(thousand) as planning:
        (chunk,) = planning.chunks(relation)
    pages = Sqlite(path=thousand).pages(
        chunk, relation.columns, snapshot=None, application="", pace=SMALL, wait=lambda rows: None
    )

    first = next(pages).table.num_rows
    run(thousand, "DELETE FROM t WHERE id > 500", "INSERT INTO t VALUES (5000, 'late')")
    rest = [id_ for page in pages for id_ in page.table.column("id").to_pylist()]

    assert rest == list(range(first + 1, 1001))


def test_several_chunks_hold_every_row_once(thousand):
    """A table cut into pieces is whole, and the plan says that pieces see instants of their own."""
    relation = describe(thousand)
    with session(thousand) as planning:
        relation = planning.describe(table="t", query=None, params={}, rules=rules())
        chunks = planning.chunks(relation, pieces=4)
        note = planning.note

    ids = [read(thousand, relation, chunk).column("id").to_pylist() for chunk in chunks]
    assert [len(piece) for piece in ids] == [250, 250, 250, 250]
    assert sorted(itertools.chain(*ids)) == list(range(1, 1001))
    assert note == "SQLite cannot share a snapshot between connections; each chunk sees its own instant"


def test_table_without_key_is_cut_by_row_number(tmp_path):
    """A table without any key is still cut, by SQLite's own row numbers."""
    path = run(tmp_path / "t.db", "CREATE TABLE t (c TEXT)", f"INSERT INTO t {NUMBERS.format(10)} SELECT n FROM r")
    with session(path) as planning:
        relation = planning.describe(table="t", query=None, params={}, rules=rules())
        chunks = planning.chunks(relation, pieces=3)

    cells = [read(path, relation, chunk).column("c").to_pylist() for chunk in chunks]
    assert sorted(itertools.chain(*cells)) == sorted(str(n) for n in range(1, 11))


def test_classic_journal_is_told_to_keep_writers_waiting(tmp_path):
    """Outside WAL a reader keeps writers waiting, and the plan says so."""
    path = run(tmp_path / "t.db", "CREATE TABLE t (id INTEGER PRIMARY KEY)")
    with session(path) as planning:
        planning.chunks(planning.describe(table="t", query=None, params={}, rules=rules()))

        assert planning.note.startswith("journal_mode is delete: writers wait")
        planning.chunks(describe(path))
        assert 1 == planning.note.count("journal_mode is delete")


def test_missing_file_is_not_created(tmp_path):
    """A wrong path is told, and no empty database is left there."""
    with pytest.raises(SourceMissing, match="is not there"):
        describe(tmp_path / "nowhere.db")

    assert list(tmp_path.iterdir()) == []


def test_file_that_is_no_database_is_told(tmp_path):
    """A text file is not read as an empty database."""
    (tmp_path / "t.db").write_text("no database " * 1000)
    with pytest.raises(SourceError, match="is not a SQLite database"):
        describe(tmp_path / "t.db")


def test_damaged_file_is_told(thousand):
    """Pages of zeros in the middle of a file stop the read."""
    run(thousand, "PRAGMA wal_checkpoint(TRUNCATE)", "PRAGMA journal_mode = DELETE")
    relation = describe(thousand)
    content = bytearray(thousand.read_bytes())
    content[4096:] = b"\xff" * (len(content) - 4096)
    thousand.write_bytes(content)

    with pytest.raises(SourceError, match="PRAGMA integrity_check"):
        read(thousand, relation, Chunk(index=0, reader="cursor", relation='"t"'))


def test_source_is_never_written(thousand):
    """A statement that writes is refused, even if it gets through."""
    with session(thousand) as planning, pytest.raises(SourceError):
        planning.raw("INSERT INTO t VALUES (0, '')", doing="trying to write")


def test_locked_database_is_asked_again_and_then_given_up(tmp_path):
    """A database that stays locked is a fault that may pass."""
    path = run(tmp_path / "t.db", "CREATE TABLE t (id INTEGER PRIMARY KEY)")
    relation = describe(path)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(SourceLost, match="database is locked"):
            read(path, relation, Chunk(index=0, reader="cursor", relation='"t"'))


def test_statement_that_runs_too_long_is_stopped(thousand):
    """The timeout interrupts the statement itself."""
    slow = pace(Tuning(statement_timeout_s=1, throttle_ms=0), None)
    endless = "WITH RECURSIVE r (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r) SELECT count(*) AS n FROM r"
    with session(thousand) as planning:
        relation = planning.describe(table=None, query=endless, params={}, rules=rules())

    with pytest.raises(StatementTimeout, match="statement_timeout_s"):
        read(thousand, relation, Chunk(index=0, reader="cursor", relation=relation.sql), speed=slow)


def test_table_dropped_meanwhile_is_a_change(thousand):
    """A table that is gone when a task comes is told as such."""
    relation = describe(thousand)
    run(thousand, "DROP TABLE t")

    with pytest.raises(SourceChanged):
        read(thousand, relation, Chunk(index=0, reader="cursor", relation=relation.sql))


def test_unknown_table_and_column_list_what_there_is(thousand):
    """A wrong name is answered with the right ones."""
    with pytest.raises(UnknownTable, match="It has t"):
        describe(thousand, "orders")
    with pytest.raises(UnknownColumn, match="it has id, name"):
        describe(thousand, columns={"nmae": "text"})


QUERIES = [
    ("SELECT id, name FROM t WHERE id = :n", {"n": "7"}, {"id": 7, "name": "name 7"}),
    ("SELECT id, ':n' AS name FROM t WHERE id = 7 -- :x", {}, {"id": 7, "name": ":n"}),
    ("SELECT t.id, u.name FROM t JOIN t AS u ON u.id = t.id WHERE t.id = 7", {}, {"id": 7, "name": "name 7"}),
]


@pytest.mark.parametrize(("query", "params", "expected"), QUERIES)
def test_query_keeps_declared_types(query, params, expected, thousand):
    """Columns of a query have the types of the columns they come from."""
    with session(thousand) as planning:
        relation = planning.describe(table=None, query=query, params=params, rules=rules())
        (chunk,) = planning.chunks(relation)

    assert relation.columns[0].arrow == pa.int64()
    assert read(thousand, relation, chunk).to_pylist() == [expected]


BAD_QUERIES = [
    ("SELECT 1 AS a, 2 AS a", ConfigError, "two columns called a"),
    ("SELECT id FROM t WHERE id = :n", ConfigError, "known parameters: none"),
    ("-- nothing", ConfigError, "empty"),
    ("DELETE FROM t", SourceError, "SQLite said"),
    ("SELECT nme FROM t", SourceError, "nme"),
]


@pytest.mark.parametrize(("query", "error", "words"), BAD_QUERIES)
def test_query_that_cannot_be_is_refused(query, error, words, thousand):
    """A query is checked before anything runs."""
    with session(thousand) as planning, pytest.raises(error, match=words):
        planning.describe(table=None, query=query, params={}, rules=rules())


def test_parameter_never_reaches_a_message(thousand):
    """What SQLite says about a statement is cleaned of the values in it."""
    with session(thousand) as planning, pytest.raises(SourceError) as caught:
        planning.describe(table=None, query="SELECT id FROM t WHERE id = :n :n", params={"n": "hunter2"}, rules=rules())

    assert "hunter2" not in str(caught.value)


def test_literal_equals_the_cell_it_was_made_from(tmp_path):
    """A bound rendered from a cell finds this very cell again: doubles, 64 bits, any text, blobs."""
    chance = random.Random(7)
    doubles = [struct.unpack("d", struct.pack("Q", chance.getrandbits(64)))[0] for _ in range(300)]
    doubles = [d for d in doubles if d == d and 1e-18 < abs(d) < 1e18] + [chance.random() * 1000 for _ in range(300)]
    texts = ["", "'", "é", "a\0b", "\n", "🎉", '"']
    path = run(tmp_path / "t.db", "CREATE TABLE t (id INTEGER PRIMARY KEY, r REAL, c TEXT COLLATE NOCASE, b BLOB)")
    with closing(sqlite3.connect(path)) as connection:
        for i, double in enumerate(doubles):
            text = texts[i % len(texts)] + str(i)
            connection.execute("INSERT INTO t VALUES (?, ?, ?, ?)", (2**62 + i, double, text, text.encode()))
        connection.commit()
    relation, table = describe(path), whole(path)

    with session(path) as planning:
        for column in relation.columns:
            equal = " OR ".join(
                f"(id = {row} AND {planning_quote(column.name)} = {Sqlite(path=path).literal(canonical(cell), column)})"
                for row, cell in zip(table.column("id").to_pylist(), table.column(column.name), strict=True)
            )
            assert sum(planning.count(relation, where=part) for part in _parts(equal)) == table.num_rows


def planning_quote(name: str) -> str:
    """Quote a plain name."""
    return f'"{name}"'


def _parts(predicate: str) -> list[str]:
    """Cut a long disjunction: SQLite's expressions are at most 1000 deep."""
    terms = predicate.split(" OR ")
    return [" OR ".join(terms[i : i + 300]) for i in range(0, len(terms), 300)]


def test_bounds_agree_with_how_ranges_are_compared(tmp_path):
    """MIN and MAX are by bytes, like every comparison, whatever the column's collation says."""
    path = run(
        tmp_path / "t.db",
        "CREATE TABLE t (c TEXT COLLATE NOCASE)",
        "INSERT INTO t VALUES ('b'), ('A'), ('C'), ('a'), (NULL)",
    )
    with session(path) as planning:
        bounds = planning.bounds(planning.describe(table="t", query=None, params={}, rules=rules()), "c")

    assert (bounds.low, bounds.high, bounds.nulls) == ("A", "b", 1)


def test_wide_cell_above_the_limit_is_refused(tmp_path):
    """One cell above `max_value_mb` is named with its column."""
    path = run(
        tmp_path / "t.db",
        "CREATE TABLE t (id INTEGER PRIMARY KEY, b BLOB)",
        "INSERT INTO t VALUES (1, zeroblob(2097152))",
    )
    relation = describe(path)
    tight = pace(Tuning(profile="fast", max_value_mb=1), None)

    with pytest.raises(Exception, match=r"`t\.b` holds a cell of 2 MB"):
        read(path, relation, Chunk(index=0, reader="cursor", relation=relation.sql), speed=tight)


MIXED = (
    "CREATE TABLE t (id INTEGER PRIMARY KEY, n INTEGER, x REAL, name TEXT, body BLOB)",
    f"INSERT INTO t {NUMBERS.format(500)} "
    "SELECT n, CASE n % 7 WHEN 0 THEN NULL WHEN 1 THEN n << 40 ELSE -n END, n / 3.0, 'name ' || n, CAST(n AS BLOB) "
    "FROM r",
    "UPDATE t SET n = 'none' WHERE id = 333",
)


@pytest.mark.parametrize(
    ("cells", "joined"),
    [(5, 1 << 28), (5, 0), (100, 1 << 28), (100, 0)],
    ids=["by rows, joined", "by rows, apart", "by twenty, joined", "by twenty, apart"],
)
def test_page_is_the_same_by_whatever_bites_it_came(cells, joined, tmp_path, monkeypatch):
    """Rows, NULLs and cells of another class, which are told by their row of the page."""
    path = run(tmp_path / "t.db", *MIXED)
    relation = describe(path, columns={"n": ColumnRule(type="int8", on_special_value="null")})
    chunk = Chunk(index=0, reader="cursor", relation=relation.sql)
    expected = read(path, relation, chunk)
    monkeypatch.setattr(reader_module, "BITE_CELLS", cells)
    monkeypatch.setattr(reader_module, "JOINED_BYTES", joined)

    assert read(path, relation, chunk).equals(expected)
    with closing(sqlite3.connect(path)) as connection:
        rows = connection.execute("SELECT id, nullif(n, 'none'), x, name, body FROM t ORDER BY id").fetchall()
    assert list(zip(*expected.to_pydict().values(), strict=True)) == rows


def test_page_may_take_longer_than_one_of_a_server(thousand, monkeypatch):
    """The read transaction lasts as long by many fetches as by few: only slow rows make pages small."""
    clock = itertools.count()
    monkeypatch.setattr(reader_module.time, "monotonic", lambda: next(clock) * 0.1)
    relation = describe(thousand)
    pages = Sqlite(path=thousand).pages(
        Chunk(index=0, reader="cursor", relation=relation.sql), relation.columns, snapshot=None,
        application="rivet:test", pace=EAGER, wait=lambda rows: None,
    )  # fmt: skip

    assert [page.table.num_rows for page in pages][:2] == [32, 80]
