"""What the commands share: their options, reading the file, printing rows.

Belongs here: words of the command line that mean the same everywhere. Not here: any work.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from rivet_resources.errors import ConfigError

if TYPE_CHECKING:
    from rivet_assets.config.load import RivetConfig

Command = TypeVar("Command", bound=Callable[..., Any])

CONFIG = click.option(
    "-c", "--config", "path", default="rivet.yaml", show_default=True, type=click.Path(path_type=Path), help="the YAML"
)
PARAM = click.option(
    "-p", "--param", "params", multiple=True, metavar="KEY=VALUE", help="fills ${KEY}; before the environment"
)


def known_names(context: click.Context, _: click.Parameter, typed: str) -> list[str]:
    """Complete an export's name from the config, without checking it; nothing where it cannot be read."""
    from rivet_assets.config.yaml_document import YamlFault, read_yaml  # start: Pydantic, half a second

    try:
        document = read_yaml(Path(context.params.get("path") or "rivet.yaml").read_text(encoding="utf-8")).value
        names = [str(export["name"]) for export in document["exports"]]
    except (OSError, ValueError, LookupError, TypeError, YamlFault):
        return []
    return [name for name in names if name.startswith(typed)]


NAMES = click.option(
    "-e", "--export", "names", multiple=True, metavar="NAME", shell_complete=known_names,
    help="only this one; may be repeated",
)  # fmt: skip
NAME = click.option("-e", "--export", "name", metavar="NAME", shell_complete=known_names, help="only of this one")
KEY = click.option(
    "--partition", "partitions", multiple=True, metavar="KEY", help="only this window, such as 2026-01-31; or A...B"
)
RANGE = click.option(
    "--partition-range", "ranges", multiple=True, metavar="A...B", help="only the windows from A to B, both included"
)
# Its name in validate, reconcile and repair before 2026-11-23; one list with --partition.
WINDOW = click.option("--window", "partitions", multiple=True, metavar="KEY", hidden=True)
JSON = click.option("--json", "as_json", is_flag=True, help="one JSON document on stdout")


def windows(command: Command) -> Command:
    """Add `--partition` and `--partition-range`, alike in every command; `windows_asked_for` joins both."""
    return KEY(RANGE(WINDOW(command)))


def windows_asked_for(partitions: Sequence[str], ranges: Sequence[str]) -> tuple[str, ...]:
    """Return the windows that were asked for: keys, and ranges `A...B`.

    Raises:
        UsageError: a range has no two ends.
    """
    for text in ranges:
        if "..." not in text:
            raise click.UsageError(f"--partition-range {text!r} has no '...' between its two windows")
    return (*partitions, *ranges)


def load(path: Path, params: Sequence[str]) -> RivetConfig:
    """Load the config with its `-p KEY=VALUE`.

    Raises:
        ConfigError: every fault of the file.
    """
    from rivet_assets.config.load import load_config  # start

    pairs = {}
    for text in params:
        name, found, value = text.partition("=")
        if not found or not name:
            raise ConfigError(f"--param {name!r} has no '='; write -p KEY=VALUE.")
        pairs[name] = value
    config = load_config(path, params=pairs)
    for warning in config.warnings:
        say(f"warning: {warning}")
    return config


def say(text: str) -> None:
    """Print a line for people, on stderr."""
    click.echo(text, err=True)


def print_rows(rows: Sequence[dict[str, Any]], *, as_json: bool) -> int:
    """Print rows as a table, or as JSON; exit code 0."""
    if as_json:
        click.echo(json.dumps(list(rows), indent=2, default=str))
        return 0
    if not rows:
        say("nothing yet")
        return 0
    from rivet_assets.cli.terminal import show  # start
    from rivet_assets.run.report import Table  # start

    show(Table(list(rows[0]), [["–" if cell is None else str(cell) for cell in row.values()] for row in rows]))
    return 0
