"""Whose state and whose files: two files, two projects, two databases that share names, a store or a folder.

Belongs here: what a user of the command line sees of it. Not here: what databases say of themselves
(`tests/engines/test_identity.py`), the rule that compares (`tests/unit/state/test_provenances.py`).
"""

from __future__ import annotations

import json
import shutil
import sqlite3
import sys
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.csv
import pytest
import yaml

from rivet_assets.cli import main as cli
from rivet_resources.commit.manifest import current_manifests
from rivet_resources.destinations.local import Local
from rivet_resources.state.store import open_state
from tests.lab_engines import MARIADB, POSTGRES, Engine
from tests.servers.mysql import create_mysql_database, drop_mysql_database
from tests.servers.postgres import create_database, drop_database

pytestmark = pytest.mark.wide

BEFORE = Path(__file__).parent / "before_scopes"  # made by Rivet of 2026-11-22, state store version 3
REFUSED = "RIVET_PROVENANCE_REFUSED"
FULL = {"name": "orders", "table": "orders"}
INCREMENTAL = FULL | {"mode": "incremental", "cursor_column": "id"}
CHUNKED = FULL | {"mode": "chunked", "chunk_column": "id", "chunk_size": 7}
STAMPED = {"columns": {"at": {"type": "timestamp"}}}
DAY = FULL | STAMPED | {"mode": "time_window", "time_column": "at", "start": "2026-01-01", "end": "2026-01-02"}
POLL = FULL | STAMPED | {"mode": "poll", "updated_at_column": "at"}
MODES = {"full": FULL, "incremental": INCREMENTAL, "chunked": CHUNKED, "time_window": DAY, "poll": POLL}


@dataclass(frozen=True)
class Answer:
    """What a command left."""

    code: int
    out: str
    err: str

    @property
    def error(self) -> str:
        """Return the code of the last line of stderr."""
        return str(json.loads(self.err.splitlines()[-1])["code"]) if self.code else ""

    @property
    def said(self) -> str:
        """Return the text of the error."""
        return str(json.loads(self.err.splitlines()[-1])["error"])

    @property
    def rows(self) -> int:
        """Return the rows of the one export of `run --json`."""
        (export,) = json.loads(self.out)["exports"]
        return int(export["rows"])


