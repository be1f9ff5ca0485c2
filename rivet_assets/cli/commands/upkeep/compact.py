"""`rivet compact`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from rivet_assets.cli.commands.upkeep.shared import look_after, removed_lines, upkeep_options

if TYPE_CHECKING:
    from rivet_assets.upkeep.compact import CompactedExport


@click.command("compact", short_help="Join small parts and windows of what is published.")
@upkeep_options
def compact_command(context: click.Context, **given: Any) -> int:
    """Join small parts and windows of the exports that have `compact:`; no row is read from a source."""
    from rivet_assets.upkeep.compact import compact_export  # start

    return look_after(context, "compact", compact_export, told_lines, **given)


def told_lines(done: CompactedExport) -> list[str]:
    """Return what people are told of one export."""
    lines = [f"{each.folder} {each.window}: {each.status}, {each.text}" for each in done.joins]
    return [*(lines or [f"{done.export}: nothing worth joining"]), *removed_lines(done)]
