"""`rivet status`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rivet_assets.cli.options import CONFIG, JSON, NAMES, PARAM, load, print_rows, say

if TYPE_CHECKING:
    from rivet_assets.blocks.export import Export
    from rivet_assets.config.load import RivetConfig
    from rivet_assets.run.status import ExportStatus
    from rivet_resources.state.store import State


@click.command("status", short_help="Show what runs, where and how far, and how the last runs ended.")
@CONFIG
@NAMES
@PARAM
@click.option("--lag", "with_lag", is_flag=True, help="also ask the sources of drains how far behind they are")
@JSON
def status_command(path: Path, names: Sequence[str], params: Sequence[str], with_lag: bool, as_json: bool) -> int:
    """Show what runs now, where and how far, by the state store; without runs, how the last one ended."""
    from rivet_assets.config.selection import choose_exports  # start
    from rivet_assets.modes.by_shard import chains_of  # start
    from rivet_assets.run.admit.scope import state_of  # start
    from rivet_assets.run.reset import standing  # start
    from rivet_assets.run.status import status_of  # start

    config = load(path, params)
    state, at = state_of(config), datetime.now(UTC)
    rows: list[dict[str, Any]] = []
    for export in (each for chosen in choose_exports(config, names, ()) for each in chains_of(chosen)):
        found = status_of(export, cursor=standing(config, export, state=state), state=state)
        lag = _lag(config, export, state) if with_lag else None
        rows += [{**_whole(found), "lag": lag}] if as_json else _lines(found, lag, with_lag=with_lag, at=at)
    return print_rows(rows, as_json=as_json)


def _whole(found: ExportStatus) -> dict[str, Any]:
    last = asdict(found.last_run) if found.last_run else None
    if last is not None and last["harm"]:
        last["harm"] = json.loads(last["harm"])
    return {**asdict(found), "last_run": last}


def _lines(found: ExportStatus, lag: str | None, *, with_lag: bool, at: datetime) -> Iterator[dict[str, Any]]:
    """Yield a line for each window in work; one for an export that rests."""
    last = found.last_run
    ended = last.finished_at if last else None
    for work in found.work or (None,):
        yield {
            "export": found.export,
            "mode": found.mode,
            "status": found.status,
            "window": work.window if work else last.window if last else None,
            "rows": _count(work.rows if work else last.total_rows if last else None),
            "for": f"{(at - work.since).total_seconds():.0f} s" if work else None,
            "by": f"process {work.pid} on {work.host}" if work else None,
            "ended": f"{ended:%Y-%m-%d %H:%M:%S}Z" if ended and not work else None,
            "error": last.error_code if last and not work else None,
            "kept chunks": found.kept_chunks or None,
            **({"lag": lag} if with_lag else {}),
        }


def _count(rows: int | None) -> str | None:
    return None if rows is None else f"{rows:,}"


def _lag(config: RivetConfig, export: Export, state: State) -> str | None:
    """Ask how far behind a drain is; None of what is no drain, and where the source does not say, which is told."""
    from rivet_assets.modes.cdc import drain_of  # start
    from rivet_assets.run.drain import checkpoint_key, checkpoints_of  # start
    from rivet_assets.run.judge.drain_verdicts import lag_text  # start
    from rivet_assets.run.log_status import look, open_for_look  # start
    from rivet_resources.errors import RivetError  # start

    drain = drain_of(export)
    if drain is None:
        return None
    name, source = config.source_of(export)
    key = checkpoint_key(drain, name)
    store = checkpoints_of(drain, state=state, folder=config.folder)
    try:
        with open_for_look(drain, source, deployment=state.name) as log:
            return lag_text(look(log, store.load(key)).lag)
    except RivetError as error:
        say(f"{export.name}: not known how far behind: {error}")
        return None
