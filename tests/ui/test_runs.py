"""What a run tells Dagster, in which order, and what it leaves at the destination."""

from datetime import UTC, datetime
from pathlib import Path

import dagster as dg
import psycopg
import pytest

from rivet_assets.run.admit.admission import ADOPT
from tests.ui.conftest import SHOP

BAD_SOURCE = """
source: {{type: postgres, url_env: SHOP_URL, tuning: {{throttle_ms: 0, max_retries: 0, retry_backoff_ms: 10}}}}
spark: inline
exports:
  - name: gone
    table: nowhere
    format: parquet
    destination: {{type: local, path: {lake}}}
  - name: gone_days
    table: nowhere
    mode: time_window
    time_column: at
    start: 2026-01-01
    end: 2026-01-11
    format: parquet
    destination: {{type: local, path: {lake}}}
"""


def told(run: dg.ExecuteInProcessResult) -> list[tuple[str, str]]:
    """List what a run told of its assets: (kind of event, check or partition)."""
    found = []
    for event in run.all_events:
        if event.event_type_value == "ASSET_MATERIALIZATION":
            found.append(("materialization", event.partition or ""))
        elif event.event_type_value == "ASSET_CHECK_EVALUATION":
            data = event.asset_check_evaluation_data
            name = f"{data.check_name} {data.partition}" if data.partition else data.check_name
            found.append(("passed" if data.passed else "failed", name))
        elif event.event_type_value == "STEP_FAILURE":
            found.append(("failure", event.step_failure_data.user_failure_data.metadata["rivet/code"].value))
    return found


def failure(run: dg.ExecuteInProcessResult) -> dg.DagsterEvent:
    """Find the failure of the run's one step."""
    return next(e for e in run.all_events if e.event_type_value == "STEP_FAILURE").step_failure_data.user_failure_data


def test_results_follow_the_materialization_when_the_gate_passes(shop):
    """Check results come last, so that they are tied to the rows they judged."""
    run = shop.run("postgres/orders")

    assert told(run) == [
        ("materialization", ""),
        ("passed", "row_count_min"),
        ("passed", "null_ratio_max__name"),
        ("passed", "unique__id"),
        ("passed", "columns"),
    ]


def test_results_come_before_the_failure_when_the_gate_refuses(shop):
    """A refused window has verdicts and a failure, but neither a materialization nor a manifest."""
    shop.sql("UPDATE orders SET name = NULL")

    run = shop.run("postgres/orders")

    assert told(run) == [
        ("passed", "row_count_min"),
        ("failed", "null_ratio_max__name"),
        ("passed", "unique__id"),
        ("passed", "columns"),
        ("failure", "RIVET_QUALITY_REFUSED"),
    ]
    assert {} == shop.manifests("orders")
    assert [] == [path for path in (shop.folder / "lake").rglob("*.parquet")]


def test_page_leads_with_a_summary_and_shows_each_thing_once(shop):
    """At most a dozen entries: the numbers that people plot, schema, lineage, paths; the rest is under `details`."""
    (event,) = shop.run("postgres/orders").asset_materializations_for_node("postgres__orders")

    facts = {key: value.value for key, value in event.metadata.items()}
    names = ["rivet/summary", "dagster/row_count", "rivet/size_mb", "rivet/seconds", "dagster/uri"]
    names += ["dagster/column_schema", "dagster/column_lineage", "rivet/details"]
    names += ["rivet/seconds_publish", "rivet/manifest"]
    assert names == list(facts)
    assert all(isinstance(facts[name], int | float) for name in ("rivet/size_mb", "rivet/seconds"))
    assert 240 == facts["dagster/row_count"]
    assert "| Rows | 240 |" in facts["rivet/summary"]
    assert len(facts["rivet/summary"]) < 1000 <= len(facts["rivet/details"])
    assert "| rows_scanned | 240" in facts["rivet/details"].replace("240.0", "240")
    assert "| orders" in facts["rivet/details"]
    assert isinstance(event.metadata["rivet/manifest"], dg.PathMetadataValue)
    assert not [name for name, value in event.metadata.items() if isinstance(value, dg.JsonMetadataValue)]
    assert ["id", "at", "name", "total"] == [column.name for column in facts["dagster/column_schema"].columns]
    assert "who bought; text" == facts["dagster/column_schema"].columns[2].description
    (origin,) = facts["dagster/column_lineage"].deps_by_column["total"]
    assert (dg.AssetKey(["postgres", "public", "orders"]), "total") == (origin.asset_key, origin.column_name)
    assert (shop.folder / "lake/orders/_rivet/all.json") == Path(facts["rivet/manifest"])


INCREMENTS = """
source: {{type: postgres, url_env: SHOP_URL, environment: local}}
spark: inline
exports:
  - name: grown
    table: orders
    mode: incremental
    cursor_column: id
    format: parquet
    destination: {{type: local, path: {lake}}}
"""


