"""`rivet retain`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from rivet_assets.cli.commands.upkeep.shared import look_after, removed_lines, upkeep_options

if TYPE_CHECKING:
    from rivet_assets.upkeep.retain import RetainedExport


@click.command("retain", short_help="Drop published windows that are older than `keep:` says.")
@upkeep_options
def retain_command(context: click.Context, **given: Any) -> int:
    """Drop published windows of the exports that have `keep:`, the oldest ones; the newest always stays."""
    from rivet_assets.upkeep.retain import retain_export  # start

    return look_after(context, "keep", retain_export, told_lines, **given)


def told_lines(done: RetainedExport) -> list[str]:
    """Return what people are told of one export."""
    lines = [f"{each.folder} {each.window}: {each.text}" for each in done.windows]
    return [*(lines or [f"{done.export}: no window is too old"]), *removed_lines(done)]
