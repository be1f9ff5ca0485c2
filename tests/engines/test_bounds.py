"""Every type as a chunk key and as a cursor: each row once, or a refusal that names the column, on every engine.

Belongs here: that a bound sent back to the server means the very value it was read from, for all types that may be
one, and that the others are refused. Not here: how pages adapt (`test_*_pages.py`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.lab import Lab, lab_in
from tests.lab_engines import ENGINES

FUTURE = re.compile(r"'(9999|10000|200000|294246)-")


@dataclass(frozen=True)
class Key:
    """A type with values in its own order, as SQL."""

    sql: str
    values: tuple[str, ...]

    @property
    def past(self) -> tuple[str, ...]:
        """Leave out stamps of the future, which a cursor holds back until their time comes."""
        return tuple(value for value in self.values if not FUTURE.match(value))


def texts(*values: str) -> tuple[str, ...]:
    """Quote values that hold no quote."""
    return tuple(f"'{value}'" for value in values)


NUMBERED = texts(*(f"k{number:03}" for number in range(12)))
POSTGRES = {
    "char(8)": Key("char(8)", NUMBERED),
    "char(3)": Key("char(3)", texts("1", "10", "100", "2", "99")),
    "domain over char": Key("short_code", NUMBERED),
    "bit(16)": Key("bit(16)", tuple(f"{number}::bit(16)" for number in (0, 1, 2, 255, 256, 32768, 65535))),
    "bit varying": Key("varbit", ("B''", "B'0'", "B'00'", "B'01'", "B'1'", "B'101'", "B'11'")),
    "varchar(9)": Key("varchar(9)", texts("", "a", "a ", "b", "zz")),
    "date": Key("date", texts("4713-01-01 BC", "0010-02-01 BC", "0001-01-01", "2026-02-28", "10000-01-01",
                              "200000-12-31")),
    "timestamp": Key("timestamp", texts("4713-01-02 BC", "0044-03-15 12:00:00.5 BC", "0001-01-01",
                                        "2026-01-01 00:00:00.000001",
                                        "9999-12-31 23:59:59.999999", "294246-12-31 23:59:59.999999")),
    "timestamptz": Key("timestamptz", texts("4713-01-02+00 BC", "0044-03-15 12:00:00+00 BC", "0001-01-01+00",
                                            "2026-01-01 00:00:00.000001+02", "294246-12-31 23:59:59.999999+00")),
    "numeric": Key("numeric", texts("-99999999999999999999.5", "-1", "0", "0.000000000000000000001", "1")),
    "float4": Key("float4", texts("-3.4e38", "-0.1", "0", "1e-45", "0.1", "16777217", "3.4028235e38")),
    "float8": Key("float8", texts("-1.7976931348623157e308", "-0.1", "5e-324", "0.1", "0.30000000000000004")),
    "time": Key("time", texts("00:00:00", "00:00:00.000001", "23:59:59.999999")),
    "timetz": Key("timetz", texts("01:00:00+02", "00:00:00+00", "00:00:00-01")),
    "interval": Key("interval", texts("-1 year", "-1 day", "0", "1 us", "1 day 1 us", "1 mon", "178000000 years")),
    "money": Key("money", texts("-92233720368547758.08", "-0.01", "0", "0.01", "92233720368547758.07")),
    "bool": Key("bool", ("false", "true")),
    "uuid": Key("uuid", texts(*(f"{number:08x}-0000-4000-8000-000000000000" for number in (0, 1, 2**31, 2**32 - 1)))),
    "bytea": Key("bytea", texts("\\x", "\\x00", "\\x0000", "\\x27", "\\xff")),
    "inet": Key("inet", texts("0.0.0.0", "10.0.0.0/8", "10.0.0.1", "::1", "fe80::/10")),
    "cidr": Key("cidr", texts("10.0.0.0/8", "10.1.0.0/16", "fe80::/10")),
    "macaddr": Key("macaddr", texts("00:00:00:00:00:00", "08:00:2b:01:02:03", "ff:ff:ff:ff:ff:ff")),
    "macaddr8": Key("macaddr8", texts("00:00:00:00:00:00:00:00", "08:00:2b:01:02:03:04:05")),
    "enum": Key("mood", texts("sad", "ok", "happy")),
    "oid": Key("oid", ("0", "1", "4294967295")),
    "name": Key("name", NUMBERED),
    '"char"': Key('"char"', texts("a", "b", "z")),
    "pg_lsn": Key("pg_lsn", texts("0/0", "0/FF", "1/0", "FFFFFFFF/FFFFFFFF")),
    "int[]": Key("int[]", texts("{}", "{1}", "{1,2}", "{2}")),
    "int4range": Key("int4range", texts("empty", "[1,2)", "[1,3)", "[2,3)")),
    "jsonb": Key("jsonb", texts("null", "1", "2", "[]")),
    "composite": Key("pair", ("ROW(1,2)", "ROW(1,3)", "ROW(2,1)")),
}  # fmt: skip
POSTGRES_BEFORE = (
    "CREATE DOMAIN short_code AS char(6)",
    "CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy')",
    "CREATE TYPE pair AS (a int, b int)",
)
MYSQL = {
    "enum": Key("enum('z','a','m')", texts("z", "a", "m")),
    "set": Key("set('z','a','m')", texts("", "z", "a", "z,a", "m")),
    "char(8)": Key("char(8)", NUMBERED),
    "bit(20)": Key("bit(20)", ("0", "1", "932067")),
    "date": Key("date", texts("1000-01-01", "2026-02-28", "9999-12-31")),
    "datetime(6)": Key("datetime(6)", texts("1000-01-01", "2026-01-01 00:00:00.000001", "9999-12-31 23:59:59.999999")),
    "time(6)": Key("time(6)", texts("00:00:00", "00:00:00.000001", "12:00:00.5", "23:59:59.999999")),
    "year": Key("year", ("1901", "1999", "2155")),
    "decimal(65,30)": Key("decimal(65,30)", ("-99999999999999999999999999999999999", "-1e-30", "0", "1e-30")),
    "bigint unsigned": Key("bigint unsigned", ("0", "9223372036854775808", "18446744073709551615")),
    "float": Key("float", ("-0.1", "0", "0.1", "0.30000001192092896", "16777216")),
    "double": Key("double", ("-0.1", "0", "0.1", "0.30000000000000004", "1.7976931348623157e308")),
    "varbinary(9)": Key("varbinary(9)", ("x''", "x'00'", "x'0000'", "x'27'", "x'5C'", "x'FF'")),
    "varchar(9)": Key("varchar(9) collate utf8mb4_bin", texts("", "A", "a", "b")),
    "json": Key("json", texts("1", "2", "[]")),
}  # fmt: skip
SQLITE = {
    "integer": Key("integer", ("-9223372036854775808", "-1", "0", "9223372036854775807")),
    "real": Key("real", ("-0.1", "0.1", "0.30000000000000004", "1e300")),
    "text": Key("text", texts("", "a", "b", "zz")),
    "blob": Key("blob", ("x''", "x'00'", "x'27'", "x'FF'")),
    "date": Key("date", texts("0001-01-01", "2026-02-28", "9999-12-31")),
    "timestamp": Key("timestamp", texts("2026-01-01 00:00:00", "2026-01-01 00:00:00.000001", "2026-01-02 00:00:00")),
    "boolean": Key("boolean", ("0", "1")),
    "numeric(10,2)": Key("numeric(10,2)", ("-1.5", "0", "0.25", "99")),
}
SQLSERVER = {
    "char(8)": Key("char(8)", NUMBERED),
    "nvarchar(9)": Key("nvarchar(9)", texts("a", "b", "zz")),
    "int": Key("int", ("-2147483648", "0", "2147483647")),
    "decimal(20,4)": Key("decimal(20,4)", ("-1.5", "0", "0.0001")),
    "date": Key("date", texts("0001-01-01", "2026-02-28", "9999-12-31")),
    "datetime2(7)": Key("datetime2(7)", texts("2026-01-01", "2026-01-01 00:00:00.000001")),
    "uniqueidentifier": Key(
        "uniqueidentifier", texts(*(f"{n:08x}-0000-4000-8000-000000000000" for n in (0, 1, 2**31)))
    ),
}
TYPES = {"postgres": POSTGRES, "mariadb": MYSQL, "mysql": MYSQL, "sqlite": SQLITE, "sqlserver": SQLSERVER}
# As the contract has it: what has no order of its own, or whose text does not lead back to its place in it.
REFUSED = {
    "postgres": {'"char"', "int[]", "int4range", "jsonb", "composite"},
    "mariadb": {"enum", "set", "float"},  # its JSON is a text
    "mysql": {"enum", "set", "float", "json"},
}
REFUSED_AS_KEY = {"mariadb": {"double"}, "mysql": {"double"}}
CASES = [pytest.param(engine, name, id=f"{engine}-{name}") for engine, types in TYPES.items() for name in types]
FEW = "tuning: {batch_size: 2}"


@pytest.fixture
def lab(engine: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    """An empty database of the engine."""
    return lab_in(tmp_path, ENGINES[engine], request, monkeypatch)


def fill(lab: Lab, key: Key, *, times: int) -> list[int]:
    """Make table t with each value so many times, in its order; the ids."""
    if lab.engine.name == "postgres":
        lab.sql(*POSTGRES_BEFORE)
    rows = [value for value in key.values for _ in range(times)]
    values = ", ".join(f"({value}, {number})" for number, value in enumerate(rows))
    lab.sql(f"CREATE TABLE t (k {key.sql} NOT NULL, id int NOT NULL)", f"INSERT INTO t (k, id) VALUES {values}")
    if times == 1:
        lab.sql("CREATE UNIQUE INDEX t_k ON t (k)")
    lab.analyze("t")
    return list(range(len(rows)))


def ids_of(lab: Lab) -> list[int]:
    """Read the committed ids, ascending, repeats included; the keys themselves may be beyond Python's years."""
    return sorted(number for path in lab.parts("t") for number in pq.read_table(path, columns=["id"])["id"].to_pylist())


