"""Dagster's view of the lake: an output is a staged window to publish, an input is committed parts as it asks for them.

Belongs here: which manifests an input means. Not here: the order of effects (`commit/publish.py`), reading parts
(`frames.py`).
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, get_origin

import dagster as dg

from rivet_resources.commit.manifest import Manifest, current_manifests
from rivet_resources.commit.publish import publish
from rivet_resources.commit.remembered import Remembered
from rivet_resources.commit.shards import shard_manifests, shard_roots
from rivet_resources.commit.snapshots import newest_snapshots
from rivet_resources.contracts.addressing import MANIFESTS
from rivet_resources.contracts.destination import ReadableRoot, Root
from rivet_resources.contracts.extract import Staged, Window
from rivet_resources.contracts.rows.value_windows import partition_of_window
from rivet_resources.dagster.errors import translated
from rivet_resources.dagster.frames import Parts, read_as
from rivet_resources.dagster.preview import preview
from rivet_resources.dagster.resource import Rivet
from rivet_resources.errors import ManifestUnreadable
from rivet_resources.state.leases import Lease
from rivet_resources.state.store import State

# Metadata: databases whose windows lie in a folder each, below the export's.
SHARDS = "rivet/shards"
NO_SHARDS: Mapping[str, ReadableRoot] = MappingProxyType({})
# Resource key; so called that it stands beside what a project has.
LAKE = "rivet_lake"


@dataclass(frozen=True)
class StagedOutput:
    """A staged window whose gate passed, with the store that will record it and the lease that it holds."""

    staged: Staged
    root: Root
    state: State
    lease: Lease
    preview_rows: int = 0
    seen: Remembered | None = None  # what was read of the place for this window

    def publish(self) -> tuple[Manifest | None, dict[str, Any]]:
        """Make it visible; give its manifest and what publishing adds to its metadata.

        Raises:
            WindowTaken: another run took the window; nothing was published.
        """
        began = time.monotonic()
        manifest = publish(self.staged, root=self.root, state=self.state, step=self._before, seen=self.seen)
        window = self.staged.extract.window
        return manifest, {
            "rivet/seconds_publish": round(time.monotonic() - began, 3),
            **preview(self.root, manifest, rows=self.preview_rows),
            "rivet/manifest": dg.MetadataValue.path(f"{self.root.uri.rstrip('/')}/{MANIFESTS}/{window.file_name}"),
        }

    def _before(self, step: str) -> None:
        """Prove the lease before parts get their names, where there are any, and again right before the swap."""
        if step == "manifest" or (step == "parts" and self.staged.files):
            # Before parts get their names, and again right before the swap: publishing many parts may take longer than
            # a lease lasts.
            self.lease.check()


class Lake(dg.ConfigurableIOManager):
    """Publishes what exports stage, and reads it back for assets downstream."""

    rivet: dg.ResourceDependency[Rivet]

    # It writes no row: Spark is lazy, a DataFrame would be computed after the gate should have judged it.
    def handle_output(self, context: dg.OutputContext, obj: StagedOutput) -> None:
        """Publish a staged window."""
        tried = context.step_context.previous_attempt_count
        with translated(retry_number=tried, seconds_to_wait=obj.staged.extract.pace.retry_backoff_ms / 1000):
            _, facts = obj.publish()
        context.add_output_metadata(facts)

    def load_input(self, context: dg.InputContext) -> Any:
        """Return the committed rows of an export: of one window, of a range of windows, or all there is.

        They come as the input is annotated (`frames.py`); without an annotation as a Spark DataFrame.

        Raises:
            Failure: a window that is asked for was never committed; an export cannot be read as that.
        """
        with translated(retry_number=0, seconds_to_wait=1):
            facts = _definition(context)
            name = str(_plain(facts["rivet/export"]))
            destination = facts["rivet/destination"].instance
            root = destination.root(name)
            shards = shard_roots(destination, name, _plain(facts.get(SHARDS)) or ())
            keys = context.asset_partition_keys if _asks_for_windows(context) else None
            annotation = context.dagster_type.typing_type
            found = wanted(root, keys, export=name, annotation=annotation, shards=shards)
            parts = Parts(root, found, self.rivet.session)
            return read_as(annotation, parts, asset=context.asset_key.to_user_string())


def wanted(
    root: Root,
    keys: Sequence[str] | None,
    *,
    export: str,
    annotation: object = None,
    shards: Mapping[str, ReadableRoot] = NO_SHARDS,
) -> list[Manifest]:
    """Pick the manifests of the windows that `keys` name, in their order; all current ones when None.

    Of snapshots, which have all rows each, only the newest then (of each value), unless they are read as a mapping.

    Args:
        shards: the folders of shards that have chains of windows of their own, a partition each.

    Raises:
        ManifestUnreadable: a window, or the whole export, was never committed.
    """
    current = shard_manifests(shards) if shards else list(current_manifests(root).values())
    if keys is None:
        if not current:
            raise ManifestUnreadable(
                f"Export {export} has no manifest in {root.uri}: it was never published there. Materialize it first."
            )
        found = sorted(current, key=lambda manifest: manifest.finished_at)
        return found if get_origin(annotation) is dict else newest(found)
    there: dict[str, list[Manifest]] = {}
    for each in current:
        there.setdefault(partition_of_window(each.window), []).append(each)
    # An error and not an empty frame: rows that were never exported must not look like none.
    missing = [key for key in keys if key not in there]
    if missing:
        raise ManifestUnreadable(
            f"Export {export} has no manifest in {root.uri} for {', '.join(missing[:10])}"
            f"{f' and {len(missing) - 10} more' if len(missing) > 10 else ''}. Materialize these partitions first."
        )
    return [each for key in keys for each in there[key]]


def newest(manifests: list[Manifest]) -> list[Manifest]:
    """Leave only the newest of snapshots, of each value; windows of other kinds are disjoint, and stay."""
    are_snapshots = all(Window(each.window).kind == "snapshot" for each in manifests)
    return newest_snapshots(manifests) if are_snapshots else manifests


def _asks_for_windows(context: dg.InputContext) -> bool:
    """Return whether the run is one of partitions; else an input is all windows there are, not all there may be."""
    return context.has_asset_partitions and context.step_context.has_partitions


def _definition(context: dg.InputContext) -> Mapping[str, Any]:
    upstream = context.upstream_output
    facts = upstream.definition_metadata if upstream is not None else {}
    if facts is None or "rivet/destination" not in facts:
        raise ManifestUnreadable(
            f"Asset {context.asset_key.to_user_string()} is not an export, so the IO manager `{LAKE}` cannot read it. "
            f"Give its input another `input_manager_key`."
        )
    return facts


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, dg.MetadataValue) else value
