"""What an ALTER TABLE of MySQL or MariaDB does to rows that are there, read from its words."""

from __future__ import annotations

import pytest

from rivet_resources.engines.mysql.binlog.ddl import EVERY_TEXT, Definition, has_cascades, has_query, parse_alter

FILLED = [
    "ADD d int DEFAULT 7",
    "add column d int not null",
    "ADD COLUMN IF NOT EXISTS `d` varchar(9) COMMENT 'x' DEFAULT 'NULL' AFTER v",
    "ADD COLUMN d decimal(9,2) DEFAULT (1 + 2) FIRST",
    "ADD (c int, d int DEFAULT 7)",
    "ADD c int, ADD d int NOT NULL DEFAULT 0, ALGORITHM=INPLACE",
    "ADD d int AS (id * 2) STORED",
    "ADD d bigint unsigned AUTO_INCREMENT UNIQUE",
    "ADD d SERIAL",
    "WAIT 5 ADD COLUMN d int DEFAULT 1",
    "NOWAIT ADD COLUMN d int DEFAULT 1",
    "/* a note */ ADD /*!80000 COLUMN */ d int /*!80000 DEFAULT 7 */",
    "ADD d enum('a','b') NOT NULL -- the end",
    'ADD "d" int DEFAULT 7',
]
PLAIN = [
    "ADD d int",
    "ADD d int NULL DEFAULT NULL COMMENT 'DEFAULT 7'",
    "ADD (c int, d varchar(3) DEFAULT NULL)",
    "ADD d timestamp NULL",
    "ADD d set('NOT','NULL')",
    "ADD COLUMN d int, ADD INDEX i (d)",
    "ADD d int CHECK (d > 0)",
]
NOTHING = [
    "ADD INDEX d (v)", "ADD UNIQUE KEY d (v)", "ADD CONSTRAINT d FOREIGN KEY (v) REFERENCES p (id)",
    "ADD PRIMARY KEY (id)", "ADD FULLTEXT INDEX d (v)", "DROP INDEX d", "RENAME INDEX d TO e", "MODIFY v bigint",
    "ALTER COLUMN v SET DEFAULT 7", "ENGINE=InnoDB", "COMMENT='ADD d int DEFAULT 7'", "CHANGE v v bigint",
    "ADD PARTITION (PARTITION p VALUES LESS THAN (9))",
    "DROP PRIMARY KEY", "DROP FOREIGN KEY d", "ADD CHECK (v > 0)",
]  # fmt: skip


@pytest.mark.parametrize("body", FILLED)
def test_column_that_gives_old_rows_a_value_is_found(body: str) -> None:
    """A default, an implied one, a number, a formula."""
    assert parse_alter(body).filled == ["d"]


@pytest.mark.parametrize("body", PLAIN)
def test_column_that_is_null_in_old_rows_is_none(body: str) -> None:
    """What a log without a word of them says is right."""
    found = parse_alter(body)
    assert "d" in found.added
    assert not found.filled
    assert not found.stamped


@pytest.mark.parametrize("body", NOTHING)
def test_statement_about_something_else_touches_no_column(body: str) -> None:
    """Indexes, constraints, types, partitions, texts that look like a clause."""
    found = parse_alter(body)
    assert [found.added, found.renamed, found.dropped, found.filled] == [[], [], [], []]


@pytest.mark.parametrize("body", ["CHANGE v w text", "CHANGE COLUMN `v` `w` int NOT NULL", "RENAME COLUMN v TO w",
                                  "ADD c int, RENAME COLUMN IF EXISTS v TO w"])  # fmt: skip
def test_renamed_column_is_named(body: str) -> None:
    """With the old name and the new one."""
    assert parse_alter(body).renamed == [("v", "w")]


