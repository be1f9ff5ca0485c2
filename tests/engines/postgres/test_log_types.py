"""A cell of PostgreSQL's log equals the batch read's cell of the same row, for every row of the type contract."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from rivet_resources.contracts.source import ColumnRule
from rivet_resources.engines.postgres.log.log import PostgresLog
from rivet_resources.errors import ValueDoesNotFit
from tests.engines.postgres.changes import capture, log_of, run, window
from tests.engines.postgres.reads import chunk_for, pages, plain, rules, session, whole
from tests.engines.postgres.test_types import CASES, MISFITS, OVERRIDES, SPECIAL, TYPES
from tests.engines.typed import spell
from tests.servers import logical as servers_logical

pytestmark = pytest.mark.wide

XML = "xml"  # the wheel's server is built without it
MORE = (
    ("timestamptz", "'0001-01-01 00:00:00+00 BC'"), ("timestamptz", "'10000-01-01 00:00:00+00'"), ("time", "'00:00'"),
    ("date", "'12345-06-07'"), ("text[]", "'{}'"), ("text[]", """'{"","a\\"b","c\\\\d",NULL,"{x}"}'"""),
    ("date[]", "'{2020-01-01,NULL,0044-03-15 BC}'"), ("timestamp[]", "'{2020-01-01 01:02:03.4}'"),
    ("float8[]", "'{NaN,Infinity,-1.5e300}'"), ("float4", "'NaN'"), ("float8", "'1e-310'"),
    ("numeric(20,5)", "-0.00001"),
    ("money", "-0.07"), ("money[]", "'{$1.50,-2}'"), ("bytea", "NULL"), ("uuid", "NULL"), ("bytea[]", r"'{\\xDE}'"),
    ("timetz", "'24:00:00-03'"), ("bool[]", "'{}'"), ("jsonb", "'[1, {\"b\": null}]'"), ("varchar(3)[]", "'{\"a b\"}'"),
    ("daterange", "'[2020-01-01,)'"), ("interval[]", "'{1 day,-2 mons}'"), ("oid[]", "'{1,2}'"),
    ("item[]", "ARRAY[ROW('a',1,2)::item]"),
)  # fmt: skip


@pytest.fixture(params=["embedded", "real"])
def database(request: pytest.FixtureRequest) -> Iterator[str]:
    """An empty database on either server, with the types of the contract."""
    server = request.getfixturevalue("postgres_url" if request.param == "embedded" else "real_postgres_url")
    with servers_logical.logical_database(server) as url:
        run(url, *TYPES)
        yield url


@pytest.fixture
def fresh(postgres_url: str) -> Iterator[str]:
    """An empty database of the wheel's server, with the types of the contract."""
    with servers_logical.logical_database(postgres_url) as url:
        run(url, *TYPES)
        yield url


def both(
    url: str, cases: list[tuple[str, str]], *, slot: str, **settings: Any
) -> tuple[tuple[pa.Table, Any], tuple[pa.Table, Any]]:
    """Insert a row of literals beside a row of NULLs; read the two by batch and from the log."""
    columns = ", ".join(f"c{i} {ddl}" for i, (ddl, _) in enumerate(cases))
    run(url, f"CREATE TABLE every (id int PRIMARY KEY, {columns})")
    with log_of(url, capture("every", slot=slot, **settings)) as log:
        start = log.begin()
        values = ", ".join(literal for _, literal in cases)
        run(url, f"INSERT INTO every VALUES (1, {values})", "INSERT INTO every (id) VALUES (2)")
        return batch(url, **settings), logged(log, start)


def batch(url: str, **settings: Any) -> tuple[pa.Table, Any]:
    """Read the table as a batch does."""
    with session(url) as planning:
        relation = planning.describe(table="every", query=None, params={}, rules=rules(**settings))
        read = list(pages(url, relation, chunk_for("blocks", relation), snapshot=planning.snapshot))
    return whole(relation, iter(read)), {k: v for page in read for k, v in page.special.items()}


def logged(log: PostgresLog, start: Any) -> tuple[pa.Table, Any]:
    """Read it from the log, without the envelope."""
    drained = window(log, start)
    table = pa.concat_tables([changes.data for changes in drained.changes])
    return table.select([name for name in table.column_names if not name.startswith("__")]), drained.special()


def cells(table: pa.Table) -> dict[str, list[str | None]]:
    """Write cells so that equal ones are equal texts, NaN and far years too."""
    return {name: [spell(plain(cell)) for cell in table.column(name)] for name in table.column_names}


def assert_equal(read: tuple[pa.Table, Any], found: tuple[pa.Table, Any]) -> None:
    """Insist on equal types, metadata, cells and counts."""
    as_nullable = pa.schema([field.with_nullable(True) for field in read[0].schema])
    assert as_nullable.equals(found[0].schema, check_metadata=True), (read[0].schema, found[0].schema)
    assert cells(read[0]) == cells(found[0])
    assert read[1] == found[1]


