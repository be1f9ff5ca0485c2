"""Every type that the server's own catalog offers has a form here, or is refused in words."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest

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
