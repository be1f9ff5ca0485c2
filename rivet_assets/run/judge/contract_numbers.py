"""Numbers that a contract bounds and that no page shows: of SQL over the whole window, and rows beside earlier runs.

Belongs here: which numbers, and the bounds that history gives. Not here: running SQL
(`rivet_resources/prove/staged_sql.py`), verdicts (`quality.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median
from typing import TYPE_CHECKING

from rivet_assets.blocks.contract import Contract, Volume
from rivet_assets.run.judge.quality import VOLUME, Bounded
from rivet_assets.run.judge.references import missing_references
from rivet_resources.contracts.rows.value_windows import BESIDE
from rivet_resources.prove.staged_checks import numbers_by_checks
from rivet_resources.prove.staged_sql import numbers_by_sql

if TYPE_CHECKING:
    from rivet_assets.blocks.export import Export
    from rivet_resources.contracts.destination import Root
    from rivet_resources.contracts.extract import Staged
    from rivet_resources.state.runs import RunRecord
    from rivet_resources.state.store import State

# The median of distances from the median, times this, is the standard deviation of numbers that scatter normally.
# Source: P. Rousseeuw, C. Croux, "Alternatives to the Median Absolute Deviation", 1993.
TO_DEVIATION = 1.4826
LEAST_SPREAD = 0.1  # of the median: tables that never change are allowed to, a little
# Runs per run that counts: failed and skipped ones stand between them.
LOOKED_AT = 20


def numbers_of(export: Export, staged: Staged, *, root: Root, state: State) -> dict[str, Bounded]:
    """Return the numbers of a staged window that the export's contract bounds, by the name of their check.

    Raises:
        RowRefused: an SQL text fails on the window's rows.
    """
    contract, found = export.contract, dict[str, Bounded]()
    if contract is None:
        return found
    if contract.volume is not None:
        runs = state.runs(export.name, last=contract.volume.history * LOOKED_AT)
        rows = earlier_rows(runs, export, staged.extract.window.key)[: contract.volume.history]
        found[VOLUME] = bounded_by_history(staged.measures.rows, rows, contract.volume)
    found |= _by_sql(contract, staged, root) | _by_packages(contract, staged, root)
    return found | missing_references(contract, staged, root)


def _by_sql(contract: Contract, staged: Staged, root: Root) -> dict[str, Bounded]:
    if not contract.sql:
        return {}
    texts = {f"sql__{name}": each.query for name, each in contract.sql.items()}
    numbers = numbers_by_sql(texts, staged, root)
    return {f"sql__{name}": Bounded(numbers[f"sql__{name}"], *each.bounds) for name, each in contract.sql.items()}


def _by_packages(contract: Contract, staged: Staged, root: Root) -> dict[str, Bounded]:
    measures = {f"checks__{name}": each.measure for name, each in contract.checks.items()}
    numbers = numbers_by_checks(measures, staged, root) if measures else {}
    return {
        f"checks__{name}": Bounded(numbers[f"checks__{name}"], *each.bounds) for name, each in contract.checks.items()
    }


def earlier_rows(runs: Iterable[RunRecord], export: Export, window: str) -> list[int]:
    """Return how many rows earlier successful runs had that are like this window, newest first.

    Of windows of time the others, each once; of windows of values the same value's.
    """
    rows: dict[str, int] = {}
    for run in runs:
        alike = run.window != window if export.has_days else run.window == window or not export.has_partitions
        beside = run.window.rpartition(BESIDE)[2] == window.rpartition(BESIDE)[2] if BESIDE in window else True
        if run.status == "success" and alike and beside:
            rows.setdefault(run.window if export.has_days else run.run_id, run.total_rows)
    return list(rows.values())


def bounded_by_history(rows: int, earlier: Sequence[int], volume: Volume) -> Bounded:
    """Return the bounds that earlier runs give a number of rows: their median, and how far they scatter around it."""
    if len(earlier) < volume.at_least:
        note = f"{len(earlier)} earlier runs, {volume.at_least} are needed to judge"
        return Bounded(rows, None, None, note)
    middle = median(earlier)
    deviation = TO_DEVIATION * median(abs(each - middle) for each in earlier)
    spread = max(volume.tolerance * deviation, LEAST_SPREAD * middle, 1)
    note = f"by the last {len(earlier)} runs, whose median is {middle:.15g}"
    return Bounded(rows, max(0.0, middle - spread), middle + spread, note)
