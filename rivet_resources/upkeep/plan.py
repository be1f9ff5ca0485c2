"""Which committed windows and parts a compaction joins: a rule over manifests, without touching anything.

Belongs here: what may be joined and what is worth it. Not here: writing, proving and swapping (`compact.py`).

A window that a run may replace by itself (of a time, a value, a snapshot, all) is joined only within itself. Never
among them: the window at the end of the chain, which holds the position and which a run after a crash replaces; and the
first window of a log, by whose run its mirrors know their beginning.

"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from rivet_resources.commit.chain import ends_at, resolve_cursor, starts_at
from rivet_resources.commit.manifest import Manifest
from rivet_resources.commit.manifest_entries import Extraction, ManifestPart
from rivet_resources.contracts.extract import Window

START = Window.after(None).key
LOGS = ("cdc", "poll")  # strategies whose windows hold changes


@dataclass(frozen=True)
class CompactPolicy:
    """What is worth joining. `before`: windows that were committed since are left alone."""

    target_bytes: int
    min_parts: int
    before: datetime
    format: str = "parquet"  # of the export as it is now; parts of another one are left alone


@dataclass(frozen=True)
class PartGroup:
    """Parts that become one, in their order: of one schema, one chunk and one folder."""

    parts: tuple[ManifestPart, ...]
    schema_ipc: str  # base64

    @property
    def rows(self) -> int:
        """Add up their rows."""
        return sum(part.rows for part in self.parts)

    @property
    def size_bytes(self) -> int:
        """Add up their sizes."""
        return sum(part.size_bytes for part in self.parts)


@dataclass(frozen=True)
class PlannedJoin:
    """Windows that become one, or one whose parts become fewer. `places`: parts as they will follow one another."""

    windows: tuple[Manifest, ...]
    places: tuple[PartGroup | ManifestPart, ...]

    @property
    def head(self) -> Manifest:
        """Return the window whose name the joined one has."""
        return self.windows[0]

    @property
    def last(self) -> Manifest:
        """Return the window at whose end the joined one ends."""
        return self.windows[-1]

    @property
    def groups(self) -> tuple[PartGroup, ...]:
        """Return what is written anew."""
        return tuple(place for place in self.places if isinstance(place, PartGroup))

    @property
    def replaced(self) -> tuple[ManifestPart, ...]:
        """Return the parts that are no longer needed."""
        return tuple(part for group in self.groups for part in group.parts)

    @property
    def is_whole(self) -> bool:
        """Return whether every part is written anew."""
        return len(self.groups) == len(self.places)


def is_log(manifest: Manifest) -> bool:
    """Return whether a window holds changes, whose order counts."""
    return manifest.source.extraction.strategy in LOGS


def plan_joins(manifests: Mapping[str, Manifest], policy: CompactPolicy) -> tuple[PlannedJoin, ...]:
    """Plan what to join among the current windows of an export.

    Raises:
        ManifestUnreadable: the `after=` windows form no chain.
    """
    joins = list(_chain_joins(manifests, policy))
    taken = {each.window for join in joins for each in join.windows}
    rest = [each for window, each in manifests.items() if window not in taken]
    joins += [join for each in rest if (join := _within(each, policy)) is not None]
    return tuple(joins)


def in_order(manifests: Mapping[str, Manifest]) -> tuple[Manifest, ...]:
    """Return the `after=` windows in the order of their chain.

    Raises:
        ManifestUnreadable: they form none.
    """
    resolve_cursor(manifests)
    windows = {starts_at(each.cursor): each for each in manifests.values() if each.cursor is not None}
    ends = {ends_at(each.cursor) for each in windows.values() if each.cursor and ends_at(each.cursor) != _start(each)}
    place = next((start for start in windows if start not in ends), None)
    found: list[Manifest] = []
    while place is not None and (each := windows.pop(place, None)) is not None and each.cursor is not None:
        found.append(each)
        place = ends_at(each.cursor)
    return tuple(found)


def settled(manifests: Mapping[str, Manifest]) -> tuple[Manifest, ...]:
    """Return the windows of a chain that no run will replace by itself, in order: all but those at its very end.

    Raises:
        ManifestUnreadable: there is no chain.
    """
    end = resolve_cursor(manifests)
    return tuple(
        # Never the window at the very end of the chain: it holds the position, and a run after a crash replaces it by
        # its name.
        each for each in in_order(manifests)
        if each.cursor is not None and each.cursor.high is not None and end not in (each.cursor.low, each.cursor.high)
    )  # fmt: skip


def _start(manifest: Manifest) -> object:
    return starts_at(manifest.cursor) if manifest.cursor is not None else None


def _chain_joins(manifests: Mapping[str, Manifest], policy: CompactPolicy) -> Iterator[PlannedJoin]:
    """Walk a chain, and close a join where the next window does not fit it."""
    # Windows of a chain (`after=`) are joined with their neighbours too, as long as they look alike: the first gives
    # its name and where it starts, the last where it ends.
    waiting: list[Manifest] = []
    for each in (*settled(manifests), None):
        if each is not None and _is_joinable(each, policy):
            fits = not waiting or (
                _are_alike(waiting[-1], each)
                and sum(one.size_bytes for one in (*waiting, each)) <= policy.target_bytes
            )  # fmt: skip
            if fits:
                waiting.append(each)
                continue
            following = [each]
        else:
            following = []
        if (join := _join_of(waiting, policy)) is not None:
            yield join
        waiting = following


def _join_of(windows: Sequence[Manifest], policy: CompactPolicy) -> PlannedJoin | None:
    """Join what is worth it; None where nothing is."""
    windows = list(windows)
    # A window that is larger than all that would join it stays alone, so what is joined again and again grows by
    # doubling: each row is written O(log n) times.
    while len(windows) > 1 and windows[0].size_bytes > sum(each.size_bytes for each in windows[1:]):
        windows.pop(0)
    if len(windows) < 2 or max(len(windows), sum(each.part_count for each in windows)) < policy.min_parts:
        return None
    parts = [(part, part.schema_ipc or each.schema_ipc) for each in windows for part in each.parts]
    return PlannedJoin(tuple(windows), _places(parts, policy, in_sequence=is_log(windows[0])))


def _within(manifest: Manifest, policy: CompactPolicy) -> PlannedJoin | None:
    """Join the small parts of one window; None where there are too few."""
    if manifest.finished_at > policy.before or (is_log(manifest) and manifest.window == START):
        return None
    if manifest.format != policy.format or manifest.applied is not None:
        return None
    parts = [(part, part.schema_ipc or manifest.schema_ipc) for part in manifest.parts]
    join = PlannedJoin((manifest,), _places(parts, policy, in_sequence=is_log(manifest)))
    return join if len(join.replaced) >= policy.min_parts else None


def _is_joinable(manifest: Manifest, policy: CompactPolicy) -> bool:
    """Return whether a window of a chain may become part of another one."""
    # Mirrors know their beginning by the run of this window: under another run id they would all be built anew.
    is_start_of_log = is_log(manifest) and manifest.window == START
    # Chunks can be compared and repaired by themselves, dead letters read again: a joined window could do neither.
    is_plain = not manifest.chunks and manifest.quarantine is None and manifest.applied is None
    is_settled = manifest.finished_at <= policy.before and manifest.format == policy.format
    return is_plain and is_settled and not is_start_of_log


def _are_alike(one: Manifest, other: Manifest) -> bool:
    """Return whether one manifest can say of both windows what the two say now."""
    return _likeness(one) == _likeness(other)


def _likeness(manifest: Manifest) -> object:
    source = manifest.source.model_copy(update={"extraction": Extraction(strategy="")})
    extraction, cursor = manifest.source.extraction, manifest.cursor
    return (
        manifest.schema_ipc, manifest.format, manifest.registered_schema, manifest.row_hash, manifest.window_folder,
        manifest.checksum_key_column, source, extraction.strategy, extraction.cursor_column, extraction.cursor_type,
        (cursor.column, cursor.scheme) if cursor else None,
    )  # fmt: skip


def _places(
    parts: Sequence[tuple[ManifestPart, str]], policy: CompactPolicy, *, in_sequence: bool
) -> tuple[PartGroup | ManifestPart, ...]:
    """Put parts together that fit into one of the target size; a part that finds no other stays as it is.

    Args:
        in_sequence: only neighbours are put together.
    """
    bins: list[list[ManifestPart]] = []
    schemas: list[str] = []
    latest: dict[object, int] = {}
    for part, schema in parts:
        key = (schema, part.chunk, part.partition)
        place = latest.get(key)
        # Changes must stay in the order of their log, also across the borders of parts.
        if in_sequence and place is not None and place != len(bins) - 1:
            place = None
        if place is None or sum(each.size_bytes for each in (*bins[place], part)) > policy.target_bytes:
            bins.append([])
            schemas.append(schema)
            place = len(bins) - 1
        bins[place].append(part)
        latest[key] = place
    return tuple(
        PartGroup(tuple(each), schema) if len(each) > 1 else each[0] for each, schema in zip(bins, schemas, strict=True)
    )
