"""Columns and tables that change between and inside the windows of a drain, seen from outside (`on_schema_drift`).

Belongs here: DDL on the source. Not here: how one log tells of it (`engines/test_changes_*`).
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rivet_resources.errors import DriftRefused, LogRefused, PositionLost
from tests import room
from tests.faults.shop import CREATE, Shop, begin_anew, mysql_shop, postgres_shop
from tests.servers import mysql as servers_mysql
from tests.servers.binlog import BinlogServer, serving

pytestmark = [pytest.mark.faults, pytest.mark.matrix]

ALTERS = {
    "add": "ADD COLUMN nick varchar(20) DEFAULT 'x'",
    "drop": "DROP COLUMN note",
    "rename": "RENAME COLUMN note TO remark",
    "retype": "ALTER COLUMN note TYPE bigint USING 7",
}
UNTOLD = ", accept_untold: columns"  # so that the drains go on
AFTER = {"add": {"note", "nick"}, "drop": set(), "rename": {"remark"}, "retype": {"note"}}


@pytest.fixture(scope="module")
def own_mariadb() -> Iterator[BinlogServer]:
    """A MariaDB of this module's own."""
    try:
        with (
            tempfile.TemporaryDirectory(prefix="rivet-log-", dir=room.chosen()) as folder,
            serving("mariadb", Path(folder) / "mariadb") as running,
        ):
            yield running
    except servers_mysql.NoServer as reason:
        pytest.skip(str(reason))


@pytest.fixture(params=["postgres", "mariadb"])
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shop]:
    """A shop whose orders have a note; drained, and written to since."""
    if request.param == "postgres":
        with postgres_shop(request.getfixturevalue("fresh_database"), tmp_path) as made:
            yield begun(made)
    else:
        server: BinlogServer = request.getfixturevalue("own_mariadb")
        server.run("DROP DATABASE IF EXISTS app", "CREATE DATABASE app")
        yield begun(mysql_shop(f"{server.url}app", tmp_path))


def begun(shop: Shop) -> Shop:
    shop.run("ALTER TABLE orders ADD COLUMN note varchar(20)")
    shop.write()
    shop.drain()
    shop.write()
    return shop


def alter(shop: Shop, kind: str) -> None:
    """Change a column in the engine's own words."""
    change = "MODIFY note bigint" if (kind, shop.engine) == ("retype", "mysql") else ALTERS[kind]
    shop.run(f"ALTER TABLE orders {change}")


def columns(shop: Shop) -> Counter[frozenset[str]]:
    """Count the committed parts by the columns that they have besides those of every part."""
    return Counter(
        frozenset(name for name in part.column_names if not name.startswith("__")) - {"id", "total"}
        for part in shop.parts()
    )


def cells(shop: Shop, name: str, key: int) -> list[Any]:
    """Read a column of one order wherever a part has it."""
    return [
        row[name]
        for part in shop.parts()
        if name in part.column_names
        for row in part.select(["id", name]).to_pylist()
        if row["id"] == key
    ]


@pytest.mark.parametrize("kind", ALTERS)
@pytest.mark.parametrize("where", ["between", "inside", "in mid-drain"])
def test_altered_columns_get_parts_of_their_own(shop: Shop, kind: str, where: str) -> None:
    """With `warn`: each change has the columns that it was written with, by their names then."""
    shop.configure(cdc=UNTOLD, export=", on_schema_drift: warn")
    if where == "between":
        shop.drain()
    if where == "in mid-drain":
        shop.at("read", lambda: alter(shop, kind), shop.write)
    else:
        alter(shop, kind)
        shop.write()
    shop.drain()
    shop.must_hold()
    assert set(columns(shop)) == {frozenset({"note"}), frozenset(AFTER[kind])}
    if kind == "add":
        assert cells(shop, "nick", shop.written - 1) == ["x", "x"]  # inserted, then updated
    shop.write()
    shop.drain()
    shop.must_hold()


@pytest.mark.parametrize("kind", ALTERS)
def test_altered_columns_are_refused_where_the_policy_says_so(shop: Shop, kind: str) -> None:
    """With `fail`: nothing is published or acknowledged, again and again, until the policy is changed for a run."""
    shop.configure(cdc=UNTOLD, export=", on_schema_drift: fail")
    shop.drain()
    alter(shop, kind)
    shop.write()
    for _ in range(2):
        with shop.refused(DriftRefused, "on_schema_drift is fail", "continue and warn accept it"):
            shop.drain()
    shop.configure(cdc=UNTOLD, export=", on_schema_drift: continue")
    shop.drain()
    shop.must_hold()
    shop.configure(cdc=UNTOLD, export=", on_schema_drift: fail")
    shop.write()
    shop.drain()
    shop.must_hold()


