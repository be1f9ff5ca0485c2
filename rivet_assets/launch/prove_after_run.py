"""What `rivet run --validate` and `--reconcile` prove of a run's windows, and what that does to its outcome.

Belongs here: which windows, the facts for the summary (`contract.md`, 12.2), exit codes. Not here: looking at parts
(`prove/validate.py`) and at the source (`prove/reconcile.py`).

What is published stays published: a proof that fails says so, with exit code 3, and the export counts as failed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from rivet_assets.launch.outcome import Outcome
from rivet_resources.commit.manifest import current_manifests
from rivet_resources.errors import PartCorrupt, RivetError

if TYPE_CHECKING:
    from rivet_assets.blocks.export import Export
    from rivet_assets.config.load import RivetConfig
    from rivet_assets.prove.reconcile_result import Reconciled
    from rivet_resources.prove.flaws import Validated
    from rivet_resources.state.store import State

MOST_FAILURES = 20  # flaws in a summary
MISMATCH = "RIVET_RECONCILE_MISMATCH"
PASSED = {"match": True, "mismatch": False, "unknown": None}

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Proofs:
    """What a run was asked to prove of itself once it is published."""

    validate: bool = False  # the parts are what was written
    reconcile: bool = False  # the source has as many rows; implies `validate` (`contract.md`, 13.3)


def proofs_of(export: Export, asked: Proofs) -> Proofs:
    """Return what is proved of an export: what was asked for, or all where its block says `reconcile_required`."""
    return Proofs(validate=True, reconcile=True) if export.reconcile_required else asked


def proved(config: RivetConfig, outcome: Outcome, proofs: Proofs, *, state: State, tell: Tell) -> Outcome:
    """Prove what was asked for of the windows that one export just committed; another outcome is left as it is."""
    if outcome.status != "success":
        return outcome
    export = config.export(outcome.export)
    proofs = proofs_of(export, proofs)
    try:
        windows = _windows(export, outcome)
        if proofs.validate or proofs.reconcile:
            outcome = _validate(export, outcome, windows, state)
        if proofs.reconcile:
            outcome = _reconcile(config, export, outcome, windows, state, tell)
    except RivetError as error:
        return _failed_outcome(outcome, f"could not be verified: {error}", error.code, error.exit_code)
    return outcome


def _windows(export: Export, outcome: Outcome) -> list[str] | None:
    """Find the windows that these runs committed; None where the runs of tables have names of their own."""
    if export.answers.follows_log:
        return None
    root = export.destination.on(datetime.now(UTC).date()).root(export.name)
    if not root.keeps_manifests:
        return None
    runs = set(outcome.run_ids)
    return [window for window, manifest in current_manifests(root).items() if manifest.run_id in runs]


def _validate(export: Export, outcome: Outcome, windows: Sequence[str] | None, state: State) -> Outcome:
    from rivet_assets.prove.validate import ValidationScope, validate_export  # start

    folders = validate_export(export, ValidationScope(depth="full", windows=tuple(windows or ())), state=state)
    facts = validation_facts(folders)
    outcome = replace(outcome, validation=facts)
    for run_id in outcome.run_ids[-1:]:
        codes = sorted({flaw.code for folder in folders for flaw in folder.all_flaws})
        state.write_journal(run_id, export.name, "ValidationResult", {"passed": facts["passed"], "codes": codes})
    flaws = [flaw for folder in folders for flaw in folder.all_flaws if flaw.kind != "advisory"]
    if not flaws:
        return outcome
    wrong = next((flaw for flaw in flaws if flaw.kind == "wrong"), flaws[0])
    more = f" ({len(flaws) - 1} more)" if len(flaws) > 1 else ""
    exit_code = max(folder.exit_code for folder in folders)
    return _failed_outcome(outcome, f"does not validate: {wrong.path}: {wrong.text}{more}", wrong.code, exit_code)


def _reconcile(
    config: RivetConfig, export: Export, outcome: Outcome, windows: Sequence[str] | None, state: State, tell: Tell
) -> Outcome:
    from rivet_assets.prove.reconcile import reconcile_export  # start

    found = reconcile_export(config, export, depth="counts", windows=windows, state=state, tell=tell)
    outcome = replace(outcome, reconciliation=reconciliation_facts(found))
    if found.verdict == "mismatch":
        return _failed_outcome(outcome, f"does not match its source: {found.text}", MISMATCH, PartCorrupt.exit_code)
    if found.verdict == "unknown":
        return replace(outcome, warnings=(*outcome.warnings, f"could not be reconciled: {found.text}"))
    return outcome


def validation_facts(folders: Sequence[Validated]) -> dict[str, Any]:
    """Return what validating found under the original's names; `passed` None: nothing could be said."""
    flaws = [flaw for folder in folders for flaw in folder.all_flaws]
    serious = [flaw for flaw in flaws if flaw.kind != "advisory"]
    windows = [window for folder in folders for window in folder.windows]
    broken = {flaw.path for flaw in serious if flaw.short.startswith(("PART_", "VALUE_"))}
    verdicts = {folder.verdict for folder in folders}
    verdict = "mismatch" if "mismatch" in verdicts else "match" if verdicts == {"match"} else "unknown"
    whole = max(0, sum(window.parts for window in windows) - len(broken))
    depth = folders[0].depth if folders else "full"
    return {
        "passed": PASSED[verdict],
        "manifest": {
            "manifest_found": bool(windows),
            "legacy_run": any(folder.note for folder in folders),
            "parts_verified": whole,
            "parts_md5_verified": whole if depth == "full" else 0,
            "parts_failed": len(broken),
            "success_marker_consistent": not any(flaw.short.startswith("SUCCESS_") for flaw in serious),
            "manifest_self_consistent": not any(flaw.short == "MANIFEST_INCONSISTENT" for flaw in serious),
            "passed": PASSED[verdict],
            "failures": [f"{flaw.code} {flaw.path}: {flaw.text}" for flaw in flaws[:MOST_FAILURES]],
            "depth_level": depth,
        },
    }


def reconciliation_facts(found: Reconciled) -> Mapping[str, Any]:
    """Return what reconciling found under the original's names, and why; no value of a row."""
    return {
        "source_count": found.source_count,
        "exported_rows": found.exported_rows,
        "matched": PASSED[found.verdict],
        "text": found.text,
    }


def _failed_outcome(outcome: Outcome, what: str, code: str, exit_code: int) -> Outcome:
    message = f"Export {outcome.export} is published, but {what}"
    return replace(outcome, status="failed", message=message, code=code, exit_code=exit_code, recovered=False)
