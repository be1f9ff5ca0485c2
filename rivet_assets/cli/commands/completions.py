"""`rivet completions`."""

from __future__ import annotations

import click

SHELLS = ("bash", "zsh", "fish")


@click.command("completions")
@click.argument("shell", type=click.Choice(SHELLS))
def completions_command(shell: str) -> int:
    """Print a completion script, such as for `source <(rivet completions bash)`."""
    from click.shell_completion import get_completion_class

    from rivet_assets.cli.main import commands

    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(commands, {}, "rivet", "_RIVET_COMPLETE").source())
    return 0
