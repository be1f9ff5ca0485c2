"""What `rivet check` knows of one export: the value that its report is made of.

Belongs here: the value. Not here: looking (`check.py`), words and exit codes (`report.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from rivet_assets.preflight.column_types import TypeFact
from rivet_assets.preflight.judged_rules import JudgedRule
from rivet_assets.preflight.verdict import Advice, Verdict
from rivet_assets.run.admit.provenance import ForeseenRead
from rivet_resources.contracts.evidence import Explained, Finding
from rivet_resources.errors import RivetError
from rivet_resources.shape.transforms.mask_tags import TaggedColumn


@dataclass(frozen=True)
class Checked:
    """What is known of one export before it runs; `verdict` is None where `error` says why there is none."""

    export: str
    verdict: Verdict | None = None
    reasons: tuple[str, ...] = ()
    suggestions: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()
    strategy: str = ""
    profile: Advice | None = None
    parallel: Advice | None = None
    rows_estimate: int | None = None
    explained: tuple[Explained, ...] = ()  # of the first page of its first chunk; a drain's, one per table
    cursor_range: tuple[str, str] | None = None  # of the column that decides; None: unknown without a scan
    range_is_exact: bool = False
    types: tuple[TypeFact, ...] = ()
    contract: tuple[JudgedRule, ...] = ()  # what its windows are judged by
    masked: tuple[TaggedColumn, ...] = ()  # by which tag and rule
    read: Mapping[str, ForeseenRead] = field(default_factory=dict)  # what a run would read, by the name of its state
    error: RivetError | None = None