def test_rows_of_an_increment_are_not_the_rows_of_the_table(shop):
    """Dagster shows `dagster/row_count` as the table's; a load has a name of its own."""
    shop.configure(INCREMENTS)
    shop.run("postgres/grown")
    shop.sql("INSERT INTO orders VALUES (1000, '2026-02-02 12:34Z', 'new', 1)")

    (event,) = shop.run("postgres/grown").asset_materializations_for_node("postgres__grown")

    assert 1 == event.metadata["rivet/rows"].value
    assert {"dagster/row_count", "dagster/partition_row_count"}.isdisjoint(event.metadata)


TIMES = """
source: {{type: postgres, url_env: SHOP_URL, environment: local}}
spark: inline
exports:
  - name: grown
    table: orders
    mode: incremental
    cursor_column: at
    format: parquet
    destination: {{type: local, path: {lake}}}
"""


def test_windows_of_an_incremental_export_are_a_timeline(shop):
    """Each load says from where to where it went: of a number as one that Dagster plots, of times with its distance."""
    shop.configure(INCREMENTS)
    shop.run("postgres/grown")
    shop.sql("INSERT INTO orders VALUES (1000, '2026-02-02 12:34Z', 'new', 1)")
    shop.run("postgres/grown")

    (event,) = shop.run("postgres/grown").asset_materializations_for_node("postgres__grown")
    events = shop.instance.fetch_materializations(dg.AssetKey(["postgres", "grown"]), limit=9).records

    told = [record.asset_materialization.metadata for record in reversed(events)]
    seen = [tuple(each[name].value if name in each else None for name in ("rivet/from", "rivet/to")) for each in told]
    assert [(None, 239), (239, 1000), (1000, 1000)] == seen
    assert "| Window | nothing new after 1000 |" in event.metadata["rivet/summary"].value
    lines = [line for line in event.metadata["rivet/details"].value.splitlines() if "█" in line or "| 1000 |" in line]
    cells = [[cell.strip() for cell in line.split("|")[1:4]] for line in lines]
    assert [["1000", "1000", "0"], ["239", "1000", "1"], ["the beginning", "239", "240"]] == cells


def test_windows_of_times_say_how_wide_they_are_and_how_far_behind(shop):
    """An instant is shown as one, in the reader's own zone; what is plotted are hours."""
    shop.configure(TIMES)
    shop.run("postgres/grown")
    shop.sql("INSERT INTO orders VALUES (1000, '2026-01-12 23:00Z', 'new', 1)")

    (event,) = shop.run("postgres/grown").asset_materializations_for_node("postgres__grown")

    facts = event.metadata
    ends = [datetime.fromtimestamp(facts[name].value, UTC) for name in ("rivet/from", "rivet/to")]
    assert [datetime(2026, 1, 10, 23, tzinfo=UTC), datetime(2026, 1, 12, 23, tzinfo=UTC)] == ends
    assert isinstance(facts["rivet/to"], dg.TimestampMetadataValue)
    assert 48.0 == facts["rivet/covers_hours"].value
    assert "| Window | 2026-01-10T23:00:00Z … 2026-01-12T23:00:00Z |" in facts["rivet/summary"].value
    behind = (datetime.now(UTC) - ends[1]).total_seconds() / 3600
    assert behind - 1 < facts["rivet/cursor_age_seconds"].value / 3600 <= behind


POLLED = """
source: {{type: postgres, url_env: SHOP_URL, environment: local}}
spark: inline
exports:
  - name: polled
    table: orders
    mode: poll
    updated_at_column: at
    format: parquet
    destination: {{type: local, path: {lake}}}
"""


def test_windows_of_a_poll_are_of_its_stamps(shop):
    """The next run needs key and ties of the last row too; people read the stamp."""
    shop.configure(POLLED)
    shop.run("postgres/polled")
    shop.sql("INSERT INTO orders VALUES (1000, '2026-01-12 23:00Z', 'new', 1)")

    (event,) = shop.run("postgres/polled").asset_materializations_for_node("postgres__polled")

    facts = event.metadata
    ends = [datetime.fromtimestamp(facts[name].value, UTC) for name in ("rivet/from", "rivet/to")]
    assert [datetime(2026, 1, 10, 23, tzinfo=UTC), datetime(2026, 1, 12, 23, tzinfo=UTC)] == ends
    assert "| Window | 2026-01-10T23:00:00Z … 2026-01-12T23:00:00Z |" in facts["rivet/summary"].value
    assert "{" not in facts["rivet/details"].value


