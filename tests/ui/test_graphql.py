"""What Dagster's pages show, asked as they ask: over GraphQL, against the real code location."""

import json

import pytest

pytestmark = [pytest.mark.ui, pytest.mark.slow]

LOCATION = """{ workspaceOrError { ... on Workspace { locationEntries { name locationOrLoadError {
    __typename ... on PythonError { message } } } } } }"""

ASSET = """query ($path: [String!]!) { assetNodeOrError(assetKey: {path: $path}) { ... on AssetNode {
    groupName kinds description owners { ... on TeamAssetOwner { team } } tags { key value }
    dependencyKeys { path } isPartitioned
    assetPartitionStatuses { ... on TimePartitionStatuses { ranges { startKey endKey status } } }
    assetChecksOrError { ... on AssetChecks { checks { name blocking
      executionForLatestMaterialization { status }
      partitionStatuses {
        ... on AssetCheckTimePartitionStatuses { ranges { startKey endKey status } }
        ... on AssetCheckDefaultPartitionStatuses { succeededPartitions failedPartitions skippedPartitions }
      } } } } } } }"""

SENSORS = """{ sensorsOrError(repositorySelector: {
    repositoryName: "__repository__", repositoryLocationName: "rivet"}) {
    ... on Sensors { results { name sensorState { status } } } } }"""

RESOURCES = """{ allTopLevelResourceDetailsOrError(repositorySelector: {
    repositoryName: "__repository__", repositoryLocationName: "rivet"}) {
    ... on ResourceDetailsList { results { name configuredValues { key value } } } } }"""


def asset(ask, key: str) -> dict:
    """Read an asset's page."""
    return ask(ASSET, path=key.split("/"))["assetNodeOrError"]


def spans(statuses: dict) -> dict[str, list[tuple[str, str]]]:
    """Sort ranges of partitions by status: {status: [(first, last)]}."""
    found: dict[str, list[tuple[str, str]]] = {}
    for each in statuses["ranges"]:
        found.setdefault(each["status"], []).append((each["startKey"], each["endKey"]))
    return found


def test_location_loads_under_its_one_name(ask):
    """The location is called rivet wherever it is started, and loads without an error."""
    entries = ask(LOCATION)["workspaceOrError"]["locationEntries"]

    assert [("rivet", "RepositoryLocation")] == [(e["name"], e["locationOrLoadError"]["__typename"]) for e in entries]


def test_schedules_are_on_from_the_start(ask):
    """The sensors that evaluate `schedule:`, and ask again for what failed, need nobody to switch them on."""
    sensors = {each["name"]: each["sensorState"]["status"] for each in ask(SENSORS)["sensorsOrError"]["results"]}

    assert sensors == {"rivet_schedules": "RUNNING", "rivet_retries": "RUNNING"}


def test_page_of_an_export_says_where_it_comes_from(ask):
    """Group, kinds, owners, tags and the source table upstream are known before the first run."""
    page = asset(ask, "postgres/orders")

    assert page["groupName"] == "postgres"
    assert page["kinds"] == ["parquet"]
    assert page["owners"] == [{"team": "shop"}]
    assert {"key": "mode", "value": "full"} in page["tags"]
    assert [["postgres", "public", "orders"]] == [each["path"] for each in page["dependencyKeys"]]
    assert page["description"].startswith("All orders.")


def test_bad_day_of_a_range_is_red_and_the_others_are_green(shop, ask):
    """In a run over a range, as the UI starts it, each day has its own colour, data and checks alike."""
    shop.sql("DELETE FROM orders WHERE at = '2026-01-03 05:00Z'")

    run = shop.run("postgres/days", days=("2026-01-02", "2026-01-04"))

    page = asset(ask, "postgres/days")
    checks = {each["name"]: each for each in page["assetChecksOrError"]["checks"]}
    colours = spans(checks["row_count_min"]["partitionStatuses"])
    assert not run.success
    assert spans(page["assetPartitionStatuses"])["MATERIALIZED"] == [
        ("2026-01-02", "2026-01-02"),
        ("2026-01-04", "2026-01-04"),
    ]
    assert colours["FAILED"] == [("2026-01-03", "2026-01-03")]
    assert colours["SUCCEEDED"] == [("2026-01-02", "2026-01-02"), ("2026-01-04", "2026-01-04")]
    assert checks["row_count_min"]["blocking"] is True
    assert checks["columns"]["blocking"] is False


def test_day_that_was_green_turns_red_when_a_rerun_is_refused(shop, ask):
    """The colour of a day's check is that of its last attempt, while its data stays what was published."""
    shop.run("postgres/days", days=("2026-01-02", "2026-01-03"))
    good = shop.manifests("days")
    shop.sql("DELETE FROM orders WHERE at = '2026-01-02 05:00Z'")

    shop.run("postgres/days", days=("2026-01-02", "2026-01-02"))

    checks = {each["name"]: each for each in asset(ask, "postgres/days")["assetChecksOrError"]["checks"]}
    colours = spans(checks["row_count_min"]["partitionStatuses"])
    assert {"FAILED": [("2026-01-02",) * 2], "SUCCEEDED": [("2026-01-03",) * 2]} == colours
    assert good == shop.manifests("days")


def test_gate_that_fails_is_red_while_the_published_data_stays(shop, ask):
    """After a good run and a refused one, the check is red and the asset's last materialization is the good one."""
    shop.run("postgres/orders")
    good = shop.manifests("orders")
    shop.sql("UPDATE orders SET name = NULL")

    shop.run("postgres/orders")

    page = asset(ask, "postgres/orders")
    states = {
        each["name"]: (each["executionForLatestMaterialization"] or {}).get("status")
        for each in page["assetChecksOrError"]["checks"]
    }
    assert states["null_ratio_max__name"] == "FAILED"
    assert states["row_count_min"] == "SUCCEEDED"
    assert good == shop.manifests("orders")


def test_no_secret_is_shown_or_stored(shop, ask, monkeypatch):
    """A password of the source appears in no resource's values and nowhere in the instance's storage."""
    from tests.ui.conftest import PASSWORD

    with_password = shop.url.replace("postgres@", f"postgres:{PASSWORD}@", 1)
    monkeypatch.setenv("SHOP_URL", with_password)
    text = shop.config.read_text().replace("url_env: SHOP_URL", f"url: '{with_password}'")
    shop.config.write_text(text + "state: sqlite:///" + str(shop.folder / "state.db") + "\n")
    assert PASSWORD in shop.config.read_text()

    good = shop.run("postgres/orders")
    shop.sql("DROP TABLE orders")
    bad = shop.run("postgres/orders")

    shown = json.dumps([ask(RESOURCES), asset(ask, "postgres/orders")])
    stored = [
        path.name
        for path in (shop.folder / "home").rglob("*")
        if path.is_file() and PASSWORD.encode() in path.read_bytes()
    ]
    state = [path.name for path in shop.folder.glob("state.db*") if PASSWORD.encode() in path.read_bytes()]
    assert (True, False) == (good.success, bad.success)
    assert PASSWORD not in shown
    assert [] == stored + state
