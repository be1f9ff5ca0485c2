"""Run exports now, in this process, through Dagster: what `rivet run` and `rivet demo` do.

Belongs here: choosing exports and windows, starting Dagster runs, reading what became of them. Not here: the work
itself (`assets.py`), the words of a summary (`report.py`).

All exports without partitions share one Dagster run, and a partitioned one gets a run per unbroken range of windows;
all of these share one Spark session. A failed export never stops its siblings.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from rivet_assets.recorder import Recorder, Step, Watch
from rivet_assets.report import Outcome
from rivet_resources.errors import ConfigError, RivetError
from rivet_resources.spark import SparkRuntime
from rivet_resources.state.runs import RunRecord

if TYPE_CHECKING:
    import dagster as dg

    from rivet_assets.config import RivetConfig
    from rivet_assets.export import Export
    from rivet_resources.state.store import State

RANGE = "..."  # between the two ends of a range of partitions, both included
Plan = Sequence[tuple["Export", list[str] | None]]  # windows to run; None for an export without partitions


def run_exports(
    config: RivetConfig, *, names: Sequence[str] = (), partitions: Sequence[str] = (), watch: Watch = lambda news: None
) -> list[Outcome]:
    """Run these exports (all, when none is named) to their end; one Outcome each, in the order of the config.

    Args:
        partitions: keys or ranges `A...B` of the time windows to run. Without any: the last `days_window` days, else
            the latest window that has ended. With some and no names, only partitioned exports run.

    Raises:
        ConfigError: an export is not known, or has no such partition; nothing ran.
        KeyboardInterrupt: the user's; what was committed before stays so.
    """
    exports = _chosen(config, names, partitions)
    with _warm_spark(config, exports):
        return _run_plan(config, [(export, _keys(export, partitions or None)) for export in exports], watch)


def run_windows(config: RivetConfig, windows: Mapping[str, Sequence[str]], *, watch: Watch) -> list[Outcome]:
    """Run all exports, those of `windows` for just these keys (none: skipped); one Outcome each.

    Raises:
        ConfigError: an export has no such partition; nothing ran.
    """
    with _warm_spark(config, config.exports):
        plan = [(export, _keys(export, windows.get(export.name))) for export in config.exports]
        return _run_plan(config, plan, watch)


def _run_plan(config: RivetConfig, plan: Plan, watch: Watch) -> list[Outcome]:
    recorder = Recorder({node: export.name for export, _ in plan for node in _nodes(config, export)}, watch)
    began = datetime.now(UTC)
    _execute(config, plan, recorder)
    return _outcomes(config, plan, recorder, began)


def _chosen(config: RivetConfig, names: Sequence[str], partitions: Sequence[str]) -> Sequence[Export]:
    wanted = {config.export(name).name for name in names}
    chosen = [export for export in config.exports if not names or export.name in wanted]
    if not partitions:
        return chosen
    without = [export.name for export in chosen if export.mode != "time_window"]
    if names and without:
        raise ConfigError(
            f"Export {without[0]} has no partitions; leave out --partition, or name exports of mode time_window."
        )
    windowed = [export for export in chosen if export.mode == "time_window"]
    if not windowed:
        raise ConfigError("No export has mode time_window; leave out --partition.")
    return windowed


def _keys(export: Export, partitions: Sequence[str] | None) -> list[str] | None:
    """List the windows to run; None for an export without partitions."""
    from rivet_assets.partitions import due_keys, partitions_of, window_of

    definition = partitions_of(export)
    if definition is None:
        return None
    if partitions is None:
        return due_keys(export)
    known = {key: place for place, key in enumerate(definition.get_partition_keys())}
    wanted: set[str] = set()
    for asked in partitions:
        first, found, last = asked.partition(RANGE)
        last = last if found else first
        for key in (first, last):
            if key not in known:
                window_of(export, key)  # says which keys there are
                raise ConfigError(f"Export {export.name} has no window {key!r} that has ended by now.")
        if known[first] > known[last]:
            raise ConfigError(f"Range {asked!r} ends before it begins; write the earlier window first.")
        wanted |= {key for key, place in known.items() if known[first] <= place <= known[last]}
    return sorted(wanted, key=known.__getitem__)


@contextmanager
def _warm_spark(config: RivetConfig, exports: Sequence[Export]) -> Iterator[None]:
    """Start the JVM while Dagster is still loading, and keep it for all runs of the block.

    A start that fails is told by the export that needs it, not here.
    """
    settings = config.spark
    if settings.engine == "inline" or not any(_needs_spark(export) for export in exports):
        yield
        return
    runtime = SparkRuntime(settings)

    def start() -> None:
        with suppress(RivetError):
            runtime.session()

    starting = threading.Thread(target=start, name="rivet-spark-start", daemon=True)
    starting.start()
    try:
        yield
    finally:
        starting.join()
        runtime.stop()


def _needs_spark(export: Export) -> bool:
    """Say whether a run of it surely needs the JVM: a drain does so for a first copy only, and starts it itself."""
    return export.mode != "cdc"  # nor do the tables beside it, as long as there is nothing new


def _execute(config: RivetConfig, plan: Plan, recorder: Recorder) -> None:
    """Start the Dagster runs one after another; nothing a run does raises here."""
    import dagster as dg

    from rivet_assets.definitions import definitions_of

    base = definitions_of(config)

    logger = logging.Logger("rivet.run", logging.DEBUG)
    logger.addHandler(recorder)
    listening = dg.LoggerDefinition(lambda _: logger, description="What `rivet run` shows")
    definitions = dg.Definitions.merge(base, dg.Definitions(loggers={"rivet": listening}))
    job = definitions.resolve_implicit_global_asset_job_def()
    whole = [key for export, keys in plan if keys is None for key in _asset_keys(config, export)]
    beside = [key for export, _ in plan for key in _applied_keys(config, export)]
    with _instance() as instance:

        def go(selection: list[dg.AssetKey], tags: dict[str, str]) -> None:
            job.execute_in_process(
                run_config={"loggers": {"rivet": {}}},
                instance=instance,
                asset_selection=selection,
                tags={**tags, "rivet/started_by": "rivet run"},
                raise_on_error=False,
            )
            if recorder.interrupted:
                raise KeyboardInterrupt

        if whole:
            go(whole, {})
        for export, keys in plan:
            for first, last in _ranges(export, keys or []):
                tags = {"dagster/asset_partition_range_start": first, "dagster/asset_partition_range_end": last}
                go(_asset_keys(config, export), tags)
        if beside:  # a run of their own: Dagster would skip them after a drain that found nothing
            go(beside, {})


def _ranges(export: Export, keys: Sequence[str]) -> list[tuple[str, str]]:
    """Join windows that follow one another into (first, last)."""
    from rivet_assets.partitions import partitions_of

    definition = partitions_of(export)
    if definition is None:
        return []
    places = {key: place for place, key in enumerate(definition.get_partition_keys())}
    ranges: list[tuple[str, str]] = []
    for key in keys:
        if ranges and places[ranges[-1][1]] + 1 == places[key]:
            ranges[-1] = (ranges[-1][0], key)
        else:
            ranges.append((key, key))
    return ranges


@contextmanager
def _instance() -> Iterator[dg.DagsterInstance]:
    """Use the instance that the UI shows when DAGSTER_HOME names one, else one in memory."""
    import dagster as dg

    if os.environ.get("DAGSTER_HOME"):
        with dg.DagsterInstance.get() as instance:
            yield instance
    else:
        with dg.DagsterInstance.ephemeral() as instance:
            yield instance


def _asset_keys(config: RivetConfig, export: Export) -> list[dg.AssetKey]:
    """List the assets of an export: one, or those of a drain."""
    from rivet_assets.build import asset_keys

    return asset_keys(export, config=config)


def _applied_keys(config: RivetConfig, export: Export) -> list[dg.AssetKey]:
    """List the tables kept beside the changes of an export."""
    from rivet_assets.build import applied_keys

    return applied_keys(export, config=config)


def _nodes(config: RivetConfig, export: Export) -> list[str]:
    """Name the steps of an export, as Dagster spells them."""
    from rivet_assets.build import step_names

    return step_names(export, config=config)


def _outcomes(config: RivetConfig, plan: Plan, recorder: Recorder, began: datetime) -> list[Outcome]:
    """Join what Dagster told with what the state store recorded of these very runs."""
    with_state = _records(config, [export.name for export, _ in plan], began)
    outcomes = []
    for export, keys in plan:
        step, records = recorder.steps[export.name], with_state.get(export.name, [])
        outcomes.append(_outcome(config, export, keys, step=step, records=records, run_failure=recorder.run_failure))
    return outcomes


def _outcome(
    config: RivetConfig,
    export: Export,
    keys: list[str] | None,
    *,
    step: Step,
    records: list[RunRecord],
    run_failure: str,
) -> Outcome:
    committed = [record for record in records if record.status == "success"]
    failed = bool(step.message) or (not step.ended and keys != [])
    skipped = not failed and not committed
    done = {record.window for record in committed}
    return Outcome(
        export=export.name,
        source=config.source_of(export)[0],
        mode=export.mode,
        status="failed" if failed else "skipped" if skipped else "success",
        windows=tuple(dict.fromkeys(record.window for record in committed)) if keys is not None else (),
        refused=tuple(key for key in keys or [] if key not in done) if failed else (),
        rows=sum(record.total_rows for record in committed),
        files=sum(record.files_produced for record in committed),
        bytes=sum(record.bytes_written for record in committed),
        seconds=_wall_seconds(records),
        peak_mb=max((record.peak_mb for record in records), default=0.0),
        retries=sum(record.retries for record in records),
        checks_passed=step.passed,
        checks_failed=tuple(step.failed),
        warnings=tuple(step.warnings),
        code=step.code,
        message=step.message or (run_failure or "it did not run" if failed else ""),
        exit_code=(step.exit_code if step.message else 1) if failed else 0,
        run_ids=tuple(record.run_id for record in records),
        traceback=step.traceback,
    )  # fmt: skip


def _wall_seconds(records: Sequence[RunRecord]) -> float:
    """Measure from the first start to the last end; windows of one export overlap."""
    ends = [record.finished_at for record in records if record.finished_at is not None]
    return (max(ends) - min(record.started_at for record in records)).total_seconds() if ends else 0.0


def _records(config: RivetConfig, names: Iterable[str], began: datetime) -> dict[str, list[RunRecord]]:
    """Read this process's runs since `began`, oldest first; {} when the store cannot be opened (exports say why)."""
    try:
        state = open_state_of(config)
    except RivetError:
        return {}
    found = {}
    for name in names:
        mine = [r for r in state.runs(name, last=100_000) if r.started_at >= began and r.pid == os.getpid()]
        found[name] = sorted(mine, key=lambda record: record.started_at)
    state.close()
    return found


def open_state_of(config: RivetConfig) -> State:
    """Open the store that the exports of this config use.

    Raises:
        StateError: it cannot be opened.
    """
    from rivet_resources.state.store import open_state, state_url

    return open_state(state_url(config.state_url, folder=config.folder))
