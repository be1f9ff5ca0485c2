"""`rivet audit`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import cast

import click

from rivet_assets.cli.options import CONFIG, JSON, NAME, PARAM, load, print_rows
from rivet_resources.contracts.audit import ACTIONS, Action


@click.command("audit", short_help="List who ran, approved, repaired and reset what.")
@CONFIG
@PARAM
@NAME
@click.option("--action", type=click.Choice(ACTIONS), help="only of this kind")
@click.option("--last", default=200, show_default=True, type=click.IntRange(1), help="how many of the newest actions")
@JSON
def audit_command(
    path: Path, params: Sequence[str], name: str | None, action: str | None, last: int, as_json: bool
) -> int:
    """Return who did what, oldest first: runs, applied plans, repairs, resets, dead letters replayed or dropped.

    The state store keeps it; whoever may write there may write to it.
    """
    from rivet_assets.modes.by_shard import chains_of  # start
    from rivet_assets.run.admit.scope import state_of  # start

    config = load(path, params)
    state = state_of(config)
    asked = cast("Action | None", action)
    names = dict.fromkeys([name, *(each.name for each in chains_of(config.export(name)))] if name else [None])
    entries = [entry for each in names for entry in state.audit_log(each, asked, last)]
    if len(names) > 1:
        entries = sorted(entries, key=lambda entry: entry.at)[-last:]
    if as_json:
        return print_rows([asdict(entry) for entry in entries], as_json=True)
    rows = [
        {
            "at": f"{entry.at:%Y-%m-%d %H:%M:%S}",
            "action": entry.action,
            "export": entry.export,
            "by": entry.actor,
            "about": ", ".join(f"{key} {value}" for key, value in entry.detail.items() if value not in (None, "")),
            "run": entry.run_id,
        }
        for entry in entries
    ]
    return print_rows(rows, as_json=False)
