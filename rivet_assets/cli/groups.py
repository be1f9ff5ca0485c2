"""A group of commands whose help is whole at any width.

Belongs here: what the groups of the command line share. Not here: which commands there are (`main.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import click

WHOLE = 1000  # characters of a command's first sentence: all of them


class CommandGroup(click.Group):
    """A group whose help names each command on whole lines; click's own cuts them."""

    def headings(self, context: click.Context) -> Mapping[str, Iterable[str]]:
        """Return the names of the commands by the heading they stand under."""
        return {"Commands": self.list_commands(context)}

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands under their headings."""
        rows = {name: self.get_command(context, name) for name in self.list_commands(context)}
        width = max(map(len, rows))
        for heading, names in self.headings(context).items():
            with formatter.section(heading):
                found = [(name, command) for name in names if (command := rows[name]) and not command.hidden]
                formatter.write_dl([(f"{name:<{width}}", each.get_short_help_str(WHOLE)) for name, each in found])
