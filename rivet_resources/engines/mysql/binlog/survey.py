"""What a look at the server tells: who it is, whether a position still is in its log, what it writes without sending.

Belongs here: statements and judgements on their answers. Not here: the connection (log.py), prerequisites
(preflight.py), how far behind we are (lag.py).
"""

from __future__ import annotations

from collections.abc import Sequence

from rivet_resources.contracts.change_log import Position, Survey
from rivet_resources.engines.mysql.binlog.errors import RESNAPSHOT
from rivet_resources.engines.mysql.binlog.position import place_of
from rivet_resources.errors import PositionLost

# What the server is and how long it keeps its log: rows of name and text.
OF_MARIADB = """
SELECT LOWER(variable_name), variable_value FROM information_schema.global_variables
WHERE variable_name IN ('server_id', 'gtid_domain_id', 'lower_case_table_names',
'binlog_expire_logs_seconds', 'expire_logs_days')"""
OF_MYSQL = """
SELECT 'server_uuid', @@server_uuid UNION ALL SELECT 'server_id', CAST(@@server_id AS CHAR) UNION ALL
SELECT 'lower_case_table_names', CAST(@@lower_case_table_names AS CHAR) UNION ALL
SELECT 'binlog_expire_logs_seconds', CAST(@@global.binlog_expire_logs_seconds AS CHAR)"""
# What MariaDB writes without sending it, as SHOW BINLOG EVENTS names it.
SERVICE = frozenset({"Binlog_checkpoint", "Gtid_list", "Format_desc", "Stop", "Rotate", "Start_encryption",
                     "Previous_gtids", "Heartbeat"})  # fmt: skip


def refuse_lost(at: Position, survey: Survey) -> None:
    """Refuse a position of another server, of a file that is gone, or behind a file's end.

    Whether a file of that name is still the same one shows when it is read: see `Groups._born`.

    Raises:
        PositionLost
    """
    place, files = place_of(at), survey.facts["files"]
    known = at.more.get("identity", survey.identity)
    if known != survey.identity:
        hint = f" Its GTIDs were {at.more['gtid']}." if "gtid" in at.more else ""
        raise PositionLost(
            f"The stored position {at.text} is of {known}, but this server is {survey.identity}: it was replaced, "
            f"or the name leads to another one now. File positions mean nothing there.{hint} {RESNAPSHOT}"
        )
    if place.file not in files:
        raise PositionLost(
            f"The binary log {place.file}, where we stopped, is not on the server any more; it has "
            f"{next(iter(files))} to {list(files)[-1]}. It was purged, or the log was reset. {RESNAPSHOT} "
            f"Keep logs longer: binlog_expire_logs_seconds well above the time between two drains."
        )
    # The file is there, and shorter than what we have read of it: a restored copy, whose next events are others.
    if place.offset > files[place.file]:
        raise PositionLost(
            f"We stopped at {at.text}, but {place.file} ends at {files[place.file]}: the server was restored from "
            f"a copy, or its log was reset. {RESNAPSHOT}"
        )


def are_service(events: Sequence[tuple[str | None, ...]], start: int, end: int) -> bool:
    """Return whether events, as SHOW BINLOG EVENTS lists them, lead from one place to another and are never sent."""
    for _, begins, kind, _, ends, *_ in events:
        # Without a gap: an event that begins elsewhere belongs to something that was written meanwhile.
        if kind not in SERVICE or int(begins or 0) != start:
            return False
        start = int(ends or 0)
        if start >= end:
            return True
    return False
