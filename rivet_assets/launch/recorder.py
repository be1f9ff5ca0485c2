"""What Dagster tells while it runs our exports, kept per export and passed on to whoever watches.

Belongs here: reading its event stream as it happens. Not here: starting runs (`run_exports.py`), words (`outcome.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rivet_assets.run import interruption
from rivet_assets.run.progress import Progress

if TYPE_CHECKING:
    import dagster as dg


@dataclass(frozen=True)
class News:
    """Something that just happened in a run, for a progress line. `text` is '' unless `what` is note or failed."""

    what: str  # started, progress, committed, failed, finished, note
    export: str
    window: str = ""
    text: str = ""
    progress: Progress | None = None  # of progress alone


Watch = Callable[[News], None]


@dataclass
class Step:
    """What the event stream told about one export."""

    ended: bool = False
    passed: int = 0
    failed: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    windows: list[str] = field(default_factory=list)
    message: str = ""
    code: str = ""
    exit_code: int = 1
    cause: str = ""  # class of the first error of the chain, where it is not ours
    traceback: str = ""


class Recorder(logging.Handler):
    """Dagster's event stream of our runs, as it happens: kept per export, and told to whoever watches."""

    def __init__(self, exports: dict[str, str], watch: Watch) -> None:
        super().__init__(logging.DEBUG)
        self.steps = {name: Step() for name in exports.values()}
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

    def progressed(self, progress: Progress) -> None:
        """Take a step of progress, from whatever thread; of our exports only."""
        if progress.export in self.steps:
            self._watch(News("progress", progress.export, progress.window, progress=progress))

    def _take(self, record: logging.LogRecord) -> None:
        meta: dict[str, Any] = getattr(record, "dagster_meta", {})
        event = meta.get("dagster_event")
        export = self._exports.get(str((event.step_key if event else None) or meta.get("step_key")))
        if event is not None and export is None and event.event_type_value == "PIPELINE_FAILURE":
            self.run_failure = self.run_failure or _first_words(event)
        if export is None:
            return
        if event is None:
            text = str(meta.get("orig_message") or record.getMessage())
            # Ours begin with the export's name; Dagster warns of things that are none of a user's.
            if record.levelno >= logging.WARNING and text.startswith(f"{export}: "):
                self.steps[export].warnings.append(text.removeprefix(f"{export}: "))
            self._watch(News("note", export, text=text))
            return
        taken = getattr(self, f"_on_{event.event_type_value.lower()}", None)
        if taken is not None:
            taken(event, export, self.steps[export])

    def _on_step_start(self, event: dg.DagsterEvent, export: str, step: Step) -> None:
        self._watch(News("started", export))

    def _on_asset_materialization(self, event: dg.DagsterEvent, export: str, step: Step) -> None:
        window = event.partition or ""
        # Its dead letters, or another table of its drain, are assets of the same step.
        if window in step.windows:
            return
        step.windows.append(window)
        self._watch(News("committed", export, window))

    def _on_asset_check_evaluation(self, event: dg.DagsterEvent, export: str, step: Step) -> None:
        check = event.asset_check_evaluation_data
        name = f"{check.check_name} {check.partition}" if getattr(check, "partition", None) else check.check_name
        if check.passed:
            step.passed += 1
        elif check.severity.value == "ERROR":
            step.failed.append(name)
        else:
            step.warnings.append(f"{name}: {check.description}" if check.description else name)

    def _on_step_success(self, event: dg.DagsterEvent, export: str, step: Step) -> None:
        step.ended = True
        self._watch(News("finished", export, window=step.windows[-1] if step.windows else ""))

    def _on_step_failure(self, event: dg.DagsterEvent, export: str, step: Step) -> None:
        failure = event.step_failure_data
        step.ended = True
        self.interrupted = self.interrupted or interruption.is_asked() or _was_interrupted(failure.error)
        # A drain that failed takes the tables made of its changes along: its reason is that of all, words and code.
        if not step.message:
            _note_failure(step, failure)
        self._watch(News("failed", export, text=step.message))


def _note_failure(step: Step, failure: Any) -> None:
    metadata = failure.user_failure_data.metadata if failure.user_failure_data else {}
    words = failure.user_failure_data.description if failure.user_failure_data else None
    step.message = words or _cause(failure.error)
    step.code = str(getattr(metadata.get("rivet/code"), "value", ""))
    step.cause = "" if step.code else _first_error(failure.error)
    step.exit_code = int(getattr(metadata.get("rivet/exit_code"), "value", 1))
    step.traceback = failure.error.to_string() if failure.error else ""


def _was_interrupted(error: Any) -> bool:
    """Return whether a chain of errors begins with the user's Ctrl-C."""
    while error is not None:
        if error.cls_name in ("DagsterExecutionInterruptedError", "KeyboardInterrupt"):
            return True
        error = error.cause
    return False


def _first_error(error: Any) -> str:
    """Name the class of the first error of a chain of them: all that may be told of an error that is not ours."""
    while error is not None and error.cause is not None:
        error = error.cause
    return str(error.cls_name or "") if error is not None else ""


def _cause(error: Any) -> str:
    """Find the first error of a chain of them, in one line."""
    while error is not None and error.cause is not None:
        error = error.cause
    return str(error.message).strip().splitlines()[0] if error is not None else "failed without an error"


def _first_words(event: dg.DagsterEvent) -> str:
    failure = event.job_failure_data
    return _cause(failure.error) if failure and failure.error else str(event.message or "")
