"""How runs end, and how that is said: one Outcome per export, as a block, a table or JSON.

Belongs here: shapes and texts. Not here: running (`run_exports.py`), the terminal (`cli/main.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any, Literal

from rivet_assets.run.judge.drain_verdicts import lag_text
from rivet_assets.run.report import Line, Report, Section, Severity, Table
from rivet_assets.run.words import human_bytes, window_words
from rivet_resources.contracts.change_log import Lag
from rivet_resources.errors import WORST_FIRST, RivetError

HIDDEN = ("traceback",)  # of an outcome, in documents


@dataclass(frozen=True)
class Outcome:
    """What became of one export in one `rivet run`; counts are of the windows it committed.

    `windows` are the committed ones of a partitioned export, `refused` those that were not. `message` is one clear
    sentence or two, '' on success; without a `code` it is not a text of Rivet's and may hold anything, but `cause`,
    the class of that error, may be told. `traceback` is for people who asked for it. `validation` and
    `reconciliation` are None unless they were asked for.
    """

    export: str
    source: str
    mode: str
    status: Literal["success", "skipped", "failed"]
    windows: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    rows: int = 0
    files: int = 0
    bytes: int = 0
    seconds: float = 0.0
    peak_mb: float = 0.0
    retries: int = 0
    checks_passed: int = 0
    checks_failed: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    code: str = ""
    message: str = ""
    exit_code: int = 0
    run_ids: tuple[str, ...] = ()
    cause: str = ""
    traceback: str = ""
    started_at: datetime | None = None
    finished_at: datetime | None = None
    source_type: str = ""
    destination_type: str = ""
    format: str = ""
    compression: str = ""
    tuning_profile: str = ""
    rows_read: int = 0
    harm: Mapping[str, float] = field(default_factory=dict)
    slowed_because: str = ""  # why the governor first slowed the reading down
    schema_changed: bool = False
    schema_changes: str = ""
    notes: tuple[str, ...] = ()  # what the plans warned of
    degraded: bool = False  # it succeeded, but not undisturbed
    recovered: bool = False  # the run before it failed
    resumable: bool = False  # it failed, and chunks that are finished will not be read again
    validation: Mapping[str, Any] | None = None
    reconciliation: Mapping[str, Any] | None = None

    @property
    def success(self) -> bool:
        """Return whether everything that was asked for is committed (or rightly skipped)."""
        return self.status != "failed"

    @property
    def quality(self) -> str:
        """Word the gate's verdict: pass, FAIL (which), or '' when nothing was judged."""
        if self.checks_failed:
            return f"FAIL ({', '.join(self.checks_failed)})"
        return "pass" if self.checks_passed else ""

    @property
    def validated(self) -> str:
        """Word what was proved after publishing: pass, FAIL, unknown; '' when nobody asked."""
        proofs = [("parts", self.validation), ("source rows", self.reconciliation)]
        return ", ".join(f"{name} {_proof(found)}" for name, found in proofs if found is not None)


def not_begun(export: str, error: RivetError, *, source: str, mode: str) -> Outcome:
    """Return the outcome of an export that failed before its run began, as its windows could not be had."""
    return Outcome(
        export=export, source=source, mode=mode, status="failed", code=error.code, message=str(error),
        exit_code=error.exit_code,
    )  # fmt: skip


def worst_exit_code(outcomes: Iterable[Outcome]) -> int:
    """Answer for all exports together."""
    present = {outcome.exit_code for outcome in outcomes} - {0}
    # A code that the list does not know still must not end as success.
    return next((code for code in WORST_FIRST if code in present), max(present, default=0))


def worst(outcomes: Iterable[Outcome]) -> Outcome | None:
    """Find the first outcome that decides the exit code; None when all went well."""
    outcomes = list(outcomes)
    code = worst_exit_code(outcomes)
    return next((outcome for outcome in outcomes if code and outcome.exit_code == code), None)


