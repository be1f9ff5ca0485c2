"""Masks by tag: what a tag is, which rule a column gets, and that nothing is planned before tags were looked up."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pyarrow as pa
import pytest

from rivet_resources.contracts.relation import Relation
from rivet_resources.contracts.types import Column
from rivet_resources.shape.shape import planned
from rivet_resources.shape.transforms.columns import Drop
from rivet_resources.shape.transforms.compute import Compute
from rivet_resources.shape.transforms.mask_tags import (
    ColumnTagRefused,
    MaskRule,
    TagMasks,
    tag_word,
    tagged_columns,
)
from rivet_resources.shape.transforms.rename import Rename

EMAIL, FAMILY = MaskRule(method="hash", key="k"), MaskRule(method="redact")
RULES = {"pii: email": EMAIL, "pii": FAMILY}
UPPER = Compute(type="compute", columns={"loud": "upper(a)"})
RENAME = Rename(type="rename", columns={"a": "z"})

# The comment of a column, and its tag and rule; None: it is plain.
COMMENTS = [
    ("", None),
    ("Address of the customer", None),
    ("pii", ("pii", "pii")),
    ("Address. PII : Email.", ("pii: email", "pii: email")),
    ("pii:phone", ("pii: phone", "pii")),
    ("pii; see the handbook. pii: email", ("pii: email", "pii: email")),
    ("pii: phone, pii: fax", ("pii: fax", "pii")),
    ("#pii/secret", ("pii", "pii")),
    ("pii-email", ("pii", "pii")),
    ("no pii", ("pii", "pii")),
    ("piipii pii_email", None),
]


def relation(*comments: str, **facts: object) -> Relation:
    """Return a table with a column of text per comment: a, b, …"""
    columns = [Column("ab"[n], "text", pa.string(), "ab"[n], comment=text) for n, text in enumerate(comments)]
    return Relation("t", "t", tuple(columns), is_table=True, **{"comments": "all", **facts})  # type: ignore[arg-type]


@pytest.mark.parametrize(("comment", "expected"), COMMENTS)
def test_a_comment_is_searched_for_the_words_of_the_rules(comment: str, expected: tuple[str, str] | None) -> None:
    """Whole words, any case; the closest rule counts, and what follows a colon is one word."""
    found = tagged_columns([TagMasks(RULES)], relation(comment))

    assert ([expected] if expected else []) == [(each.tag, each.rule) for each in found or ()]


REFUSED = [
    ({"pii: email": EMAIL}, "pii: phone", "no rule is for it"),
    ({"pii: email": EMAIL}, "pii", "no rule is for it"),
    (RULES, "pii: email, pii: phone", "whose rules differ"),
    ({**RULES, "gdpr": EMAIL}, "pii gdpr", "whose rules differ"),
]


@pytest.mark.parametrize(("rules", "comment", "why"), REFUSED)
def test_a_tag_without_a_rule_or_with_two_is_refused(rules: dict[str, MaskRule], comment: str, why: str) -> None:
    """The column is named, and the way out."""
    with pytest.raises(ColumnTagRefused, match=why) as refused:
        planned(relation(comment), [TagMasks(rules)])

    assert ("'a'" in str(refused.value), "`unmasked`" in str(refused.value)) == (True, True)


def test_an_unmasked_column_stays_plain_and_must_exist() -> None:
    """Whatever its tag; a name that no column has is refused."""
    assert () == tagged_columns([TagMasks(RULES, ("a",))], relation("pii"))
    with pytest.raises(ColumnTagRefused, match="no column 'x'"):
        tagged_columns([TagMasks(RULES, ("x",))], relation("pii"))


READABLE = [
    ("all", ("", ""), {}, ""),
    ("own", ("key", "pii"), {}, ""),
    ("own", ("key", ""), {}, "'b'"),
    ("own", ("key", ""), {"b": ()}, ""),
    ("none", ("pii", ""), {"a": ("pii",), "b": ()}, ""),
    ("none", ("pii", ""), {"a": ("pii",)}, "'b'"),
]


@pytest.mark.parametrize(("comments", "texts", "contract", "unknown"), READABLE)
def test_a_column_whose_tags_cannot_be_read_is_refused(
    comments: str, texts: tuple[str, str], contract: dict[str, tuple[str, ...]], unknown: str
) -> None:
    """Not knowing is no tag that is absent."""
    steps = [TagMasks(RULES, of_contract=contract)]

    if unknown:
        with pytest.raises(ColumnTagRefused, match=f"whether column {unknown}"):
            planned(relation(*texts, comments=comments), steps)
    else:
        planned(relation(*texts, comments=comments), steps)


def test_a_column_of_a_log_that_the_table_has_no_more_is_not_taken_for_one_without_a_tag() -> None:
    """What is remembered stands in its comment's place; else it is refused, unless nothing written is made of it."""
    gone = relation("", "pii", gone=frozenset("ab"))
    drop = Drop(type="drop", columns=("a",))

    with pytest.raises(ColumnTagRefused, match=r"column 'a', which the table has no more.*Name t\.a in `unmasked`"):
        planned(gone, [TagMasks(RULES)])
    assert ["b"] == [each.name for each in tagged_columns([TagMasks(RULES, rest=(drop,))], gone) or ()]
    assert ["b"] == [each.name for each in tagged_columns([TagMasks(RULES, ("t.a",))], gone) or ()]


