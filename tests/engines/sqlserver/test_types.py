"""Types of SQL Server, by the literals of `types.md`, section 8; on the emulator unless a real server is named."""

from __future__ import annotations

from datetime import UTC, date, datetime, time
from decimal import Decimal
from uuid import UUID

import pytest

from rivet_resources.contracts.source import ColumnRule
from rivet_resources.engines.sqlserver.types import SQLSERVER
from rivet_resources.errors import SourceError, ValueDoesNotFit
from tests.emulators.tds import server as tds
from tests.engines.sqlserver.reads import READERS, column, describe, read

pytestmark = [pytest.mark.wide, pytest.mark.usefixtures("driver")]

# Type, literal as it is inserted, the value that is read.
CASES = [
    ("bit", "1", True),
    ("tinyint", "255", 255),
    ("smallint", "-32768", -32768),
    ("int", "-2147483648", -2147483648),
    ("bigint", "9223372036854775807", 9223372036854775807),
    ("bigint", "CONVERT(bigint, -9223372036854775808)", -9223372036854775808),
    ("real", "3.3", 3.299999952316284),
    ("float", "1e300", 1e300),
    ("decimal(38,10)", "1234567890123456789012345678.0123456789", Decimal("1234567890123456789012345678.0123456789")),
    ("decimal(10,4)", "-999999.9999", Decimal("-999999.9999")),
    ("money", "922337203685477.5807", Decimal("922337203685477.5807")),
    ("money", "-922337203685477.5808", Decimal("-922337203685477.5808")),
    ("money", "9990000.3647", Decimal("9990000.3647")),
    ("smallmoney", "-214748.3647", Decimal("-214748.3647")),
    ("smallmoney", "6.323", Decimal("6.3230")),
    ("char(5)", "'abc'", "abc  "),
    ("varchar(20)", "'café'", "café"),
    ("varchar(20) COLLATE Latin1_General_100_CI_AS_SC_UTF8", "N'жук 漢字'", "жук 漢字"),
    ("varchar(20) COLLATE Cyrillic_General_CI_AS", "N'жук'", "жук"),
    ("nchar(4)", "N'ж'", "ж   "),
    ("nvarchar(20)", "N'ñ ✓ 🎉'", "ñ ✓ 🎉"),
    ("nvarchar(max)", "N''", ""),
    ("varchar(max)", "REPLICATE(CONVERT(varchar(max), 'x'), 200000)", "x" * 200_000),
    ("nvarchar(max)", "REPLICATE(CONVERT(nvarchar(max), N'ж'), 200000)", "ж" * 200_000),
    ("text", "'long'", "long"),
    ("binary(4)", "0xDEADBEEF", bytes.fromhex("DEADBEEF")),
    ("varbinary(8)", "0x00", b"\0"),
    ("varbinary(max)", "0x0102", b"\1\2"),
    ("uniqueidentifier", "'a0EEbc99-9C0B-4EF8-BB6D-6BB9BD380A11'", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
    ("date", "'0001-01-01'", date(1, 1, 1)),
    ("date", "'9999-12-31'", date(9999, 12, 31)),
    ("smalldatetime", "'2020-01-01T14:23:45'", datetime(2020, 1, 1, 14, 24)),
    ("datetime", "'2020-01-01T14:23:59.997'", datetime(2020, 1, 1, 14, 23, 59, 997000)),
    ("datetime", "'2020-01-01T14:23:59.003'", datetime(2020, 1, 1, 14, 23, 59, 3000)),
    ("datetime2(6)", "'2016-11-04T13:51:30.123456'", datetime(2016, 11, 4, 13, 51, 30, 123456)),
    ("datetime2(7)", "'9999-12-31T23:59:59.9999990'", datetime(9999, 12, 31, 23, 59, 59, 999999)),
    ("datetimeoffset(3)", "'2018-07-13T12:23:45.456+11:00'", datetime(2018, 7, 13, 1, 23, 45, 456000, tzinfo=UTC)),
    ("datetimeoffset(0)", "'9999-12-31T23:59:59+14:00'", datetime(9999, 12, 31, 9, 59, 59, tzinfo=UTC)),
    ("time(3)", "'10:23:45.678'", "10:23:45.678000"),
    ("time(7)", "'10:23:45.6789010'", "10:23:45.678901"),
    ("hierarchyid", "'/1/1/'", "/1/1/"),
    ("xml", "''", ""),
    ("sql_variant", "CONVERT(int, 5)", "5"),
    ("geometry", "'POINT (1 2)'", bytes.fromhex("0101000000000000000000F03F0000000000000040")),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "literal", "expected"), CASES)
