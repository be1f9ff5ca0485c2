"""What a contract wants counted while rows pass: rules that a row keeps or breaks, the newest of some times, a key.

All frozen, all plain data: pickled with the Extract. Belongs here: shapes. Not here: the YAML (`rivet_assets/blocks/
contract.py`), counting (`write/row_rules.py`), verdicts (`rivet_assets/run/judge/quality.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

RowRuleKind = Literal["required", "accepted_values", "min", "max", "matches", "rows"]


@dataclass(frozen=True)
class RowRule:
    """One rule about each row. NULL breaks none but `required`, which needs no rule: NULLs are counted anyway."""

    check: str  # whose number of broken rows it is
    kind: RowRuleKind
    value: Any  # the allowed values, the bound, the regular expression, or the SQL boolean
    column: str = ""  # '' where an SQL boolean reads several


@dataclass(frozen=True)
class RowRules:
    """All that is counted for a contract besides NULLs and single unique columns."""

    rules: tuple[RowRule, ...] = ()
    newest: tuple[str, ...] = ()  # days or times whose largest value is kept
    key: tuple[str, ...] = ()  # columns that together hold nothing twice
    aside: tuple[RowRule, ...] = ()  # rows that break one are no part of the window, but dead letters
    hashed: tuple[tuple[str, ...], ...] = ()  # columns whose values, together, are compared with another export's

    @property
    def key_name(self) -> str:
        """Return the name that the key's repeated cells are counted under."""
        return hashed_name(self.key)

    def __bool__(self) -> bool:
        """Return whether there is anything to count."""
        return bool(self.rules or self.newest or self.key or self.hashed)


def hashed_name(columns: tuple[str, ...]) -> str:
    """Return the name that the hashes of some columns' cells are kept under."""
    return ", ".join(columns)


NO_ROW_RULES = RowRules()
