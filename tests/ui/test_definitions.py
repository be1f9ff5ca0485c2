"""What Dagster is told before anything runs."""

import subprocess
import sys
import textwrap

import dagster as dg
import pytest

from rivet_assets.config.load import load_config
from rivet_assets.definitions import definitions_of, load_definitions
from rivet_resources.errors import ConfigError

ONE = """
source: {{type: postgres, url_env: SHOP_URL}}
exports:
  - {{name: {name}, table: orders, format: parquet, destination: {{type: local, path: lake}}}}
"""


def spec_of(definitions: dg.Definitions, key: str) -> dg.AssetSpec:
    """Find an asset's spec."""
    wanted = dg.AssetKey(key.split("/"))
    return next(spec for spec in definitions.resolve_all_asset_specs() if spec.key == wanted)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder that RIVET_CONFIG names."""
    monkeypatch.setenv("RIVET_CONFIG", str(tmp_path))
    monkeypatch.delenv("RIVET_PARAMS", raising=False)
    return tmp_path


def test_packaged_demo_is_what_loads_without_a_configuration(monkeypatch):
    """The repository loads as it is."""
    monkeypatch.delenv("RIVET_CONFIG", raising=False)

    definitions = load_definitions()

    dg.Definitions.validate_loadable(definitions)
    assert dg.AssetKey(["shop", "orders"]) in {spec.key for spec in definitions.resolve_all_asset_specs()}


def test_own_configuration_takes_the_place_of_the_demo(folder):
    """All files of the folder load, and the demo does not."""
    (folder / "a.yaml").write_text(ONE.format(name="orders"))
    (folder / "b.yml").write_text(ONE.format(name="items"))

    definitions = load_definitions()

    dg.Definitions.validate_loadable(definitions)
    exports = {spec.key.to_user_string() for spec in definitions.resolve_all_asset_specs() if "mode" in spec.tags}
    assert exports == {"postgres/orders", "postgres/items"}


def test_equal_keys_in_two_files_are_refused_with_both_names(folder):
    """An asset has one definition; the message says where the two are."""
    (folder / "a.yaml").write_text(ONE.format(name="orders"))
    (folder / "b.yaml").write_text(ONE.format(name="orders"))

    with pytest.raises(ConfigError, match=r"postgres/orders is defined twice.*a\.yaml:4.*b\.yaml:4"):
        load_definitions()


def test_empty_folder_is_refused(folder):
    """A typing error in RIVET_CONFIG must not look like a location without assets."""
    with pytest.raises(ConfigError, match="RIVET_CONFIG"):
        load_definitions()


def test_params_reach_the_configuration(folder, monkeypatch):
    """RIVET_PARAMS answers references."""
    (folder / "a.yaml").write_text(ONE.format(name="${WHAT}"))
    monkeypatch.setenv("RIVET_PARAMS", "WHAT=orders,OTHER=1")

    assert spec_of(load_definitions(), "postgres/orders").tags["mode"] == "full"


def test_param_without_a_value_is_refused_without_being_shown(folder, monkeypatch):
    """An entry may be a secret that was pasted into the wrong place."""
    (folder / "a.yaml").write_text(ONE.format(name="orders"))
    monkeypatch.setenv("RIVET_PARAMS", "hunter2")

    with pytest.raises(ConfigError) as caught:
        load_definitions()

    assert "hunter2" not in str(caught.value)


def test_spec_holds_what_the_block_says(tmp_path):
    """Key, group, kinds, tags, code reference, code version, freshness and schedule come from the YAML."""
    text = """
    sources: {shop: {type: postgres, url_env: SHOP_URL}}
    exports:
      - name: orders
        table: sales.orders
        format: csv
        destination: {type: local, path: lake}
        schedule: "0 3 * * *"
        freshness: {fail_after: 26h}
        owners: [team:shop]
    """
    (tmp_path / "rivet.yaml").write_text(textwrap.dedent(text))

    spec = spec_of(definitions_of(load_config(tmp_path / "rivet.yaml")), "shop/orders")

    (reference,) = spec.metadata["dagster/code_references"].code_references
    assert (spec.group_name, spec.kinds, spec.tags["mode"]) == ("shop", {"spark", "csv"}, "full")
    assert [dg.AssetKey(["shop", "sales", "orders"])] == [dep.asset_key for dep in spec.deps]
    assert (reference.file_path, reference.line_number) == (str(tmp_path / "rivet.yaml"), 4)
    assert len(spec.code_version) == 12
    assert spec.freshness_policy is not None
    assert "schedule 0 3 * * *" in spec.automation_condition.label


LIKE = """
sources:
  shop: {type: sqlite, path: shop.db}
  crm: {type: sqlite, path: crm.db}
