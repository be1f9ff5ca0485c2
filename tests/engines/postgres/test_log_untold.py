"""What happens to rows without a word in PostgreSQL's log: refused by name, nothing acknowledged, or harmless.

Belongs here: columns, partitions, publications and tables altered between drains. Not here: what the log does tell.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from rivet_resources.contracts.change_log import Position
from rivet_resources.errors import LogSetup, PositionLost
from tests.engines.postgres.changes import Drained, capture, drain, log_of, run, transaction
from tests.servers import logical as servers_logical

pytestmark = pytest.mark.wide

PARTITIONED = (
    "CREATE TABLE pt (id int, v text, PRIMARY KEY (id)) PARTITION BY RANGE (id)",
    "CREATE TABLE pt_low PARTITION OF pt FOR VALUES FROM (0) TO (100)",
    "CREATE TABLE pt_high PARTITION OF pt FOR VALUES FROM (100) TO (200)",
    "INSERT INTO pt VALUES (1, 'a'), (101, 'b')",
)
TABLE = (
    "CREATE TABLE t (id int PRIMARY KEY, v text, g int GENERATED ALWAYS AS (id * 2) STORED)",
    "INSERT INTO t VALUES (1, 'a'), (2, 'b')",
)


@pytest.fixture(params=["embedded", "real"])
def database(request: pytest.FixtureRequest) -> Iterator[str]:
    """An empty database on either server, with a table and a partitioned one."""
    server = request.getfixturevalue("postgres_url" if request.param == "embedded" else "real_postgres_url")
    with servers_logical.logical_database(server) as url:
        run(url, *TABLE, *PARTITIONED)
        yield url


def begun(url: str, slot: str, *tables: str, **settings: Any) -> Position:
    """Begin, and read what there is."""
    with log_of(url, capture(*tables, slot=slot, **settings)) as log:
        return log.begin()


def drained(url: str, slot: str, at: Position, *tables: str, **settings: Any) -> Drained:
    """Drain from a position, as a run does."""
    with log_of(url, capture(*tables, slot=slot, **settings)) as log:
        return drain(log, at)


def confirmed(url: str, slot: str) -> object:
    """Read up to where the server may forget."""
    with psycopg.connect(url) as connection:
        asked = "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = %s"
        found = connection.execute(asked, [slot]).fetchone()
    return found[0] if found else None


def refused(url: str, slot: str, at: Position, table: str, *words: str, error: type[Exception] = PositionLost) -> None:
    """Expect the refusal, again and again, and nothing acknowledged."""
    before = confirmed(url, slot)
    for _ in range(2):
        with pytest.raises(error) as failure:
            drained(url, slot, at, table)
        for word in words:
            assert word in str(failure.value)
        assert confirmed(url, slot) == before


# --- publications --------------------------------------------------------------------------------


def test_publication_narrowed_after_the_first_run_is_refused_at_every_run(database: str) -> None:
    """Updates and deletes that it leaves out are lost, so nothing goes on until somebody mended it and began anew."""
    start = begun(database, "narrow", "t")
    run(
        database, "ALTER PUBLICATION narrow SET (publish = 'insert')", "UPDATE t SET v = 'x'",
        "DELETE FROM t WHERE id = 1", "INSERT INTO t VALUES (9, 'z')",
    )  # fmt: skip
    refused(
        database, "narrow", start, "t", "narrow leaves out update, delete, truncate", "SET (publish", error=LogSetup
    )
    run(database, "ALTER PUBLICATION narrow SET (publish = 'insert, update, delete, truncate')")
    refused(database, "narrow", start, "t", "was altered since our checkpoint", "pg_drop_replication_slot")


@pytest.mark.parametrize("left_out", ["insert", "update", "delete", "truncate"])
def test_each_operation_that_a_publication_leaves_out_is_named(database: str, left_out: str) -> None:
    """One missing operation is enough."""
    start = begun(database, "one", "t")
    kept = ", ".join(word for word in ("insert", "update", "delete", "truncate") if word != left_out)
    run(database, f"ALTER PUBLICATION one SET (publish = '{kept}')")
    refused(database, "one", start, "t", f"leaves out {left_out},", error=LogSetup)


def test_publication_that_gets_another_table_goes_on(database: str) -> None:
    """What the publication has besides our tables is nobody's loss."""
    start = begun(database, "more", "t")
    run(database, "ALTER PUBLICATION more ADD TABLE pt", "UPDATE t SET v = 'y' WHERE id = 1")
    assert drained(database, "more", start, "t").short("t") == [("update", 1, "y")]


