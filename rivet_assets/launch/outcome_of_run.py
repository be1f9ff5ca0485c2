"""What became of one export: Dagster's word, the records of its runs and their journals, joined into one Outcome.

Belongs here: reading and adding up. Not here: running (`run_exports.py`), wording (`outcome.py`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal

from rivet_assets.launch.outcome import Outcome
from rivet_assets.modes.by_shard import chains_of, shard_window
from rivet_assets.modes.by_value import window_keys
from rivet_assets.notify.messages import Ended, sum_up
from rivet_assets.run.drift import Drift
from rivet_assets.run.masked_columns import NEWLY_MASKED
from rivet_resources.read.source_cost import total

if TYPE_CHECKING:
    from rivet_assets.blocks.export import Export
    from rivet_assets.config.load import RivetConfig
    from rivet_assets.launch.recorder import Step
    from rivet_resources.state.journal import JournalEntry
    from rivet_resources.state.runs import RunRecord
    from rivet_resources.state.store import State

# Runs read at once; an export has run thousands of times, and mostly once in this process.
PAGE = 20
MOST_EVENTS = 1000  # of a journal
MOST_NOTES = 20


@dataclass(frozen=True)
class RunRecords:
    """What the store has of one export's part in this run; records oldest first."""

    records: tuple[RunRecord, ...] = ()
    before: RunRecord | None = None  # the newest run before this one
    notes: tuple[str, ...] = ()
    budget: tuple[str, ...] = ()  # what was warned of it
    schema_changes: str = ""
    slowed_because: str = ""
    resumable: bool = False


def history(state: State, export: str, began: datetime) -> RunRecords:
    """Read what this process recorded of an export since `began`."""
    # Page by page, each eight times as long: the store has thousands of runs of an export, and this process one,
    # mostly.
    last, runs = PAGE, state.runs(export, last=PAGE)
    while len(runs) == last and runs[-1].started_at >= began:
        last *= 8
        runs = state.runs(export, last=last)
    # Another process may have run the same export meanwhile.
    mine = [run for run in reversed(runs) if run.started_at >= began and run.pid == os.getpid()]
    events = _events(state, export, [run.run_id for run in mine])
    notes = dict.fromkeys(str(each.detail.get("text", "")) for each in events if each.event == "PlanWarning")
    changes = [_changes(each.detail) for each in events if each.event == "SchemaChanged"]
    return RunRecords(
        records=tuple(mine),
        before=next((run for run in runs if run.started_at < began), None),
        notes=tuple(notes)[:MOST_NOTES],
        budget=tuple(str(each.detail["text"]) for each in events if each.event == "BudgetWarning")[-1:],
        schema_changes="; ".join(dict.fromkeys(changes)),
        slowed_because=next((str(each.detail["reason"]) for each in events if _slowed_down(each)), ""),
        resumable=bool(state.chunk_progress(export)),
    )


def history_of(state: State, export: Export, began: datetime) -> RunRecords:
    """Read what this process recorded of an export since `began`; of shards with chains of their own joined.

    A run of one of these is then told as of its shard, `shard=eu`.
    """
    if not export.is_apart:
        return history(state, export.name, began)
    parts = [(each, history(state, each.name, began)) for each in chains_of(export)]
    records = [replace(run, window=shard_window(each.of_shard).key) for each, told in parts for run in told.records]
    before = [told.before for _, told in parts if told.before is not None]
    return RunRecords(
        records=tuple(sorted(records, key=lambda run: run.started_at)),
        before=max(before, key=lambda run: run.started_at, default=None),
        notes=tuple(dict.fromkeys(note for _, told in parts for note in told.notes))[:MOST_NOTES],
        budget=tuple(note for _, told in parts for note in told.budget)[-1:],
        schema_changes="; ".join(dict.fromkeys(told.schema_changes for _, told in parts if told.schema_changes)),
        slowed_because=next((told.slowed_because for _, told in parts if told.slowed_because), ""),
        resumable=any(told.resumable for _, told in parts),
    )


def _events(state: State, export: str, run_ids: Sequence[str]) -> list[JournalEntry]:
    """Read the journal of these runs; of one run alone, not what the export went through before."""
    if len(run_ids) <= 1:
        return state.journal(export, run_id=run_ids[0], last=MOST_EVENTS) if run_ids else []
    return [entry for entry in state.journal(export, last=MOST_EVENTS) if entry.run_id in set(run_ids)]


