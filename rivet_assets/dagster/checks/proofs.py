"""What the checks of `proof_checks.py` do when somebody executes one: look, or compare, and judge.

Belongs here: calling what finds, and what judges. Not here: which checks there are, finding (`preflight/check.py`,
`plan/planner.py`, `prove/validate.py`, `prove/reconcile.py`), judging (`proof_verdicts.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import dagster as dg

from rivet_assets.dagster.checks.proof_verdicts import files_verdict, preflight_verdict, source_verdict
from rivet_assets.plan.planner import plan_exports
from rivet_assets.plan.report import metadata, render
from rivet_assets.preflight.check import check_exports
from rivet_assets.preflight.checked import Checked
from rivet_assets.prove.reconcile import reconcile_export
from rivet_assets.prove.validate import validate_export

if TYPE_CHECKING:
    from rivet_assets.blocks.export import Export
    from rivet_assets.config.load import RivetConfig
    from rivet_assets.prove.reconcile_result import Depth
    from rivet_assets.run.judge.drain_verdicts import ChangeVerdict
    from rivet_resources.state.store import State


def looked(name: str, config: RivetConfig, export: Export) -> ChangeVerdict:
    """Judge what the source's planner says of an export; the plan of its next run goes with it."""
    checked = check_exports(config, [export.name])[0]
    return preflight_verdict(name, checked, plan=_plan(config, checked))


def validated(name: str, export: Export, *, state: State) -> ChangeVerdict:
    """Judge the export's published files, for the check of this name."""
    return files_verdict(name, validate_export(export, state=state))


def reconciled(
    name: str, config: RivetConfig, export: Export, *, depth: Depth, state: State, tell: Callable[[str], None]
) -> ChangeVerdict:
    """Judge the export's windows against the source, for the check of this name."""
    return source_verdict(name, reconcile_export(config, export, depth=depth, state=state, tell=tell))


def _plan(config: RivetConfig, checked: Checked) -> dict[str, Any]:
    """Return what the next run would do, flat and as a text to read; {} for an export that cannot be planned."""
    if checked.error is not None:
        return {}
    planned = plan_exports(config, names=[checked.export], checker=lambda *_: [checked])
    if not planned.artefact.exports:
        return {}
    text = dg.MetadataValue.md(f"```\n{render(planned.artefact, planned.unplanned)}\n```")
    return {**metadata(planned.artefact.exports[0]), "rivet/plan": text}
