"""How far an incremental read of SQLite goes: never past what a writer may still commit, never inside a second."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta

import pytest

from rivet_resources.contracts.source import Horizon
from rivet_resources.engines.sqlite.connect import ConnectionParams
from rivet_resources.engines.sqlite.session import SqliteSession
from rivet_resources.engines.sqlite.source import Sqlite
from rivet_resources.errors import SourceError, SourcePermission
from tests.engines.sqlite.reads import EAGER, describe, rules, run, session


def horizon(planning: SqliteSession, column: str, *, after: str | None = None, lag: float = 0, **settings) -> Horizon:
    """Ask for the horizon of one column of `t`."""
    relation = planning.describe(table="t", query=None, params={}, rules=rules(**settings))
    found = relation.column(column)
    assert found is not None
    return planning.horizon(relation, column, found, after=after, lag_seconds=lag)


def test_greatest_number_is_the_horizon(tmp_path):
    """With nobody writing, all rows are read."""
    path = run(tmp_path / "t.db", "CREATE TABLE t (id INTEGER PRIMARY KEY)", "INSERT INTO t VALUES (1), (7)")
    with session(path) as planning:
        assert horizon(planning, "id") == Horizon("7")
        assert horizon(planning, "id", after="7") == Horizon("7")


@pytest.mark.parametrize("journal", ["DELETE", "WAL"])
def test_open_writer_holds_everything_back(journal, tmp_path):
    """A row that is not committed yet may get a smaller value than one that is."""
    path = run(
        tmp_path / "t.db", f"PRAGMA journal_mode = {journal}", "CREATE TABLE t (id INTEGER PRIMARY KEY)",
        "INSERT INTO t VALUES (1)",
    )  # fmt: skip
    with closing(sqlite3.connect(path, isolation_level=None)) as writer:
        writer.execute("BEGIN IMMEDIATE")
        writer.execute("INSERT INTO t VALUES (2)")
        with session(path) as planning:
            held = horizon(planning, "id", after="1")

    assert held == Horizon("1", "nothing new is read while another program is writing to the database")


def test_looking_for_writers_changes_nothing(tmp_path):
    """The write lock is taken and given back; the file keeps its bytes."""
    path = run(tmp_path / "t.db", "CREATE TABLE t (id INTEGER PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    before = path.read_bytes()
    with session(path) as planning:
        horizon(planning, "id")

    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["t.db"]


SPELLINGS = [
    ("TEXT", "timestamp", "%Y-%m-%d %H:%M:%S", "2020-05-01T10:00:00.000000"),
    ("TEXT", "timestamp", "%Y-%m-%dT%H:%M:%S", "2020-05-01T10:00:00.000000"),
    ("DATETIME", None, "%Y-%m-%d %H:%M:%S", "2020-05-01 10:00:00"),
    ("TEXT", None, "%Y-%m-%dT%H:%M:%SZ", "2020-05-01T10:00:00Z"),
    ("TEXT", "timestamp_tz", "%Y-%m-%dT%H:%M:%SZ", "2020-05-01T10:00:00.000000Z"),
    ("TEXT", "timestamp_tz", "%Y-%m-%d %H:%M:%S.%f+00:00", "2020-05-01T10:00:00.000000Z"),
    ("INTEGER", "timestamp_tz", "%s", "2020-05-01T10:00:00.000000Z"),
    ("TEXT", "date", "%Y-%m-%d", "2020-05-01"),
]


@pytest.mark.parametrize(("declared", "word", "shape", "expected"), SPELLINGS)
def test_stamps_of_now_wait_for_the_next_run(declared, word, shape, expected, tmp_path):
    """Another row may still get the very same second, or day; so what is of the current one is not read."""
    old, later = datetime(2020, 5, 1, 10, tzinfo=UTC), datetime.now(UTC) + timedelta(days=4)  # a day lasts 26 h
    values = [f"{int(t.timestamp())}" if shape == "%s" else f"'{t.strftime(shape)}'" for t in (old, later)]
    path = run(
        tmp_path / "t.db", f"CREATE TABLE t (at {declared})", f"INSERT INTO t VALUES ({values[0]}), ({values[1]})"
    )
    columns = {"at": word} if word else {}
    with session(path) as planning:
        found = horizon(planning, "at", columns=columns)

    assert (expected, "") == (found.high, found.doubt)
    assert found.note.startswith("1 row is stamped ahead of now and held back, the last until 20")


def test_lag_stays_behind_now(tmp_path):
    """`cursor_lag` moves the cap back."""
    now = datetime.now(UTC)
    times = ", ".join(f"('{now - timedelta(seconds=s):%Y-%m-%dT%H:%M:%SZ}')" for s in (10, 1000))
    path = run(tmp_path / "t.db", "CREATE TABLE t (at TEXT)", f"INSERT INTO t VALUES {times}")
    with session(path) as planning:
        found = horizon(planning, "at", lag=100, columns={"at": "timestamp_tz"})

    assert found.high == f"{now - timedelta(seconds=1000):%Y-%m-%dT%H:%M:%S}.000000Z"
    assert found.note == "stayed 100 s behind"


MIXED = [
    ("'2026-01-01 00:00:00'", "'2026-01-01T00:00:00'", "several spellings"),
    ("'2026-01-01T00:00:00Z'", "'2026-01-01T00:00:00.5Z'", "different numbers of digits"),
    ("'2026-01-01T00:00:00+00:00'", "'2026-01-01T00:00:00+02:00'", "several spellings"),
    ("'2026-01-01 00:00:00'", "1700000000", "partly as texts, partly as numbers"),
    ("'2026-01-01 00:00:00.000'", "'2026-01-01 00:00:00'", "different numbers of digits"),
    ("'2026-01-01 00:00'", "'2026-01-01 00:01'", "without seconds"),
]


@pytest.mark.parametrize(("one", "other", "words"), MIXED)
def test_times_of_several_spellings_are_no_cursor(one, other, words, tmp_path):
    """Texts that do not sort by time are refused where order counts, and only there."""
    path = run(tmp_path / "t.db", "CREATE TABLE t (at)", f"INSERT INTO t VALUES ({one}), ({other})")
    word = "timestamp_tz" if "1700000000" in (one, other) or "Z" in one or "+" in one else "timestamp"
    column = describe(path, columns={"at": word}).column("at")

    with pytest.raises(SourceError, match=words):
        Sqlite(path=path).literal("2026-01-01T00:00:00.000000" + ("Z" if word == "timestamp_tz" else ""), column)


BOUNDS = [
    ("'2026-01-01 00:00:00'", "timestamp", "2026-01-01T05:06:07.000000", "'2026-01-01 05:06:07' COLLATE BINARY"),
    ("'2026-01-01T00:00:00.123'", "timestamp", "2026-01-01T05:06:07.000000",
     "'2026-01-01T05:06:07.000' COLLATE BINARY"),
    ("'2026-01-01T00:00:00+02:00'", "timestamp_tz", "2026-01-01T05:06:07.000000Z",
     "'2026-01-01T07:06:07+02:00' COLLATE BINARY"),
    ("'2026-01-01'", "date", "2026-01-02", "'2026-01-02' COLLATE BINARY"),
    ("'2026-01-01'", "timestamp", "2026-01-02T00:00:00.000000", "'2026-01-02' COLLATE BINARY"),
    ("1700000000", "timestamp_tz", "2023-11-14T22:13:20.000000Z", "1700000000"),
]  # fmt: skip


@pytest.mark.parametrize(("stored", "word", "canonical", "literal"), BOUNDS)
def test_bound_is_spelled_as_the_cells_are(stored, word, canonical, literal, tmp_path):
    """A bound of time is a text like the ones it is compared with."""
    path = run(tmp_path / "t.db", "CREATE TABLE t (at)", f"INSERT INTO t VALUES ({stored})")

    assert Sqlite(path=path).literal(canonical, describe(path, columns={"at": word}).column("at")) == literal


def test_python_isoformat_sorts_although_zero_fractions_are_left_out(tmp_path):
    """isoformat() writes no fraction for whole seconds; both forms sort by time together."""
    path = run(
        tmp_path / "t.db", "CREATE TABLE t (at TEXT)",
        "INSERT INTO t VALUES ('2026-01-01T00:00:00'), ('2026-01-01T00:00:00.000001'), ('2026-01-01T00:00:01')",
    )  # fmt: skip
    with session(path) as planning:
        relation = planning.describe(table="t", query=None, params={}, rules=rules(columns={"at": "timestamp"}))
        at = relation.column("at")
        after = Sqlite(path=path).literal("2026-01-01T00:00:00.000000", at)

        assert planning.count(relation, where=f'"at" > {after}') == 2


class ReadOnlyFile(ConnectionParams):
    """An emulator of a file that this user may not write: root, who runs the tests, may write all."""

    def connect(self, *, mode: str = "ro") -> sqlite3.Connection:
        """Refuse as SQLite does."""
        if mode == "rw":
            raise SourcePermission("attempt to write a readonly database")
        return super().connect(mode=mode)


def test_read_only_file_says_what_it_cannot_know(tmp_path):
    """Without the right to write, open writers cannot be seen; stamps then stay a minute behind."""
    now = datetime.now(UTC)
    times = ", ".join(f"('{now - timedelta(seconds=s):%Y-%m-%dT%H:%M:%SZ}')" for s in (10, 1000))
    path = run(tmp_path / "t.db", "CREATE TABLE t (at TEXT)", f"INSERT INTO t VALUES {times}")
    planning = SqliteSession(ReadOnlyFile(path, EAGER))
    found = horizon(planning, "at", columns={"at": "timestamp_tz"})
    planning.close()

    assert found.high == f"{now - timedelta(seconds=1000):%Y-%m-%dT%H:%M:%S}.000000Z"
    assert found.note.startswith("this user may not write the file")
