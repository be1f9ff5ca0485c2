"""What a run proves of the windows it just committed: files are as they were written, rows are the source's.

Belongs here: which windows, the facts for summaries (`contract.md`, 12.2), the fault and its exit code. Not here:
looking at parts (`validate.py`) and at the source (`reconcile.py`), what a fault does to an outcome of `rivet run`
(`launch/prove_after_run.py`) or of a Dagster run (`dagster/run_config.py`).

What is published stays published: a proof that fails says so, with exit code 3.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from rivet_assets.modes.by_shard import chain_window, chains_of
from rivet_resources.commit.manifest import current_manifests
from rivet_resources.errors import PartCorrupt, RivetError

if TYPE_CHECKING:
    from rivet_assets.blocks.export import Export
    from rivet_assets.config.load import RivetConfig
    from rivet_assets.prove.reconcile_result import Depth, Reconciled
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
    reconcile: bool = False  # the source has these rows; implies `validate` (`contract.md`, 13.3)
    depth: Depth = "counts"  # how closely `reconcile` looks


@dataclass(frozen=True)
class Disproof:
    """Why a published export counts as failed, as the end of `Export x is published, but …`."""

    text: str
    code: str
    exit_code: int


@dataclass(frozen=True)
class Proved:
    """What was found of the windows of some runs."""

    windows: tuple[str, ...] | None = None  # None: all of the export
    is_whole: bool = False  # these are all windows that the export has
    folders: tuple[Validated, ...] = ()
    reconciled: Reconciled | None = None
    warnings: tuple[str, ...] = ()
    disproof: Disproof | None = None

    @property
    def validation(self) -> Mapping[str, Any] | None:
        """Return what validating found, for summaries; None where nobody looked."""
        return validation_facts(self.folders) if self.folders else None

    @property
    def reconciliation(self) -> Mapping[str, Any] | None:
        """Return what reconciling found, for summaries; None where nobody looked."""
        return reconciliation_facts(self.reconciled) if self.reconciled is not None else None


def prove_run(
    config: RivetConfig, export: Export, proofs: Proofs, *, run_ids: Sequence[str], state: State, tell: Tell
) -> Proved:
    """Prove what is asked for of the windows that these runs committed; what cannot be looked at is a fault, too."""
    proved = Proved()
    try:
        proved = _of_windows(export, run_ids)
        if proofs.validate or proofs.reconcile:
            proved = _validate(export, proved, run_ids, state)
        if proofs.reconcile:
            proved = _reconcile(config, export, proved, proofs.depth, state, tell)
    except RivetError as error:
        return replace(proved, disproof=Disproof(f"could not be verified: {error}", error.code, error.exit_code))
    return proved


def _of_windows(export: Export, run_ids: Sequence[str]) -> Proved:
    """Find the windows that these runs committed; all where the runs of tables have names of their own."""
    if export.answers.follows_log:
        return Proved()
    if export.is_apart:
        parts = [(one, _of_windows(one, run_ids)) for one in chains_of(export)]
        found = tuple(chain_window(one, each) for one, part in parts for each in part.windows or ())
        return Proved(found, is_whole=all(part.is_whole for _, part in parts))
    root = export.destination.on(datetime.now(UTC).date()).root(export.name)
    if not root.keeps_manifests:
        return Proved()
    current, runs = current_manifests(root), set(run_ids)
    windows = tuple(window for window, manifest in current.items() if manifest.run_id in runs)
    return Proved(windows, is_whole=len(windows) == len(current))


def _validate(export: Export, proved: Proved, run_ids: Sequence[str], state: State) -> Proved:
    from rivet_assets.prove.validate import ValidationScope, validate_export  # start

    folders = validate_export(export, ValidationScope(depth="full", windows=proved.windows or ()), state=state)
    proved = replace(proved, folders=tuple(folders))
    for run_id in run_ids[-1:]:
        codes = sorted({flaw.code for folder in folders for flaw in folder.all_flaws})
        passed = validation_facts(folders)["passed"]
        state.write_journal(run_id, export.name, "ValidationResult", {"passed": passed, "codes": codes})
    flaws = [flaw for folder in folders for flaw in folder.all_flaws if flaw.kind != "advisory"]
    if not flaws:
        return proved
    wrong = next((flaw for flaw in flaws if flaw.kind == "wrong"), flaws[0])
    more = f" ({len(flaws) - 1} more)" if len(flaws) > 1 else ""
    text = f"does not validate: {wrong.path}: {wrong.text}{more}"
    return replace(proved, disproof=Disproof(text, wrong.code, max(folder.exit_code for folder in folders)))


def _reconcile(config: RivetConfig, export: Export, proved: Proved, depth: Depth, state: State, tell: Tell) -> Proved:
    from rivet_assets.prove.reconcile import reconcile_export  # start

    found = reconcile_export(config, export, depth=depth, windows=proved.windows, state=state, tell=tell)
    proved = replace(proved, reconciled=found)
    if found.verdict == "mismatch":
        fault = Disproof(f"does not match its source: {found.text}", MISMATCH, PartCorrupt.exit_code)
        return replace(proved, disproof=fault)
    if found.verdict == "unknown":
        return replace(proved, warnings=(*proved.warnings, f"could not be reconciled: {found.text}"))
    return proved


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
