"""A run as numbers that Prometheus keeps.

Belongs here: names, labels, units; names stay, since people's dashboards have them. Not here: sending
(`rivet_resources/observe/prometheus.py`).
"""

from __future__ import annotations

from collections.abc import Iterator

from rivet_assets.run.observation import ObservedRun
from rivet_resources.observe.prometheus import Sample


def labels_of(run: ObservedRun) -> dict[str, str]:
    """Return what tells one export's metrics from another's; a window is no label, there are too many of them."""
    return {"source": run.source_name, "export": run.export, "mode": run.mode}


def samples_of(run: ObservedRun) -> Iterator[Sample]:
    """Yield the numbers of a run that ended; `rivet_last_success_…` only of one that did well."""
    assert run.finished_at is not None
    ended, well = run.finished_at.timestamp(), run.status in ("success", "skipped")
    yield Sample("rivet_last_run_timestamp_seconds", "When the last run of the export ended.", ended)
    yield Sample("rivet_last_run_success", "1: the last run did well; 0: it did not.", float(well))
    yield Sample("rivet_last_run_duration_seconds", "How long the last run took.", run.total_seconds)
    if not well:
        return
    yield Sample("rivet_last_success_timestamp_seconds", "When the last run that did well ended.", ended)
    rows, files, size = (sum(getattr(each, fact) for each in run.tables) for fact in ("rows", "files", "size_bytes"))
    yield Sample("rivet_last_success_rows", "Rows that it published.", rows)
    yield Sample("rivet_last_success_files", "Files that it published.", files)
    yield Sample("rivet_last_success_size_bytes", "Bytes of these files.", size)
    for name, value in run.figures.items():
        unit = {"peak_mb": "peak_memory_bytes"}.get(name, name)
        value = value * 2**20 if name == "peak_mb" else value
        yield Sample(f"rivet_last_success_{unit}", f"As measured by the run: {unit.replace('_', ' ')}.", value)
    for step, seconds in run.seconds.items():
        yield Sample("rivet_last_success_step_seconds", "How long each step took.", seconds, {"step": step})
