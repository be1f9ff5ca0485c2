"""What `rivet run --validate` and `--reconcile` prove of a run's windows, and what that does to its outcome.

Belongs here: the outcome. Not here: proving (`prove/prove_run.py`).

What is published stays published: a proof that fails says so, with exit code 3, and the export counts as failed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from rivet_assets.launch.outcome import Outcome
from rivet_assets.prove.prove_run import Proofs, Tell, prove_run

if TYPE_CHECKING:
    from rivet_assets.blocks.export import Export
    from rivet_assets.config.load import RivetConfig
    from rivet_resources.state.store import State


def proofs_of(export: Export, asked: Proofs) -> Proofs:
    """Return what is proved of an export: what was asked for, or all where its block says `reconcile_required`."""
    return Proofs(validate=True, reconcile=True) if export.reconcile_required else asked


def proved(config: RivetConfig, outcome: Outcome, proofs: Proofs, *, state: State, tell: Tell) -> Outcome:
    """Prove what was asked for of the windows that one export just committed; another outcome is left as it is."""
    if outcome.status != "success":
        return outcome
    export = config.export(outcome.export)
    found = prove_run(config, export, proofs_of(export, proofs), run_ids=outcome.run_ids, state=state, tell=tell)
    outcome = replace(
        outcome,
        validation=found.validation,
        reconciliation=found.reconciliation,
        warnings=(*outcome.warnings, *found.warnings),
    )
    if (fault := found.disproof) is None:
        return outcome
    message = f"Export {outcome.export} is published, but {fault.text}"
    return replace(
        outcome, status="failed", message=message, code=fault.code, exit_code=fault.exit_code, recovered=False
    )