@pytest.mark.parametrize("kind", ALTERS)
def test_evolve_takes_added_columns_and_no_other_change(shop: Shop, kind: str) -> None:
    """With `evolve`: a column more goes through; anything else is refused as by `fail`, until the policy changes."""
    shop.configure(cdc=UNTOLD, export=", on_schema_drift: evolve")
    shop.drain()
    alter(shop, kind)
    shop.write()
    if kind != "add":
        with shop.refused(DriftRefused, "evolve, which takes added columns alone", "continue and warn accept it"):
            shop.drain()
        shop.configure(cdc=UNTOLD, export=", on_schema_drift: warn")
    shop.drain()
    shop.must_hold()
    assert frozenset(AFTER[kind]) in columns(shop)


def test_columns_that_came_and_went_are_refused_too(shop: Shop) -> None:
    """With `fail`: what a window ends with is what was there before; what it holds is not."""
    shop.configure(cdc=UNTOLD, export=", on_schema_drift: fail")
    shop.drain()
    alter(shop, "add")
    shop.write()
    shop.run("ALTER TABLE orders DROP COLUMN nick")
    shop.write()
    with shop.refused(DriftRefused, "nick", "on_schema_drift is fail"):
        shop.drain()
    shop.configure(cdc=UNTOLD, export=", on_schema_drift: warn")
    shop.drain()
    shop.must_hold()
    assert set(columns(shop)) == {frozenset({"note"}), frozenset({"note", "nick"})}


UNTELLABLE = {
    "default": ("ADD COLUMN nick varchar(20) DEFAULT 'x'", "nick"),
    "not null": ("ADD COLUMN nick int NOT NULL DEFAULT 7", "nick"),
    "rename": ("RENAME COLUMN note TO remark", "note"),
}


@pytest.mark.parametrize("policy", ["continue", "warn"])
@pytest.mark.parametrize("kind", UNTELLABLE)
def test_values_of_old_rows_that_the_log_does_not_tell_are_refused(shop: Shop, kind: str, policy: str) -> None:
    """Whatever the policy on drift: rows that were not written since would be wrong. A new copy has all of them."""
    shop.configure(export=f", on_schema_drift: {policy}")
    shop.drain()
    change, name = UNTELLABLE[kind]
    shop.run(f"ALTER TABLE orders {change}")
    shop.write()
    error = PositionLost if shop.engine == "postgres" else LogRefused
    for _ in range(2):
        with shop.refused(error, name, "accept_untold: [columns]", "initial: snapshot"):
            shop.drain()
    begin_anew(shop, *(["SELECT pg_drop_replication_slot('{slot}')"] if shop.engine == "postgres" else []))


def test_nullable_column_without_a_default_is_no_trouble(shop: Shop) -> None:
    """Old rows are NULL at the source too."""
    shop.drain()
    shop.run("ALTER TABLE orders ADD COLUMN nick varchar(20)")
    shop.write()
    shop.drain()
    shop.must_hold()


def test_dropped_table_is_drained_to_its_end_and_another_of_its_name_refused(shop: Shop) -> None:
    """What was written before the drop is not lost; a new table under the name needs a copy of its own."""
    rows = shop.rows()
    shop.run("DROP TABLE orders")
    shop.drain()
    if shop.engine == "postgres":  # the log of the others has the DROP, and it ends the rows
        shop.rows = lambda: rows
        shop.must_hold()
    shop.drain()
    shop.run(CREATE, "INSERT INTO orders (id, total) VALUES (1, 1)")
    if shop.engine == "postgres":
        shop.run("ALTER PUBLICATION {slot} ADD TABLE orders")
        with shop.refused(PositionLost, "Another table has taken the name"):
            shop.drain()


def test_renamed_table_is_followed_or_refused(shop: Shop) -> None:
    """PostgreSQL keeps the relation, and so do we; a log that knows names alone must not lose rows in silence."""
    shop.run("ALTER TABLE orders RENAME TO sold", "INSERT INTO sold (id, total) VALUES (-9, 9)")
    holds_or_refuses(shop, "ALTER TABLE sold RENAME TO orders")


def test_table_swapped_for_another_is_refused(shop: Shop) -> None:
    """As tools for online schema changes do it: the rows that came with the name are in no change."""
    shop.run("CREATE TABLE other (LIKE orders INCLUDING ALL)" if shop.engine == "postgres" else
             "CREATE TABLE other LIKE orders", "INSERT INTO other (id, total) VALUES (-9, 9)",
             "ALTER TABLE orders RENAME TO sold", "ALTER TABLE other RENAME TO orders")  # fmt: skip
    if shop.engine == "postgres":
        shop.run("ALTER PUBLICATION {slot} ADD TABLE orders")
        with shop.refused(PositionLost, "Another table has taken the name", "initial: snapshot"):
            shop.drain()
        return
    holds_or_refuses(shop)


def holds_or_refuses(shop: Shop, *statements: str) -> None:
    """Drain, run statements and write, drain again: all of it is there, or a drain says no."""
    try:
        shop.drain()
        shop.run(*statements)
        shop.write()
        shop.drain()
    except (LogRefused, PositionLost):
        assert shop.engine != "postgres"
        return
    shop.must_hold()
