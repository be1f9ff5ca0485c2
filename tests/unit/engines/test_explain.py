"""What plans mean, engine by engine, told from recorded answers of planners; no server is asked."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from rivet_resources.contracts.relation import Chunk
from rivet_resources.contracts.settings import pace
from rivet_resources.contracts.types import Column
from rivet_resources.engines.mysql import explain as mysql_explain
from rivet_resources.engines.postgres import explain as postgres_explain
from rivet_resources.engines.sqlite import explain as sqlite_explain
from rivet_resources.engines.sqlserver import explain as sqlserver_explain
from rivet_resources.errors import SourcePermission

ASKED = "SELECT 1"

# --- PostgreSQL: (FORMAT JSON), only the keys that are read ------------------------------------------


def scan(kind: str, rows: int = 10, **more: object) -> dict[str, object]:
    """Make a node that reads a table."""
    return {"Node Type": kind, "Plan Rows": rows, "Relation Name": "orders", **more}


POSTGRES = [
    (scan("Seq Scan", Filter="(at > now())"), ("scan", "", False)),
    (scan("Index Scan", **{"Index Name": "orders_at", "Index Cond": "(at > now())"}), ("index", "orders_at", False)),
    (scan("Index Scan", **{"Index Name": "orders_pkey"}), ("index", "orders_pkey", False)),
    # All of an index, most of it thrown away: a scan by another name.
    (scan("Index Scan", **{"Index Name": "orders_pkey", "Filter": "(at > now())"}), ("scan", "orders_pkey", False)),
    (scan("Tid Range Scan", **{"TID Cond": "(ctid >= '(0,0)')"}), ("blocks", "", False)),
    (
        scan(
            "Bitmap Heap Scan", Plans=[{"Node Type": "Bitmap Index Scan", "Index Name": "orders_at", "Plan Rows": 10}]
        ),
        ("index", "orders_at", False),
    ),
    ({"Node Type": "Sort", "Plan Rows": 10, "Plans": [scan("Seq Scan")]}, ("scan", "", True)),
    (
        {
            "Node Type": "Hash Join",
            "Plan Rows": 900,
            "Plans": [scan("Seq Scan", 900), scan("Index Scan", 5, **{"Index Name": "c", "Index Cond": "x"})],
        },
        ("scan", "", False),
    ),
    ({"Node Type": "Function Scan", "Plan Rows": 1000}, ("other", "", False)),
    ({"Node Type": "Aggregate", "Plan Rows": 1}, ("other", "", False)),
]


def test_postgres_plan_is_told_by_the_scan_of_most_rows():
    """Whatever stands above it."""
    told = [postgres_explain.digest(ASKED, plan) for plan, _ in POSTGRES]

    assert [expected for _, expected in POSTGRES] == [(each.scan, each.index, each.sorts) for each in told]


def test_text_of_a_plan_holds_no_bound():
    """Conditions hold values of the table."""
    told = postgres_explain.digest(ASKED, scan("Seq Scan", Filter="(mail > 'ann@example.org')"))

    assert "Seq Scan on orders (rows=10)" == told.text


# --- MySQL and MariaDB: three shapes of EXPLAIN FORMAT=JSON ----------------------------------------

MARIADB_TABLE = {"table_name": "o", "access_type": "range", "key": "at", "rows": 7, "attached_condition": "o.at > 1"}
MYSQL_ONE = {"table_name": "o", "access_type": "ALL", "rows_examined_per_scan": 1000, "attached_condition": "x"}
MYSQL_TWO = {"table_name": "o", "access_type": "index", "index_name": "PRIMARY", "estimated_rows": 500.0}
MYSQL = [
    ({"query_block": {"nested_loop": [{"table": MARIADB_TABLE}]}}, ("index", "at", 7, False)),
    ({"query_block": {"nested_loop": [{"table": MARIADB_TABLE | {"access_type": "index"}}]}}, ("scan", "at", 7, False)),
    (
        {"query_block": {"nested_loop": [{"read_sorted_file": {"filesort": {"table": MARIADB_TABLE}}}]}},
        ("index", "at", 7, True),
    ),
    (
        {"query_block": {"ordering_operation": {"using_filesort": True, "table": MYSQL_ONE}}},
        ("scan", "", 1000, True),
    ),
    (
        {"query_block": {"ordering_operation": {"using_filesort": False, "table": MYSQL_ONE}}},
        ("scan", "", 1000, False),
    ),
    ({"query_plan": {"access_type": "limit", "inputs": [MYSQL_TWO | {"index_access_type": "index_range_scan"}]}},
     ("index", "PRIMARY", 500, False)),
    ({"query_plan": {"access_type": "limit", "inputs": [MYSQL_TWO | {"index_access_type": "index_scan"}]}},
     ("index", "PRIMARY", 500, False)),
    ({"query_plan": {"access_type": "filter", "inputs": [MYSQL_TWO | {"index_access_type": "index_scan"}]}},
     ("scan", "PRIMARY", 500, False)),
    ({"query_plan": {"access_type": "sort", "inputs": [{"table_name": "o", "access_type": "table"}]}},
     ("scan", "", 0, True)),
    ({"query_block": {"table": {"message": "Impossible WHERE"}}}, ("other", "", None, False)),
]  # fmt: skip


def test_every_shape_of_a_mysql_plan_means_the_same():
    """MariaDB's, MySQL's first and its second."""
    told = [mysql_explain.digest(ASKED, plan) for plan, _ in MYSQL]

    assert [expected for _, expected in MYSQL] == [(each.scan, each.index, each.rows, each.sorts) for each in told]


# --- SQLite ----------------------------------------------------------------------------------------

SQLITE = [
    (["SCAN orders"], False, ("scan", "", False)),
    (["SCAN orders USING INDEX orders_at"], False, ("index", "orders_at", False)),
    (["SCAN orders USING INDEX orders_at"], True, ("scan", "orders_at", False)),
    (["SEARCH orders USING INDEX orders_at (at>? AND at<?)"], True, ("index", "orders_at", False)),
    (["SEARCH orders USING COVERING INDEX orders_at (at>?)"], True, ("index", "orders_at", False)),
    (["SEARCH orders USING INTEGER PRIMARY KEY (rowid>?)"], True, ("index", "INTEGER PRIMARY KEY", False)),
    (["SCAN orders", "USE TEMP B-TREE FOR ORDER BY"], True, ("scan", "", True)),
    (["SCAN CONSTANT ROW"], False, ("scan", "", False)),
    ([], False, ("other", "", False)),
]


def test_sqlite_plan_is_told_by_its_outermost_loop():
    """A walk along an index that a predicate thins out is a scan."""
    told = [sqlite_explain.digest(ASKED, steps, filters=filters) for steps, filters, _ in SQLITE]

    assert [expected for _, _, expected in SQLITE] == [(each.scan, each.index, each.sorts) for each in told]


# --- SQL Server: written after showplanxml.xsd, since no server was at hand ------------------------

XML = """<ShowPlanXML xmlns="http://schemas.microsoft.com/sqlserver/2004/07/showplan" Version="1.564"><BatchSequence>
<Batch><Statements><StmtSimple StatementType="SELECT"><QueryPlan>{}</QueryPlan></StmtSimple></Statements></Batch>
</BatchSequence></ShowPlanXML>"""
READ = (
    '<RelOp PhysicalOp="{op}" EstimateRows="500" EstimatedRowsRead="{rows}"><IndexScan Ordered="{ordered}">'
    '<Object Table="[orders]" Index="[PK_orders]"/>{more}</IndexScan></RelOp>'
)
TOP = '<RelOp PhysicalOp="Top" EstimateRows="500"><Top>{}</Top></RelOp>'
SORT = '<RelOp PhysicalOp="Sort" EstimateRows="500"><Sort>{}</Sort></RelOp>'
HEAP = '<RelOp PhysicalOp="Table Scan" EstimateRows="9"><TableScan><Object Table="[heap]"/></TableScan></RelOp>'
SEEK = READ.format(op="Clustered Index Seek", rows=900, ordered="1", more="")
WALK = READ.format(op="Clustered Index Scan", rows=500, ordered="1", more="")
SQLSERVER = [
    (TOP.format(SEEK), ("index", "PK_orders", 900, False)),
    (TOP.format(WALK), ("index", "PK_orders", 500, False)),
    (
        TOP.format(READ.format(op="Clustered Index Scan", rows=10**7, ordered="1", more="<Predicate/>")),
        ("scan", "PK_orders", 10**7, False),
    ),
    (READ.format(op="Clustered Index Scan", rows=10**7, ordered="0", more=""), ("scan", "PK_orders", 10**7, False)),
    (SORT.format(HEAP), ("scan", "", 9, True)),
    ('<RelOp PhysicalOp="Constant Scan" EstimateRows="1"/>', ("other", "", None, False)),
]  # fmt: skip


def test_sqlserver_plan_is_told_by_the_read_of_most_rows():
    """A walk in the order of an index counts as served, unless a predicate throws rows away."""
    told = [sqlserver_explain.digest(ASKED, XML.format(plan)) for plan, _ in SQLSERVER]

    assert [expected for _, expected in SQLSERVER] == [(each.scan, each.index, each.rows, each.sorts) for each in told]


class Asked:
    """A session that remembers what it was asked, and answers or refuses."""

    conn_params: Any = SimpleNamespace(driver="mssql-python")  # nothing is connected

    def __init__(self, *, refuses: str = "") -> None:
        self.statements: list[str] = []
        self.refuses = refuses

    def ask(self, statement: str, *, doing: str) -> list[tuple[str, ...]]:
        """Answer a plan."""
        self.statements.append(statement)
        if self.refuses and self.refuses in statement:
            raise SourcePermission("SHOWPLAN permission denied.")
        return [(XML.format(TOP.format(SEEK)),)]


CHUNK = Chunk(0, "keyset", "[dbo].[orders]", key=("id",))
COLUMNS = (Column("id", "bigint", pa.int64(), "[id]", facts=(("read", "plain"),)),)
PAGE = "SELECT TOP (500) [id] FROM [dbo].[orders] ORDER BY [id]"


def test_sqlserver_is_asked_for_the_plan_of_the_page_and_then_runs_again():
    """SHOWPLAN_XML ON, the very page, OFF: forgotten, the session would run nothing any more."""
    session = Asked()

    told = sqlserver_explain.explain(session, session.conn_params, CHUNK, COLUMNS, pace=pace(None, None))

    assert ["SET SHOWPLAN_XML ON", PAGE, "SET SHOWPLAN_XML OFF"] == session.statements
    assert (PAGE, "index", "PK_orders") == (told.statement, told.scan, told.index)


def test_sqlserver_without_the_right_is_told_by_the_catalog():
    """And the page is never sent: without SHOWPLAN it would be run."""
    session = Asked(refuses="SHOWPLAN_XML ON")

    told = sqlserver_explain.explain(session, session.conn_params, CHUNK, COLUMNS, pace=pace(None, None))

    assert ["SET SHOWPLAN_XML ON"] == session.statements
    assert (PAGE, "index", True) == (told.statement, told.scan, "GRANT SHOWPLAN" in told.text)


def test_sqlserver_runs_again_when_the_page_cannot_be_explained():
    """OFF is sent whatever happened."""
    session = Asked(refuses="TOP")

    with pytest.raises(SourcePermission):
        sqlserver_explain.explain(session, session.conn_params, CHUNK, COLUMNS, pace=pace(None, None))

    assert "SET SHOWPLAN_XML OFF" == session.statements[-1]
