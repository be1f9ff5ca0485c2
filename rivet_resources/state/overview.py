"""What `rivet state show` and `rivet metrics` print: plain rows, ready for a table or JSON.

Belongs here: which facts stand side by side. Not here: how they are printed (`rivet_assets/cli/main.py`).
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from rivet_resources.state.store import State


def describe(state: State, export: str | None = None) -> list[dict[str, Any]]:
    """Return one row per known export, sorted by name; times are aware UTC datetimes.

    Keys: export, cursor (None: never had one or reset), cursor_state (`set`, `reset`, `none`), cursor_updated_at,
    last_run_id, last_status, last_run_at, last_rows, schema_version, columns, busy ({window: run id}), resumable_runs.
    """
    names = state.exports() if export is None else [name for name in state.exports() if name == export]
    return [_describe(state, name) for name in names]


def metrics(state: State, export: str | None = None, last: int = 20) -> list[dict[str, Any]]:
    """Return the newest runs, newest first, with every field of RunRecord but the process's."""
    return [_figures(asdict(run)) for run in state.runs(export, last)]


def _describe(state: State, name: str) -> dict[str, Any]:
    cursor = state.cursor(name)
    run = next(iter(state.runs(name, last=1)), None)
    versions = state.schema_history(name)
    return {
        "export": name,
        "cursor": cursor.value if cursor else None,
        "cursor_state": "none" if cursor is None else "reset" if cursor.value is None else "set",
        "cursor_updated_at": cursor.updated_at if cursor else None,
        "last_run_id": run.run_id if run else None,
        "last_status": run.status if run else None,
        "last_run_at": run.started_at if run else None,
        "last_rows": run.total_rows if run else None,
        "schema_version": versions[-1].version if versions else None,
        "columns": len(versions[-1].columns) if versions else None,
        "busy": {holder.window: holder.run_id for holder in state.leases(name)},
        "resumable_runs": sorted(state.resumable_runs(name)),
    }


def _figures(run: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in run.items() if name not in ("host", "pid", "process_start")}