@dataclass(frozen=True)
class Desk:
    """A folder where somebody works; commands run in this process."""

    folder: Path
    monkeypatch: pytest.MonkeyPatch
    capsys: pytest.CaptureFixture[str]

    def write(self, file: str, source: Mapping[str, Any], *exports: Mapping[str, Any], lake: str = "lake", **more: Any):
        """Write a file of one named source, `{name: block}`, or of an unnamed one, `{type: …}`."""
        head = {"source": dict(source)} if "type" in source else {"sources": dict(source)}
        common = {"format": "csv", "destination": {"type": "local", "path": lake}}
        document = head | {"spark": "inline", "exports": [common | dict(each) for each in exports]} | more
        path = self.folder / file
        path.parent.mkdir(exist_ok=True)
        path.write_text(yaml.safe_dump(document, sort_keys=False))

    def database(self, name: str, rows: int, *, table: str = "orders", first: int = 1) -> dict[str, Any]:
        """Make a SQLite file with so many orders, noted with its name; its source block."""
        with closing(sqlite3.connect(self.folder / f"{name}.db")) as connection:
            connection.executescript(
                f"CREATE TABLE IF NOT EXISTS {table} "
                "(id INTEGER PRIMARY KEY, note TEXT, at TEXT NOT NULL DEFAULT '2026-01-01 12:00:00');"
                f"WITH RECURSIVE n(i) AS (SELECT {first} UNION ALL SELECT i + 1 FROM n WHERE i < {first + rows - 1}) "
                f"INSERT INTO {table} (id, note) SELECT i, '{name} ' || i FROM n;"
            )
        return {"type": "sqlite", "path": f"{name}.db", "tuning": {"profile": "fast"}}

    def rivet(self, *arguments: str) -> Answer:
        """Run `rivet --json-errors …` to its end."""
        self.monkeypatch.setattr(sys, "argv", ["rivet", "--json-errors", *arguments])
        self.capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main()
        told = self.capsys.readouterr()
        return Answer(int(ended.value.code or 0), told.out, told.err)

    def run(self, file: str, *more: str) -> Answer:
        """Run the exports of a file."""
        return self.rivet("run", "--json", "-q", "-c", file, *more)

    def foreseen(self, file: str, *more: str) -> list[str]:
        """Return what `rivet check` and `rivet doctor` say that a run would refuse; they end with 1 if there is any."""
        answer = self.rivet("check", "--json", "-c", file, *more)
        found = [each for export in json.loads(answer.out)["exports"] for each in export["findings"]]
        texts = [each["text"] for each in found if (each["name"], each["status"]) == ("provenance", "fail")]
        assert bool(texts) == bool(answer.code), answer
        examined = self.rivet("doctor", "--json", "-c", file, *more)
        rows = [each for each in json.loads(examined.out)["checks"] if each["name"] == "provenance"]
        assert texts == [each["detail"] for each in rows if not each["ok"]], examined
        assert bool(texts) == bool(examined.code), examined
        assert all("--adopt" in each["hint"] for each in rows if not each["ok"])
        return texts

    def shown(self, file: str) -> dict[str, tuple[object, object]]:
        """Return cursor and rows of the last run of each export, as `state show` has them."""
        rows = json.loads(self.rivet("state", "show", "--json", "-c", file).out)
        return {row["export"]: (row["cursor"], row["rows"]) for row in rows}

    def notes(self, lake: str, export: str = "orders") -> list[str]:
        """Read the notes of every committed row, by id."""
        root = Local(path=str(self.folder / lake)).root(export)
        parts = [part.path for manifest in current_manifests(root).values() for part in manifest.parts]
        rows = [row for part in parts for row in pyarrow.csv.read_csv(f"{root.uri}/{part}").to_pylist()]
        return [row["note"] for row in sorted(rows, key=lambda row: row["id"])]


def noted(name: str, rows: int, *, first: int = 1) -> list[str]:
    """Return the notes of a database's rows."""
    return [f"{name} {number}" for number in range(first, first + rows)]


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Desk:
    """An empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DAGSTER_HOME", raising=False)
    monkeypatch.delenv("RIVET_STATE_URL", raising=False)
    return Desk(tmp_path, monkeypatch, capsys)


# --- two files in one store ----------------------------------------------------------------------


def test_two_files_with_named_sources_have_each_their_own_cursor(desk: Desk):
    """Both define `orders` and share `.rivet_state.db`; each exports its own rows, and each is shown its own."""
    for name, rows in (("shop", 30), ("billing", 12)):
        desk.write(f"{name}.yaml", {name: desk.database(name, rows)}, INCREMENTAL, lake=f"lake_{name}")

    assert [30, 12] == [desk.run("shop.yaml").rows, desk.run("billing.yaml").rows]
    assert {"orders": ("30", 30)} == desk.shown("shop.yaml")
    assert {"orders": ("12", 12)} == desk.shown("billing.yaml")
    for command in ("metrics", "journal"):
        names = [{row["export"] for row in json.loads(desk.rivet(command, "--json", "-c", f).out)} for f in FILES]
        runs = [{row["run_id"] for row in json.loads(desk.rivet(command, "--json", "-c", f).out)} for f in FILES]
        assert [{"orders"}] * 2 == names
        assert set() == runs[0] & runs[1]

    assert 0 == desk.rivet("state", "reset", "-c", "billing.yaml", "-e", "orders").code
    assert {"orders": ("30", 30)} == desk.shown("shop.yaml")
    assert [0, 12] == [desk.run("shop.yaml").rows, desk.run("billing.yaml").rows]
    assert noted("billing", 12) == desk.notes("lake_billing")


FILES = ("shop.yaml", "billing.yaml")


def test_reset_progress_and_schema_of_one_leave_the_other_alone(desk: Desk):
    """A chunked export resumes its own chunks after the other's reset and success under the same name."""
    blocks = {name: {name: desk.database(name, 20)} for name in ("shop", "billing")}
    for name, source in blocks.items():
        desk.write(f"{name}.yaml", source, CHUNKED | {"chunk_checkpoint": True}, lake=f"lake_{name}")
    with closing(sqlite3.connect("shop.db")) as connection, connection:
        connection.execute("UPDATE orders SET note = x'ff' WHERE id = 19")

    assert 3 == desk.run("shop.yaml").code
    assert 0 == desk.run("billing.yaml").code
    assert 0 == desk.rivet("state", "reset", "-c", "billing.yaml", "-e", "orders").code

    (left,) = json.loads(desk.rivet("state", "chunks", "--json", "-c", "shop.yaml").out)
    assert 2 == left["chunks"]
    assert [] == json.loads(desk.rivet("state", "chunks", "--json", "-c", "billing.yaml").out)


