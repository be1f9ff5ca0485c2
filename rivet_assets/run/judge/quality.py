"""Quality rules and their verdicts over a staged window: arithmetic only, from measures of the one read.

Belongs here: what `quality:` means. Not here: counting (`write/measures.py`), its shape in Dagster
(`dagster/checks/check_events.py`, `dagster/pages/specs.py`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

from rivet_assets.blocks.contract import check_word
from rivet_resources.contracts.parts import Measures

if TYPE_CHECKING:
    from rivet_assets.blocks.export import Quality
    from rivet_assets.run.drift import Drift

Kind = Literal[
    "row_count_min", "row_count_max", "null_ratio_max", "unique", "broken_rows", "rows_aside", "freshness", "number"
]

# Checks that every export has besides its rules; they warn and never stop a window.
SPECIAL_VALUES = "special_values"
DRIFT = "drift"
# Of exports with `on_error` only; it stops a window above `max_errors`.
ROW_ERRORS = "row_errors"
ROW_ERRORS_DESCRIPTION = "Rows that a type cannot hold or a step refuses, taken out of the export by `on_error`."
MOST_REASONS = 5  # in a sentence
CONTRACT_COLUMNS = "contract_columns"
VOLUME = "volume"
NO_NUMBER = "gives NULL, which is no number (write coalesce(…, 0) where an empty window is right)"


@dataclass(frozen=True)
class QualityRule:
    """One line of `quality:`, or of a contract. `threshold` is a number of rows, a ratio, 0 duplicates, or seconds."""

    name: str  # of the check: row_count_min, null_ratio_max__email
    kind: Kind
    threshold: float
    column: str = ""
    blocking: bool = True  # what breaks it keeps its window from being published
    sentence: str = ""  # what must hold in each row

    @property
    def description(self) -> str:
        """Return in one sentence what must hold."""
        return {
            "row_count_min": f"At least {self.threshold:.15g} rows.",
            "row_count_max": f"At most {self.threshold:.15g} rows.",
            "null_ratio_max": f"At most {self.threshold:.15g} of the rows have no {self.column}.",
            "unique": f"No two rows have the same {self.column}; rows without one do not count.",
            "broken_rows": self.sentence,
            "rows_aside": f"{self.sentence} Rows that break it are set aside.",
            "number": self.sentence,
            "freshness": f"The newest {self.column} is at most {self.threshold:.15g} seconds old.",
        }[self.kind]


@dataclass(frozen=True)
class Bounded:
    """A number and its bounds, both inclusive; None: open.

    A number that is not there (NULL) is within no bounds: `sum` over no row must not pass for 0. So judge the tests of
    dbt and the metrics of the Open Data Contract Standard, whereas a `CHECK` of SQL, and `rows` here, pass on NULL.
    """

    observed: float | None
    low: float | None
    high: float | None
    note: str = ""
    absent: str = NO_NUMBER  # what is told where there is no number

    @property
    def passes(self) -> bool:
        """Return whether the number is within its bounds."""
        if self.observed is None:
            return False
        return (self.low is None or self.observed >= self.low) and (self.high is None or self.observed <= self.high)

    @property
    def threshold(self) -> float:
        """Return the bound that is broken, else the one that is nearer."""
        known = [bound for bound in (self.low, self.high) if bound is not None]
        # So that the line that Dagster draws is the one that the number may cross next.
        return min(known, key=lambda bound: abs(bound - (self.observed or 0)), default=0)

    @property
    def text(self) -> str:
        """Return the number, what it may be, and why."""
        ends = [f"at least {self.low:.15g}"] if self.low is not None else []
        ends += [f"at most {self.high:.15g}"] if self.high is not None else []
        wanted = f"{self.low:.15g}" if self.low is not None and self.low == self.high else " and ".join(ends)
        found = self.absent if self.observed is None else f"{self.observed:.15g}"
        return "; ".join(filter(None, (f"{found}{f', {wanted} wanted' if wanted else ''}", self.note)))


@dataclass(frozen=True)
class Verdict:
    """How one check ended. A blocking one that did not pass keeps its window from being published."""

    check: str
    passed: bool
    blocking: bool
    observed: float | None  # None: SQL gave NULL
    threshold: float
    rows: int
    text: str = ""
    facts: Mapping[str, object] = field(default_factory=dict)


def rules_of(quality: Quality | None) -> tuple[QualityRule, ...]:
    """List the rules of a `quality:` block, in the order of the contract; none without the block."""
    if quality is None:
        return ()
    rules = []
    if quality.row_count_min is not None:
        rules.append(QualityRule("row_count_min", "row_count_min", quality.row_count_min))
    if quality.row_count_max is not None:
        rules.append(QualityRule("row_count_max", "row_count_max", quality.row_count_max))
    for column, ratio in quality.null_ratio_max.items():
        rules.append(QualityRule(f"null_ratio_max__{check_word(column)}", "null_ratio_max", ratio, column))
    for column in quality.unique_columns:
        rules.append(QualityRule(f"unique__{check_word(column)}", "unique", 0, column))
    return tuple(rules)


def audit(
    rules: Iterable[QualityRule],
    measures: Measures,
    duplicates: Mapping[str, int],
    *,
    at: datetime | None = None,
    numbers: Mapping[str, Bounded] = MappingProxyType({}),
) -> tuple[Verdict, ...]:
    """Judge a whole staged window.

    Args:
        duplicates: per unique column, or key, how many cells repeat an earlier one.
        at: the instant that ages count from; None: now.
        numbers: of the whole window, by the name of their rule.
    """
    at = at or datetime.now(UTC)
    return tuple(
        _judge_number(rule, numbers[rule.name], measures.rows)
        if rule.kind == "number"
        else _judge(rule, measures, duplicates, at)
        for rule in rules
    )


def blocks(verdicts: Iterable[Verdict]) -> bool:
    """Return whether the window must not be published."""
    return any(verdict.blocking and not verdict.passed for verdict in verdicts)


def refusal(export: str, window: str, verdicts: Iterable[Verdict]) -> str:
    """Return which rules refused a window, with what was seen."""
    told = "; ".join(f"{v.check}: {v.text}" for v in verdicts if v.blocking and not v.passed)
    return (
        f"Export {export}, window {window}: the quality gate refused it ({told}). Nothing of it was published, what "
        f"stood there stays, and the next run of it reads it again. Clean the source, or change `quality:`, "
        f"`contract:` or `max_errors` of the export."
    )


def special_values(measures: Measures) -> Verdict:
    """Return, as a warning, how many cells a policy replaced because their type cannot hold them."""
    replaced = {column: sum(kinds.values()) for column, kinds in measures.special_values.items() if kinds}
    count = sum(replaced.values())
    text = "; ".join(
        f"{column}: {', '.join(f'{n} × {kind}' for kind, n in sorted(measures.special_values[column].items()))}"
        for column in sorted(replaced)
    )
    return Verdict(SPECIAL_VALUES, count == 0, False, count, 0, measures.rows, text, {"columns": len(replaced)})


def row_errors(measures: Measures, *, allowed: float) -> Verdict:
    """Return how many rows could not be exported: a warning, and a refusal above what is allowed."""
    refused = measures.refused_rows
    text = describe_refused(measures)
    if refused > allowed:
        text = f"{refused} of {measures.rows_read} rows could not be exported, {allowed:.15g} allowed; {text}"
    facts = {"skipped": sum(measures.skipped.values()), "dead_letters": sum(measures.dead.values())}
    # A number in any case: Dagster plots it, and infinity is none in JSON.
    limit = allowed if allowed < math.inf else measures.rows_read
    return Verdict(ROW_ERRORS, refused == 0, refused > allowed, refused, limit, measures.rows_read, text, facts)


def describe_refused(measures: Measures) -> str:
    """Return which rows could not be exported, by reason; '' where all could."""
    told = []
    for fate, found in (("left out", measures.skipped), ("set aside as dead letters", measures.dead)):
        if found:
            worst = sorted(found.items(), key=lambda item: -item[1])
            reasons = "; ".join(f"{count} × {reason}" for reason, count in worst[:MOST_REASONS])
            more = f"; and {len(found) - MOST_REASONS} more reasons" if len(found) > MOST_REASONS else ""
            told.append(f"{sum(found.values())} rows {fate} ({reasons}{more})")
    return ", ".join(told)


def schema_drift(drift: Drift, *, accepted: bool, rows: int) -> Verdict:
    """Return, as a warning, that the columns changed since the last commit; `accepted` drift passes."""
    changes = len(drift.added) + len(drift.removed) + len(drift.retyped)
    return Verdict(DRIFT, accepted or not drift, False, changes, 0, rows, str(drift))


def _judge(rule: QualityRule, measures: Measures, duplicates: Mapping[str, int], at: datetime) -> Verdict:
    rows = measures.rows
    match rule.kind:
        case "row_count_min":
            return _verdict(
                rule, rows, rows >= rule.threshold, rows, f"{rows} rows, at least {rule.threshold:.15g} wanted"
            )
        case "row_count_max":
            return _verdict(
                rule, rows, rows <= rule.threshold, rows, f"{rows} rows, at most {rule.threshold:.15g} wanted"
            )
        case "null_ratio_max":
            # A column that is missing has no NULLs either, and must not pass for one without any.
            if rows and measures.nulls and rule.column not in measures.nulls:
                return _no_column(rule, rows)
            nulls = measures.nulls.get(rule.column, 0)
            # An empty window has nothing that could be missing.
            ratio = nulls / rows if rows else 0.0
            text = f"{nulls} of {rows} rows have no {rule.column} ({ratio:.4g}), at most {rule.threshold:.15g} allowed"
            return _verdict(rule, ratio, ratio <= rule.threshold, rows, text)
        case "unique":
            if rule.column not in duplicates:
                return _no_column(rule, rows)
            repeats = duplicates[rule.column]
            return _verdict(rule, repeats, repeats == 0, rows, f"{repeats} rows repeat a {rule.column}, 0 allowed")
        case "broken_rows":
            # A window without rows had no page in which anything could be counted.
            if rows and rule.name not in measures.broken:
                return _no_column(rule, rows)
            broken = measures.broken.get(rule.name, 0)
            return _verdict(rule, broken, broken == 0, rows, f"{broken} of {rows} rows break it, 0 allowed")
        case "rows_aside":
            aside = measures.broken.get(rule.name, 0)
            text = f"{aside} of {measures.rows_read} rows broke it and were set aside"
            return _verdict(rule, aside, aside == 0, rows, text)
        case _:
            return _judge_age(rule, measures, at)


def _judge_number(rule: QualityRule, found: Bounded, rows: int) -> Verdict:
    return Verdict(rule.name, found.passes, rule.blocking, found.observed, found.threshold, rows, found.text)


def _judge_age(rule: QualityRule, measures: Measures, at: datetime) -> Verdict:
    """Judge how old the newest row is; a window without a time has no age."""
    rows, newest = measures.rows, measures.newest.get(rule.column)
    if newest is None:
        # That there are rows is another rule's business: an empty window is not late.
        return _verdict(rule, 0, True, rows, f"no row has a {rule.column}, so there is no age")
    age = round(at.timestamp() - newest / 1_000_000)
    text = f"the newest {rule.column} is {age} s old, at most {rule.threshold:.15g} s allowed"
    return _verdict(rule, age, age <= rule.threshold, rows, text)


def _no_column(rule: QualityRule, rows: int) -> Verdict:
    """Return that a rule could not be judged: a contract that only warns was published without its column."""
    return _verdict(rule, rows, False, rows, f"the export has no column {rule.column}, so nothing was judged")


def _verdict(rule: QualityRule, observed: float, passed: bool, rows: int, text: str) -> Verdict:
    return Verdict(rule.name, passed, rule.blocking, observed, rule.threshold, rows, text)
