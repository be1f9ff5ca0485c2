"""One window, from its lease to its verdicts: plan, compare the schema, stage, audit. Nothing becomes visible here.

Belongs here: the order of a run before publishing, the same for every mode and without Dagster. Not here: what Dagster
is told of it (`assets.py`), staging (`exporter.py`), publishing (`commit.py`).
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, cast

from rivet_assets.checks import Verdict, audit, blocks, rules_of, schema_drift, special_values
from rivet_assets.drift import Drift, compare, judge
from rivet_assets.modes.protocol import Mode, Planning, require_name
from rivet_resources.changes.protocol import ENVELOPE
from rivet_resources.commit import discard
from rivet_resources.errors import GateRefused, RivetError
from rivet_resources.extract import Extract, Relation, Staged, Window
from rivet_resources.manifest import current_manifests, resolve_cursor, window_manifest
from rivet_resources.measures import count_duplicates
from rivet_resources.settings import pace
from rivet_resources.shaping import planned
from rivet_resources.state.runs import RunRecord

if TYPE_CHECKING:
    from rivet_assets.export import Export
    from rivet_resources.destinations.protocol import Root
    from rivet_resources.exporter import Exporter
    from rivet_resources.sources.protocol import Source
    from rivet_resources.state.leases import Lease
    from rivet_resources.state.store import State

Tell = Callable[[str], None]  # one line for the log of the run
# Ours: switching them is no drift of the source.
META_COLUMNS = frozenset({"_rivet_exported_at", "_rivet_row_hash", *(field.name for field in ENVELOPE)})
WHOLE = "all"  # lease of exports that have one window at a time, whatever its key will be


@dataclass(frozen=True)
class Site:
    """Where one export works during a run."""

    export: Export
    source_name: str
    source: Source
    exporter: Exporter
    state: State
    root: Root
    tell: Tell


@dataclass(frozen=True)
class Attempt:
    """A staged window with everything known about it; publish it or leave the block with an error."""

    staged: Staged
    lease: Lease
    verdicts: tuple[Verdict, ...]
    drift: Drift
    previous_rows: int | None  # of the window's committed manifest; only windows of time look

    @property
    def window(self) -> Window:
        """Give the window it covers."""
        return self.staged.extract.window

    @property
    def is_skipped(self) -> bool:
        """Say that there is nothing to publish: no row, and `skip_empty`."""
        return self.staged.extract.skip_empty and self.staged.measures.rows == 0 and not self.is_refused

    @property
    def is_refused(self) -> bool:
        """Say that the gate refuses it."""
        return blocks(self.verdicts)


@contextmanager
def attempt(site: Site, window: Window | None = None) -> Iterator[Attempt]:
    """Stage and judge one window under its lease; keep the record of the run.

    A block left with an error leaves a run recorded as failed, and nothing staged but what a resumable window may use
    again; one left without has published, or the attempt was skipped.

    Raises:
        WindowBusy: another run works on the window.
        DriftRefused: the schema changed and the policy refuses; no row was read.
        RivetError: whatever planning and reading raise.
    """
    started_at = datetime.now(UTC)
    run_id = new_run_id(site.export.name, started_at)
    key = window.key if window else WHOLE
    with site.state.lease(site.export.name, key, run_id) as lease, recorded(site, run_id, key, started_at) as outcome:
        made = _staged(site, window, run_id, started_at, lease)
        outcome.update(figures(made))
        try:
            yield made
        except BaseException:
            if made.is_refused or not made.staged.extract.resumable:
                forget_staged(site, made.staged)
            raise
        if made.is_skipped:
            forget_staged(site, made.staged)


def new_run_id(export: str, started_at: datetime) -> str:
    """Name a run of one window: `orders_20260131T031500.123_a1b2c3`."""
    stamp = f"{started_at:%Y%m%dT%H%M%S}.{started_at.microsecond // 1000:03d}"
    return f"{export}_{stamp}_{secrets.token_hex(3)}"


def committed_cursor(site: Site) -> str | None:
    """Read how far the export has committed; None before the first run and after a reset.

    A store that knows nothing of an export whose destination has manifests is filled from these: they are the truth.
    """
    if site.export.mode not in ("incremental", "poll"):
        return None
    held = site.state.cursor(site.export.name)
    if held is not None or not site.root.keeps_manifests:
        return held.value if held else None
    manifests = current_manifests(site.root)
    cursor = resolve_cursor(manifests)
    if cursor is not None:
        site.state.rebuild(site.export.name, manifests.values(), cursor=cursor)
        site.tell(f"State of {site.export.name} was rebuilt from {len(manifests)} manifests; its cursor is {cursor!r}.")
    return cursor


def forget_staged(site: Site, staged: Staged) -> None:
    """Remove what was staged, and the progress that would bring it back: rows of a refused window are read again."""
    discard(staged, root=site.root)
    if staged.extract.resumable:
        site.state.forget_chunks(staged.extract.export, staged.extract.window.key)


def _staged(site: Site, window: Window | None, run_id: str, started_at: datetime, lease: Lease) -> Attempt:
    export, began = site.export, time.monotonic()
    before = window_manifest(site.root, window) if window and site.root.keeps_manifests else None
    planned = pace(site.source.tuning, export.tuning)
    with site.source.session(application=f"rivet:{export.name}", pace=planned) as session:
        relation = session.describe(
            table=export.table, query=export.query, params=export.params, rules=export.type_rules()
        )
        drift = _admitted(site, relation)
        extract = cast(Mode, export).extract(
            Planning(
                source=site.source,
                session=session,
                relation=relation,
                window=window,
                cursor=committed_cursor(site),
                run_id=run_id,
                started_at=started_at,
                tasks=site.exporter.spark.parallelism,
                runs=len(site.state.known_runs(export.name)) if export.mode == "poll" else 1,
            )
        )
        for note in extract.notes:
            site.tell(f"{export.name} {extract.window.key}: {note}.")
        plan_seconds = time.monotonic() - began
        staged = site.exporter.stage(extract)
    staged = replace(staged, seconds={**staged.seconds, "plan": plan_seconds})
    return Attempt(staged, lease, _verdicts(site, staged, drift), drift, before[0].row_count if before else None)


def _admitted(site: Site, relation: Relation) -> Drift:
    """Compare what the relation becomes with the last commit's schema, before the first row is read.

    Raises:
        DriftRefused: by the export's policy.
        UnknownColumn: `null_ratio_max` names a column that is not there.
        TransformError: a transform does not fit the relation.
    """
    export = site.export
    stored = site.state.schema(export.name)
    baseline = None if stored is None else [column for column in stored if column[0] not in META_COLUMNS]
    shaped = planned(relation, export.steps).schema
    drift = compare(baseline, [(field.name, str(field.type)) for field in shaped])
    judge(drift, export.on_schema_drift, export=export.name, relation=relation.name)
    if drift and export.on_schema_drift != "continue":
        site.tell(f"{export.name}: the columns of {relation.name} changed since the last run: {drift}.")
    for rule in rules_of(export.quality):
        if rule.kind == "null_ratio_max":
            require_name(shaped, rule.column, key="quality.null_ratio_max")
    return drift


def _verdicts(site: Site, staged: Staged, drift: Drift) -> tuple[Verdict, ...]:
    export, measures = site.export, staged.measures
    duplicates = {column: 0 for column in staged.extract.unique_columns}
    duplicates |= {column: count_duplicates(site.root, files) for column, files in measures.unique.items()}
    accepted = export.on_schema_drift in ("continue", "evolve")
    return (
        *audit(rules_of(export.quality), measures, duplicates),
        special_values(measures),
        schema_drift(drift, accepted=accepted, rows=measures.rows),
    )


@contextmanager
def recorded(site: Site, run_id: str, key: str, started_at: datetime) -> Iterator[dict[str, Any]]:
    """Keep the run's row: running, then what the block made of it. Yields the figures to write with the end."""
    outcome: dict[str, Any] = {"status": "success"}
    site.state.begin_run(RunRecord(run_id, site.export.name, key, started_at, mode=site.export.mode))
    try:
        yield outcome
    except BaseException as error:
        outcome["status"] = "failed" if isinstance(error, Exception) else "interrupted"
        outcome |= {"error_code": getattr(error, "code", type(error).__name__), "error_message": safe_text(error)}
        if isinstance(error, GateRefused):
            outcome["quality_passed"] = False
        raise
    finally:
        finished_at = datetime.now(UTC)
        seconds = (finished_at - started_at).total_seconds()
        site.state.finish_run(
            run_id, outcome.pop("status"), finished_at=finished_at, duration_ms=round(seconds * 1000), **outcome
        )


def safe_text(error: BaseException) -> str:
    """Give a text that may be stored: only our own errors promise to hold no secret and no value."""
    return str(error) if isinstance(error, RivetError) else type(error).__name__


def figures(made: Attempt) -> dict[str, Any]:
    staged, measures = made.staged, made.staged.measures
    extract: Extract = staged.extract
    published = not (made.is_refused or made.is_skipped)
    return {
        "status": "skipped" if made.is_skipped else "success",
        "total_rows": measures.rows,
        "files_produced": len(staged.parts) if published else 0,
        "bytes_written": sum(part.size_bytes for part in staged.parts) if published else 0,
        "format": extract.format.type,
        "compression": extract.format.codec,
        "tuning_profile": extract.pace.profile,
        "consistency": staged.consistency,
        "retries": measures.retries,
        "longest_statement_ms": measures.longest_statement_ms,
        "cpu_seconds": measures.cpu_seconds,
        "peak_mb": measures.peak_mb,
        "validated": True,  # every part was read back before it was staged
        "quality_passed": not made.is_refused,
        "schema_changed": bool(made.drift),
        "degraded": measures.retries > 0,
    }
