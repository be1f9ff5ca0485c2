"""Assets downstream get a DataFrame of exactly the committed rows, from every destination and format."""

from decimal import Decimal

import dagster as dg
import pytest

from tests.servers.postgres import AZURITE_ACCOUNT

pytestmark = [pytest.mark.spark, pytest.mark.slow]

SHAPES = """
source: {{{{type: postgres, url_env: SHOP_URL, environment: local}}}}
spark: inline
exports:
  - name: shapes
    query: SELECT {columns} FROM shapes
    format: {format}
    parquet: {more}
    destination: {destination}
"""
TABLE = (
    "CREATE TABLE shapes (id int PRIMARY KEY, big numeric(38,10), huge numeric(45,0), at timestamptz, wall timestamp, "
    "day date, clock time, code uuid, doc jsonb, tags text[], raw bytea, flag bool, empty text, nothing text)",
    "INSERT INTO shapes VALUES (1, 1234567890.0123456789, 10::numeric^44, '2026-01-31 12:34:56.789Z', "
    "'2026-01-31 12:34:56', '0018-04-01', '23:59:59.5', '6f1f9f5e-8f2c-4a5e-9b36-0123456789ab', '{\"a\": 1}', "
    "'{x,\"y,z\"}', '\\xdeadbeef', true, '', NULL)",
)


def mart(upstream: str, seen: dict, **partitions) -> dg.Definitions:
    """Define an asset that notes the rows and columns it was given."""

    @dg.asset(name="mart", ins={"rows": dg.AssetIn(key=dg.AssetKey(["postgres", upstream]))}, **partitions)
    def made(rows) -> dg.MaterializeResult:
        seen["rows"] = sorted((row.asDict() for row in rows.collect()), key=lambda row: row["id"])
        seen["columns"] = rows.columns
        return dg.MaterializeResult()

    return dg.Definitions(assets=[made])


def test_whole_export_is_read_in_the_same_run_and_later(shop, spark_runtime):
    """The mart beside its export, and a mart that runs alone, see the same committed rows."""
    seen: dict = {}
    together = shop.run("postgres/orders", "mart", more=[mart("orders", seen)])
    first = seen["rows"]

    alone = shop.run("mart", more=[mart("orders", seen)])

    assert together.success
    assert alone.success
    assert 240 == len(first)
    assert first == seen["rows"]
    assert Decimal("1.75") == first[7]["total"]


def test_only_committed_parts_are_read(shop, spark_runtime):
    """A refused run, a file that no manifest names: neither is seen."""
    shop.run("postgres/orders")
    shop.sql("UPDATE orders SET name = NULL")
    shop.run("postgres/orders")
    part = next((shop.folder / "lake/orders").glob("*.parquet"))
    part.with_name("stray.parquet").write_bytes(part.read_bytes())
    seen: dict = {}

    shop.run("mart", more=[mart("orders", seen)])

    assert 240 == len(seen["rows"])
    assert 180 == sum(row["name"] is not None for row in seen["rows"])


def test_one_day_a_range_and_all_days(shop, spark_runtime):
    """A partitioned mart gets the windows it asks for, an unpartitioned one the union of all."""
    from rivet_assets.config.load import load_config
    from rivet_assets.modes.partitions import partitions_of

    days = partitions_of(load_config(shop.config).export("days"))
    shop.run("postgres/days", days=("2026-01-02", "2026-01-05"))
    counts = []
    for first, last in (("2026-01-03", "2026-01-03"), ("2026-01-03", "2026-01-05")):
        seen: dict = {}
        policy = dg.BackfillPolicy.single_run()
        more = [mart("days", seen, partitions_def=days, backfill_policy=policy)]
        shop.run("mart", days=(first, last), more=more)
        counts.append(len(seen["rows"]))
    shop.run("mart", more=[mart("days", seen)])

    assert [24, 72, 96] == [*counts, len(seen["rows"])]


def test_day_that_was_never_committed_is_an_error_with_its_name(shop, spark_runtime):
    """A missing window is not an empty one."""
    from rivet_assets.config.load import load_config
    from rivet_assets.modes.partitions import partitions_of

    days = partitions_of(load_config(shop.config).export("days"))
    shop.run("postgres/days", days=("2026-01-02", "2026-01-03"))
    more = [mart("days", {}, partitions_def=days, backfill_policy=dg.BackfillPolicy.single_run())]

    run = shop.run("mart", days=("2026-01-03", "2026-01-04"), more=more)

    text = str(next(e for e in run.all_events if e.event_type_value == "STEP_FAILURE").step_failure_data)
    assert "Export days has no manifest" in text
    assert "for 2026-01-04" in text
    assert "2026-01-03," not in text


def test_empty_export_is_an_empty_frame_with_its_schema(shop, spark_runtime):
    """Nobody downstream needs a special case for a table without rows."""
    shop.sql("DELETE FROM orders")
    shop.config.write_text(shop.config.read_text().replace("row_count_min: 1,", ""))
    shop.run("postgres/orders")
    seen: dict = {}

    shop.run("mart", more=[mart("orders", seen)])

    assert {"rows": [], "columns": ["id", "at", "name", "total"]} == seen


@pytest.mark.parametrize(
    ("form", "more", "empty"),
    [("parquet", "{types: portable}", ""), ("parquet", "{types: native}", ""), ("csv", "{}", None)],
    ids=["portable", "native", "csv"],
)
@pytest.mark.parametrize("place", ["local", "s3", "gcs", "azure"])
def test_values_survive_the_way_through_every_destination(shop, spark_runtime, request, place, form, more, empty):
    """What Spark can hold has its type, the rest its text; only CSV has one spelling for '' and NULL."""
    destination = "{{type: local, path: {lake}}}"
    if place != "local":
        store = request.getfixturevalue(f"{place}_server")
        extra = {
            "s3": ", region: us-east-1",
            "gcs": ", allow_anonymous: true",
            "azure": f", account: {AZURITE_ACCOUNT}, account_key_env: AZURE_KEY",
        }[place]
        bucket, prefix = "container" if place == "azure" else "bucket", shop.folder.name
        where = f"{bucket}: {store.bucket}, prefix: {prefix}, endpoint: '{store.endpoint}'"
        destination = "{{" + f"type: {place}, {where}{extra}" + "}}"
    columns = "*" if form == "parquet" else "id, big, huge, at, wall, day, clock, code, doc, raw, flag, empty, nothing"
    shop.sql(*TABLE)
    shop.configure(
        SHAPES.format(
            format=form, destination=destination, columns=columns, more=more.replace("{", "{{").replace("}", "}}")
        )
    )
    assert shop.run("postgres/shapes").success
    seen: dict = {}

    run = shop.run("mart", more=[mart("shapes", seen)])

    assert run.success
    (row,) = seen["rows"]
    assert (1, Decimal("1234567890.0123456789")) == (row["id"], row["big"])
    assert str(10**44) == str(row["huge"])
    assert "6f1f9f5e-8f2c-4a5e-9b36-0123456789ab" == row["code"]
    assert "2026-01-31 12:34:56.789" == str(row["at"].replace(tzinfo=None))[:23]
    assert (empty, None, True) == (row["empty"], row["nothing"], row["flag"])
    assert "23:59:59.5" in str(row["clock"])
    assert b"\xde\xad\xbe\xef" == row["raw"]
