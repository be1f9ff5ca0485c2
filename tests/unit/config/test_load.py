"""What a right configuration becomes."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest

from rivet_assets.config.load import RivetConfig, config_from_attributes, load_config, load_text
from rivet_assets.modes.chunked import Chunked
from rivet_assets.modes.full import Full
from rivet_assets.modes.incremental import Incremental
from rivet_assets.modes.time_window import TimeWindow
from rivet_resources.destinations.local import Local
from rivet_resources.errors import ConfigError
from rivet_resources.write.formats.csv import Csv
from rivet_resources.write.formats.parquet import Parquet

# As the original's documentation writes it.
ORIGINAL = """
source:
  type: postgres
  url_env: DATABASE_URL
  environment: replica
  tuning:
    profile: safe
    batch_size: 5000
exports:
  - name: orders
    query: "SELECT id, status, amount FROM orders"
    mode: full
    format: parquet
    compression: zstd
    compression_level: 9
    destination:
      type: local
      path: ./output
  - name: orders_incremental
    query: SELECT * FROM orders
    mode: incremental
    cursor_column: updated_at
    format: csv
    skip_empty: true
    meta_columns:
      exported_at: true
    quality:
      row_count_min: 1
      null_ratio_max:
        email: 0.05
      unique_columns: [id]
    destination:
      type: s3
      bucket: lake
      prefix: raw/orders
      region: eu-central-1
  - name: events
    query: SELECT * FROM events
    mode: chunked
    chunk_column: id
    chunk_size: 100000
    parallel: 4
    format: parquet
    max_file_size: 256MB
    destination: {type: gcs, bucket: lake, prefix: raw}
  - name: page_views
    query: SELECT * FROM page_views
    mode: time_window
    time_column: viewed_at
    days_window: 7
    format: parquet
    compression: none
    destination: {type: stdout}
notifications:
  slack:
    webhook_url_env: SLACK_WEBHOOK
    on: [failure, schema_change]
"""

HEAD = "source: {type: postgres, url_env: SHOP_URL}\nexports:\n"
BLOCK = "name: orders, table: orders, format: parquet, destination: {type: local, path: lake}"


def load(text: str, folder: Path, **params: str) -> RivetConfig:
    """Load a text as the rivet.yaml of a folder."""
    return load_text(text, file=folder / "rivet.yaml", params=params)


def one(keys: str, folder: Path, block: str = BLOCK) -> Full | Incremental | Chunked | TimeWindow:
    """Load one export, with further keys in flow style."""
    return load(f"{HEAD}  - {{{block}{', ' if keys else ''}{keys}}}\n", folder).exports[0]


def test_original_file_is_read_unchanged(tmp_path: Path) -> None:
    """A file written for the original gives one export per block, each of its mode, without a warning."""
    config = load(ORIGINAL, tmp_path)

    assert [Full, Incremental, Chunked, TimeWindow] == [type(export) for export in config.exports]
    assert ["orders", "orders_incremental", "events", "page_views"] == [export.name for export in config.exports]
    assert 268_435_456 == config.exports[2].max_file_size
    assert config.notifications is not None
    assert config.notifications.slack is not None
    assert ("failure", "schema_change") == config.notifications.slack.on
    assert ("rivet.yaml",) == tuple(path.name for path in [config.file] if path)


def test_reading_needs_no_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Secrets are looked up when a connection is made, so a file loads without them."""
    monkeypatch.delenv("DATABASE_URL", raising=False)

    assert 4 == len(load(ORIGINAL, tmp_path).exports)


def test_mode_is_full_when_absent(tmp_path: Path) -> None:
    """The default mode is the original's."""
    assert "full" == one("", tmp_path).mode


FORMATS = {
    "": Parquet(compression="zstd"),
    "compression: gzip, compression_level: 10": Parquet(compression="gzip", compression_level=10),
    "compression: none": Parquet(compression="none"),
    "compression_profile: none": Parquet(compression="none"),
    "compression_profile: fast, compression: gzip": Parquet(compression="snappy"),
    "compression_profile: balanced": Parquet(compression="zstd", compression_level=3),
    "compression_profile: compact": Parquet(compression="zstd", compression_level=9),
}


