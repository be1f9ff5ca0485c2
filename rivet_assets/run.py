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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

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


@dataclass(frozen=True)
class News:
    """Something that just happened in a run, for a progress line. `text` is '' unless `what` is note or failed."""

    what: str  # started, committed, failed, finished, note
    export: str
    window: str = ""
    text: str = ""


Watch = Callable[[News], None]
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
        return _run_plan(config, [(export, _keys(export, partitions)) for export in exports], watch)


def run_windows(config: RivetConfig, windows: Mapping[str, Sequence[str]], *, watch: Watch) -> list[Outcome]:
    """Run all exports, those of `windows` for just these keys; one Outcome each.

    Raises:
        ConfigError: an export has no such partition; nothing ran.
    """
    with _warm_spark(config, config.exports):
        plan = [(export, _keys(export, windows.get(export.name, ()))) for export in config.exports]
        return _run_plan(config, plan, watch)


def _run_plan(config: RivetConfig, plan: Plan, watch: Watch) -> list[Outcome]:
    recorder = _Recorder({_node(config, export): export.name for export, _ in plan}, watch)
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


def _keys(export: Export, partitions: Sequence[str]) -> list[str] | None:
    """List the windows to run; None for an export without partitions."""
    from rivet_assets.partitions import due_keys, partitions_of, window_of

    definition = partitions_of(export)
    if definition is None:
        return None
    if not partitions:
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
    if settings.engine == "inline" or not exports:
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


def _execute(config: RivetConfig, plan: Plan, recorder: _Recorder) -> None:
    """Start the Dagster runs one after another; nothing a run does raises here."""
    import dagster as dg

    from rivet_assets.definitions import definitions_of

    base = definitions_of(config)

    logger = logging.Logger("rivet.run", logging.DEBUG)
    logger.addHandler(recorder)
    listening = dg.LoggerDefinition(lambda _: logger, description="What `rivet run` shows")
    definitions = dg.Definitions.merge(base, dg.Definitions(loggers={"rivet": listening}))
    job = definitions.resolve_implicit_global_asset_job_def()
    whole = [_asset_key(config, export) for export, keys in plan if keys is None]
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
                go([_asset_key(config, export)], tags)


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


def _asset_key(config: RivetConfig, export: Export) -> dg.AssetKey:
    from rivet_assets.specs import asset_key

    return asset_key(export, config=config)


def _node(config: RivetConfig, export: Export) -> str:
    """Name the step of an export, as Dagster spells it."""
    return str(_asset_key(config, export).to_python_identifier())


@dataclass
class _Step:
    """What the event stream told about one export."""

    ended: bool = False
    passed: int = 0
    failed: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    windows: list[str] = field(default_factory=list)
    message: str = ""
    code: str = ""
    exit_code: int = 1
    traceback: str = ""


class _Recorder(logging.Handler):
    """Dagster's event stream of our runs, as it happens: kept per export, and told to whoever watches."""

    def __init__(self, exports: dict[str, str], watch: Watch) -> None:
        super().__init__(logging.DEBUG)
        self.steps = {name: _Step() for name in exports.values()}
        self.run_failure = ""
        self.interrupted = False  # Dagster turns a Ctrl-C into the failure of a step
        self._exports = exports
        self._watch = watch

    def emit(self, record: logging.LogRecord) -> None:
        """Take one event, or one line of a step's log; watching must not be able to end a run."""
        try:
            self._take(record)
        except Exception:
            self.handleError(record)

    def _take(self, record: logging.LogRecord) -> None:
        meta: dict[str, Any] = getattr(record, "dagster_meta", {})
        event = meta.get("dagster_event")
        export = self._exports.get(str((event.step_key if event else None) or meta.get("step_key")))
        if event is not None and export is None and event.event_type_value == "PIPELINE_FAILURE":
            self.run_failure = self.run_failure or _first_words(event)
        if export is None:
            return
        if event is None:
            self._watch(News("note", export, text=str(meta.get("orig_message") or record.getMessage())))
            return
        taken = getattr(self, f"_on_{event.event_type_value.lower()}", None)
        if taken is not None:
            taken(event, export, self.steps[export])

    def _on_step_start(self, event: dg.DagsterEvent, export: str, step: _Step) -> None:
        self._watch(News("started", export))

    def _on_asset_materialization(self, event: dg.DagsterEvent, export: str, step: _Step) -> None:
        window = event.partition or ""
        step.windows.append(window)
        self._watch(News("committed", export, window))

    def _on_asset_check_evaluation(self, event: dg.DagsterEvent, export: str, step: _Step) -> None:
        check = event.asset_check_evaluation_data
        name = f"{check.check_name} {check.partition}" if getattr(check, "partition", None) else check.check_name
        if check.passed:
            step.passed += 1
        elif check.severity.value == "ERROR":
            step.failed.append(name)
        else:
            step.warnings.append(f"{name}: {check.description}" if check.description else name)

    def _on_step_success(self, event: dg.DagsterEvent, export: str, step: _Step) -> None:
        step.ended = True
        self._watch(News("finished", export, window=step.windows[-1] if step.windows else ""))

    def _on_step_failure(self, event: dg.DagsterEvent, export: str, step: _Step) -> None:
        failure = event.step_failure_data
        metadata = failure.user_failure_data.metadata if failure.user_failure_data else {}
        words = failure.user_failure_data.description if failure.user_failure_data else None
        step.ended = True
        self.interrupted = self.interrupted or _was_interrupted(failure.error)
        step.message = step.message or words or _cause(failure.error)
        step.code = str(getattr(metadata.get("rivet/code"), "value", "")) or step.code
        step.exit_code = int(getattr(metadata.get("rivet/exit_code"), "value", 1))
        step.traceback = failure.error.to_string() if failure.error else ""
        self._watch(News("failed", export, text=step.message))


def _was_interrupted(error: Any) -> bool:
    """Say whether a chain of errors begins with the user's Ctrl-C."""
    while error is not None:
        if error.cls_name in ("DagsterExecutionInterruptedError", "KeyboardInterrupt"):
            return True
        error = error.cause
    return False


def _cause(error: Any) -> str:
    """Find the first error of a chain of them, in one line."""
    while error is not None and error.cause is not None:
        error = error.cause
    return str(error.message).strip().splitlines()[0] if error is not None else "failed without an error"


def _first_words(event: dg.DagsterEvent) -> str:
    failure = event.job_failure_data
    return _cause(failure.error) if failure and failure.error else str(event.message or "")


def _outcomes(config: RivetConfig, plan: Plan, recorder: _Recorder, began: datetime) -> list[Outcome]:
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
    step: _Step,
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
        windows=tuple(dict.fromkeys(record.window for record in committed)),
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
