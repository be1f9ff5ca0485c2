"""SQL expressions: what may be written, the type that comes out, and that DuckDB reaches nothing else."""

import pyarrow as pa
import pytest

from rivet_resources.contracts.transform import TransformError
from rivet_resources.shape.transforms import sql
from tests.transforming import cells, shaped

TABLE = pa.table(
    {
        "a": pa.array([1, 2, None], pa.int32()),
        "Name": ["x", "y", None],
        "price": pa.array(["1.50", "2.25", None]).cast(pa.decimal128(12, 2)),
        "ts": pa.array([0, 1_705_320_000_000_000, None], pa.timestamp("us", "UTC")),
        "l": [[1], [2, 3], None],
        "U": pa.array([1, 2, 3]),
        "u": pa.array([1, 2, 3]),
    }
)

REFUSED = [
    ("(SELECT 1)", "subquery"),
    ("EXISTS (SELECT 1)", "subquery"),
    ("a IN (SELECT a FROM page)", "subquery"),
    ("sum(a)", "calls sum"),
    ("count(*)", "calls count_star"),
    ("row_number() OVER ()", "window"),
    ("sum(a) OVER ()", "window"),
    ("random()", "calls random"),
    ("now()", "calls now"),
    ("today()", "calls today"),
    ("uuid()", "calls uuid"),
    ("gen_random_uuid()", "calls gen_random_uuid"),
    ("nextval('s')", "calls nextval"),
    ("age(ts)::TEXT", "calls age"),
    ("get_current_timestamp() - ts", "calls get_current_timestamp"),
    ("current_date", "no column 'current_date'"),
    ("CURRENT_TIMESTAMP", "no column 'CURRENT_TIMESTAMP'"),
    ("current_setting('TimeZone')", "calls current_setting"),
    ("getenv('HOME')", "calls getenv"),
    ("error('x')", "calls error"),
    ("sleep_ms(1)", "calls sleep_ms"),
    ("read_text('/etc/passwd')", "calls read_text"),
    ("unnest(l)", "calls unnest"),
    ("no_such(a)", "calls no_such"),
    ("*", "star"),
    ("COLUMNS('a')", "star"),
    ("?", "parameter"),
    ("#1", "positional_reference"),
    ("a; DROP TABLE x", "not one SQL expression"),
    ("a) FROM other --", "not one SQL expression"),
    ("1), (2", "not one SQL expression"),
    ("1) UNION SELECT (2", "not one SQL expression"),
    ("SELECT 1", "subquery"),
    ("", "not one SQL expression"),
    ("a +", "not one SQL expression"),
    ("page.a", "no column 'page'"),
    ("U + u", "SQL cannot tell apart"),
    ("NULL", "has no place in a file"),
    ("INTERVAL 1 DAY", "has no place in a file"),
    ("a || ", "not one SQL expression"),
    ("Name + 1 + l", "cannot be evaluated"),
    ("a" + " + 1" * 1100, "at most 4096"),
]


@pytest.mark.parametrize(("text", "words"), REFUSED, ids=[text[:40] for text, _ in REFUSED])
def test_expression_that_sees_more_than_its_row_is_refused(text, words):
    """No subquery, aggregate, window, file, clock, chance or second statement; said before any row is read."""
    with pytest.raises(TransformError) as caught:
        sql.result_types([text], TABLE.schema)

    assert words in str(caught.value)


