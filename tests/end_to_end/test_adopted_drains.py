"""Drains of several tables whose state an earlier Rivet kept under bare names: whose it becomes, and what follows.

Belongs here: change logs. Not here: exports that read tables (`test_whose_state.py`), the rule
(`state/test_adoption.py`).
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import pytest
from sqlalchemy import create_engine, inspect, text

from rivet_assets.config.load import load_config
from rivet_assets.run.admit.scope import state_of
from rivet_resources.commit.manifest import current_manifests
from rivet_resources.destinations.local import Local
from rivet_resources.state.adoption import ALL
from rivet_resources.state.migrations import MIGRATIONS
from rivet_resources.state.scopes import SEPARATOR, name_in
from rivet_resources.state.store import default_url
from tests.end_to_end.test_whose_state import Desk
from tests.lab_engines import MARIADB, POSTGRES, Engine
from tests.servers.logical import logical_database
from tests.servers.mysql import create_mysql_database, drop_mysql_database

TABLES = ("orders", "items")
BEFORE_SCOPES = 3  # the version of the state store


@dataclass(frozen=True)
class Log:
    """An engine whose change log is drained, and two databases of one server."""

    engine: Engine
    urls: tuple[str, str]

    def run(self, database: int, *statements: str) -> None:
        """Run statements at one of the databases."""
        with self.engine.connect(self.urls[database]) as execute:
            for statement in (*(["SET synchronous_commit = on"] if self.engine is POSTGRES else []), *statements):
                execute(statement)

    def begin(self, database: int, rows: int) -> None:
        """Make both tables with so many rows."""
        for table in TABLES:
            values = ", ".join(f"({number}, 0)" for number in range(rows))
            self.run(database, f"CREATE TABLE {table} (id bigint PRIMARY KEY, total bigint)")
            self.run(database, f"INSERT INTO {table} VALUES {values}")


@pytest.fixture(params=["postgres", "mariadb"])
def log(request: pytest.FixtureRequest) -> Iterator[Log]:
    """Each engine."""
    if request.param == "postgres":
        server = request.getfixturevalue("postgres_url")
        with logical_database(server) as first, logical_database(server) as second:
            yield Log(POSTGRES, (first, second))
        return
    other = create_mysql_database(request.getfixturevalue("mariadb_url"))
    try:
        yield Log(MARIADB, (request.getfixturevalue("fresh_mariadb"), other))
    finally:
        drop_mysql_database(other)


@pytest.fixture(params=["file", "server"])
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The store of all configurations: the file beside them, where a project has no name, or a server."""
    monkeypatch.delenv("RIVET_STATE_URL", raising=False)
    if request.param == "file":
        return default_url(tmp_path)
    url: str = request.getfixturevalue("fresh_database")
    monkeypatch.setenv("RIVET_STATE_URL", url)
    return url


