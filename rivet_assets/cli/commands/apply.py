"""`rivet apply`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rivet_assets.cli.options import JSON, PARAM, load, say

if TYPE_CHECKING:
    from rivet_assets.launch.apply_plan import AppliedPlan


@click.command("apply", short_help="Run exactly what a plan says, if it still holds.")
@click.argument("plan_file", metavar="PLAN", type=click.Path(path_type=Path))
@click.option("-c", "--config", "path", type=click.Path(path_type=Path), help="the YAML; default: that of the plan")
@click.option("--force", is_flag=True, help="although it is old, or the world has changed; recorded")
@click.option("--pool", type=click.IntRange(min=1), metavar="N", help="so many exports at once, without waves")
@PARAM
@JSON
@click.pass_context
def apply_command(
    context: click.Context, plan_file: Path, path: Path | None, force: bool, pool: int | None,
    params: Sequence[str], as_json: bool,
) -> int:  # fmt: skip
    """Run exactly what a plan says, after proving that it still holds; exit codes as of `rivet run`, 4 for drift."""
    from rivet_assets.cli.live import Screen  # start
    from rivet_assets.cli.terminal import summarise  # start
    from rivet_assets.launch import outcome as report  # start
    from rivet_assets.launch.apply_plan import apply_plan, config_of  # start
    from rivet_assets.launch.finish import close, tell_people  # start
    from rivet_assets.launch.outcome_of_run import safe_error  # start
    from rivet_assets.plan import artefact as plan_artefact  # start

    artefact = plan_artefact.read(plan_file)
    config = load(config_of(artefact, path), params)
    with Screen().showing() as screen:
        applied = apply_plan(config, artefact, watch=screen, force=force, pool=pool)
    about = _about(applied)
    outcomes = close(config, applied.outcomes, context=about, tell=say)
    for text in applied.warnings:
        say(f"warning: {text}")
    summarise(outcomes)
    tell_people(config, outcomes, tell=say)
    if as_json:
        click.echo(json.dumps({**about, **report.document(outcomes)}, indent=2, default=str))
    worst = report.worst(outcomes)
    if worst is not None and context.obj is not None:
        context.obj.failed(safe_error(worst), worst.code, worst.exit_code)
    return report.worst_exit_code(outcomes)


def _about(applied: AppliedPlan) -> dict[str, Any]:
    """Name the plan, and what was forced, as summaries do."""
    forced = [{"export": gate.export, "gate": gate.name, "text": gate.text} for gate in applied.forced]
    return {"plan_id": applied.plan_id, "forced": forced, "warnings": list(applied.warnings)}
