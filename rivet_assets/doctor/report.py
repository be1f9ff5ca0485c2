"""What `rivet doctor` prints: lines for people, one JSON document, an exit code.

Belongs here: wording and shape of the whole. Not here: what is asked (`examine.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from rivet_assets.doctor.row import Row
from rivet_assets.run.report import Line, Report, Section


def render(rows: Sequence[Row]) -> Report:
    """Return one line per row under what it is about, what to do below it, and a sum at the end."""
    groups = groupby(sorted(rows, key=_order(rows)), key=lambda row: row.about)
    sections = [Section(about, [_line(row) for row in group]) for about, group in groups]
    counted = Counter(row.status for row in rows)
    warned = f"{counted['warn']} warning{'' if counted['warn'] == 1 else 's'}"
    return Report(sections, f"{len(rows)} checks: {counted['ok']} ok, {warned}, {counted['fail']} failed")


def _line(row: Row) -> Line:
    sort = f"{row.category}: " if row.category else ""
    fix = row.fix if row.status != "ok" else ""
    return Line((f"{row.status:<4}", row.name), sort + row.text, row.status, fix)


def document(rows: Sequence[Row], *, config_path: Path | None) -> dict[str, Any]:
    """Return the JSON document (`contract.md`, 13.1)."""
    checks = [
        {
            "about": row.about, "name": row.name, "ok": row.status != "fail", "status": row.status,
            "detail": row.text, "hint": row.fix, "code": row.code, "category": row.category,
        }
        for row in rows
    ]  # fmt: skip
    return {
        "config_path": str(config_path) if config_path else None,
        "all_ok": exit_code(rows) == 0,
        "checks": checks,
    }


def exit_code(rows: Sequence[Row]) -> int:
    """Answer 1 when something failed; warnings are no failure."""
    return int(any(row.status == "fail" for row in rows))


def _order(rows: Sequence[Row]) -> Any:
    """Keep subjects in the order in which they first come, and the rows of each together."""
    places = {about: place for place, about in enumerate(dict.fromkeys(row.about for row in rows))}
    return lambda row: places[row.about]
