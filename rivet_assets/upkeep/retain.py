"""Drop the windows of exports that are older than their `keep:` says, and end what was dropped before.

Belongs here: which folders, under which lease, what a mirror still needs. Not here: which windows are too old
(`rivet_resources/upkeep/retain.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING

from rivet_assets.blocks.upkeep import retention_of
from rivet_assets.modes.by_shard import chains_of
from rivet_assets.modes.cdc import drain_of
from rivet_assets.upkeep.places import (
    GRACE,
    Folder,
    UpkeepRefused,
    at_today,
    held,
    lease_key,
    read_folder,
    run_ids,
    sweep_folder,
    worst_of,
)
from rivet_resources.commit.manifest import Manifest, window_manifest
from rivet_resources.commit.publish import Step, no_hook
from rivet_resources.contracts.extract import Window
from rivet_resources.errors import RivetError, WindowBusy, WindowTaken
from rivet_resources.upkeep.retain import RetainSite, drop, outdated_windows
from rivet_resources.upkeep.sweep import RetiredFiles

if TYPE_CHECKING:
    from rivet_assets.blocks.export import Export
    from rivet_resources.state.store import State


@dataclass(frozen=True)
class DroppedWindow:
    """A window that goes, or that another run holds."""

    folder: str
    window: str
    rows: int
    parts: int
    bytes: int
    is_dropped: bool = False
    text: str = ""
    code: str = ""
    exit_code: int = 0


@dataclass(frozen=True)
class RetainedExport:
    """What went, or would go, of one export."""

    export: str
    is_dry: bool
    windows: tuple[DroppedWindow, ...] = ()
    removed: int = 0  # files of what was dropped before, and whose time has come
    waiting: int = 0

    @property
    def exit_code(self) -> int:
        """Answer the worst of what failed; what another run holds is no failure."""
        return worst_of(each.exit_code for each in self.windows)


def retain_export(
    export: Export,
    *,
    state: State,
    tell: Callable[[str], None],
    is_dry: bool = False,
    grace: timedelta = GRACE,
    step: Step = no_hook,
    now: datetime | None = None,
) -> RetainedExport:
    """Drop what is older than the export's `keep:` says, and remove the files of what was dropped before.

    Args:
        is_dry: only say what would go; nothing is written, and no lease is taken.
        grace: how long the files of what is dropped stay for those who are reading them.

    Raises:
        UpkeepRefused: it has no `keep:`, or writes to a stream.
        WindowBusy: a run holds the export.
        ManifestUnreadable, DestinationError, StateError
    """
    if export.keep is None:
        raise UpkeepRefused(
            f"Export {export.name} has no `keep:`. Add how many windows stay, such as `keep: 30`, or how old they may "
            f"get, such as `keep: 90d`."
        )
    if export.is_apart:
        alike = partial(retain_export, state=state, tell=tell, is_dry=is_dry, grace=grace, step=step, now=now)
        return _joined(export, [alike(each) for each in chains_of(export)], is_dry=is_dry)
    ours, ids = at_today(export), run_ids(export)
    found: list[DroppedWindow] = []
    swept = RetiredFiles()
    whole = lease_key(ours)
    with held(ours, state, ids, is_dry=is_dry) as prove_lease:
        for name in ours.folders():
            one, folder = sweep_folder(ours, read_folder(ours, name), state, is_dry=is_dry)
            outdated = outdated_windows(
                folder.current, retention_of(export.keep), now=now or datetime.now(UTC), there=folder.there,
                applied=applied_to(ours, name),
            )  # fmt: skip
            mine = _Retaining(ours, folder, state, ids, grace, prove_lease, step)
            done = [_described(folder, each) for each in outdated] if is_dry else mine.carry_out(outdated, whole)
            for each in done:
                tell(f"{name} {each.window}: {each.text}")
            found += done
            swept += one
            # The first look was before windows were dropped; without a grace, their files go now.
            if not grace and not is_dry:
                swept += sweep_folder(ours, read_folder(ours, name), state, is_dry=False, mine=next(ids))[0]
    if dropped := [each.window for each in found if each.is_dropped]:
        state.note_action("retain", export.name, {"windows": ", ".join(dropped)})
    return RetainedExport(export.name, is_dry, tuple(found), swept.removed, swept.waiting)


def _joined(export: Export, parts: Sequence[RetainedExport], *, is_dry: bool) -> RetainedExport:
    """Join what became of the shards of an export, each of which has a folder of its own."""
    done = tuple(each for part in parts for each in part.windows)
    removed, waiting = sum(part.removed for part in parts), sum(part.waiting for part in parts)
    return RetainedExport(export.name, is_dry, done, removed, waiting)


def applied_to(export: Export, folder: str) -> str | None:
    """Return the position up to which each mirror and history of a folder holds its changes; None: it has none.

    '' where one of them does not exist yet, or cannot be told: then no change may go.
    """
    drain = drain_of(export)
    if drain is None or not drain.apply:
        return None
    reached = []
    for kind in drain.apply:
        found = window_manifest(export.destination.root(f"{folder}_{kind}"), Window("all"))
        reached.append(found[0].applied.high if found and found[0].applied else "")
    # Positions sort as text, and '' before all of them.
    return min(reached)


@dataclass(frozen=True)
class _Retaining:
    """One folder whose old windows go."""

    export: Export
    folder: Folder
    state: State
    ids: Iterator[str]
    grace: timedelta
    prove_lease: Callable[[], None]
    step: Step

    def carry_out(self, windows: tuple[Manifest, ...], whole: str | None) -> list[DroppedWindow]:
        """Drop windows: together where one lease covers them, else each under its own."""
        if not windows:
            return []
        if whole is not None:
            return self._drop(windows, self.prove_lease, next(self.ids))
        done: list[DroppedWindow] = []
        gone: set[str] = set()
        for each in windows:
            run_id = next(self.ids)
            try:
                with self.state.lease(self.export.name, each.window, run_id) as lease:
                    told = self._drop((each,), lease.check, run_id, gone=gone)
            except WindowBusy as error:
                told = [_described(self.folder, each, fault=error)]
            gone |= {one.window for one in told if one.is_dropped}
            done += told
        return done

    def _drop(
        self, windows: tuple[Manifest, ...], prove: Callable[[], None], run_id: str, *, gone: set[str] | None = None
    ) -> list[DroppedWindow]:
        rest = {key: each for key, each in self.folder.current.items() if key not in (gone or ())}
        site = RetainSite(
            self.folder.root, run_id, datetime.now(UTC) + self.grace, prove_lease=prove, step=self.step
        )  # fmt: skip
        try:
            drop(windows, rest, site)
        except RivetError as error:
            return [_described(self.folder, each, fault=error) for each in windows]
        return [_described(self.folder, each, is_dropped=True) for each in windows]


def _described(
    folder: Folder, manifest: Manifest, *, is_dropped: bool = False, fault: RivetError | None = None
) -> DroppedWindow:
    what = f"{manifest.part_count} parts, {manifest.row_count} rows, {manifest.size_bytes} bytes"
    text = f"dropped, {what}" if is_dropped else f"would be dropped, {what}"
    is_left = isinstance(fault, WindowBusy | WindowTaken)
    return DroppedWindow(
        folder=folder.name, window=manifest.window, rows=manifest.row_count, parts=manifest.part_count,
        bytes=manifest.size_bytes, is_dropped=is_dropped, text=str(fault) if fault else text,
        code=fault.code if fault else "", exit_code=0 if fault is None or is_left else fault.exit_code,
    )  # fmt: skip