def must_refuse(lab: Lab, block: str) -> None:
    """The export is refused: the message names the column, and nothing is published nor remembered."""
    outcome = lab.export(block)

    assert not outcome.success
    assert "t.k" in outcome.message, outcome.message
    assert "cannot be" in outcome.message, outcome.message
    assert {} == lab.manifests("t")
    assert lab.state.cursor("t") is None


@pytest.mark.matrix
@pytest.mark.parametrize(("engine", "name"), CASES)
def test_rows_are_read_once_along_a_key_of_any_type(lab: Lab, engine: str, name: str) -> None:
    """Pages of two rows, and the pieces of four chunks, hold each row once; or the type is refused as a key."""
    if name in REFUSED.get(engine, set()) | REFUSED_AS_KEY.get(engine, set()):
        fill(lab, TYPES[engine][name], times=2)
        must_refuse(lab, f"{{name: t, table: t, mode: chunked, chunk_by_key: k, {FEW}}}")
        return
    if name == "json":
        pytest.skip("no unique index on a text without a length there")
    ids = fill(lab, TYPES[engine][name], times=1)

    for parallel in (1, 4):
        outcome = lab.export(f"{{name: t, table: t, mode: chunked, chunk_by_key: k, parallel: {parallel}, {FEW}}}")
        assert outcome.success, outcome.message
        assert ids == ids_of(lab)