@pytest.mark.parametrize("block", MODES.values(), ids=MODES.keys())
def test_second_of_two_unnamed_sources_is_refused_by_name(desk: Desk, block: Mapping[str, Any]):
    """Both are called `sqlite`, so both mean the same state; the one that is of another database is told so."""
    for name, rows in (("shop", 30), ("billing", 12)):
        desk.write(f"{name}.yaml", desk.database(name, rows), block, lake=f"lake_{name}")
    assert 30 == desk.run("shop.yaml").rows

    refused = desk.run("billing.yaml")

    assert (1, REFUSED) == (refused.code, refused.error)
    for words in ("database shop.db", "database billing.db", "sources: {", "--adopt", "rivet state reset -e orders"):
        assert words in refused.err
    assert not (desk.folder / "lake_billing" / "orders" / "_rivet").exists()
    assert 0 == desk.run("shop.yaml").code
    assert noted("shop", 30) == desk.notes("lake_shop")


# --- two exports in one folder -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("block", "how"),
    [*((block, "named") for block in MODES.values()), (FULL, "unnamed")],
    ids=[*MODES, "full unnamed"],
)
def test_second_export_with_the_same_destination_is_refused_before_it_removes_anything(
    desk: Desk, block: Mapping[str, Any], how: str
):
    """`shop` and `billing` both write lake/orders: what the first published stays, byte by byte."""
    for name, rows in (("shop", 30), ("billing", 12)):
        source = desk.database(name, rows)
        state = {} if how == "named" else {"state": f"sqlite:///{desk.folder}/{name}_state.db"}
        desk.write(f"{name}.yaml", {name: source} if how == "named" else source, block, **state)
    assert 30 == desk.run("shop.yaml").rows
    before = files(desk.folder / "lake")

    refused = desk.run("billing.yaml")

    assert (1, REFUSED) == (refused.code, refused.error)
    assert "lake/orders holds rows of sqlite (table main.orders, database shop.db" in refused.err
    assert before == files(desk.folder / "lake")
    again = desk.run("shop.yaml")
    assert 0 == again.code, again.err
    assert noted("shop", 30) == desk.notes("lake")


def test_two_queries_of_one_database_are_told_apart_by_their_sources(desk: Desk):
    """A query has no table; the source's name is what is left."""
    source = desk.database("shop", 10)
    for name in ("shop", "billing"):
        desk.write(f"{name}.yaml", {name: source}, {"name": "orders", "query": "SELECT * FROM orders"})

    assert ["", REFUSED] == [desk.run("shop.yaml").error, desk.run("billing.yaml").error]


def test_adopted_place_is_replaced_on_purpose_and_then_is_ours(desk: Desk):
    """`--adopt` takes over once; the next run needs it no more, and the former owner is refused."""
    for name, rows in (("shop", 30), ("billing", 12)):
        desk.write(f"{name}.yaml", {name: desk.database(name, rows)}, FULL)
    desk.run("shop.yaml")

    assert 12 == desk.run("billing.yaml", "--adopt").rows
    assert noted("billing", 12) == desk.notes("lake")
    assert ["", REFUSED] == [desk.run("billing.yaml").error, desk.run("shop.yaml").error]


