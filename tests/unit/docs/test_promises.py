"""The page of promises names tests that are there, and leaves no row without one that says it works."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/design/promises.md").read_text(encoding="utf-8")
NAMED = sorted(set(re.findall(r"`([\w/]+\.py::\w+)`", PAGE)))
STATES = ("works", "works otherwise", "not built")


@cache
def functions(file: str) -> frozenset[str]:
    """Name the functions of a test file; none of one that is not there."""
    path = ROOT / "tests" / file
    if not path.exists():
        return frozenset()
    return frozenset(node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef))


def rows() -> list[list[str]]:
    """Split the rows of all tables into promise, state and tests."""
    lines = [line for line in PAGE.splitlines() if line.startswith("| ") and not line.startswith("| # |")]
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    return [row[-3:] for row in cells if row[-1].strip() != "Shown by"]


@pytest.mark.parametrize("named", NAMED)
def test_named_test_is_there(named: str) -> None:
    """A test that was renamed takes its row with it."""
    file, _, name = named.partition("::")

    assert name in functions(file)


def test_every_row_says_how_it_stands_and_what_shows_it() -> None:
    """`works` and `works otherwise` name a test; what is not built needs none."""
    wrong = [
        promise
        for promise, state, shown in rows()
        if not state.startswith(STATES) or ("::" not in shown and not state.startswith("not built"))
    ]

    assert [] == wrong
    assert len(rows()) > 100
    assert [str(number) for number in range(1, 29)] == re.findall(r"^\| (\d+) \|", PAGE, re.MULTILINE)
