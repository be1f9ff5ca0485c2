"""`rivet check`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import click

from rivet_assets.cli.options import CONFIG, JSON, NAMES, PARAM, load


@click.command("check", short_help="Judge how each export would run at its source; reads no row.")
@CONFIG
@NAMES
@click.option(
    "--type-report", "with_types", is_flag=True, help="also what each column becomes, and how faithful that is"
)
@click.option(
    "--strict", is_flag=True, help="exit code 1 also for UNSAFE exports, and for lossy or unsupported columns"
)
@PARAM
@JSON
def check_command(
    path: Path, names: Sequence[str], with_types: bool, strict: bool, params: Sequence[str], as_json: bool
) -> int:
    """Ask the sources' planners how exports would run; no row is read. Exit code 1 when one could not be checked."""
    from rivet_assets.cli.terminal import show  # start
    from rivet_assets.preflight import report as check_report  # start
    from rivet_assets.preflight.check import check_exports  # start

    config = load(path, params)
    checked = check_exports(config, names, with_types=with_types or strict)
    if as_json:
        click.echo(json.dumps(check_report.document(checked, config_path=path), indent=2))
    else:
        show(check_report.render(checked))
    return check_report.exit_code(checked, strict=strict)
