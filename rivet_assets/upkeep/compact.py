"""Compact the exports that ask for it: what would be joined, then joining it, one swap after another.

Belongs here: which folders, under which lease, what is told. Not here: what is worth joining
(`rivet_resources/upkeep/plan.py`), the effects (`rivet_resources/upkeep/compact.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Literal

from rivet_assets.modes.by_shard import chains_of
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
from rivet_resources.commit.publish import Step, no_hook
from rivet_resources.errors import RivetError, WindowTaken
from rivet_resources.upkeep.compact import CompactSite, compact
from rivet_resources.upkeep.plan import CompactPolicy, PlannedJoin, plan_joins
from rivet_resources.upkeep.sweep import RetiredFiles

if TYPE_CHECKING:
    from rivet_assets.blocks.export import Export
    from rivet_resources.state.store import State

Status = Literal["planned", "joined", "left", "failed"]


@dataclass(frozen=True)
class JoinedWindow:
    """What becomes, or became, of one join. `left`: another run has its windows, or committed one meanwhile."""

    folder: str
    window: str
    status: Status
    windows: int  # that are joined; 1: parts of one window
    parts: int  # small ones before
    parts_after: int
    bytes: int
    rows: int
    text: str = ""
    code: str = ""
    exit_code: int = 0


@dataclass(frozen=True)
class CompactedExport:
    """All joins of one export, and what earlier ones had left for readers."""

    export: str
    is_dry: bool
    joins: tuple[JoinedWindow, ...] = ()
    removed: int = 0  # files that were replaced before, and whose time has come
    waiting: int = 0  # files that wait for theirs

    @property
    def exit_code(self) -> int:
        """Answer the worst of what failed; what another run holds is no failure."""
        return worst_of(each.exit_code for each in self.joins)


def compact_export(
    export: Export,
    *,
    state: State,
    tell: Callable[[str], None],
    is_dry: bool = False,
    grace: timedelta = GRACE,
    step: Step = no_hook,
) -> CompactedExport:
    """Join what the export's `compact:` finds worth it, and remove what earlier compactions replaced.

    Args:
        is_dry: only say what would be joined; nothing is written, and no lease is taken.
        grace: how long what is replaced stays for those who are reading it.

    Raises:
        UpkeepRefused: it has no `compact:`, or writes to a stream.
        WindowBusy: a run holds the export.
        ManifestUnreadable, DestinationError, StateError
    """
    if export.compact is None:
        raise UpkeepRefused(f"Export {export.name} has no `compact:`. Add `compact: true`, or a block with its keys.")
    if export.is_apart:
        alike = partial(compact_export, state=state, tell=tell, is_dry=is_dry, grace=grace, step=step)
        return _joined(export, [alike(each) for each in chains_of(export)], is_dry=is_dry)
    ours, ids = at_today(export), run_ids(export)
    found: list[JoinedWindow] = []
    swept = RetiredFiles()
    whole = lease_key(ours)
    with held(ours, state, ids, is_dry=is_dry) as prove_lease:
        for name in ours.folders():
            one, folder = sweep_folder(ours, read_folder(ours, name), state, is_dry=is_dry)
            joins = plan_joins(folder.current, policy_of(ours, at=datetime.now(UTC)))
            mine = _Compacting(ours, folder, state, ids, grace, prove_lease, step, leases_each=whole is None)
            for join in joins:
                done = _planned(folder, join) if is_dry else mine.carry_out(join)
                tell(f"{name} {done.window}: {done.status}, {done.text}")
                found.append(done)
            swept += one
            # The first look was before the joins; without a grace, what they replaced goes now.
            if not grace and not is_dry:
                swept += sweep_folder(ours, read_folder(ours, name), state, is_dry=False, mine=next(ids))[0]
    if joined := [each.window for each in found if each.status == "joined"]:
        state.note_action("compact", export.name, {"windows": ", ".join(joined)})
    return CompactedExport(export.name, is_dry, tuple(found), swept.removed, swept.waiting)


def _joined(export: Export, parts: Sequence[CompactedExport], *, is_dry: bool) -> CompactedExport:
    """Join what became of the shards of an export, each of which has a folder of its own."""
    done = tuple(each for part in parts for each in part.joins)
    removed, waiting = sum(part.removed for part in parts), sum(part.waiting for part in parts)
    return CompactedExport(export.name, is_dry, done, removed, waiting)


def policy_of(export: Export, *, at: datetime) -> CompactPolicy:
    """Return what the export's `compact:` means at a time."""
    block = export.compact
    assert block is not None
    target = min(block.target, export.max_file_size or block.target)
    return CompactPolicy(target, block.min_parts, at - timedelta(seconds=block.older_than), export.format)


@dataclass(frozen=True)
class _Compacting:
    """One folder that is being compacted."""

    export: Export
    folder: Folder
    state: State
    ids: Iterator[str]
    grace: timedelta
    prove_lease: Callable[[], None]
    step: Step
    leases_each: bool

    def carry_out(self, join: PlannedJoin) -> JoinedWindow:
        """Join, under a lease of its own where windows have one each; a fault is told with its code."""
        told, run_id = _planned(self.folder, join), next(self.ids)
        try:
            with ExitStack() as stack:
                prove = self.prove_lease
                if self.leases_each:
                    prove = stack.enter_context(self.state.lease(self.export.name, join.head.window, run_id)).check
                site = CompactSite(
                    self.folder.root, self.export.destination, self.export.format_settings(), run_id,
                    until=datetime.now(UTC) + self.grace, prove_lease=prove, step=self.step,
                )  # fmt: skip
                manifest = compact(join, site, there=self.folder.there)
        except WindowTaken as error:
            return replace(told, status="left", text=str(error), code=error.code)
        except RivetError as error:
            status: Status = "left" if error.retry and error.code == "RIVET_WINDOW_BUSY" else "failed"
            exit_code = 0 if status == "left" else error.exit_code
            return replace(told, status=status, text=str(error), code=error.code, exit_code=exit_code)
        after = sum(part.size_bytes for part in manifest.parts)
        text = f"{_what(join)} became {told.parts_after} of {after} bytes"
        return replace(told, status="joined", text=text)


def _planned(folder: Folder, join: PlannedJoin) -> JoinedWindow:
    """Describe a join that was not made yet."""
    size = sum(part.size_bytes for part in join.replaced)
    return JoinedWindow(
        folder=folder.name,
        window=join.head.window,
        status="planned",
        windows=len(join.windows),
        parts=len(join.replaced),
        parts_after=len([group for group in join.groups if group.rows]),
        bytes=size,
        rows=sum(group.rows for group in join.groups),
        text=f"{_what(join)} would become {len(join.groups)}",
    )


def _what(join: PlannedJoin) -> str:
    size = sum(part.size_bytes for part in join.replaced)
    parts = f"{len(join.replaced)} parts of {size} bytes"
    return parts if len(join.windows) == 1 else f"{len(join.windows)} windows with {parts}"