@pytest.mark.parametrize("keys", FORMATS)
def test_keys_of_compression_become_a_format(keys: str, tmp_path: Path) -> None:
    """A profile wins over `compression`; a level stays as written."""
    assert FORMATS[keys] == one(keys, tmp_path).format_settings()


def test_csv_is_written_plain(tmp_path: Path) -> None:
    """A codec on CSV is accepted, for old files, and not applied."""
    block = BLOCK.replace("parquet", "csv") + ", compression: gzip, compression_level: 6"

    assert Csv() == one("", tmp_path, block).format_settings()


COLUMNS = {
    "amount: 'decimal(18, 4)'": ("decimal(18,4)", None),
    "amount: INT8": ("int8", None),
    "amount: {type: text}": ("text", None),
    "amount: {on_special_value: null}": (None, "null"),
    "amount: {type: date, on_special_value: 'null'}": ("date", "null"),
    "amount: {type: date, on_special_value: text}": ("date", "text"),
}


@pytest.mark.parametrize("written", COLUMNS)
def test_columns_take_a_word_or_the_long_form(written: str, tmp_path: Path) -> None:
    """Both forms become one rule; a bare null is the word."""
    rule = one(f"columns: {{{written}}}", tmp_path).type_rules().columns["amount"]

    assert COLUMNS[written] == (rule.type, rule.on_special_value)


def test_typing_rules_gather_the_keys_of_the_export(tmp_path: Path) -> None:
    """Policies of the export and the typing of Parquet reach the source as one value."""
    keys = "on_special_value: null, on_unsupported: fail, parquet: {types: native}"
    rules = one(keys, tmp_path).type_rules()

    assert ("null", "fail", "native") == (rules.on_special_value, rules.on_unsupported, rules.typing)


VALUES = {
    "freshness: 26h": lambda e: (e.freshness.fail_after, 93_600),
    "freshness: {fail_after: 2d, warn_after: 90m}": lambda e: (e.freshness.warn_after, 5_400),
    "max_file_size: 1.5 gb": lambda e: (e.max_file_size, 1_610_612_736),
    "max_file_size: 1024": lambda e: (e.max_file_size, 1024),
    "schedule: 0 3 * * *": lambda e: (e.schedule, "0 3 * * *"),
    "schedule: '@daily'": lambda e: (e.schedule, "@daily"),
    "tags: {tier: 1, hot: true}": lambda e: (e.tags, {"tier": "1", "hot": "true"}),
    "owners: [a@example.com, 'team:lake']": lambda e: (e.owners, ("a@example.com", "team:lake")),
    "mode: time_window, time_column: at, start: 2026-01-31": lambda e: (e.start, date(2026, 1, 31)),
    "quality: {null_ratio_max: {a: 0}}": lambda e: (e.quality.null_ratio_max, {"a": 0.0}),
    "source: {type: postgres, url_env: OTHER}": lambda e: (e.source.url_env, "OTHER"),
}


@pytest.mark.parametrize("keys", VALUES)
def test_values_are_read_as_people_write_them(keys: str, tmp_path: Path) -> None:
    """Short forms, units and unquoted numbers mean what they look like."""
    actual, expected = VALUES[keys](one(keys, tmp_path))

    assert expected == actual


TABLES = ["orders", "shop.orders", 'public."Orders"', '"my ""odd"" table"', '"a.b".c', "größe", "_t$1"]


@pytest.mark.parametrize("table", TABLES)
def test_tables_may_be_quoted_as_sql_quotes_them(table: str, tmp_path: Path) -> None:
    """Mixed case, dots and blanks in names are reachable."""
    block = BLOCK.replace("table: orders", f"table: '{table}'")

    assert table == one("", tmp_path, block).table


