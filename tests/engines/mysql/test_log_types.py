"""Every type of types.md, section 7, out of the binary log: the very cell that a batch read of the row gives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pytest

from rivet_resources.contracts.source import TypeRules
from rivet_resources.engines.mysql.source import MySql
from rivet_resources.errors import ValueDoesNotFit
from tests.engines.mysql.changes import EAGER, log, rules, run, window
from tests.engines.type_cases import TypeCases
from tests.engines.typed import CASES, columns_of, numbers

pytestmark = pytest.mark.matrix


@pytest.fixture(params=["mariadb", "mysql"])
def server(request: pytest.FixtureRequest) -> tuple[str, TypeCases]:
    """An empty database, and the cases of its product."""
    return request.getfixturevalue(f"fresh_{request.param}"), CASES[request.param]


def fill(url: str, table: str, columns: Mapping[str, Any]) -> None:
    """Make a table of an id and a column per case, with the literals in row 1 and NULLs, where allowed, in row 2."""
    ddl = ", ".join(f"{name} {case.ddl}" for name, case in columns.items())
    values = ", ".join(case.literal for case in columns.values())
    run(
        url,
        "SET sql_mode = ''",
        f"CREATE TABLE {table} (id bigint PRIMARY KEY, {ddl})",
        f"INSERT INTO {table} VALUES (1, {values})",
        f"INSERT INTO {table} (id) VALUES (2)",
    )


def batch(url: str, table: str, typed: TypeRules) -> tuple[pa.Table, dict[str, dict[str, int]]]:
    """Read the table as an export does, and what policies replaced."""
    source = MySql(url=url)  # type: ignore[arg-type]
    special: dict[str, dict[str, int]] = {}
    with source.session(application="rivet:test", pace=EAGER) as session:
        relation = session.describe(table=table, query=None, params={}, rules=typed)
        pages = []
        for chunk in session.chunks(relation):
            read = source.pages(chunk, relation.columns, snapshot=None, application="rivet:test", pace=EAGER,
                                wait=lambda rows: None)  # fmt: skip
            for page in read:
                pages.append(page.table)
                for column, kinds in page.special.items():
                    for kind, count in kinds.items():
                        mine = special.setdefault(column, {})
                        mine[kind] = mine.get(kind, 0) + count
    return pa.concat_tables(pages).sort_by("id"), special


def logged(url: str, table: str, columns: Mapping[str, Any], typed: TypeRules) -> tuple[pa.Table, dict[str, Any]]:
    """Fill the table, and read its inserts from the log."""
    with log(url, table, typed=typed) as opened:
        start = opened.begin()
        fill(url, table, columns)
        found = window(opened, start)
    special: dict[str, Any] = {}
    for each in found.changes:
        special |= each.special
    return pa.concat_tables(found.tables(table)), special


def differences(expected: pa.Table, seen: pa.Table, columns: Mapping[str, Any]) -> list[Any]:
    """List the cells, and the types, that differ."""
    found = []
    for name in expected.column_names:
        one, other = expected.column(name), seen.column(name)
        cells = (numbers(one).to_pylist(), numbers(other).to_pylist())
        if one.type != other.type or cells[0] != cells[1]:
            found.append((name, columns.get(name), one.type, other.type, *(str(each)[:200] for each in cells)))
    return found


@pytest.mark.parametrize("typing", ["native", "portable"])
def test_every_cell_of_the_log_is_the_batch_reads(server: tuple[str, TypeCases], typing: Any) -> None:
    """Each literal of the contract, and NULL, has one type and one cell, whichever way it was read."""
    url, cases = server
    columns, typed = columns_of(cases.cells), rules(typing=typing)

    seen, special = logged(url, "cells", columns, typed)

    expected, _ = batch(url, "cells", typed)
    assert [] == differences(expected, seen, columns)
    assert {} == special


@pytest.mark.parametrize("typing", ["native", "portable"])
def test_every_override_gives_the_batch_reads_cell(server: tuple[str, TypeCases], typing: Any) -> None:
    """`columns:` means the same for a log and for a table."""
    url, cases = server
    columns = columns_of(cases.overrides)
    typed = rules({name: case.rule for name, case in columns.items()}, typing=typing)

    seen, _ = logged(url, "cells", columns, typed)

    expected, _ = batch(url, "cells", typed)
    assert [] == differences(expected, seen, columns)


def test_every_type_has_the_batch_reads_text(server: tuple[str, TypeCases]) -> None:
    """`text` spells each value of the contract as the server does."""
    url, cases = server
    columns = columns_of(cases.cells)
    typed = rules(dict.fromkeys(columns, "text"))

    seen, _ = logged(url, "cells", columns, typed)

    expected, _ = batch(url, "cells", typed)
    assert [] == differences(expected, seen, columns)


@pytest.mark.parametrize("policy", ["null", "text"])
def test_value_without_a_place_follows_the_batch_reads_policy(server: tuple[str, TypeCases], policy: Any) -> None:
    """Zero dates, long times and odd truths become NULL and are counted, or text, as in a batch."""
    url, cases = server
    columns = columns_of([case for case in cases.specials if policy == "null" or case.text is not None])
    typed = rules(on_special_value=policy)

    seen, counted = logged(url, "specials", columns, typed)

    expected, special = batch(url, "specials", typed)
    assert [] == differences(expected, seen, columns)
    assert special == counted


def test_value_without_a_place_stops_the_window(server: tuple[str, TypeCases]) -> None:
    """The message names table, column and the YAML that decides, and shows no value."""
    url, cases = server
    missed = []
    for index, case in enumerate(cases.specials):
        with pytest.raises(ValueDoesNotFit) as failure:
            logged(url, f"t{index}", {"v": case}, rules())
        told = str(failure.value)
        expected = (f"t{index}.v` is ", '`columns: {v: {on_special_value: "null"}}`', "of the binary log.")
        missed += [(case, told) for word in expected if word not in told]

    assert [] == missed


def test_override_that_a_cell_refuses_fails_or_counts(server: tuple[str, TypeCases]) -> None:
    """A cell the override cannot hold fails by default, and is counted under `null`."""
    url, cases = server
    seen = []
    for index, case in enumerate(cases.misfits):
        with pytest.raises(ValueDoesNotFit, match=case.rule.split("(")[0]):
            logged(url, f"t{index}", {"v": case}, rules({"v": case.rule}))
        typed = rules({"v": case.rule}, on_special_value="null")
        table, special = logged(url, f"n{index}", {"v": case}, typed)
        seen.append((case, table.column("v").to_pylist(), special))

    assert [(case, [None, None], {"v": {case.kind: 1}}) for case in cases.misfits] == seen


JSON_VALUES = (
    '{}', '[]', '""', 'true', 'false', 'null', '0', '-1', '32767', '32768', '-32769', '2147483648', '-2147483649',
    '9223372036854775807', '18446744073709551615', '1.5', '1e100', '1e-20', '-0.0001', '100000000000000000000',
    '{"b": [1, 2, {"c": null}], "a": "x"}', '"tab\\t quote\\" back\\\\ nul\\u0000 bell\\u0007 é 🎉 / \\b\\f\\n\\r"',
    '[[[[1]]], {"k": {"k": {"k": 70000}}}]', '{"": 1, "long": "' + "y" * 300 + '"}',
)  # fmt: skip
JSON_EXPRESSIONS = (
    "CAST(CAST('2020-01-02' AS DATE) AS JSON)",
    "CAST(CAST('2020-01-02 03:04:05.678901' AS DATETIME(6)) AS JSON)",
    "CAST(CAST('-12:34:56.5' AS TIME(6)) AS JSON)",
    "CAST(CAST(1.50 AS DECIMAL(10,2)) AS JSON)",
    "CAST(CAST(-0.005 AS DECIMAL(65,30)) AS JSON)",
    "CAST(CAST(123456789012345678901234567890 AS DECIMAL(40,0)) AS JSON)",
    "JSON_OBJECT('bytes', x'00FF10')",
    "JSON_ARRAY(CAST(1e15 AS DOUBLE), 1e16, 123456.789e3, 0.1e0, 1e14, -1e-15)",
    "(SELECT JSON_ARRAYAGG(REPEAT('z', 40)) FROM information_schema.collations LIMIT 1)",
    "JSON_ARRAY(REPEAT('w', 70000), 70000, 5)",
    "JSON_OBJECT(REPEAT('k', 300), 1, 'a', REPEAT('v', 66000), 'n', 2147483647, 'm', 5000000000)",
)


def test_binary_json_is_spelled_as_the_server_does(fresh_mysql: str) -> None:
    """Numbers, escapes, large containers and values that JSON does not have come out as SELECT prints them."""
    escaped = [value.replace("\\", "\\\\") for value in JSON_VALUES]
    expressions = [*(f"'{value}'" for value in escaped), *JSON_EXPRESSIONS]
    with log(fresh_mysql, "j") as opened:
        start = opened.begin()
        run(fresh_mysql, "CREATE TABLE j (id int PRIMARY KEY, v json)")
        run(fresh_mysql, *(f"INSERT INTO j VALUES ({i}, {each})" for i, each in enumerate(expressions)))
        seen = window(opened, start).rows()

    expected, _ = batch(fresh_mysql, "j", rules())
    assert expected.column("v").to_pylist() == [row["v"] for row in seen]


CHARSETS = ("latin1", "latin2", "cp1250", "cp1251", "greek", "koi8r", "gbk", "big5", "sjis", "ujis", "euckr", "ucs2",
            "utf16", "utf16le", "utf32", "utf8mb3", "utf8mb4", "ascii", "cp850", "gb18030", "hebrew")  # fmt: skip
TEXT_OF = {"latin1": "café €", "latin2": "łódź", "cp1250": "žluť", "cp1251": "мир", "greek": "αβγ", "koi8r": "мир",
           "gbk": "你好", "big5": "你好", "sjis": "日本", "ujis": "日本", "euckr": "한국", "cp850": "é",
           "gb18030": "你好", "hebrew": "שלום", "ascii": "abc"}  # fmt: skip


@pytest.mark.parametrize("product", ["mariadb", "mysql"])
def test_text_of_every_character_set_is_the_batch_reads(product: str, request: pytest.FixtureRequest) -> None:
    """CHAR, VARCHAR, TEXT, ENUM and SET in a character set of their own become the same UTF-8."""
    url = request.getfixturevalue(f"fresh_{product}")
    lacking = {"gb18030"} if product == "mariadb" else set()
    names = [name for name in CHARSETS if name not in lacking]
    columns = [
        f"{name}_{kind.split('(')[0]} {kind.format(TEXT_OF.get(name, 'é你🎉'[:2]))} CHARACTER SET {name}"
        for name in names
        for kind in ("char(8)", "varchar(90)", "text", "enum('{}','b')", "set('{}','b')")
    ]
    values = [f"'{TEXT_OF.get(name, 'é你🎉'[:2])}'" for name in names for _ in range(5)]
    with log(url, "t") as opened:
        start = opened.begin()
        run(url, f"CREATE TABLE t (id int PRIMARY KEY, {', '.join(columns)})")
        run(url, f"INSERT INTO t VALUES (1, {', '.join(values)})")
        seen = pa.concat_tables(window(opened, start).tables("t"))

    expected, _ = batch(url, "t", rules())
    assert [] == differences(expected, seen, {})


def test_replaced_cells_are_counted_in_the_window_that_has_them(server: tuple[str, TypeCases]) -> None:
    """Transactions that were read ahead wait for the next window, and are counted there, once."""
    url, _ = server
    with log(url, "ahead", typed=rules(on_special_value="null")) as opened:
        start = opened.begin()
        run(url, "SET SESSION sql_mode = ''", "CREATE TABLE ahead (id int PRIMARY KEY, d date)")
        for first in range(0, 60, 10):
            cells = ",".join(
                f"({i}, '{'0000-00-00' if i == first else '2026-01-02'}')" for i in range(first, first + 10)
            )
            run(url, "SET SESSION sql_mode = ''", f"INSERT INTO ahead VALUES {cells}")
        found = window(opened, start, most=20)

    assert [20, 20, 20] == [each.data.num_rows for each in found.changes]
    assert [{"d": {"zero_date": 2}}] * 3 == [each.special for each in found.changes]
