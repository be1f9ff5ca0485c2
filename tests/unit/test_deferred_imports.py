"""An import inside a function has a reason, in one word beside it."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from pathlib import Path

from tests.product import ROOT, SHARED, modules

pytestmark = SHARED
# driver: may not be installed. Spark, Dagster: seconds to load. start: not needed to begin. POSIX: not elsewhere.
REASONS = {"driver", "Spark", "Dagster", "start", "POSIX"}


def _deferred(path: Path, nodes: Iterable[ast.AST]) -> dict[int, str]:
    """Return {line: its comment} of the imports inside functions."""
    lines = path.read_text().splitlines()
    functions = [each for each in nodes if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
    found = {
        each.lineno
        for function in functions
        for each in ast.walk(function)
        if isinstance(each, ast.Import | ast.ImportFrom)
    }
    return {line: lines[line - 1].partition("#")[2].strip() for line in found}


def test_every_deferred_import_says_why() -> None:
    """Modules are imported at the top, else a reader asks why not."""
    bare = [
        f"{path.relative_to(ROOT)}:{line}"
        for path, (_, nodes) in modules().items()
        for line, why in sorted(_deferred(path, nodes).items())
        if not why or (why.split()[0] not in REASONS and " " not in why)
    ]

    assert [] == bare
