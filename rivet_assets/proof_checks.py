"""Checks of an export that people run from its page: can it run well, are its files whole, are they the source's rows.

Belongs here: which checks an export has. Not here: looking and comparing (`checking.py`, `validating.py`,
`reconciling.py`), what is a failure (`proof_verdicts.py`), repairing what differs (`repair_run.py`).
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import dagster as dg

from rivet_assets.change_checks import ChangeVerdict
from rivet_assets.checking import Checked, check_exports
from rivet_assets.export import Export
from rivet_assets.on_demand import Judged, OnDemand, on_demand
from rivet_assets.plan_report import metadata, render
from rivet_assets.planning import plan_exports
from rivet_assets.proof_verdicts import (
    CELLS_EQUAL_SOURCE,
    EQUALS_SOURCE,
    FILES_INTACT,
    PREFLIGHT,
    files_verdict,
    preflight_verdict,
    source_verdict,
)
from rivet_assets.reconciled import Depth
from rivet_assets.reconciling import reconcile_export
from rivet_assets.validating import validate_export
from rivet_resources.state.store import State, state_url

if TYPE_CHECKING:
    from rivet_assets.config import RivetConfig

SpecOf = Callable[[Export], dg.AssetSpec]
Context = dg.AssetCheckExecutionContext


def build_proofs(export: Export, *, config: "RivetConfig", spec_of: SpecOf) -> dg.AssetChecksDefinition:
    """Give the checks by which an export is proved; nothing is opened before somebody runs one of them."""

    def looked(context: Context) -> ChangeVerdict:
        checked = check_exports(config, [export.name])[0]
        return preflight_verdict(checked, plan=_plan(config, checked))

    def validated(context: Context) -> ChangeVerdict:
        return files_verdict(validate_export(export, state=_state(config, context)))

    def reconciled(name: str, depth: Depth) -> Judged:
        def judged(context: Context) -> ChangeVerdict:
            state = _state(config, context)
            found = reconcile_export(config, export, depth=depth, state=state, tell=context.log.info)
            return source_verdict(name, found)

        return judged

    checks = {
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
    return on_demand(spec_of(export).key, "proofs", checks)


def _plan(config: "RivetConfig", checked: Checked) -> dict[str, Any]:
    """Give what the next run would do, flat and as a text to read; {} for an export that cannot be planned."""
    if checked.error is not None:
        return {}
    planned = plan_exports(config, names=[checked.export], checker=lambda *_: [checked])
    if not planned.artefact.exports:
        return {}
    text = dg.MetadataValue.md(f"```\n{render(planned.artefact, planned.unplanned)}\n```")
    return {**metadata(planned.artefact.exports[0]), "rivet/plan": text}


def _state(config: "RivetConfig", context: Context) -> State:
    state: State = context.resources.rivet.state(state_url(config.state_url, folder=config.folder))
    return state
