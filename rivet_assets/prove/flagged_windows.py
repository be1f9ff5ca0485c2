"""Which windows of an export want a repair, found now: rows that are not the source's, files that are not as committed.

Belongs here: joining the two looks. Not here: looking (`reconcile.py`, `validate.py`), reading a report of earlier
(`reconcile_report.py`), repairing (`repair.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from rivet_assets.modes.by_shard import chain_window, chains_asked
from rivet_assets.prove.reconcile import reconcile_export
from rivet_assets.prove.reconcile_report import Flagged, flagged_in, flagged_of
from rivet_assets.prove.reconcile_result import Depth, Reconciled
from rivet_assets.prove.validate import ValidationScope, validate_export
from rivet_assets.prove.validate_report import document

if TYPE_CHECKING:
    from rivet_assets.blocks.export import Export
    from rivet_assets.config.load import RivetConfig
    from rivet_resources.prove.flaws import Depth as FileDepth
    from rivet_resources.prove.flaws import Validated
    from rivet_resources.state.store import State

# How closely the files are looked at while the rows are: counting rows reads no file that was not found wrong before,
# comparing cells reads all.
FILE_DEPTHS: Mapping[Depth, FileDepth] = {"counts": "sample", "checksums": "full", "rows": "full"}


def find_flagged(
    config: RivetConfig,
    export: Export,
    *,
    depth: Depth,
    windows: Sequence[str] | None,
    state: State,
    tell: Callable[[str], None],
    seen: Callable[[Reconciled], None] = lambda _: None,
) -> tuple[Flagged, ...]:
    """Compare an export's windows with the source and with their files; each window that is wrong, once.

    Args:
        seen: is given what the comparison with the source found.

    Raises:
        ConfigError: no such window is committed.
        RivetError: whatever looking raises.
    """
    if export.is_apart:
        return _find_of_shards(config, export, depth=depth, windows=windows, state=state, tell=tell, seen=seen)
    folders = validate_export(
        export, ValidationScope(depth=FILE_DEPTHS[depth], windows=tuple(windows or ())), state=state
    )
    rows = reconcile_export(config, export, depth=depth, windows=windows, state=state, tell=tell)
    seen(rows)
    if depth == "counts":
        folders += _look_again(export, folders, state)
    return _joined(export, folders, flagged_of(rows))


def _joined(export: Export, folders: Sequence[Validated], of_rows: Iterable[Flagged]) -> tuple[Flagged, ...]:
    """Join what the files say with what the rows do: each window that is wrong, once."""
    found = {each.window: each for each in flagged_in(document([(export, folders)]))}
    for each in of_rows:
        found[each.window] = join_flags(found[each.window], each) if each.window in found else each
    return tuple(found.values())


def _find_of_shards(
    config: RivetConfig,
    export: Export,
    *,
    depth: Depth,
    windows: Sequence[str] | None,
    state: State,
    tell: Callable[[str], None],
    seen: Callable[[Reconciled], None],
) -> tuple[Flagged, ...]:
    """Look at the chain of each shard by itself; one whose database is away is told, and stops no other.

    Raises:
        RivetError: as `find_flagged`; of a database that is away only what its files say is known.
    """
    found: list[Flagged] = []
    rows = reconcile_export(config, export, depth=depth, windows=windows, state=state, tell=tell)
    seen(rows)
    for one, keys in chains_asked(export, windows):
        head = chain_window(one, "")
        folders = validate_export(
            one, ValidationScope(depth=FILE_DEPTHS[depth], windows=tuple(keys or ())), state=state
        )
        if depth == "counts":
            folders += _look_again(one, folders, state)
        of_rows = [
            replace(each, window=each.window.removeprefix(head))
            for each in flagged_of(rows)
            if each.window.startswith(head)
        ]
        found += [
            replace(each, export=export.name, window=f"{head}{each.window}") for each in _joined(one, folders, of_rows)
        ]
    return tuple(found)


def _look_again(export: Export, folders: Sequence[Validated], state: State) -> list[Validated]:
    """Look closely at the windows that this look passes, but of whose files `rivet validate` said that they are wrong.

    Otherwise a part of the right size with wrong bytes would be found by one command, and not by the one it recommends.
    """
    passed = {window.window: window.run_id for each in folders for window in each.windows if window.verdict == "match"}
    doubted = tuple(
        each.window
        for each in state.verifications(export.name, "validate")
        if each.verdict == "mismatch" and passed.get(each.window) == each.run_id
    )
    return validate_export(export, ValidationScope(depth="full", windows=doubted), state=state) if doubted else []


def join_flags(files: Flagged, rows: Flagged) -> Flagged:
    """Return what repairs both: the chunks of either, or the whole window where one of them needs it."""
    is_whole = not rows.chunks or not (files.parts or files.chunks or files.markers_only)
    return Flagged(
        rows.export,
        rows.window,
        rows.run_id,
        chunks=() if is_whole else rows.chunks,
        parts=() if is_whole else files.parts,
        reason="; ".join(filter(None, (files.reason, rows.reason))),
    )
