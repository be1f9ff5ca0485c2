"""Data contracts of the Open Data Contract Standard as `contract:`; nothing they demand is passed over in silence."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft201909Validator

from rivet_assets.blocks.contract import Contract
from rivet_assets.config.load import RivetConfig, load_config
from rivet_resources.errors import ConfigError

ORDERS = """\
version: 1.0.0
apiVersion: v3.1.0
kind: DataContract
id: shop
status: active
description: {purpose: Orders of the shop}
schema:
  - name: orders
    physicalType: table
    quality:
      - {metric: rowCount, mustBeBetween: [1, 1000]}
      - {type: text, name: polite, description: be nice}
    properties:
      - {name: id, logicalType: integer, physicalType: bigint, primaryKey: true, required: true}
      - name: status
        logicalType: string
        quality: [{metric: invalidValues, mustBe: 0, arguments: {validValues: [a, b]}}]
      - name: email
        physicalName: e_mail
        logicalType: string
        logicalTypeOptions: {pattern: "@", maxLength: 80}
        classification: restricted
        quality:
          - {metric: nullValues, mustBeLessOrEqualTo: 5, unit: percent}
          - {metric: nullValues, mustBeLessThan: 7, unit: rows}
          - {metric: duplicateValues, mustBe: 0, severity: warning}
          - {type: sql, name: no_test, query: SELECT 1, mustBe: 1}
      - {name: total, logicalType: number, logicalTypeOptions: {minimum: 0, maximum: 10}}
      - {name: at, logicalType: timestamp, required: true}
  - name: customers
    properties:
      - {name: id, logicalType: integer}
slaProperties:
  - {property: freshness, value: 26, unit: h, element: orders.at}
  - {property: retention, value: 3, unit: y, element: orders.at}
"""


def load(folder: Path, text: str, contract: str = "shop.odcs.yaml", table: str = "public.orders") -> RivetConfig:
    """Load an export whose contract is that text."""
    (folder / "shop.odcs.yaml").write_text(text)
    export = {"name": "export", "table": table, "format": "csv", "destination": {"type": "local", "path": "./lake"}}
    document = {"source": {"type": "sqlite", "path": "shop.db"}, "exports": [{**export, "contract": contract}]}
    (folder / "rivet.yaml").write_text(yaml.safe_dump(document))
    return load_config(folder / "rivet.yaml")


def test_rules_of_the_standard_are_rules_of_a_contract(tmp_path):
    """The table is found by its name; columns by their names in the database."""
    [export] = load(tmp_path, ORDERS).exports

    assert export.contract is not None
    assert export.contract.model_copy(update={"not_checked": ()}) == Contract(
        columns={
            "id": {"logical_type": "integer", "physical_type": "bigint", "key": True, "required": True},
            "status": {"logical_type": "string", "accepted_values": ["a", "b"]},
            "e_mail": {
                "logical_type": "string", "matches": "@", "null_ratio_max": 0.05, "unique": True,
                "tags": ["restricted"],
            },
            "total": {"logical_type": "number", "min": 0, "max": 10},
            "at": {"logical_type": "timestamp", "required": True},
        },
        row_count={"min": 1, "max": 1000},
        freshness={"column": "at", "max_age": "26h"},
    )  # fmt: skip


def test_what_is_not_checked_is_named_in_a_warning(tmp_path):
    """Each demand that Rivet does not look at, and none that describes."""
    [warning] = load(tmp_path, ORDERS).warnings

    _, _, named = warning.partition("Rivet does not check ")
    assert named.split(", ") == [
        "e_mail.logicalTypeOptions.maxLength",
        "e_mail.quality nullValues",
        "e_mail.quality duplicateValues: severity warning (it is taken as stop)",
        "e_mail.quality no_test",
        "quality polite",
        "slaProperties retention",
    ]


def test_table_of_several_is_named_behind_the_file(tmp_path):
    """Where neither table nor export has the name."""
    [export] = load(tmp_path, ORDERS, "shop.odcs.yaml#customers", table="people").exports

    assert ["id"] == list(export.contract.columns)
    with pytest.raises(ConfigError, match="has no table 'people' or 'export'; it has orders, customers"):
        load(tmp_path, ORDERS, table="people")
    with pytest.raises(ConfigError, match="has no table 'nobody'"):
        load(tmp_path, ORDERS, "shop.odcs.yaml#nobody")


def one(properties: Any = (), **keys: Any) -> str:
    """Write a contract of one table."""
    head = {"version": "1", "apiVersion": "v3.1.0", "kind": "DataContract", "id": "x", "status": "draft"}
    return yaml.safe_dump({**head, "schema": [{"name": "orders", "properties": list(properties), **keys}]})


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (ORDERS.replace("v3.1.0", "v2.2.1"), "apiVersion v2.2.1; Rivet reads"),
        (ORDERS.replace("DataContract", "Other"), "is of kind Other"),
        (one([{"name": "a"}, {"name": "b", "physicalName": "a"}]), "two properties of the name 'a'"),
        (one([{"logicalType": "string"}]), "a property without a name"),
        (one([{"name": "a", "logicalTypeOptions": {"pattern": "("}}]), r"shop.odcs.yaml:7: .*matches is no regular"),
        (
            one([{"name": "a", "required": "maybe"}]),
            "shop.odcs.yaml:7: .*required",
        ),
    ],
)
def test_contract_that_cannot_be_used_is_refused(tmp_path, text, told):
    """Another version, names twice, rules that cannot be; with the line in the contract's own file."""
    with pytest.raises(ConfigError, match=told):
        load(tmp_path, text)


