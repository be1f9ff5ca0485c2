"""Checks of packages over the rows of a staged window, before anybody else can read them.

Belongs here: opening the rows, and what a check's fault becomes. Not here: the number's bounds
(`rivet_assets/run/judge/`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import pyarrow as pa

from rivet_resources.contracts.destination import Root
from rivet_resources.contracts.extract import Staged
from rivet_resources.contracts.rows.window_check import WindowCheck
from rivet_resources.contracts.transform import RowRefused


def numbers_by_checks(checks: Mapping[str, WindowCheck], staged: Staged, root: Root) -> dict[str, float | None]:
    """Return the number that each check finds in the window's rows; None where it finds none, or NaN.

    Raises:
        RowRefused: one raises, or returns something else.
    """
    import pyarrow.dataset as ds  # start

    schema = pa.ipc.read_schema(pa.py_buffer(staged.schema_ipc))
    paths = [str(root.local_path(part.staged["path"])) for part in staged.parts]
    rows = ds.dataset(paths, format="parquet", schema=schema) if paths else ds.dataset(schema.empty_table())
    return {name: _number(name, check, rows) for name, check in checks.items()}


def _number(name: str, check: WindowCheck, rows: object) -> float | None:
    try:
        found = check.measure(rows)
    except Exception as error:  # whatever somebody else's code does
        refused = RowRefused(
            f"contract check {name}: {check.type} failed on the window's rows ({type(error).__name__}); nothing is "
            f"published. Mend the package that brings it, or take the check out."
        )
    else:
        if found is None or isinstance(found, int | float):
            return None if found is None or math.isnan(found) else float(found)
        refused = RowRefused(f"contract check {name}: {check.type} returned a {type(found).__name__}, not a number.")
    raise refused
