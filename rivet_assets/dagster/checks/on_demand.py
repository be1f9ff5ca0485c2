"""Checks that run only when somebody asks for them: they ask the source, or read whole files.

Belongs here: the shape that keeps them out of every other run, and every light as it was until it is judged again.
Not here: what they judge (`proof_checks.py`, `drain_proofs.py`).

Decisions, on facts of dagster 1.13.27:
* A launch selects all checks of its assets (the UI and a backfill name them all; nobody named means all), and each one
  that stands in the plan of a run loses its verdict at once: it turns "skipped" when the run has none, "execution
  failed" when the run fails. A separate step for such checks stands in every plan, so they belong to the step that
  makes the asset.
* They cannot be left out of the plan: the daemon refuses a backfill whose plan lacks a check that it named
  (`submit_asset_runs.py`, `_create_asset_run`: "Failed to target asset selection"). So the step begins by taking back
  that they were planned: what a run judges it tells, and what it does not judge stays as it was, also when the run was
  killed. Told without having been planned, a verdict is stored all the same.
* A schedule names no check at all, since each has a condition of its own (`check_events.BY_HAND`).
* Asked for without the asset, the step plans the checks on demand, and they alone, as
  `AssetsDefinition.asset_and_check_keys` says (`plan/compute.py`, `create_step_outputs`).
"""

import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import dagster as dg
from dagster._core.storage.asset_check_execution_record import AssetCheckExecutionRecordStatus as Status  # not exported
from dagster._core.storage.event_log.schema import AssetCheckExecutionsTable  # not exported, as the next
from dagster._core.storage.event_log.sql_event_log import SqlEventLogStorage

from rivet_assets.dagster.checks.check_events import BY_HAND
from rivet_assets.dagster.checks.drain_checks import change_results
from rivet_assets.dagster.unrecorded import UnrecordedEvents
from rivet_assets.run.judge.drain_verdicts import ChangeVerdict
from rivet_resources.dagster.errors import translated

# Verdicts, whichever; the others are of checks that were only planned.
JUDGED = {Status.SUCCEEDED, Status.FAILED}
Judged = Callable[[dg.AssetExecutionContext], ChangeVerdict]
Make = Callable[[dg.AssetExecutionContext], Iterator[Any]]
ON_DEMAND = "rivet/on_demand"  # metadata of such a check


@dataclass(frozen=True)
class OnDemand:
    """One check: what it says, and how it comes to its verdict."""

    description: str
    judged: Judged


Proofs = Mapping[dg.AssetKey, Mapping[str, OnDemand]]  # of the assets of one step


class ProvableAssets(dg.AssetsDefinition):
    """Assets of one step; asked for without them, it plans its checks on demand, and they alone."""

    @staticmethod
    def dagster_internal_init(**attributes: Any) -> "ProvableAssets":
        """Return such assets again, for subsets and copies; Dagster's own would return plain ones."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", dg.PreviewWarning)
            warnings.simplefilter("ignore", dg.BetaWarning)
            return ProvableAssets(**attributes)

    @property
    def asset_and_check_keys(self) -> set[dg.AssetKey | dg.AssetCheckKey]:
        """Return what a run of this definition plans."""
        # A launch selects all checks of its assets, and a backfill is refused whose plan lacks a check that it named:
        # so with the assets every check is planned, and `_take_back_plan` undoes that.
        if self.keys:
            return {*self.keys, *self.check_keys}
        return {spec.key for spec in self.check_specs if ON_DEMAND in spec.metadata}


def provable(assets: dg.AssetsDefinition) -> ProvableAssets:
    """Return assets, made with `can_subset`, with checks on demand that only those run who ask for them."""
    return ProvableAssets.dagster_internal_init(**assets.get_attributes_dict())


def on_demand_specs(proofs: Proofs) -> list[dg.AssetCheckSpec]:
    """Describe the checks on demand of a step's assets."""
    return [
        dg.AssetCheckSpec(
            name, asset=key, description=proof.description, automation_condition=BY_HAND, metadata={ON_DEMAND: True}
        )
        for key, checks in proofs.items()
        for name, proof in checks.items()
    ]


def is_asked_alone(context: dg.AssetExecutionContext) -> bool:
    """Return whether a run is for checks of a step's assets and makes none of them."""
    return not context.selected_asset_keys


def answer_or_make(context: dg.AssetExecutionContext, proofs: Proofs, make: Make) -> Iterator[Any]:
    """Yield what a step of ours yields: verdicts on demand, where they alone were asked for, or what `make` does."""
    if is_asked_alone(context):
        yield from answer(context, proofs)
        return
    _take_back_plan(context)
    yield from make(context)


def _take_back_plan(context: dg.AssetExecutionContext) -> None:
    """Forget that this run planned checks of the step; a storage that is not Dagster's own SQL keeps it."""
    storage, table = context.instance.event_log_storage, AssetCheckExecutionsTable
    keys = {spec.asset_key.to_string() for spec in context.assets_def.check_specs}
    if not isinstance(storage, SqlEventLogStorage) or isinstance(storage, UnrecordedEvents) or not keys:
        return
    try:
        with storage.index_connection() as connection:
            connection.execute(
                table.delete().where(
                    table.c.run_id == context.run_id,
                    table.c.execution_status == Status.PLANNED.value,
                    table.c.asset_key.in_(sorted(keys)),
                )
            )
    except Exception as error:
        # Lights are told, not needed: a busy event log must not end an export.
        context.log.warning(f"Checks of this run stay planned in Dagster ({type(error).__name__}).")


def answer(context: dg.AssetExecutionContext, proofs: Proofs) -> Iterator[dg.AssetCheckResult]:
    """Judge the checks that were asked for; those that only a run of the asset judges keep the verdict they have."""
    for asked in sorted(context.selected_asset_check_keys):
        proof = proofs.get(asked.asset_key, {}).get(asked.name)
        if proof is None:
            name = asked.asset_key.to_user_string()
            context.log.info(f"{asked.name} is judged when {name} is materialized; its verdict stays as it is.")
            continue
        with translated(retry_number=1, seconds_to_wait=1):
            yield from change_results(asked.asset_key, [proof.judged(context)])
