"""Death of a drain at each step, on each engine that has a log; then more writes, then a drain that must set it right.

What is judged is what a reader of manifests sees: no (position, sequence) twice, and the changes of each table,
replayed over its first copy, are the table. The step names are those of `drain.py` and `commit.py`.
"""

from __future__ import annotations

import secrets
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import duckdb
import pytest

from rivet_resources.destinations.local import Local
from rivet_resources.manifest import current_manifests
from tests import tds
from tests.faults.drain_run import DEAD, drained

pytestmark = pytest.mark.faults

FIRST = ["begin", "begun", "copy", "parts", "manifest", "success", "metrics", "checkpoint"]
LATER = ["read", "part", "staged", "parts", "manifest", "success", "metrics", "checkpoint", "source", "acknowledged"]


@dataclass
class Shop:
    """A captured table of orders, a config that drains it, and what a reader sees of it."""

    folder: Path
    engine: str
    url: str
    run: Callable[..., None]  # statements, each committed by itself
    rows: Callable[[], dict[int, int]]  # the table as it is: id → total
    settings: str = ""
    written: int = field(default=0)

    def __post_init__(self) -> None:
        (self.folder / "rivet.yaml").write_text(
            f"source: {{type: {self.engine}, url: '{self.url}'}}\nspark: inline\nexports:\n"
            f"  - {{name: orders, table: orders, mode: cdc, format: parquet,\n"
            f"     destination: {{type: local, path: '{self.folder}/lake'}},\n"
            f"     cdc: {{initial: snapshot, rollover: 4{self.settings}}}}}\n"
        )

    def write(self) -> None:
        """Insert ten rows, change and delete some of them and of those before."""
        first = self.written
        self.written += 10
        values = ", ".join(f"({number}, {number})" for number in range(first, first + 10))
        self.run(
            f"INSERT INTO orders (id, total) VALUES {values}",
            f"UPDATE orders SET total = total + 1000 WHERE id >= {first + 5} OR id = {first // 2}",
            f"DELETE FROM orders WHERE id = {first + 2}",
        )

    def drain(self) -> None:
        drained(self.folder / "rivet.yaml")

    def die(self, step: str, nth: int = 1) -> None:
        """Drain in a process of its own, which must die at this step."""
        command = [sys.executable, "-m", "tests.faults.drain_run", str(self.folder / "rivet.yaml"), step, str(nth)]
        process = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False)
        assert process.returncode == DEAD, process.stdout + process.stderr

    def seen(self) -> list[tuple[str, int, str, int, int | None]]:
        """Read (pos, seq, op, id, total) of every committed change, in log order."""
        root = Local(type="local", path=f"{self.folder}/lake").root("orders")
        files = [f"{root.uri}/{part.path}" for each in current_manifests(root).values() for part in each.parts]
        listed = ", ".join(f"'{file}'" for file in files)
        read = f"read_parquet([{listed}], hive_partitioning = false)"
        query = f"SELECT __pos, __seq, __op, id, total FROM {read} ORDER BY __pos, __seq"
        return [tuple(row) for row in duckdb.sql(query).fetchall()]  # type: ignore[misc]

    def must_hold(self) -> None:
        """No change twice; replayed, the changes are the table; nothing staged is left."""
        changes = self.seen()
        later = [change[:2] for change in changes if change[1] != 0]
        assert len(later) == len(set(later))
        table: dict[int, int | None] = {}
        for _, _, op, key, total in changes:
            if op == "delete":
                table.pop(key, None)
            else:
                table[key] = total
        assert table == self.rows()


@pytest.fixture(params=["postgres", "mariadb", "sqlserver"])
def shop(request: pytest.FixtureRequest) -> Shop:
    made: Shop = request.getfixturevalue(f"shop_of_{request.param}")
    made.write()
    return made


@pytest.fixture
def shop_of_postgres(fresh_database: str, tmp_path: Path) -> Iterator[Shop]:
    import psycopg

    slot = f"deaths_{secrets.token_hex(4)}"
    with psycopg.connect(fresh_database, autocommit=True) as connection:

        def run(*statements: str) -> None:
            for statement in statements:
                connection.execute(f"SET synchronous_commit = on; {statement}".encode())

        def rows() -> dict[int, int]:
            return dict(connection.execute("SELECT id, total FROM orders").fetchall())

        run("CREATE TABLE orders (id bigint PRIMARY KEY, total bigint)")
        yield Shop(tmp_path, "postgres", fresh_database, run, rows, f", slot: {slot}")
        connection.execute(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = %s", [slot]
        )


@pytest.fixture
def shop_of_mariadb(fresh_mariadb: str, tmp_path: Path) -> Shop:
    from tests.servers_mysql import connection

    def run(*statements: str) -> None:
        with connection(fresh_mariadb) as opened, opened.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)

    def rows() -> dict[int, int]:
        with connection(fresh_mariadb) as opened, opened.cursor() as cursor:
            cursor.execute("SELECT id, total FROM orders")
            return dict(cursor.fetchall())

    run("CREATE TABLE orders (id bigint PRIMARY KEY, total bigint)")
    return Shop(tmp_path, "mysql", fresh_mariadb, run, rows)


@pytest.fixture
def shop_of_sqlserver(fresh_sqlserver: str, tmp_path: Path) -> Iterator[Shop]:
    from tests.tds_changes import captured_tables, write

    def rows() -> dict[int, int]:
        with tds.connect(fresh_sqlserver) as execute:
            return {int(key): int(total) for key, total in execute("SELECT id, total FROM orders")}

    captured_tables(fresh_sqlserver, "CREATE TABLE orders (id bigint NOT NULL PRIMARY KEY, total bigint NULL)")
    yield Shop(
        tmp_path,
        "sqlserver",
        fresh_sqlserver,
        lambda *statements: write(fresh_sqlserver, *statements),
        rows,
    )
    if tds.is_emulated():
        tds.forget(fresh_sqlserver)


@pytest.mark.parametrize("step", FIRST)
def test_death_in_the_first_run(shop: Shop, step: str) -> None:
    """The copy is made again, from the same place in the log; writes of the time between are not lost."""
    shop.die(step)
    shop.write()
    shop.drain()
    shop.must_hold()
    shop.write()
    shop.drain()
    shop.must_hold()


@pytest.mark.parametrize("step", LATER)
def test_death_in_a_later_run(shop: Shop, step: str) -> None:
    """The window is read again and replaces what the dead run showed of it."""
    shop.drain()
    shop.write()
    shop.die(step)
    shop.write()
    shop.drain()
    shop.must_hold()


def test_what_a_dead_drain_staged_is_swept(shop: Shop) -> None:
    """It is invisible from the beginning, and gone after the next drain."""
    shop.drain()
    shop.write()
    shop.die("staged")
    shop.drain()
    shop.must_hold()
    assert Local(type="local", path=f"{shop.folder}/lake").root("orders").staged_runs() == set()
