"""The literal value table of types.md, section 6, read by every reader of PostgreSQL."""

from __future__ import annotations

import struct
from decimal import Decimal
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest

from rivet_resources.contracts.source import ColumnRule
from rivet_resources.contracts.types import INSTANT, NAIVE
from rivet_resources.errors import SourceError, UnsupportedColumn, ValueDoesNotFit
from tests.engines.postgres.reads import READERS, chunk_for, pages, plain, rules, run, session, whole

pytestmark = pytest.mark.wide

MICRO = 1_000_000
DAY = 86_400


def day(year: int, month: int, date: int) -> int:
    """Count days since the epoch in the proleptic Gregorian calendar, for any year."""
    year, month = (year - 1, month + 12) if month < 3 else (year, month)
    return 365 * year + year // 4 - year // 100 + year // 400 + (153 * (month - 3) + 2) // 5 + date - 1 - 719468


def single(number: float) -> float:
    """Round to float32."""
    return struct.unpack("f", struct.pack("f", number))[0]


STRING, INTS = pa.string(), pa.list_(pa.field("item", pa.int32()))
TEXTS = pa.list_(pa.field("item", pa.string()))
DIGITS = "0." + "0" * 50 + "1"
STAMP = (day(2016, 11, 4) * DAY + 13 * 3600 + 51 * 60 + 30) * MICRO + 123456

