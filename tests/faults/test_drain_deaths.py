"""Death of a drain at each step, on each engine that has a log; then more writes, then a drain that must set it right.

What is judged is what a reader of manifests sees: no (position, sequence) twice, and the changes of each table,
replayed over its first copy, are the table. The step names are those of `drain/drain.py` and `commit/publish.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rivet_resources.destinations.local import Local
from tests.emulators.tds import server as tds
from tests.faults.shop import Shop, mysql_shop, postgres_shop

pytestmark = [pytest.mark.faults, pytest.mark.matrix]

FIRST = ["begin", "begun", "copy", "parts", "manifest", "success", "metrics", "checkpoint"]
LATER = [
    "read",
    "admitted",
    "part",
    "staged",
    "parts",
    "manifest",
    "success",
    "metrics",
    "checkpoint",
    "source",
    "acknowledged",
]


@pytest.fixture(params=["postgres", "mariadb", "sqlserver"])
def shop(request: pytest.FixtureRequest) -> Shop:
    made: Shop = request.getfixturevalue(f"shop_of_{request.param}")
    made.write()
    return made


@pytest.fixture
def shop_of_postgres(fresh_database: str, tmp_path: Path) -> Iterator[Shop]:
    with postgres_shop(fresh_database, tmp_path) as shop:
        yield shop


@pytest.fixture
def shop_of_mariadb(fresh_mariadb: str, tmp_path: Path) -> Shop:
    return mysql_shop(fresh_mariadb, tmp_path)


@pytest.fixture
def shop_of_mysql(fresh_mysql: str, tmp_path: Path) -> Shop:
    return mysql_shop(fresh_mysql, tmp_path)


@pytest.fixture(params=["postgres", "mariadb", "mysql"])
def busy_shop(request: pytest.FixtureRequest) -> Shop:
    """A shop that was drained once, and has changes for several windows of five."""
    made: Shop = request.getfixturevalue(f"shop_of_{request.param}")
    made.write()
    made.drain()
    for _ in range(3):
        made.write()
    return made


@pytest.fixture
def shop_of_sqlserver(fresh_sqlserver: str, tmp_path: Path) -> Iterator[Shop]:
    from tests.engines.sqlserver.changes import captured_tables, write

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


@pytest.mark.parametrize("nth", [1, 2])
@pytest.mark.parametrize("step", ["parts", "manifest", "success", "metrics", "checkpoint"])
def test_death_of_a_publication_while_the_next_window_is_staged(busy_shop: Shop, step: str, nth: int) -> None:
    """What was read ahead is read again; of the window that was published half, all is replaced."""
    busy_shop.die(step, nth, windows=5)
    busy_shop.write()
    busy_shop.drain()
    busy_shop.must_hold()


@pytest.mark.parametrize("held", ["parts", "manifest", "success", "checkpoint"])
@pytest.mark.parametrize(("step", "nth"), [("read", 2), ("part", 2), ("staged", 2)])
def test_death_of_the_reader_while_a_window_is_published(busy_shop: Shop, step: str, nth: int, held: str) -> None:
    """Nothing of the window that was read is shown before the one that was being published."""
    seen = busy_shop.seen()
    busy_shop.die(step, nth, windows=5, held=held)
    assert (seen == busy_shop.seen()) == (held in ("parts", "manifest"))
    busy_shop.write()
    busy_shop.drain()
    busy_shop.must_hold()


def test_what_a_dead_drain_staged_is_swept(shop: Shop) -> None:
    """It is invisible from the beginning, and gone after the next drain."""
    shop.drain()
    shop.write()
    shop.die("staged")
    shop.drain()
    shop.must_hold()
    assert Local(type="local", path=f"{shop.folder}/lake").root("orders").staged_runs() == set()
