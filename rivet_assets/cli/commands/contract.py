"""`rivet contract …`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import click

from rivet_assets.cli.groups import CommandGroup
from rivet_assets.cli.options import CONFIG, JSON, PARAM, known_names, load, say

NAME = click.option(
    "-e", "--export", "name", metavar="NAME", required=True, shell_complete=known_names, help="of this export"
)


@click.group("contract", cls=CommandGroup)
def contract_group() -> None:
    """Write data contracts; hold them against the source."""


@contract_group.command("export", short_help="Write an export's table as an open data contract.")
@CONFIG
@PARAM
@NAME
@click.option("-o", "--output", type=click.Path(path_type=Path), metavar="FILE", help="write it there; default: stdout")
def contract_export(path: Path, params: Sequence[str], name: str, output: Path | None) -> int:
    """Write columns, types, NULLs and key of an export's table as a contract of the Open Data Contract Standard."""
    from rivet_assets.preflight.contract import look  # start
    from rivet_assets.scaffold.odcs import document_of, text_of  # start
    from rivet_resources.errors import ConfigError  # start

    config = load(path, params)
    export = config.export(name)
    text = text_of(document_of(export.name, *look(config, export)))
    if output is None:
        click.echo(text, nl=False)
        return 0
    try:
        with output.open("x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise ConfigError(f"{output} cannot be written: {error.strerror}. Name another file with -o.") from error
    say(f"wrote {output}; next: `contract: {output.name}` in the export")
    return 0


@contract_group.command("check", short_help="Hold a contract against the source's columns; reads no row.")
@CONFIG
@PARAM
@NAME
@JSON
def contract_check(path: Path, params: Sequence[str], name: str, as_json: bool) -> int:
    """Judge columns and types as they are at the source now. Exit code 3 when a run would be stopped."""
    from rivet_assets.preflight.contract import check_contract  # start

    found = check_contract(load(path, params), name)
    stops = found.columns.blocking and not found.columns.passed
    if as_json:
        click.echo(json.dumps(asdict(found), indent=2, default=str))
    else:
        columns = "as agreed" if found.columns.passed else f"{'STOP' if stops else 'warn'}: {found.columns.text}"
        click.echo(f"{found.export}: columns {columns}; {found.rules} rules judge each window")
    return 3 if stops else 0
