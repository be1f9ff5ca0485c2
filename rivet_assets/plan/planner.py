"""`rivet plan`: what a run of these exports would do, as one value that can be read, sealed and applied.

Belongs here: joining what the source says, what is committed, what `rivet check` judges, and the priority. Not here:
asking (`facts.py`), judging (`priority.py`), texts (`report.py`), files (`artefact.py`).
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from rivet_assets.config.selection import choose_exports, due
from rivet_assets.plan import facts as plan_facts
from rivet_assets.plan.artefact import Computed, Diagnostics, PlanArtefact, PlanEntry, Prioritization
from rivet_assets.plan.duration import advice, duration_text, holds_back_text, seconds_of
from rivet_assets.plan.facts import SourceLook
from rivet_assets.plan.fingerprint import Hidden, collect_hidden, config_fingerprint, export_fingerprint, redact
from rivet_assets.plan.priority import (
    UNKNOWN_SECONDS,
    CursorWorth,
    Priority,
    PriorityFacts,
    RunHistory,
    cursor_worth,
    is_narrow,
    prioritise,
)
from rivet_assets.plan.windows import compute_windows
from rivet_assets.preflight.check import check_exports
from rivet_assets.preflight.checked import Checked
from rivet_assets.preflight.judged_rules import contract_lines, judged_rules
from rivet_assets.run.admit.scope import state_of
from rivet_assets.run.drift import judge, refuse_reordered
from rivet_assets.run.read_limits import limit_findings
from rivet_resources.errors import DriftRefused, RivetError

if TYPE_CHECKING:
    from rivet_assets.blocks.export import Export
    from rivet_assets.config.load import RivetConfig
    from rivet_resources.state.store import State

LIFETIME = timedelta(hours=24)
SPARSE_DENSITY, SPARSE_CHUNKS = 0.1, 10  # `contract.md`, 13.1: rows per key value below, windows above


Checker = Callable[["RivetConfig", Sequence[str]], Sequence[Checked]]


@dataclass(frozen=True)
class Unplanned:
    """An export that could not be planned, and why."""

    export: str
    error: RivetError


@dataclass(frozen=True)
class UnsealedPlan:
    """A plan, not yet sealed, and the exports that are missing in it."""

    artefact: PlanArtefact
    unplanned: tuple[Unplanned, ...] = ()


def plan_exports(
    config: RivetConfig,
    *,
    names: Sequence[str] = (),
    partitions: Sequence[str] = (),
    params: Mapping[str, str] | None = None,
    lifetime: timedelta = LIFETIME,
    at: datetime | None = None,
    checker: Checker = check_exports,
) -> UnsealedPlan:
    """Plan a run of these exports and windows, chosen as `run_exports` does; entries in the order they would run.

    Args:
        params: what the config was loaded with; their values are taken out of every text again.
        at: the moment to plan for, aware UTC; now, when it is not given.
        checker: judges exports as `rivet check` does.

    Raises:
        ConfigError: an export is not known, or has no such window.
        StateError: the store cannot be opened.
    """
    at = at or datetime.now(UTC)
    exports = [
        (export, due(config, export, partitions or None)) for export in choose_exports(config, names, partitions)
    ]
    # All at once: a check shares its sessions among exports, and asks each source for its connections once.
    judged = {each.export: each for each in checker(config, [export.name for export, _ in exports])}
    state = state_of(config)
    desk = _Desk(config, state, at, collect_hidden(config, params or {}))
    entries, unplanned = list[PlanEntry](), list[Unplanned]()
    try:
        for export, keys in exports:
            try:
                entries.append(_entry(desk, export, keys, judged.get(export.name)))
            except RivetError as error:
                # One that cannot be planned is told beside the plan: the others are no less right for it.
                unplanned.append(Unplanned(export.name, error))
    finally:
        state.close()
    artefact = PlanArtefact(
        plan_id=f"plan_{at:%Y%m%dT%H%M%S}_{secrets.token_hex(3)}",
        created_at=at,
        expires_at=at + lifetime,
        config_path=str(config.file or ""),
        config_fingerprint=config_fingerprint(config),
        exports=tuple(sorted(entries, key=_turn)),
    )
    return UnsealedPlan(artefact, tuple(unplanned))


@dataclass(frozen=True)
class _Desk:
    """What all entries of one plan share."""

    config: RivetConfig
    state: State
    at: datetime
    hide: Hidden


def _turn(entry: PlanEntry) -> tuple[int, float]:
    """Sort by wave, longest first."""
    return entry.prioritization.wave, -entry.prioritization.seconds


def _entry(desk: _Desk, export: Export, keys: list[str] | None, judged: Checked | None) -> PlanEntry:
    place = plan_facts.place_of(desk.config, export, state=desk.state, at=desk.at)
    boundary = plan_facts.boundary_of(place)
    windows = plan_facts.windows_to_run(place, keys, boundary)
    held = plan_facts.read_committed(place, [(table, window.key) for table, window in windows], boundary)
    looked = plan_facts.look_at(place, windows, boundary)
    agreed = (f"contract: {line}" for line in contract_lines(judged_rules(export.contract)))
    looked = replace(looked, notes=(*looked.notes, *_limits(desk, place, judged), *agreed))
    found = compute_windows(export, windows, held, looked, desk.hide)
    history = plan_facts.history_of(place)
    bounds = [(window.start, window.end) for _, window in windows if window.start and window.end]
    facts = _facts(export, found, looked, judged, history)
    return PlanEntry(
        export_name=export.name,
        source_name=place.source_name,
        source_type=place.source.type,
        strategy=export.mode,
        plan_fingerprint=export_fingerprint(desk.config, export),
        resolved_plan=redact(desk.config, export, desk.hide),
        computed=found,
        diagnostics=_with_duration(
            _diagnostics(export, judged, looked, history, desk.hide), place, found, looked, history
        ),
        prioritization=_prioritization(
            export, prioritise(replace(facts, is_narrow=is_narrow(bounds, at=desk.at))), history
        ),
    )


# --- judging -------------------------------------------------------------------------------------


def _limits(desk: _Desk, place: plan_facts.PlanContext, judged: Checked | None) -> Iterator[str]:
    """Yield what the source's limits allow; what they warn of is among the preflight's warnings."""
    rows = judged.rows_estimate if judged else None
    for found in limit_findings(place.export, place.source, state=desk.state, rows=rows, at=desk.at):
        if found.status == "ok" or judged is None:
            yield f"{found.name}: {found.text}"


def _facts(
    export: Export, found: Computed, looked: SourceLook, judged: Checked | None, history: RunHistory
) -> PriorityFacts:
    rows = found.row_estimate if found.row_estimate is not None else judged.rows_estimate if judged else None
    return PriorityFacts(
        mode=export.mode,
        rows=rows,
        verdict=(judged.verdict if judged else None) or "",
        cursor=_cursor_worth(export, looked),
        chunks=found.chunk_count or 0,
        is_sparse=_is_sparse(export, looked),
        reconcile_required=export.reconcile_required,
        warnings=len(_warnings(judged)),
        history=history,
        wave=export.wave,
    )


def _cursor_worth(export: Export, looked: SourceLook) -> CursorWorth | None:
    relation = looked.relation
    if relation is None or export.cursor is None:
        return None
    name, fallback = export.cursor
    column = relation.column(name)
    return cursor_worth(
        is_indexed=name in relation.indexed,
        is_nullable=column is None or column.nullable,
        has_fallback=fallback is not None,
    )


def _is_sparse(export: Export, looked: SourceLook) -> bool:
    """Return whether ranges of equal width would mostly be empty (`contract.md`, 13.1)."""
    extract = looked.seen[0].extract if looked.seen else None
    rows = looked.relation.rows_estimate if looked.relation else None
    if extract is None or rows is None or export.range_width is None:
        return False
    chunks = len(extract.chunks)
    return chunks > SPARSE_CHUNKS and rows / (chunks * export.range_width) < SPARSE_DENSITY


def _warnings(judged: Checked | None) -> list[str]:
    """List what the preflight warns of; an export that it could not look at is planned all the same."""
    if judged is None:
        return []
    failed = [f"the preflight could not judge it: {judged.error}"] if judged.error else []
    return [*failed, *(f"{finding.name}: {finding.text}" for finding in judged.findings if finding.status != "ok")]


def _diagnostics(
    export: Export, judged: Checked | None, looked: SourceLook, history: RunHistory, hide: Hidden
) -> Diagnostics:
    return Diagnostics(
        verdict=(judged.verdict if judged else None) or "",
        warnings=tuple(hide.text(text) for text in (*_predict_drift(export, looked), *_warnings(judged))),
        recommended_profile=judged.profile.value if judged and judged.profile else "",
        strategy_rationale=hide.text("; ".join(filter(None, (judged.strategy, *judged.reasons)))) if judged else "",
        suggestions=tuple(hide.text(text) for text in judged.suggestions) if judged else (),
        drift=str(looked.drift) if looked.drift else "",
        first_run=history.runs == 0,
    )


def _with_duration(
    told: Diagnostics, place: plan_facts.PlanContext, found: Computed, looked: SourceLook, history: RunHistory
) -> Diagnostics:
    """Add how long it takes, and what the source keeps meanwhile; of several windows it is read for one at a time."""
    facts, rate, rows = place.source.facts, history.rows_per_second, found.row_estimate
    extract = looked.seen[0].extract if looked.seen else None
    each = None if rows is None else rows // max(1, len(found.windows))
    seconds = seconds_of(each, rate)
    advised = advice(extract, facts, seconds=seconds, is_chunked=place.export.answers.by_ranges)
    return told.model_copy(
        update={
            "duration": duration_text(rows, rate),
            "holds_back": holds_back_text(extract, facts, rows=each, seconds=seconds),
            "suggestions": (*told.suggestions, *filter(None, (advised,))),
        }
    )


def _predict_drift(export: Export, looked: SourceLook) -> list[str]:
    """Return that the run would refuse what changed; [] where it would not."""
    try:
        relation = export.table or "the query"
        judge(looked.drift, export.on_schema_drift, export=export.name, relation=relation)
        refuse_reordered(looked.cursor_drift, export.cursor or (), export=export.name, relation=relation)
    except DriftRefused as refused:
        return [f"the run will stop: {refused}"]
    return []


def _prioritization(export: Export, priority: Priority, history: RunHistory) -> Prioritization:
    return Prioritization(
        score=priority.score,
        signals=dict(priority.signals),
        rank=priority.rank,
        wave=priority.wave,
        cost=priority.cost,
        seconds=history.average_seconds if history.average_seconds is not None else UNKNOWN_SECONDS,
        parallel_safe=export.parallel_safe,
        source_group=export.source_group,
    )
