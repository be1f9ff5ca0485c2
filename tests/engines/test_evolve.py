"""`on_schema_drift: evolve`: added columns are taken, any other change stops, and old windows stay readable by name."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from rivet_resources.commit.manifest import current_manifests
from rivet_resources.dagster.frames import Parts, as_committed
from tests.lab import Lab, lab_in
from tests.lab_engines import MARIADB, POSTGRES

BLOCK = "{name: orders, table: orders, mode: incremental, cursor_column: id, on_schema_drift: evolve}"
COPY = "{name: copy, table: orders, on_schema_drift: evolve}"
ADDED = {"nullable": "ALTER TABLE orders ADD COLUMN nick varchar(20)",
         "not null": "ALTER TABLE orders ADD COLUMN nick varchar(20) NOT NULL DEFAULT 'x'"}  # fmt: skip
REFUSED = {
    "removed": ("ALTER TABLE orders DROP COLUMN note", "removed note"),
    "retyped": ("ALTER TABLE orders {alter} note {type} int {using}", "note string → int32"),
    "renamed": ("ALTER TABLE orders RENAME COLUMN note TO remark", "removed note"),
}


@pytest.fixture(params=[POSTGRES, MARIADB], ids=lambda engine: engine.name)
def lab(tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Lab:
    """Two orders that were exported, by increments and whole."""
    laboratory = lab_in(tmp_path, request.param, request, monkeypatch)
    laboratory.create("orders", {"id": "whole", "note": "note"})
    laboratory.insert("orders", [{"id": 1, "note": "10"}, {"id": 2, "note": "20"}])
    for block in (BLOCK, COPY):
        assert "success" == laboratory.export(block).status
    return laboratory


def rows(lab: Lab, export: str) -> pa.Table:
    """Read all windows as an asset downstream does."""
    parts = Parts(lab.root(export), list(current_manifests(lab.root(export)).values()), session=lambda: None)
    return parts.table(as_committed).sort_by("id")


@pytest.mark.parametrize("kind", ADDED)
def test_an_added_column_is_taken_and_old_windows_have_null_there(lab: Lab, kind: str) -> None:
    """The old window is not touched; read together, its rows have the new column without a value."""
    lab.sql(ADDED[kind])
    lab.insert("orders", [{"id": 3, "note": "30", "nick": "new"}])

    outcome, copied = lab.export(BLOCK), lab.export(COPY)

    assert ("success", "success") == (outcome.status, copied.status), outcome.message
    assert 2 == len(lab.manifests("orders"))
    assert [None, None, "new"] == rows(lab, "orders").column("nick").to_pylist()
    assert ["10", "20", "30"] == rows(lab, "orders").column("note").to_pylist()
    assert "new" == rows(lab, "copy").column("nick").to_pylist()[-1]


def test_an_added_column_is_the_baseline_from_then_on(lab: Lab) -> None:
    """What was taken once is a column like any other: taking it away again is refused."""
    lab.sql(ADDED["nullable"])
    lab.insert("orders", [{"id": 3, "note": "30", "nick": "new"}])
    assert "success" == lab.export(BLOCK).status
    lab.sql("ALTER TABLE orders DROP COLUMN nick")
    lab.insert("orders", [{"id": 4, "note": "40"}])

    outcome = lab.export(BLOCK)

    assert (4, "RIVET_DRIFT_REFUSED") == (outcome.exit_code, outcome.code)
    assert "removed nick" in outcome.message
    assert 3 == rows(lab, "orders").num_rows


@pytest.mark.parametrize("kind", REFUSED)
def test_any_other_change_is_refused_before_a_row_is_read(lab: Lab, kind: str) -> None:
    """Removed, retyped, renamed: exit code 4, nothing is published, and the message says what evolve takes."""
    statement, told = REFUSED[kind]
    words = {"alter": "ALTER COLUMN", "type": "TYPE", "using": "USING note::int"}
    words = words if lab.engine is POSTGRES else {"alter": "MODIFY", "type": "", "using": ""}
    lab.sql(statement.format(**words))

    for block in (BLOCK, COPY):
        outcome = lab.export(block)
        assert (4, "RIVET_DRIFT_REFUSED") == (outcome.exit_code, outcome.code)
        for word in (told, "evolve, which takes added columns alone", "continue and warn accept it"):
            assert word in outcome.message
    assert (
        ["10", "20"] == rows(lab, "orders").column("note").to_pylist() == rows(lab, "copy").column("note").to_pylist()
    )


RETYPED = {
    "postgres": "ALTER TABLE plain ALTER COLUMN id TYPE text",
    "mariadb": "ALTER TABLE plain MODIFY id varchar(20)",
}


@pytest.mark.parametrize("policy", ["warn", "continue"])
def test_a_cursor_that_is_ordered_otherwise_now_is_refused_whatever_the_policy(lab: Lab, policy: str) -> None:
    """As texts 101 stands before 99: the run would take rows twice, pass others over, and call it a success."""
    lab.sql("CREATE TABLE plain AS SELECT 99 AS id UNION ALL SELECT 100")
    block = f"{{name: plain, table: plain, mode: incremental, cursor_column: id, on_schema_drift: {policy}}}"
    assert "success" == lab.export(block).status
    lab.sql(RETYPED[lab.engine.name], "INSERT INTO plain VALUES ('101')")

    outcome = lab.export(block)

    assert (4, "RIVET_DRIFT_REFUSED") == (outcome.exit_code, outcome.code)
    assert "cursor column id" in outcome.message
    assert "rivet state reset -e plain" in outcome.message
    assert 1 == len(lab.manifests("plain"))


@pytest.mark.parametrize("steps", ["{type: cast, columns: {id: text}}", "{type: drop, columns: [id]}"])
def test_a_cursor_is_judged_as_the_source_has_it(lab: Lab, steps: str) -> None:
    """Its type in the files says nothing of the order: a step hides one that changed, and a new step changes none."""
    lab.sql("CREATE TABLE plain AS SELECT 99 AS id, 1 AS n UNION ALL SELECT 100, 2")
    block = "name: plain, table: plain, mode: incremental, cursor_column: id"
    assert "success" == lab.export(f"{{{block}}}").status
    lab.sql("INSERT INTO plain VALUES (101, 3)")
    stepped = lab.export(f"{{{block}, transforms: [{steps}]}}")
    lab.sql(RETYPED[lab.engine.name], "INSERT INTO plain VALUES ('98', 4)")

    outcome = lab.export(f"{{{block}, transforms: [{steps}]}}")

    assert ("success", 1) == (stepped.status, stepped.rows), stepped.message
    assert (4, "RIVET_DRIFT_REFUSED") == (outcome.exit_code, outcome.code)
    assert "cursor column id" in outcome.message
