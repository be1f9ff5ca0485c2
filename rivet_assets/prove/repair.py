"""Export windows again that a report flagged, and nothing else: planned first, done only when told to.

Belongs here: which windows and chunks are read again, their gates, one after another. Not here: finding what differs
(`reconcile.py`, `validate.py`), reading a report (`reconcile_report.py`), the order of effects
(`prove/replace_chunks.py`, `commit/publish.py`).

A window of time, or a whole table, is committed as a run commits it. An incremental window is read between the same two
cursors and stays where it is in its chain; of a chunked table only the chunks that differ are read. The committed
cursor never moves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal, cast

import pyarrow as pa

from rivet_assets.modes.by_shard import chain_window, chains_of
from rivet_assets.modes.partitions import window_of
from rivet_assets.modes.protocol import Planning
from rivet_assets.modes.reread import Again, extract_chunks
from rivet_assets.prove.reconcile_report import Flagged, flagged_of
from rivet_assets.prove.reconcile_result import Reconciled
from rivet_assets.prove.replay_by_key import letters_by_key
from rivet_assets.run.attempt import WHOLE, Attempt, Site, attempt, new_run_id
from rivet_assets.run.judge.contract_rules import rules_of_export
from rivet_assets.run.judge.quality import QualityRule, Verdict, audit, blocks, refusal
from rivet_assets.run.schema_agreement import schema_gate
from rivet_resources.commit.manifest import Manifest, current_manifests, schema_of, window_manifest
from rivet_resources.commit.publish import Step, mark_success, no_hook, publish, sweep
from rivet_resources.contracts.extract import Extract, Staged, Window
from rivet_resources.contracts.messages import is_topic
from rivet_resources.contracts.parts import Measures
from rivet_resources.errors import WORST_FIRST, BoundsUnusable, GateRefused, RivetError, WindowBusy, WindowTaken
from rivet_resources.prove.add_rows import describe_added
from rivet_resources.prove.replace_chunks import can_mend_chunks, describe_mended, mend, stale_markers
from rivet_resources.shape.shape import schema_of as schema_now

if TYPE_CHECKING:
    from rivet_assets.blocks.contract import Contract
    from rivet_assets.blocks.export import Export, Quality
    from rivet_assets.config.load import RivetConfig
    from rivet_assets.run.attempt import Tell
    from rivet_resources.contracts.destination import Root
    from rivet_resources.read.stage import Exporter
    from rivet_resources.state.store import State

Status = Literal["planned", "repaired", "stale", "failed"]


# Rules that are known from each chunk's rows and NULLs.
JUDGED_IN_PART = ("row_count_min", "row_count_max", "null_ratio_max")


class RepairRefused(RivetError):
    """What is asked for cannot be repaired; the message says what helps instead."""

    code = "RIVET_REPAIR_REFUSED"


@dataclass(frozen=True)
class RepairedWindow:
    """What becomes, or became, of one flagged window. `rows` and `bytes`: planned, of the parts that go; then read."""

    window: str
    status: Status
    chunks: tuple[int, ...] = ()  # () for the whole window
    rows: int = 0
    bytes: int = 0
    text: str = ""
    run_id: str = ""
    code: str = ""
    exit_code: int = 0
    by_key: bool = False  # the rows of its dead letters alone are read again, where that gives the same window


@dataclass(frozen=True)
class Repaired:
    """All flagged windows of one export."""

    export: str
    execute: bool
    windows: tuple[RepairedWindow, ...] = ()
    healed: tuple[str, ...] = ()  # windows whose `manifest.json` and `_SUCCESS` a dead run had left behind

    @property
    def exit_code(self) -> int:
        """Answer the worst of what failed; 0 when all was repaired, or only planned."""
        codes = {each.exit_code for each in self.windows} - {0}
        return next((code for code in WORST_FIRST if code in codes), 0)


def repair_export(
    config: RivetConfig,
    export: Export,
    report: Reconciled | Sequence[Flagged],
    *,
    execute: bool,
    exporter: Exporter,
    state: State,
    tell: Tell,
    step: Step = no_hook,
) -> Repaired:
    """Plan the repair of an export's flagged windows, and carry it out when `execute`; a failed window stops no other.

    Args:
        report: a comparison just made, or what a report file flags; windows of other exports are passed over.
        step: told the name of each effect that begins (`mending.mend`, `commit.publish`).

    Raises:
        RepairRefused: the export is a stream of changes.
        ManifestUnreadable, StateError, DestinationError: nothing can be repaired.
    """
    if export.answers.no_repair:
        raise RepairRefused(f"Export {export.name}: {export.answers.no_repair.format(name=export.name)}.")
    flagged = flagged_of(report) if isinstance(report, Reconciled) else tuple(report)
    if export.is_apart:

        def repair(one: Export, mine: Sequence[Flagged]) -> Repaired:
            return repair_export(
                config, one, mine, execute=execute, exporter=exporter, state=state, tell=tell, step=step
            )

        return _repair_shards(export, flagged, repair, execute=execute)
    # A window that is empty by now replaces the old one too, whatever a run would do.
    today = export.destination.on(datetime.now(UTC).date())
    export = export.model_copy(update={"destination": today, "skip_empty": False})
    root = export.destination.root(export.name)
    if not root.keeps_manifests:
        raise RepairRefused(f"Export {export.name} writes to {root.uri}, a stream, which keeps nothing to repair.")
    if is_topic(export.destination):
        raise RepairRefused(
            f"Export {export.name} writes to {root.uri}, and what was produced cannot be replaced. Run its window "
            f"again with `on_rerun: append`, which adds a copy, or name another topic."
        )
    name, source = config.source_of(export)
    site = Site(export, name, source, exporter, state, root, tell, schemas=schema_gate(config, export, state))
    manifests = current_manifests(root)
    plans = [_plan(export, each, manifests) for each in flagged if each.export == export.name]
    if not execute:
        return Repaired(export.name, execute, tuple(plan.told for plan in plans))
    state.note_action("repair", export.name, {"windows": ", ".join(plan.told.window for plan in plans)})
    sweep(root, export=export.name, state=state)
    healed = _heal_markers(site, manifests)
    done = tuple(_carry_out(site, plan, step) for plan in plans)
    return Repaired(export.name, execute, done, healed)


def _repair_shards(
    export: Export,
    flagged: Sequence[Flagged],
    repair: Callable[[Export, Sequence[Flagged]], Repaired],
    *,
    execute: bool,
) -> Repaired:
    """Repair the chain of each shard by itself, as an export of its own."""
    windows: list[RepairedWindow] = []
    healed: list[str] = []
    for one in chains_of(export):
        if mine := _flagged_of_shard(one, flagged):
            done = repair(one, mine)
            windows += [replace(each, window=chain_window(one, each.window)) for each in done.windows]
            healed += [chain_window(one, each) for each in done.healed]
    return Repaired(export.name, execute, tuple(windows), tuple(healed))


def _flagged_of_shard(one: Export, flagged: Sequence[Flagged]) -> list[Flagged]:
    """Pick the flagged windows of one shard, whether a report names it by its folder or by the windows of the whole."""
    head = chain_window(one, "")
    return [
        replace(each, export=one.name, window=each.window.removeprefix(head))
        for each in flagged
        if each.export == one.name or (each.export == one.whole.name and each.window.startswith(head))
    ]


# --- planning ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Plan:
    """One flagged window, as it stands; `manifest` is None where nothing is to be read."""

    told: RepairedWindow
    manifest: Manifest | None = None


def _plan(export: Export, flagged: Flagged, manifests: dict[str, Manifest]) -> _Plan:
    """Decide what of a window is read again, by its manifest of now."""
    manifest = manifests.get(flagged.window)
    if manifest is None or (flagged.run_id and flagged.run_id != manifest.run_id):
        return _Plan(_stale(flagged.window, manifest))
    if flagged.markers_only:
        text = "only manifest.json and _SUCCESS are written anew; no row is read"
        return _Plan(RepairedWindow(flagged.window, "planned", text=text, run_id=manifest.run_id))
    numbers = _chunks(export, flagged, manifest)
    if numbers:
        chunks = [chunk for chunk in manifest.chunks if chunk.chunk in numbers]
        rows = sum(chunk.source_row_count for chunk in chunks)
        size = sum(part.size_bytes for part in manifest.parts if part.chunk in numbers)
        what = f"chunks {', '.join(map(str, numbers))} of {len(manifest.chunks)}"
    else:
        rows = manifest.source.extraction.source_row_count or manifest.row_count
        size, what = manifest.size_bytes, "all of it"
    text = f"{what} would be read again: {rows} rows, {size} bytes were exported"
    if flagged.by_key and manifest.quarantine is not None:
        letters = f"its {manifest.quarantine.rows} dead letters would be read again by their keys"
        text = f"{letters}, or where that is not enough, {what}: {rows} rows, {size} bytes were exported"
    planned = RepairedWindow(flagged.window, "planned", numbers, rows, size, text, manifest.run_id)
    return _Plan(replace(planned, by_key=flagged.by_key), manifest)


def _stale(window: str, now: Manifest | None) -> RepairedWindow:
    why = "is no longer there" if now is None else f"was committed anew by run {now.run_id}"
    return RepairedWindow(window, "stale", text=f"it {why} since the report; reconcile again")


def _chunks(export: Export, flagged: Flagged, manifest: Manifest) -> tuple[int, ...]:
    """Name the chunks to read again; () where the whole window must be."""
    numbers = set(flagged.chunks)
    for path in flagged.parts:
        # No chunk has the number -1, so `can_mend_chunks` says no, and the whole window is read.
        numbers |= {-1 if part.chunk is None else part.chunk for part in manifest.parts if part.path == path}
    form = export.format_settings()
    same_files = (form.type, form.codec) == (manifest.format, manifest.compression)
    if not export.answers.by_ranges or not same_files or not can_mend_chunks(manifest, numbers):
        return ()
    return tuple(sorted(numbers))


# --- carrying out --------------------------------------------------------------------------------


def _heal_markers(site: Site, manifests: Mapping[str, Manifest]) -> tuple[str, ...]:
    """Write `manifest.json` and `_SUCCESS` anew where a dead run left them behind; name the windows.

    Under the lease, and after a second look: a living run writes them by itself.
    """
    healed = []
    for stale in stale_markers(manifests, root=site.root):
        key = stale.window if site.export.has_partitions else WHOLE
        run_id = new_run_id(site.export.name, datetime.now(UTC))
        with suppress(WindowBusy), site.state.lease(site.export.name, key, run_id):
            for manifest in stale_markers(current_manifests(site.root), root=site.root):
                if manifest.window == stale.window:
                    mark_success(manifest, root=site.root)
                    healed.append(manifest.window)
    return tuple(healed)


def _carry_out(site: Site, plan: _Plan, step: Step) -> RepairedWindow:
    """Repair one window; a fault is told with its code."""
    told = plan.told
    if told.status == "stale" or plan.manifest is None:
        return told if told.status == "stale" else replace(told, status="repaired")
    try:
        found = window_manifest(site.root, Window(told.window))  # another repair may have been faster
        now = found[0] if found else None
        is_as_planned = now is not None and now.run_id == told.run_id
        done = _repair_window(site, plan.manifest, told, step) if is_as_planned else _stale(told.window, now)
    except RivetError as error:
        done = replace(told, status="failed", text=str(error), code=error.code, exit_code=error.exit_code)
    site.tell(f"{site.export.name} {done.window}: {done.status}, {done.text}")
    return done


def _repair_window(site: Site, manifest: Manifest, told: RepairedWindow, step: Step) -> RepairedWindow:
    """Read the window, or its chunks, again under its lease, judge, and swap.

    Raises:
        WindowBusy, WindowTaken, GateRefused: nothing was changed.
        RivetError: whatever reading and publishing raise.
    """
    window = window_of(site.export, Window(manifest.window).partition) if site.export.has_partitions else None
    again = Rereading(site.export, manifest, site.root, told.chunks, by_key=told.by_key)
    with attempt(replace(site, export=cast("Export", again)), window) as made:
        before = _with_lease_check(made, step)
        notes = _judge(site, made, again)
        if again.is_mended:
            describe = again.describe
            mend(made.staged, previous=manifest, root=site.root, state=site.state, describe=describe, step=before)
        else:
            publish(made.staged, root=site.root, state=site.state, step=before)
    staged = made.staged
    read = staged.measures.rows_read
    chunks = told.chunks if again.is_partial and not again.is_keyed else ()
    what = f"chunks {', '.join(map(str, chunks))}" if chunks else "all of it"
    if again.is_keyed and manifest.quarantine is not None:
        what = f"dead letters ({manifest.quarantine.rows}) by their keys"
        if gone := manifest.quarantine.rows - read:
            left = "is no longer a row" if gone == 1 else "are no longer rows"
            notes = (f"{gone} of them {left} of this window: deleted, or moved to another one", *notes)
    return replace(
        told, status="repaired", chunks=chunks, rows=read, bytes=sum(part.size_bytes for part in staged.parts),
        text="; ".join((f"{what} read again, {read} rows", *notes)), run_id=staged.extract.run_id,
        by_key=again.is_keyed,
    )  # fmt: skip


def _with_lease_check(made: Attempt, step: Step) -> Step:
    """Prove the lease before parts get their names, and again right before the swap."""

    def before(name: str) -> None:
        if name in ("parts", "manifest"):
            made.lease.check()
        step(name)

    return before


def _judge(site: Site, made: Attempt, again: Rereading) -> tuple[str, ...]:
    """Let the gates judge what the window will hold; notes on what they could not.

    Raises:
        GateRefused
    """
    verdicts, notes = made.verdicts, tuple[str, ...]()
    if again.is_partial:
        verdicts, notes = partial_verdicts(rules_of_export(site.export), again.describe(made.staged, again.manifest))
    if blocks(verdicts):
        raise GateRefused(refusal(site.export.name, again.manifest.window, verdicts))
    return notes


def partial_verdicts(rules: Sequence[QualityRule], manifest: Manifest) -> tuple[tuple[Verdict, ...], tuple[str, ...]]:
    """Judge a window of which some chunks were read again: rows and NULLs of all chunks are known, the rest is not."""
    judged = [rule for rule in rules if rule.kind in JUDGED_IN_PART]
    measures = Measures(rows=manifest.row_count, nulls=manifest.measures.nulls)
    left = [rule.column for rule in rules if rule.kind == "unique"]
    notes = [f"unique_columns ({', '.join(left)}) are only judged when the whole table is read"] if left else []
    others = [rule.name for rule in rules if rule not in judged and rule.kind not in ("unique", "rows_aside")]
    if others:
        notes.append(f"rules of the contract ({', '.join(others)}) are only judged when the whole is read")
    return audit(judged, measures, {}), tuple(notes)


# --- the export that is run ----------------------------------------------------------------------


@dataclass
class Rereading:
    """An export that reads one committed window again; in all else the export it is made of.

    `is_partial` is known once it was planned: where columns changed, chunks of two schemas cannot stand in one window,
    and the whole is read.
    """

    export: Export
    manifest: Manifest
    root: Root
    chunks: tuple[int, ...]
    by_key: bool = False  # the rows of dead letters alone are wanted, if that gives the same window
    is_partial: bool = field(default=False, init=False)
    is_keyed: bool = field(default=False, init=False)  # these rows alone are read

    def __getattr__(self, name: str) -> Any:
        return getattr(self.export, name)

    @property
    def quality(self) -> Quality | None:
        """Return the rules; a part of a window is judged with the rest of it (`partial_verdicts`)."""
        return None if self.is_partial else self.export.quality

    @property
    def contract(self) -> Contract | None:
        """Return the contract, as `quality`; rows that it sets aside are in no part."""
        contract = self.export.contract
        return contract.of_rows_set_aside() if self.is_partial and contract is not None else contract

    @property
    def max_errors(self) -> int | str | None:
        """Return how many rows may be refused; of dead letters alone all, as there were so many before."""
        return None if self.is_keyed else self.export.max_errors

    @property
    def describe(self) -> Callable[[Staged, Manifest], Manifest]:
        """Return what describes the window as it will be."""
        return describe_added if self.is_keyed else describe_mended

    @property
    def is_mended(self) -> bool:
        """Return whether its place in a chain, or its other chunks, must be kept."""
        return self.is_partial or self.export.answers.keeps_boundary

    def extract(self, planning: Planning) -> Extract:
        """Describe what is read again; asked under the lease.

        Raises:
            BoundsUnusable, UnknownColumn, SourceError
        """
        if self.by_key or self.chunks or self.is_mended:
            self._refuse_replaced()
        if self.by_key and (keyed := letters_by_key(self.export, planning, self.manifest, root=self.root)) is not None:
            self.is_partial = self.is_keyed = True
            return keyed
        if self.chunks and (partial := self._partial(planning)) is not None:
            self.is_partial = True
            return partial
        planning = replace(planning, windows=current_manifests(self.root))
        return cast(Again, self.export).again(planning, self.manifest)

    def _refuse_replaced(self) -> None:
        """See that readers still see this very commit: one that is hidden by now must not come back.

        Raises:
            WindowTaken
        """
        now = current_manifests(self.root).get(self.manifest.window)
        if now is None or now.run_id != self.manifest.run_id:
            raise WindowTaken(
                f"Window {self.manifest.window} of export {self.export.name} was committed anew, or replaced, since "
                f"the report. Reconcile again."
            )

    def _partial(self, planning: Planning) -> Extract | None:
        """Describe the chunks alone; None where only the whole will do."""
        contract = self.export.contract.of_rows_set_aside() if self.export.contract is not None else None
        plain = self.export.model_copy(update={"quality": None, "contract": contract, "profile": None})
        planning = replace(planning, clock=self.manifest.clock)  # beside chunks whose rows hold it
        try:
            extract = extract_chunks(plain, planning, self.manifest, set(self.chunks))
        except BoundsUnusable:
            return None
        return extract if _columns(schema_now(extract)) == _columns(schema_of(self.manifest)) else None


def _columns(schema: pa.Schema) -> list[tuple[str, str, bool]]:
    return [(each.name, str(each.type), each.nullable) for each in schema]
