"""`rivet metrics`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import click

from rivet_assets.commands.common import CONFIG, JSON, PARAM, load, print_rows


@click.command("metrics")
@CONFIG
@PARAM
@click.option("-e", "--export", "name", metavar="NAME", help="only of this one")
@click.option("--last", default=20, show_default=True, help="how many, newest first")
@JSON
def metrics_command(path: Path, params: Sequence[str], name: str | None, last: int, as_json: bool) -> int:
    """List past runs, newest first."""
    from rivet_assets import report
    from rivet_assets.run import open_state_of

    config = load(path, params)
    if name:
        config.export(name)
    runs = open_state_of(config).runs(name, last)
    if as_json:
        return print_rows([asdict(run) for run in runs], as_json=True)
    rows = [
        {
            "run": run.run_id, "mode": run.mode, "window": run.window, "status": run.status,
            "rows": f"{run.total_rows:,}", "files": run.files_produced, "bytes": report.human_bytes(run.bytes_written),
            "seconds": None if run.duration_ms is None else f"{run.duration_ms / 1000:.1f}",
            "peak": f"{run.peak_mb:.0f} MB", "retries": run.retries, "validated": _yes(run.validated),
            "schema changed": _yes(run.schema_changed),
        }
        for run in runs
    ]  # fmt: skip
    return print_rows(rows, as_json=False)


def _yes(known: bool | None) -> str:
    return "–" if known is None else "yes" if known else "no"
