"""`rivet apply`: prove that a plan still holds, then run exactly its exports and windows.

Belongs here: the order of proving, refusing and running. Not here: the comparisons (`plan/priority.py`), who runs
beside whom (`plan/schedule.py`), the runs themselves (`run_exports.py`).

Decision (2026-11): the original never reads the YAML again, since its plan holds all that a run needs. Ours holds no
secret, and a run is a run of Dagster's assets, which are made from the configuration. So the configuration is loaded,
and each planned export must resolve to the very fingerprint it was planned with: what runs is what was reviewed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from rivet_assets.config.selection import due
from rivet_assets.launch.outcome import Outcome, not_begun
from rivet_assets.launch.run_exports import require_installed, run_plan, warm_spark
from rivet_assets.modes.by_value import ask_partitions
from rivet_assets.plan import facts as plan_facts
from rivet_assets.plan.artefact import PlanArtefact, PlanEntry
from rivet_assets.plan.fingerprint import config_fingerprint, export_fingerprint
from rivet_assets.plan.priority import StaleReason, Standing, age_gates, world_gates
from rivet_assets.plan.schedule import Turn, run_turns
from rivet_assets.run.admit.scope import state_of
from rivet_resources.contracts.rows.value_windows import beside_time, partition_of_window, value_part
from rivet_resources.errors import (
    ConfigError,
    RivetError,
    SourceAuth,
    SourceError,
    SourceLost,
    SourceMissing,
    SourcePermission,
    SourceTls,
)
from rivet_resources.shape.transforms.mask_tags import ColumnTagRefused

if TYPE_CHECKING:
    from rivet_assets.blocks.export import Export
    from rivet_assets.config.load import RivetConfig
    from rivet_assets.launch.recorder import Watch
    from rivet_resources.state.store import State

MOST_NAMED = 10  # windows in one line
# The window key under which an application holds each of its exports.
LEASE = "apply"
WARNING, RESOLVED = "PlanWarning", "PlanResolved"  # events of `contract.md`, 12.3


class PlanExpired(RivetError):
    """The plan is too old to be applied."""

    code = "RIVET_PLAN_EXPIRED"


class PlanStale(RivetError):
    """The world is no longer what the plan saw."""

    code = "RIVET_PLAN_STALE"
    exit_code = 4


@dataclass(frozen=True)
class AppliedPlan:
    """What became of a plan: its exports in the order of the plan, what was passed over, what to look at."""

    plan_id: str
    outcomes: tuple[Outcome, ...]
    forced: tuple[StaleReason, ...] = ()
    warnings: tuple[str, ...] = ()


def apply_plan(
    config: RivetConfig,
    artefact: PlanArtefact,
    *,
    watch: Watch,
    force: bool = False,
    pool: int | None = None,
    at: datetime | None = None,
) -> AppliedPlan:
    """Prove a plan and run it; nothing runs unless all of it holds, or `force` passes over what does not.

    The order: every planned export is held against another application, the world is compared, what is forced is
    written to the journal, and only then the first run begins. A window of `incremental` begins where it was planned
    to, and takes rows that came since.

    Args:
        pool: so many exports at once, without waves; None: wave by wave.
        at: the moment that the plan's age is told by; now, when it is not given.

    Raises:
        PlanExpired, PlanStale: nothing ran; the message lists every gate.
        WindowBusy: another application works on one of the exports.
        ExtraMissing, SparkUnavailable: something they need is not installed; nothing ran.
        RivetError: the source or the destination cannot be asked.
    """
    at = at or datetime.now(UTC)
    planned = {entry.export_name for entry in artefact.exports}
    require_installed(config, [export for export in config.exports if export.name in planned])
    gates, too_old = age_gates(created_at=artefact.created_at, expires_at=artefact.expires_at, at=at)
    state = state_of(config)
    with ExitStack() as stack:
        stack.callback(state.close)
        for entry in artefact.exports:
            # Every planned export is held first: two applications that both compared and then both ran would each have
            # been right.
            stack.enter_context(state.lease(entry.export_name, LEASE, artefact.plan_id))
        for entry in artefact.exports:
            gates += _gates_of(config, entry, state=state, at=at)
        # All of it before any of it: a plan that was reviewed as a whole is not applied in part.
        _refuse(gates, force=force, ran="nothing ran")
        _journal(state, artefact, gates)
        for entry in artefact.exports:
            forced = ", ".join(gate.name for gate in _of(entry.export_name, gates))
            about = {"plan_id": artefact.plan_id, "planned": artefact.created_at, "forced": forced}
            state.note_action("apply", entry.export_name, about)

        def latecomers(entry: PlanEntry) -> list[StaleReason]:
            # Once more when its turn comes, since earlier waves may take hours: one that somebody else ran meanwhile
            # fails alone.
            found = _gates_of(config, entry, state=state, at=datetime.now(UTC))
            # What was forced at the beginning is not asked for again.
            return [gate for gate in found if gate not in gates]

        outcomes, late = _run(config, artefact, watch=watch, pool=pool, latecomers=latecomers, force=force)
        _journal(state, artefact, late)
        gates += late
        outcomes = {name: _with_gates(outcome, gates) for name, outcome in outcomes.items()}
        _journal_runs(state, artefact, gates, outcomes)
    return AppliedPlan(
        artefact.plan_id,
        tuple(outcomes[entry.export_name] for entry in artefact.exports),
        tuple(gates),
        tuple(filter(None, (too_old, _edit_text(config, artefact, gates)))),
    )


# --- proving -------------------------------------------------------------------------------------


def _gates_of(config: RivetConfig, entry: PlanEntry, *, state: State, at: datetime) -> list[StaleReason]:
    try:
        export = config.export(entry.export_name)
    except ConfigError:
        return [StaleReason("config", "the configuration no longer has it", entry.export_name, yields=False)]
    place = plan_facts.place_of(config, export, state=state, at=at)
    boundary = plan_facts.boundary_of(place)
    windows = [(window.table, window.key) for window in entry.computed.windows]
    held = plan_facts.read_committed(place, windows, boundary)
    columns, lost = _columns_now(place)
    now = Standing(
        # The configuration is loaded anew, and must resolve to the very fingerprint it was planned with: the plan holds
        # no secret to run by, and what runs is what was reviewed.
        fingerprint=export_fingerprint(config, export),
        columns=columns,
        boundary=boundary,
        manifests={_name_window(*window): found.run_id if found else None for window, found in held.manifests.items()},
        lost=lost,
    )
    return [*world_gates(entry.export_name, _standing(entry), now), *_gone(config, export, entry)]


def _gone(config: RivetConfig, export: Export, entry: PlanEntry) -> list[StaleReason]:
    """Return the gate of planned windows that the export does not have any more, as their values went."""
    if export.by_value is None or export.by_value.query is None:
        return []
    planned = [window.key for window in entry.computed.windows]
    there = set(ask_partitions(export, config.source_of(export)[1]))
    # Of two dimensions the value decides: its times do not go.
    gone = [key for key in planned if _value_of(export, key) not in there]
    if not gone:
        return []
    more = f" and {len(gone) - MOST_NAMED} more" if len(gone) > MOST_NAMED else ""
    text = f"the query of `partition_by` finds no value for {', '.join(gone[:MOST_NAMED])}{more} any more"
    # No force helps: there are no such windows to run.
    return [StaleReason("values", text, entry.export_name, yields=False)]


def _value_of(export: Export, key: str) -> str:
    """Return the partition of a window's value, alone or as it stands beside a time."""
    value = partition_of_window(value_part(key))
    return beside_time(value) if export.has_days else value


