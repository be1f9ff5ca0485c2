"""`rivet plan`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rivet_assets.cli.options import CONFIG, JSON, NAMES, PARAM, load, say, windows, windows_asked_for

if TYPE_CHECKING:
    from rivet_assets.plan.planner import UnsealedPlan


@click.command("plan", short_help="Show what a run would do; -o keeps it for `rivet apply`.")
@CONFIG
@NAMES
@windows
@click.option("-o", "--output", "output", type=click.Path(path_type=Path), help="write the sealed plan to this file")
@click.option("--expires", default="24h", show_default=True, metavar="TIME", help="how long it may be applied: 30m, 2d")
@click.option("--annotate-waves", "is_annotating", is_flag=True, help="write `wave: N` into the YAML, nothing else")
@PARAM
@JSON
def plan_command(
    path: Path, names: Sequence[str], partitions: Sequence[str], ranges: Sequence[str], output: Path | None,
    expires: str, is_annotating: bool, params: Sequence[str], as_json: bool,
) -> int:  # fmt: skip
    """Show what a run would do, without reading a row; with -o, as a file that `rivet apply` runs."""
    from rivet_assets.cli.terminal import show  # start
    from rivet_assets.plan import artefact as plan_artefact  # start
    from rivet_assets.plan import report as plan_report  # start
    from rivet_assets.plan.fingerprint import config_fingerprint  # start
    from rivet_assets.plan.planner import plan_exports  # start
    from rivet_resources.errors import WORST_FIRST  # start

    keys = windows_asked_for(partitions, ranges)
    config = load(path, params)
    pairs = dict(text.split("=", 1) for text in params)
    planned = plan_exports(config, names=names, partitions=keys, params=pairs, lifetime=_lifetime(expires))
    show(plan_report.render(planned.artefact, planned.unplanned), err=as_json)
    if planned.unplanned:  # half a plan is neither written nor applied
        raise min(
            (missing.error for missing in planned.unplanned), key=lambda error: WORST_FIRST.index(error.exit_code)
        )
    if is_annotating:
        _annotate(path, planned)
    if as_json or output:
        # Of the file with its new waves, which change no export.
        artefact = planned.artefact.model_copy(update={"config_fingerprint": config_fingerprint(config)})
        document = plan_artefact.seal(artefact)
        if as_json:
            click.echo(json.dumps(document, indent=2, ensure_ascii=False))
        if output:
            plan_artefact.write(output, document)
            say(f"\nTo run exactly this until {artefact.expires_at:%Y-%m-%d %H:%M} UTC: rivet apply {output}")
    return 0


def _annotate(path: Path, planned: UnsealedPlan) -> None:
    from rivet_assets.plan.annotate_waves import annotate  # start

    waves = {entry.export_name: entry.prioritization.wave for entry in planned.artefact.exports}
    changed = annotate(path, waves)
    say(f"\n{path}: wave written for {', '.join(changed)}" if changed else f"\n{path}: every wave stands there already")


def _lifetime(text: str) -> timedelta:
    from pydantic_core import PydanticCustomError  # start

    from rivet_assets.blocks.export_values import parse_duration  # start

    try:
        seconds = parse_duration(text)
    except PydanticCustomError as error:
        raise click.UsageError(f"--expires {text!r} {error}") from error
    assert isinstance(seconds, int)
    return timedelta(seconds=seconds)
