"""What a fault of the binary log means to us: nearly all are number 1236, and only their text tells them apart.

Belongs here: the table of texts, and words that are safe to show. Not here: faults of statements
(mysql/errors.py).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from rivet_resources.engines.mysql.errors import clean, code_of, fault
from rivet_resources.errors import (
    CheckpointUnusable,
    LogBusy,
    LogRefused,
    LogSetup,
    PositionLost,
    RivetError,
    SourceLost,
    SourcePermission,
)

FATAL, SAME_ID, NOT_LOGGING = 1236, 4052, 1381
DENIED = 1227
RESNAPSHOT = (
    "The changes in between are gone: run `mode: full`, or reset the checkpoint and let `initial: snapshot` copy the "
    "tables anew."
)
SAME_READER = re.compile(r"(?i)same server[_ ](?:uuid|id)|server_(?:uuid|id)/server_(?:uuid|id)")
# Text of 1236 → class and what to do. Seen on MariaDB 10.11 and MySQL 9.7, except where said.
TEXTS: Sequence[tuple[str, type[RivetError], str]] = (
    ("could not find first log file", PositionLost, f"The file was purged, or the log was reset. {RESNAPSHOT}"),
    ("impossible position", PositionLost, f"The server is another one, or was restored from a copy. {RESNAPSHOT}"),
    ("position > file size", PositionLost, f"The server is another one, or was restored from a copy. {RESNAPSHOT}"),
    ("could not find gtid state", PositionLost, f"The transactions behind it were purged. {RESNAPSHOT}"),
    ("purged required binary log", PositionLost, f"The transactions behind it were purged. {RESNAPSHOT}"),  # not seen
    ("purged binary logs containing gtids", PositionLost, f"The transactions behind it were purged. {RESNAPSHOT}"),
    ("has more gtids than the", PositionLost, f"The server is behind us: it was restored. {RESNAPSHOT}"),  # not seen
    ("which is not in the master's binlog", PositionLost, f"The server never had that transaction. {RESNAPSHOT}"),
    ("max_allowed_packet", CheckpointUnusable, "The text misleads: the position lies inside an event, so the "
     "checkpoint is damaged or was edited. Delete it and take a new snapshot."),
    ("truncated in the middle of event", CheckpointUnusable, "The position lies inside an event, so the checkpoint is "
     "damaged or was edited. Delete it and take a new snapshot."),
    ("bogus data in log event", CheckpointUnusable, "The position lies inside an event, so the checkpoint is damaged "
     "or was edited. Delete it and take a new snapshot."),
    ("event read from binlog did not pass", LogRefused, "The log is damaged on the server's disk, or the position "
     "lies inside an event. Let its owner check it with mysqlbinlog --verify-binlog-checksum."),
    ("can not handle replication events with the checksum", LogRefused, "This is a fault of Rivet; report it."),
    ("binary log is not open", LogSetup, "Set log_bin, server_id and binlog_format=ROW, and restart the server."),
)  # fmt: skip


def log_fault(error: BaseException, *, at: str, user: str = "", secrets: Sequence[str] = ()) -> RivetError:
    """Turn what the server says instead of an event into ours; `at` is where we asked to begin."""
    if isinstance(error, RivetError):
        return error
    code, said = code_of(error), clean(error, secrets=secrets)
    doing = f"reading the binary log from {at}"
    # MariaDB has a number of its own for it, MySQL says it in a text of 1236.
    if code == SAME_ID or (code == FATAL and SAME_READER.search(said)):
        return LogBusy(
            f"While {doing}: MySQL said: {said} ({code}). Another reader has this server id, and the server ends one "
            f"of two. Set `cdc.server_id` to a number that no replica and no other reader has."
        )
    if code == FATAL:
        for words, kind, advice in TEXTS:
            if words in said.lower():
                return kind(f"While {doing}: MySQL said: {said} ({code}). {advice}")
        # A text that is not in the table may pass: nothing was acknowledged, and the next try begins at the same
        # place.
        return SourceLost(f"While {doing}: MySQL said: {said} ({code}). The source may answer later; run again.")
    if code == DENIED:
        return permission(doing, said, user)
    if code == NOT_LOGGING:
        return LogSetup(f"While {doing}: MySQL said: {said}. Set log_bin, and restart the server.")
    return fault(error, doing=doing, user=user, secrets=secrets)


def permission(doing: str, said: str, user: str) -> SourcePermission:
    """Name the two grants that reading a log takes."""
    return SourcePermission(
        f"While {doing}: MySQL said: {said} ({DENIED}). Let an administrator run: "
        f"GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO {user or '<user>'}."
    )