def test_dropped_columns_and_stamps_are_named() -> None:
    """The server decides what a TIMESTAMP without a word on NULL begins with."""
    found = parse_alter("DROP v, DROP COLUMN IF EXISTS `w``x`, ADD s TIMESTAMP, ADD t TIMESTAMP(6) NULL")
    assert found.dropped == ["v", "w`x"]
    assert found.stamped == ["s"]


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("ALTER TABLE c ADD FOREIGN KEY (p) REFERENCES p (id) ON DELETE CASCADE", True),
        ("CREATE TABLE c (p int, FOREIGN KEY (p) REFERENCES p (id) ON UPDATE SET NULL)", True),
        ("ALTER TABLE c ADD FOREIGN KEY (p) REFERENCES p (id) ON DELETE RESTRICT ON UPDATE NO ACTION", False),
        ("ALTER TABLE c COMMENT='ON DELETE CASCADE'", False),
    ],
)
def test_foreign_key_that_changes_rows_is_found(statement: str, expected: bool) -> None:
    """By its rules; RESTRICT and NO ACTION change nothing."""
    assert has_cascades(statement) is expected


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("MODIFY v bigint, MODIFY COLUMN IF EXISTS `w` int", ["v", "w"]),
        ("CHANGE v v text", ["v"]),
        ("CONVERT TO CHARACTER SET latin1", [EVERY_TEXT]),
        ("CHANGE v w text", []),
        ("ALTER COLUMN v SET DEFAULT 7, COMMENT='MODIFY v int', CONVERT PARTITION p TO TABLE u", []),
    ],
)
def test_column_that_is_defined_anew_is_named(body: str, expected: list[str]) -> None:
    """Its new definition may cut values that are there."""
    assert [name for name, _ in parse_alter(body).retyped] == expected


NOT_NULL = {"allows_null": False, "says_null": True}
DEFINED = {
    "decimal(10, 2) unsigned NOT NULL DEFAULT 0 AFTER w": Definition("decimal(10,2) unsigned", "?", **NOT_NULL),
    "varchar(20) CHARACTER SET = 'latin1' NULL": Definition("varchar(20)", "latin1", True, says_null=True),
    "enum('a,b','NOT NULL') DEFAULT 'x'": Definition("enum('a,b','NOT NULL')", "?", True),
    "int AS (w + 1) STORED": Definition("int", "?", True, is_made=True),
    "bigint NOT NULL AUTO_INCREMENT": Definition("bigint", "?", **NOT_NULL, is_counted=True),
    "SERIAL": Definition("serial", "?", False, is_counted=True),
    "char(5) BYTE": Definition("char(5) byte", "?", True),
    "varchar(9) CHARSET binary": Definition("varchar(9) byte", "binary", True),
}


@pytest.mark.parametrize("definition", DEFINED)
def test_definition_is_taken_apart(definition: str) -> None:
    """Its type as the server spells it, its character set, NULLs, and what makes its values."""
    assert DEFINED[definition] == parse_alter(f"MODIFY v {definition}").retyped[0][1]


@pytest.mark.parametrize(
    ("definition", "expected"),
    [
        ("SELECT 1", True),
        ("(id int PRIMARY KEY) ENGINE=InnoDB IGNORE AS (SELECT 1 AS id)", True),
        ("TABLE u", True),
        ("VALUES ROW(1, 2)", True),
        ("WITH q AS (SELECT 1) SELECT * FROM q", True),
        ("(id int COMMENT 'SELECT', `select` int)", False),
        ("(id int) PARTITION BY RANGE (id) (PARTITION p VALUES LESS THAN (9))", False),
        ("(id int) PARTITION BY LIST (id) (PARTITION p VALUES IN (9)) -- SELECT 1", False),
        ("LIKE u", False),
        ("(id int) START TRANSACTION", False),
    ],
)
def test_table_that_a_query_fills_is_told_from_one_that_is_only_made(definition: str, expected: bool) -> None:
    """Given what stands behind its name."""
    assert has_query(definition) is expected
