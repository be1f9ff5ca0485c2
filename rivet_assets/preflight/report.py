"""What `rivet check` prints: a block per export for people, one JSON document, an exit code.

Belongs here: wording and shape of the whole. Not here: what is looked at (`check.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rivet_assets.preflight.checked import Checked
from rivet_assets.preflight.judged_rules import contract_lines
from rivet_assets.run.report import Line, Report, Section, Severity, Table

SEVERITIES: Mapping[str, Severity] = {"UNSAFE": "fail", "NOT CHECKED": "fail", "EFFICIENT": "ok", "ACCEPTABLE": "ok"}
MARKS = {"ok": "ok", "warn": "warning", "fail": "failed"}


def render(checked: Sequence[Checked]) -> Report:
    """Return a section per export, and a sum at the end."""
    counted = Counter(each.verdict or "not checked" for each in checked)
    total = f"{len(checked)} export{'' if len(checked) == 1 else 's'}"
    return Report([*map(_section, checked)], f"{total}: {', '.join(f'{n} {word}' for word, n in counted.items())}")


def _section(checked: Checked) -> Section:
    verdict = checked.verdict or "NOT CHECKED"
    types = Table((), [(f.column, f.native, f.becomes, f.fidelity, f.helps) for f in checked.types])
    table = types if checked.types else None
    return Section(f"{checked.export}  {verdict}", [*_rows(checked)], table, SEVERITIES.get(verdict, "warn"))


def _rows(checked: Checked) -> Iterator[Line]:
    if checked.error is not None:
        for line in str(checked.error).splitlines():
            yield Line((f"{'error':<8}",), line, "fail")
    for name, text in _lines(checked):
        yield Line((name,), text)
    for found in checked.findings:
        fix = found.fix if found.status != "ok" else ""
        yield Line((MARKS[found.status],), f"{found.name}: {found.text}", found.status, fix)
    for suggestion in checked.suggestions:
        yield Line(("try",), suggestion)
    if checked.types:
        yield Line((), "types")


def _lines(checked: Checked) -> Iterator[tuple[str, str]]:
    if checked.strategy:
        yield "strategy", checked.strategy
    for reason in checked.reasons:
        yield "because", reason
    for explained in checked.explained:
        index = f" by {explained.index}" if explained.index else ""
        rows = "" if explained.rows is None else f", {explained.rows:,} rows expected"
        yield "planner", f"{explained.scan}{index}{', sorts' if explained.sorts else ''}{rows}"
    if checked.cursor_range:
        low, high = checked.cursor_range
        yield "range", f"{low} to {high}{'' if checked.range_is_exact else ' (estimated)'}"
    if checked.profile and checked.parallel:
        yield "profile", f"{checked.profile.value}: {checked.profile.reason}"
        yield "parallel", f"{checked.parallel.value}: {checked.parallel.reason}"
    for text in contract_lines(checked.contract):
        yield "contract", text
    for each in checked.masked:
        yield "masked", f"{each.name}: {each.tag} (rule {each.rule!r})"


def document(checked: Sequence[Checked], *, config_path: Path | None) -> dict[str, Any]:
    """Return the JSON document."""
    return {"config_path": str(config_path) if config_path else None, "exports": [_export(each) for each in checked]}


def _export(checked: Checked) -> dict[str, Any]:
    advice = {
        name: {"value": each.value, "reason": each.reason} if each else None
        for name, each in (("profile", checked.profile), ("parallel", checked.parallel))
    }
    return {
        "export": checked.export,
        "verdict": checked.verdict,
        "strategy": checked.strategy,
        "reasons": list(checked.reasons),
        "suggestions": list(checked.suggestions),
        "findings": [
            {"name": each.name, "status": each.status, "text": each.text, "fix": each.fix} for each in checked.findings
        ],
        **advice,
        "rows_estimate": checked.rows_estimate,
        "explained": [
            {
                "statement": each.statement, "scan": each.scan, "index": each.index, "rows": each.rows,
                "sorts": each.sorts, "text": each.text,
            }
            for each in checked.explained
        ],
        "cursor_range": list(checked.cursor_range) if checked.cursor_range else None,
        "cursor_range_is_exact": checked.range_is_exact,
        "types": [
            {
                "column": fact.column, "native": fact.native, "becomes": fact.becomes, "fidelity": fact.fidelity,
                "helps": fact.helps,
            }
            for fact in checked.types
        ],
        "contract": [
            {"check": each.check, "severity": each.severity, "text": each.text, "cost": each.cost}
            for each in checked.contract
        ],
        "masked": [{"column": each.name, "tag": each.tag, "rule": each.rule} for each in checked.masked],
        "error": {"code": checked.error.code, "text": str(checked.error)} if checked.error else None,
    }  # fmt: skip


def exit_code(checked: Sequence[Checked], *, strict: bool) -> int:
    """Answer 1 when an export could not be checked, or its run would be refused: by its log, or for whose state it is.

    Strictly, also when one is UNSAFE or loses values.
    """
    is_broken = any(each.error is not None or any(f.status == "fail" for f in each.findings) for each in checked)
    is_unfit = any(each.verdict == "UNSAFE" or any(fact.is_bad for fact in each.types) for each in checked)
    return int(is_broken or (strict and is_unfit))