@pytest.fixture
def desk(tmp_path: Path, store: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Desk:
    """An empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DAGSTER_HOME", raising=False)
    return Desk(tmp_path, monkeypatch, capsys)


def drained(
    desk: Desk, file: str, log: Log, database: int, *,
    source: str = "shop", lake: str = "lake", initial: str | None = "snapshot",
) -> None:  # fmt: skip
    """Configure a drain of both tables of a database, with a slot of its own where there are any."""
    variable = f"LOG_URL_{database}"
    desk.monkeypatch.setenv(variable, log.urls[database])
    slot = {"slot": f"adopted_{secrets.token_hex(4)}"} if log.engine is POSTGRES else {}
    block = {"name": "sales", "mode": "cdc", "tables": list(TABLES), "cdc": {"initial": initial, **slot}}
    connection = {"type": log.engine.source["type"], "url_env": variable}
    desk.write(file, {source: connection}, block | {"format": "parquet"}, lake=lake)


def aged(store: str, lake: Path) -> None:
    """Take away what Rivet has kept since version 3 of the store: keys, identities, later columns and tables."""
    engine = create_engine(store.replace("postgresql://", "postgresql+psycopg://"))
    with engine.begin() as connection:
        for table in ALL:
            names = connection.execute(text(f"SELECT DISTINCT export_name FROM {table.name}")).scalars().all()
            for name in names:
                given = {"new": name_in(name), "old": name}
                connection.execute(text(f"UPDATE {table.name} SET export_name = :new WHERE export_name = :old"), given)
        for table in ("checkpoint", "checkpoint_audit"):
            for key in connection.execute(text(f"SELECT checkpoint_key FROM {table}")).scalars().all():
                given = {"new": key.rpartition(SEPARATOR)[2], "old": key}
                connection.execute(text(f"UPDATE {table} SET checkpoint_key = :new WHERE checkpoint_key = :old"), given)
        for statement in reversed([each for step in MIGRATIONS[BEFORE_SCOPES:] for each in step]):
            words = statement.split()
            undone = f"DROP TABLE {words[2]}" if words[0] == "CREATE" else f"ALTER TABLE {words[2]} DROP {words[5]}"
            connection.execute(text(undone))
        connection.execute(text(f"UPDATE rivet_store SET version = {BEFORE_SCOPES}"))
        assert "export_provenance" not in inspect(connection).get_table_names()
    engine.dispose()
    for file in lake.glob("*/*/_rivet/*.json"):
        document = json.loads(file.read_text())
        document["source"] = {k: v for k, v in document["source"].items() if k not in ("name", "database", "servers")}
        file.write_text(json.dumps(document))


def table_of(desk: Desk, lake: str, table: str) -> Mapping[int, Any]:
    """Replay the committed changes of a table, none of which may come twice; its rows."""
    root = Local(path=str(desk.folder / lake)).root(f"sales/{table}")
    files = [f"{root.uri}/{part.path}" for each in current_manifests(root).values() for part in each.parts]
    with duckdb.connect() as connection:
        asked = f"SELECT __pos, __seq, __op, id, total FROM read_parquet({files!r}, union_by_name = true)"
        changes = connection.execute(f"{asked} ORDER BY __pos, __seq, id").fetchall()
    later = [change[:2] for change in changes if change[1]]
    assert len(later) == len(set(later))
    found = {}
    for _, _, op, key, total in changes:
        if op == "delete":
            del found[key]
        else:
            found[key] = total
    return found


def test_drain_of_several_tables_goes_on_where_an_earlier_rivet_left_it(desk: Desk, store: str, log: Log):
    """Position, columns and history of each table are its own from the first run on; no row is copied anew.

    An idle drain is a run of the export alone, since no table got rows.
    """
    log.begin(0, 10)
    drained(desk, "sales.yaml", log, 0)
    assert 20 == desk.run("sales.yaml").rows
    aged(store, desk.folder / "lake")
    for table in TABLES:
        log.run(0, f"UPDATE {table} SET total = 7 WHERE id = 3", f"DELETE FROM {table} WHERE id = 4")

    foreseen, ran, idle = desk.foreseen("sales.yaml"), desk.run("sales.yaml"), desk.run("sales.yaml")

    assert ([], 0) == (foreseen, ran.code), ran.err
    assert (4, 0) == (ran.rows, idle.rows)
    expected = {number: 7 if number == 3 else 0 for number in range(10) if number != 4}
    assert [expected, expected] == [table_of(desk, "lake", table) for table in TABLES]
    config = load_config(desk.folder / "sales.yaml")
    with closing(state_of(config)) as state:
        assert [3, 2, 2] == [len(state.runs(name)) for name in ("sales", *(f"sales/{table}" for table in TABLES))]
        assert all(1 == len(state.schema_history(f"sales/{table}")) for table in TABLES)
        assert set() == state.adoptions().waiting()


def test_drain_of_another_file_takes_nothing_of_a_state_of_before(desk: Desk, store: str, log: Log):
    """A new configuration with the same names copies its own tables, whichever runs first; the old one goes on."""
    log.begin(0, 10)
    log.begin(1, 4)
    drained(desk, "sales.yaml", log, 0)
    assert 20 == desk.run("sales.yaml").rows
    aged(store, desk.folder / "lake")
    is_file = store.startswith("sqlite")
    drained(desk, "other/sales.yaml", log, 1, lake="other_lake", source="other" if is_file else "shop")
    if is_file:
        desk.monkeypatch.setenv("RIVET_STATE_URL", store)

    other = desk.run("other/sales.yaml")

    assert (0, 8) == (other.code, other.rows), other.err
    log.run(0, "UPDATE orders SET total = 7 WHERE id = 3")
    log.run(1, "UPDATE items SET total = 8 WHERE id = 2")
    ran = [desk.run(file).rows for file in ("sales.yaml", "other/sales.yaml")]
    assert [1, 1] == ran
    assert 7 == table_of(desk, "lake", "orders")[3]
    assert 8 == table_of(desk, "other_lake", "items")[2]


@pytest.mark.parametrize("store", ["server"], indirect=True)
def test_position_of_before_without_its_windows_is_not_passed_over(desk: Desk, store: str, log: Log):
    """A drain that copies nothing would begin after the changes since: it says so, until it is told what to do."""
    log.begin(0, 10)
    drained(desk, "sales.yaml", log, 0)
    assert 20 == desk.run("sales.yaml").rows
    aged(store, desk.folder / "lake")
    log.run(0, "UPDATE orders SET total = 7 WHERE id = 3")
    drained(desk, "sales.yaml", log, 0, lake="elsewhere", initial=None)

    refused = desk.run("sales.yaml")
    desk.rivet("state", "reset", "-c", "sales.yaml", "-e", "sales")
    begun = desk.run("sales.yaml")

    assert (1, True) == (refused.code, "earlier Rivet kept without its project" in refused.err), refused.err
    assert (0, 0) == (begun.code, begun.rows), begun.err
