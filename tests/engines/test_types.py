"""The literal value tables of types.md, sections 6 to 9, on every engine: one cell for a value, in every mode."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import duckdb
import pyarrow as pa
import pyarrow.csv
import pytest

from rivet_resources.errors import ValueDoesNotFit
from tests.engines.type_cases import plain
from tests.engines.typed import AT, CASES, MODES, columns_of, export, fill, read, spelled
from tests.lab import Lab, lab_in
from tests.lab_engines import BY_DRIVER

pytestmark = pytest.mark.wide

NATIVE = "{types: native}"
ROWS = (1, 101)
# Cells within Arrow's range but outside the reader's own, or that one reader refuses, by a word of their literal.
BEYOND = ("294276", "294247", "BC", "54321", "ud800")


@pytest.fixture(params=CASES)
def lab(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    """An empty database of each engine, with the types of its cases."""
    engine = BY_DRIVER[request.param]
    laboratory = lab_in(tmp_path, engine, request, monkeypatch)
    laboratory.sql(*CASES[engine.name].before)
    return laboratory


@pytest.mark.parametrize("mode", MODES)
def test_every_literal_of_the_contract_arrives_as_its_cell(lab: Lab, mode: str) -> None:
    """Each literal has the contract's Arrow type and value, whatever the mode; a NULL is a NULL."""
    cases = CASES[lab.engine.name].cells
    fill(lab, "cells", columns_of(cases), ids=ROWS)
    lab.insert("cells", [{"id": 102, "at": AT}])

    export(lab, "cells", mode, parquet=NATIVE)

    table = lab.table("cells")
    seen = [
        (ddl, literal, table.column(f"c{i}").type, [plain(cell) for cell in table.column(f"c{i}")])
        for i, (ddl, literal, *_) in enumerate(cases)
    ]
    assert [*ROWS, 102] == table.column("id").to_pylist()
    assert [(ddl, literal, arrow, [cell, cell, None]) for ddl, literal, arrow, cell in cases] == seen


# --- three readers, two formats ------------------------------------------------------------------


def readable(lab: Lab) -> dict[str, Any]:
    """Return the cases that every reader and every format can hold."""
    cases = columns_of(CASES[lab.engine.name].cells)
    return {
        name: case
        for name, case in cases.items()
        if not pa.types.is_list(case.arrow) and not any(word in case.literal for word in BEYOND)
    }


def by_duckdb(lab: Lab, export: str, reader: str) -> pa.Table:
    """Read the parts of an export with DuckDB."""
    paths = ", ".join(f"'{path}'" for path in lab.parts(export))
    return duckdb.sql(f"SELECT * FROM {reader}([{paths}]) ORDER BY id").to_arrow_table()


def test_duckdb_reads_the_cells_pyarrow_reads(lab: Lab) -> None:
    """A portable file opens in DuckDB with default settings, cell for cell."""
    fill(lab, "cells", readable(lab), ids=ROWS)

    export(lab, "cells", "full")

    assert spelled(lab.table("cells")) == spelled(by_duckdb(lab, "cells", "read_parquet"))


def test_csv_is_the_same_in_every_mode_and_reader(lab: Lab) -> None:
    """The records of a CSV file are byte for byte those of any mode; pyarrow and DuckDB read the same texts."""
    fill(lab, "cells", readable(lab), ids=ROWS)
    for mode in MODES:
        export(lab, "cells", mode, name=mode, format="csv")
    parts = {mode: lab.parts(mode) for mode in MODES}

    assert len({part.read_bytes() for each in parts.values() for part in each}) == 1
    path = parts["full"][0]
    options = pa.csv.ConvertOptions(column_types=dict.fromkeys(["id", "at", *readable(lab)], pa.string()))
    lines = pa.csv.ParseOptions(newlines_in_values=True)
    by_pyarrow = pa.csv.read_csv(path, convert_options=options, parse_options=lines).to_pylist()
    found = duckdb.read_csv(str(path), all_varchar=True, header=True, delimiter=",", quotechar='"', escapechar='"')
    assert by_pyarrow == [
        {name: cell or "" for name, cell in row.items()} for row in found.to_arrow_table().to_pylist()
    ]