@pytest.mark.parametrize(
    ("rule", "column"),
    [
        ({"metric": "nullValues", "mustBe": 0}, {"required": True}),
        ({"type": "library", "rule": "duplicateCount", "mustBe": 0}, {"unique": True}),
        ({"rule": "validValues", "validValues": ["a"]}, {"accepted_values": ["a"]}),
        ({"metric": "invalidValues", "mustBe": 0, "arguments": {"pattern": "a"}}, {"matches": "a"}),
        ({"metric": "missingValues", "mustBe": 0, "arguments": {"missingValues": [None]}}, {"required": True}),
    ],
)
def test_each_rule_of_a_property_that_is_known(tmp_path, rule, column):
    """By the names of version 3.1, and those before."""
    [export] = load(tmp_path, one([{"name": "a", "quality": [rule]}])).exports

    assert Contract(columns={"a": column}) == export.contract


@pytest.mark.parametrize(
    ("rule", "bounds"),
    [
        ({"mustBe": 5}, {"min": 5, "max": 5}), ({"mustBeGreaterThan": 5}, {"min": 6}),
        ({"mustBeLessThan": 5}, {"max": 4}),
        ({"mustBeGreaterOrEqualTo": 5}, {"min": 5}), ({"mustBeLessOrEqualTo": 5}, {"max": 5}),
        ({"mustNotBe": 5}, None), ({"mustBe": 5, "unit": "percent"}, None),
    ],
)  # fmt: skip
def test_row_counts_of_the_standard_are_bounds(tmp_path, rule, bounds):
    """Operators that are no bounds are named."""
    config = load(tmp_path, one([{"name": "a"}], quality=[{"metric": "rowCount", **rule}]))
    found = config.exports[0].contract.row_count

    assert bounds == (found.model_dump(exclude_none=True) if found else None)
    assert (bounds is None) == ("rowCount" in " ".join(config.warnings))


def test_key_that_the_standard_does_not_have_is_named(tmp_path):
    """A slip of the pen is a demand that nobody checks."""
    [warning] = load(tmp_path, one([{"name": "a", "requred": True}])).warnings

    assert "a.requred" in warning


def test_contract_of_these_tests_keeps_the_standards_own_schema():
    """What is read here is what the standard means."""
    schema = json.loads((files("open_data_contract_standard") / "schema.json").read_text())
    Draft201909Validator(schema).validate(yaml.safe_load(ORDERS))
