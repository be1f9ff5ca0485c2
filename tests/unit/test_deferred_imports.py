"""An import inside a function has a reason, in one word beside it."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]
# driver: may not be installed. Spark, Dagster: seconds to load. start: not needed to begin. POSIX: not elsewhere.
REASONS = {"driver", "Spark", "Dagster", "start", "POSIX"}


def _deferred(path: Path) -> dict[int, str]:
    """Return {line: its comment} of the imports inside functions."""
    text = path.read_text()
    lines = text.splitlines()
    functions = [each for each in ast.walk(ast.parse(text)) if isinstance(each, ast.FunctionDef)]
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
        for room in ("rivet_assets", "rivet_resources")
        for path in sorted((ROOT / room).rglob("*.py"))
        for line, why in sorted(_deferred(path).items())
        if not why or (why.split()[0] not in REASONS and " " not in why)
    ]

    assert [] == bare
