"""`rivet schema …`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, cast

import click

from rivet_assets.cli.groups import CommandGroup
from rivet_assets.cli.options import CONFIG, JSON, PARAM, known_names, load

if TYPE_CHECKING:
    from rivet_resources.contracts.avro_compatibility import Compatibility

RULES = (
    "none", "backward", "backward_transitive", "forward", "forward_transitive", "full", "full_transitive",
)  # fmt: skip
NAME = click.option(
    "-e", "--export", "name", metavar="NAME", required=True, shell_complete=known_names, help="of this export"
)


@click.group("schema", cls=CommandGroup)
def schema_group() -> None:
    """Schemas: of rivet.yaml, and of exports in Avro."""


@schema_group.command("config")
def schema_config() -> int:
    """Print the JSON schema of rivet.yaml."""
    from rivet_assets.config.load import config_json_schema  # start

    click.echo(json.dumps(config_json_schema(), indent=2))
    return 0


@schema_group.command("show", short_help="Print the Avro schema of an export; reads no row.")
@CONFIG
@PARAM
@NAME
@click.option("--fingerprints", is_flag=True, help="its MD5 and SHA-256 instead, by Avro's canonical form")
def schema_show(path: Path, params: Sequence[str], name: str, fingerprints: bool) -> int:
    """Print the Avro schema of the columns that an export has now, whatever its format; reads no row."""
    from rivet_assets.preflight.avro_schemas import schema_of_export  # start
    from rivet_resources.contracts.avro_compatibility import fingerprints as fingerprints_of  # start

    schema = schema_of_export(load(path, params), name)
    click.echo(json.dumps(fingerprints_of(schema) if fingerprints else schema, indent=2, ensure_ascii=False))
    return 0


@schema_group.command("check", short_help="Tell whether an export still fits Avro schemas that readers have.")
@CONFIG
@PARAM
@NAME
@click.option(
    "--against",
    type=click.Path(path_type=Path),
    multiple=True,
    required=True,
    metavar="FILE",
    help="an Avro schema; several: the newest last",
)
@click.option(
    "--compatibility",
    type=click.Choice(RULES),
    metavar="RULE",
    default="backward",
    show_default=True,
    help="none, backward, forward or full; the last three also with _transitive",
)
@JSON
def schema_check(
    path: Path, params: Sequence[str], name: str, against: Sequence[Path], compatibility: str, as_json: bool
) -> int:
    """Hold the columns that an export has now against Avro schemas. Exit code 3 when readers would break."""
    from rivet_assets.preflight.avro_schemas import check_schema  # start

    rule = cast("Compatibility", compatibility)
    found = check_schema(load(path, params), name, against=against, compatibility=rule)
    if as_json:
        click.echo(json.dumps(asdict(found), indent=2))
    else:
        click.echo(
            f"{name}: {len(found.breaks)} breaks of {compatibility}" if found.breaks else f"{name}: {compatibility}"
        )
        for each in found.breaks:
            click.echo(f"  {each}")
    return 3 if found.breaks else 0
