"""Verdicts as Dagster's check events.

Belongs here: one translation, twice: for a step's own results, and for one partition of a run over many. Not here:
how a verdict is reached (`run/quality.py`), the checks' definitions (`specs.py`).

Decision: windows of time are reported as explicit evaluations. `AssetCheckResult` takes its partition from a run tag
that runs over a range do not have, so its evaluations would land without one (dagster.md, section 4).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import dagster as dg
from dagster._core.definitions.asset_checks.asset_check_evaluation import (
    AssetCheckEvaluationTargetMaterializationData as Target,  # not exported, though a parameter of what is
)

from rivet_assets.run.quality import Verdict


def result(key: dg.AssetKey, verdict: Verdict) -> dg.AssetCheckResult:
    """Return the result of a check on an unpartitioned export."""
    return dg.AssetCheckResult(asset_key=key, check_name=verdict.check, **_facts(verdict))


def evaluations(
    key: dg.AssetKey, verdicts: Sequence[Verdict], partition: str, *, instance: dg.DagsterInstance
) -> Iterator[dg.AssetCheckEvaluation]:
    """Yield the verdicts on one window, tied to what stands published of it; call it after its materialization.

    An evaluation that names no materialization, or an older one, has no colour in the UI.
    """
    target = _latest(key, partition, instance)
    for verdict in verdicts:
        yield dg.AssetCheckEvaluation(
            asset_key=key,
            check_name=verdict.check,
            partition=partition,
            blocking=verdict.blocking,
            target_materialization_data=target,
            **_facts(verdict),
        )


def _latest(key: dg.AssetKey, partition: str, instance: dg.DagsterInstance) -> Target | None:
    filters = dg.AssetRecordsFilter(asset_key=key, asset_partitions=[partition])
    records = instance.fetch_materializations(filters, limit=1).records
    if not records:
        return None
    return Target(storage_id=records[0].storage_id, run_id=records[0].run_id, timestamp=records[0].timestamp)


def _facts(verdict: Verdict) -> dict[str, Any]:
    numbers = {"observed": verdict.observed, "threshold": verdict.threshold, "rows": verdict.rows}
    return {
        "passed": verdict.passed,
        "severity": dg.AssetCheckSeverity.ERROR if verdict.blocking else dg.AssetCheckSeverity.WARN,
        "description": verdict.text or None,
        "metadata": {**numbers, **verdict.facts},
    }
