"""`rivet reconcile`."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from rivet_assets.cli.options import CONFIG, JSON, NAMES, PARAM, load, say, windows, windows_asked_for
from rivet_resources.errors import ConfigError, RivetError

if TYPE_CHECKING:
    from rivet_assets.blocks.export import Export
    from rivet_assets.config.load import RivetConfig
    from rivet_assets.prove.reconcile_result import Depth

T = TypeVar("T")

DEPTHS = click.Choice(["counts", "checksums", "rows"])


@click.command("reconcile", short_help="Compare what is published with the source as it is now.")
@CONFIG
@NAMES
@PARAM
@windows
@click.option("--depth", type=DEPTHS, default="counts", show_default=True, help="numbers; every cell; which rows")
@click.option("--strict", is_flag=True, help="exit code 1 when something could not be told")
@JSON
@click.option("-o", "--output", type=click.Path(path_type=Path), metavar="FILE", help="write the JSON report there")
@click.pass_context
def reconcile_command(
    context: click.Context, path: Path, names: Sequence[str], params: Sequence[str], partitions: Sequence[str],
    ranges: Sequence[str],     depth: Depth, strict: bool, as_json: bool, output: Path | None,
) -> int:  # fmt: skip
    """Compare what is published with the source as it is now; exit code 3 when rows differ."""
    from rivet_assets.cli.terminal import show  # start
    from rivet_assets.config.selection import keys_of  # start
    from rivet_assets.prove import reconcile_report as report  # start
    from rivet_assets.prove.reconcile import reconcile_export  # start
    from rivet_assets.run.admit.scope import state_of  # start

    keys = windows_asked_for(partitions, ranges)
    config = load(path, params)
    exports = exports_of(config, names, keys)
    state = state_of(config)
    found, faults = each_by_itself(
        context,
        exports,
        lambda export: reconcile_export(
            config,
            export,
            depth=depth,
            windows=keys_of(config, export, keys) or None,
            state=state,
            tell=lambda line: None,
        ),
    )
    text = json.dumps(report.document(found), indent=2, default=str)
    if output is not None:
        try:
            output.write_text(text + "\n", encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"-o {output} cannot be written: {error.strerror}. Name a file in a folder.") from error
    if as_json:
        click.echo(text)
    else:
        show(report.render(found))
    code = report.exit_code(found, strict=strict)
    if not code and any(each.verdict == "unknown" for each in found):
        say("warning: not everything could be compared; --strict makes that exit code 1")
    return worst([code, *(fault.exit_code for fault in faults)])


def exports_of(config: RivetConfig, names: Sequence[str], keys: Sequence[str]) -> list[Export]:
    """Return the exports of these names, or all.

    Raises:
        ConfigError: there is no such export.
        UsageError: windows are named, of several exports.
    """
    exports = [config.export(name) for name in dict.fromkeys(names)] or list(config.exports)
    if keys and len(exports) > 1:
        raise click.UsageError("--partition belongs to one export here; name it with -e")
    return exports


def each_by_itself(
    context: click.Context, exports: Sequence[Export], work: Callable[[Export], T]
) -> tuple[list[T], list[RivetError]]:
    """Do the work for each export; one that fails is told and stops no other, unless it is the only one.

    Raises:
        RivetError: of the only export.
    """
    done, faults = list[T](), list[RivetError]()
    for export in exports:
        try:
            done.append(work(export))
        except RivetError as error:
            if len(exports) == 1:
                raise
            say(f"error: {export.name}: {error}")
            faults.append(error)
    if faults and context.obj is not None:
        first = faults[0]
        context.obj.failed(str(first), first.code, first.exit_code)
    return done, faults


def worst(codes: Sequence[int]) -> int:
    """Answer for all exports together."""
    from rivet_resources.errors import WORST_FIRST  # start

    return next((code for code in WORST_FIRST if code in codes), 0)