@pytest.mark.spark
@pytest.mark.parametrize(
    "keys",
    [{"parquet": NATIVE}, {}, {"format": "csv"}, {"format": "ndjson"}, {"format": "avro"}],
    ids=["native", "portable", "csv", "ndjson", "avro"],
)
def test_spark_reads_the_cells_pyarrow_reads(lab: Lab, spark_runtime: Any, keys: dict[str, str]) -> None:
    """With the manifest's schema Spark has the portable file's cells, from whichever file; '' is NULL in CSV."""
    from rivet_resources.commit.reader import read_parts

    fill(lab, "cells", readable(lab), ids=ROWS)
    export(lab, "cells", "full")
    expected = spelled(lab.table("cells"))
    export(lab, "cells", "full", **keys)

    found = read_parts(spark_runtime.session(), lab.root("cells"), list(lab.manifests("cells").values()))

    if keys.get("format") == "csv":
        expected = {name: [cell or None for cell in cells] for name, cells in expected.items()}
    assert expected == spelled(found.toArrow().sort_by("id"))


# --- values that do not fit ----------------------------------------------------------------------


def test_value_without_a_place_stops_the_window(lab: Lab) -> None:
    """The message names table, column and the YAML that decides, and shows no value."""
    missed = []
    for index, case in enumerate(CASES[lab.engine.name].specials):
        fill(lab, f"t{index}", {"v": case})

        with pytest.raises(ValueDoesNotFit) as failure:
            read(lab, f"t{index}")

        told = str(failure.value)
        expected = (f"t{index}.v` is ", '`columns: {v: {on_special_value: "null"}}`', "1 row in chunk 0.")
        missed += [(case, told) for word in expected if word not in told]

    assert [] == missed


@pytest.mark.parametrize("mode", MODES)
def test_policy_null_counts_the_same_in_every_mode(lab: Lab, mode: str) -> None:
    """`null` leaves NULL where the value was, and the manifest counts it by column and kind."""
    cases = columns_of(CASES[lab.engine.name].specials)
    fill(lab, "specials", cases)

    export(lab, "specials", mode, on_special_value="'null'", parquet=NATIVE)

    (row,) = lab.rows("specials")
    (manifest,) = lab.manifests("specials").values()
    counted = manifest.measures.special_values
    seen = [(case, row[name], counted.get(name)) for name, case in cases.items()]
    assert [(case, case.null, {case.kind: 1}) for case in cases.values()] == seen


@pytest.mark.parametrize("mode", MODES)
def test_policy_text_gives_the_engines_spelling(lab: Lab, mode: str) -> None:
    """`text` makes the whole column text, in the engine's own spelling, and counts nothing."""
    cases = columns_of([case for case in CASES[lab.engine.name].specials if case.text is not None])
    fill(lab, "specials", cases)
    rules = "{" + ", ".join(f"{name}: {{on_special_value: text}}" for name in cases) + "}"

    export(lab, "specials", mode, columns=rules, parquet=NATIVE)

    table, (manifest,) = lab.table("specials"), lab.manifests("specials").values()
    seen = [(case, table.column(name).type, table.column(name)[0].as_py()) for name, case in cases.items()]
    assert [(case, pa.string(), case.text) for case in cases.values()] == seen
    assert {} == manifest.measures.special_values


# --- overrides -----------------------------------------------------------------------------------


def written(rule: Any) -> str:
    """Write an entry of `columns:` in YAML's flow style."""
    words = {"type": rule} if isinstance(rule, str) else rule
    return "{" + ", ".join(f"{key}: '{word}'" for key, word in words.items()) + "}"