def files(folder: Path) -> dict[str, bytes]:
    """Read every file below a folder."""
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def changes(seed: int) -> dict[str, Any]:
    """Return a source block of made-up changes."""
    return {"type": "datagen", "pattern": "orders", "seed": seed, "max_events": 50, "events_per_second": 0}


def test_second_drain_into_one_folder_is_refused_before_its_first_window(desk: Desk):
    """The changes of two logs never stand in one folder; replaced on purpose they may be, with a reset as well."""
    block = {"name": "orders", "table": "orders", "mode": "cdc", "cdc": {"initial": "snapshot"}}
    for number, name in enumerate(("shop", "billing")):
        desk.write(f"{name}.yaml", {name: changes(number)}, block)
    ran = desk.run("shop.yaml")
    assert 0 == ran.code, ran.err
    before = files(desk.folder / "lake")

    refused = desk.run("billing.yaml")

    assert (1, REFUSED) == (refused.code, refused.error)
    assert before == files(desk.folder / "lake")
    assert 0 == desk.rivet("state", "reset", "-c", "billing.yaml", "-e", "orders").code
    assert REFUSED == desk.run("billing.yaml").error
    assert ["", ""] == [desk.run("billing.yaml", "--adopt").error, desk.run("billing.yaml").error]
    assert REFUSED == desk.run("shop.yaml").error


# --- another database, another destination -------------------------------------------------------


def test_other_database_behind_the_same_source_is_refused_until_reset_or_adopted(desk: Desk):
    """The file behind `shop` is another one: adopt goes on after the cursor, reset begins anew over its own windows."""
    desk.write("rivet.yaml", {"shop": desk.database("shop", 10)}, INCREMENTAL)
    desk.run("rivet.yaml")
    desk.write("rivet.yaml", {"shop": desk.database("other", 15)}, INCREMENTAL)

    refused = desk.run("rivet.yaml")
    adopted = desk.run("rivet.yaml", "--adopt")
    after = desk.run("rivet.yaml")

    assert (1, REFUSED) == (refused.code, refused.error)
    assert (5, 0) == (adopted.rows, after.rows)
    assert noted("shop", 10) + noted("other", 5, first=11) == desk.notes("lake")

    desk.write("rivet.yaml", {"shop": desk.database("third", 4)}, INCREMENTAL)
    assert REFUSED == desk.run("rivet.yaml").error
    assert 0 == desk.rivet("state", "reset", "-e", "orders").code
    assert 4 == desk.run("rivet.yaml").rows
    assert noted("third", 4) == desk.notes("lake")


def test_incremental_export_to_a_new_destination_is_refused_until_reset_or_adopted(desk: Desk):
    """Rows up to the cursor would be missing there; a full export has none and goes where it is told."""
    source = {"shop": desk.database("shop", 10)}
    desk.write("rivet.yaml", source, INCREMENTAL, INCREMENTAL | {"name": "later"}, FULL | {"name": "whole"}, lake="one")
    assert 0 == desk.run("rivet.yaml").code
    desk.write("rivet.yaml", source, INCREMENTAL, INCREMENTAL | {"name": "later"}, FULL | {"name": "whole"}, lake="two")

    assert [REFUSED, ""] == [desk.run("rivet.yaml", "-e", name).error for name in ("orders", "whole")]
    desk.rivet("state", "reset", "-e", "orders")
    assert [10, 0] == [desk.run("rivet.yaml", "-e", "orders").rows, desk.run("rivet.yaml", "-e", "orders").rows]
    assert [0, 0] == [desk.run("rivet.yaml", "-e", "later", "--adopt").rows, desk.run("rivet.yaml", "-e", "later").rows]
    assert noted("shop", 10) == desk.notes("two")


