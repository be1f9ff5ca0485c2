"""`rivet completions`."""

from __future__ import annotations

import click

SHELLS = ("bash", "zsh", "fish", "powershell")


@click.command("completions", short_help="Print the completion script of a shell.")
@click.argument("shell", type=click.Choice(SHELLS))
def completions_command(shell: str) -> int:
    """Print a completion script.

    For bash and zsh: `source <(rivet completions bash)`. For fish: `rivet completions fish | source`. For PowerShell:
    `rivet completions powershell | Out-String | Invoke-Expression`.
    """
    from click.shell_completion import get_completion_class  # start

    from rivet_assets.cli.main import commands  # start

    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(commands, {}, "rivet", "_RIVET_COMPLETE").source())
    return 0
