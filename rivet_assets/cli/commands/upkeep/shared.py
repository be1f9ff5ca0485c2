"""What `rivet compact` and `rivet retain` share: options, the walk over exports, printing.

Belongs here: whatever both do alike. Not here: which exports have something to do, and the words for it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rivet_assets.cli.commands.reconcile import each_by_itself, worst
from rivet_assets.cli.options import CONFIG, JSON, NAMES, PARAM, Command, load, say

if TYPE_CHECKING:
    from rivet_assets.blocks.export import Export
    from rivet_assets.config.load import RivetConfig


def read_grace(_: click.Context, __: click.Parameter, given: str) -> timedelta:
    """Read how long replaced files stay.

    Raises:
        BadParameter: it is no duration.
    """
    from pydantic_core import PydanticCustomError  # start

    from rivet_assets.blocks.export_values import parse_duration  # start

    try:
        return timedelta(seconds=int(str(parse_duration(given))))
    except PydanticCustomError as error:
        raise click.BadParameter(f"{given!r} {error.message()}") from None


DRY_RUN = click.option("--dry-run", "is_dry", is_flag=True, help="only say what would happen, in files and bytes")
GRACE = click.option(
    "--grace", default="24h", show_default=True, callback=read_grace, metavar="DURATION",
    help="how long replaced files stay for readers in mid-scan",
)  # fmt: skip


def upkeep_options(command: Command) -> Command:
    """Add the options of both commands, and the context."""
    return CONFIG(NAMES(PARAM(DRY_RUN(GRACE(JSON(click.pass_context(command)))))))  # type: ignore[return-value]


def look_after(
    context: click.Context, key: str, work: Callable[..., Any], lines: Callable[[Any], list[str]], *, path: Path,
    names: Sequence[str], params: Sequence[str], is_dry: bool, grace: timedelta, as_json: bool,
) -> int:  # fmt: skip
    """Do the work for each export by itself and print what was done; the worst exit code of all.

    Args:
        key: of the exports that are looked after when none is named.
        work: takes an export, `state`, `tell`, `is_dry` and `grace`; returns what was done, with an `exit_code`.
    """
    from rivet_assets.run.admit.scope import state_of  # start

    config = load(path, params)
    exports = _exports_with(config, names, key)
    state = state_of(config)
    done, faults = each_by_itself(
        context, exports, lambda export: work(export, state=state, tell=lambda line: None, is_dry=is_dry, grace=grace)
    )
    _print_done(done, lines, is_dry=is_dry, as_json=as_json)
    return worst([*(each.exit_code for each in done), *(fault.exit_code for fault in faults)])


def _exports_with(config: RivetConfig, names: Sequence[str], key: str) -> list[Export]:
    """Return the exports of these names, or all that have a key."""
    if names:
        return [config.export(name) for name in dict.fromkeys(names)]
    found: list[Export] = [export for export in config.exports if getattr(export, key) is not None]
    if not found:
        say(f"no export has `{key}:`; nothing to do")
    return found


def _print_done(done: Sequence[Any], lines: Callable[[Any], list[str]], *, is_dry: bool, as_json: bool) -> None:
    """Print what was done, or would be, as lines or as JSON."""
    if as_json:
        document: dict[str, Any] = {"dry_run": is_dry, "exports": [asdict(each) for each in done]}
        click.echo(json.dumps(document, indent=2))
        return
    for each in done:
        click.echo("\n".join(lines(each)))


def removed_lines(done: Any) -> list[str]:
    """Return what is told of files that were replaced before."""
    verb = "would be removed" if done.is_dry else "removed"
    lines = [f"{done.export}: {done.removed} replaced files {verb}"] if done.removed else []
    return lines + ([f"{done.export}: {done.waiting} replaced files wait for their grace"] if done.waiting else [])
