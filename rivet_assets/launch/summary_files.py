"""The summary of each run as files beside the config: `.rivet/runs/<run id>/summary.json` and `.md`.

Belongs here: their fields (`contract.md`, 12.2), writing them, keeping the newest. Not here: the block on the
terminal (`outcome.py`). A run never fails for want of them: trouble is one line.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rivet_assets.launch.outcome import Outcome, block, document
from rivet_assets.launch.outcome_of_run import safe_error
from rivet_assets.run.attempt import new_run_id
from rivet_resources.contracts.settings import pace

if TYPE_CHECKING:
    from rivet_assets.config.load import RivetConfig

KEPT = 100  # run folders
FOLDER = Path(".rivet", "runs")
MOST_WINDOWS = 10  # named in the command that runs the rest again


def write_run_files(
    config: RivetConfig,
    outcomes: Sequence[Outcome],
    *,
    tell: Callable[[str], None],
    context: Mapping[str, Any] | None = None,
) -> None:
    """Write both files of each export's run, then remove the folders of old runs; trouble goes to `tell`.

    Args:
        context: of a `rivet apply`: plan and forced gates; None for a plain run.
    """
    runs = config.folder / FOLDER
    try:
        for outcome in outcomes:
            facts = summary(config, outcome, context=context)
            folder = runs / facts["run_id"]
            folder.mkdir(parents=True, exist_ok=True)
            _write(folder / "summary.json", json.dumps(facts, indent=2, default=str) + "\n")
            _write(folder / "summary.md", markdown(facts, outcome))
        # Another run may be at the same.
        with suppress(OSError):
            _forget_old(runs)
    except OSError as error:
        tell(f"warning: {runs} cannot be written ({error.strerror}), so this run has no summary files")


def write_summary(path: Path, outcomes: Sequence[Outcome], *, tell: Callable[[str], None]) -> None:
    """Write all outcomes as one JSON document where `--summary-output` says; trouble goes to `tell`."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _write(path, json.dumps(document([*map(_without_foreign_text, outcomes)]), indent=2, default=str) + "\n")
    except OSError as error:
        tell(f"warning: --summary-output {path} cannot be written ({error.strerror})")


def summary(config: RivetConfig, outcome: Outcome, *, context: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the facts of one export's run, under the original's names; further down what only we have."""
    export = next(each for each in config.exports if each.name == outcome.export)
    now = datetime.now(UTC)
    failed = outcome.status == "failed"
    return {
        # An export that failed before it began has no run, and its summary needs a folder all the same.
        "run_id": outcome.run_ids[-1] if outcome.run_ids else new_run_id(outcome.export, now),
        "export_name": outcome.export,
        "status": outcome.status,
        "started_at": _instant(outcome.started_at),
        "finished_at": _instant(outcome.finished_at),
        "duration_ms": round(outcome.seconds * 1000),
        "source_engine": outcome.source_type,
        "destination_kind": outcome.destination_type,
        "format": outcome.format,
        "compression": outcome.compression,
        "tuning_profile": outcome.tuning_profile,
        "batch_size": pace(config.source_of(export)[1].tuning, export.tuning).batch_size,
        "total_rows": outcome.rows,
        "files_produced": outcome.files,
        "bytes_written": outcome.bytes,
        "peak_rss_mb": round(outcome.peak_mb, 1),
        "retries": outcome.retries,
        "pg_temp_bytes_delta": outcome.harm.get("temp_bytes"),
        "validation": outcome.validation,
        "reconciliation": outcome.reconciliation,
        "schema_changed": outcome.schema_changed,
        "schema_changes": outcome.schema_changes or None,
        "plan_warnings": list(outcome.notes),
        "error_message": safe_error(outcome) or None,
        "resumable": outcome.resumable,
        "resume_command": resume_command(config, outcome) if failed else None,
        "apply_context": context,
        "error_code": outcome.code or None,
        "exit_code": outcome.exit_code,
        "run_ids": list(outcome.run_ids),
        "windows": list(outcome.windows),
        "refused": list(outcome.refused),
        "rows_read": outcome.rows_read,
        "checks_passed": outcome.checks_passed,
        "checks_failed": list(outcome.checks_failed),
        "degraded": outcome.degraded,
        "harm": dict(outcome.harm) or None,
    }


def markdown(facts: Mapping[str, Any], outcome: Outcome) -> str:
    """Word a run for people: the terminal's block, what the plan warned of, how to run it again."""
    notes = [f"- {note}" for note in outcome.notes]
    return "\n".join([
        f"# {facts['export_name']}: {facts['status']}",
        "",
        f"Run `{facts['run_id']}`, {facts['started_at'] or 'never started'} to {facts['finished_at'] or '–'}.",
        "",
        "```",
        str(block(_without_foreign_text(outcome))),
        "```",
        *(["", "Warnings of the plan:", "", *notes] if notes else []),
        *(["", f"Run it again: `{facts['resume_command']}`"] if facts["resume_command"] else []),
        "",
    ])  # fmt: skip


def resume_command(config: RivetConfig, outcome: Outcome) -> str:
    """Return the command that does what this run left undone; finished chunks are kept by themselves."""
    words = ["rivet", "run", *(["-c", str(config.file)] if config.file else []), "-e", outcome.export]
    for window in outcome.refused if len(outcome.refused) <= MOST_WINDOWS else ():
        words += ["--partition", window]
    if len(outcome.refused) > MOST_WINDOWS:
        words += ["--partition-range", f"{outcome.refused[0]}...{outcome.refused[-1]}"]
    return shlex.join(words)


def _without_foreign_text(outcome: Outcome) -> Outcome:
    """Leave out the text of an error that is not ours: files stay, and may hold no row value."""
    return replace(outcome, message=safe_error(outcome))


def _instant(at: datetime | None) -> str | None:
    return at.astimezone(UTC).isoformat() if at else None


def _write(path: Path, text: str) -> None:
    """Write whole or not at all, as far as a reader can see."""
    # With the process in its name, so that two runs of one folder do not write into each other's file.
    new = path.with_name(f".{path.name}.{os.getpid()}")
    new.write_text(text, encoding="utf-8")
    os.replace(new, path)


def _forget_old(runs: Path) -> None:
    """Remove the oldest run folders, except what somebody else put things into."""
    folders = [each for each in runs.iterdir() if each.is_dir()]
    newest_first = sorted(folders, key=lambda each: each.stat().st_mtime, reverse=True)
    for old in newest_first[KEPT:]:
        if {each.name for each in old.iterdir()} <= {"summary.json", "summary.md"}:
            shutil.rmtree(old, ignore_errors=True)