def test_query_file_is_read_beside_the_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its text becomes the query, with references replaced, wherever the process stands."""
    (tmp_path / "sql").mkdir()
    (tmp_path / "sql" / "orders.sql").write_text("SELECT * FROM orders\nWHERE day = '${DAY}'\n")
    monkeypatch.chdir("/")
    text = HEAD + "  - {" + BLOCK.replace("table: orders", "query_file: sql/orders.sql") + "}\n"
    (export,) = load(text, tmp_path, DAY="2026-01-31").exports

    assert "SELECT * FROM orders\nWHERE day = '2026-01-31'\n" == export.query
    assert "sql/orders.sql" == export.query_file


def test_query_file_may_not_be_a_link_to_elsewhere(tmp_path: Path) -> None:
    """What counts is where the file really lies."""
    (tmp_path / "elsewhere.sql").write_text("SELECT 1")
    folder = tmp_path / "config"
    folder.mkdir()
    (folder / "link.sql").symlink_to(tmp_path / "elsewhere.sql")

    with pytest.raises(ConfigError, match="outside the folder of the config"):
        load(HEAD + "  - {" + BLOCK.replace("table: orders", "query_file: link.sql") + "}\n", folder)


SOURCES = "sources: {shop: {type: postgres, url_env: A}, billing: {type: postgres, url_env: B}}\nexports:\n"
OWN = "source: {type: postgres, url_env: C}"
NAMED = {
    f"{HEAD}  - {{{BLOCK}}}": ("postgres", "SHOP_URL"),
    f"{SOURCES}  - {{{BLOCK}, source: billing}}": ("billing", "B"),
    f"sources: {{shop: {{type: postgres, url_env: A}}}}\nexports:\n  - {{{BLOCK}}}": ("shop", "A"),
    f"exports:\n  - {{{BLOCK}, {OWN}}}": ("postgres", "C"),
    f"{SOURCES}  - {{{BLOCK}, {OWN}}}": ("postgres", "C"),
}


@pytest.mark.parametrize("text", NAMED)
def test_source_of_an_export_has_a_name(text: str, tmp_path: Path) -> None:
    """Its own name in `sources:`, else its type; a block inside the export comes first."""
    config = load(text, tmp_path)
    name, source = config.source_of(config.exports[0])

    assert NAMED[text] == (name, getattr(source, "url_env", None))


def test_unknown_export_lists_the_known_ones(tmp_path: Path) -> None:
    """A command that names a wrong export is told which exist."""
    config = load(ORIGINAL, tmp_path)

    with pytest.raises(ConfigError) as caught:
        config.export("event")
    assert (
        "There is no export 'event'; there are orders, orders_incremental, events, page_views. Did you mean events?"
        == str(caught.value)
    )
    assert ("RIVET_CONFIG_EXPORT_UNKNOWN",) == caught.value.codes


def test_spark_takes_one_word_or_a_block(tmp_path: Path) -> None:
    """`spark: inline` is short for its engine."""
    block = f"  - {{{BLOCK}}}\n"

    assert "inline" == load(f"spark: inline\n{HEAD}{block}", tmp_path).spark.engine
    assert "local[2]" == load(f"spark: {{master: 'local[2]'}}\n{HEAD}{block}", tmp_path).spark.master
    assert "spark" == load(HEAD + block, tmp_path).spark.engine


def test_line_of_an_export_is_where_it_begins(tmp_path: Path) -> None:
    """The UI links an asset to its block."""
    config = load(ORIGINAL, tmp_path)

    assert {"orders": 10, "events": 37} == {name: config.line_of(name) for name in ("orders", "events")}
    assert config.line_of("nothing") is None


def test_secrets_are_in_no_representation(tmp_path: Path) -> None:
    """Neither repr nor a JSON dump shows what a URL, password or webhook holds."""
    text = (
        "sources:\n  a: {type: postgres, url: 'postgresql://u:hunter2@localhost/shop'}\n"
        "  b: {type: postgres, host: localhost, user: u, database: d, password: hunter2}\n"
        "state: postgresql://u:hunter2@localhost/state\n"
        "notifications: {slack: {webhook_url: 'https://hooks.example.com/hunter2'}}\n"
        f"exports:\n  - {{{BLOCK}, source: a}}\n"
    )
    config = load(text, tmp_path)

    assert "hunter2" not in repr(config) + str(config) + config.model_dump_json() + "".join(config.warnings)
    assert "postgresql://u:hunter2@localhost/state" == config.state_url


def test_config_is_the_same_value_built_in_python(tmp_path: Path) -> None:
    """The model itself holds every rule; a file adds only places and texts of query files."""
    block = {
        "source": {"type": "postgres", "url_env": "SHOP_URL"},
        "exports": [
            {"name": "orders", "table": "orders", "format": "parquet", "destination": Local(type="local", path="lake")}
        ],
    }  # fmt: skip

    assert load(f"{HEAD}  - {{{BLOCK}}}\n", tmp_path).exports == RivetConfig.model_validate(block).exports
    with pytest.raises(ValueError, match="one of query, query_file or table"):
        Full(name="a", format="csv", destination=Local(type="local", path="x"))


def test_attributes_of_a_component_are_the_same_block(tmp_path: Path) -> None:
    """What stands under `attributes:` gives the same exports, with the lines of its own file, in any document of it."""
    body = "".join(f"  {line}\n" for line in f"{HEAD}  - {{{BLOCK}, max_file_size: ${{SIZE:-1MB}}}}".splitlines())
    other = body.replace("name: orders", "name: other")
    file = tmp_path / "defs.yaml"
    file.write_text(
        f"type: rivet_assets.Exports\nattributes:\n{other}---\ntype: rivet_assets.Exports\nattributes:\n{body}"
    )
    attributes = {
        "source": {"type": "postgres", "url_env": "SHOP_URL"},
        "exports": [
            {"name": "orders", "table": "orders", "format": "parquet",
             "destination": {"type": "local", "path": "lake"}, "max_file_size": "${SIZE:-1MB}"}
        ],
    }  # fmt: skip
    config = config_from_attributes(attributes, file=file)

    assert [1_048_576] == [export.max_file_size for export in config.exports]
    assert 11 == config.line_of("orders")
    assert tmp_path == config.folder


def test_fault_in_a_component_stands_on_its_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Errors of a component name its defs.yaml, relative to where the process stands."""
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "shop" / "defs.yaml"
    file.parent.mkdir()
    block = {"name": "orders", "table": "orders", "format": "parqet", "destination": {"type": "stdout"}}
    file.write_text(
        "type: rivet_assets.Exports\nattributes:\n  source: {type: postgres, url_env: SHOP_URL}\n  exports:\n"
        "    - name: orders\n      table: orders\n      format: parqet\n      destination: {type: stdout}\n"
    )

    with pytest.raises(ConfigError) as caught:
        config_from_attributes({"source": {"type": "postgres", "url_env": "SHOP_URL"}, "exports": [block]}, file=file)
    told = "format 'parqet' is not one of parquet, csv, ndjson, avro, protobuf. Did you mean parquet?"
    assert f"shop/defs.yaml:7: exports.orders: {told}" == str(caught.value)


def test_file_with_a_byte_order_mark_is_read(tmp_path: Path) -> None:
    """Windows editors write one."""
    (tmp_path / "rivet.yaml").write_text("\ufeff" + ORIGINAL, encoding="utf-8")

    assert 4 == len(load_config(tmp_path / "rivet.yaml").exports)


def test_encoding_of_a_column_reaches_the_format() -> None:
    """`columns: {x: {encoding: …}}` and `parquet.columns` say the same; the latter wins."""
    text = """
source: {type: postgres, url_env: SHOP_URL}
exports:
  - {name: o, table: o, format: parquet, destination: {type: local, path: lake},
     columns: {a: {encoding: delta}, o.b: {encoding: plain}}, parquet: {columns: {b: {encoding: dictionary}}}}
"""
    (export,) = load_text(text, file=Path("rivet.yaml")).exports

    columns = export.format_settings().options.columns

    assert {"a": "delta", "b": "dictionary"} == {name: column.encoding for name, column in columns.items()}
