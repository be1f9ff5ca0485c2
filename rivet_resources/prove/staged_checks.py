"""Checks of packages over the rows of a staged window, before anybody else can read them.

Belongs here: what a check's fault becomes. Not here: opening the rows (`staged_sql.py`), the number's bounds
(`rivet_assets/run/judge/`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from rivet_resources.contracts.destination import Root
from rivet_resources.contracts.extract import Staged
from rivet_resources.contracts.rows.window_check import WindowCheck
from rivet_resources.contracts.transform import RowRefused
from rivet_resources.prove.staged_sql import staged_rows


def numbers_by_checks(checks: Mapping[str, WindowCheck], staged: Staged, root: Root) -> dict[str, float | None]:
    """Return the number that each check finds in the window's rows; None where it finds none, or NaN.

    Raises:
        RowRefused: one raises, or returns something else.
    """
    rows = staged_rows(staged, root)
    return {name: _number(name, check, rows) for name, check in checks.items()}


def _number(name: str, check: WindowCheck, rows: object) -> float | None:
    try:
        found = check.measure(rows)
    except Exception as error:
        # Whatever somebody else's code does.
        refused = RowRefused(
            f"contract check {name}: {check.type} failed on the window's rows ({type(error).__name__}); nothing is "
            f"published. Mend the package that brings it, or take the check out."
        )
    else:
        if found is None or isinstance(found, int | float):
            return None if found is None or math.isnan(found) else float(found)
        refused = RowRefused(f"contract check {name}: {check.type} returned a {type(found).__name__}, not a number.")
    raise refused
