"""`rivet run`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import click

from rivet_assets.cli.options import CONFIG, JSON, NAMES, PARAM, load, say, windows, windows_asked_for

# Options of the original that mean nothing here, and what to do instead.
ELSEWHERE = {
    "--force": "nothing has to be forced: running a window again replaces it. To read finished chunks of a failed run "
    "again: rivet state reset -e NAME. To apply an old plan: rivet apply --force",
    "--parallel-exports": "exports of one run follow each other, each with many readers. To run several at once: "
    "rivet run --pool N, or Dagster with its pools",
    "--parallel-export-processes": "exports of one run follow each other, each with many readers. To run several at "
    "once: rivet run --pool N, or Dagster with its pools",
}


def _elsewhere(context: click.Context, option: click.Parameter, wanted: bool) -> None:
    """Report what to do instead.

    Raises:
        UsageError: the option was given.
    """
    if wanted:
        name = option.opts[0]
        raise click.UsageError(f"{name} is not needed: {ELSEWHERE[name]}.")


@click.command("run")
@CONFIG
@NAMES
@windows
@PARAM
@JSON
@click.option("--summary-output", type=click.Path(path_type=Path, dir_okay=False), help="the same JSON into a file")
@click.option("--validate", is_flag=True, help="then read the published parts back and compare with the manifests")
@click.option("--reconcile", is_flag=True, help="then count the source's rows against them too; implies --validate")
@click.option("--full-refresh", is_flag=True, help="begin anew; what is published stays until this run replaces it")
@click.option("--resume", is_flag=True, help="always on: finished chunks of a failed run are kept")
@click.option("--pool", type=click.IntRange(min=1), default=1, metavar="N", help="so many exports at once")
@click.option("--adopt", is_flag=True, help="go on though state or destination are of another database, or unproven")
@click.option("--force", is_flag=True, hidden=True, expose_value=False, callback=_elsewhere)
@click.option("--parallel-exports", is_flag=True, hidden=True, expose_value=False, callback=_elsewhere)
@click.option("--parallel-export-processes", is_flag=True, hidden=True, expose_value=False, callback=_elsewhere)
@click.option("-q", "--quiet", is_flag=True, help="no progress and no summary of what went well")
@click.option("-v", "--verbose", is_flag=True, help="also the log lines of the run, and tracebacks")
@click.pass_context
def run_command(
    context: click.Context, path: Path, names: Sequence[str], partitions: Sequence[str], ranges: Sequence[str],
    params: Sequence[str], as_json: bool, summary_output: Path | None, validate: bool, reconcile: bool, resume: bool,
    adopt: bool, full_refresh: bool, pool: int, quiet: bool, verbose: bool,
) -> int:  # fmt: skip
    """Run exports now; progress and summary go to stderr."""
    from rivet_assets.cli.live import Screen  # start
    from rivet_assets.cli.terminal import summarise  # start
    from rivet_assets.launch import outcome as report  # start
    from rivet_assets.launch.finish import close, tell_people  # start
    from rivet_assets.launch.outcome_of_run import safe_error  # start
    from rivet_assets.launch.run_exports import run_exports  # start
    from rivet_assets.launch.summary_files import write_summary  # start
    from rivet_assets.prove.prove_run import Proofs  # start
    from rivet_assets.run.admit.admission import ADOPT  # start

    keys = windows_asked_for(partitions, ranges)
    config = load(path, params)
    tags = {ADOPT: "true"} if adopt else {}
    options = {"full_refresh": True} if full_refresh else {}
    with Screen(quiet=quiet, verbose=verbose).showing() as screen:
        outcomes = run_exports(
            config, names=names, partitions=keys, watch=screen, tags=tags, options=options, pool=pool
        )
    proofs = Proofs(validate or reconcile, reconcile)
    outcomes = close(config, outcomes, proofs=proofs, tell=_warn if quiet else say)
    summarise(outcomes, quiet=quiet, verbose=verbose)
    if as_json:
        click.echo(json.dumps(report.document(outcomes), indent=2, default=str))
    if summary_output is not None:
        write_summary(summary_output, outcomes, tell=say)
    tell_people(config, outcomes, tell=say)
    worst = report.worst(outcomes)
    if worst is not None and context.obj is not None:
        context.obj.failed(safe_error(worst), worst.code, worst.exit_code)
    return report.worst_exit_code(outcomes)


def _warn(text: str) -> None:
    """Report what nobody asked not to hear."""
    if text.startswith("warning"):
        say(text)
