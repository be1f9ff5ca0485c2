"""How runs end, and how that is said: one Outcome per export, as a block, a table or JSON.

Belongs here: shapes and texts. Not here: running (`run.py`), the terminal (`cli.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

# The worst exit code of several exports: the first of these that is present (`contract.md`, section 14).
WORST_FIRST = (3, 4, 1, 2)


@dataclass(frozen=True)
class Outcome:
    """What became of one export in one `rivet run`; counts are of the windows it committed.

    `windows` are the committed ones of a partitioned export, `refused` those that were not. `message` is one clear
    sentence or two, '' on success; `traceback` is for people who asked for it.
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
    traceback: str = ""

    @property
    def success(self) -> bool:
        """Say whether everything that was asked for is committed (or rightly skipped)."""
        return self.status != "failed"

    @property
    def quality(self) -> str:
        """Word the gate's verdict: pass, FAIL (which), or '' when nothing was judged."""
        if self.checks_failed:
            return f"FAIL ({', '.join(self.checks_failed)})"
        return "pass" if self.checks_passed else ""


def worst_exit_code(outcomes: Iterable[Outcome]) -> int:
    """Answer for all exports together."""
    present = {outcome.exit_code for outcome in outcomes} - {0}
    return next((code for code in WORST_FIRST if code in present), max(present, default=0))


def human_bytes(count: float) -> str:
    """Write a size as people read it: 512 B, 1.5 KB, 3.2 MB."""
    for unit in ("B", "KB", "MB", "GB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TB"


def window_words(windows: Sequence[str]) -> str:
    """Name windows shortly: the one, or first … last and how many."""
    if len(windows) <= 1:
        return "".join(windows)
    return f"{windows[0]} … {windows[-1]} ({len(windows)})"


def block(outcome: Outcome) -> str:
    """Give the run summary of one export, one `name: value` per line (`contract.md`, 12.2)."""
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
        "quality": outcome.quality,
        "warning": "; ".join(outcome.warnings),
        "error": f"{outcome.message} [{outcome.code}]" if outcome.code else outcome.message,
    }
    width = max(map(len, lines))
    return "\n".join(f"  {name + ':':<{width + 1}} {text}" for name, text in lines.items() if text)


HEADINGS = ("export", "mode", "rows", "files", "bytes", "seconds", "checks")


def cells(outcome: Outcome) -> tuple[str, ...]:
    """Give one row of the closing table."""
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


def table(outcomes: Sequence[Outcome]) -> str:
    """Give the closing table as plain text; numbers to the right."""
    rows = [HEADINGS, *map(cells, outcomes)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADINGS))]
    numbers = {2, 3, 4, 5}

    def line(row: tuple[str, ...]) -> str:
        pairs = enumerate(zip(row, widths, strict=True))
        return "  ".join(cell.rjust(w) if column in numbers else cell.ljust(w) for column, (cell, w) in pairs).rstrip()

    rule = "  ".join("─" * width for width in widths)
    return "\n".join([line(rows[0]), rule, *map(line, rows[1:])])


def document(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Give the run as one JSON-able document: `--json`."""
    entries = [{name: value for name, value in asdict(o).items() if name != "traceback"} for o in outcomes]
    return {
        "success": all(outcome.success for outcome in outcomes),
        "exit_code": worst_exit_code(outcomes),
        "rows": sum(outcome.rows for outcome in outcomes),
        "files": sum(outcome.files for outcome in outcomes),
        "bytes": sum(outcome.bytes for outcome in outcomes),
        "exports": entries,
    }