# DDL type, literal, Arrow type under `native`, expected cell.
CASES: list[tuple[str, str, pa.DataType, Any]] = [
    ("bool", "true", pa.bool_(), True),
    ("bool", "false", pa.bool_(), False),
    ("int2", "32767", pa.int16(), 32767),
    ("int2", "'-32768'", pa.int16(), -32768),
    ("int4", "2147483647", pa.int32(), 2147483647),
    ("int4", "'-2147483648'", pa.int32(), -2147483648),
    ("int8", "9223372036854775807", pa.int64(), 9223372036854775807),
    ("int8", "'-9223372036854775808'", pa.int64(), -9223372036854775808),
    ("oid", "4294967295", pa.int64(), 4294967295),
    ("oid", "4000000000", pa.int64(), 4000000000),
    ("float4", "'Infinity'", pa.float32(), float("inf")),
    ("float4", "3.3", pa.float32(), single(3.3)),
    ("float8", "'-Infinity'", pa.float64(), float("-inf")),
    ("float8", "4.44", pa.float64(), 4.44),
    ("float8", "'-0.0'", pa.float64(), -0.0),
    ("numeric(10,4)", "123.456", pa.decimal128(10, 4), Decimal("123.4560")),
    ("numeric(10,4)", "-999999.9999", pa.decimal128(10, 4), Decimal("-999999.9999")),
    ("numeric(6,4)", "22.22", pa.decimal128(6, 4), Decimal("22.2200")),
    ("numeric(3,2)", "1.1", pa.decimal128(3, 2), Decimal("1.10")),
    ("numeric(4)", "10.11", pa.decimal128(4, 0), Decimal("10")),
    ("numeric(3,-2)", "12345", pa.decimal128(5, 0), Decimal("12300")),
    ("numeric(2,4)", "0.0012", pa.decimal128(4, 4), Decimal("0.0012")),
    ("numeric", "10.1111", STRING, "10.1111"),
    ("numeric", "1e100", STRING, "1" + "0" * 100),
    ("numeric", DIGITS, STRING, DIGITS),
    ("numeric", "'NaN'", STRING, "NaN"),
    ("numeric(60,4)", "10000000000000000000000000000000000000000.0001", pa.decimal256(60, 4),
     Decimal("10000000000000000000000000000000000000000.0001")),
    ("money", "52093.89", pa.decimal128(19, 2), Decimal("52093.89")),
    ("money", "'-92233720368547758.08'", pa.decimal128(19, 2), Decimal("-92233720368547758.08")),
    ("char(10)", "'abc'", STRING, "abc       "),
    ("varchar(20)", "E'tab\\tnewline\\n'", STRING, "tab\tnewline\n"),
    ("text", "'ñ ✓ 🎉'", STRING, "ñ ✓ 🎉"),
    ("text", "''", STRING, ""),
    ("text", r"'\N'", STRING, r"\N"),
    ("text", "'NULL'", STRING, "NULL"),
    ("text", "NULL", STRING, None),
    ("name", "'n'", STRING, "n"),
    ('"char"', "'c'", STRING, "c"),
    ("bytea", r"'\xDEADBEEF'", pa.binary(), b"\xde\xad\xbe\xef"),
    ("bytea", r"'\x'", pa.binary(), b""),
    ("bytea", r"'\x00'", pa.binary(), b"\0"),
    ("bit(3)", "B'101'", STRING, "101"),
    ("bit(1)", "B'1'", STRING, "1"),
    ("varbit", f"B'{'1' * 64}'", STRING, "1" * 64),
    ("date", "'0044-03-15 BC'", pa.date32(), -735160),
    ("date", "'epoch'", pa.date32(), 0),
    ("date", "'294276-01-01'", pa.date32(), day(294276, 1, 1)),
    ("time", "'12:34:56.5'", pa.time64("us"), 45296500000),
    ("timestamp", "'2016-11-04T13:51:30.123456'", NAIVE, STAMP),
    ("timestamp", "'1936-10-25T22:10:12.608'", NAIVE, (day(1936, 10, 25) * DAY + 79812) * MICRO + 608000),
    ("timestamp", "'294247-01-01T23:59:59.999999'", NAIVE, (day(294247, 1, 1) * DAY + 86399) * MICRO + 999999),
    ("timestamp", "'0044-03-15 00:00:00 BC'", NAIVE, -735160 * DAY * MICRO),
    ("timestamptz", "'2016-11-04T13:51:30.123456+02:00'", INSTANT, STAMP - 7200 * MICRO),
    ("timestamptz", "'54321-10-11 12:13:14+00'", INSTANT, (day(54321, 10, 11) * DAY + 43994) * MICRO),
    ("timetz", "'13:51:30.123789+02:00'", STRING, "13:51:30.123789+02"),
    ("interval", "'P1Y2M3DT4H5M6.78S'", STRING, "P1Y2M3DT4H5M6.78S"),
    ("interval", "'-1 days'", STRING, "P-1D"),
    ("interval", "'1 year -2 mons 3 days -04:05:06.7'", STRING, "P10M3DT-4H-5M-6.7S"),
    ("interval", "'0'", STRING, "PT0S"),
    ("json", "'null'", pa.json_(), "null"),
    ("json", "NULL", pa.json_(), None),
    ("json", "'1234567890123456789'", pa.json_(), "1234567890123456789"),
    ("json", "'{\"a\":  1.10}'", pa.json_(), '{"a":  1.10}'),
    ("json", r"""'"\ud800"'""", pa.json_(), r'"\ud800"'),
    ("jsonb", "'{\"a\":  1.10}'", pa.json_(), '{"a": 1.10}'),
    ("jsonb", "'9007199254740993'", pa.json_(), "9007199254740993"),
    ("uuid", "'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'", pa.uuid(), UUID("a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11")),
    ("inet", "'192.168.0.1'", STRING, "192.168.0.1"),
    ("inet", "'::1'", STRING, "::1"),
    ("cidr", "'192.168.0.0/24'", STRING, "192.168.0.0/24"),
    ("macaddr", "'08:00:2b:01:02:03'", STRING, "08:00:2b:01:02:03"),
    ("int[]", "'{}'", INTS, []),
    ("int[]", "NULL", INTS, None),
    ("int[]", "'{1,NULL,3}'", INTS, [1, None, 3]),
    ("text[]", """'{"a,b","NULL",NULL}'""", TEXTS, ["a,b", "NULL", None]),
    ("varchar[]", "'{a}'", TEXTS, ["a"]),
    ("bigint[]", "'{1550166368505037572}'", pa.list_(pa.field("item", pa.int64())), [1550166368505037572]),
    ("numeric(6,2)[]", "'{1.5,NULL}'", pa.list_(pa.field("item", pa.decimal128(6, 2))), [Decimal("1.50"), None]),
    ("numeric[]", "'{1.5,NULL}'", STRING, "{1.5,NULL}"),
    ("date[]", "'{1970-01-02}'", pa.list_(pa.field("item", pa.date32())), [1]),
    ("timestamptz[]", "'{1970-01-01 00:00:01+00}'", pa.list_(pa.field("item", INSTANT)), [MICRO]),
    ("uuid[]", "'{A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11}'", TEXTS, ["a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"]),
    ("mood[]", "'{glad,NULL}'", TEXTS, ["glad", None]),
    ("count_of[]", "'{1,2}'", INTS, [1, 2]),
    ("bool[]", "'{t,NULL}'", pa.list_(pa.field("item", pa.bool_())), [True, None]),
    ("float4[]", "'{1.5}'", pa.list_(pa.field("item", pa.float32())), [1.5]),
    ("inet[]", "'{10.0.0.1}'", STRING, "{10.0.0.1}"),
    ("mood", "'glad'", STRING, "glad"),
    ("count_of", "7", pa.int32(), 7),
    ("price_of", "7.5", pa.decimal128(10, 2), Decimal("7.50")),
    ("item", "ROW('fuzzy dice',42,1.99)", STRING, '("fuzzy dice",42,1.99)'),
    ("item", "ROW(NULL,42,NULL)", STRING, "(,42,)"),
    ("int4range", "'[5,5]'", STRING, "[5,6)"),
    ("int4multirange", "'{[1,2],[5,5]}'", STRING, "{[1,3),[5,6)}"),
    ("tsvector", "'a b'", STRING, "'a' 'b'"),
    ("xml", "'<a/>'", STRING, "<a/>"),
    ("pg_lsn", "'16/B374D848'", STRING, "16/B374D848"),
    ("regclass", "'pg_class'", STRING, "pg_class"),
    ("point", "'(1,2)'", STRING, "(1,2)"),
    ("xid", "'7'", STRING, "7"),
    ("oidvector", "'1 2'", STRING, "1 2"),
]  # fmt: skip
TYPES = (
    "CREATE TYPE mood AS ENUM ('sad', 'glad')",
    "CREATE DOMAIN count_of AS int CHECK (VALUE > 0)",
    "CREATE DOMAIN price_of AS numeric(10,2)",
    "CREATE TYPE item AS (name text, supplier int, price numeric)",
)