# --- columns -------------------------------------------------------------------------------------

COLUMNS = {
    "default": (("ALTER TABLE t ADD COLUMN d int NOT NULL DEFAULT 7",), "column d was added to t with a value"),
    "default of its domain": (
        ("CREATE DOMAIN seven AS int DEFAULT 7", "ALTER TABLE t ADD COLUMN d seven"),
        "column d was added to t with a value",
    ),
    "default of each row": (
        ("ALTER TABLE t ADD COLUMN d double precision DEFAULT random()",),
        "column d was added to t with a value",
    ),
    "default of each row, not kept": (
        ("ALTER TABLE t ADD COLUMN d text DEFAULT random()::text", "ALTER TABLE t ALTER COLUMN d DROP DEFAULT"),
        "column d was added to t with a value",
    ),
    "default, then written anew": (
        ("ALTER TABLE t ADD COLUMN d int DEFAULT 7", "VACUUM FULL t"),
        "column d was added to t with a value",
    ),
    "identity": (("ALTER TABLE t ADD COLUMN d int GENERATED ALWAYS AS IDENTITY",), "column d was added to t"),
    "serial": (("ALTER TABLE t ADD COLUMN d serial",), "column d was added to t"),
    "rename": (("ALTER TABLE t RENAME COLUMN v TO w",), "column v of t was renamed to w"),
    "swap": (
        (
            "ALTER TABLE t ADD COLUMN w text", "ALTER TABLE t RENAME v TO x", "ALTER TABLE t RENAME w TO v",
            "ALTER TABLE t RENAME x TO w",
        ),
        "column v of t was renamed to w",
    ),
    "dropped and added": (
        ("ALTER TABLE t DROP COLUMN v", "ALTER TABLE t ADD COLUMN v text"),
        "column v of t was dropped, or renamed, and another one was added under its name",
    ),
    "no longer generated": (("ALTER TABLE t ALTER COLUMN g DROP EXPRESSION",), "column g of t was generated"),
    "there and back": (
        (
            "ALTER TABLE t RENAME COLUMN v TO w", "UPDATE t SET w = 'while' WHERE id = 1",
            "ALTER TABLE t RENAME COLUMN w TO v",
        ),
        "column w of t is in the log",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", COLUMNS)
def test_columns_of_old_rows_that_the_log_does_not_tell_are_refused(database: str, case: str) -> None:
    """A default, a new name: rows that were not written since would be wrong in silence."""
    statements, words = COLUMNS[case]
    start = begun(database, "cols", "t")
    run(database, *statements, "INSERT INTO t (id) VALUES (50)")
    refused(database, "cols", start, "t", words, "accept_untold: [columns]", "rivet state reset")
    assert drained(database, "cols", start, "t", accepts=frozenset({"columns"})).rows("t")


HARMLESS = {
    "nullable": ("ALTER TABLE t ADD COLUMN d text", "INSERT INTO t (id, d) VALUES (50, 'new')"),
    "nullable, default for later rows": (
        "ALTER TABLE t ADD COLUMN d int", "ALTER TABLE t ALTER COLUMN d SET DEFAULT 7",
        "INSERT INTO t (id) VALUES (50)",
    ),
    "nullable, then written anew": (
        "ALTER TABLE t ADD COLUMN d text", "VACUUM FULL t", "INSERT INTO t (id) VALUES (50)",
    ),
    "nullable, beside a new type": (
        "ALTER TABLE t ADD COLUMN d text", "ALTER TABLE t ALTER COLUMN v TYPE varchar(90)",
        "INSERT INTO t (id, d) VALUES (50, 'new')",
    ),
    "came and went": (
        "ALTER TABLE t ADD COLUMN d int DEFAULT 1", "INSERT INTO t (id) VALUES (50)", "ALTER TABLE t DROP COLUMN d",
    ),
    "generated": (
        "ALTER TABLE t ADD COLUMN d int GENERATED ALWAYS AS (id * 3) STORED", "INSERT INTO t (id) VALUES (50)",
    ),
    "dropped": ("ALTER TABLE t DROP COLUMN v", "INSERT INTO t (id) VALUES (50)"),
    "default of NULL": ("ALTER TABLE t ADD COLUMN d int DEFAULT NULL", "INSERT INTO t (id) VALUES (50)"),
}  # fmt: skip


@pytest.mark.parametrize("case", HARMLESS)
def test_columns_that_leave_old_rows_as_they_are_go_on(database: str, case: str) -> None:
    """A nullable column without a default is what the log's NULL says."""
    start = begun(database, "fine", "t")
    run(database, *HARMLESS[case])
    first = drained(database, "fine", start, "t")
    assert [(row["__op"], row["id"]) for row in first.rows("t")] == [("insert", 50)]
    run(database, "INSERT INTO t (id) VALUES (51)")
    assert [row["id"] for row in drained(database, "fine", first.position, "t").rows("t")] == [51]


def test_column_added_to_a_partitioned_table_with_a_default_is_refused(database: str) -> None:
    """There the partitions keep the old rows' value."""
    start = begun(database, "ptcol", "pt")
    run(database, "ALTER TABLE pt ADD COLUMN d int DEFAULT 7", "INSERT INTO pt VALUES (2)")
    refused(database, "ptcol", start, "pt", "column d was added to pt")


@pytest.mark.parametrize("table", ["t", "pt"])
def test_values_changed_by_a_using_are_refused(database: str, table: str) -> None:
    """The type stays, every row is another one, and no message tells it."""
    start = begun(database, "using", table)
    run(database, f"ALTER TABLE {table} ALTER COLUMN v TYPE text USING upper(v)")
    refused(database, "using", start, table, f"the rows of {table} were written anew by an ALTER TABLE")


def test_values_changed_by_a_using_after_some_windows_are_refused(database: str) -> None:
    """The note moves on with the windows; rows of every age are written anew."""
    start = begun(database, "later", "t")
    run(database, "INSERT INTO t VALUES (10, 'x')")
    first = drained(database, "later", start, "t").position
    run(database, "INSERT INTO t VALUES (11, 'y')", "ALTER TABLE t ALTER COLUMN v TYPE text USING v || '!'")
    refused(database, "later", first, "t", "the rows of t were written anew")


def test_using_behind_a_truncate_is_refused(database: str) -> None:
    """The truncate is in the log and explains the new storage, but not the values of the rows that came after it."""
    start = begun(database, "behind", "t")
    run(
        database, "TRUNCATE t", "INSERT INTO t VALUES (5, 'e')", "ALTER TABLE t ALTER COLUMN v TYPE text USING v || '!'"
    )
    run(database, "INSERT INTO t VALUES (6, 'f')")
    refused(database, "behind", start, "t", "the rows of t were written anew by an ALTER TABLE")


def test_type_changed_with_all_rows_is_told_and_followed(database: str) -> None:
    """int to bigint writes a table anew and mostly changes nothing: nobody can know, so people are told."""
    run(database, "CREATE TABLE n (id int PRIMARY KEY, v int)", "INSERT INTO n VALUES (1, 1)")
    start = begun(database, "retype", "n")
    run(database, "ALTER TABLE n ALTER COLUMN v TYPE bigint", "INSERT INTO n VALUES (2, 2)")

    with log_of(database, capture("n", slot="retype")) as log:
        told = log.refuse_lost(start, log.survey())

    assert [(each.name, each.status) for each in told] == [("table n", "warn")]
    assert "column v has another type now" in told[0].text


HARMLESS_REWRITES = {
    "VACUUM FULL": ("VACUUM FULL t",),
    "VACUUM FULL beside a setting of a column": ("VACUUM FULL t", "ALTER TABLE t ALTER COLUMN v SET STATISTICS 10"),
    "CLUSTER": ("CLUSTER t USING t_pkey",),
    "all rows updated": ("UPDATE t SET v = v || 'u'", "VACUUM FULL t"),
    "a column that is empty": ("ALTER TABLE t ADD COLUMN e int", "VACUUM FULL t"),
    "another collation": ('ALTER TABLE t ALTER COLUMN v TYPE text COLLATE "C"',),
    "truncated and filled": ("TRUNCATE t", "INSERT INTO t VALUES (5, 'e')"),
    "using, then truncated": (
        "ALTER TABLE t ALTER COLUMN v TYPE text USING v || '!'",
        "TRUNCATE t",
        "INSERT INTO t VALUES (5, 'e')",
    ),
    "truncated, then using of no row": (
        "TRUNCATE t",
        "ALTER TABLE t ALTER COLUMN v TYPE text USING v || '!'",
        "INSERT INTO t VALUES (5, 'e')",
    ),
}


@pytest.mark.parametrize("case", HARMLESS_REWRITES)
def test_storage_written_anew_without_other_values_is_followed(case: str, database: str) -> None:
    """Housekeeping changes where rows lie, not what they are; no light turns red for it."""
    start = begun(database, "house", "t")
    run(database, "INSERT INTO t VALUES (3, 'c')")
    first = drained(database, "house", start, "t").position
    run(database, *HARMLESS_REWRITES[case], "INSERT INTO t VALUES (77, 'after')")

    with log_of(database, capture("t", slot="house")) as log:
        assert log.refuse_lost(first, log.survey()) == ()
    assert drained(database, "house", first, "t").position.key > first.key


def test_table_altered_while_a_window_is_read_is_refused_in_that_window(database: str) -> None:
    """The look at the catalog was before it, and the log already has the new column."""
    start = begun(database, "mid", "t")
    with log_of(database, capture("t", slot="mid")) as log:
        found = log.survey()
        log.refuse_lost(start, found)
        run(database, "ALTER TABLE t ADD COLUMN d int DEFAULT 7", "INSERT INTO t VALUES (50)")
        with log_of(database, capture("t", slot="other")) as other:
            target = other.survey().target
        with pytest.raises(PositionLost, match="column d was added to t"):
            list(log.read(start, target, most=1000))


def test_generated_columns_are_absent_by_name(database: str) -> None:
    """The first copy leaves out what no change carries."""
    begun(database, "gen", "t")
    with log_of(database, capture("t", slot="gen")) as log:
        assert log.absent("t") == {"g"}


TYPES = {
    "label": ("mood", "ALTER TYPE mood RENAME VALUE 'sad' TO 'blue'", "label sad of an enum of m was renamed to blue"),
    "label of an array": ("mood[]", "ALTER TYPE mood RENAME VALUE 'sad' TO 'blue'", "label sad of an enum"),
    "label of a domain": ("temper", "ALTER TYPE mood RENAME VALUE 'sad' TO 'blue'", "label sad of an enum"),
    "attribute added": ("pair", "ALTER TYPE pair ADD ATTRIBUTE c int", "a composite type of m was altered"),
    "attribute dropped": ("pair[]", "ALTER TYPE pair DROP ATTRIBUTE b", "a composite type of m was altered"),
}  # fmt: skip
MADE = ("CREATE TYPE mood AS ENUM ('sad', 'ok')", "CREATE DOMAIN temper AS mood", "CREATE TYPE pair AS (a int, b int)")


@pytest.mark.parametrize("case", TYPES)
def test_types_whose_old_values_read_otherwise_now_are_refused(database: str, case: str) -> None:
    """The rows are as they were, and no row of the log says that they read otherwise."""
    kind, statement, words = TYPES[case]
    run(database, *MADE, f"CREATE TABLE m (id int PRIMARY KEY, v {kind})", "INSERT INTO m VALUES (1, NULL)")
    start = begun(database, "types", "m")
    run(database, statement, "INSERT INTO m VALUES (2, NULL)")
    refused(database, "types", start, "m", words, "accept_untold: [columns]")
    assert drained(database, "types", start, "m", accepts=frozenset({"columns"})).rows("m")


def test_new_label_and_the_order_of_labels_are_no_trouble(database: str) -> None:
    """Old rows read as before."""
    run(database, *MADE, "CREATE TABLE m (id int PRIMARY KEY, v mood)", "INSERT INTO m VALUES (1, 'sad')")
    start = begun(database, "more", "m")
    run(database, "ALTER TYPE mood ADD VALUE 'glad' BEFORE 'sad'", "INSERT INTO m VALUES (2, 'glad')")
    assert [(row["id"], row["v"]) for row in drained(database, "more", start, "m").rows("m")] == [(2, "glad")]


# --- partitions ----------------------------------------------------------------------------------

PARTITIONS = {
    "attached with rows": (
        ("CREATE TABLE p3 (id int PRIMARY KEY, v text)", "INSERT INTO p3 VALUES (201, 'c')",
         "ALTER TABLE pt ATTACH PARTITION p3 FOR VALUES FROM (200) TO (300)"),
        "partition p3 was attached to pt with rows in it",
    ),
    "tree attached with rows": (
        ("CREATE TABLE p3 (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)",
         "CREATE TABLE p3a PARTITION OF p3 FOR VALUES FROM (200) TO (250)", "INSERT INTO p3 VALUES (201, 'c')",
         "ALTER TABLE pt ATTACH PARTITION p3 FOR VALUES FROM (200) TO (300)"),
        "partition p3a was attached to pt with rows in it",
    ),
    "detached": (("ALTER TABLE pt DETACH PARTITION pt_high",), "partition pt_high of pt was detached or dropped"),
    "dropped": (("DROP TABLE pt_high",), "partition pt_high of pt was detached or dropped"),
    "there and back": (
        ("ALTER TABLE pt DETACH PARTITION pt_high", "UPDATE pt_high SET v = 'x'",
         "ALTER TABLE pt ATTACH PARTITION pt_high FOR VALUES FROM (100) TO (200)"),
        "partition pt_high of pt was detached and attached again",
    ),
    "one truncated": (("TRUNCATE pt_high",), "partition pt_high of pt was truncated"),
    "one truncated, written to": (
        ("TRUNCATE pt_high", "INSERT INTO pt VALUES (150, 'n')"), "partition pt_high of pt was truncated",
    ),
    "all truncated by name": (("TRUNCATE pt_low, pt_high",), "truncated"),
    "table and then one": (
        ("TRUNCATE pt", "INSERT INTO pt VALUES (150, 'n')", "TRUNCATE pt_high"), "partition",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", PARTITIONS)
def test_rows_that_come_or_go_with_a_partition_are_refused(database: str, case: str) -> None:
    """ATTACH, DETACH, DROP and TRUNCATE of one partition are not in the log under the table's name."""
    statements, words = PARTITIONS[case]
    start = begun(database, "parts", "pt")
    run(database, *statements, "INSERT INTO pt VALUES (5, 'later')")
    refused(database, "parts", start, "pt", words, "accept_untold: [partitions]")
    assert drained(database, "parts", start, "pt", accepts=frozenset({"partitions"})).rows("pt")


def test_one_transaction_that_fills_and_attaches_a_partition_is_refused(database: str) -> None:
    """The rows are older than the link by the command only."""
    start = begun(database, "tx", "pt")
    transaction(
        database, "CREATE TABLE p3 (id int PRIMARY KEY, v text)", "INSERT INTO p3 VALUES (201, 'c')",
        "ALTER TABLE pt ATTACH PARTITION p3 FOR VALUES FROM (200) TO (300)",
    )  # fmt: skip
    refused(database, "tx", start, "pt", "partition p3 was attached to pt with rows in it")


TOLD = {
    "new": ("CREATE TABLE p3 PARTITION OF pt FOR VALUES FROM (200) TO (300)",),
    "attached empty": (
        "CREATE TABLE p3 (id int PRIMARY KEY, v text)",
        "ALTER TABLE pt ATTACH PARTITION p3 FOR VALUES FROM (200) TO (300)",
    ),
    "table truncated": ("TRUNCATE pt", "CREATE TABLE p3 PARTITION OF pt FOR VALUES FROM (200) TO (300)"),
    "written anew": ("VACUUM FULL pt_high", "CREATE TABLE p3 PARTITION OF pt FOR VALUES FROM (200) TO (300)"),
    "all written anew": (
        "ALTER TABLE pt ALTER COLUMN v TYPE varchar(99)", "VACUUM FULL pt",
        "CREATE TABLE p3 PARTITION OF pt FOR VALUES FROM (200) TO (300)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", TOLD)
def test_partitions_whose_rows_the_log_tells_go_on(database: str, case: str) -> None:
    """A new one is empty, a truncate of the table is in the log, VACUUM FULL takes no row."""
    start = begun(database, "told", "pt")
    run(database, *TOLD[case], "INSERT INTO pt VALUES (250, 'n')")
    first = drained(database, "told", start, "pt")
    ops = [row["__op"] for row in first.rows("pt")]
    assert ops == ["truncate", "insert"] if case == "table truncated" else ops == ["insert"]
    run(database, "INSERT INTO pt VALUES (251, 'm')")
    assert drained(database, "told", first.position, "pt").short("pt") == [("insert", 251, "m")]


def test_one_transaction_may_make_and_fill_a_partition(database: str) -> None:
    """Its rows were written to the table, and are in the log."""
    start = begun(database, "made", "pt")
    transaction(
        database, "CREATE TABLE p3 PARTITION OF pt FOR VALUES FROM (200) TO (300)", "INSERT INTO pt VALUES (250, 'n')",
        "CREATE TABLE p4 PARTITION OF pt FOR VALUES FROM (300) TO (400)", "INSERT INTO pt VALUES (350, 'n')",
    )  # fmt: skip
    assert drained(database, "made", start, "pt").short("pt") == [("insert", 250, "n"), ("insert", 350, "n")]


# --- tables --------------------------------------------------------------------------------------


def test_dropped_table_is_told_at_every_look(database: str) -> None:
    """Its changes are read to their end; that it is gone is a warning, also of the run after."""
    start = begun(database, "gone", "t", "pt")
    run(database, "UPDATE t SET v = 'last' WHERE id = 1", "DROP TABLE t")
    with log_of(database, capture("t", "pt", slot="gone")) as log:
        assert [finding.name for finding in log.survey().warnings] == ["table t"]
        assert "no table t any more" in log.survey().warnings[0].text
        first = drain(log, start)
    assert first.short("t") == [("update", 1, "last")]
    run(database, "INSERT INTO pt VALUES (7, 'x')")
    with log_of(database, capture("t", "pt", slot="gone")) as log:
        assert drain(log, first.position).short("pt") == [("insert", 7, "x")]
        assert log.survey().warnings