def _standing(entry: PlanEntry) -> Standing:
    return Standing(
        fingerprint=entry.plan_fingerprint,
        columns=entry.computed.columns,
        boundary=entry.computed.cursor_snapshot,
        manifests={_name_window(window.table, window.key): window.replaces_run_id for window in entry.computed.windows},
    )


def _name_window(table: str, key: str) -> str:
    return f"{table} {key}" if table else key


def _columns_now(place: plan_facts.PlanContext) -> tuple[tuple[tuple[str, str], ...], str]:
    """Describe what the export reads, or say why it cannot be.

    A source that does not answer, or not to this user, says nothing of a plan.

    Raises:
        SourceLost, SourceAuth, SourceMissing, SourcePermission, SourceTls, ConfigError
    """
    try:
        return plan_facts.describe(place), ""
    # A source that does not answer, or not to this user, says nothing of a plan.
    except (SourceLost, SourceAuth, SourceMissing, SourcePermission, SourceTls):
        raise
    except (SourceError, ColumnTagRefused) as error:
        return (), str(error)


def _refuse(gates: Sequence[StaleReason], *, force: bool, ran: str) -> None:
    """Raise for the gates that stay shut.

    Raises:
        PlanExpired, PlanStale
    """
    shut = [gate for gate in gates if not (force and gate.yields)]
    if not shut:
        return
    told = "\n".join(f"  {gate.export or 'the plan'}: {gate.text}" for gate in shut)
    advice = "Plan again with `rivet plan -o FILE`"
    advice += ", or apply it all the same with --force." if all(gate.yields for gate in shut) else "."
    text = f"The plan does not hold, and {ran}:\n{told}\n{advice}"
    raise (PlanStale if any(gate.exit_code == PlanStale.exit_code for gate in shut) else PlanExpired)(text)