@pytest.mark.parametrize("mode", ["full", "keyset"])
def test_override_decides_the_type(lab: Lab, mode: str) -> None:
    """`columns:` gives the type it names, exactly."""
    cases = columns_of(CASES[lab.engine.name].overrides)
    fill(lab, "cells", cases)
    rules = "{" + ", ".join(f"{name}: {written(case.rule)}" for name, case in cases.items()) + "}"

    export(lab, "cells", mode, columns=rules, parquet=NATIVE)

    table = lab.table("cells")
    seen = [(case, table.column(name).type, plain(table.column(name)[0])) for name, case in cases.items()]
    assert [(case, case.arrow, case.cell) for case in cases.values()] == seen


def test_override_that_a_cell_refuses_fails_or_counts(lab: Lab) -> None:
    """A cell the override cannot hold fails by default and is counted under `null`."""
    cases, seen = CASES[lab.engine.name].misfits, []
    for index, case in enumerate(cases):
        fill(lab, f"t{index}", {"v": case})
        rule = f"{{v: '{case.rule}'}}"

        with pytest.raises(ValueDoesNotFit, match=case.rule.split("(")[0]):
            read(lab, f"t{index}", columns=rule)
        table, special = read(lab, f"t{index}", columns=rule, on_special_value="'null'")
        seen.append((case, table.column("v").to_pylist(), special))

    assert [(case, [None], {"v": {case.kind: 1}}) for case in cases] == seen


# --- the server's own settings -------------------------------------------------------------------

ZONES = {"postgres": ("UTC", "America/New_York", "Asia/Kathmandu"), "mysql": ("+00:00", "-07:00", "+05:45")}


def set_zone(lab: Lab, zone: str) -> None:
    """Make a zone the server's, or the database's, own."""
    if lab.engine.name == "postgres":
        lab.sql(f"ALTER DATABASE {urlsplit(lab.url).path[1:]} SET TimeZone = '{zone}'")
    else:
        lab.sql(f"SET GLOBAL time_zone = '{zone}'")


@pytest.mark.parametrize("lab", ["postgres", "mariadb", "mysql"], indirect=True)
@pytest.mark.parametrize("mode", MODES)
def test_zone_of_the_server_changes_no_cell(lab: Lab, mode: str) -> None:
    """The same reads under three zones of the server give the same rows, in every mode."""
    cases = [case for case in CASES[lab.engine.name].cells if pa.types.is_timestamp(case.arrow)]
    fill(lab, "cells", columns_of(cases))
    zones, seen = ZONES["postgres" if lab.engine.name == "postgres" else "mysql"], []
    try:
        for zone in zones:
            set_zone(lab, zone)
            if mode == "incremental":
                lab.state.reset_cursor("cells")
            export(lab, "cells", mode)
            seen.append([plain(lab.table("cells").column(f"c{i}")[0]) for i in range(len(cases))])
    finally:
        set_zone(lab, zones[0])

    assert [[case.cell for case in cases]] * 3 == seen


@pytest.mark.parametrize("lab", ["mariadb", "mysql"], indirect=True)
def test_timestamp_is_the_instant_that_was_meant(lab: Lab) -> None:
    """What a session wrote in its own zone is an instant in a TIMESTAMP, and the same digits in a DATETIME."""
    lab.sql("CREATE TABLE t (id int PRIMARY KEY, instant timestamp NULL, naive datetime)")
    for number, (zone, text) in enumerate(
        [("-05:00", "1991-08-31 12:34:56"), ("-06:00", "1992-01-01 12:34:56"), ("+08:00", "1991-08-31 12:34:56")]
    ):
        lab.sql(f"SET time_zone = '{zone}'", f"INSERT INTO t VALUES ({number}, '{text}', '{text}')")

    export(lab, "t", "full")

    seen = [(f"{row['instant']:%m-%d %H:%M:%S}", f"{row['naive']:%H:%M:%S}") for row in lab.rows("t")]
    assert [("08-31 17:34:56", "12:34:56"), ("01-01 18:34:56", "12:34:56"), ("08-31 04:34:56", "12:34:56")] == seen


