"""`rivet validate`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

import click

from rivet_assets.cli.options import CONFIG, JSON, NAMES, PARAM, load, say, windows, windows_asked_for
from rivet_resources.errors import ConfigError


@click.command("validate", short_help="Prove that the published files are those that were committed.")
@CONFIG
@NAMES
@PARAM
@click.option(
    "--depth", type=click.Choice(["light", "sample", "full"]), default="full", show_default=True,
    help="manifests and markers; parts and their sizes; bytes, rows and cells",
)  # fmt: skip
@windows
@click.option("--run-id", metavar="R", help="only windows that this run committed")
@click.option("--date", "day", type=click.DateTime(["%Y-%m-%d"]), metavar="D", help="fills {date} of the destination")
@click.option("--prefix", metavar="P", help="the very folder, instead of the configured one")
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True)
@JSON
@click.option("-o", "--output", type=click.Path(path_type=Path), metavar="FILE", help="write the report there")
def validate_command(
    path: Path, names: Sequence[str], params: Sequence[str], depth: str, partitions: Sequence[str],
    ranges: Sequence[str], run_id: str | None, day: datetime | None, prefix: str | None, form: str, as_json: bool,
    output: Path | None,
) -> int:  # fmt: skip
    """Prove that what is published is what was committed; exit code 3 when it is not, 1 when that cannot be told."""
    from rivet_assets.cli.terminal import show  # start
    from rivet_assets.config.selection import choose_exports, keys_of  # start
    from rivet_assets.prove import validate_report  # start
    from rivet_assets.prove.validate import ValidationScope, validate_export  # start
    from rivet_assets.run.admit.scope import state_of  # start

    keys = windows_asked_for(partitions, ranges)
    config = load(path, params)
    exports = choose_exports(config, names, ())
    state, date = state_of(config), day.date() if day else None
    found = []
    for export in exports:
        wanted = ValidationScope(depth, keys_of(config, export, keys), run_id, date, prefix)  # type: ignore[arg-type]
        found.append((export, validate_export(export, wanted, state=state)))
    told = validate_report.render(found)
    text = json.dumps(validate_report.document(found), indent=2) if as_json or form == "json" else ""
    if output is not None:
        try:
            output.write_text(f"{text or told}\n", encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"-o {output} cannot be written: {error.strerror}. Name a file in a folder.") from error
        say(f"written to {output}")
    elif text:
        click.echo(text)
    else:
        show(told)
    return validate_report.exit_code(found)