def _edit_text(config: RivetConfig, artefact: PlanArtefact, gates: Sequence[StaleReason]) -> str:
    """Return that the file was edited where no planned export was; '' otherwise."""
    is_same = config_fingerprint(config) == artefact.config_fingerprint
    if is_same or any(gate.name == "config" for gate in gates):
        return ""
    return "the configuration file was edited since, but every planned export is as it was"


# --- running -------------------------------------------------------------------------------------


def _run(
    config: RivetConfig,
    artefact: PlanArtefact,
    *,
    watch: Watch,
    pool: int | None,
    latecomers: Callable[[PlanEntry], list[StaleReason]],
    force: bool,
) -> tuple[dict[str, Outcome], list[StaleReason]]:
    """Run the planned exports and windows: {export: its outcome}, and the gates that shut since and were forced."""
    outcomes, forced = dict[str, Outcome](), list[StaleReason]()
    entries = {entry.export_name: entry for entry in artefact.exports}
    exports = {entry.export_name: config.export(entry.export_name) for entry in artefact.exports}
    windows = {
        entry.export_name: due(config, exports[entry.export_name], [window.key for window in entry.computed.windows])
        for entry in artefact.exports
    }

    def work(turn: Turn) -> None:
        try:
            late = latecomers(entries[turn.name])
            _refuse(late, force=force, ran="this export did not run")
        except RivetError as error:
            # Several threads may be here: each writes under a name of its own.
            entry = entries[turn.name]
            outcomes[turn.name] = not_begun(turn.name, error, source=entry.source_name, mode=entry.strategy)
            return
        forced.extend(late)
        (outcomes[turn.name],) = run_plan(config, [(exports[turn.name], windows[turn.name])], watch)

    with warm_spark(config, list(exports.values())):
        run_turns([_turn(entry) for entry in artefact.exports], work, pool=pool)
    return outcomes, forced


def _turn(entry: PlanEntry) -> Turn:
    told = entry.prioritization
    return Turn(entry.export_name, told.wave, told.cost, told.seconds, told.parallel_safe, told.source_group)


# --- telling -------------------------------------------------------------------------------------


def _of(export: str, gates: Iterable[StaleReason]) -> list[StaleReason]:
    return [gate for gate in gates if gate.export in ("", export)]


def _with_gates(outcome: Outcome, gates: Sequence[StaleReason]) -> Outcome:
    """Put what was forced among the outcome's warnings."""
    forced = tuple(f"forced: {gate.text}" for gate in _of(outcome.export, gates))
    return replace(outcome, warnings=(*outcome.warnings, *forced))


def _journal(state: State, artefact: PlanArtefact, gates: Sequence[StaleReason]) -> None:
    """Write what is forced under the plan's own id, before anything runs: a dead process leaves no run to tell it."""
    for entry in artefact.exports:
        for gate in _of(entry.export_name, gates):
            state.write_journal(artefact.plan_id, entry.export_name, WARNING, _detail(artefact, gate))


def _journal_runs(
    state: State, artefact: PlanArtefact, gates: Sequence[StaleReason], outcomes: Mapping[str, Outcome]
) -> None:
    """Write into each run's journal which plan it applied, and what was forced."""
    for entry in artefact.exports:
        for run_id in outcomes[entry.export_name].run_ids:
            about = {"plan_id": artefact.plan_id, "wave": entry.prioritization.wave}
            state.write_journal(run_id, entry.export_name, RESOLVED, about)
            for gate in _of(entry.export_name, gates):
                state.write_journal(run_id, entry.export_name, WARNING, _detail(artefact, gate))


def _detail(artefact: PlanArtefact, gate: StaleReason) -> dict[str, str]:
    return {"plan_id": artefact.plan_id, "forced": gate.name, "text": gate.text}


def config_of(artefact: PlanArtefact, path: Path | None) -> Path:
    """Name the configuration of a plan: the one asked for, else the one it was made from."""
    return path or Path(artefact.config_path)