spark: inline
exports:
  - {name: orders, source: shop, table: orders, format: parquet, destination: {type: local, path: lake}}
  - {name: orders_of_crm, source: crm, table: orders, format: parquet, destination: {type: local, path: lake}}
  - name: sums
    source: shop
    query: SELECT region, sum(total) FROM orders JOIN customers USING (customer) GROUP BY 1
    format: csv
    destination: {type: local, path: lake}
  - name: days
    source: shop
    table: orders
    mode: time_window
    time_column: at
    start: 2026-01-01
    schedule: "0 3 * * *"
    format: parquet
    destination: {type: local, path: lake}
"""


def test_table_and_its_export_are_told_apart(tmp_path):
    """They have one title; the group, which lists and the graph show, is another, and no two tables have one name."""
    (tmp_path / "rivet.yaml").write_text(LIKE)
    definitions = definitions_of(load_config(tmp_path / "rivet.yaml"))
    export, table = spec_of(definitions, "shop/orders"), spec_of(definitions, "shop/main/orders")

    assert ("shop", "shop_tables") == (export.group_name, table.group_name)
    names = [spec.metadata.get("dagster/table_name") for spec in definitions.resolve_all_asset_specs()]
    named = [name for name in names if name is not None]
    assert {"shop.main.orders", "shop.main.customers", "crm.main.orders"} == set(named)
    assert 3 == len(named), "Dagster links assets of one table name, as if they were one"


def test_list_of_assets_says_in_plain_words_what_each_reads(tmp_path):
    """No markdown and no SQL; the query stands on the page."""
    (tmp_path / "rivet.yaml").write_text(LIKE)
    definitions = definitions_of(load_config(tmp_path / "rivet.yaml"))
    sums, days = spec_of(definitions, "shop/sums"), spec_of(definitions, "shop/days")

    assert "Reads a query over main.customers, main.orders: all rows, each time anew." == sums.description
    assert "```sql\nSELECT region, sum(total)" in sums.metadata["rivet/query"].md_str
    assert "Reads table orders: one window of time after another." == days.description
    assert "schedule 0 3 * * * UTC, the latest window" == days.automation_condition.label


@pytest.mark.parametrize(("spark", "kinds"), [("spark: inline", {"parquet"}), ("", {"parquet", "spark"})])
def test_export_is_of_the_kind_spark_where_spark_runs_it(tmp_path, spark, kinds):
    """Not where `spark: inline` says that no JVM is started."""
    (tmp_path / "rivet.yaml").write_text(LIKE.replace("spark: inline", spark))

    assert kinds == spec_of(definitions_of(load_config(tmp_path / "rivet.yaml")), "shop/orders").kinds


def test_code_version_follows_what_is_exported_and_not_when(tmp_path):
    """A new query makes a new version, a new schedule does not."""
    versions = []
    for line in ("query: select 1 as a", 'query: select 1 as a\n    schedule: "0 3 * * *"', "query: select 2 as a"):
        block = f"  - name: one\n    {line}\n    format: csv\n    destination: {{type: local, path: lake}}\n"
        (tmp_path / "rivet.yaml").write_text("source: {type: postgres, url_env: X}\nexports:\n" + block)
        versions.append(spec_of(definitions_of(load_config(tmp_path / "rivet.yaml")), "postgres/one").code_version)

    assert versions[0] == versions[1] != versions[2]


LOAD_MANY = """
import sys, time
from rivet_assets.config.load import load_config
from rivet_assets.definitions import definitions_of
import dagster as dg
config = load_config(sys.argv[1])
began = time.process_time()
repository = definitions_of(config).get_repository_def()
assert len(repository.assets_defs_by_key) >= 200
print(time.process_time() - began, "pyspark" in sys.modules, "adbc_driver_postgresql" in sys.modules)
"""


@pytest.mark.slow
def test_two_hundred_exports_load_within_their_budget_and_without_a_driver(tmp_path):
    """Less than two seconds of CPU, no Spark, no driver: nothing is opened at load."""
    block = (
        "  - {{name: t{n}, table: t{n}, format: parquet, destination: {{type: local, path: lake}},"
        " schedule: '0 3 * * *', quality: {{row_count_min: 1, row_count_max: 9, unique_columns: [id]}}}}\n"
    )
    blocks = "".join(block.format(n=n) for n in range(200))
    (tmp_path / "rivet.yaml").write_text("source: {type: postgres, url_env: X}\nexports:\n" + blocks)

    out = subprocess.run(
        [sys.executable, "-c", LOAD_MANY, str(tmp_path / "rivet.yaml")], capture_output=True, text=True, check=True
    )

    seconds, spark, driver = out.stdout.split()
    assert float(seconds) < 2
    assert (spark, driver) == ("False", "False")