def test_drain_to_a_new_destination_is_refused_until_reset_or_adopted(desk: Desk):
    """Changes up to its position would be missing there; a place that was moved with its manifests has them."""
    block = {"name": "orders", "table": "orders", "mode": "cdc", "cdc": {"initial": "snapshot"}}
    lakes = ("one", "two", "three")
    for lake in lakes:
        desk.write(f"{lake}.yaml", {"shop": changes(1)}, block, lake=lake)
    assert 0 == desk.run("one.yaml").code

    (foreseen,) = desk.foreseen("two.yaml")
    refused = desk.run("two.yaml")

    assert (1, REFUSED) == (refused.code, refused.error)
    assert foreseen in refused.said
    assert "has no window that ends there" in refused.said
    assert not (desk.folder / "two" / "orders" / "_rivet").exists()
    shutil.move("one", "three")
    assert ([], 0) == (desk.foreseen("three.yaml"), desk.run("three.yaml").code)
    assert REFUSED == desk.run("two.yaml").error
    assert ["", ""] == [desk.run("two.yaml", "--adopt").error, desk.run("two.yaml").error]
    assert REFUSED == desk.run("one.yaml").error
    assert 0 == desk.rivet("state", "reset", "-c", "one.yaml", "-e", "orders").code
    assert ([], 0) == (desk.foreseen("one.yaml"), desk.run("one.yaml").code)
    assert (desk.folder / "one" / "orders" / "_rivet").exists()


def test_project_that_is_moved_with_its_store_and_its_lake_goes_on(desk: Desk, tmp_path: Path):
    """Nothing of its old path is part of what is remembered, but the destination's, and that has its windows."""
    desk.write("rivet.yaml", desk.database("shop", 10), INCREMENTAL)
    desk.run("rivet.yaml")
    old = desk.folder / "old"
    old.mkdir()
    for path in [path for path in desk.folder.iterdir() if path != old]:
        shutil.move(path, old / path.name)
    new = tmp_path / "renamed"
    shutil.move(old, new)
    desk.monkeypatch.chdir(new)
    there = Desk(new, desk.monkeypatch, desk.capsys)
    there.database("shop", 3, first=11)

    assert 3 == there.run("rivet.yaml").rows
    assert noted("shop", 13) == there.notes("lake")


# --- two projects, two servers -------------------------------------------------------------------


def test_two_projects_in_one_postgres_store_keep_apart(desk: Desk, fresh_database: str):
    """Same source and export names, one store: each has its own cursor, lease and reset; `project:` joins or parts."""
    desk.monkeypatch.setenv("RIVET_STATE_URL", fresh_database)
    for folder, rows in (("one", 8), ("two", 5)):
        (desk.folder / folder).mkdir()
        with_folder = Desk(desk.folder / folder, desk.monkeypatch, desk.capsys)
        source = with_folder.database("shop", rows) | {"path": f"{folder}/shop.db"}
        desk.write(f"{folder}/rivet.yaml", {"shop": source}, INCREMENTAL, lake=f"{folder}/lake")

    assert 8 == desk.run("one/rivet.yaml").rows
    with closing(open_state(fresh_database)) as state, state.lease("one//shop//orders", "all", "somebody"):
        assert "RIVET_WINDOW_BUSY" == desk.run("one/rivet.yaml").error
        assert 5 == desk.run("two/rivet.yaml").rows
    desk.rivet("state", "reset", "-c", "two/rivet.yaml", "-e", "orders")
    assert ({"orders": ("8", 8)}, {"orders": ("(reset)", 5)}) == (
        desk.shown("one/rivet.yaml"),
        desk.shown("two/rivet.yaml"),
    )

    shutil.copytree("one", "elsewhere")  # the same project, checked out at another place
    text = (desk.folder / "elsewhere" / "rivet.yaml").read_text()
    (desk.folder / "elsewhere" / "rivet.yaml").write_text(f"project: one\n{text}")
    assert {"orders": ("8", 8)} == desk.shown("elsewhere/rivet.yaml")


