"""Checks of change exports that people run from the UI, and nothing else does: they ask the source.

Belongs here: prerequisites of a log, and whether a mirror is its table. Not here: judging (`run/drain_verdicts.py`),
what every drain checks by itself (`drain_asset.py`).
"""

from collections.abc import Callable

import dagster as dg

from rivet_assets.blocks.export import Export
from rivet_assets.config.load import RivetConfig
from rivet_assets.dagster.drain_checks import DESCRIBED
from rivet_assets.dagster.on_demand import OnDemand, on_demand
from rivet_assets.dagster.table_asset import applied_spec, site_of
from rivet_assets.modes.cdc import Cdc
from rivet_assets.prove.reconcile_mirror import compare_mirror
from rivet_assets.run.drain_verdicts import (
    MIRROR,
    PREREQUISITES,
    ChangeVerdict,
    mirror_verdict,
    prerequisites_verdict,
)
from rivet_assets.run.log_status import open_for_look
from rivet_assets.run.scope import state_of

SpecOf = Callable[[Export], dg.AssetSpec]


def build_checks(export: Cdc, *, config: RivetConfig, spec_of: SpecOf) -> list[dg.AssetChecksDefinition]:
    """Return the checks that ask the source; nothing is opened before somebody runs them."""
    checks = [_prerequisites(export, table, config, spec_of) for table in export.captured]
    if "mirror" in export.apply:
        checks += [_mirror(export, table, config, spec_of) for table in export.captured]
    return checks


def _prerequisites(export: Cdc, table: str, config: RivetConfig, spec_of: SpecOf) -> dg.AssetChecksDefinition:
    key = spec_of(export.of_table(table)).key

    def judged(context: dg.AssetCheckExecutionContext) -> ChangeVerdict:
        _, source = config.source_of(export)
        state = state_of(config, rivet=context.resources.rivet)
        with open_for_look(export, source, deployment=state.name) as log:
            return prerequisites_verdict(log.preflight())

    return on_demand(key, PREREQUISITES, {PREREQUISITES: OnDemand(DESCRIBED[PREREQUISITES], judged)})


def _mirror(export: Cdc, table: str, config: RivetConfig, spec_of: SpecOf) -> dg.AssetChecksDefinition:
    key = applied_spec(export, table, "mirror", spec_of=spec_of).key

    def judged(context: dg.AssetCheckExecutionContext) -> ChangeVerdict:
        return mirror_verdict(compare_mirror(site_of(export, table, "mirror", config, context), table))

    described = "The mirror holds exactly the rows of its table; reads all of both."
    return on_demand(key, MIRROR, {MIRROR: OnDemand(described, judged)})
