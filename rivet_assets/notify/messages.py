"""Which endings of a run people asked to hear of, and the words they get: facts in, bodies out.

Belongs here: deciding and wording, for `rivet run` and Dagster alike. Not here: addresses and sending
(`notify.py`, `rivet_resources/webhooks.py`), the YAML block (`blocks/notifications.py`).

Bodies leave the machine. They hold names, counts and the texts of our own errors, which promise to hold no row value
and no secret; of anybody else's error only the class is told.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from rivet_assets.blocks.notifications import Trigger
from rivet_resources.errors import DriftRefused
from rivet_resources.state.runs import RunRecord

FAILED = "#e74c3c"  # colours: `contract.md`, 1.7
OTHERWISE = "#f39c12"
LONGEST_ERROR = 2000  # characters; Slack cuts attachments by itself above 3000
NO_SUCCESS = ("failed", "interrupted")


@dataclass(frozen=True)
class Ended:
    """How one export ended in one run, all its windows together. `error` is safe to show."""

    export: str
    status: Literal["success", "skipped", "failed"]
    run_id: str
    at: datetime
    rows: int = 0
    duration_ms: int = 0
    code: str = ""
    error: str = ""
    schema_changed: bool = False
    degraded: bool = False  # it succeeded, but not undisturbed
    recovered: bool = False  # the run before it failed
    asset_key: str = ""  # as Dagster writes it: shop/orders; '' of a run without Dagster
    partition: str = ""  # a key, or first...last
    dagster_run_id: str = ""


def sum_up(
    export: str,
    records: Sequence[RunRecord],
    *,
    before: RunRecord | None,
    status: Literal["success", "skipped", "failed"] | None = None,
    code: str = "",
    error: str = "",
    run_id: str = "",
) -> Ended:
    """Sum up the records of one run, oldest first; `before` is the export's newest older one.

    Args:
        status, code, error: what is known better than from the records; `error` is of ours.
        run_id: of a run that left no record.
    """
    committed = [record for record in records if record.status == "success"]
    ends = [record.finished_at for record in records if record.finished_at is not None]
    last = next((record for record in reversed(records) if record.status in NO_SUCCESS), None)
    status = status or ("success" if committed else "failed" if last else "skipped")
    began = min((record.started_at for record in records), default=None)
    code = code or (last.error_code or "" if last and status == "failed" else "")
    return Ended(
        export=export,
        status=status,
        run_id=records[-1].run_id if records else run_id,
        at=max(ends, default=datetime.now(UTC)),
        rows=sum(record.total_rows for record in committed),
        duration_ms=round((max(ends) - began).total_seconds() * 1000) if ends and began else 0,
        code=code,
        error=error or (last.error_message or "" if last and status == "failed" else ""),
        schema_changed=any(record.schema_changed for record in records) or code == DriftRefused.code,
        degraded=bool(committed) and (last is not None or any(record.degraded for record in committed)),
        recovered=bool(committed) and before is not None and before.status in NO_SUCCESS,
    )


def triggers(end: Ended) -> tuple[Trigger, ...]:
    """Name what happened, of the things that can be asked for (`contract.md`, 1.7)."""
    failed = end.status == "failed"
    happened: Mapping[Trigger, bool] = {
        "failure": failed,
        "schema_change": end.schema_changed,
        "degraded": end.degraded and not failed,
        "recovered": end.recovered and not failed,
    }
    return tuple(trigger for trigger, is_so in happened.items() if is_so)


def run_url(end: Ended, webserver_url: str | None) -> str | None:
    """Return the page of the run in Dagster's webserver; None where either is not known."""
    return f"{webserver_url.rstrip('/')}/runs/{end.dagster_run_id}" if webserver_url and end.dagster_run_id else None


def slack_body(end: Ended, *, webserver_url: str | None = None) -> dict[str, Any]:
    """Word one run of an export for Slack: one attachment, whatever happened at once."""
    link = run_url(end, webserver_url)
    failed = end.status == "failed"
    notes = [word for word in ("degraded", "recovered") if not failed and getattr(end, word)]
    aside = f" ({', '.join(notes)})" if notes else ""
    lines = [
        f"*Export:* {_escape(end.export)}",
        f"*Partition:* {_escape(end.partition)}" if end.partition else "",
        f"*Status:* {end.status}{aside}",
        f"*Rows:* {end.rows}",
        f"*Duration:* {end.duration_ms} ms",
        f"*Error:* {_escape(_error(end))}" if end.error or end.code else "",
        "*Schema changed*" if end.schema_changed else "",
        f"<{_escape(link)}|Run in Dagster>" if link else "",
    ]
    attachment = {
        "color": FAILED if failed else OTHERWISE,
        "title": f"Rivet: {_escape(end.run_id)}",
        "text": "\n".join(line for line in lines if line),
    }
    return {"attachments": [attachment]}


def webhook_body(end: Ended, event: Trigger, *, webserver_url: str | None = None) -> dict[str, Any]:
    """Word one event as plain JSON; the keys are always the same."""
    return {
        "event": event,
        "export": end.export,
        "status": end.status,
        "run_id": end.run_id,
        "rows": end.rows,
        "duration_ms": end.duration_ms,
        "code": end.code or None,
        "error": end.error[:LONGEST_ERROR] or None,
        "schema_changed": end.schema_changed,
        "at": end.at.astimezone(UTC).isoformat(),
        "asset_key": end.asset_key or None,
        "partition": end.partition or None,
        "dagster_run_id": end.dagster_run_id or None,
        "run_url": run_url(end, webserver_url),
    }


def _error(end: Ended) -> str:
    told = end.error[:LONGEST_ERROR]
    return f"{told} [{end.code}]" if told and end.code else told or end.code


def _escape(text: str) -> str:
    """Write a text so that Slack shows it: unescaped, `<!channel>` in a name would call everybody."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
