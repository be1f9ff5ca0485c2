"""The windows of an incremental or polled export as a timeline: from where to where each load went, and how far behind.

Belongs here: those few facts of one load, and the list of the newest ones. Not here: everything else of a load
(`metadata.py`), how far an export is committed (`prove/progression.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import dagster as dg
import pyarrow as pa

from rivet_resources.contracts.extract import Staged
from rivet_resources.errors import RivetError

if TYPE_CHECKING:
    from rivet_assets.blocks.export import Export
    from rivet_resources.state.runs import RunRecord
    from rivet_resources.state.store import State

MOST_WINDOWS = 10  # in the list
RUNS_SEEN = 50  # to find so many that brought rows
# Dagster's API has integers of 32 bits; beyond, a plot has a gap.
MOST_INTEGER = 2**31
BEGINNING = "the beginning"
Load = tuple[str, str, int, str]  # from, to, rows, when it was committed
BAR = 12  # signs of the longest


def timeline_facts(export: Export, staged: Staged) -> dict[str, Any]:
    """Return where a load began and ended, as values of the cursor's own type; {} of a window without a cursor."""
    # Decision: each load says `rivet/from` and `rivet/to`, so that the events of the asset are the timeline; Dagster
    # 1.13.27 plots numbers alone (`IntMetadataEntry`, `FloatMetadataEntry` in its page), so cursors that are numbers
    # are numbers, and of times the width of a window and its distance to the clock are plotted. Rejected: partitions,
    # of which a window that begins where the last one ended has none before it is there (a backfill would offer what
    # cannot be asked for); a dynamic partition for each load, thousands a year that nobody can run again; an asset
    # beside, which would say it twice.
    extract = staged.extract
    if extract.cursor is None or extract.window.kind != "after":
        return {}
    column = extract.relation.column(extract.cursor.column)
    kind = column.arrow if column is not None else pa.string()
    ends = {"from": extract.cursor.low, "to": extract.cursor.high}
    typed = {name: _typed(export.cursor_text(text), kind) for name, text in ends.items() if text is not None}
    facts: dict[str, Any] = {f"rivet/{name}": _shown(value) for name, value in typed.items()}
    low, high = (typed.get(name) for name in ("from", "to"))
    if isinstance(low, datetime) and isinstance(high, datetime):
        facts["rivet/covers_hours"] = round((high - low).total_seconds() / 3600, 3)
    return facts


def window_text(export: Export, staged: Staged) -> str:
    """Name a window as people read it: `2026-01-31 … 2026-02-01` of an incremental load, else its key."""
    extract = staged.extract
    if extract.window.kind == "all":
        return ""
    if extract.cursor is None or extract.window.kind != "after":
        return extract.window.key
    low, high = _short(export, extract.cursor.low), extract.cursor.high
    return f"nothing new after {low}" if high in (None, extract.cursor.low) else f"{low} … {_short(export, high)}"


def newest_windows(export: Export, staged: Staged, state: State) -> list[Load]:
    """List the newest loads, this one first; [] of a window without a cursor."""
    extract = staged.extract
    if extract.cursor is None or extract.window.kind != "after":
        return []
    low, high = extract.cursor.low, extract.cursor.high
    this = (_short(export, low), _short(export, high) if high else "", staged.measures.rows, "now")
    return [this, *_earlier(export, state.runs(extract.export, RUNS_SEEN))][:MOST_WINDOWS]


def windows_table(windows: Iterable[Load]) -> str:
    """Draw loads as a table in markdown, with a bar for the rows of each."""
    windows = list(windows)
    most = max((rows for _, _, rows, _ in windows), default=0)
    lines = [
        f"| {low} | {high} | {rows:,} | {'█' * -(-BAR * rows // most) if most else ''} | {at} |"
        for low, high, rows, at in windows
    ]
    return "\n".join(["| from | to | rows | | committed (UTC) |", "|---|---|---|---|---|", *lines])


def _earlier(export: Export, records: Iterable[RunRecord]) -> Iterable[Load]:
    """Yield the loads that brought rows, newest first; those that found nothing are no step of the way."""
    for record in records:
        if record.status == "success" and record.cursor_high is not None and record.total_rows:
            at = f"{record.finished_at:%Y-%m-%d %H:%M}" if record.finished_at else ""
            yield _short(export, record.cursor_low), _short(export, record.cursor_high), record.total_rows, at


def _short(export: Export, cursor: str | None) -> str:
    """Return a cursor as people read it: whole seconds without six zeros; of another mode, before, as it stands."""
    if cursor is None:
        return BEGINNING
    with suppress(RivetError):
        cursor = export.cursor_text(cursor)
    return cursor.replace(".000000", "")


def _typed(text: str, kind: pa.DataType) -> Any:
    """Return a cursor as a number or a time where it is one that Python holds; else its text."""
    try:
        if pa.types.is_integer(kind) or pa.types.is_decimal(kind) or pa.types.is_floating(kind):
            return Decimal(text)
        if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
            return datetime.fromisoformat(text)
    except (ValueError, ArithmeticError):
        # A year beyond 9999, or a value that only its database writes.
        return text
    return text


def _shown(value: Any) -> Any:
    """Return a value as metadata: an instant as the reader's own time, a number as one that is plotted."""
    if isinstance(value, datetime):
        return dg.MetadataValue.timestamp(value) if value.tzinfo is not None else value.isoformat(" ")
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() and abs(value) < MOST_INTEGER else float(value)
    return value
