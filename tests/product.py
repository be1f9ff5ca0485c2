"""The product's own source as trees, parsed once per process: for tests that hold it to a rule.

Belongs here: what such tests share. Not here: the rules. They share one worker (`pytestmark = SHARED`), so that
both rooms are parsed once.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SHARED = pytest.mark.xdist_group("product")


@cache
def modules() -> dict[Path, tuple[ast.Module, tuple[ast.AST, ...]]]:
    """Return the tree of each module of both rooms, by its path, with all nodes of it."""
    trees = {
        path: ast.parse(path.read_text())
        for room in ("rivet_assets", "rivet_resources")
        for path in sorted((ROOT / room).rglob("*.py"))
    }
    return {path: (tree, tuple(ast.walk(tree))) for path, tree in trees.items()}
