"""Checks of change exports that people run from the UI, and nothing else does: they ask the source.

Belongs here: prerequisites of a log, and whether a mirror is its table. Not here: judging
(`run/judge/drain_verdicts.py`), what every drain checks by itself (`drain_asset.py`).
"""

from collections.abc import Callable

import dagster as dg

from rivet_assets.config.load import RivetConfig
from rivet_assets.dagster.checks.drain_checks import DESCRIBED
from rivet_assets.dagster.checks.on_demand import OnDemand
from rivet_assets.dagster.resources import run_resource
from rivet_assets.modes.cdc import Cdc
from rivet_assets.prove.reconcile_mirror import compare_mirror
from rivet_assets.run.admit.scope import state_of
from rivet_assets.run.attempt import Site
from rivet_assets.run.judge.drain_verdicts import (
    MIRROR,
    PREREQUISITES,
    ChangeVerdict,
    mirror_verdict,
    prerequisites_verdict,
)
from rivet_assets.run.log_status import open_for_look


def prerequisites_of(export: Cdc, *, config: RivetConfig) -> dict[str, OnDemand]:
    """Return the check of what a drain needs of its source; nothing is opened before somebody runs it."""

    def judged(context: dg.AssetExecutionContext) -> ChangeVerdict:
        _, source = config.source_of(export)
        state = state_of(config, rivet=run_resource(context))
        with open_for_look(export, source, deployment=state.name) as log:
            return prerequisites_verdict(log.preflight())

    return {PREREQUISITES: OnDemand(DESCRIBED[PREREQUISITES], judged)}


def mirror_proof(table: str, site: Callable[[dg.AssetExecutionContext], Site]) -> dict[str, OnDemand]:
    """Return the check that a mirror is its table; nothing is opened before somebody runs it."""

    def judged(context: dg.AssetExecutionContext) -> ChangeVerdict:
        return mirror_verdict(compare_mirror(site(context), table))

    return {MIRROR: OnDemand("The mirror holds exactly the rows of its table; reads all of both.", judged)}
