"""Joining committed parts and windows: the order of effects of a compaction.

Belongs here: `compact`, and the manifest it swaps in. Not here: what is joined (`plan.py`), writing the joined parts
(`rewrite.py`), removing what was replaced (`sweep.py`).

No cursor moves and no row is read from a source.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from rivet_resources.commit.chain import edge_of
from rivet_resources.commit.listing import JOINED
from rivet_resources.commit.manifest import Manifest, describe_checksums, read_manifests, schema_of, window_manifest
from rivet_resources.commit.manifest_entries import (
    ColumnChecksum,
    Compaction,
    ManifestCursor,
    ManifestEdge,
    ManifestMeasures,
    ManifestPart,
    Superseded,
    pieces_of,
)
from rivet_resources.commit.publish import Step, mark_success, no_hook, publish_parts
from rivet_resources.commit.retired import Retired
from rivet_resources.contracts.destination import Destination, Root
from rivet_resources.contracts.extract import Window
from rivet_resources.contracts.format import FileFormat
from rivet_resources.contracts.parts import Measures
from rivet_resources.contracts.relation import Consistency
from rivet_resources.contracts.rows.boundary import Edge
from rivet_resources.errors import PartCorrupt, WindowTaken
from rivet_resources.prove.manifest import sums_of
from rivet_resources.prove.part import examine, follows
from rivet_resources.prove.replace_chunks import marked_window
from rivet_resources.upkeep.join_texts import comparable, is_text
from rivet_resources.upkeep.plan import PartGroup, PlannedJoin
from rivet_resources.upkeep.rewrite import JoinedPart, RewriteSite, rewrite
from rivet_resources.write.checksums.sums import ALGORITHM, WHOLE

JOINED_TEXT = b"Windows of this export were joined or dropped: a run must begin where one that is there ends.\n"


@dataclass(frozen=True)
class CompactSite:
    """Where windows are joined, and how their parts are written. `prove_lease` raises once the lease is lost."""

    root: Root
    destination: Destination
    format: FileFormat
    run_id: str
    until: datetime  # until when what is replaced stays
    prove_lease: Callable[[], None]
    step: Step = no_hook


def compact(join: PlannedJoin, site: CompactSite, *, there: Collection[Superseded]) -> Manifest:
    """Join windows, or parts of one, so that a reader sees them as before or joined, whole.

    Every step is durable before the next begins, and begins by calling `step` with its name:
      1. stage      the joined parts are written from parts whose bytes are those that were committed
      2. record     of what may be removed later, or now if the swap never comes
      3. parts      get their final names; no manifest names them yet
      4. proof      they are read back: bytes, rows, sums over every column, order of changes
      5. manifest   one fenced write over the version that was looked at; it hides the other windows
      6. success    `manifest.json` and `_SUCCESS`, where they are of this window

    Died at any line, nothing is lost or doubled, and the next sweep by the record ends what is left over.

    Args:
        there: the commits whose manifests are at the destination, hidden ones too.

    Raises:
        WindowTaken: another run committed one of the windows since they were looked at; nothing is changed.
        PartCorrupt: a part is not as it was committed, or the joined one not as its parts; nothing is changed.
    """
    root, step = site.root, site.step
    # The fence is taken before anything is written, so a window that is committed meanwhile makes the swap fail, not
    # vanish.
    expected = _head_version(join, root)
    step("stage")
    written = rewrite(
        join, RewriteSite(root, site.destination, site.format, site.run_id), export=join.head.export_name
    )  # fmt: skip
    try:
        manifest = joined_manifest(join, written, site, there=there)
    except BaseException:
        root.discard(each.part for each in written)
        raise
    with _taken_back(written, root=root):
        step("record")
        retired = record_of(join, written, site)
        # Before any effect: whatever happens from here on, the place itself says what was brought and what may go.
        root.put(retired.path, retired.content)
        if len(join.windows) > 1:
            # From now on a run must look for windows that begin inside a joined one (`supersede.refuse_inside`), which
            # costs a request that a place without a compaction is spared.
            root.put(JOINED, JOINED_TEXT)
        step("parts")
        publish_parts(tuple(each.part for each in written), root=root)
        step("proof")
        # At the destination and under their final names: what is proved is what readers will get.
        prove(join, written, manifest, root=root)
        # The last moment before the swap: reading back may have taken longer than a lease lasts.
        site.prove_lease()
        _refuse_changed(join, root)
        step("manifest")
        # Windows that are joined stand behind one manifest, that of the first: it reaches from where the first starts
        # to where the last ends, and hides the others. These stay, like the replaced parts, until nobody can be reading
        # them any more.
        _swap(manifest, expected=expected, root=root)
    step("success")
    if marked_window(manifest.window_folder, root=root) in (None, *(each.window for each in join.windows)):
        mark_success(manifest, root=root)
    return manifest


def record_of(join: PlannedJoin, written: Sequence[JoinedPart], site: CompactSite) -> Retired:
    """Describe what the swap replaces."""
    return Retired(
        run_id=site.run_id,
        until=site.until,
        produced=tuple(each.part.path for each in written),
        parts=tuple(part.path for part in join.replaced),
        windows=tuple(each.entry for each in join.windows[1:]),
    )


def _head_version(join: PlannedJoin, root: Root) -> str:
    """Read the version of the first window's manifest, the fence of the swap.

    Raises:
        WindowTaken: it is not the one that was planned.
    """
    found = window_manifest(root, Window(join.head.window))
    if found is None or found[0] != join.head:
        raise _taken(join)
    return found[1]


def _refuse_changed(join: PlannedJoin, root: Root) -> None:
    """See that the other windows are as they were planned: the fence of the swap is the first one's alone.

    Raises:
        WindowTaken
    """
    rest = read_manifests(root, tuple(each.path for each in join.windows[1:]))
    if [each.entry for each in rest] != [each.entry for each in join.windows[1:]]:
        raise _taken(join)


def _taken(join: PlannedJoin) -> WindowTaken:
    return WindowTaken(
        f"Window {join.head.window} of export {join.head.export_name}, or one that would be joined with it, was "
        f"committed by another run meanwhile; nothing was changed. The next compaction looks at it anew."
    )


@contextmanager
def _taken_back(written: Sequence[JoinedPart], *, root: Root) -> Iterator[None]:
    """Remove what was brought when it is certain that no manifest names it; else the record says what is left."""
    try:
        yield
    # After any other error the swap may have come through, and the parts may be what readers see.
    except (WindowTaken, PartCorrupt):
        root.discard(each.part for each in written)
        root.delete([each.part.path for each in written])
        raise


def _swap(manifest: Manifest, *, expected: str, root: Root) -> None:
    """Write the manifest over the version that was looked at; met again by a repeated request, it is our own.

    Raises:
        WindowTaken
    """
    try:
        root.swap(manifest.path, manifest.content, expected=expected)
    except WindowTaken:
        found = root.read(manifest.path)
        if found is None or found[0] != manifest.content:
            raise


# --- proof ---------------------------------------------------------------------------------------


def prove(join: PlannedJoin, written: Sequence[JoinedPart], manifest: Manifest, *, root: Root) -> None:
    """See that the joined parts, as they lie at the destination, hold what the parts that they replace held.

    Raises:
        PartCorrupt
    """
    ours = {part.path: part for part in manifest.parts}
    last = None
    for each in written:
        part = ours[each.part.path]
        # All columns are summed, also where the window's own manifest has no sums.
        summed = manifest.model_copy(update={"column_checksums": describe_checksums(each.measures)})
        seen = examine(root, summed, part, listing={part.path: part.size_bytes}, depth="full")
        flaw = next((found.text for found in seen.flaws), "")
        if not flaw and _rest(seen.sums or {}) != _rest(each.measures.checksums):
            flaw = "has other sums over its columns than the parts it was made of"
        if not flaw and (seen.disorder or not (last is None or seen.first is None or follows(last, seen.first))):
            flaw = "has changes out of their order"
        last = seen.last or last
        if flaw:
            raise PartCorrupt(
                f"Export {manifest.export_name}, window {manifest.window}: joined part {part.path} {flaw}. Nothing was "
                f"changed; `rivet validate --depth full` says whether the committed parts are whole."
            )


def _rest(sums: object) -> dict[str, int]:
    return {name: value % WHOLE for name, value in dict(sums).items() if value % WHOLE}  # type: ignore[call-overload]


# --- the manifest of joined windows --------------------------------------------------------------


def joined_manifest(
    join: PlannedJoin, written: Sequence[JoinedPart], site: CompactSite, *, there: Collection[Superseded]
) -> Manifest:
    """Describe what is joined as it will be published.

    Raises:
        PartCorrupt: rows or sums are not those of the manifests that go.
    """
    head, last = join.head, join.last
    parts = describe_places(join, written)
    made = sum((each.measures for each in written), Measures())
    rows = sum(each.row_count for each in join.windows)
    if sum(part.rows for part in parts) != rows:
        raise _differs(join, f"hold {sum(part.rows for part in parts)} rows, and the manifests say {rows}")
    sums = _joined_sums(join)
    if join.is_whole and sums is not None and _differ(made.checksums, sums, join, site.format):
        raise _differs(join, "have other sums over their columns than the manifests say")
    # A text format gives only some columns back.
    if join.is_whole and sums is None and not is_text(site.format):
        sums = made.checksums or None
    extractions = [each.source.extraction for each in join.windows]
    counts = [each.source_row_count for each in extractions]
    extraction = extractions[0].model_copy(update={
        "cursor_high": extractions[-1].cursor_high,
        "source_row_count": None if None in counts else sum(each or 0 for each in counts),
    })  # fmt: skip
    supersedes = {
        # Only what is still there: else each compaction would carry the names of all windows there ever were.
        *(entry for each in join.windows for entry in each.supersedes if entry in there),
        *(each.entry for each in join.windows[1:]),
    }
    before = [each.compacted or Compaction(at=each.finished_at, parts=each.part_count) for each in join.windows]
    return head.model_copy(update={
        "run_id": site.run_id,
        # Readers and drift go by the order in which rows were committed, which joining them does not change.
        "finished_at": last.finished_at,
        "cursor": joined_cursor(join),
        "consistency": _consistency(join),
        "source": head.source.model_copy(update={"extraction": extraction}),
        "compression": site.format.codec if join.groups else head.compression,
        "row_count": rows,
        "part_count": len(parts),
        "parts": parts,
        "measures": _joined_measures(join),
        "supersedes": tuple(sorted(supersedes, key=lambda each: (each.window, each.run_id))),
        "column_checksums": _described(sums),
        "checksum_render": ALGORITHM if sums else None,
        "profile": head.profile if len(join.windows) == 1 else None,
        "compacted": Compaction(
            at=datetime.now(UTC), windows=sum(each.windows for each in before), parts=sum(each.parts for each in before)
        ),
    })  # fmt: skip


def _differ(made: dict[str, int], told: dict[str, int], join: PlannedJoin, form: FileFormat) -> bool:
    """Return whether the parts that were read have other sums than the manifests say; of texts, where that is known."""
    if not is_text(form):
        return _rest(made) != _rest(told)
    both = comparable(form, schema_of(join.head)) & made.keys()
    return _rest({name: made[name] for name in both}) != _rest({name: told.get(name, 0) for name in both})


def _differs(join: PlannedJoin, what: str) -> PartCorrupt:
    return PartCorrupt(
        f"Export {join.head.export_name}, window {join.head.window}: the parts {what}. Nothing was changed; "
        f"`rivet validate --depth full` says which part is wrong."
    )


def describe_places(join: PlannedJoin, written: Sequence[JoinedPart]) -> tuple[ManifestPart, ...]:
    """List the parts as they follow one another: joined ones where the first of theirs stood."""
    waiting = list(written)
    found: list[ManifestPart] = []
    for place in join.places:
        if isinstance(place, PartGroup):
            part = waiting.pop(0).part if place.rows else None
            if part is None:
                continue
            first = place.parts[0]
            found.append(
                ManifestPart(
                    part_id=0, path=part.path, rows=part.rows, size_bytes=part.size_bytes,
                    content_fingerprint=part.fingerprint, content_md5=part.md5, chunk=first.chunk,
                    partition=first.partition, upload=pieces_of(part),
                    schema_ipc=None if place.schema_ipc == join.head.schema_ipc else place.schema_ipc,
                )
            )  # fmt: skip
        else:
            found.append(place)
    return tuple(part.model_copy(update={"part_id": number}) for number, part in enumerate(found))


def joined_cursor(join: PlannedJoin) -> ManifestCursor | None:
    """Return from where to where the joined window reaches, and which rows at its two ends are its own."""
    first, last = join.head.cursor, join.last.cursor
    if first is None or last is None or len(join.windows) == 1:
        return first
    cursors = [each.cursor for each in join.windows if each.cursor is not None]
    low = [edge_of(each.low_edge) for each in cursors if each.low == first.low]
    # The rows of the end's very value come from every window that ended or began there: the next run leaves out all of
    # them.
    high = [edge_of(each.high_edge) for each in cursors if each.high == last.high != each.low]
    high += [edge_of(each.low_edge) for each in cursors if each.low == last.high != first.low]
    return first.model_copy(update={
        "high": last.high,
        "high_visit": last.high_visit,
        "low_edge": _edge(low),
        "high_edge": _edge(high),
    })  # fmt: skip


def _edge(edges: Sequence[Edge]) -> ManifestEdge | None:
    total = sum(edges, Edge())
    return ManifestEdge(rows=total.rows, ids=total.ids) if total.rows else None


def _consistency(join: PlannedJoin) -> Consistency:
    """Return what is true of rows of several instants."""
    if len(join.windows) == 1 or join.head.consistency == "log":
        return join.head.consistency
    return "per_query"


def _joined_sums(join: PlannedJoin) -> dict[str, int] | None:
    """Add up the sums of the windows; None where one with rows has none that can be made again."""
    total: dict[str, int] = {}
    for each in join.windows:
        sums = sums_of(each)
        if each.row_count and not sums:
            return None
        for name, value in sums.items():
            total[name] = (total.get(name, 0) + value) % WHOLE
    return total


def _described(sums: dict[str, int] | None) -> tuple[ColumnChecksum, ...] | None:
    return describe_checksums(replace(Measures(), checksums=sums)) if sums else None


def _joined_measures(join: PlannedJoin) -> ManifestMeasures:
    """Add up what was counted when the rows passed."""
    total = sum(
        (Measures(nulls=each.measures.nulls, special_values=each.measures.special_values) for each in join.windows),
        Measures(),
    )
    return ManifestMeasures(nulls=total.nulls, special_values=total.special_values)
