"""The checks of change capture as Dagster sees them: their definitions, their events.

Belongs here: translation only. Not here: judging (`run/judge/drain_verdicts.py`).
"""

from collections.abc import Iterable, Iterator

import dagster as dg
from dagster._core.definitions.asset_checks.asset_check_evaluation import (
    AssetCheckEvaluationTargetMaterializationData as Target,  # not exported, though a parameter of what is
)

from rivet_assets.dagster.checks.check_events import BY_HAND, result
from rivet_assets.run.judge.drain_verdicts import LAG, PREREQUISITES, SEQUENCE, SLOT_BUDGET, ChangeVerdict

DESCRIBED = {
    LAG: "We are not close to losing changes: under half of what the source keeps is unread. Fails from 80 %.",
    SLOT_BUDGET: "The source keeps the log we have not read, and does not keep too much because of us.",
    SEQUENCE: "The windows cover the log without a gap, and rows stand in log order.",
    PREREQUISITES: "The source is set up as change capture needs it.",
}
SEVERITY = {
    "ok": dg.AssetCheckSeverity.WARN,
    "warn": dg.AssetCheckSeverity.WARN,
    "fail": dg.AssetCheckSeverity.ERROR,
}


def change_check_specs(key: dg.AssetKey) -> list[dg.AssetCheckSpec]:
    """Describe the checks that every drain judges of each of its assets; none blocks."""
    return [
        dg.AssetCheckSpec(name, asset=key, description=DESCRIBED[name], automation_condition=BY_HAND)
        for name in (LAG, SLOT_BUDGET, SEQUENCE)
    ]


def change_results(key: dg.AssetKey, verdicts: Iterable[ChangeVerdict]) -> Iterator[dg.AssetCheckResult]:
    """Yield verdicts in a step; yield them after the materialization."""
    for verdict in verdicts:
        yield result(key, verdict)._replace(severity=SEVERITY[verdict.level])


def change_evaluations(
    key: dg.AssetKey, verdicts: Iterable[ChangeVerdict], *, instance: dg.DagsterInstance
) -> Iterator[dg.AssetCheckEvaluation]:
    """Yield verdicts outside a run, tied to the newest materialization: without one they have no colour in the UI."""
    records = instance.fetch_materializations(key, limit=1).records
    target = (
        Target(storage_id=records[0].storage_id, run_id=records[0].run_id, timestamp=records[0].timestamp)
        if records
        else None
    )
    for verdict in change_results(key, verdicts):
        yield dg.AssetCheckEvaluation(
            asset_key=key,
            check_name=str(verdict.check_name),
            passed=verdict.passed,
            severity=verdict.severity,
            description=verdict.description,
            metadata=verdict.metadata,
            target_materialization_data=target,
        )
