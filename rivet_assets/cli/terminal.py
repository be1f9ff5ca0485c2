"""Reports and tables where they are read: styled and folded to the width of a terminal, as plain lines elsewhere.

Belongs here: when to style, and the styles. Not here: what is told (`run/report.py`), live lines (`live.py`).

`rich` knows NO_COLOR, FORCE_COLOR, the width and the colours of a terminal. It is imported for a terminal, or where
FORCE_COLOR asks for colours, and nowhere else: a run in a pipe does not wait for it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, TextIO

import click

from rivet_assets.run.report import Report, Table

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table as Grid

    from rivet_assets.launch.outcome import Outcome

STYLES = {"": "", "ok": "green", "warn": "yellow", "fail": "bold red"}
UNFOLDED = 1_000_000  # columns of a pipe


def is_terminal(stream: TextIO) -> bool:
    """Return whether a stream is a terminal that knows escapes."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def console_of(stream: TextIO) -> Console:
    """Return rich's way to write on a stream, with nothing highlighted that is not styled here."""
    from rich.console import Console  # start

    width = None if stream.isatty() else UNFOLDED
    # Texts may hold [brackets] and :words:, which rich takes for styles and emoji.
    return Console(file=stream, width=width, highlight=False, markup=False, emoji=False)


def show(told: Report | Table, *, err: bool = False) -> None:
    """Print a report or a table on stdout, or on stderr."""
    stream = sys.stderr if err else sys.stdout
    if not (is_terminal(stream) or os.environ.get("FORCE_COLOR")):
        click.echo(str(told), err=err)
    elif isinstance(told, Table):
        console_of(stream).print(_grid(told))
    else:
        _print_report(console_of(stream), told)


def summarise(outcomes: Sequence[Outcome], *, quiet: bool = False, verbose: bool = False) -> None:
    """Print how each export ended, and of several a table, on stderr; `quiet` leaves out what went well."""
    from rivet_assets.launch import outcome as report  # start

    for outcome in outcomes:
        if not quiet or outcome.exit_code:
            click.echo(err=True)
            show(report.block(outcome), err=True)
        if verbose and outcome.traceback:
            click.echo(outcome.traceback, err=True)
    if len(outcomes) > 1 and not quiet:
        click.echo(err=True)
        show(report.table(outcomes), err=True)


def _print_report(console: Console, report: Report) -> None:
    from rich.padding import Padding  # start
    from rich.table import Table as Grid  # start
    from rich.text import Text  # start

    for number, section in enumerate(report.sections):
        if number and section.apart:
            console.print()
        if section.title:
            console.print(
                Text(" " * section.indent + section.title, f"bold {STYLES[section.severity]}"), soft_wrap=True
            )
        for row in section.rows:
            margin = report.margin(row, section)
            grid = Grid.grid()
            grid.add_column(width=len(margin), no_wrap=True)
            grid.add_column(overflow="fold")
            grid.add_row(Text(margin, STYLES[row.severity]), Text(row.text))
            console.print(grid)
            if row.fix:  # on one line, however long: it is there to be pasted
                empty = report.margin(row, section, is_empty=True)
                console.print(Text(f"{empty}→ {row.fix}", "cyan"), soft_wrap=True)
        if section.table is not None:
            console.print(Padding(_grid(section.table), (0, 0, 0, section.indent + 4)))
    if report.total:
        console.print(Text(f"\n{report.total}", "bold"), soft_wrap=True)


def _grid(table: Table) -> Grid:
    from rich import box  # start
    from rich.table import Table as Grid  # start
    from rich.text import Text  # start

    grid = Grid(
        box=box.SIMPLE_HEAD if table.rule else None,
        show_header=bool(table.headings),
        pad_edge=False,
        padding=(0, 2, 0, 0),
    )
    for column in range(len(table.headings or table.rows[0])):
        heading = Text(table.headings[column]) if table.headings else ""
        grid.add_column(heading, overflow="fold", justify="right" if column in table.numbers else "left")
    for row in table.rows:
        grid.add_row(*map(Text, row))
    return grid
