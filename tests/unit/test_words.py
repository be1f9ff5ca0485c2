"""Words: a class name means one thing, and docstrings begin as readers of PEP 257 expect."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

from tests.product import ROOT, SHARED, modules

pytestmark = SHARED
ENGINES = ROOT / "rivet_resources/engines"


def _place(path: Path) -> str:
    """Return where a name counts: siblings of two engines, the same file in both rooms, are one place on purpose."""
    if path.is_relative_to(ENGINES):
        room = path.relative_to(ENGINES).parts[0]
        return "engines" if room != "shared" else str(path.relative_to(ROOT))
    return str(path.relative_to(ROOT))


def test_public_class_has_a_name_of_its_own() -> None:
    """Who meets a name in a message or a search finds one class; those of sibling engines mean the same thing."""
    places: dict[str, set[str]] = defaultdict(set)
    for path, (tree, _) in modules().items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].add(_place(path))

    assert {} == {name: sorted(found) for name, found in places.items() if len(found) > 1}


def test_docstrings_return_and_raise() -> None:
    """Functions return, read, write and raise; they neither give, say nor tell."""
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno} {first}"
        for path, (_, nodes) in modules().items()
        for node in nodes
        if isinstance(node, ast.FunctionDef)
        and (first := (ast.get_docstring(node) or "-").split()[0]) in ("Give", "Gives", "Say", "Says", "Tell", "Tells")
    ]

    assert [] == found
