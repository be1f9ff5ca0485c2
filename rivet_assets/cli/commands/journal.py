"""`rivet journal`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from rivet_assets.cli.options import CONFIG, JSON, NAME, PARAM, load, print_rows


@click.command("journal", short_help="List what happened in past runs: chunks, retries, drift.")
@CONFIG
@PARAM
@NAME
@click.option("--run-id", metavar="R", help="only of this run; `rivet metrics` lists them")
@click.option("--last", default=200, show_default=True, type=click.IntRange(1), help="how many of the newest events")
@JSON
def journal_command(
    path: Path, params: Sequence[str], name: str | None, run_id: str | None, last: int, as_json: bool
) -> int:
    """Return what happened in past runs, oldest first: plans, chunks, retries, drift, steps of the governor."""
    from rivet_assets.modes.by_shard import chains_of  # start
    from rivet_assets.run.admit.scope import state_of  # start

    config = load(path, params)
    kept = [each.name for each in chains_of(config.export(name))] if name else [None]
    state = state_of(config)
    entries = [entry for each in kept for entry in state.journal(each, run_id, last)]
    if len(kept) > 1:
        entries = sorted(entries, key=lambda entry: entry.at)[-last:]
    if as_json:
        return print_rows([asdict(entry) for entry in entries], as_json=True)
    rows = [
        {
            "at": f"{entry.at:%Y-%m-%d %H:%M:%S}",
            "run": entry.run_id,
            "event": entry.event,
            "facts": _words(entry.detail),
        }
        for entry in entries
    ]
    return print_rows(rows, as_json=False)


def _words(detail: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in detail.items() if value not in (None, "", [], {}))
