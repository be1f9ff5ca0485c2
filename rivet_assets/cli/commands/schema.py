"""`rivet schema …`."""

from __future__ import annotations

import json

import click

from rivet_assets.cli.groups import CommandGroup


@click.group("schema", cls=CommandGroup)
def schema_group() -> None:
    """JSON schemas, for editors."""


@schema_group.command("config")
def schema_config() -> int:
    """Print the JSON schema of rivet.yaml."""
    from rivet_assets.config.load import config_json_schema  # start

    click.echo(json.dumps(config_json_schema(), indent=2))
    return 0