@pytest.mark.parametrize("engine", [POSTGRES, MARIADB], ids=["postgres", "mariadb"])
def test_unnamed_sources_of_one_engine_are_told_apart_by_their_databases(
    desk: Desk, engine: Engine, request: pytest.FixtureRequest
):
    """Two databases of one server, two files, one store and one path: the second is refused and nothing is lost."""
    server = request.getfixturevalue("postgres_url" if engine is POSTGRES else "mariadb_url")
    create, drop = (create_database, drop_database) if engine is POSTGRES else (create_mysql_database, drop_mysql)
    urls = {"SHOP": request.getfixturevalue(engine.fixture), "BILLING": create(server)}
    try:
        for name, url in urls.items():
            desk.monkeypatch.setenv(f"{name}_URL", url)
            with engine.connect(url) as execute:
                execute("CREATE TABLE orders (id bigint NOT NULL PRIMARY KEY, note varchar(40))")
                execute(f"INSERT INTO orders VALUES (1, '{name} 1'), (2, '{name} 2')")
            desk.write(f"{name}.yaml", {**engine.source, "url_env": f"{name}_URL"}, INCREMENTAL)
        assert 2 == desk.run("SHOP.yaml").rows
        source = current_manifests(Local(path="lake").root("orders"))["after=start"].source

        foreseen = desk.foreseen("BILLING.yaml")
        refused = [desk.run("BILLING.yaml"), desk.run("BILLING.yaml")]

        assert [True] == [text in refused[0].said for text in foreseen]
        assert [] == desk.foreseen("SHOP.yaml")
        assert source.servers
        assert source.database in urls["SHOP"]
        assert [(1, REFUSED)] * 2 == [(each.code, each.error) for each in refused]
        assert not any(secret in each.err for each in refused for secret in ("password", "://"))
        assert 0 == desk.run("SHOP.yaml").rows
        assert noted("SHOP", 2) == desk.notes("lake")
    finally:
        drop(server, urls["BILLING"])


def drop_mysql(server: str, url: str) -> None:
    """Drop a database of MariaDB; the server's URL is in its own."""
    drop_mysql_database(url)


def test_restored_cluster_under_the_same_address_is_refused(desk: Desk, fresh_database: str, fresh_real_database: str):
    """The same database name and table, another `system_identifier`: as after a restore into a new cluster."""
    for url in (fresh_database, fresh_real_database):
        with POSTGRES.connect(url) as execute:
            execute("CREATE TABLE orders (id bigint PRIMARY KEY, note text)")
            execute("INSERT INTO orders SELECT n, 'note ' || n FROM generate_series(1, 6) AS n")
    desk.write("rivet.yaml", dict(POSTGRES.source), INCREMENTAL)
    desk.monkeypatch.setenv("LAB_URL", fresh_database)
    assert 6 == desk.run("rivet.yaml").rows
    desk.monkeypatch.setenv("LAB_URL", fresh_real_database)
    with POSTGRES.connect(fresh_real_database) as execute:
        execute("INSERT INTO orders VALUES (7, 'note 7')")

    (foreseen,) = desk.foreseen("rivet.yaml")
    refused = desk.run("rivet.yaml")

    assert (1, REFUSED) == (refused.code, refused.error)
    assert foreseen in refused.said
    assert "the server is another one" in refused.err
    assert [1, 0] == [desk.run("rivet.yaml", "--adopt").rows, desk.run("rivet.yaml").rows]
    assert noted("note", 7) == desk.notes("lake")


# --- a store of before ---------------------------------------------------------------------------


@pytest.fixture
def before(desk: Desk) -> Desk:
    """A folder that Rivet of 2026-11-22 left, with both losses of then in it.

    `shop.yaml` and `billing.yaml` share the store. shop's orders and lines are committed, its `big` died after three
    of four chunks; billing's `orders` took shop's cursor and exported none of its 10 rows.
    """
    shutil.copytree(BEFORE, desk.folder, dirs_exist_ok=True)
    with closing(sqlite3.connect(desk.folder / ".rivet_state.db")) as store:
        store.executescript((desk.folder / "state.sql").read_text())
    for name, rows in (("shop", 20), ("billing", 10)):
        desk.database(name, rows)
        desk.database(name, rows, table="lines")
        with closing(sqlite3.connect(f"{name}.db")) as connection, connection:
            connection.execute("CREATE TABLE big (id INTEGER PRIMARY KEY, amount INTEGER)")
            connection.execute("INSERT INTO big SELECT id, id * 10 FROM orders")
    return desk


