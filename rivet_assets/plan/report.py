"""A plan in words: for the terminal, as one would review a migration, and flat, for a Dagster page.

Belongs here: texts. Not here: what is planned (`planner.py`), the terminal (`commands/plan.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby

from rivet_assets.plan.artefact import PlanArtefact, PlanEntry, PlannedWindow
from rivet_assets.plan.planner import Unplanned
from rivet_assets.run.report import Line, Report, Section, Severity
from rivet_assets.run.words import human_bytes, window_words

# What becomes of an export's folder, as reviewers of migrations read it.
ADDS, REPLACES, NOTHING = "+", "~", "="
SEVERITIES: Mapping[str, Severity] = {"warning": "warn", "drift": "warn"}
# Windows and chunks of one export, on the terminal; all of them are in the artefact.
MOST_SHOWN = 3


def render(artefact: PlanArtefact, unplanned: Sequence[Unplanned] = ()) -> Report:
    """Return the whole plan, wave by wave, with a sum at its end."""
    sections = [Section(f"{artefact.plan_id} of {artefact.config_path or 'a configuration in Python'}")]
    for wave, entries in groupby(artefact.exports, key=lambda entry: entry.prioritization.wave):
        first, *others = map(_entry, entries)
        sections += [Section(f"Wave {wave}"), replace(first, apart=False), *others]
    for missing in unplanned:
        rows = [Line((), line) for line in str(missing.error).splitlines()]
        sections.append(Section(f"! {missing.export} cannot be planned", rows, severity="fail", indent=2))
    return Report(sections, summary(artefact, unplanned))


def summary(artefact: PlanArtefact, unplanned: Sequence[Unplanned] = ()) -> str:
    """Return the plan in one line: `Plan: 2 exports, 3 windows, about 1,200 rows; replaces 240 rows (3.2 KB).`."""
    windows = [window for entry in artefact.exports for window in entry.computed.windows]
    known = [entry.computed.row_estimate for entry in artefact.exports if entry.computed.row_estimate is not None]
    replaced = [window for window in windows if window.replaces_run_id is not None]
    told = [_spell_count(len(artefact.exports), "export"), _spell_count(len(windows), "window")]
    if known:
        more = " and more" if len(known) < len(artefact.exports) else ""
        told.append(f"about {_spell_count(sum(known), 'row')}{more}")
    text = f"Plan: {', '.join(told)}"
    if replaced:
        rows, size = sum(w.replaces_rows or 0 for w in replaced), sum(w.replaces_bytes or 0 for w in replaced)
        text += (
            f"; replaces {_spell_count(rows, 'row')} ({human_bytes(size)}) of {_spell_count(len(replaced), 'window')}"
        )
    if unplanned:
        text += f"; {_spell_count(len(unplanned), 'export')} cannot be planned"
    return f"{text}."


def metadata(entry: PlanEntry) -> dict[str, str | int | float]:
    """Return an entry as one flat mapping, for an asset's page: names that stay, numbers that are numbers."""
    told, found, order = entry.diagnostics, entry.computed, entry.prioritization
    facts: Mapping[str, str | int | float | None] = {
        "rivet/plan_strategy": entry.strategy,
        "rivet/plan_windows": len(found.windows),
        "rivet/plan_chunks": found.chunk_count,
        "rivet/plan_rows": found.row_estimate,
        "rivet/plan_replaces_rows": sum(window.replaces_rows or 0 for window in found.windows),
        "rivet/plan_replaces_bytes": sum(window.replaces_bytes or 0 for window in found.windows),
        "rivet/plan_cursor": found.cursor_snapshot,
        "rivet/plan_verdict": told.verdict,
        "rivet/plan_profile": told.recommended_profile,
        "rivet/plan_drift": told.drift,
        "rivet/plan_duration": told.duration,
        "rivet/plan_holds_back": told.holds_back,
        "rivet/plan_warnings": "; ".join(told.warnings),
        "rivet/plan_statement": _first_statement(entry),
        "rivet/plan_score": order.score,
        "rivet/plan_signals": _signals(entry),
        "rivet/plan_class": order.rank,
        "rivet/plan_wave": order.wave,
        "rivet/plan_cost": order.cost,
        "rivet/plan_fingerprint": entry.plan_fingerprint,
    }
    return {name: value for name, value in facts.items() if value is not None and value != ""}


def _entry(entry: PlanEntry) -> Section:
    order, told, found = entry.prioritization, entry.diagnostics, entry.computed
    # A source without a name is called so.
    source = " ".join(dict.fromkeys((entry.source_type, entry.source_name)))
    title = f"{_sign(entry)} {entry.export_name} ({source}, {entry.strategy})"
    lines = [
        ("verdict", told.verdict),
        ("strategy", told.strategy_rationale),
        *(("window", _window(window)) for window in found.windows[:MOST_SHOWN]),
        ("", _and_more(len(found.windows), "window")),
        ("chunks", _chunks(entry)),
        ("rows", f"about {found.row_estimate:,}" if found.row_estimate is not None else "unknown"),
        ("time", told.duration),
        ("holds", told.holds_back),
        ("replaces", _replaces(found.windows)),
        ("first", _one_line(_first_statement(entry))),
        ("drift", told.drift),
        *(("note", note) for note in found.notes),
        *(("warning", text) for text in told.warnings),
        *(("advice", text) for text in told.suggestions),
        ("profile", told.recommended_profile),
        ("priority", f"{order.score} ({order.rank}), cost {order.cost}: {_signals(entry)}"),
        ("", "runs alone" if not order.parallel_safe else ""),
        ("", f"never beside another of group {order.source_group}" if order.source_group else ""),
    ]
    rows = [Line((name,), text, SEVERITIES.get(name, "")) for name, text in lines if text]
    return Section(title, rows, indent=2)


def _sign(entry: PlanEntry) -> str:
    if entry.computed.row_estimate == 0 and entry.computed.cursor_snapshot is not None:
        return NOTHING
    return REPLACES if any(window.replaces_run_id for window in entry.computed.windows) else ADDS


def _window(window: PlannedWindow) -> str:
    name = f"{window.table} {window.key}" if window.table else window.key
    return f"{name}: {window.text}" if window.text else name


def _chunks(entry: PlanEntry) -> str:
    count, ranges = entry.computed.chunk_count, entry.computed.chunk_ranges
    if count is None or (count <= 1 and not ranges):
        return ""
    shown = ", ".join(ranges[:MOST_SHOWN])
    return f"{count:,}{f': {shown}' if shown else ''}{', …' if ranges and count > MOST_SHOWN else ''}"


def _replaces(windows: Sequence[PlannedWindow]) -> str:
    """Return what readers will no longer see."""
    found = [window for window in windows if window.replaces_run_id is not None]
    if not found:
        return "nothing"
    rows, size = sum(w.replaces_rows or 0 for w in found), sum(w.replaces_bytes or 0 for w in found)
    by = f"run {found[0].replaces_run_id}" if len(found) == 1 else window_words([window.key for window in found])
    return f"{_spell_count(rows, 'row')}, {human_bytes(size)}, of {by}"


def _first_statement(entry: PlanEntry) -> str:
    return next((window.statement for window in entry.computed.windows if window.statement), "")


def _signals(entry: PlanEntry) -> str:
    return ", ".join(f"{name} {points:+d}" for name, points in entry.prioritization.signals.items())


def _and_more(count: int, word: str) -> str:
    return f"… and {_spell_count(count - MOST_SHOWN, f'more {word}')}" if count > MOST_SHOWN else ""


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _spell_count(count: int, word: str) -> str:
    return f"{count:,} {word}{'' if count == 1 else 's'}"
