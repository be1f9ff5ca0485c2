"""`mask_tags` over a log: tags of now decide before a change is written, in both images, and what went is refused."""

from __future__ import annotations

import io
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

from rivet_assets.cli.main import commands
from rivet_assets.config.load import load_config
from rivet_assets.run.masked_keys import refuse_merging
from rivet_resources.commit.manifest import current_manifests
from rivet_resources.contracts.settings import pace
from rivet_resources.errors import ConfigError, DriftRefused
from rivet_resources.shape.transforms.mask_tags import ColumnTagRefused
from tests import room
from tests.faults.shop import Shop, mysql_shop, postgres_shop
from tests.servers import mysql as servers_mysql
from tests.servers.binlog import BinlogServer, serving

RULES = "{'pii: email': {method: hash, key: k1, length: 12}, pii: {method: redact}}"
TAGS = f", mask_tags: {RULES}"
PLAIN = "@x.org"


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
    """A shop of two orders with addresses; its export masks by tags, and keeps rows before."""
    if request.param == "postgres":
        with postgres_shop(request.getfixturevalue("fresh_database"), tmp_path) as made:
            yield opened(made)
    else:
        server: BinlogServer = request.getfixturevalue("own_mariadb")
        server.run("DROP DATABASE IF EXISTS app", "CREATE DATABASE app")
        yield opened(mysql_shop(f"{server.url}app", tmp_path))


only_postgres = pytest.mark.parametrize("shop", ["postgres"], indirect=True)


def opened(shop: Shop) -> Shop:
    shop.run("ALTER TABLE orders ADD COLUMN email varchar(40)")
    if shop.engine == "postgres":
        shop.run("ALTER TABLE orders REPLICA IDENTITY FULL")
    shop.run(f"INSERT INTO orders (id, total, email) VALUES (1, 1, 'a{PLAIN}'), (2, 2, 'b{PLAIN}')")
    shop.configure(cdc=", before: true", export=TAGS)
    return shop


def comment(shop: Shop, text: str, *, column: str = "email") -> None:
    """Set the comment of a column."""
    if shop.engine == "postgres":
        shop.run(f"COMMENT ON COLUMN orders.{column} IS '{text}'")
    else:
        kind = "bigint" if column == "id" else "varchar(40)"
        shop.run(f"ALTER TABLE orders MODIFY {column} {kind} COMMENT '{text}'")


def change(shop: Shop) -> None:
    """Write an insert, an update and a delete, all with addresses."""
    shop.run(
        f"INSERT INTO orders (id, total, email) VALUES (3, 3, 'c{PLAIN}')",
        f"UPDATE orders SET email = 'd{PLAIN}' WHERE id = 1",
        "DELETE FROM orders WHERE id = 2",
    )


def published(shop: Shop) -> str:
    """Return all that is published, as one text."""
    return "\n".join(str(part.to_pylist()) for part in shop.parts())


def masked(shop: Shop) -> list[dict[str, str] | None]:
    """Return what the manifests say of masks, in the order of their commits."""
    found = sorted(current_manifests(shop.root()).values(), key=lambda each: each.finished_at)
    return [each.masked for each in found]


def rivet(shop: Shop, *arguments: str) -> Result:
    """Run a command with the shop's file."""
    return CliRunner().invoke(commands, [*arguments, "-c", str(shop.config)], standalone_mode=False)


def test_copy_and_changes_are_masked_in_both_images(shop: Shop) -> None:
    """No plain value in any part; NULL stays; each manifest names the column and its tag."""
    comment(shop, "Address. PII: Email.")
    shop.drain()
    change(shop)
    shop.drain()

    shop.must_hold()
    assert PLAIN not in published(shop)
    assert [{"email": "pii: email"}] * 2 == masked(shop)
    assert "email: pii: email (rule 'pii: email')" in rivet(shop, "check").output


def test_tag_that_is_set_later_masks_from_the_next_drain_on_and_is_told(shop: Shop) -> None:
    """What was written before the comment, and is drained behind it, is masked as well."""
    shop.drain()
    change(shop)
    comment(shop, "pii")

    told = rivet(shop, "run")

    assert 0 == told.return_value, told.output
    assert "masked from this run on: column email, by its tag 'pii'" in told.output
    assert "rivet state reset -e orders" in told.output
    assert ["a", "b"] == sorted(text[0] for text in published(shop).split("'email': '")[1:] if PLAIN in text[:8])
    assert [{}, {"email": "pii"}] == masked(shop)


