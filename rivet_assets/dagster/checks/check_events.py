"""Verdicts as Dagster's check events.

Belongs here: one translation, twice: for a step's own results, and for one partition of a run over many; which verdicts
share a light. Not here: how a verdict is reached (`run/judge/quality.py`), the checks' definitions (`specs.py`).

Decision: one check, `columns`, tells of drift and of special values. Each check of each asset is a row that Dagster
loads, draws and stores with each run, and both say the same: that the columns are not what they were.

Decision: windows of time are reported as explicit evaluations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, cast

import dagster as dg
from dagster._core.definitions.asset_checks.asset_check_evaluation import (
    AssetCheckEvaluationTargetMaterializationData as Target,  # not exported, though a parameter of what is
)

from rivet_assets.run.judge.quality import DRIFT, SPECIAL_VALUES, Verdict
from rivet_resources.errors import ContractBroken

COLUMNS = "columns"
# A condition that never holds. Dagster 1.13.27 names the checks of an asset with every run that its automation or a
# sensor asks for, but leaves out of automation's those that have a condition of their own.
BY_HAND = (dg.AutomationCondition.initial_evaluation() & ~dg.AutomationCondition.initial_evaluation()).with_label(
    "not by itself"
)
COLUMNS_TOLD = {SPECIAL_VALUES: "values replaced", DRIFT: "columns changed"}


def join_column_verdicts(verdicts: Iterable[Verdict], *, has_drift: bool) -> list[Verdict]:
    """Return the verdicts as the checks of an export have them: one per rule, and `columns` last.

    Args:
        has_drift: False where `on_schema_drift: continue` asks for silence.
    """
    verdicts = list(verdicts)
    names = (SPECIAL_VALUES, DRIFT) if has_drift else (SPECIAL_VALUES,)
    both = {each.check: each for each in verdicts if each.check in names}
    off = [each for each in both.values() if not each.passed]
    text = "; ".join(f"{COLUMNS_TOLD[each.check]}: {each.text}" for each in off)
    facts = {name: each.observed for name, each in both.items()}
    rows = max((each.rows for each in both.values()), default=0)
    columns = Verdict(COLUMNS, not off, False, sum(each.observed or 0 for each in off), 0, rows, text, facts)
    return [*(each for each in verdicts if each.check not in COLUMNS_TOLD), *([columns] if both else [])]


def result(key: dg.AssetKey, verdict: Verdict) -> dg.AssetCheckResult:
    """Return the result of a check on an unpartitioned export."""
    return dg.AssetCheckResult(asset_key=key, check_name=verdict.check, **_facts(verdict))


def with_breaches(
    key: dg.AssetKey, events: Callable[[dg.AssetExecutionContext], Iterator[Any]]
) -> Callable[[dg.AssetExecutionContext], Iterator[Any]]:
    """Return the events of an unpartitioned export, with the results of a contract that refused its columns."""

    def told(context: dg.AssetExecutionContext) -> Iterator[Any]:
        try:
            yield from events(context)
        except dg.Failure as failure:
            yield from (result(key, verdict) for verdict in breaches(failure.__cause__))
            raise

    return told


def breaches(error: BaseException | None) -> tuple[Verdict, ...]:
    """Return what a contract said of the columns when it refused them; () for any other error."""
    return cast("tuple[Verdict, ...]", error.verdicts) if isinstance(error, ContractBroken) else ()


def evaluations(
    key: dg.AssetKey, verdicts: Sequence[Verdict], partition: str, *, instance: dg.DagsterInstance
) -> Iterator[dg.AssetCheckEvaluation]:
    """Yield the verdicts on one window, tied to what stands published of it; call it after its materialization.

    An evaluation that names no materialization, or an older one, has no colour in the UI.
    """
    # `AssetCheckResult` takes its partition from a run tag that runs over a range do not have, so its evaluations would
    # land without one (dagster.md, section 4).
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
