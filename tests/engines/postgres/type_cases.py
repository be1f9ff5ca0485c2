"""The rows of types.md, section 6, as `test_types.py` has them, in the shapes that all engines share."""

from __future__ import annotations

from typing import Any

from rivet_resources.contracts.source import ColumnRule
from tests.engines.postgres import test_types as rows
from tests.engines.type_cases import Cell, Misfit, Override, Special, TypeCases

ITEMS = ("'{infinity}'", "'{NaN}'")


def as_yaml(rule: Any) -> Any:
    """Write a rule as it stands in a configuration."""
    if isinstance(rule, ColumnRule):
        return rule.model_dump(exclude_none=True)
    return rule


POSTGRES = TypeCases(
    cells=tuple(Cell(*case) for case in rows.CASES if case[0] != "xml"),  # the wheel's server is built without it
    specials=tuple(
        Special(ddl, literal, kind, text, [None] if literal in ITEMS else None)
        for ddl, literal, kind, _, text in rows.SPECIAL
    ),
    overrides=tuple(Override(ddl, as_yaml(rule), *rest) for ddl, rule, *rest in rows.OVERRIDES),
    misfits=tuple(Misfit(*case) for case in rows.MISFITS),
    before=rows.TYPES,
)