def test_column_that_lost_its_tag_is_refused_before_anything_is_published(shop: Shop) -> None:
    """Exit code 4, the position stays; the tag again, or `unmasked`, and the changes come."""
    comment(shop, "pii")
    shop.drain()
    comment(shop, "")
    change(shop)

    with shop.refused(DriftRefused, "'email' (tag 'pii')") as failure:
        shop.drain()
    checked = rivet(shop, "check")
    shop.configure(cdc=", before: true", export=f"{TAGS}, unmasked: [orders.email]")
    shop.drain()

    assert (4, 1) == (failure.value.exit_code, checked.return_value)
    shop.must_hold()
    assert f"d{PLAIN}" in published(shop)
    assert f"b{PLAIN}" not in published(shop).partition("delete")[0]


def test_masks_are_remembered_where_the_store_is_lost(shop: Shop) -> None:
    """The manifests of windows say what they masked."""
    shop.configure(cdc=f", checkpoint: '{shop.folder}/place.json'", export=TAGS)
    comment(shop, "pii")
    shop.drain()
    comment(shop, "")
    change(shop)
    for file in shop.folder.glob(".rivet_state.db*"):
        file.unlink()

    with shop.refused(DriftRefused, "'email' (tag 'pii')"):
        shop.drain()


def test_column_that_comes_with_a_tag_is_masked_from_its_first_value(shop: Shop) -> None:
    """In the middle of the log, and in the middle of a drain that reads it."""
    shop.drain()
    change(shop)

    def added() -> None:
        text = "" if shop.engine == "postgres" else " COMMENT 'pii'"
        shop.run(f"ALTER TABLE orders ADD COLUMN phone varchar(40){text}")
        if shop.engine == "postgres":
            comment(shop, "pii", column="phone")
        shop.run("INSERT INTO orders (id, total, phone) VALUES (9, 9, '0049-7')")

    shop.at("read", added)
    shop.drain()

    shop.must_hold()
    assert ("[REDACTED]" in published(shop), "0049-7" in published(shop)) == (True, False)


def test_column_that_is_gone_keeps_the_mask_that_is_remembered(shop: Shop) -> None:
    """Its changes are drained behind its DROP; nobody can ask for its comment any more."""
    comment(shop, "pii")
    shop.drain()
    change(shop)
    shop.run("ALTER TABLE orders DROP COLUMN email")

    shop.drain()

    shop.must_hold()
    assert PLAIN not in published(shop)


def test_column_that_is_gone_and_had_no_tag_that_is_known_is_refused(shop: Shop) -> None:
    """It may have had one since the last drain; `unmasked` may name it, and stays right when it has passed."""
    shop.drain()
    change(shop)
    shop.run("ALTER TABLE orders DROP COLUMN email")

    with shop.refused(ColumnTagRefused, "Name orders.email in `unmasked`"):
        shop.drain()
    shop.configure(cdc=", before: true", export=f"{TAGS}, unmasked: [orders.email]")
    shop.drain()
    shop.run("INSERT INTO orders (id, total) VALUES (4, 4)")
    shop.drain()

    shop.must_hold()


@only_postgres
def test_several_tables_are_masked_each_by_its_own_comments(shop: Shop) -> None:
    """`unmasked` names a column of one of them, and `rivet check` shows them with their tables."""
    shop.run(
        "CREATE TABLE people (id bigint PRIMARY KEY, email text)",
        f"INSERT INTO people VALUES (1, 'p{PLAIN}')",
        "COMMENT ON COLUMN people.email IS 'pii'",
    )
    comment(shop, "pii")
    shop.config.write_text(
        shop.config.read_text().replace("table: orders", "tables: [orders, people]")
        .replace(TAGS, f"{TAGS}, unmasked: [orders.email]")
    )  # fmt: skip

    checked = rivet(shop, "check")
    ran = rivet(shop, "run")

    assert 0 == ran.return_value, ran.output
    assert "public.people.email: pii (rule 'pii')" in checked.output
    assert [True, True] == [PLAIN in text for text in texts_of(shop, "orders")]
    assert ["[REDACTED]"] == texts_of(shop, "people")


