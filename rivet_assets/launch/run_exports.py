"""Run exports now, in this process, through Dagster: what `rivet run` and `rivet demo` do.

Belongs here: choosing exports and windows, starting Dagster runs, reading what became of them. Not here: the work
itself (`dagster/export_asset.py`), the words of a summary (`outcome.py`).

All exports without partitions share one Dagster run, and a partitioned one gets a run per unbroken range of windows;
all of these share one Spark session. With a pool there are so many lanes of such runs side by side.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from datetime import UTC, datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from rivet_assets.config.extras import extras_of, missing_extras
from rivet_assets.config.selection import choose_exports, due
from rivet_assets.launch.outcome import Outcome
from rivet_assets.launch.outcome_of_run import RunRecords, history_of, outcome_of
from rivet_assets.launch.recorder import Recorder, Watch
from rivet_assets.launch.unbegun import fail_unbegun
from rivet_assets.plan.schedule import Turn, run_turns
from rivet_assets.run import interruption
from rivet_assets.run.actor import RIVET_ACTOR, command_line
from rivet_assets.run.judge.references import references_of
from rivet_assets.run.progress import watch_progress
from rivet_assets.run.run_options import read_options
from rivet_resources import process_start
from rivet_resources.engines.shared.kept_connections import keeping
from rivet_resources.errors import ConfigError, RivetError
from rivet_resources.extras import CONNECT
from rivet_resources.spark.jvm import find_java
from rivet_resources.spark.runtime import SparkRuntime

if TYPE_CHECKING:
    import dagster as dg

    from rivet_assets.blocks.export import Export
    from rivet_assets.config.load import RivetConfig

NO_TAGS: Mapping[str, str] = MappingProxyType({})
NO_OPTIONS: Mapping[str, Any] = MappingProxyType({})
_loading = threading.Lock()
Plan = Sequence[tuple["Export", list[str] | None]]  # windows to run; None for an export without partitions


def run_exports(
    config: RivetConfig,
    *,
    names: Sequence[str] = (),
    partitions: Sequence[str] = (),
    watch: Watch = lambda news: None,
    tags: Mapping[str, str] = NO_TAGS,
    options: Mapping[str, Any] = NO_OPTIONS,
    pool: int = 1,
) -> list[Outcome]:
    """Run these exports (all, when none is named) to their end; one Outcome each, in the order of the config.

    Args:
        partitions: keys or ranges `A...B` of the time windows to run. Without any: the last `days_window` days, else
            the latest window that has ended. With some and no names, only partitioned exports run.
        tags: further tags of the Dagster runs, such as `admission.ADOPT`.
        options: of these runs, as `RunOptions` has them.
        pool: so many exports at once; what a source bears is kept to all the same (`max_connections`, limits).

    Raises:
        ConfigError: an export is not known, has no such partition, or no use for an option; nothing ran.
        ExtraMissing, SparkUnavailable: something they need is not installed; nothing ran.
        KeyboardInterrupt: the user's; what was committed before stays so.
    """
    exports = choose_exports(config, names, partitions)
    for export in exports:
        read_options(options, export)
    # Before anything begins: an extra that the last of fifty exports lacks should not be found out after an hour.
    require_installed(config, exports)
    # Around all of them: the JVM costs seconds, comes up while Dagster loads, and is shared by every run in it.
    with warm_spark(config, exports):
        plan, failed = _plan(config, exports, partitions)

        def run(lane: Plan) -> list[Outcome]:
            return run_plan(config, lane, watch, tags=tags, options=options)

        # Of a single turn nothing comes after that could use its connection.
        with keeping() if _turns(plan) > 1 else nullcontext():
            ran = run(plan) if pool == 1 else _side_by_side(plan, run, pool=pool)
    found = failed | {outcome.export: outcome for outcome in ran}
    return [found[export.name] for export in exports]


def _plan(config: RivetConfig, exports: Sequence[Export], partitions: Sequence[str]) -> tuple[Plan, dict[str, Outcome]]:
    """Find the windows of each export; of one whose values cannot be asked for, how it failed.

    Raises:
        ConfigError: an export has no such partition; nothing ran.
    """
    plan: list[tuple[Export, list[str] | None]] = []
    failed: dict[str, Outcome] = {}
    for export in exports:
        began = datetime.now(UTC)
        try:
            plan.append((export, due(config, export, partitions or None)))
        except RivetError as error:
            # What was asked for in vain is told before anything runs; a source that is away stops no other export.
            if partitions and isinstance(error, ConfigError):
                raise
            failed[export.name] = fail_unbegun(config, export, error, began=began)
    return plan, failed


def _turns(plan: Plan) -> int:
    return sum(1 if keys is None else len(keys) for _, keys in plan)


def _side_by_side(plan: Plan, run: Callable[[Plan], list[Outcome]], *, pool: int) -> list[Outcome]:
    """Run a plan in so many lanes at once, each one Dagster run after another; exports after those they look up in."""
    found: dict[str, Outcome] = {}
    for wave in waves(plan):
        lanes = {f"lane {number}": wave[number::pool] for number in range(min(pool, len(wave)))}

        def work(turn: Turn, lanes: Mapping[str, Plan] = lanes) -> None:
            found.update({outcome.export: outcome for outcome in run(lanes[turn.name])})

        run_turns([Turn(name, wave=0, cost="low", seconds=0.0) for name in lanes], work, pool=pool)
    return [found[export.name] for export, _ in plan]


def run_windows(config: RivetConfig, windows: Mapping[str, Sequence[str]], *, watch: Watch) -> list[Outcome]:
    """Run all exports, those of `windows` for just these keys (none: skipped); one Outcome each.

    Raises:
        ConfigError: an export has no such partition; nothing ran.
        ExtraMissing, SparkUnavailable: something they need is not installed; nothing ran.
    """
    require_installed(config, config.exports)
    with warm_spark(config, config.exports):
        plan = [(export, due(config, export, windows.get(export.name))) for export in config.exports]
        return run_plan(config, plan, watch)


def run_plan(
    config: RivetConfig,
    plan: Plan,
    watch: Watch,
    *,
    tags: Mapping[str, str] = NO_TAGS,
    options: Mapping[str, Any] = NO_OPTIONS,
) -> list[Outcome]:
    """Run exactly these exports and windows, one after another; one Outcome each. `warm_spark` around it saves starts.

    Several threads may do so at once, for exports that differ.
    """
    recorder = Recorder({node: export.name for export, _ in plan for node in _nodes(config, export)}, watch)
    began = datetime.now(UTC)
    with watch_progress(recorder.progressed):
        _execute(config, plan, recorder, tags, options)
    return _outcomes(config, plan, recorder, began)


def require_installed(config: RivetConfig, exports: Sequence[Export]) -> None:
    """Raise where exports need a driver, a client or a Java that is not installed, before anything begins.

    Raises:
        ExtraMissing: one line for each missing extra.
        SparkUnavailable: there is no Java.
        ConfigError: Spark is a project's.
    """
    missing = missing_extras(config, exports)
    if missing is not None:
        raise missing
    if config.spark.resource:
        raise ConfigError(
            f"`spark.resource` is a resource of a Dagster project, {config.spark.resource!r}, which this command does "
            f"not have. Materialize the exports there, or give the command a file without it."
        )
    if config.spark.engine == "inline" or not any(map(_needs_spark, exports)):
        return
    if config.spark.remote is None:
        find_java()
    else:
        CONNECT.require()


@contextmanager
def warm_spark(config: RivetConfig, exports: Sequence[Export]) -> Iterator[None]:
    """Start the JVM while Dagster is still loading, and keep it for all runs of the block.

    A start that fails is told by the export that needs it, not here.
    """
    settings = config.spark
    if settings.engine == "inline" or not any(_needs_spark(export) for export in exports):
        yield
        return
    runtime = SparkRuntime(settings)

    def start() -> None:
        # A start that fails is told by the export that needs it, with its own name and advice.
        with suppress(RivetError):
            runtime.context()

    starting = threading.Thread(target=start, name="rivet-spark-start", daemon=True)
    starting.start()
    try:
        yield
    finally:
        # Else nobody waits for a start that is not wanted any more.
        if not interruption.is_asked():
            starting.join()
            runtime.stop()


def _needs_spark(export: Export) -> bool:
    """Return whether a run of it surely needs the JVM: a drain does so for a first copy only, and starts it itself."""
    return not export.answers.follows_log  # nor do the tables beside it, as long as there is nothing new


def _execute(
    config: RivetConfig, plan: Plan, recorder: Recorder, extra: Mapping[str, str], options: Mapping[str, Any]
) -> None:
    """Start the Dagster runs one after another; nothing a run does raises here."""
    from rivet_assets.dagster.tell_success import RIVET_RUN, STARTED_BY  # Dagster

    job = _job_of(config, plan, recorder)
    beside = [key for export, _ in plan for key in _applied_keys(config, export)]
    with _instance() as instance:

        def go(selection: list[dg.AssetKey], tags: dict[str, str], exports: Sequence[Export] = ()) -> None:
            steps = [_nodes(config, each)[0] for each in exports] if options else []
            job.execute_in_process(
                run_config={
                    "loggers": {"rivet": {}},
                    "ops": {step: {"config": dict(options)} for step in steps},
                },
                instance=instance,
                asset_selection=selection,
                tags={**_tags(config, exports), **extra, **tags, STARTED_BY: RIVET_RUN, RIVET_ACTOR: command_line()},
                # A failed export never stops its siblings: what became of each is read from the events.
                raise_on_error=False,
            )
            # Dagster turns a Ctrl-C inside a step into a failure of that step, and would go on with the next run.
            if recorder.interrupted or interruption.is_asked():
                raise KeyboardInterrupt

        for wave in waves(plan):
            alike = [export for export, keys in wave if keys is None]
            if alike:
                go([key for export in alike for key in _asset_keys(config, export)], {}, alike)
            for export, keys in wave:
                # A run for each unbroken range: Dagster's tags name a first and a last partition, and all that lie
                # between.
                for first, last in _ranges(export, keys or [], instance):
                    tags = {"dagster/asset_partition_range_start": first, "dagster/asset_partition_range_end": last}
                    go(_asset_keys(config, export), tags, [export])
        # A run of their own: Dagster would skip them after a drain that found nothing.
        if beside and not interruption.is_asked_gently():
            go(beside, {})


def _job_of(config: RivetConfig, plan: Plan, recorder: Recorder) -> dg.JobDefinition:
    """Make the job of all assets, which tells the recorder; one thread after another."""
    import dagster as dg  # Dagster

    from rivet_assets.definitions import definitions_of  # Dagster

    logger = logging.Logger("rivet.run", logging.DEBUG)
    logger.addHandler(recorder)
    listening = dg.LoggerDefinition(lambda _: logger, description="What `rivet run` shows")
    # Dagster wraps a resource at its first use, and remembers it without a lock: of two threads that load at once, one
    # gets assets that carry different wrappers of one resource, which Dagster refuses (1.13.27; one in 100 starts of
    # two lanes with a short switch interval). Imports are in here too, since drivers are hidden from one another
    # meanwhile.
    with _loading:
        process_start.import_without_frames(*_tries_frames(config, plan))
        definitions = dg.Definitions.merge(definitions_of(config), dg.Definitions(loggers={"rivet": listening}))
        job = definitions.resolve_implicit_global_asset_job_def()
        process_start.settle()
    return job


def _tries_frames(config: RivetConfig, plan: Plan) -> set[str]:
    """Return the modules of drivers that this process needs, and that would import pandas or polars."""
    if config.spark.engine != "inline":
        return set()  # Spark's workers read
    return {module for export, _ in plan for extra in extras_of(config, export) for module in extra.tries_frames}


def _tags(config: RivetConfig, exports: Sequence[Export]) -> dict[str, str]:
    """Return the tags that the steps of these exports would put on their run, one after another."""
    from rivet_assets.dagster.run_tags import run_tags  # Dagster

    tags: dict[str, str] = {}
    for export in exports:
        name, source = config.source_of(export)
        tags |= run_tags(export, source_name=name, source=source)
    return tags


def waves(plan: Plan) -> list[Plan]:
    """Return a plan cut such that exports come after those that their contracts look values up in; mostly one piece."""
    left, cut = list(plan), list[Plan]()
    while left:
        # Runs of their own: in one run Dagster would skip an export whose referenced one failed, or found nothing.
        names = {export.name for export, _ in left}
        ready = [each for each in left if not names & {other.name for other in references_of(each[0])}]
        cut.append(ready)
        gone = {export.name for export, _ in ready}
        left = [each for each in left if each[0].name not in gone]
    return cut


def _ranges(export: Export, keys: Sequence[str], instance: dg.DagsterInstance) -> list[tuple[str, str]]:
    """Join windows that follow one another into (first, last); the instance learns of values it did not know."""
    from rivet_assets.modes.partitions import add_partitions, partitions_of, ranges_of  # Dagster

    definition = partitions_of(export)
    if definition is None:
        return []
    add_partitions(export, keys, instance)
    if (of_two := ranges_of(definition, keys, instance)) is not None:
        return of_two
    known = definition.get_partition_keys(dynamic_partitions_store=instance)
    places = {key: place for place, key in enumerate(known)}
    ranges: list[tuple[str, str]] = []
    for key in keys:
        if ranges and places[ranges[-1][1]] + 1 == places[key]:
            ranges[-1] = (ranges[-1][0], key)
        else:
            ranges.append((key, key))
    return ranges


@contextmanager
def _instance() -> Iterator[dg.DagsterInstance]:
    """Use the instance that the UI shows when DAGSTER_HOME names one, else one of which nothing stays."""
    import dagster as dg  # Dagster

    from rivet_assets.dagster.unrecorded import unrecorded_instance  # Dagster

    if os.environ.get("DAGSTER_HOME"):
        with dg.DagsterInstance.get() as instance:
            yield instance
    else:
        with unrecorded_instance() as instance:
            yield instance


def _asset_keys(config: RivetConfig, export: Export) -> list[dg.AssetKey]:
    """List the assets of an export: one, or those of a drain."""
    from rivet_assets.dagster.build import asset_keys  # Dagster

    return asset_keys(export, config=config)


def _applied_keys(config: RivetConfig, export: Export) -> list[dg.AssetKey]:
    """List the tables kept beside the changes of an export."""
    from rivet_assets.dagster.build import applied_keys  # Dagster

    return applied_keys(export, config=config)


def _nodes(config: RivetConfig, export: Export) -> list[str]:
    """Name the steps of an export, as Dagster spells them."""
    from rivet_assets.dagster.build import step_names  # Dagster

    return step_names(export, config=config)


def _outcomes(config: RivetConfig, plan: Plan, recorder: Recorder, began: datetime) -> list[Outcome]:
    """Join what Dagster told with what the state store recorded of these very runs."""
    histories = _histories(config, [export for export, _ in plan], began)
    outcomes = []
    for export, keys in plan:
        step, history = recorder.steps[export.name], histories.get(export.name, RunRecords())
        outcomes.append(outcome_of(config, export, keys, step, history, run_failure=recorder.run_failure))
    return outcomes


def _histories(config: RivetConfig, exports: Iterable[Export], began: datetime) -> dict[str, RunRecords]:
    """Read this process's runs since `began`; {} when the store cannot be opened (exports say why)."""
    from rivet_assets.run.admit.scope import state_of  # start

    try:
        state = state_of(config)
    except RivetError:
        return {}
    found = {export.name: history_of(state, export, began) for export in exports}
    state.close()
    return found
