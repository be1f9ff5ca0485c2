"""`rivet quarantine …`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rivet_assets.cli.commands.reconcile import exports_of, worst
from rivet_assets.cli.groups import CommandGroup
from rivet_assets.cli.options import CONFIG, JSON, NAMES, PARAM, load, print_rows, say, windows, windows_asked_for

if TYPE_CHECKING:
    from rivet_assets.blocks.export import Export
    from rivet_assets.config.load import RivetConfig

EXECUTE = click.option("--execute", is_flag=True, help="do it; otherwise only say what would be done")


@click.group("quarantine", cls=CommandGroup)
def quarantine_group() -> None:
    """Rows that `on_error` set aside: look, replay, drop."""


@quarantine_group.command("list", short_help="Count the rows that could not be exported, by window and reason.")
@CONFIG
@NAMES
@PARAM
@windows
@JSON
def quarantine_list(
    path: Path, names: Sequence[str], params: Sequence[str], partitions: Sequence[str], ranges: Sequence[str],
    as_json: bool,
) -> int:  # fmt: skip
    """Count the rows that could not be exported, by window and reason."""
    from rivet_assets.prove.quarantine import quarantined  # start

    rows = []
    for export, keys in _chosen(load(path, params), names, windows_asked_for(partitions, ranges)):
        for each in quarantined(export, keys):
            told = {"export": each.export, "window": each.window}
            for fate, found in (("dead letter", each.dead), ("skipped", each.skipped)):
                rows += [{**told, "rows": count, "fate": fate, "reason": why} for why, count in found.items()]
            if each.dropped:
                rows.append({**told, "rows": each.dropped, "fate": "dropped", "reason": "given up by hand"})
    return print_rows(rows, as_json=as_json)


@quarantine_group.command("show", short_help="Print dead letters: reason, key and row, one JSON object a line.")
@CONFIG
@NAMES
@PARAM
@windows
@click.option("--limit", default=20, show_default=True, type=click.IntRange(1), help="of each export, in file order")
def quarantine_show(
    path: Path, names: Sequence[str], params: Sequence[str], partitions: Sequence[str], ranges: Sequence[str],
    limit: int,
) -> int:  # fmt: skip
    """Print dead letters: reason, key and row, one JSON object a line; what the export masks or drops is not there."""
    from rivet_assets.prove.quarantine import dead_letters  # start

    shown = 0
    for export, keys in _chosen(load(path, params), names, windows_asked_for(partitions, ranges)):
        for letter in islice(dead_letters(export, keys), limit):
            click.echo(json.dumps({"export": export.name, **letter}, ensure_ascii=False))
            shown += 1
    if not shown:
        say("no dead letters")
    return 0


@quarantine_group.command("replay", short_help="Read the rows of dead letters again, after a fix.")
@CONFIG
@NAMES
@PARAM
@windows
@EXECUTE
@JSON
def quarantine_replay(
    path: Path, names: Sequence[str], params: Sequence[str], partitions: Sequence[str], ranges: Sequence[str],
    execute: bool, as_json: bool,
) -> int:  # fmt: skip
    """Read the rows of dead letters again, after a fix: by their keys, or with their windows or chunks.

    Rows that fit by now are published with their window, rows that are gone are gone, the others stay dead letters.
    """
    from rivet_assets.cli.commands.repair import repair, told_lines  # start
    from rivet_assets.prove.quarantine import flagged_for_replay, quarantined  # start
    from rivet_assets.run.admit.scope import state_of  # start

    config = load(path, params)
    state, done = state_of(config), []
    for export, keys in _chosen(config, names, windows_asked_for(partitions, ranges)):
        if flagged := flagged_for_replay(export, keys):
            if execute:
                state.note_action("replay", export.name, {"windows": ", ".join(each.window for each in flagged)})
            done.append(repair(config, export, flagged, execute, state))
            if not as_json:
                click.echo("\n".join(told_lines(done[-1])))
                left = sum(sum(each.dead.values()) for each in quarantined(export, keys))
                if execute:
                    click.echo(f"{export.name}: {left} dead letters left")
    if as_json:
        click.echo(json.dumps({"execute": execute, "exports": [asdict(each) for each in done]}, indent=2))
    elif not done:
        say("no dead letters")
    elif not execute:
        say("nothing was changed; --execute does it")
    return worst([each.exit_code for each in done])


@quarantine_group.command("drop", short_help="Remove dead letters: their files go, their number stays.")
@CONFIG
@NAMES
@PARAM
@windows
@EXECUTE
@JSON
def quarantine_drop(
    path: Path, names: Sequence[str], params: Sequence[str], partitions: Sequence[str], ranges: Sequence[str],
    execute: bool, as_json: bool,
) -> int:  # fmt: skip
    """Remove dead letters: their files go; the manifest keeps how many they were."""
    from rivet_assets.prove.quarantine import drop_letters, quarantined  # start
    from rivet_assets.run.admit.scope import state_of  # start

    config = load(path, params)
    state, rows = state_of(config), []
    for export, keys in _chosen(config, names, windows_asked_for(partitions, ranges)):
        before = {each.window: sum(each.dead.values()) for each in quarantined(export, keys) if each.dead}
        if execute:
            drop_letters(export, tuple(before), state=state)
        rows += [{"export": export.name, "window": window, "rows": count} for window, count in before.items()]
    if rows and not execute:
        say("nothing was changed; --execute does it")
    return print_rows(rows, as_json=as_json)


def _chosen(config: RivetConfig, names: Sequence[str], keys: Sequence[str]) -> list[tuple[Export, tuple[str, ...]]]:
    """Return the exports that were asked for, each with its windows; those that hold changes have no quarantine."""
    from rivet_assets.config.selection import keys_of  # start
    from rivet_assets.modes.by_shard import chains_asked  # start

    exports = [each for each in exports_of(config, names, keys) if each.takes_rows or not each.answers.no_repair]
    chosen: list[tuple[Export, tuple[str, ...]]] = []
    for export in exports:
        windows = tuple(keys_of(config, export, keys))
        shards = chains_asked(export, windows or None) if export.is_apart else [(export, windows)]
        chosen += [(each, tuple(asked or ())) for each, asked in shards]
    return chosen