@pytest.mark.matrix
@pytest.mark.parametrize(("engine", "name"), CASES)
def test_rows_are_read_once_by_a_cursor_of_any_type(lab: Lab, engine: str, name: str) -> None:
    """The first run takes all, the second none, a third what came above; or the type is refused as a cursor."""
    key = TYPES[engine][name]
    block = f"{{name: t, table: t, mode: incremental, cursor_column: k, {FEW}}}"
    if name in REFUSED.get(engine, ()):
        fill(lab, key, times=2)
        must_refuse(lab, block)
        return
    *below, above = key.past
    ids = fill(lab, Key(key.sql, tuple(below)), times=2)
    first, second = lab.export(block), lab.export(block)
    assert (True, True) == (first.success, second.success), (first.message, second.message)
    taken = ids_of(lab)
    lab.sql(f"INSERT INTO t (k, id) VALUES ({above}, 1000)")

    third = lab.export(block)

    assert third.success, third.message
    assert (ids, [*ids, 1000]) == (taken, ids_of(lab))


@pytest.mark.wide
@pytest.mark.parametrize("engine", TYPES)
def test_keys_are_walked_whatever_their_names_are(lab: Lab, engine: str) -> None:
    """Names of our own inside a statement are not those of anybody's columns."""
    names = ("b", "n", "q", "s", "v", "h", "tile")
    lab.sql(f"CREATE TABLE t ({', '.join(f'{name} int NOT NULL' for name in names)}, id int NOT NULL)")
    lab.sql(*(f"CREATE UNIQUE INDEX t_{name} ON t ({name})" for name in names))
    lab.sql(*(f"INSERT INTO t VALUES ({', '.join(str(number) for _ in (*names, 'id'))})" for number in range(7)))
    lab.analyze("t")

    for name in names:
        dense = f"{{name: t, table: t, mode: chunked, chunk_column: {name}, chunk_dense: true, chunk_size: 2}}"
        for block in (dense, f"{{name: t, table: t, mode: chunked, chunk_by_key: {name}, parallel: 3}}"):
            outcome = lab.export(block)
            assert outcome.success, (block, outcome.message)
            assert list(range(7)) == ids_of(lab), block


