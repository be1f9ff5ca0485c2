"""What the type report says of columns that transforms or formats change; pure, no source is asked."""

from __future__ import annotations

import pyarrow as pa

from rivet_assets.preflight.column_types import refused_facts, type_facts
from rivet_resources.contracts.relation import Relation
from rivet_resources.contracts.source import ColumnRule, TypeRules
from rivet_resources.contracts.types import Column


def column(name: str, arrow: pa.DataType, *, family: str = "integer", fidelity: str = "exact") -> Column:
    """Make a column."""
    return Column(name, f"native {name}", arrow, name, fidelity=fidelity, facts=(("family", family),))


RELATION = Relation(
    "orders",
    '"orders"',
    (
        column("id", pa.int64()),
        column("gone", pa.int64()),
        column("born", pa.timestamp("us")),
        column("path", pa.string(), family="other", fidelity="logical_string"),
        column("amount", pa.string(), family="numeric", fidelity="logical_string"),
    ),
    is_table=True,
)


def test_transforms_decide_what_parts_have():
    """A dropped column is said to be dropped, and a cast that cuts values is lossy whatever the source gave."""
    cut = pa.field("born", pa.date32(), metadata={"rivet.fidelity": "lossy"})
    parts = pa.schema([pa.field("id", pa.int32()), cut])

    found = {fact.column: fact for fact in type_facts(RELATION, parts=parts, file_format="parquet")}

    assert ("int32", "exact") == (found["id"].becomes, found["id"].fidelity)
    assert ("date32[day]", "lossy", True) == (found["born"].becomes, found["born"].fidelity, found["born"].is_bad)
    assert "not exported" in found["gone"].becomes


def test_texts_hold_the_text_of_a_type():
    """CSV has no types of its own."""
    found = type_facts(RELATION, parts=None, file_format="csv")

    assert "text of int64" == found[0].becomes


def test_only_an_override_that_keeps_more_is_offered():
    """A number without a precision can be a decimal; a path can only be text."""
    found = {fact.column: fact.helps for fact in type_facts(RELATION, parts=None, file_format="parquet")}

    assert {"id": "", "gone": "", "born": "", "path": ""} == {k: v for k, v in found.items() if k != "amount"}
    assert found["amount"].startswith("columns: {amount: decimal(38,9)}")


def test_refused_are_those_without_a_rule_of_their_own():
    """`text` accepts the text form; `on_unsupported` of a column overrules the export's."""
    rules = TypeRules({"path": ColumnRule(type="text")}, on_unsupported="fail")
    one = TypeRules({"path": ColumnRule(on_unsupported="fail")})

    assert ["amount"] == [fact.column for fact in refused_facts(RELATION, rules) if fact.fidelity == "unsupported"]
    assert ["path"] == [fact.column for fact in refused_facts(RELATION, one) if fact.fidelity == "unsupported"]
