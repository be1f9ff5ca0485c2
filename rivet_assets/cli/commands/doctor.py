"""`rivet doctor`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import click

from rivet_assets.cli.options import CONFIG, JSON, NAMES, PARAM, load


@click.command("doctor", short_help="Test connections, rights, destinations, state store and Java.")
@CONFIG
@NAMES
@PARAM
@JSON
def doctor_command(path: Path, names: Sequence[str], params: Sequence[str], as_json: bool) -> int:
    """Ask sources, destinations, the state store and Java whether exports could run; exit code 1 when one could not."""
    from rivet_assets.cli.terminal import show  # start
    from rivet_assets.doctor import examine as doctor  # start
    from rivet_assets.doctor import report as doctor_report  # start

    config = load(path, params)
    rows = doctor.examine(config, names)
    if as_json:
        click.echo(json.dumps(doctor_report.document(rows, config_path=path), indent=2))
    else:
        show(doctor_report.render(rows))
    return doctor_report.exit_code(rows)