def test_unmasked_names_a_column_of_one_table() -> None:
    """`table.column` is for that table alone; over a log, whose columns are of then, a name need not be there."""
    of_log = TagMasks(RULES, ("t.a", "other.b"), of_log=True)

    assert ["b"] == [each.name for each in tagged_columns([of_log], relation("pii", "pii")) or ()]
    with pytest.raises(ColumnTagRefused, match=r"no column 'other\.b'"):
        tagged_columns([TagMasks(RULES, ("t.a", "other.b"))], relation("pii", "pii"))


def test_a_tag_of_the_contract_leads_to_what_a_written_column_is_made_of() -> None:
    """The contract is about written columns, and the source's are masked."""
    renamed = TagMasks(RULES, of_contract={"z": ("pii",)}, rest=(RENAME,))
    made = TagMasks(RULES, of_contract={"a": (), "loud": ("pii",)}, rest=(UPPER,))

    assert ["a"] == [each.name for each in tagged_columns([renamed, RENAME], relation("", comments="none")) or ()]
    assert ["a"] == [each.name for each in tagged_columns([made, UPPER], relation("", comments="none")) or ()]


def test_masks_come_before_all_other_steps_and_leave_their_numbers() -> None:
    """What a step makes of the column is made of the mask."""
    plan = planned(relation("pii", ""), [TagMasks(RULES, rest=(UPPER,)), UPPER])

    assert ([0, 1], {}, frozenset({"a"})) == ([each.number for each in plan.stages], plan.leaks, plan.masked)
    assert {"a": ["[REDACTED]"], "b": ["y"], "loud": ["[REDACTED]"]} == plan.apply(
        pa.table({"a": ["x"], "b": ["y"]})
    ).to_pydict()


def test_no_row_passes_where_tags_were_not_looked_up() -> None:
    """A step that nobody resolved masks nothing, so it lets nothing through."""
    step = TagMasks(RULES)

    with pytest.raises(ColumnTagRefused):
        step.plan(pa.schema([("a", pa.string())]))
    with pytest.raises(ColumnTagRefused):
        step.apply(pa.table({"a": ["x"]}))


def test_the_step_is_plain_data() -> None:
    """It is sent to tasks, and they see the same columns masked."""
    step, table = TagMasks(RULES, of_contract={"b": ("pii",)}), relation("pii: email", "")

    assert step.of(table).columns == pickle.loads(pickle.dumps(step)).of(replace(table, sql="other")).columns


@pytest.mark.parametrize(("text", "tag"), [("PII", "pii"), (" pii:Email ", "pii: email"), ("a.b-c", "a.b-c")])
def test_a_tag_has_one_spelling(text: str, tag: str) -> None:
    """Case and blanks do not count."""
    assert tag == tag_word(text)
