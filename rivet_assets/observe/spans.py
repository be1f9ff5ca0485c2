"""A run as a trace: the window, and its steps one after the other.

Belongs here: which spans there are. Not here: sending (`rivet_resources/observe/opentelemetry.py`).

Reading, shaping and writing take turns page by page, in tasks on other machines; a span for each page would cost more
than the page. So a step is what the driver sees: `plan`, `read` (with shaping and writing), `publish`; of a drain its
own steps. What tasks measured stands as attributes.
"""

from __future__ import annotations

from datetime import timedelta

from rivet_assets.run.observation import ObservedRun
from rivet_resources.observe.opentelemetry import TraceSpan


def spans_of(run: ObservedRun) -> list[TraceSpan]:
    """Return the spans of a run that ended, the root first."""
    assert run.finished_at is not None
    facts: dict[str, str | float] = {
        "rivet.export": run.export,
        "rivet.mode": run.mode,
        "rivet.window": run.window,
        "rivet.run_id": run.run_id,
        "rivet.source": run.source_name,
        "rivet.status": run.status,
        "db.system": run.source_type,
        "rivet.rows": sum(table.rows for table in run.tables),
        "rivet.files": sum(table.files for table in run.tables),
        "rivet.size_bytes": sum(table.size_bytes for table in run.tables),
        **{f"rivet.{name}": value for name, value in run.figures.items()},
    }
    if run.error_code:
        facts["error.type"] = run.error_code
    fault = "" if run.status in ("success", "skipped") else run.error or run.status
    spans = [TraceSpan(f"rivet export {run.export}", run.started_at, run.finished_at, facts, fault)]
    at = run.started_at
    for step, seconds in run.seconds.items():
        end = min(at + timedelta(seconds=seconds), run.finished_at)
        spans.append(TraceSpan(step, at, end, {"rivet.export": run.export}, ""))
        at = end
    return spans