def test_a_value_of_every_type_arrives_as_the_contract_says(fresh_sqlserver: str, kind, literal, expected):
    """A value of each type is the cell that `types.md` promises, and NULL stays NULL, by both readers."""
    tds.execute(
        fresh_sqlserver,
        f"CREATE TABLE t (id int NOT NULL PRIMARY KEY, v {kind} NULL)",
        f"INSERT INTO t (id, v) VALUES (1, {literal}), (2, NULL)",
    )

    found = [column(read(fresh_sqlserver, "t", reader=reader)) for reader in READERS]

    assert found == [[expected, None]] * len(READERS)


# A letter that the emulator sends as the first half of one (`emulators/tds/types.py`), as LEFT leaves it in nvarchar.
HALF = "\ue83d"


@pytest.mark.parametrize("kind", ["nvarchar(20)", "nchar(4)", "nvarchar(max)", "ntext", "sql_variant"])
def test_half_of_a_letter_is_refused_and_never_read_as_another_sign(
    fresh_sqlserver: str, kind: str, driver: str
) -> None:
    """One driver writes U+FFFD for it: `null` counts it, `text` takes it as it came. The other one fails by itself."""
    tds.execute(
        fresh_sqlserver,
        f"CREATE TABLE t (id int NOT NULL PRIMARY KEY, v {kind} NULL)",
        f"INSERT INTO t (id, v) VALUES (1, N'a{HALF}'), (2, N'🎉'), (3, NULL)",
    )
    if driver != "mssql-python":
        with pytest.raises(SourceError, match="half of a UTF-16 pair"):
            read(fresh_sqlserver, "t")
        return

    with pytest.raises(ValueDoesNotFit, match=r"halves of letters, or signs U\+FFFD that look like them") as told:
        read(fresh_sqlserver, "t")
    counted = read(fresh_sqlserver, "t", columns={"v": ColumnRule(on_special_value="null")})
    taken = read(fresh_sqlserver, "t", columns={"v": ColumnRule(on_special_value="text")})

    assert '`"text"` (U+FFFD as it came)' in str(told.value)
    assert [None, "🎉", None] == [cell and cell.strip() for cell in column(counted)]
    assert ["a\ufffd", "🎉", None] == [cell and cell.strip() for cell in column(taken)]


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("varchar(20)", "a\x81b"),
        ("varchar(20) COLLATE Cyrillic_General_CI_AS", "\x98ж"),
        ("char(4) COLLATE Cyrillic_General_CI_AS", "\x98ж  "),
        ("varchar(8000)", "a\x81b"),
        ("varchar(max)", "a\x81b"),
        ("text", "a\x81b"),
    ],
)
def test_byte_that_the_code_page_leaves_open_arrives_as_the_server_reads_it(fresh_sqlserver: str, kind, value):
    """To the server 0x81 of Windows-1252 is U+0081, as CONVERT(nvarchar(…), …) says."""
    tds.execute(
        fresh_sqlserver,
        f"CREATE TABLE t (id int NOT NULL PRIMARY KEY, v {kind})",
        f"INSERT INTO t (id, v) VALUES (1, N'{value}')",
    )

    assert [value] == column(read(fresh_sqlserver, "t"))


def test_native_typing_keeps_uuids_and_times_as_such(fresh_sqlserver: str):
    """With `types: native` a uniqueidentifier is a UUID and a time is a time."""
    tds.execute(
        fresh_sqlserver,
        "CREATE TABLE t (id int NOT NULL PRIMARY KEY, u uniqueidentifier, w time(6))",
        "INSERT INTO t (id, u, w) VALUES (1, 'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11', '10:23:45.678901')",
    )

    table = read(fresh_sqlserver, "t", typing="native")

    assert column(table, "u") == [UUID("a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11")]
    assert column(table, "w") == [time(10, 23, 45, 678901)]


TICKS = [
    ("time(7)", "10:23:45.6789012", "10:23:45.6789012"),
    ("datetime2(7)", "9999-12-31T23:59:59.9999999", "9999-12-31 23:59:59.9999999"),
    ("datetimeoffset(7)", "2018-07-13T12:23:45.4560001+11:00", "2018-07-13 12:23:45.4560001 +11:00"),
]