def texts_of(shop: Shop, table: str) -> list[str]:
    """Return the addresses of a table's first copy."""
    parts = (shop.folder / "lake" / "orders").rglob(f"{table}/**/*.parquet")
    return [row["email"] for part in parts for row in pq.read_table(part, partitioning=None).to_pylist()]


@only_postgres
def test_key_that_gets_a_tag_is_refused_where_tables_are_made_of_changes(shop: Shop) -> None:
    """Again and again, until the configuration says otherwise; without such tables its changes are masked."""
    with_mirror(shop)
    shop.config.write_text(shop.config.read_text().replace("initial: snapshot, ", ""))
    shop.drain()
    comment(shop, "pii: email", column="id")
    change(shop)

    for _ in range(2):
        with shop.refused(DriftRefused, "column 'id' of orders", "rivet state reset -e orders"):
            shop.drain()
    shop.config.write_text(shop.config.read_text().replace(", apply: mirror", ""))
    shop.drain()

    assert {12} == {len(row["id"]) for part in shop.parts() for row in part.to_pylist()}


@pytest.mark.rare
@pytest.mark.spark
@only_postgres
def test_mirror_of_a_key_that_got_a_tag_begins_anew(shop: Shop) -> None:
    """A mirror of plain keys would never find the rows of masked ones; begun anew, it has the masked ones alone."""
    with_mirror(shop)
    first = rivet(shop, "run")
    comment(shop, "pii: email", column="id")
    change(shop)

    refused = [rivet(shop, "run"), rivet(shop, "run")]
    rivet(shop, "state", "reset", "-e", "orders")
    shop.run("SELECT pg_drop_replication_slot('{slot}')")
    again = rivet(shop, "run")
    change_again = f"UPDATE orders SET email = 'e{PLAIN}' WHERE id = 3", "DELETE FROM orders WHERE id = 1"
    shop.run(*change_again)
    last = rivet(shop, "run")

    assert (0, [4, 4]) == (first.return_value, [each.return_value for each in refused]), first.output
    assert "column 'id' of orders has the tag 'pii: email' now" in refused[1].output
    assert (0, 0) == (again.return_value, last.return_value), again.output + last.output
    mirror = [row for part in mirrored(shop) for row in part.to_pylist()]
    assert [(12, f"e{PLAIN}")] == [(len(row["id"]), row["email"]) for row in mirror]


def with_mirror(shop: Shop) -> None:
    """Let the export have a mirror, which Spark makes."""
    shop.configure(export=f"{TAGS}, apply: mirror")
    shop.config.write_text(shop.config.read_text().replace("spark: inline\n", ""))


def mirrored(shop: Shop) -> list[pa.Table]:
    """Read the parts of the mirror."""
    root = load_config(shop.config).exports[0].destination.root("orders_mirror")
    parts = [part for manifest in current_manifests(root).values() for part in manifest.parts]
    return [pq.read_table(io.BytesIO(root.open(part.path).read())) for part in parts]


@only_postgres
def test_key_whose_mask_makes_rows_equal_is_refused_in_a_mirror(shop: Shop) -> None:
    """As with `type: mask`."""
    with_mirror(shop)
    comment(shop, "pii", column="id")
    export = load_config(shop.config).exports[0]
    source = load_config(shop.config).source_of(export)[1]
    with source.session(application="test", pace=pace(None, None), snapshot=False) as session:
        relation = session.describe(table="orders", query=None, params={}, rules=export.type_rules())

        with pytest.raises(ConfigError, match="key column 'id' is masked by a method that makes different keys equal"):
            refuse_merging(export, relation, ("id",))


@only_postgres
def test_tag_that_no_rule_is_for_stops_the_drain(shop: Shop) -> None:
    """Before a change is published."""
    shop.drain()
    shop.configure(export=", mask_tags: {'pii: email': {method: redact}}")
    comment(shop, "pii: fax")
    change(shop)

    with shop.refused(ColumnTagRefused, "tag 'pii: fax', and no rule is for it"):
        shop.drain()