def test_store_of_before_goes_on_where_it_was(before: Desk):
    """Cursors go on, finished chunks are kept, and whose state cannot be shown to be its own is refused by name."""
    before.database("shop", 2, first=21)
    before.database("shop", 3, table="lines", first=21)

    ran = [before.run("shop.yaml", "-e", name) for name in ("orders", "lines", "big")]

    assert [(0, 2), (0, 3), (0, 20)] == [(each.code, each.rows) for each in ran], [each.err for each in ran]
    assert [noted("shop", 22), noted("shop", 23)] == [before.notes("lake_shop", name) for name in ("orders", "lines")]
    (big,) = current_manifests(Local(path="lake_shop").root("big")).values()
    assert "resumed" == big.consistency
    assert {"orders": ("22", 2), "lines": ("23", 3), "big": (None, 20)} == before.shown("shop.yaml")


@pytest.mark.parametrize("first", FILES)
def test_export_that_lost_its_rows_to_another_cursor_is_refused_by_name(before: Desk, first: str):
    """Its only window begins where shop's ended; whichever file runs first, and a reset brings every row."""
    if first == "shop.yaml":
        assert 0 == before.run("shop.yaml").code

    refused = before.run("billing.yaml", "-e", "orders")

    assert (1, REFUSED) == (refused.code, refused.error)
    assert "rows before it were never exported" in refused.err
    assert 0 == before.run("billing.yaml", "-e", "big").code
    assert 0 == before.rivet("state", "reset", "-c", "billing.yaml", "-e", "orders").code
    assert 10 == before.run("billing.yaml", "-e", "orders").rows
    assert noted("billing", 10) == before.notes("lake_billing")
    assert (0, "20") == (before.run("shop.yaml").code, before.shown("shop.yaml")["orders"][0])
    assert noted("shop", 20) == before.notes("lake_shop")


def test_manifest_of_before_is_accepted_with_a_word_and_then_remembered(before: Desk):
    """It does not say of which database it is; the run that meets it says so once, and the next manifest does."""
    told = [before.rivet("run", "-v", "-c", "billing.yaml", "-e", "big").err for _ in range(2)]

    assert [True, False] == ["it counts as of sqlite (table main.big, database billing.db" in each for each in told]
    (manifest,) = current_manifests(Local(path="lake_billing").root("big")).values()
    assert ("billing", "billing.db") == (manifest.source.name, manifest.source.database)


def test_cursor_of_before_with_an_emptied_destination_is_asked_for(before: Desk):
    """Files that were moved on prove nothing: `--adopt` keeps the cursor."""
    before.database("shop", 3, table="lines", first=21)
    shutil.rmtree("lake_shop/lines")

    refused = before.run("shop.yaml", "-e", "lines")

    assert (1, REFUSED) == (refused.code, refused.error)
    assert "--adopt" in refused.err
    assert [3, 0] == [before.run("shop.yaml", "-e", "lines", *more).rows for more in (["--adopt"], [])]
    assert noted("shop", 3, first=21) == before.notes("lake_shop", "lines")


# --- foreseen by `rivet check` -------------------------------------------------------------------


@pytest.mark.parametrize("block", MODES.values(), ids=MODES.keys())
def test_check_foresees_that_state_is_of_another_database(desk: Desk, block: Mapping[str, Any]):
    """In the words of the run, which names the ways out; it changes nothing, and the other file is fine."""
    for name, rows in (("shop", 30), ("billing", 12)):
        desk.write(f"{name}.yaml", desk.database(name, rows), block, lake=f"lake_{name}")
    assert [[], []] == [desk.foreseen(file) for file in FILES]  # nobody ran yet
    assert 0 == desk.run("shop.yaml").code
    before = files(desk.folder)

    (foreseen,) = desk.foreseen("billing.yaml")

    assert before == {path: content for path, content in files(desk.folder).items() if path in before}
    assert foreseen in desk.run("billing.yaml").said
    assert [] == desk.foreseen("shop.yaml")


