"""Actions on exports that the audit log keeps, as values. Not here: its table (`rivet_resources/state/audit.py`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

Action = Literal["run", "apply", "repair", "reset", "replay", "drop"]
ACTIONS: tuple[Action, ...] = ("run", "apply", "repair", "reset", "replay", "drop")


@dataclass(frozen=True)
class AuditEntry:
    """One action on one export; `run_id` is '' where the action is no run, `detail` are plain texts and numbers."""

    at: datetime
    action: str
    export: str
    actor: str
    run_id: str
    detail: Mapping[str, Any]