def outcome_of(
    config: RivetConfig, export: Export, keys: list[str] | None, step: Step, told: RunRecords, *, run_failure: str
) -> Outcome:
    """Judge how an export ended. `keys` are the windows it was asked for; None: it has no partitions."""
    records = told.records
    committed = [record for record in records if record.status == "success"]
    # A step that never began counts as failed, unless nothing was asked of it: no window was due.
    failed = bool(step.message) or (not step.ended and keys != [])
    done = {record.window for record in committed}
    status: Literal["success", "skipped", "failed"] = "failed" if failed else "success" if committed else "skipped"
    end = sum_up(export.name, records, before=told.before, status=status, code=step.code)
    last = records[-1] if records else None
    return Outcome(
        export=export.name,
        source=config.source_of(export)[0],
        mode=export.mode,
        status=end.status,
        windows=tuple(dict.fromkeys(record.window for record in committed)) if keys is not None else (),
        refused=tuple(key for key in window_keys(export, keys or ()) if key not in done) if failed else (),
        rows=end.rows,
        files=sum(record.files_produced for record in committed),
        bytes=sum(record.bytes_written for record in committed),
        seconds=end.duration_ms / 1000,
        peak_mb=max((record.peak_mb for record in records), default=0.0),
        retries=sum(record.retries for record in records),
        checks_passed=step.passed,
        checks_failed=tuple(step.failed),
        warnings=(
            *step.warnings,
            *told.budget,
            *(note for note in told.notes if export.answers.follows_log or note.startswith(NEWLY_MASKED)),
        ),  # a drain plans nothing
        code=step.code,
        message=step.message or (run_failure or "it did not run" if failed else ""),
        exit_code=(step.exit_code if step.message else 1) if failed else 0,
        run_ids=tuple(record.run_id for record in records),
        cause=step.cause,
        traceback=step.traceback,
        started_at=min((record.started_at for record in records), default=None),
        finished_at=end.at if records else None,
        source_type=config.source_of(export)[1].type,
        destination_type=export.destination.type,
        format=export.format,
        compression=last.compression if last else "",
        tuning_profile=last.tuning_profile if last else "",
        rows_read=sum(record.rows_read or 0 for record in records),
        harm=_harm(records),
        slowed_because=told.slowed_because,
        schema_changed=end.schema_changed,
        schema_changes=told.schema_changes,
        notes=told.notes,
        degraded=end.degraded,
        recovered=end.recovered,
        resumable=failed and told.resumable,
    )


def end_of(outcome: Outcome) -> Ended:
    """Return what may be told to others: texts of ours only."""
    return Ended(
        export=outcome.export,
        status=outcome.status,
        run_id=outcome.run_ids[-1] if outcome.run_ids else "",
        at=outcome.finished_at or datetime.now(UTC),
        rows=outcome.rows,
        duration_ms=round(outcome.seconds * 1000),
        code=outcome.code,
        error=safe_error(outcome),
        schema_changed=outcome.schema_changed,
        degraded=outcome.degraded,
        recovered=outcome.recovered,
    )


def safe_error(outcome: Outcome) -> str:
    """Return the error's text if it is ours, else its class; '' on success."""
    if outcome.status != "failed":
        return ""
    return outcome.message if outcome.code else outcome.cause or "it did not run"


def _slowed_down(entry: JournalEntry) -> bool:
    """Return whether the governor took a step down here."""
    return entry.event == "ParallelismAdjusted" and entry.detail["speed_to"] < entry.detail["speed_from"]


def _harm(records: Sequence[RunRecord]) -> dict[str, float]:
    """Return what the windows cost the source together."""
    return total(json.loads(record.harm) for record in records if record.harm)


def _changes(detail: Mapping[str, Any]) -> str:
    drift = Drift(
        tuple(detail.get("added", ())),
        tuple(detail.get("removed", ())),
        tuple((name, before, now) for name, before, now in detail.get("retyped", ())),
    )
    return f"{detail['table']}: {drift}" if "table" in detail else str(drift)
