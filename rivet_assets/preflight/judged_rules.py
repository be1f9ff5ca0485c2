"""What a contract will judge, before it does: each rule with its severity, and with what it costs beside the one pass.

Belongs here: the list, what `rivet check` warns of, its lines. Not here: judging (`run/judge/contract_rules.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from rivet_assets.run.judge.contract_rules import columns_verdict, contract_rules, describe_columns, has_column_rules
from rivet_assets.run.judge.quality import CONTRACT_COLUMNS
from rivet_assets.run.judge.references import check_references, is_published
from rivet_resources.contracts.evidence import Finding
from rivet_resources.shape.shape import planned

if TYPE_CHECKING:
    from rivet_assets.blocks.contract import Contract
    from rivet_assets.blocks.export import Export
    from rivet_assets.run.judge.quality import QualityRule
    from rivet_resources.contracts.relation import Relation

RuleSeverity = Literal["stop", "warn", "dead_letter"]
BEFORE = "before a row is read"
LINES = (("stop", "keeps a window back"), ("dead_letter", "sets rows aside"), ("warn", "only warns"))
ONE_PASS = ""  # counted while the rows are written
HASHES = "keeps a hash of each cell until the end, on disk where it grows"
FILES = "reads the window's files once more"
REFERENCES = "keeps a hash of each value, and reads the key columns of another export"
HISTORY = "reads the history of runs"
COSTS = {
    "sql__": FILES,
    "checks__": FILES,
    "references__": REFERENCES,
}  # of rules about numbers, by the beginnings of their names


@dataclass(frozen=True)
class JudgedRule:
    """One check of a contract. `cost`: what it takes beside the pass that writes; '' for nothing."""

    check: str
    severity: RuleSeverity
    text: str
    cost: str


def judged_rules(contract: Contract | None) -> tuple[JudgedRule, ...]:
    """List what windows are judged by, columns first; () without a contract."""
    if contract is None:
        return ()
    columns = []
    if has_column_rules(contract):
        text, blocking = describe_columns(contract)
        columns.append(JudgedRule(CONTRACT_COLUMNS, _severity(blocking), text, BEFORE))
    rules = (
        JudgedRule(
            rule.name,
            "dead_letter" if rule.kind == "rows_aside" else _severity(rule.blocking),
            rule.description,
            _cost(rule),
        )
        for rule in contract_rules(contract)
    )
    return (*columns, *rules)


def contract_findings(export: Export, relation: Relation) -> tuple[Finding, ...]:
    """Return how the columns of the source break the contract now; a run would be stopped where it says `fail`."""
    if export.contract is None:
        return ()
    shaped = planned(relation, export.steps).schema
    check_references(export.contract, shaped)
    unpublished = tuple(_unpublished(export.contract))
    if not has_column_rules(export.contract):
        return unpublished
    verdict = columns_verdict(export.contract, shaped, relation)
    if verdict.passed:
        return unpublished
    fix = "Change the table, `transforms:` or the contract; a run would read nothing." if verdict.blocking else ""
    return (Finding(CONTRACT_COLUMNS, "fail" if verdict.blocking else "warn", verdict.text, fix), *unpublished)


def _unpublished(contract: Contract) -> Iterator[Finding]:
    """Warn of references to exports that have no row to be looked at yet."""
    for name, reference in contract.references.items():
        if not is_published(reference):
            text = f"export {reference.export} has published nothing yet, so every value would be missing"
            yield Finding(f"references__{name}", "warn", text, f"rivet run -e {reference.export}")


def contract_lines(rules: Iterable[JudgedRule]) -> Iterator[str]:
    """Yield in a few lines which checks stop a window, which warn, and which cost more than the pass that writes."""
    rules = tuple(rules)
    for severity, told in LINES:
        if names := [rule.check for rule in rules if rule.severity == severity]:
            yield f"{told}: {', '.join(names)}"
    # Each cost once, in the order in which it first comes.
    for cost in dict.fromkeys(rule.cost for rule in rules if rule.cost not in (ONE_PASS, BEFORE)):
        yield f"{cost}: {', '.join(rule.check for rule in rules if rule.cost == cost)}"


def _severity(blocking: bool) -> RuleSeverity:
    return "stop" if blocking else "warn"


def _cost(rule: QualityRule) -> str:
    if rule.kind == "unique":
        return HASHES
    if rule.kind == "number":
        return next((cost for prefix, cost in COSTS.items() if rule.name.startswith(prefix)), HISTORY)
    return ONE_PASS
