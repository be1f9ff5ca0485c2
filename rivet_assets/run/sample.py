"""A trial of an export: some rows, read and written exactly as a run would, and then discarded (`limit: N`).

Belongs here: what a sample reads, and what is known of it. Not here: options of runs (`run_options.py`), what Dagster
is told (`dagster/sample_run.py`).

Decision: a limited run publishes nothing.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, cast

from rivet_assets.modes.protocol import Mode, Planning
from rivet_assets.run.attempt import Site, new_run_id
from rivet_assets.run.masked_columns import judge_masks
from rivet_resources.contracts.parts import Measures
from rivet_resources.contracts.rows.boundary import Boundary
from rivet_resources.contracts.rows.row_rules import NO_ROW_RULES
from rivet_resources.contracts.settings import pace

if TYPE_CHECKING:
    from rivet_resources.contracts.extract import Extract, Staged, Window
    from rivet_resources.read.connections import Permits

# Looked into for rows; chunks of sparse keys may be empty.
MOST_CHUNKS = 100


@dataclass(frozen=True)
class Trial:
    """What a trial found."""

    staged: Staged  # the last chunk that was read; its parts are gone
    measures: Measures
    files: int
    size_bytes: int
    seconds: float
    window: str


def take_sample(site: Site, limit: int, *, window: Window | None = None, from_start: bool = False) -> Trial:
    """Read, shape, write and verify at most `limit` rows of what the next run would read; nothing of it is left.

    Args:
        window: of an export with windows of time.
        from_start: not from the committed cursor, but from the beginning.

    Raises:
        RivetError: whatever planning, reading and writing raise.
    """
    site = site.at(window)
    window = site.planned_window(window)
    export, _ = site.export.without_comparison()
    started_at, began = datetime.now(UTC), time.monotonic()
    run_id = new_run_id(export.name, started_at)
    planned = pace(site.source.tuning, export.tuning)
    held = site.state.cursor(export.name) if export.answers.keeps_cursor and not from_start else None
    with (
        site.exporter.permits(site.source, run_id=run_id, pace=planned) as permits,
        site.source.session(
            application=f"rivet:{export.name}", pace=planned, snapshot=export.shares_snapshot
        ) as session,
    ):
        relation = session.describe(
            table=export.table, query=export.query, params=export.params, rules=export.type_rules()
        )
        judge_masks(export, relation, state=site.state, root=site.root)
        extract = cast(Mode, export).extract(
            Planning(
                source=site.source,
                session=session,
                relation=relation,
                window=window,
                cursor=held.value if held else None,
                boundary=held.boundary if held else Boundary(),
                run_id=run_id,
                started_at=started_at,
                tasks=1,
                runs=1,
            )
        )
        chunks = _stage_some(site, extract, limit, permits)
    sizes = [part.size_bytes for staged in chunks for part in staged.parts]
    measures = sum((staged.measures for staged in chunks), Measures())
    return Trial(chunks[-1], measures, len(sizes), sum(sizes), time.monotonic() - began, extract.window.key)


def _stage_some(site: Site, extract: Extract, limit: int, permits: Permits) -> list[Staged]:
    """Stage chunk after chunk until there are rows enough, each discarded at once."""
    # Pages no larger than the sample: the source must not read ten thousand rows for the ten that are shown.
    rows = min(limit, extract.pace.batch_size)
    gentle = extract.pace.model_copy(update={"batch_size": rows, "batch_size_is_explicit": True})
    # Without a fingerprint nothing is kept for later runs; what is unique in a sample says nothing of the window.
    # It leaves no manifest, cursor, run record or baseline, takes no lease, and judges no quality rule, since rules are
    # about whole windows.
    trial = replace(extract, parallel=1, pace=gentle, fingerprint="", unique_columns=(), row_rules=NO_ROW_RULES)
    trial = replace(trial, profile=None)
    found: list[Staged] = []
    left = limit
    for chunk in extract.chunks[:MOST_CHUNKS] or (None,):
        chunks = () if chunk is None else (replace(chunk, identity="", abreast=1),)
        staged = site.exporter.stage(replace(trial, chunks=chunks, most_rows=left), permits=permits)
        # After each chunk: an interrupted trial leaves at most one, and that is swept as a dead run's.
        # A window with some of its rows looks to every reader like a whole one, and a cursor behind it would skip the
        # rest; so a limit is for looking: do connection, query, types, transforms and files work?
        site.root.discard(staged.files)
        found.append(staged)
        left -= staged.measures.rows_read
        if left <= 0:
            break
    return found
