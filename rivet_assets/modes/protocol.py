"""What every mode offers. A mode *is* the export's YAML block (`rivet_assets/export.py`) plus `extract`."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from rivet_resources.extract import Extract, Relation, Window
from rivet_resources.sources.protocol import Session, Source


@dataclass(frozen=True)
class Planning:
    """What a mode may ask while it plans one window: the source's session, where the cursor stands, the clock."""

    source: Source
    session: Session
    relation: Relation
    window: Window | None  # given for windows of time; other modes name their own
    cursor: str | None  # committed cursor of the export, canonical text
    run_id: str
    started_at: datetime  # aware UTC
    tasks: int  # how many chunks can run at once; a hint for cutting


class Mode(Protocol):
    """An export of one mode."""

    name: str
    mode: str

    def extract(self, planning: Planning) -> Extract:
        """Describe what to read for one window; no row moved."""


