"""Checks of an export that people run from its page: can it run well, are its files whole, are they the source's rows.

Belongs here: which checks an export has. Not here: what they do (`proofs.py`, imported when one is executed, since no
run of an export needs it), what is a failure (`proof_verdicts.py`), repairing what differs (`repair_job.py`).
"""

from typing import TYPE_CHECKING

import dagster as dg

from rivet_assets.blocks.export import Export
from rivet_assets.dagster.on_demand import Judged, OnDemand
from rivet_assets.dagster.resources import run_resource
from rivet_assets.run.drain_verdicts import ChangeVerdict
from rivet_assets.run.scope import state_of
from rivet_resources.state.store import State

if TYPE_CHECKING:
    from rivet_assets.config.load import RivetConfig
    from rivet_assets.prove.reconcile_result import Depth

PREFLIGHT = "preflight"
FILES_INTACT = "files_intact"
EQUALS_SOURCE = "equals_source"
CELLS_EQUAL_SOURCE = "cells_equal_source"

Context = dg.AssetExecutionContext


def proofs_of(export: Export, *, config: "RivetConfig") -> dict[str, OnDemand]:
    """Return the checks by which an export is proved, by name; nothing is opened before somebody runs one of them."""

    def looked(context: Context) -> ChangeVerdict:
        from rivet_assets.dagster import proofs  # Dagster

        return proofs.looked(PREFLIGHT, config, export)

    def validated(context: Context) -> ChangeVerdict:
        from rivet_assets.dagster import proofs  # Dagster

        return proofs.validated(FILES_INTACT, export, state=_state(config, context))

    def reconciled(name: str, depth: "Depth") -> Judged:
        def judged(context: Context) -> ChangeVerdict:
            from rivet_assets.dagster import proofs  # Dagster

            state = _state(config, context)
            return proofs.reconciled(name, config, export, depth=depth, state=state, tell=context.log.info)

        return judged

    return {
        PREFLIGHT: OnDemand(
            "The planner of the source says that the export will run well; this is the plan, no row is read.",
            looked,
        ),
        FILES_INTACT: OnDemand(
            "Every committed file is there, with its bytes, its rows and its values; reads them all.", validated
        ),
        EQUALS_SOURCE: OnDemand(
            "Each committed window has as many rows as the source has now.", reconciled(EQUALS_SOURCE, "counts")
        ),
        CELLS_EQUAL_SOURCE: OnDemand(
            "Each committed window has the cells that the source has now; reads the source again.",
            reconciled(CELLS_EQUAL_SOURCE, "checksums"),
        ),
    }


def _state(config: "RivetConfig", context: Context) -> State:
    state: State = state_of(config, rivet=run_resource(context))
    return state