@pytest.fixture(params=["embedded", "real"])
def database(request: pytest.FixtureRequest) -> str:
    """An empty database on either server, with the types of the table."""
    url: str = request.getfixturevalue("fresh_database" if request.param == "embedded" else "fresh_real_database")
    run(url, *TYPES)
    return url


def cases_of(url: str) -> list[tuple[str, str, pa.DataType, Any]]:
    """Leave out what this server was built without."""
    try:
        run(url, "SELECT '<a/>'::xml")
    except Exception:
        return [case for case in CASES if case[0] != "xml"]
    return CASES


@pytest.mark.parametrize("reader", READERS)
def test_every_literal_of_the_contract_arrives_as_its_cell(database: str, reader: str) -> None:
    """Each literal has the contract's Arrow type and value, whichever reader brought it."""
    cases = cases_of(database)
    columns = ", ".join(f"c{i} {ddl}" for i, (ddl, *_) in enumerate(cases))
    values = ", ".join(literal for _, literal, *_ in cases)
    run(database, f"CREATE TABLE every (id int PRIMARY KEY, {columns})", f"INSERT INTO every VALUES (1, {values})")

    with session(database) as planning:
        relation = planning.describe(table="every", query=None, params={}, rules=rules(typing="native"))
        table = whole(relation, pages(database, relation, chunk_for(reader, relation), snapshot=planning.snapshot))

    seen = [
        (ddl, text, table.column(f"c{i}").type, plain(table.column(f"c{i}")[0]))
        for i, (ddl, text, *_) in enumerate(cases)
    ]
    assert cases == seen


