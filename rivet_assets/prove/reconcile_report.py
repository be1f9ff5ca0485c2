"""What `rivet reconcile` and `rivet repair` print, write and answer; and reading such a report again.

Belongs here: documents, lines for people, exit codes, which windows a report asks to repair. Not here: comparing
(`reconcile.py`), repairing (`repair.py`).

Keys of rows stand in these documents only under `--depth rows`, because somebody asked for them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rivet_assets.prove.reconcile_result import Reconciled, WindowVerdict
from rivet_assets.run.report import Line, Report, Section, Severity
from rivet_resources.errors import ConfigError

MISMATCH, NOT_VERIFIED = 3, 1
VERDICTS: Mapping[str, Severity] = {"match": "ok", "mismatch": "fail", "unknown": "warn"}
# What `rivet validate` finds wrong with single parts, and with the two files beside the manifests.
OF_PARTS = {f"RIVET_VERIFY_{each}" for each in ("PART_MISSING", "PART_SIZE_MISMATCH", "PART_CHECKSUM_MISMATCH")} | {
    "RIVET_VERIFY_PART_ROW_COUNT"
}
OF_MARKERS = {"RIVET_VERIFY_SUCCESS_MALFORMED", "RIVET_VERIFY_SUCCESS_STALE"}


@dataclass(frozen=True)
class Flagged:
    """A window that a report says to read again; `chunks` () for all of it. `run_id`: whose commit was looked at."""

    export: str
    window: str
    run_id: str = ""
    chunks: tuple[int, ...] = ()
    parts: tuple[str, ...] = ()  # files that are wrong, by their paths; their chunks are looked up in the manifest
    markers_only: bool = False  # its rows are whole, and only `manifest.json` or `_SUCCESS` are not
    reason: str = ""
    by_key: bool = False  # the rows of its dead letters alone, where that will do


def exit_code(found: Iterable[Reconciled], *, strict: bool) -> int:
    """Answer for all exports: 3 when rows differ; unknown is a warning, or 1 where `--strict` asks for proof."""
    verdicts = {each.verdict for each in found}
    if "mismatch" in verdicts:
        return MISMATCH
    return NOT_VERIFIED if strict and "unknown" in verdicts else 0


def document(found: Sequence[Reconciled]) -> dict[str, Any]:
    """Return the report as plain data."""
    return {
        "report": "reconcile",
        "exports": [
            {
                "export": each.export,
                "mode": each.mode,
                "depth": each.depth,
                "verdict": each.verdict,
                "source_count": each.source_count,
                "exported_rows": each.exported_rows,
                "matched": each.verdict == "match",
                "windows": [asdict(window) for window in each.windows],
            }
            for each in found
        ],
    }


def render(found: Sequence[Reconciled]) -> Report:
    """Return a section per export, with a line for each window that does not match."""
    return Report([*map(_section, found)])


def _section(found: Reconciled) -> Section:
    rows = []
    for window in found.windows:
        if window.verdict != "match" and len(found.windows) > 1:
            rows.append(Line((), f"{window.window}: {window.verdict}, {window.text}"))
        rows += [Line((), f"  {example}") for example in examples_of(window)]
    return Section(
        f"{found.export}: {found.verdict}, {found.text}", rows, severity=VERDICTS[found.verdict], apart=False
    )


def examples_of(window: WindowVerdict) -> list[str]:
    """Name the rows that differ by their keys, for the person who asked for rows."""
    if window.rows is None:
        return []
    return [f"{each.kind}: {', '.join(each.key)}" for each in window.rows.examples]


# --- reading a report ----------------------------------------------------------------------------


def flagged_of(found: Reconciled) -> tuple[Flagged, ...]:
    """Return the windows to repair of a comparison that was just made."""
    return tuple(
        Flagged(found.export, each.window, each.run_id, each.broken_chunks, reason=each.text)
        for each in found.windows
        if each.verdict == "mismatch"
    )


def read_report(path: Path) -> tuple[Flagged, ...]:
    """Read a report of `rivet reconcile --json` or `rivet validate --json`.

    Raises:
        ConfigError: the file cannot be read, or is no such report.
    """
    try:
        found = flagged_in(json.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise ConfigError(f"Report {path} cannot be read: {error.strerror}.") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ConfigError(
            f"{path} is no report; write one with `rivet reconcile -o FILE`, or `rivet validate --json > FILE`."
        ) from error
    return found


def flagged_in(report: Mapping[str, Any]) -> tuple[Flagged, ...]:
    """Find the windows that a report says are wrong, in the order in which they stand there.

    Raises:
        KeyError, TypeError, ValueError: it is no report.
    """
    flagged = []
    for export in report["exports"]:
        pick = _flag_of_validate if "findings" in export else _flag_of_reconcile
        wrong = [window for window in export["windows"] if window["verdict"] == "mismatch"]
        flagged += [pick(export, window) for window in wrong]
    return tuple(flagged)


def _flag_of_reconcile(export: Mapping[str, Any], window: Mapping[str, Any]) -> Flagged:
    chunks = () if window.get("outside_rows") else tuple(int(chunk["chunk"]) for chunk in window.get("chunks") or ())
    text = window.get("text") or ""
    return Flagged(export["export"], window["window"], window.get("run_id") or "", chunks, reason=text)


def _flag_of_validate(export: Mapping[str, Any], window: Mapping[str, Any]) -> Flagged:
    """Take the parts that are wrong, where nothing else is; a stale marker alone needs no row."""
    wrong = [each for each in export["findings"] if each["window"] == window["window"] and each["kind"] == "wrong"]
    codes = {str(each["code"]) for each in wrong}
    return Flagged(
        export["export"],
        window["window"],
        window["run_id"],
        parts=tuple(str(each["path"]) for each in wrong) if codes <= OF_PARTS else (),
        markers_only=bool(codes) and codes <= OF_MARKERS,
        reason=", ".join(sorted(codes)),
    )
