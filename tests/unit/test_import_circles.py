"""No module imports, by whatever way, a module that imports it: a reader may begin with any file.

Imports for types only and imports inside functions count too: a circle of these loads, and is a circle to read.
"""

from __future__ import annotations

import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import grimp
import pytest


def circle(*packages: str) -> list[str]:
    """Find modules that import one another in a ring; [] where there are none."""
    graph = grimp.build_graph(*packages, cache_dir=None)
    imported = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    try:
        TopologicalSorter(imported).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_no_module_is_imported_by_what_it_imports() -> None:
    """Both packages are free of circles, type-only and deferred imports included."""
    found = circle("rivet_assets", "rivet_resources")

    assert [] == found, f"A circle: {' imports '.join(reversed(found))}. Cut it by a value or protocol that lies lower."


@pytest.mark.parametrize(
    "back",
    [
        "from ring.one import Value",
        "from typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n    from ring.one import Value",
        "def late():\n    from ring import one",
    ],
    ids=["plain", "for types only", "inside a function"],
)
def test_a_circle_of_any_kind_is_found(back: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The measure sees what it is for."""
    folder = tmp_path / "ring"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "one.py").write_text("from ring import two\n\nValue = int\n")
    (folder / "two.py").write_text(f"{back}\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "ring", raising=False)

    found = circle("ring")

    assert {"ring.one", "ring.two"} == set(found)
