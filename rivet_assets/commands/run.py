"""`rivet run`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rivet_assets.commands.common import CONFIG, JSON, NAMES, PARAM, load, say

if TYPE_CHECKING:
    from rivet_assets.recorder import News, Watch
    from rivet_assets.report import Outcome


@click.command("run")
@CONFIG
@NAMES
@click.option("--partition", "partitions", multiple=True, metavar="KEY", help="a window of time, such as 2026-01-31")
@click.option("--partition-range", "ranges", multiple=True, metavar="A...B", help="windows from A to B, both included")
@PARAM
@JSON
@click.option("--validate", is_flag=True, help="accepted for old scripts: every part is always read back")
@click.option("-v", "--verbose", is_flag=True, help="also the log lines of the run, and tracebacks")
def run_command(
    path: Path, names: Sequence[str], partitions: Sequence[str], ranges: Sequence[str],
    params: Sequence[str], as_json: bool, validate: bool, verbose: bool,
) -> int:  # fmt: skip
    """Run exports now; the summary goes to stderr."""
    from rivet_assets import report
    from rivet_assets.run import run_exports

    for text in ranges:
        if "..." not in text:
            raise click.UsageError(f"--partition-range {text!r} has no '...' between its two windows")
    config = load(path, params)
    outcomes = run_exports(config, names=names, partitions=[*partitions, *ranges], watch=_progress(verbose))
    _summarise(outcomes, verbose=verbose)
    if as_json:
        click.echo(json.dumps(report.document(outcomes), indent=2))
    return report.worst_exit_code(outcomes)


def _progress(verbose: bool) -> Watch:
    def tell(news: News) -> None:
        if news.what == "committed":
            say(f"  {news.export} {news.window} committed" if news.window else f"  {news.export} committed")
        elif news.what == "failed":
            say(f"  {news.export} failed")
        elif verbose and news.what == "note":
            say(f"  {news.export}: {news.text}")

    return tell


def _summarise(outcomes: Sequence[Outcome], *, verbose: bool) -> None:
    from rivet_assets import report

    for outcome in outcomes:
        say("\n" + report.block(outcome))
        if verbose and outcome.traceback:
            say(outcome.traceback)
    if len(outcomes) > 1:
        say("\n" + report.table(outcomes))
