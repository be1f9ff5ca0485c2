"""`rivet profile`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rivet_assets.cli.options import CONFIG, JSON, NAMES, PARAM, load, say, windows, windows_asked_for

if TYPE_CHECKING:
    from rivet_assets.run.report import Section
    from rivet_resources.commit.manifest import Manifest


@click.command("profile", short_help="Show what the columns of published windows are like.")
@CONFIG
@NAMES
@PARAM
@windows
@JSON
def profile_command(
    path: Path, names: Sequence[str], params: Sequence[str], partitions: Sequence[str], ranges: Sequence[str],
    as_json: bool,
) -> int:  # fmt: skip
    """Show what `profile:` counted of published windows; without a window, of the newest one of each export.

    It is read from the manifests: neither the source nor a part is opened.
    """
    from rivet_assets.cli.terminal import show  # start
    from rivet_assets.config.selection import choose_exports, keys_of  # start
    from rivet_assets.run.judge.profiles import profiled_windows  # start
    from rivet_assets.run.report import Report  # start

    keys = windows_asked_for(partitions, ranges)
    config = load(path, params)
    found = [
        manifest
        for export in choose_exports(config, names, ())
        for manifest in profiled_windows(export, keys_of(config, export, keys))
    ]
    if as_json:
        click.echo(json.dumps([_document(each) for each in found], indent=2))
    elif found:
        show(Report([_section(each) for each in found]))
    else:
        say("no window has a profile; write `profile: true` in an export, and run it")
    return 0


def _document(manifest: Manifest) -> dict[str, object]:
    assert manifest.profile is not None
    head = {"export": manifest.export_name, "window": manifest.window, "run_id": manifest.run_id}
    return {**head, **asdict(manifest.profile)}


def _section(manifest: Manifest) -> Section:
    from rivet_assets.run.judge.profile_text import HEADINGS, profile_rows  # start
    from rivet_assets.run.report import Section, Table  # start

    assert manifest.profile is not None
    title = f"{manifest.export_name} {manifest.window}: {manifest.profile.rows:,} rows"
    table = Table(HEADINGS, [*profile_rows(manifest.profile)], frozenset({2, 3, 6}), rule=True)
    return Section(title, table=table)
