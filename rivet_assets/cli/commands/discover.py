"""`rivet discover`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rivet_assets.cli.commands.init import SOURCE_ENV, SOURCE_FILE, TABLES, TLS
from rivet_assets.cli.options import CONFIG, JSON, PARAM, load, print_rows
from rivet_resources.errors import ConfigError

if TYPE_CHECKING:
    from rivet_resources.contracts.source import Source


@click.command("discover", short_help="List the tables of a source: keys, sizes, cursor candidates.")
@CONFIG
@PARAM
@click.option("--source", "name", metavar="NAME", help="one of the file's `sources:`")
@SOURCE_ENV
@SOURCE_FILE
@TABLES
@JSON
@click.option("--yaml", "as_yaml", is_flag=True, help="the same document as YAML")
@TLS
def discover_command(
    path: Path, params: Sequence[str], name: str | None, source_env: str | None, source_file: str | None,
    patterns: tuple[str, ...], as_json: bool, as_yaml: bool, tls: str | None,
) -> int:  # fmt: skip
    """List what a source's user may read: keys, sizes, cursor candidates with scores; no row is read."""
    from rivet_assets.scaffold import catalog as scaffold_catalog  # start
    from rivet_assets.scaffold.init import look  # start
    from rivet_assets.scaffold.source import point  # start

    if source_env or source_file:
        label, source = "source", point(url=None, env=source_env, file=source_file, tls=tls).source
    else:
        label, source = source_in_file(path, params, name)
    proposals = look(source, patterns, application="rivet discover")
    if not as_json and not as_yaml:
        return print_rows(scaffold_catalog.rows(proposals), as_json=False)
    document = {"source": label, "type": source.type, "tables": scaffold_catalog.entries(proposals)}
    if as_yaml:
        import yaml  # start

        click.echo(yaml.safe_dump(document, sort_keys=False, allow_unicode=True), nl=False)
    else:
        click.echo(json.dumps(document, indent=2))
    return 0


def source_in_file(path: Path, params: Sequence[str], name: str | None) -> tuple[str, Source]:
    """Find a source of the file: the named one, or the only one.

    Raises:
        ConfigError: the file is wrong, has no such source, or several and none is named.
    """
    config = load(path, params)
    known: dict[str, Source] = dict(config.sources)
    if config.source is not None:
        known[config.source.type] = config.source
    for export in config.exports:
        label, source = config.source_of(export)
        known.setdefault(label, source)
    if name is None and len(known) == 1:
        return next(iter(known.items()))
    if name is None or name not in known:
        said = f"There is no source {name!r}" if name else f"{path} has several sources"
        raise ConfigError(f"{said}; name one of {', '.join(known)} with --source.")
    return name, known[name]