def block(outcome: Outcome) -> Report:
    """Return the run summary of one export, one `name: value` per line (`contract.md`, 12.2)."""
    lines = {
        "export": outcome.export,
        "status": outcome.status,
        "rows": f"{outcome.rows:,}",
        "files": f"{outcome.files:,}",
        "bytes": human_bytes(outcome.bytes),
        "duration": f"{outcome.seconds:.1f} s",
        "peak RSS": f"{outcome.peak_mb:.0f} MB" if outcome.peak_mb else "",
        "window": window_words(outcome.windows),
        "refused": window_words(outcome.refused),
        "retries": str(outcome.retries) if outcome.retries else "",
        "validated": outcome.validated,
        "quality": outcome.quality,
        "schema": f"CHANGED: {outcome.schema_changes or 'see the log'}" if outcome.schema_changed else "",
        "lag": lag_words(outcome.harm),
        "harm": harm_words(outcome.harm, slowed_because=outcome.slowed_because),
        "warning": "; ".join(outcome.warnings),
        "error": f"{outcome.message} [{outcome.code}]" if outcome.code else outcome.message,
    }
    severity: Severity = "ok" if outcome.status == "success" else "fail" if outcome.status == "failed" else ""
    severities: Mapping[str, Severity] = {"status": severity, "error": "fail", "warning": "warn", "schema": "warn"}
    rows = [Line((f"{name}:",), text, severities.get(name, "")) for name, text in lines.items() if text]
    return Report([Section("", rows)], gap=1)


HEADINGS = ("export", "mode", "rows", "files", "bytes", "seconds", "checks")


def cells(outcome: Outcome) -> tuple[str, ...]:
    """Return one row of the closing table."""
    failed = len(outcome.checks_failed)
    checks = f"{outcome.checks_passed} passed" + (f", {failed} FAILED" if failed else "")
    if not outcome.checks_passed and not failed:
        checks = "–"
    if outcome.status == "failed" and not failed:
        checks = "FAILED"
    return (
        outcome.export, outcome.mode, f"{outcome.rows:,}", f"{outcome.files:,}", human_bytes(outcome.bytes),
        f"{outcome.seconds:.1f}", checks,
    )  # fmt: skip


def table(outcomes: Sequence[Outcome]) -> Table:
    """Return the closing table; numbers to the right."""
    return Table(HEADINGS, [*map(cells, outcomes)], numbers=frozenset({2, 3, 4, 5}), rule=True)


def document(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Return the run as one JSON-able document: `--json`."""
    entries = [{name: _plain(value) for name, value in asdict(o).items() if name not in HIDDEN} for o in outcomes]
    return {
        "success": all(outcome.success for outcome in outcomes),
        "exit_code": worst_exit_code(outcomes),
        "rows": sum(outcome.rows for outcome in outcomes),
        "files": sum(outcome.files for outcome in outcomes),
        "bytes": sum(outcome.bytes for outcome in outcomes),
        "exports": entries,
    }


def _plain(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime) else value


def _proof(found: Mapping[str, Any]) -> str:
    """Word a proof: it passed, did not, or (None) nothing could be said."""
    passed = found.get("passed", found.get("matched"))
    return "unknown" if passed is None else "pass" if passed else "FAIL"


# What of `Staged.harm` is worth a word in the summary's one line, in this order; a word that is '' is left out.
HARM_WORDS: Sequence[tuple[str, Callable[[float], str]]] = (
    ("longest_statement_ms", lambda ms: f"longest statement {ms / 1000:.2f} s"),
    ("rows_scanned_per_row", lambda ratio: f"{ratio:.1f} rows read per row returned"),
    ("governed_seconds", lambda seconds: f"governed {seconds:.0f} s" if seconds >= 0.5 else ""),
    ("steps_down", lambda steps: f"slowed down {steps:.0f} time{'' if steps == 1 else 's'}" if steps else ""),
    ("most_lock_waits_seen", lambda waits: f"{waits:.0f} sessions waiting for locks" if waits else ""),
    ("log_read_seconds", lambda seconds: f"log read for {seconds:.1f} s"),
    ("log_held_bytes", lambda size: f"{human_bytes(size)} of log kept for us"),
    ("temp_bytes", lambda size: f"{human_bytes(size)} of temporary files" if size else ""),
)


def lag_words(harm: Mapping[str, float]) -> str:
    """Return in one line how far a drain still is behind; '' where no log was read."""
    if "log_read_seconds" not in harm:
        return ""
    unread, size, seconds = (harm.get(f"lag_{name}") for name in ("changes", "bytes", "seconds"))
    whole = [None if number is None else round(number) for number in (unread, size)]
    return lag_text(Lag(unread_changes=whole[0], unread_bytes=whole[1], seconds=seconds))


def harm_words(harm: Mapping[str, float], *, slowed_because: str = "") -> str:
    """Return in one line what the reading cost the source; '' where nobody measured."""
    words = {name: word(harm[name]) for name, word in HARM_WORDS if name in harm}
    if words.get("steps_down") and slowed_because:
        words["steps_down"] += f" ({slowed_because})"
    return ", ".join(word for word in words.values() if word)