@pytest.mark.wide
@pytest.mark.parametrize("engine", TYPES)
@pytest.mark.parametrize("far", ["9999-12-31", "9999-12-30"])
def test_runs_of_days_end_with_the_last_day_there_is(lab: Lab, engine: str, far: str) -> None:
    """No engine but PostgreSQL can write the day after it, and Python cannot either."""
    block = "{name: t, table: t, mode: chunked, chunk_column: k, chunk_by_days: 1000000, columns: {k: date}}"
    fill(lab, Key("date", texts("2026-01-01", "2026-01-03", far)), times=2)

    outcome = lab.export(block)

    assert outcome.success, outcome.message
    assert list(range(6)) == ids_of(lab)


@pytest.mark.parametrize("engine", ["postgres"])
@pytest.mark.parametrize("kind", ["date", "timestamp", "timestamptz"])
def test_runs_of_days_are_of_any_year(lab: Lab, kind: str) -> None:
    """Before Christ and beyond 9999, where a date of Python ends."""
    fill(lab, Key(kind, texts("0044-03-15 BC", "0001-01-01", "2026-01-01", "9999-12-31", "12026-01-01")), times=2)

    outcome = lab.export("{name: t, table: t, mode: chunked, chunk_column: k, chunk_by_days: 100000}")

    assert outcome.success, outcome.message
    assert list(range(10)) == ids_of(lab)


@pytest.mark.parametrize("engine", ["sqlite", "postgres"])
def test_days_that_lie_too_far_apart_are_refused(lab: Lab, engine: str) -> None:
    """Each run of days is a statement: one stand-in would make millions of them."""
    fill(lab, Key("date", texts("2026-01-01", "9999-12-31")), times=1)

    few = lab.export("{name: t, table: t, mode: chunked, chunk_column: k, chunk_by_days: 30, columns: {k: date}}")
    many = lab.export("{name: t, table: t, mode: chunked, chunk_column: k, chunk_by_days: 1, columns: {k: date}}")

    assert "about 2 rows would make 97" in few.message
    assert "would cut k into 2912443 chunks" in many.message
    assert {} == lab.manifests("t")


@pytest.mark.parametrize("engine", ["postgres"])
@pytest.mark.parametrize("kind", ["char(8)", "bit(16)"])
def test_statistics_cut_keys_of_a_length_into_even_chunks(lab: Lab, kind: str) -> None:
    """Their bounds are whole: a bound of one letter, or bit, would leave chunks empty."""
    made = {"char(8)": "'k' || lpad(i::text, 4, '0')", "bit(16)": "i::bit(16)"}[kind]
    lab.sql(
        f"CREATE TABLE t (k {kind} PRIMARY KEY, id int)",
        f"INSERT INTO t SELECT {made}, i FROM generate_series(1, 400) i",
    )
    lab.analyze("t")

    outcome = lab.export("{name: t, table: t, mode: chunked, parallel: 4}")

    assert outcome.success, outcome.message
    (manifest,) = lab.manifests("t").values()
    assert [100] * 4 == pytest.approx([part.rows for part in manifest.parts], abs=10)
    assert list(range(1, 401)) == ids_of(lab)
