"""Compare the committed windows of an export with the source as it is now: counts, sums over columns, rows.

Belongs here: which windows, one after another, for modes that read rows. Not here: judging one
(`reconcile_window.py`), streams of changes (`reconcile_stream.py`), values and words (`reconcile_result.py`), repairing
(`repair.py`).

A window is asked for by the very predicate that read it, before filters, as of now: a late row or a deletion is a real
difference. Nothing is written but the verdict; the committed cursor is left alone.

PostgreSQL counts and reads all windows of an export in one snapshot, held until the last of them was compared. On the
other servers every statement sees its own instant; a mismatch of several windows or chunks says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from rivet_assets.modes.by_shard import chain_window, chains_asked, naming, shard_of, source_of_shard
from rivet_assets.prove.reconcile_result import Depth, Reconciled, WindowVerdict
from rivet_assets.prove.reconcile_window import WindowComparison
from rivet_assets.run.attempt import new_run_id
from rivet_resources.commit.manifest import Manifest, current_manifests
from rivet_resources.commit.snapshots import newest_snapshots
from rivet_resources.contracts.extract import Window
from rivet_resources.contracts.settings import Spark, pace
from rivet_resources.errors import ConfigError, SourceError
from rivet_resources.read.stage import Exporter
from rivet_resources.spark.runtime import SparkRuntime
from rivet_resources.state.verifications import Verification

if TYPE_CHECKING:
    from rivet_assets.blocks.export import Export
    from rivet_assets.config.load import RivetConfig
    from rivet_assets.run.attempt import Tell
    from rivet_resources.contracts.destination import Root
    from rivet_resources.contracts.source import Source
    from rivet_resources.state.store import State


def reconcile_export(
    config: RivetConfig,
    export: Export,
    *,
    depth: Depth = "counts",
    windows: Sequence[str] | None = None,
    state: State,
    tell: Tell,
) -> Reconciled:
    """Compare an export's current windows with the source, and keep the verdicts in the state store.

    Args:
        depth: counts asks the source for numbers only; checksums reads every row again; rows also says which.
        windows: keys to compare; None for all.

    Raises:
        ConfigError: there is no such window.
        ManifestUnreadable, SourceError, DestinationError, StateError: nothing can be said.
    """
    from rivet_assets.prove.reconcile_stream import reconcile_stream  # start

    if export.is_apart:
        return _reconcile_shards(config, export, depth=depth, windows=windows, state=state, tell=tell)
    if export.answers.holds_changes:
        found = reconcile_stream(config, export, depth=depth, state=state, tell=tell)
    else:
        found = _reconcile_rows(config, export, depth=depth, windows=windows, state=state, tell=tell)
    for each in found.windows:
        remember(state, export.name, each, depth)
    return found


def _reconcile_shards(
    config: RivetConfig, export: Export, *, depth: Depth, windows: Sequence[str] | None, state: State, tell: Tell
) -> Reconciled:
    """Compare the chain of each shard in its own database; one that is away stops no other."""
    found: list[WindowVerdict] = []
    for one, keys in chains_asked(export, windows):
        root = one.destination.on(datetime.now(UTC).date()).root(one.name)
        manifests = pick_windows(current_manifests(root), keys, export=one.name)
        try:
            with naming(one.of_shard):
                verdicts = reconcile_export(config, one, depth=depth, windows=keys, state=state, tell=tell).windows
        except (ConfigError, SourceError) as error:
            verdicts = tuple(WindowVerdict(each.window, each.run_id, "unknown", str(error)) for each in manifests)
        found += [replace(each, window=chain_window(one, each.window)) for each in verdicts]
    place = export.destination.on(datetime.now(UTC).date()).root(export.name).uri
    return Reconciled(export.name, export.mode, depth, tuple(found), place=place)


def remember(state: State, export: str, found: WindowVerdict, depth: Depth) -> None:
    """Keep a verdict: counts and names, never a key or a value."""
    detail = {
        "depth": depth, "source_count": found.source_count, "exported_rows": found.exported_rows,
        "chunks": list(found.broken_chunks), "columns": list(found.columns),
    }  # fmt: skip
    state.save_verification(Verification(export, found.window, "reconcile", found.run_id, found.verdict, detail))
    if found.run_id:
        state.write_journal(found.run_id, export, "ReconciliationResult", {"verdict": found.verdict, **detail})


def _reconcile_rows(
    config: RivetConfig, export: Export, *, depth: Depth, windows: Sequence[str] | None, state: State, tell: Tell
) -> Reconciled:
    root = export.destination.on(datetime.now(UTC).date()).root(export.name)
    if not root.keeps_manifests:
        lost = WindowVerdict("all", "", "unknown", f"{root.uri} is a stream, which keeps no manifests to compare with")
        return Reconciled(export.name, export.mode, depth, (lost,))
    current = current_manifests(root)
    manifests = pick_windows(current, windows, export=export.name)
    if windows is None and export.first_snapshot is not None:  # older ones are of rows that the source has no more
        manifests = newest_snapshots(manifests)
    if not manifests:
        return Reconciled(export.name, export.mode, depth, place=root.uri)
    exporter, verdicts = Exporter(SparkRuntime(Spark(engine="inline")), state), []
    for found in _compare(config, export, manifests, current, depth, root=root, exporter=exporter):
        verdicts.append(found)
        tell(f"{export.name} {found.window}: {found.verdict}, {found.text}")
    return Reconciled(export.name, export.mode, depth, tuple(verdicts))


def _compare(
    config: RivetConfig, export: Export, manifests: Sequence[Manifest], current: Mapping[str, Manifest], depth: Depth,
    *, root: Root, exporter: Exporter,
) -> Iterator[WindowVerdict]:  # fmt: skip
    """Compare windows one after another; each shard in its own database, and one that is away stops no other."""
    if export.shards is None:
        yield from _compare_at(config.source_of(export)[1], export, manifests, current, depth, root, exporter)
        return
    shards = {each.window: shard_of(export, Window(each.window)) for each in manifests}
    for shard in dict.fromkeys(shards.values()):
        left = [each for each in manifests if shards[each.window] == shard]
        try:
            with naming(shard):
                _, source = source_of_shard(export, config.source_of(export), shard)
                for found in _compare_at(source, export, tuple(left), current, depth, root, exporter):
                    # What is still here when the shard fails was not compared.
                    left.pop(0)
                    yield found
        except (ConfigError, SourceError) as error:
            yield from (WindowVerdict(each.window, each.run_id, "unknown", str(error)) for each in left)


def _compare_at(
    source: Source, export: Export, manifests: Sequence[Manifest], current: Mapping[str, Manifest], depth: Depth,
    root: Root, exporter: Exporter,
) -> Iterator[WindowVerdict]:  # fmt: skip
    """Compare windows over one session at one source."""
    paced, run_id = pace(source.tuning, export.tuning), new_run_id(export.name, datetime.now(UTC))
    with (
        exporter.permits(source, run_id=run_id, pace=paced) as permits,
        source.session(application=f"rivet:{export.name}", pace=paced, snapshot=export.shares_snapshot) as session,
    ):
        relation = session.describe(
            table=export.table, query=export.query, params=export.params, rules=export.type_rules()
        )
        for manifest in manifests:
            site = WindowComparison(export, source, session, relation, root, exporter, permits, manifest, current)
            yield site.verdict(depth)


def pick_windows(manifests: Mapping[str, Manifest], windows: Sequence[str] | None, *, export: str) -> list[Manifest]:
    """Pick windows by their keys, in the order in which they were committed.

    Raises:
        ConfigError: there is no such window.
    """
    for key in windows or ():
        if key not in manifests:
            raise ConfigError(
                f"Export {export} has no committed window {key!r}; it has {', '.join(sorted(manifests)) or 'none'}. "
                f"Pass one of these with --partition, or leave it out for all."
            )
    wanted = manifests.values() if windows is None else [manifests[key] for key in dict.fromkeys(windows)]
    return sorted(wanted, key=lambda each: (each.window_start or each.finished_at, each.window))
