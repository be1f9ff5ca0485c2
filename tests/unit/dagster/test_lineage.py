"""Lineage shows what a parser proves, and never stops an export."""

from __future__ import annotations

from pathlib import Path

import pytest

from rivet_assets.config.load import load_text
from rivet_assets.dagster.pages.lineage import column_lineage, upstream_keys

QUERIES = {
    "SELECT n AS id FROM generate_series(1, 3) n": [],
    "SELECT * FROM json_to_recordset('[]') AS x(a int)": [],
    "SELECT 1 AS one": [],
    "SELECT id FROM orders": [["shop", "public", "orders"]],
    'SELECT o.id FROM sales."Orders" o JOIN customers c ON c.id = o.customer': [
        ["shop", "public", "customers"],
        ["shop", "sales", "Orders"],
    ],
    "WITH recent AS (SELECT id FROM orders) SELECT id FROM recent": [["shop", "public", "orders"]],
    "SELECT id FROM LATERAL (SELECT 1 AS id) x, unnest(ARRAY[1,2]) u": [],
    "VALUES (1, 'a')": [],
    "SELECT id FROM orders WHERE at > :since": [["shop", "public", "orders"]],
    "SELECT id FROM orders TABLESAMPLE SYSTEM (1)": [["shop", "public", "orders"]],
    "SELECT id FROM shopdb.public.orders": [["shop", "public", "orders"]],
    "TABLE orders": [["shop", "public", "orders"]],
    "SELECT ((( what is this": [],
}


@pytest.mark.parametrize("query", QUERIES)
def test_upstream_tables_of_a_query_are_what_the_parser_proves(query: str) -> None:
    """Functions in a table's place, WITH names and texts that do not parse name no table, and raise nothing."""
    text = f"""
sources: {{shop: {{type: postgres, url_env: SHOP_URL}}}}
exports:
  - name: o
    format: parquet
    destination: {{type: local, path: lake}}
    query: {query!r}
"""
    config = load_text(text.replace("\\'", "''"), file=Path("rivet.yaml"))
    (export,) = config.exports
    name, source = config.source_of(export)

    keys = upstream_keys(export, source_name=name, source=source)
    column_lineage(export, {"id": {"id"}}, source_name=name, source=source)

    assert QUERIES[query] == sorted(list(key.path) for key in keys)