@pytest.mark.parametrize(("kind", "literal", "text"), TICKS)
def test_a_seventh_digit_is_never_cut_in_silence(fresh_sqlserver: str, kind, literal, text):
    """A seventh digit fails by default, becomes NULL and is counted, or makes the column text with all digits."""
    tds.execute(
        fresh_sqlserver,
        f"CREATE TABLE t (id int NOT NULL PRIMARY KEY, v {kind})",
        f"INSERT INTO t (id, v) VALUES (1, '{literal}')",
    )

    with pytest.raises(ValueDoesNotFit, match="seventh digit"):
        read(fresh_sqlserver, "t")
    nulled = read(fresh_sqlserver, "t", columns={"v": ColumnRule(on_special_value="null")})
    textual = read(fresh_sqlserver, "t", columns={"v": ColumnRule(on_special_value="text")})

    assert (column(nulled), column(textual)) == ([None], [text])


def test_nanoseconds_by_override_keep_the_seventh_digit(fresh_sqlserver: str):
    """`timestamp_ns` holds all seven digits of a datetime2(7)."""
    tds.execute(
        fresh_sqlserver,
        "CREATE TABLE t (id int NOT NULL PRIMARY KEY, v datetime2(7))",
        "INSERT INTO t (id, v) VALUES (1, '2020-01-01T00:00:00.1234567')",
    )

    table = read(fresh_sqlserver, "t", typing="native", columns={"v": "timestamp_ns"})

    assert table.column("v")[0].value % 1_000_000_000 == 123_456_700


OVERRIDES = [
    ("int", "1", "bool", True),
    ("int", "5", "decimal(20,2)", Decimal("5.00")),
    ("decimal(10,0)", "7", "int8", 7),
    ("nvarchar(20)", "N'2020-01-02'", "date", date(2020, 1, 2)),
    ("datetime2(0)", "'2020-01-02T00:00:00'", "date", date(2020, 1, 2)),
    ("uniqueidentifier", "'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'", "text", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
    ("bigint", "12", "text", "12"),
    ("varbinary(4)", "0xAB", "text", "0xAB"),
    ("datetimeoffset(0)", "'2018-07-13T12:23:45+11:00'", "text", "2018-07-13 12:23:45 +11:00"),
]


@pytest.mark.parametrize(("kind", "literal", "word", "expected"), OVERRIDES)
def test_an_override_types_the_column(fresh_sqlserver: str, kind, literal, word, expected):
    """`columns:` decides over the catalog's type."""
    tds.execute(
        fresh_sqlserver,
        f"CREATE TABLE t (id int NOT NULL PRIMARY KEY, v {kind})",
        f"INSERT INTO t (id, v) VALUES (1, {literal})",
    )

    assert column(read(fresh_sqlserver, "t", columns={"v": word})) == [expected]


def test_naive_times_become_instants_of_a_named_zone(fresh_sqlserver: str):
    """`timestamp_tz` with an IANA zone is translated to the name SQL Server knows."""
    tds.execute(
        fresh_sqlserver,
        "CREATE TABLE t (id int NOT NULL PRIMARY KEY, v datetime2(0))",
        "INSERT INTO t (id, v) VALUES (1, '2020-07-01T12:00:00'), (2, '2020-01-01T12:00:00')",
    )
    rule = ColumnRule(type="timestamp_tz", timezone="Europe/Berlin")

    found = column(read(fresh_sqlserver, "t", columns={"v": rule}))

    assert found == [datetime(2020, 7, 1, 10, tzinfo=UTC), datetime(2020, 1, 1, 11, tzinfo=UTC)]


def test_a_variant_of_two_types_is_refused(fresh_sqlserver: str):
    """A sql_variant column that holds two base types fails rather than mixing them."""
    tds.execute(
        fresh_sqlserver,
        "CREATE TABLE t (id int NOT NULL PRIMARY KEY, v sql_variant)",
        "INSERT INTO t (id, v) VALUES (1, CONVERT(int, 5)), (2, CONVERT(nvarchar(10), N'x'))",
    )

    with pytest.raises(ValueDoesNotFit, match="several types"):
        read(fresh_sqlserver, "t")


def test_every_fact_has_a_form_in_which_it_is_described(fresh_sqlserver: str):
    """Every type of the table of facts can be a column, but the newest ones that the server may not know."""
    lacking = {"ntext"} if tds.is_emulated() else set[str]()  # the parser of the emulator takes it for text
    names = sorted(set(SQLSERVER) - {"json", "vector"} - lacking)
    ddl = ", ".join(f"[{name}] {'rowversion' if name == 'timestamp' else name}" for name in names)
    tds.execute(fresh_sqlserver, f"CREATE TABLE t (id int NOT NULL PRIMARY KEY, {ddl})")

    described = {c.name: c.fact("base") for c in describe(fresh_sqlserver, "t").columns if c.name != "id"}

    assert described == {name: name for name in names}
