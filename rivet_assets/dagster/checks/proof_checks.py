"""Checks of an export that people run from its page: can it run well, are its files whole, are they the source's rows.

Belongs here: which checks an export has, how closely they look. Not here: what they do (`proofs.py`, imported when one
is executed, since no run of an export needs it), what is a failure (`proof_verdicts.py`), repairing what differs
(`repair_job.py`).
"""

from typing import TYPE_CHECKING

import dagster as dg

from rivet_assets.blocks.export import Export
from rivet_assets.dagster.checks.on_demand import JUDGED, OnDemand
from rivet_assets.dagster.resources import run_resource
from rivet_assets.run.admit.scope import state_of
from rivet_assets.run.judge.drain_verdicts import ChangeVerdict
from rivet_assets.run.run_options import read_options
from rivet_resources.state.store import State

if TYPE_CHECKING:
    from rivet_assets.config.load import RivetConfig
    from rivet_assets.prove.reconcile_result import Depth, Reconciled

PREFLIGHT = "preflight"
FILES_INTACT = "files_intact"
EQUALS_SOURCE = "equals_source"

Context = dg.AssetExecutionContext


def proofs_of(export: Export, key: dg.AssetKey, *, config: "RivetConfig") -> dict[str, OnDemand]:
    """Return the checks by which an export is proved, by name; nothing is opened before somebody runs one of them."""

    def looked(context: Context) -> ChangeVerdict:
        from rivet_assets.dagster.checks import proofs  # Dagster

        return proofs.looked(PREFLIGHT, config, export)

    def validated(context: Context) -> ChangeVerdict:
        from rivet_assets.dagster.checks import proofs  # Dagster

        return proofs.validated(FILES_INTACT, export, state=_state(config, context))

    def reconciled(context: Context) -> ChangeVerdict:
        from rivet_assets.dagster.checks import proofs  # Dagster

        asked = read_options(context.op_execution_context.op_config or {}, export).depth
        depth = asked or depth_to_disprove(key, context.instance)
        state = _state(config, context)
        return proofs.reconciled(EQUALS_SOURCE, config, export, depth=depth, state=state, tell=context.log.info)

    return {
        PREFLIGHT: OnDemand(
            "The planner of the source says that the export will run well; this is the plan, no row is read.",
            looked,
        ),
        FILES_INTACT: OnDemand(
            "Every committed file is there, with its bytes, its rows and its values; reads them all.", validated
        ),
        EQUALS_SOURCE: OnDemand(
            "Each committed window has as many rows as the source has now; with the run config `depth: checksums`, or "
            "after cells differed, the cells that the source has now, which reads the source again.",
            reconciled,
        ),
    }


def is_close_enough(found: "Reconciled", key: dg.AssetKey, instance: dg.DagsterInstance) -> bool:
    """Return whether a look may change what `equals_source` says of an asset: any that fails may."""
    return found.verdict == "mismatch" or depth_to_disprove(key, instance) in ("counts", found.depth)


def depth_to_disprove(key: dg.AssetKey, instance: dg.DagsterInstance) -> "Depth":
    """Return how closely one has to look to take back what `equals_source` says of an asset."""
    # Counts are equal long before cells are: a red light of cells would turn green by a look that cannot see its cause.
    storage, check = instance.event_log_storage, dg.AssetCheckKey(key, EQUALS_SOURCE)
    # Not the latest record: that is the one of the run that asks, which plans the check.
    for record in storage.get_asset_check_execution_history(check, limit=1, status=JUDGED):
        evaluation = record.evaluation
        if evaluation is not None and not evaluation.passed and evaluation.severity == dg.AssetCheckSeverity.ERROR:
            depth = evaluation.metadata.get("rivet/depth")
            return "checksums" if depth is not None and depth.value != "counts" else "counts"
    return "counts"


def _state(config: "RivetConfig", context: Context) -> State:
    state: State = state_of(config, rivet=run_resource(context))
    return state
