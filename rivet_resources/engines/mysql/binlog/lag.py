"""How far a position is behind the end of a binary log, and when the server will purge what we have not read.

Belongs here: arithmetic over SHOW BINARY LOGS. Not here: asking (log.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rivet_resources.contracts.change_log import Lag, Position
from rivet_resources.engines.mysql.binlog.position import place_of
from rivet_resources.engines.shared.unread import DatedSurvey, seconds_unread

DAY_SECONDS = 86_400


def lag(
    at: Position | None,
    files: Sequence[tuple[str, int]],
    settings: Mapping[str, str],
    *,
    now: float,
    seen: DatedSurvey | None = None,
) -> Lag:
    """Measure.

    Args:
        files: name and size of each file of the log, oldest first.
        settings: the server's variables, of which the two that say how long it keeps files matter.
        now: seconds since 1970.
        seen: the last survey of this process, if it made one.
    """
    facts = {"oldest_file": files[0][0], "newest_file": files[-1][0], "log_bytes": sum(size for _, size in files)}
    if at is None:
        return Lag(facts=facts)
    place = place_of(at)
    names = [name for name, _ in files]
    # Purged, with what we have not read: the whole budget is gone, whatever the file's age was.
    if place.file not in names:
        return Lag(facts={**facts, "is_purged": True}, budget=1.0)
    ours = names.index(place.file)
    unread = max(0, files[ours][1] - place.offset) + sum(size for _, size in files[ours + 1 :])
    return Lag(
        unread_bytes=unread,
        # The server keeps nothing for us: it purges by age.
        held_bytes=0,
        seconds=seconds_unread(unread, at, seen),
        budget=_budget(at, settings, now, is_newest=ours == len(files) - 1),
        facts={**facts, "our_file": place.file, "files_behind": len(files) - 1 - ours},
    )


def _budget(at: Position, settings: Mapping[str, str], now: float, *, is_newest: bool) -> float | None:
    """Return the share of the retention that is used; a file's birth stands for its end, so it is rather too large."""
    kept = retention_seconds(settings)
    # The file that is being written is never purged.
    if is_newest or not kept:
        return 0.0
    born = at.more.get("born", "")
    return min(1.0, max(0.0, now - int(born)) / kept) if born else None


def retention_seconds(settings: Mapping[str, str]) -> float:
    """Return how long the server keeps a file, 0 for ever."""
    seconds = float(settings.get("binlog_expire_logs_seconds") or 0)
    return seconds or float(settings.get("expire_logs_days") or 0) * DAY_SECONDS
