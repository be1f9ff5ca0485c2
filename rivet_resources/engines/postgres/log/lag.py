"""How far behind a slot is and what that costs its server (`cdc.md`, section 10).

Belongs here: one statement, and the reckoning over it. Not here: thresholds, which are the checks' business.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from rivet_resources.contracts.change_log import Capture, Lag, Position
from rivet_resources.engines.postgres.log.lsn import lsn_number
from rivet_resources.engines.shared.unread import DatedSurvey, seconds_unread

# Columns that one version has and another has not are read from the row as JSON. What a role may not see is NULL.
LAG = """
SELECT json_build_object(
    'end', e.lsn::text,
    'slot', to_jsonb(r),
    'held', pg_wal_lsn_diff(e.lsn, r.restart_lsn)::int8,
    'unread', pg_wal_lsn_diff(e.lsn, r.confirmed_flush_lsn)::int8,
    'keep_mb', (SELECT setting::int8 FROM pg_settings WHERE name = 'max_slot_wal_keep_size'),
    'oldest_xid_age', (SELECT max(age(backend_xid)) FROM pg_stat_activity),
    'spill', (SELECT to_jsonb(t) FROM pg_stat_replication_slots t WHERE t.slot_name = %s))
FROM (SELECT CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_flush_lsn() END) AS e (lsn)
LEFT JOIN pg_replication_slots AS r ON r.slot_name = %s"""
SPILL = ("spill_txns", "spill_count", "spill_bytes", "total_txns", "total_bytes")


def lag(
    ask: Callable[..., list[tuple[Any, ...]]], capture: Capture, *, at: Position | None, seen: DatedSurvey | None
) -> Lag:
    """Measure with one statement.

    Args:
        at: the committed position; None: the slot's own.
        seen: the last survey of this process, if it made one.
    """
    found = ask(LAG, (capture.slot, capture.slot), doing="measuring the lag")[0][0]
    facts: dict[str, Any] = json.loads(found) if isinstance(found, str) else dict(found)
    slot, spill = facts["slot"] or {}, facts["spill"] or {}
    end = lsn_number(facts["end"])
    # Against our checkpoint where there is one: the slot's own place is a hint, and may stand further back after a
    # crash.
    unread = max(end - lsn_number(at.text), 0) if at is not None else facts["unread"]
    return Lag(
        unread_bytes=unread,
        held_bytes=facts["held"],
        seconds=seconds_unread(unread, at, seen),
        budget=_budget(facts["held"], slot.get("safe_wal_size"), facts["keep_mb"]),
        facts={
            "wal_status": slot.get("wal_status"),
            "safe_wal_size": slot.get("safe_wal_size"),
            "active": slot.get("active"),
            "restart_lsn": slot.get("restart_lsn"),
            "confirmed_flush_lsn": slot.get("confirmed_flush_lsn"),
            "oldest_xid_age": facts["oldest_xid_age"],
            **{name: spill.get(name) for name in SPILL},
        },
    )


def _budget(held: int | None, safe: int | None, keep_mb: int | None) -> float | None:
    """Return which share of what the server will keep for a slot is used; None where it keeps everything."""
    if held is None:
        return None
    if safe is not None:
        # What may still be written before the slot is lost is what the server itself reckons, with all its
        # settings.
        return min(held / max(held + safe, 1), 1.0)
    return min(held / (keep_mb << 20), 1.0) if keep_mb is not None and keep_mb > 0 else None
