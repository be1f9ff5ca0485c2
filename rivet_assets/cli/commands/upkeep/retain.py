"""`rivet retain`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rivet_assets.cli.commands.reconcile import each_by_itself, worst
from rivet_assets.cli.commands.upkeep.compact import DRY_RUN, GRACE, exports_with, print_done, removed_lines
from rivet_assets.cli.options import CONFIG, JSON, NAMES, PARAM, load

if TYPE_CHECKING:
    from rivet_assets.upkeep.retain import RetainedExport


@click.command("retain", short_help="Drop published windows that are older than `keep:` says.")
@CONFIG
@NAMES
@PARAM
@DRY_RUN
@GRACE
@JSON
@click.pass_context
def retain_command(
    context: click.Context, path: Path, names: Sequence[str], params: Sequence[str], is_dry: bool, grace: timedelta,
    as_json: bool,
) -> int:  # fmt: skip
    """Drop published windows of the exports that have `keep:`, the oldest ones; the newest always stays."""
    from rivet_assets.run.admit.scope import state_of  # start
    from rivet_assets.upkeep.retain import retain_export  # start

    config = load(path, params)
    exports = exports_with(config, names, "keep")
    state = state_of(config)
    done, faults = each_by_itself(
        context,
        exports,
        lambda export: retain_export(export, state=state, tell=lambda line: None, is_dry=is_dry, grace=grace),
    )
    print_done(done, told_lines, is_dry=is_dry, as_json=as_json)
    return worst([*(each.exit_code for each in done), *(fault.exit_code for fault in faults)])


def told_lines(done: RetainedExport) -> list[str]:
    """Return what people are told of one export."""
    lines = [f"{each.folder} {each.window}: {each.text}" for each in done.windows]
    return [*(lines or [f"{done.export}: no window is too old"]), *removed_lines(done)]