@pytest.mark.parametrize("typing", ["native", "portable"])
def test_every_cell_of_the_log_is_the_batch_reads(database: str, typing: str) -> None:
    """Each literal of the contract, and more of the odd ones, has the same type, metadata and value both ways."""
    cases = [(ddl, text) for ddl, text, *_ in CASES if ddl != XML] + list(MORE)

    assert_equal(*both(database, cases, slot=f"rivet_every_{typing}", typing=typing))


@pytest.mark.parametrize("policy", ["null", "text"])
def test_special_values_follow_the_same_policy(database: str, policy: str) -> None:
    """What has no place is NULL and counted, or makes the column text, exactly as in a batch read."""
    cases = [(ddl, literal) for ddl, literal, *_ in SPECIAL]

    assert_equal(*both(database, cases, slot=f"rivet_special_{policy}", on_special_value=policy, typing="native"))


@pytest.mark.parametrize(("ddl", "literal", "kind", "words", "text"), SPECIAL)
def test_value_without_a_place_stops_the_window(
    fresh: str, ddl: str, literal: str, kind: str, words: str, text: str
) -> None:
    """Under `fail` the message is the batch read's, and says where in the log."""
    run(fresh, f"CREATE TABLE every (id int PRIMARY KEY, v {ddl})")
    with log_of(fresh, capture("every", slot="rivet_fail")) as log:
        start = log.begin()
        run(fresh, f"INSERT INTO every VALUES (1, {literal})")

        with pytest.raises(ValueDoesNotFit) as failure:
            window(log, start)

    assert f"and holds {words} cannot store" in str(failure.value)
    assert "1 row in the log behind " in str(failure.value)


@pytest.mark.parametrize("typing", ["native", "portable"])
@pytest.mark.parametrize("number", range(len(OVERRIDES)))
def test_overrides_give_the_same_cell(fresh: str, number: int, typing: str) -> None:
    """`columns:` makes of a logged value what it makes of a batch's."""
    ddl, word, literal, *_ = OVERRIDES[number]

    assert_equal(*both(fresh, [(ddl, literal)], slot="rivet_override", columns={"c0": word}, typing=typing))


@pytest.mark.parametrize(
    "naive", ["2024-03-31 02:30:00", "2024-10-27 02:30:00", "0044-03-15 00:00:00 BC", "12345-07-01 10:00:00"]
)
def test_naive_times_of_a_zone_are_the_servers_own(fresh: str, naive: str) -> None:
    """In gaps, in doubled hours and in far years, the instant is the one the server computes."""
    word = ColumnRule(type="timestamp_tz", timezone="Europe/Berlin")
    cases = [("timestamp", f"'{naive}'")]

    assert_equal(*both(fresh, cases, slot="rivet_zone", columns={"c0": word}, typing="native"))


@pytest.mark.parametrize(("ddl", "word", "literal", "kind"), MISFITS)
def test_misfits_of_an_override_are_counted_alike(fresh: str, ddl: str, word: str, literal: str, kind: str) -> None:
    """A cell that the override cannot hold is NULL and counted under its kind."""
    read, found = both(
        fresh, [(ddl, literal)], slot="rivet_misfit", columns={"c0": word}, on_special_value="null", typing="native"
    )

    assert {"c0": {kind: 1}} == found[1]
    assert_equal(read, found)


def test_settings_of_the_database_change_no_cell(fresh: str) -> None:
    """Zone, date style, interval style, byte and float forms of the database are overruled while the slot is read."""
    name = fresh.split("/")[3].split("?")[0]
    odd = ("TimeZone='Asia/Kolkata'", "DateStyle='German'", "IntervalStyle='postgres'", "bytea_output='escape'",
           "extra_float_digits=-5")  # fmt: skip
    run(fresh, *(f"ALTER DATABASE {name} SET {setting}" for setting in odd))
    cases = [
        ("timestamptz", "'2020-01-01 00:00:00+00'"), ("date", "'2020-01-02'"), ("interval", "'1 day'"),
        ("bytea", r"'\xDE00'"), ("float8", "0.1::float8 + 0.2"), ("timetz", "'10:00+02'"),
        ("tstzrange", "'[2020-01-01 00:00+00,)'"),
    ]  # fmt: skip

    assert_equal(*both(fresh, cases, slot="rivet_settings", typing="native"))


def test_database_of_another_encoding_reads_the_same(fresh: str, postgres_url: str) -> None:
    """Texts of a LATIN1 database arrive as UTF-8, as they do in a batch read."""
    name = f"latin_{fresh.rsplit('test_', 1)[1].split('?')[0]}"
    run(postgres_url, f"CREATE DATABASE {name} TEMPLATE template0 ENCODING 'LATIN1' LOCALE 'C'")
    url = fresh.replace(f"test_{name.removeprefix('latin_')}", name)
    try:
        assert_equal(*both(url, [("text", "U&'\\00e9\\00fc'"), ("text[]", "ARRAY[U&'\\00e9']")], slot="rivet_latin"))
    finally:
        servers_logical.drop_slots(postgres_url, f"postgresql:///{name}")
        run(postgres_url, f"DROP DATABASE {name} WITH (FORCE)")