def test_page_of_a_source_table_has_its_columns_and_about_how_many_rows(shop):
    """What tells a table from its export: native types, the database's comments, the key, the planner's estimate."""
    shop.sql("ANALYZE orders")
    shop.run("postgres/orders")

    event = shop.instance.fetch_observations(dg.AssetKey(["postgres", "public", "orders"]), limit=1).records[0]

    facts = {key: value.value for key, value in event.asset_observation.metadata.items()}
    columns = {column.name: (column.type, column.description) for column in facts["rivet/columns"].columns}
    assert ("text", "who bought") == columns["name"]
    assert "numeric(12,2)" == columns["total"][0]
    assert (240, "id") == (facts["rivet/rows_estimate"], facts["rivet/key"])


def test_run_is_tagged_with_what_it_makes(shop):
    """Whoever started it: runs are found by export, source and mode."""
    run = shop.run("postgres/orders", "postgres/days", days=("2026-01-02", "2026-01-02"))
    alone = shop.run("postgres/orders")

    found = shop.instance.get_run_by_id(alone.run_id).tags
    expected = {"rivet/export.orders": "postgres", "rivet/source.postgres": "postgres", "rivet/mode.full": "true"}
    assert expected == {name: value for name, value in found.items() if name.startswith("rivet/")}
    wanted = dg.RunsFilter(tags={"rivet/mode.time_window": "true", "rivet/export.days": "postgres"})
    assert [run.run_id] == [each.run_id for each in shop.instance.get_runs(wanted)]


SHAPED = """
source: {{type: postgres, url_env: SHOP_URL, environment: local}}
spark: inline
exports:
  - name: orders
    table: orders
    format: parquet
    destination: {{type: local, path: {lake}}}
    meta_columns: {{row_hash: true}}
    transforms:
      - {{type: filter, where: "id < 100"}}
      - {{type: rename, columns: {{total: amount}}}}
      - {{type: mask, fields: [name], method: partial, first: 1}}
      - {{type: concat, columns: [id, at], into: label, separator: "@"}}
      - {{type: add, columns: {{origin: shop}}}}
"""


def test_column_lineage_follows_the_transforms(shop):
    """Renamed, masked and derived columns point at what they are made of; constants and our own at nothing."""
    shop.configure(SHAPED)

    (event,) = shop.run("postgres/orders").asset_materializations_for_node("postgres__orders")

    facts = {key: value.value for key, value in event.metadata.items()}
    found = facts["dagster/column_lineage"].deps_by_column
    assert {"id": {"id"}, "at": {"at"}, "name": {"name"}, "amount": {"total"}, "label": {"id", "at"}} == {
        name: {origin.column_name for origin in origins} for name, origins in found.items()
    }
    assert 100 == facts["dagster/row_count"]
    assert "| rows_read | 240 |" in facts["rivet/details"]
    told = {column.name: column.description for column in facts["dagster/column_schema"].columns}
    assert "who bought; made by mask(name)" == told["name"]


def test_equal_rows_have_an_equal_data_version(shop):
    """A full export of an unchanged table wakes nothing downstream; one of a changed table does."""
    versions = []
    for change in ("SELECT 1", "SELECT 1", "UPDATE orders SET total = 0 WHERE id = 7"):
        shop.sql(change)
        (event,) = shop.run("postgres/orders").asset_materializations_for_node("postgres__orders")
        versions.append(event.tags["dagster/data_version"])

    assert versions[0] == versions[1] != versions[2]


def test_each_good_day_of_a_range_is_committed_and_the_bad_one_named(shop):
    """One refused window fails itself only, and the step says which."""
    shop.sql("DELETE FROM orders WHERE at = '2026-01-03 05:00Z'")

    run = shop.run("postgres/days", days=("2026-01-02", "2026-01-05"))

    days = ["2026-01-02", "2026-01-04", "2026-01-05"]
    assert [("materialization", day) for day in days] == [each for each in told(run) if each[0] == "materialization"]
    assert ("failed", "row_count_min 2026-01-03") in told(run)
    assert days == sorted(shop.manifests("days"))
    assert "1 of 4 windows were not published: 2026-01-03. The others are." in failure(run).description
    assert "Nothing of it was published" in failure(run).description
    assert "cursor" not in failure(run).description
    assert 3 == failure(run).metadata["rivet/exit_code"].value


def test_day_that_is_run_again_replaces_itself_and_counts_late_rows(shop):
    """The window's manifest is the new one, and the difference in rows is told."""
    shop.run("postgres/days", days=("2026-01-02", "2026-01-02"))
    shop.sql("INSERT INTO orders VALUES (1000, '2026-01-02 12:34Z', 'late', 1)")

    run = shop.run("postgres/days", days=("2026-01-02", "2026-01-02"))

    (event,) = run.asset_materializations_for_node("postgres__days")
    assert (25, 1) == (event.metadata["dagster/partition_row_count"].value, event.metadata["rivet/late_rows"].value)
    assert [25] == [manifest.row_count for manifest in shop.manifests("days").values()]
    assert 1 == len(list((shop.folder / "lake/days").rglob("*.parquet")))


