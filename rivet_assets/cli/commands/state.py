"""`rivet state …`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import click

from rivet_assets.cli.groups import CommandGroup
from rivet_assets.cli.options import CONFIG, JSON, NAME, PARAM, known_names, load, print_rows, say


@click.group("state", cls=CommandGroup)
def state_group() -> None:
    """What Rivet remembers: cursors, files. The manifests are the truth."""


@state_group.command("show", short_help="Show each export's cursor or log position, and its last run.")
@CONFIG
@PARAM
@JSON
def state_show(path: Path, params: Sequence[str], as_json: bool) -> int:
    """Show each export's cursor, or position in a log, and its last run."""
    from rivet_assets.modes.by_shard import chains_of  # start
    from rivet_assets.run.admit.scope import state_of  # start
    from rivet_assets.run.reset import standing  # start

    config = load(path, params)
    state = state_of(config)
    rows = []
    for export in (each for written in config.exports for each in chains_of(written)):
        last = next(iter(state.runs(export.name, last=1)), None)
        rows.append({
            "export": export.name,
            "cursor": standing(config, export, state=state),
            "last run": last.started_at if last else None,
            "status": last.status if last else "never ran",
            "rows": last.total_rows if last else None,
        })  # fmt: skip
    return print_rows(rows, as_json=as_json)


@state_group.command("files")
@CONFIG
@PARAM
@NAME
@click.option("--last", default=50, show_default=True, help="how many, newest first")
@JSON
def state_files(path: Path, params: Sequence[str], name: str | None, last: int, as_json: bool) -> int:
    """List published files, newest first."""
    from rivet_assets.modes.by_shard import chains_of  # start
    from rivet_assets.run.admit.scope import state_of  # start

    config = load(path, params)
    kept = [each.name for each in chains_of(config.export(name))] if name else [None]
    state = state_of(config)
    files = [file for each in kept for file in state.files(each, last)]
    if len(kept) > 1:
        files = sorted(files, key=lambda file: file.created_at, reverse=True)[:last]
    return print_rows([asdict(file) for file in files], as_json=as_json)


@state_group.command("progression", short_help="Show how far each export is committed, and verified.")
@CONFIG
@PARAM
@NAME
@JSON
def state_progression(path: Path, params: Sequence[str], name: str | None, as_json: bool) -> int:
    """Show how far each export has committed, and how far that is verified."""
    from rivet_assets.modes.by_shard import chains_of  # start
    from rivet_assets.prove.progression import progression  # start
    from rivet_assets.run.admit.scope import state_of  # start

    config = load(path, params)
    state = state_of(config)
    exports = [each for written in ([config.export(name)] if name else config.exports) for each in chains_of(written)]
    return print_rows([asdict(progression(config, each, state=state)) for each in exports], as_json=as_json)


@state_group.command("chunks", short_help="List unfinished windows and their finished chunks.")
@CONFIG
@PARAM
@NAME
@JSON
def state_chunks(path: Path, params: Sequence[str], name: str | None, as_json: bool) -> int:
    """List unfinished windows whose finished chunks the next run will keep."""
    from rivet_assets.modes.by_shard import chains_of  # start
    from rivet_assets.run.admit.scope import state_of  # start

    config = load(path, params)
    state = state_of(config)
    exports = [each for written in ([config.export(name)] if name else config.exports) for each in chains_of(written)]
    rows = [asdict(found) for each in exports for found in state.chunk_progress(each.name)]
    if not as_json:
        rows = [{**row, "run_ids": ", ".join(row["run_ids"])} for row in rows]
    return print_rows(rows, as_json=as_json)


@state_group.command("reset", short_help="Forget an export's cursor: its next run starts anew.")
@CONFIG
@PARAM
@click.option("-e", "--export", "name", required=True, metavar="NAME", shell_complete=known_names)
def state_reset(path: Path, params: Sequence[str], name: str) -> int:
    """Forget an export's cursor: its next run starts from the beginning and replaces what is there."""
    from rivet_assets.run.admit.scope import state_of  # start

    config = load(path, params)
    from rivet_assets.config.by_source import export_kept_as  # start
    from rivet_assets.run.reset import forget  # start

    forget(config, export_kept_as(config, name), state=state_of(config))
    say(f"{name}: the cursor is reset; the next run starts from the beginning and replaces its windows")
    return 0


@state_group.command("rebuild")
@CONFIG
@PARAM
@NAME
def state_rebuild(path: Path, params: Sequence[str], name: str | None) -> int:
    """Fill the store again from the manifests at the destinations."""
    from rivet_assets.config.by_source import export_kept_as  # start
    from rivet_assets.run.admit.scope import state_of  # start
    from rivet_resources.commit.chain import resolve_boundary, resolve_cursor  # start
    from rivet_resources.commit.manifest import current_manifests  # start

    config = load(path, params)
    state = state_of(config)
    for export in [export_kept_as(config, name)] if name else config.exports:
        for folder in export.folders():
            root = export.destination.root(folder)
            if not root.keeps_manifests:
                say(f"{folder}: writes to a stream, which has no manifests")
                continue
            manifests = current_manifests(root)
            # A position in a log is kept in its checkpoint; manifests cannot prove that nothing came after them.
            cursor = None if export.answers.follows_log else resolve_cursor(manifests)
            boundary = resolve_boundary(manifests) if export.answers.keeps_boundary else None
            state.rebuild(folder, manifests.values(), cursor=cursor, boundary=boundary)
            files = sum(len(manifest.parts) for manifest in manifests.values())
            say(f"{folder}: {len(manifests)} manifests, {files} files, cursor {cursor or '–'}")
    return 0
