"""`rivet repair`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rivet_assets.cli.commands.reconcile import DEPTHS, each_by_itself, exports_of, worst
from rivet_assets.cli.options import CONFIG, JSON, NAMES, PARAM, load, say, windows, windows_asked_for

if TYPE_CHECKING:
    from rivet_assets.blocks.export import Export
    from rivet_assets.config.load import RivetConfig
    from rivet_assets.prove.reconcile_report import Flagged
    from rivet_assets.prove.reconcile_result import Depth
    from rivet_assets.prove.repair import Repaired
    from rivet_resources.state.store import State


@click.command("repair", short_help="Export again what differs from its source or is damaged.")
@CONFIG
@NAMES
@PARAM
@windows
@click.option(
    "--report", type=click.Path(path_type=Path), metavar="FILE", help="of rivet reconcile or rivet validate, as JSON"
)
@click.option("--depth", type=DEPTHS, default="counts", show_default=True, help="of comparing, without --report")
@click.option("--execute", is_flag=True, help="do it; otherwise only say what would be read again")
@JSON
@click.pass_context
def repair_command(
    context: click.Context, path: Path, names: Sequence[str], params: Sequence[str], partitions: Sequence[str],
    ranges: Sequence[str], report: Path | None, depth: Depth, execute: bool, as_json: bool,
) -> int:  # fmt: skip
    """Export again the windows that differ from their source, or whose files are wrong, and nothing else."""
    from rivet_assets.prove.reconcile_report import read_report  # start
    from rivet_assets.run.admit.scope import state_of  # start

    keys = windows_asked_for(partitions, ranges)
    config = load(path, params)
    given = read_report(report) if report is not None else None
    exports = exports_of(config, names, keys)
    if not names:
        for export in [export for export in exports if export.answers.no_repair]:
            say(f"{export.name}: left out, mode {export.mode} cannot be repaired")
            exports.remove(export)
    state = state_of(config)
    done, faults = each_by_itself(
        context,
        exports,
        lambda export: repair(config, export, _find_flagged(config, export, given, keys, depth, state), execute, state),
    )
    if as_json:
        click.echo(json.dumps({"execute": execute, "exports": [asdict(each) for each in done]}, indent=2))
    else:
        for each in done:
            click.echo("\n".join(told_lines(each)))
        if not execute and any(each.windows for each in done):
            say("nothing was changed; --execute does it")
    return worst([*(each.exit_code for each in done), *(fault.exit_code for fault in faults)])


def _find_flagged(
    config: RivetConfig, export: Export, given: Sequence[Flagged] | None, keys: Sequence[str], depth: Depth,
    state: State,
) -> tuple[Flagged, ...]:  # fmt: skip
    """Take the windows of the report, or look now: at the source, and at the files."""
    from rivet_assets.config.selection import keys_of  # start
    from rivet_assets.prove.flagged_windows import find_flagged  # start

    wanted = keys_of(config, export, keys)
    if given is None:
        if export.answers.no_repair:
            return ()
        return find_flagged(config, export, depth=depth, windows=wanted or None, state=state, tell=lambda line: None)
    if export.is_apart:
        return _given_of_shards(export, given, wanted)
    return tuple(each for each in given if each.export == export.name and (not wanted or each.window in wanted))


def _given_of_shards(export: Export, given: Sequence[Flagged], wanted: Sequence[str]) -> tuple[Flagged, ...]:
    """Take the windows of a report that are of an export's shards; `rivet validate` names each by its folder."""
    from rivet_assets.modes.by_shard import IN_CHAIN, chain_window, chains_of  # start

    heads = {each.name: chain_window(each, "") for each in chains_of(export)}
    ours = [
        replace(each, export=export.name, window=f"{heads.get(each.export, '')}{each.window}")
        for each in given
        if each.export == export.name or each.export in heads
    ]
    return tuple(
        each for each in ours if not wanted or each.window in wanted or each.window.partition(IN_CHAIN)[0] in wanted
    )


def repair(config: RivetConfig, export: Export, flagged: Sequence[Flagged], execute: bool, state: State) -> Repaired:
    """Plan the repair of an export's flagged windows, or carry it out, on a Spark of its own."""
    from rivet_assets.prove.repair import repair_export  # start
    from rivet_resources.read.stage import Exporter  # start
    from rivet_resources.spark.runtime import SparkRuntime  # start

    runtime = SparkRuntime(config.spark)
    try:
        return repair_export(
            config, export, flagged, execute=execute, exporter=Exporter(runtime, state), state=state,
            tell=lambda line: None,
        )  # fmt: skip
    finally:
        runtime.stop()


def told_lines(done: Repaired) -> list[str]:
    """Return what people are told of it."""
    if not done.windows:
        return [f"{done.export}: nothing to repair"]
    return [f"{done.export} {each.window}: {each.status}, {each.text}" for each in done.windows]