@pytest.mark.parametrize("lab", ["mariadb", "mysql"], indirect=True)
@pytest.mark.parametrize("mode", ["mode: chunked, chunk_by_key: born", "mode: incremental, cursor_column: born"])
def test_zero_date_as_key_or_cursor_is_not_lost(lab: Lab, mode: str) -> None:
    """A zero date that decides which rows are read fails by name, whatever the policy."""
    lab.sql("SET sql_mode = ''", "CREATE TABLE t (born date NOT NULL PRIMARY KEY)")
    lab.sql("SET sql_mode = ''", "INSERT INTO t VALUES ('0000-00-00'), ('2020-01-01')")

    outcome = lab.export(f"{{name: t, table: t, {mode}, on_special_value: 'null'}}")

    assert not outcome.success
    assert "born" in outcome.message
    assert "zero or partial dates" in outcome.message
    assert {} == lab.manifests("t")


# --- what the servers offer ----------------------------------------------------------------------

# The server's own help lists its types; these it leaves out.
UNLISTED = ("json", "point", "linestring", "polygon", "multipoint", "multilinestring", "multipolygon", "geometry",
            "geometrycollection", "set", "vector", "year", "uuid", "inet4", "inet6")  # fmt: skip
HELP = """
SELECT t.name FROM mysql.help_topic t JOIN mysql.help_category c USING (help_category_id)
WHERE c.name LIKE '%Data Type%'"""


def offered(lab: Lab) -> set[str]:
    """Return the catalog's name of each type that a column can be declared as."""
    from tests.servers.mysql import connection

    found = set()
    with connection(lab.url) as opened, opened.cursor() as cursor:
        cursor.execute(HELP)
        for name in {*UNLISTED, *(row[0].lower() for row in cursor.fetchall())}:
            for form in ("{}", "{}(3)", "{}('a')"):
                try:
                    cursor.execute("DROP TABLE IF EXISTS offered")
                    cursor.execute(f"CREATE TABLE offered (c {form.format(name)})")
                except opened.Error:
                    continue
                cursor.execute(TYPE_OF)
                found.add(cursor.fetchone()[0])
    return found


TYPE_OF = "SELECT data_type FROM information_schema.columns WHERE table_schema = DATABASE() AND table_name = 'offered'"


def covered(lab: Lab) -> set[str]:
    """Return the catalog's name of each type that the cases use."""
    from tests.servers.mysql import connection

    with connection(lab.url) as opened, opened.cursor() as cursor:
        cursor.execute(TYPE_OF.replace("'offered'", "'cells'"))
        return {row[0] for row in cursor.fetchall()}


@pytest.mark.parametrize("lab", ["mariadb", "mysql"], indirect=True)
def test_every_type_the_server_offers_has_a_row(lab: Lab) -> None:
    """A type that a later version of the server brings fails here until a row covers it."""
    fill(lab, "cells", columns_of(CASES[lab.engine.name].cells))

    assert set() == offered(lab) - covered(lab)


# rowversion is written by the server alone; json and vector are SQL Server 2025's. tests/engines/test_sqlserver_*.
ELSEWHERE = {"timestamp", "json", "vector"}


@pytest.mark.parametrize("lab", ["sqlserver"], indirect=True)
def test_every_type_of_sql_server_has_a_row(lab: Lab) -> None:
    """A type that a later version of SQL Server brings fails here until a row covers it."""
    from tests.emulators.tds import server as tds

    with tds.connect(lab.url) as execute:
        names = {row[0] for row in execute("SELECT name FROM sys.types WHERE user_type_id <= 256")}

    assert set() == names - ELSEWHERE - {case.ddl.split("(")[0].split(" ")[0] for case in CASES["sqlserver"].cells}
