"""Verdicts as Dagster's check events.

Belongs here: one translation, twice: for a step's own results, and for one partition of a run over many. Not here:
how a verdict is reached (`checks.py`), the checks' definitions (`specs.py`).

Decision: windows of time are reported as explicit evaluations. `AssetCheckResult` takes its partition from a run tag
that runs over a range do not have, so its evaluations would land without one (dagster.md, section 4).
"""

from __future__ import annotations

from typing import Any

import dagster as dg

from rivet_assets.checks import Verdict


def result(key: dg.AssetKey, verdict: Verdict) -> dg.AssetCheckResult:
    """Tell a verdict on an unpartitioned export."""
    return dg.AssetCheckResult(asset_key=key, check_name=verdict.check, **_facts(verdict))


def evaluation(key: dg.AssetKey, verdict: Verdict, partition: str) -> dg.AssetCheckEvaluation:
    """Tell a verdict on one window."""
    return dg.AssetCheckEvaluation(
        asset_key=key, check_name=verdict.check, partition=partition, blocking=verdict.blocking, **_facts(verdict)
    )


def _facts(verdict: Verdict) -> dict[str, Any]:
    numbers = {"observed": verdict.observed, "threshold": verdict.threshold, "rows": verdict.rows}
    return {
        "passed": verdict.passed,
        "severity": dg.AssetCheckSeverity.ERROR if verdict.blocking else dg.AssetCheckSeverity.WARN,
        "description": verdict.text or None,
        "metadata": {**numbers, **verdict.facts},
    }
