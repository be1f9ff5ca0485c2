"""Checks that run only when somebody asks for them: they ask the source, or read whole files.

Belongs here: their shape in Dagster. Not here: what they judge (`proof_checks.py`, `drain_proofs.py`).

Dagster runs the checks of an asset along with it, which would read whole tables at every materialization; so in a run
that also makes the asset these say nothing, and no automation asks for them.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import dagster as dg

from rivet_assets.dagster.drain_checks import BY_HAND, change_results
from rivet_assets.run.drain_verdicts import ChangeVerdict
from rivet_resources.dagster.errors import translated

Judged = Callable[[dg.AssetCheckExecutionContext], ChangeVerdict]


@dataclass(frozen=True)
class OnDemand:
    """One check: what it says, and how it comes to its verdict."""

    description: str
    judged: Judged


def on_demand(key: dg.AssetKey, name: str, checks: Mapping[str, OnDemand]) -> dg.AssetChecksDefinition:
    """Make checks of one asset that run only when somebody asks for one of them by name.

    Args:
        name: of the step, behind the asset's.
        checks: by their own names; each can be asked for alone.
    """

    @dg.multi_asset_check(
        name=f"{key.to_python_identifier()}__{name}",
        specs=[
            dg.AssetCheckSpec(each, asset=key, description=check.description, automation_condition=BY_HAND)
            for each, check in checks.items()
        ],
        can_subset=True,  # or it would have to answer
        required_resource_keys={"rivet"},
    )
    def asked(context: dg.AssetCheckExecutionContext) -> Iterator[dg.AssetCheckResult]:
        if not is_asked_for(context.job_def, key):
            context.log.info(f"{name} is not run along with {key.to_user_string()}; execute it by itself.")
            return
        wanted = {selected.name for selected in context.selected_asset_check_keys}
        for each, check in checks.items():
            if each in wanted:
                with translated(retry_number=1, seconds_to_wait=1):
                    yield from change_results(key, [check.judged(context)])

    return asked


def is_asked_for(job: dg.JobDefinition, key: dg.AssetKey) -> bool:
    """Return whether a run, by the job that was cut out for it, is for checks of an asset and does not make it."""
    return key not in job.asset_layer.selected_asset_keys