@pytest.mark.parametrize(("key", "days"), [("gone", None), ("gone_days", ("2026-01-01", "2026-01-05"))])
def test_error_of_the_source_is_told_once_with_its_code(shop, key, days):
    """A missing table fails for good; of many windows the rest is not tried."""
    shop.configure(BAD_SOURCE)

    run = shop.run(f"postgres/{key}", days=days)

    text = failure(run).description
    assert [("failure", "RIVET_SOURCE_UNKNOWN_TABLE")] == told(run)
    assert "nowhere" in text
    assert days is None or "4 windows after it were not tried" in text


def test_busy_window_fails_at_once_and_names_its_holder(shop):
    """A second run of a window that is being worked on does not wait and does not touch it."""
    from tests.lab import store_of

    with store_of(shop.folder).lease("orders", "all", "orders_first_run"):
        run = shop.run("postgres/orders")

    assert [("failure", "RIVET_WINDOW_BUSY")] == told(run)
    assert "orders_first_run" in failure(run).description


def test_skipped_run_writes_nothing_and_succeeds(shop):
    """Zero rows with `skip_empty`: no manifest, no materialization, and the run is recorded as skipped."""
    from tests.lab import store_of

    text = shop.config.read_text().replace("quality: {row_count_min: 24}", "skip_empty: true")
    shop.config.write_text(text)
    shop.sql("DELETE FROM orders")

    run = shop.run("postgres/days", days=("2026-01-02", "2026-01-03"))

    assert run.success
    assert [] == [each for each in told(run) if each[0] == "materialization"]
    assert {} == shop.manifests("days")
    assert ["skipped"] * 2 == [record.status for record in store_of(shop.folder).runs("days")]


def test_changed_column_is_a_warning_or_a_refusal_before_reading(shop):
    """`warn` tells and goes on; `fail` stops with exit code 4 and keeps what is published."""
    shop.run("postgres/orders")
    shop.sql("ALTER TABLE orders ADD COLUMN nick text")

    warned = shop.run("postgres/orders")
    shop.sql("ALTER TABLE orders DROP COLUMN nick")
    shop.config.write_text(
        shop.config.read_text().replace("name: orders\n", "name: orders\n    on_schema_drift: fail\n", 1)
    )
    standing = shop.manifests("orders")
    refused = shop.run("postgres/orders")

    assert ("failed", "columns") in told(warned)
    assert warned.success
    assert [("failure", "RIVET_DRIFT_REFUSED")] == told(refused)
    assert 4 == failure(refused).metadata["rivet/exit_code"].value
    assert standing == shop.manifests("orders")


def test_every_run_is_recorded_with_its_end(shop):
    """Success, refusal and error each leave a row with what was measured."""
    from tests.lab import store_of

    shop.run("postgres/orders")
    shop.sql("UPDATE orders SET name = NULL")
    shop.run("postgres/orders")
    shop.sql("DROP TABLE orders")
    shop.run("postgres/orders")

    records = store_of(shop.folder).runs("orders")[::-1]
    assert [("success", True, 240), ("failed", False, 240), ("failed", None, 0)] == [
        (record.status, record.quality_passed, record.total_rows) for record in records
    ]
    assert [None, "RIVET_QUALITY_REFUSED", "RIVET_SOURCE_UNKNOWN_TABLE"] == [record.error_code for record in records]


def test_other_database_behind_a_source_fails_the_step_until_the_run_is_tagged(shop, real_postgres_url, monkeypatch):
    """Both kinds of assets; nothing is removed, and the failure names the tag."""
    from tests.servers.postgres import create_database, drop_database

    assert shop.run("postgres/orders").success
    assert shop.run("postgres/days", days=("2026-01-01", "2026-01-02")).success
    before = (shop.manifests("orders"), shop.manifests("days"))
    url = create_database(real_postgres_url)
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in SHOP:
            connection.execute(statement)
    monkeypatch.setenv("SHOP_URL", url)
    try:
        whole = shop.run("postgres/orders")
        days = shop.run("postgres/days", days=("2026-01-01", "2026-01-02"))
        after = (shop.manifests("orders"), shop.manifests("days"))
        adopted = shop.run("postgres/orders", tags={ADOPT: "true"})
    finally:
        drop_database(real_postgres_url, url)

    assert [("failure", "RIVET_PROVENANCE_REFUSED")] * 2 == [*told(whole), *told(days)]
    assert "rivet/adopt: true" in failure(whole).description
    assert "1 windows after it were not tried" in failure(days).description
    assert before == after
    assert adopted.success