@pytest.mark.parametrize("state", ["one", "each", "none"])
def test_check_foresees_that_a_destination_is_of_another_database(desk: Desk, state: str):
    """With state in one store, in a store of each, and where the second has no store yet."""
    for name, rows in (("shop", 30), ("billing", 12)):
        more = {} if state == "one" else {"state": f"sqlite:///{desk.folder}/{name}_state.db"}
        desk.write(f"{name}.yaml", {name: desk.database(name, rows)}, FULL, FULL | {"name": "other"}, **more)
    assert 0 == desk.run("shop.yaml", "-e", "orders").code
    if state == "each":
        assert 0 == desk.run("billing.yaml", "-e", "other").code

    (foreseen,) = desk.foreseen("billing.yaml")

    assert "lake/orders holds rows of sqlite (table main.orders, database shop.db" in foreseen
    assert foreseen in desk.run("billing.yaml", "-e", "orders").said
    assert 0 == desk.run("billing.yaml", "-e", "orders", "--adopt").code
    assert ([], 1) == (desk.foreseen("billing.yaml"), len(desk.foreseen("shop.yaml", "-e", "orders")))


def test_check_foresees_that_a_cursor_is_of_another_destination(desk: Desk):
    """Only where there is a cursor; a reset takes it away."""
    source, blocks = {"shop": desk.database("shop", 10)}, (INCREMENTAL, FULL | {"name": "whole"})
    desk.write("rivet.yaml", source, *blocks, lake="one")
    assert 0 == desk.run("rivet.yaml").code
    desk.write("rivet.yaml", source, *blocks, lake="two")

    (foreseen,) = desk.foreseen("rivet.yaml")

    assert foreseen in desk.run("rivet.yaml", "-e", "orders").said
    assert 0 == desk.rivet("state", "reset", "-e", "orders").code
    assert [] == desk.foreseen("rivet.yaml")


def test_check_foresees_rows_that_an_earlier_rivet_lost(before: Desk):
    """Windows that begin where another export ended, and a cursor that nothing proves."""
    shutil.rmtree("lake_shop/lines")

    (lost,), (unproven,) = (before.foreseen(f"{file}.yaml", "-e", name) for file, name in LOSSES)

    assert "rows before it were never exported" in lost
    said = [before.run(f"{file}.yaml", "-e", name).said for file, name in LOSSES]
    assert [True, True] == [lost in said[0], unproven in said[1]]


LOSSES = (("billing", "orders"), ("shop", "lines"))


def test_check_foresees_that_a_drain_would_meet_changes_of_another_log(desk: Desk):
    """Each table's folder is looked at."""
    block = {"name": "orders", "table": "orders", "mode": "cdc", "cdc": {"initial": "snapshot"}}
    for number, name in enumerate(("shop", "billing")):
        desk.write(f"{name}.yaml", {name: changes(number)}, block)
    assert 0 == desk.run("shop.yaml").code

    (foreseen,) = desk.foreseen("billing.yaml")

    assert foreseen in desk.run("billing.yaml").said
    assert [] == desk.foreseen("shop.yaml")


def test_destination_that_cannot_be_read_is_a_warning_of_a_check(desk: Desk):
    """The run will tell it as the fault it is; until then nobody knows."""
    desk.write("rivet.yaml", {"shop": desk.database("shop", 3)}, FULL, FULL | {"name": "other"})
    assert 0 == desk.run("rivet.yaml").code
    for name in ("orders", "other"):
        (manifest,) = (desk.folder / "lake" / name / "_rivet").glob("*.json")
        manifest.write_text("{")

    answer = desk.rivet("check", "--json", "-c", "rivet.yaml")

    told = [each for export in json.loads(answer.out)["exports"] for each in export["findings"]]
    assert [("provenance", "warn")] * 2 == [(each["name"], each["status"]) for each in told if each["fix"]]
    assert 0 == answer.code