def test_float_nan_is_kept(fresh_database: str) -> None:
    """NaN of a float is a value like any other."""
    run(fresh_database, "CREATE TABLE t (f float8, g float4)", "INSERT INTO t VALUES ('NaN', 'NaN')")

    with session(fresh_database) as planning:
        relation = planning.describe(table="t", query=None, params={}, rules=rules())
        row = next(
            pages(fresh_database, relation, chunk_for("blocks", relation), snapshot=planning.snapshot)
        ).table.to_pylist()[0]

    assert ["nan", "nan"] == [str(row["f"]), str(row["g"])]


# DDL type, literal, expected text in portable files.
PORTABLE = [
    ("uuid", "'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
    ("time", "'12:34:56.5'", "12:34:56.500000"),
    (
        "numeric(60,4)",
        "10000000000000000000000000000000000000000.0001",
        "10000000000000000000000000000000000000000.0001",
    ),
]


@pytest.mark.parametrize(("ddl", "literal", "expected"), PORTABLE)
def test_portable_files_hold_text_where_readers_would_refuse(
    fresh_database: str, ddl: str, literal: str, expected: str
) -> None:
    """uuid, time and decimals over 38 digits are text by default, and keep their native type in the metadata."""
    run(fresh_database, f"CREATE TABLE t (v {ddl})", f"INSERT INTO t VALUES ({literal})")

    with session(fresh_database) as planning:
        relation = planning.describe(table="t", query=None, params={}, rules=rules())
        page = next(pages(fresh_database, relation, chunk_for("blocks", relation), snapshot=planning.snapshot))

    assert (pa.string(), [{"v": expected}]) == (page.table.schema.field("v").type, page.table.to_pylist())


SHAPE = "arrays that are multi-dimensional or do not start at 1, which list"
BEYOND = "times after 294247-01-10, which timestamp"
# DDL type, literal, kind, what the message says is held and cannot be stored, text under `text`.
SPECIAL = [
    ("numeric(12,2)", "'NaN'", "nan", "NaN, which decimal", "NaN"),
    ("numeric(60,4)", "'NaN'", "nan", "NaN, which decimal", "NaN"),
    ("date", "'infinity'", "infinity", "Infinity, which date", "infinity"),
    ("date", "'-infinity'", "minus_infinity", "-Infinity, which date", "-infinity"),
    ("timestamp", "'infinity'", "infinity", "Infinity, which timestamp", "infinity"),
    ("timestamp", "'294276-01-01'", "beyond_range", BEYOND, "294276-01-01 00:00:00"),
    ("timestamptz", "'-infinity'", "minus_infinity", "-Infinity, which timestamp", "-infinity"),
    ("time", "'24:00:00'", "time_24", "24:00:00, which time", "24:00:00"),
    ("int[]", "'{{1,2},{3,4}}'", "array_shape", SHAPE, "{{1,2},{3,4}}"),
    ("int[]", "'[0:1]={7,8}'", "array_shape", SHAPE, "[0:1]={7,8}"),
    ("date[]", "'{infinity}'", "infinity", "Infinity, which list", "{infinity}"),
    ("numeric(6,2)[]", "'{NaN}'", "nan", "NaN, which list", "{NaN}"),
]  # fmt: skip
NATIVE = {
    "timestamp": "timestamp without time zone",
    "timestamptz": "timestamp with time zone",
    "time": "time without time zone",
    "int[]": "integer[]",
}


def read_special(url: str, ddl: str, literal: str, reader: str, typing: str, policy: str) -> tuple[pa.Table, Any]:
    """Read a table of one ordinary and one special row."""
    run(url, f"CREATE TABLE t (id int PRIMARY KEY, v {ddl})", f"INSERT INTO t VALUES (1, NULL), (2, {literal})")
    with session(url) as planning:
        made = rules(on_special_value=policy, typing=typing)
        relation = planning.describe(table="t", query=None, params={}, rules=made)
        page = next(pages(url, relation, chunk_for(reader, relation), snapshot=planning.snapshot))
    return page.table, page.special


@pytest.mark.parametrize("typing", ["native", "portable"])
@pytest.mark.parametrize(("ddl", "literal", "kind", "words", "text"), SPECIAL)
def test_value_without_a_place_stops_the_window(
    fresh_database: str, ddl: str, literal: str, kind: str, words: str, text: str, typing: str
) -> None:
    """The message names table, column, kind and the YAML that decides; never the value's row."""
    native = NATIVE.get(ddl, ddl)

    with pytest.raises(ValueDoesNotFit) as failure:
        read_special(fresh_database, ddl, literal, "blocks", typing, "fail")

    expected = (
        f"`public.t.v` is {native} and holds {words} cannot store. Choose: "
        '`columns: {v: {on_special_value: "null"}}` (counted), `"text"` (column becomes text), or clean the source. '
        "1 row in chunk 0."
    )
    assert expected == str(failure.value)


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(("ddl", "literal", "kind", "words", "text"), SPECIAL)
def test_policy_null_replaces_and_counts(
    fresh_database: str, ddl: str, literal: str, kind: str, words: str, text: str, reader: str
) -> None:
    """`null` leaves NULL where the value was and counts it by column and kind."""
    table, special = read_special(fresh_database, ddl, literal, reader, "native", "null")

    expected = [None, [None]] if literal in ("'{infinity}'", "'{NaN}'") else [None, None]
    assert (expected, {"v": {kind: 1}}) == (table.column("v").to_pylist(), special)


@pytest.mark.parametrize("reader", READERS)
def test_digits_beside_a_special_value_are_kept(fresh_database: str, reader: str) -> None:
    """An amount of more digits than a double has, in one page with a NaN."""
    amount = "12345678901234567890.12"
    both = f"'NaN'), (3, {amount}"
    table, special = read_special(fresh_database, "numeric(30,2)", both, reader, "native", "null")

    assert ({"v": {"nan": 1}}, Decimal(amount)) == (special, table.column("v").to_pylist()[-1])


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(("ddl", "literal", "kind", "words", "text"), SPECIAL)
def test_policy_text_makes_the_whole_column_text(
    fresh_database: str, ddl: str, literal: str, kind: str, words: str, text: str, reader: str
) -> None:
    """`text` gives the engine's own spelling from the first row on, and counts nothing."""
    table, special = read_special(fresh_database, ddl, literal, reader, "native", "text")

    assert (pa.string(), [None, text], {}) == (table.column("v").type, table.column("v").to_pylist(), special)


# DDL type, override, literal, native Arrow type, expected cell.
OVERRIDES: list[tuple[str, Any, str, pa.DataType, Any]] = [
    ("int4", "bool", "1", pa.bool_(), True),
    ("bit(1)", "bool", "B'1'", pa.bool_(), True),
    ("int8", "int2", "7", pa.int16(), 7),
    ("bit(14)", "int4", "B'11010101101111'", pa.int32(), 13679),
    ("numeric(5,0)", "int4", "42", pa.int32(), 42),
    ("numeric", "int8", "42", pa.int64(), 42),
    ("time", "int8", "'24:00:00'", pa.int64(), 86_400_000_000),
    ("int4", "float8", "3", pa.float64(), 3.0),
    ("numeric", "float8", "1.5", pa.float64(), 1.5),
    ("numeric", "decimal(18,4)", "1.5", pa.decimal128(18, 4), Decimal("1.5000")),
    ("int8", "decimal(20,0)", "-5", pa.decimal128(20, 0), Decimal("-5")),
    ("text", "decimal(6,2)", "'12.5'", pa.decimal128(6, 2), Decimal("12.50")),
    ("timestamp", "date", "'2020-01-02 00:00:00'", pa.date32(), day(2020, 1, 2)),
    ("text", "date", "'2020-01-02'", pa.date32(), day(2020, 1, 2)),
    ("date", "timestamp", "'2020-01-02'", NAIVE, day(2020, 1, 2) * DAY * MICRO),
    ("timestamp", "timestamp_ns", "'2016-11-04T13:51:30.123456'", pa.timestamp("ns"), STAMP * 1000),
    ("timestamp", ColumnRule(type="timestamp_tz", timezone="Europe/Berlin"), "'2016-11-04T13:51:30.123456'", INSTANT,
     STAMP - 3600 * MICRO),
    ("text", "timestamp_tz", "'2016-11-04T13:51:30.123456+02:00'", INSTANT, STAMP - 7200 * MICRO),
    ("bool", "text", "true", STRING, "t"),
    ("bytea", "text", r"'\xDE'", STRING, r"\xde"),
    ("text", "binary", "'é'", pa.binary(), "é".encode()),
    ("text", "json", "'{\"a\": 1.10}'", pa.json_(), '{"a": 1.10}'),
    ("text", "uuid", "'A0EEBC999C0B4EF8BB6D6BB9BD380A11'", pa.uuid(), UUID("a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11")),
    ("bytea", "uuid", r"'\xA0EEBC999C0B4EF8BB6D6BB9BD380A11'", pa.uuid(), UUID("a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11")),
]  # fmt: skip


@pytest.mark.parametrize(("ddl", "word", "literal", "arrow", "expected"), OVERRIDES)
def test_override_decides_the_type(
    fresh_database: str, ddl: str, word: Any, literal: str, arrow: pa.DataType, expected: Any
) -> None:
    """`columns:` gives the type it names, exactly."""
    run(
        fresh_database,
        f"CREATE TABLE t (id int PRIMARY KEY, v {ddl})",
        f"INSERT INTO t VALUES (1, {literal}), (2, NULL)",
    )

    with session(fresh_database) as planning:
        made = rules(columns={"v": word}, typing="native")
        relation = planning.describe(table="t", query=None, params={}, rules=made)
        table = whole(
            relation, pages(fresh_database, relation, chunk_for("blocks", relation), snapshot=planning.snapshot)
        )

    assert (arrow, [expected, None]) == (table.column("v").type, [plain(cell) for cell in table.column("v")])


# DDL type, override, literal, kind.
MISFITS = [
    ("int4", "bool", "2", "not_bool"),
    ("int8", "int2", "40000", "out_of_range"),
    ("numeric", "int4", "1.5", "out_of_range"),
    ("numeric", "decimal(6,2)", "1.555", "digits"),
    ("numeric", "decimal(6,2)", "'NaN'", "nan"),
    ("text", "decimal(6,2)", "'x'", "digits"),
    ("timestamp", "date", "'2020-01-02 00:00:01'", "not_midnight"),
    ("text", "date", "'yesterday'", "unparsable"),
    ("timestamp", "timestamp_ns", "'3000-01-01'", "out_of_range"),
    ("text", "timestamp_tz", "'2016-11-04T13:51:30'", "unparsable"),
    ("text", "json", "'{'", "unparsable"),
    ("text", "uuid", "'x'", "unparsable"),
]


@pytest.mark.parametrize(("ddl", "word", "literal", "kind"), MISFITS)
def test_override_that_a_cell_refuses_fails_or_counts(
    fresh_database: str, ddl: str, word: str, literal: str, kind: str
) -> None:
    """A cell the override cannot hold fails by default and is counted under `null`."""
    run(
        fresh_database,
        f"CREATE TABLE t (id int PRIMARY KEY, v {ddl})",
        f"INSERT INTO t VALUES (1, {literal}), (2, NULL)",
    )

    def read(policy: str) -> Any:
        with session(fresh_database) as planning:
            made = rules(columns={"v": word}, on_special_value=policy)
            relation = planning.describe(table="t", query=None, params={}, rules=made)
            return next(
                pages(fresh_database, relation, chunk_for("blocks", relation), snapshot=planning.snapshot)
            ).special

    with pytest.raises(ValueDoesNotFit, match=word.split("(")[0]):
        read("fail")
    assert {"v": {kind: 1}} == read("null")


def test_strict_export_refuses_text_forms(fresh_database: str) -> None:
    """`on_unsupported: fail` refuses a type that only has a text form, and names the way out."""
    run(fresh_database, "CREATE TABLE t (v inet)")

    with session(fresh_database) as planning, pytest.raises(UnsupportedColumn, match=r"columns: \{v: text\}"):
        planning.describe(table="t", query=None, params={}, rules=rules(on_unsupported="fail"))


def test_pseudo_type_is_refused(fresh_database: str) -> None:
    """A record has no form that can be stored."""
    with session(fresh_database) as planning, pytest.raises(UnsupportedColumn, match="cast it in a query"):
        planning.describe(table=None, query="SELECT ROW(1, 2) AS r", params={}, rules=rules())


def test_names_that_differ_in_case_fail_early(fresh_database: str) -> None:
    """`A` and `a` in one table cannot be told apart by Spark."""
    run(fresh_database, 'CREATE TABLE t ("A" int, a int)')

    with session(fresh_database) as planning, pytest.raises(SourceError, match="differ only in case"):
        planning.describe(table="t", query=None, params={}, rules=rules())


def test_odd_names_are_read(fresh_database: str) -> None:
    """Quotes, dots, keywords and umlauts in names change nothing."""
    table = '"Quoted_"" . Schema"."Quoted_"" . Table"'
    run(
        fresh_database,
        'CREATE SCHEMA "Quoted_"" . Schema"',
        f'CREATE TABLE {table} ("select" int, "a.b" int, "Üm" numeric, "per%s" text)',
        f"INSERT INTO {table} VALUES (1, 2, 3, 'x')",
    )

    with session(fresh_database) as planning:
        relation = planning.describe(table=table, query=None, params={}, rules=rules())
        got = whole(
            relation, pages(fresh_database, relation, chunk_for("blocks", relation), snapshot=planning.snapshot)
        )

    assert [{"select": 1, "a.b": 2, "Üm": "3", "per%s": "x"}] == got.to_pylist()


def test_special_key_fails_whatever_the_policy(fresh_database: str) -> None:
    """An infinite key would be lost as NULL, so it fails even under `null`."""
    run(fresh_database, "CREATE TABLE t (id timestamptz PRIMARY KEY)", "INSERT INTO t VALUES ('infinity')")

    with session(fresh_database) as planning:
        relation = planning.describe(table="t", query=None, params={}, rules=rules(on_special_value="null"))
        with pytest.raises(ValueDoesNotFit, match="Infinity"):
            list(pages(fresh_database, relation, chunk_for("keyset", relation), snapshot=planning.snapshot))


@pytest.mark.parametrize("zone", ["America/New_York", "Asia/Kolkata"])
def test_server_settings_change_no_cell(fresh_database: str, zone: str) -> None:
    """Zone, date style and interval style of the database are overruled by the session."""
    name = fresh_database.split("/")[3].split("?")[0]
    run(
        fresh_database,
        *(
            f"ALTER DATABASE {name} SET {s}"
            for s in (f"TimeZone='{zone}'", "DateStyle='German'", "IntervalStyle='postgres'")
        ),
        "CREATE TABLE t (id int PRIMARY KEY, a timestamptz, b timetz, c interval, d timestamptz[])",
        "INSERT INTO t VALUES (1, '2020-01-01 00:00:00+00', '10:00+02', '1 day', '{2020-01-01 00:00:00+00}')",
    )

    with session(fresh_database) as planning:
        relation = planning.describe(table="t", query=None, params={}, rules=rules(on_special_value="text"))
        rows = whole(
            relation, pages(fresh_database, relation, chunk_for("cursor", relation), snapshot=planning.snapshot)
        ).to_pylist()

    expected = {
        "id": 1,
        "a": "2020-01-01 00:00:00+00",
        "b": "10:00:00+02",
        "c": "P1D",
        "d": '{"2020-01-01 00:00:00+00"}',
    }
    assert [expected] == rows