COMPUTED = [
    ("a + 1", pa.int32(), [2, 3, None]),
    ("price * a", pa.decimal128(18, 2), None),
    ("upper(name)", pa.string(), ["X", "Y", None]),
    ("name || '!'", pa.string(), ["x!", "y!", None]),
    ("CASE WHEN a = 1 THEN 'one' ELSE 'more' END", pa.string(), ["one", "more", "more"]),
    ("coalesce(a, 0)", pa.int32(), [1, 2, 0]),
    ("nullif(a, 1)", pa.int32(), [None, 2, None]),
    ("a IS NULL", pa.bool_(), [False, False, True]),
    ("a BETWEEN 1 AND 1", pa.bool_(), [True, False, None]),
    ("a IN (1, 3)", pa.bool_(), [True, False, None]),
    ("ts::DATE::TEXT", pa.string(), ["1970-01-01", "2024-01-15", None]),
    ("strftime(ts AT TIME ZONE 'Europe/Prague', '%H:%M')", pa.string(), ["01:00", "13:00", None]),
    ("year(ts) + 1", pa.int64(), [1971, 2025, None]),
    ("date_trunc('year', ts)::DATE::TEXT", pa.string(), ["1970-01-01", "2024-01-01", None]),
    ("(ts + INTERVAL 1 DAY)::DATE::TEXT", pa.string(), ["1970-01-02", "2024-01-16", None]),
    ("make_timestamptz(2024, 1, 15, 12, 0, 0)::TEXT", pa.string(), ["2024-01-15 12:00:00+00"] * 3),
    ("regexp_matches(name, '^x')", pa.bool_(), [True, False, None]),
    ("try_cast(name AS INTEGER)", pa.int32(), [None, None, None]),
    ("l[1]", pa.int64(), [1, 2, None]),
    ("list_transform(l, lambda x: x + 1)", pa.list_(pa.int64()), [[2], [3, 4], None]),
    ("'EU'", pa.string(), ["EU", "EU", "EU"]),
    ("100 + 10 + 5", pa.int32(), [115, 115, 115]),
    ("length(name)", pa.int64(), [1, 1, None]),
    ("substring('+1-555-123-4567', 4, 3)", pa.string(), ["555"] * 3),
    ("replace('555-123-4567', '-', '')", pa.string(), ["5551234567"] * 3),
    ("concat('Alice', ' ', 'Smith')", pa.string(), ["Alice Smith"] * 3),
    ("a -- the number", pa.int32(), [1, 2, None]),
    ("sha256(name) = 'x'", pa.bool_(), [False, False, None]),
]


@pytest.mark.parametrize(("text", "arrow", "expected"), COMPUTED, ids=[text for text, _, _ in COMPUTED])
def test_expression_has_the_type_of_the_plan_and_the_cells_of_sql(text, arrow, expected):
    """The type is known from an empty page; NULL, case of names and functions are DuckDB's."""
    assert [arrow] == sql.result_types([text], TABLE.schema)
    result = shaped(TABLE, {"type": "compute", "columns": {"out": text}})
    if expected is not None:
        assert expected == cells(result, "out")


@pytest.mark.parametrize(
    "arrow",
    [pa.int8(), pa.uint64(), pa.float32(), pa.bool_(), pa.string(), pa.binary(), pa.date32(), pa.time64("us"),
     pa.decimal128(38, 10), pa.timestamp("us"), pa.timestamp("us", "UTC"), pa.timestamp("ns"), pa.list_(pa.string())],
    ids=str,
)  # fmt: skip
def test_column_passes_through_sql_unchanged(arrow):
    """A type that is used in SQL comes back as it went in."""
    assert [arrow] == sql.result_types(["v"], pa.schema([("v", arrow)]))


@pytest.mark.parametrize("arrow", [pa.decimal256(50, 2), pa.duration("us")], ids=str)
def test_type_sql_would_lose_is_refused_with_advice(arrow):
    """256-bit decimals would become doubles; said before any row is read, and only if the column is used."""
    schema = pa.schema([("v", arrow), ("w", pa.int32())])

    with pytest.raises(TransformError, match="cannot hold exactly; use `columns:`"):
        sql.result_types(["v IS NULL"], schema)
    assert [pa.bool_()] == sql.result_types(["w IS NULL"], schema)


def test_expressions_of_a_step_see_the_row_as_it_was():
    """Two columns may swap in one step."""
    result = shaped(pa.table({"a": [1], "b": [2]}), {"type": "compute", "columns": {"a": "b", "b": "a"}})

    assert {"a": [2], "b": [1]} == result.to_pydict()


def test_rows_keep_their_order_over_many_chunks():
    """DuckDB runs on one thread and gives rows as they came."""
    table = pa.concat_tables([pa.table({"v": range(n * 5_000, (n + 1) * 5_000)}) for n in range(60)])

    result = shaped(table, {"type": "compute", "columns": {"w": "v + 1"}})

    assert list(range(1, 300_001)) == cells(result, "w")


@pytest.mark.parametrize(
    "statement",
    ["SELECT * FROM read_csv('/etc/passwd')", "COPY (SELECT 1) TO '/tmp/rivet-should-not-exist.csv'",
     "INSTALL httpfs", "SET enable_external_access=true"],
)  # fmt: skip
def test_engine_reaches_no_file_and_no_network(statement):
    """Even what is no expression could not leave the process."""
    import duckdb

    with pytest.raises(duckdb.Error):
        sql._connection().execute(statement).fetchall()
