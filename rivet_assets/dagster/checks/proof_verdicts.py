"""What looking, validating and reconciling found, as verdicts of checks.

Belongs here: which finding is a warning and which a failure; arithmetic only. Not here: finding (`preflight/check.py`,
`prove/validate.py`, `prove/reconcile.py`), calling both (`proofs.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from rivet_assets.preflight.check import facts_of_check
from rivet_assets.preflight.checked import Checked
from rivet_assets.prove.reconcile_result import Reconciled, facts_of_reconcile
from rivet_assets.prove.validate import facts_of
from rivet_assets.run.judge.drain_verdicts import ChangeVerdict
from rivet_resources.prove.flaws import Validated

# Flaws in a sentence; all of them are in the report of `rivet validate`.
MOST_TOLD = 5

Level = Literal["ok", "warn", "fail"]
# How an export will run (`preflight/verdict.py`), as a check says it.
LEVELS: Mapping[str, Level] = {"EFFICIENT": "ok", "ACCEPTABLE": "ok", "DEGRADED": "warn", "UNSAFE": "fail"}
PROVED: Mapping[str, Level] = {"match": "ok", "unknown": "warn", "mismatch": "fail"}


def preflight_verdict(name: str, checked: Checked, *, plan: Mapping[str, Any]) -> ChangeVerdict:
    """Judge what is known of an export before it runs, as `rivet check` does.

    What a run would refuse, UNSAFE, and what cannot be looked at fails; DEGRADED warns.

    Args:
        name: of the check, as in each of these.
        plan: what the next run would do, told along.
    """
    if checked.error is not None:
        return _verdict(name, "fail", 1, 0, str(checked.error), facts_of_check(checked))
    told = [each for each in checked.findings if each.status != "ok"]
    failed = [f"{each.name}: {each.text}" for each in told if each.status == "fail"]
    level: Level = "fail" if failed else LEVELS[checked.verdict or "UNSAFE"]
    text = f"{checked.verdict}: {'; '.join((*failed, *checked.reasons, *checked.suggestions))}"
    return _verdict(name, level, len(told), checked.rows_estimate or 0, text, {**facts_of_check(checked), **plan})


def files_verdict(name: str, folders: Sequence[Validated]) -> ChangeVerdict:
    """Judge whether the published files are what their manifests say; what nobody could see warns."""
    flaws = [flaw for folder in folders for flaw in folder.all_flaws if flaw.kind != "advisory"]
    worst: Level = "fail" if any(flaw.kind == "wrong" for flaw in flaws) else "warn" if flaws else "ok"
    rows = sum(window.rows for folder in folders for window in folder.windows)
    told = "; ".join(f"{flaw.code} {flaw.path}: {flaw.text}" for flaw in flaws[:MOST_TOLD])
    more = f"; and {len(flaws) - MOST_TOLD} more" if len(flaws) > MOST_TOLD else ""
    parts = sum(window.parts for folder in folders for window in folder.windows)
    text = f"{told}{more}" if flaws else f"{parts} files are what was committed"
    facts = facts_of(folders[0]) if len(folders) == 1 else {}
    return _verdict(name, worst, len(flaws), rows, text, facts)


def source_verdict(name: str, found: Reconciled) -> ChangeVerdict:
    """Judge whether the committed windows are the rows that the source has now."""
    wrong = sum(window.verdict != "match" for window in found.windows)
    return _verdict(name, PROVED[found.verdict], wrong, found.exported_rows or 0, found.text, facts_of_reconcile(found))


def _verdict(name: str, level: Level, observed: float, rows: int, text: str, facts: Mapping[str, Any]) -> ChangeVerdict:
    return ChangeVerdict(name, level == "ok", False, observed, 0, rows, text, facts, level)
