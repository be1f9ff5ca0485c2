"""`rivet metrics`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rivet_assets.cli.options import CONFIG, JSON, NAME, PARAM, load, print_rows
from rivet_resources.errors import ConfigError

if TYPE_CHECKING:
    from rivet_resources.state.runs import RunRecord


@click.command("metrics")
@CONFIG
@PARAM
@NAME
@click.option("--run-id", metavar="R", help="everything about this one run")
@click.option("--last", default=20, show_default=True, type=click.IntRange(1), help="how many, newest first")
@JSON
def metrics_command(
    path: Path, params: Sequence[str], name: str | None, run_id: str | None, last: int, as_json: bool
) -> int:
    """List past runs, newest first; with --run-id all figures of one."""
    from rivet_assets.modes.by_shard import chains_of  # start
    from rivet_assets.run.admit.scope import state_of  # start

    config = load(path, params)
    kept = [each.name for each in chains_of(config.export(name))] if name else [None]
    state = state_of(config)
    if run_id is None:
        found = [run for each in kept for run in state.runs(each, last)]
        runs = sorted(found, key=lambda run: run.started_at, reverse=True)[:last] if len(kept) > 1 else found
        return print_rows([_whole(run) if as_json else _row(run) for run in runs], as_json=as_json)
    run = state.run(run_id)
    if run is None:
        raise ConfigError(f"There is no run {run_id!r} in {state.name}; `rivet metrics` lists the last ones.")
    if as_json:
        return print_rows([_whole(run)], as_json=True)
    facts = {name: value for name, value in _whole(run).items() if value not in (None, "")}
    return print_rows([{"figure": name, "value": value} for name, value in facts.items()], as_json=False)


def _whole(run: RunRecord) -> dict[str, Any]:
    return {**asdict(run), "harm": json.loads(run.harm) if run.harm else None}


def _row(run: RunRecord) -> dict[str, Any]:
    from rivet_assets.launch import outcome as report  # start
    from rivet_assets.run.words import human_bytes  # start

    return {
        "run": run.run_id, "mode": run.mode, "window": run.window, "status": run.status,
        "rows": f"{run.total_rows:,}", "files": run.files_produced, "bytes": human_bytes(run.bytes_written),
        "seconds": None if run.duration_ms is None else f"{run.duration_ms / 1000:.1f}",
        "peak": f"{run.peak_mb:.0f} MB", "retries": run.retries, "validated": _yes(run.validated),
        "schema changed": _yes(run.schema_changed),
        "from": run.source_type, "to": run.destination_type,
        "harm": report.harm_words(json.loads(run.harm)) or None if run.harm else None,
    }  # fmt: skip


def _yes(known: bool | None) -> str:
    return "–" if known is None else "yes" if known else "no"
