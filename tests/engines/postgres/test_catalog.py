"""Every type that the server's own catalog offers has a form here, or is refused in words."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest

from rivet_assets.doctor.examine import examine
from tests.lab import Lab

# What a column can be declared as: base types, ranges and multiranges, and arrays of them; not pseudo-types.
TYPES = """
SELECT format_type(t.oid, NULL) FROM pg_type t JOIN pg_namespace n ON n.oid = t.typnamespace
LEFT JOIN pg_type item ON item.oid = t.typelem
WHERE n.nspname = 'pg_catalog' AND t.typtype IN ('b', 'r', 'm') AND coalesce(item.typtype, 'b') NOT IN ('p', 'c')
ORDER BY t.oid"""


@pytest.mark.parametrize("database", ["fresh_database", "fresh_real_database"], ids=["PostgreSQL 18", "PostgreSQL 15"])
def test_every_catalog_type_has_a_form(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, database: str
) -> None:
    """A table with one column of each type is exported, NULLs as NULLs; no type falls through."""
    url = request.getfixturevalue(database)
    monkeypatch.setenv("LAB_URL", url)
    monkeypatch.chdir(tmp_path)
    lab = Lab(tmp_path, url)
    with psycopg.connect(url) as connection:
        names = [row[0] for row in connection.execute(TYPES.encode())]
    columns = ", ".join(f"c{index} {name}" for index, name in enumerate(names))
    lab.sql(f"CREATE TABLE cells ({columns})", "INSERT INTO cells DEFAULT VALUES")

    outcome = lab.export("{name: cells, table: cells, mode: full}")

    assert outcome.success, outcome.message
    assert len(names) > 100
    assert [{f"c{index}": None for index in range(len(names))}] == lab.rows("cells")


PARTED = (
    "CREATE TABLE orders (id int PRIMARY KEY, owner text) PARTITION BY RANGE (id)",
    "CREATE TABLE old PARTITION OF orders FOR VALUES FROM (0) TO (10)",
    "CREATE TABLE new PARTITION OF orders FOR VALUES FROM (10) TO (20)",
    "INSERT INTO orders SELECT i, CASE WHEN i % 2 = 0 THEN 'us' ELSE 'them' END FROM generate_series(1, 19) AS i",
)
OURS = "USING (owner = 'us')"


@pytest.fixture
def clerk(fresh_real_database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    """A table of two partitions, and a role without rights, as whom exports read."""
    parts = urlsplit(fresh_real_database)
    reader = parts._replace(netloc=f"clerk:clerk@{parts.hostname}:{parts.port}").geturl()
    monkeypatch.setenv("LAB_URL", reader)
    monkeypatch.chdir(tmp_path)
    lab = Lab(tmp_path, fresh_real_database)
    lab.sql(*PARTED, "CREATE ROLE clerk LOGIN PASSWORD 'clerk'")
    yield lab
    lab.sql("DROP OWNED BY clerk", "DROP ROLE clerk")


@pytest.mark.parametrize(
    ("statements", "expected"),
    [
        (["GRANT SELECT ON orders TO clerk"], 19),
        (["GRANT SELECT ON orders, old TO clerk"], 19),
        (["GRANT SELECT ON orders, old, new TO clerk", "ALTER TABLE old ENABLE ROW LEVEL SECURITY"], 19),
        (
            ["GRANT SELECT ON orders, old, new TO clerk", "ALTER TABLE orders ENABLE ROW LEVEL SECURITY",
             f"CREATE POLICY ours ON orders {OURS}"],
            9,
        ),
        (["GRANT SELECT (id, owner) ON orders TO clerk"], 19),
    ],
    ids=["right to the table alone", "right to one part", "a part's policy", "the table's policy", "rights by column"],
)  # fmt: skip
def test_rows_of_parts_are_those_that_the_table_shows(clerk: Lab, statements: list[str], expected: int) -> None:
    """Who may read a table need not be let in to its parts; and a part's own policies hide no row of the table."""
    clerk.sql(*statements)

    outcome = clerk.export("{name: orders, table: orders, mode: full}")

    assert outcome.success, outcome.message
    assert expected == len(clerk.ids("orders"))


def test_row_security_that_hides_rows_is_told(clerk: Lab) -> None:
    """A run that exports some of the rows says so, in its summary, and says what shows all of them."""
    clerk.sql(
        "CREATE TABLE visits (id int PRIMARY KEY, owner text)", "INSERT INTO visits VALUES (1, 'us'), (2, 'them')",
        "ALTER TABLE visits ENABLE ROW LEVEL SECURITY", f"CREATE POLICY ours ON visits {OURS}",
        "GRANT SELECT ON visits TO clerk",
    )  # fmt: skip

    outcome = clerk.export("{name: visits, table: visits, mode: full}")

    assert [1] == clerk.ids("visits")
    assert any("row-level security" in warning and "BYPASSRLS" in warning for warning in outcome.warnings)


# What is exported, and which rows of it a clerk sees; the one who owns the tables sees all.
BELOW = {
    "query": ("query: SELECT v.id FROM visits v JOIN orders o ON o.id = v.id", [1], True),
    "query of what no policy hides": ("query: SELECT id FROM orders WHERE id < 3", [1, 2], False),
    "query of a view": ("query: SELECT id FROM mine", [1], True),
    "view of who reads": ("table: mine", [1], True),
    "view of its owner": ("table: theirs", [1, 2], False),
}


@pytest.mark.parametrize("case", BELOW)
def test_row_security_below_a_query_or_view_is_told(clerk: Lab, case: str) -> None:
    """The policies that hold are those of the tables it reads, through views whose reader they ask."""
    clerk.sql(
        "CREATE TABLE visits (id int PRIMARY KEY, owner text)", "INSERT INTO visits VALUES (1, 'us'), (2, 'them')",
        "ALTER TABLE visits ENABLE ROW LEVEL SECURITY", f"CREATE POLICY ours ON visits {OURS}",
        "CREATE VIEW mine WITH (security_invoker) AS SELECT * FROM visits", "CREATE VIEW theirs AS TABLE visits",
        "GRANT SELECT ON visits, orders, mine, theirs TO clerk",
    )  # fmt: skip
    what, rows, is_told = BELOW[case]

    block = f"{{name: seen, mode: full, {what}}}"
    outcome, looked = clerk.export(block), [row for row in examine(clerk.config(block)) if row.name == "row_security"]

    assert outcome.success, outcome.message
    assert (is_told and "table" in what) == bool(looked)  # the doctor looks at tables and views
    assert rows == clerk.ids("seen")
    told = [warning for warning in outcome.warnings if "row-level security" in warning]
    assert is_told == bool(told)
    assert all("rows of visits user clerk sees" in each and 'ALTER ROLE "clerk" BYPASSRLS' in each for each in told)
