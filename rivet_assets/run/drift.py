"""Tell how a relation's columns differ from those of the last commit, before a row is read (`on_schema_drift`).

Belongs here: the comparison and the policies. Not here: who stores the baseline (`state/schemas.py`).
Columns are compared by name and Arrow type, regardless of order (`contract.md`, section 11).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Literal

from rivet_resources.errors import DriftRefused

Policy = Literal["continue", "warn", "fail", "evolve"]


@dataclass(frozen=True)
class Drift:
    """What changed since the baseline: names, and for retyped columns (name, before, now)."""

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    retyped: tuple[tuple[str, str, str], ...] = ()

    def __bool__(self) -> bool:
        """Return whether anything changed at all."""
        return bool(self.added or self.removed or self.retyped)

    def __str__(self) -> str:
        """Return it in one line: `added nick; removed age; total int32 → int64`."""
        told = []
        if self.added:
            told.append(f"added {', '.join(self.added)}")
        if self.removed:
            told.append(f"removed {', '.join(self.removed)}")
        told += [f"{name} {before} → {now}" for name, before, now in self.retyped]
        return "; ".join(told) or "none"


def compare(baseline: Iterable[tuple[str, str]] | None, columns: Iterable[tuple[str, str]]) -> Drift:
    """Compare two lists of (name, Arrow type as text); without a baseline there is no drift."""
    if baseline is None:
        return Drift()
    before, now = dict(baseline), dict(columns)
    return Drift(
        added=tuple(name for name in now if name not in before),
        removed=tuple(name for name in before if name not in now),
        retyped=tuple((name, before[name], now[name]) for name in now if name in before and before[name] != now[name]),
    )


def judge(drift: Drift, policy: Policy, *, export: str, relation: str) -> None:
    """Let the run go on, or refuse it: `fail` refuses every drift, `evolve` all but added columns.

    Raises:
        DriftRefused: nothing was read and the baseline stays as it was.
    """
    # `evolve` takes what readers of older windows can stand: a column more, which is NULL where it was not there yet.
    refused = drift if policy == "fail" else Drift((), drift.removed, drift.retyped) if policy == "evolve" else Drift()
    if refused:
        word = f"{policy}, which takes added columns alone" if policy == "evolve" else policy
        raise DriftRefused(
            f"Export {export}: the columns of {relation} differ from those of the last run ({refused}), and "
            f"on_schema_drift is {word}; continue and warn accept it. Set one of them for a run, or start afresh "
            f"with `rivet state reset -e {export}`."
        )


def refuse_reordered(drift: Drift, cursor: Collection[str | None], *, export: str, relation: str) -> None:
    """Refuse a cursor whose values are ordered otherwise now, whatever the policy: 9 is below 10, and '9' above '10'.

    Raises:
        DriftRefused: rows would be passed over, or come twice, and nobody would know.
    """
    for name, before, now in drift.retyped:
        if name in cursor and _order(before) != _order(now):
            raise DriftRefused(
                f"Export {export}: cursor column {name} of {relation} was {before} when its last value was committed, "
                f"and is {now}, whose values have another order: rows would be lost, or come twice. "
                f"`rivet state reset -e {export}` exports all rows again; or give the column its type back."
            )


def _order(arrow: str) -> str:
    """Name how values of an Arrow type are ordered: all numbers alike, each other type by itself."""
    numbers = ("int", "uint", "float", "double", "halffloat", "decimal")
    return "number" if arrow.startswith(numbers) else arrow.replace("large_", "")
