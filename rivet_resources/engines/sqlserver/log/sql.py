"""T-SQL of change capture: log positions as numbers and texts, and every statement that reading the log sends.

Belongs here: statements, LSNs. Not here: what their rows mean (tables.py, rows.py), prerequisites
(preflight.py).

An LSN is ten bytes, compared as a big-endian number, which is done here and not by the server: literals are `0x` and
20 digits of our own making, names are quoted.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from rivet_resources.contracts.change_log import Position
from rivet_resources.engines.sqlserver.sql import quote, quote_text
from rivet_resources.errors import CheckpointUnusable

LSN = re.compile(r"0x[0-9a-fA-F]{20}")
LSN_BYTES = 10

# `cdc.md`, section 6.2. One row per capture instance, so that one statement also finds the instances of the tables.
# tran_end_time is the server's local time, so ages are measured on its own clock, and commits are taken to UTC by its
# offset of now: where the zone changes its clocks, what was committed before that and drained after is an hour off.
SURVEY = """
SELECT t.capture_instance, s.name AS source_schema, o.name AS source_name, t.object_id, t.source_object_id,
       CONVERT(varchar(22), sys.fn_cdc_get_min_lsn(t.capture_instance), 1) AS low,
       CONVERT(varchar(22), sys.fn_cdc_get_max_lsn(), 1) AS high,
       (SELECT LOWER(CONVERT(varchar(36), r.database_guid)) FROM sys.database_recovery_status AS r
        WHERE r.database_id = DB_ID()) AS guid,
       (SELECT DATEDIFF(second, MAX(m.tran_end_time), SYSDATETIME()) FROM cdc.lsn_time_mapping AS m) AS age_seconds,
       DATEDIFF(minute, SYSUTCDATETIME(), SYSDATETIME()) AS offset_minutes
FROM cdc.change_tables AS t
LEFT JOIN sys.objects AS o ON o.object_id = t.source_object_id
LEFT JOIN sys.schemas AS s ON s.schema_id = o.schema_id
ORDER BY t.capture_instance"""

# The change table's own columns, as the log has them; from the source table only what the log cannot know.
COLUMNS = """
SELECT k.object_id, k.column_name, k.column_ordinal, k.is_computed, COALESCE(b.name, y.name) AS base, c.max_length,
       c.precision, c.scale, COALESCE(c.collation_name, N'') AS collation, COALESCE(sy.name, N'') AS source_base,
       COALESCE(i.index_ordinal, 0) AS key_ordinal
FROM cdc.captured_columns AS k
JOIN cdc.change_tables AS t ON t.object_id = k.object_id
JOIN sys.columns AS c ON c.object_id = k.object_id AND c.name = k.column_name
JOIN sys.types AS y ON y.user_type_id = c.user_type_id
LEFT JOIN sys.types AS b ON b.user_type_id = c.system_type_id
LEFT JOIN sys.columns AS sc ON sc.object_id = t.source_object_id AND sc.name = k.column_name
LEFT JOIN sys.types AS sy ON sy.user_type_id = sc.system_type_id
LEFT JOIN cdc.index_columns AS i ON i.object_id = k.object_id AND i.column_name = k.column_name
WHERE k.object_id IN ({objects}) ORDER BY k.object_id, k.column_ordinal"""

# Of the source table, as it is now: MS_Description is what a comment is elsewhere.
COMMENTS = """
SELECT c.name, COALESCE(CONVERT(nvarchar(4000), e.value), N'') AS comment
FROM cdc.change_tables AS t
JOIN sys.columns AS c ON c.object_id = t.source_object_id
LEFT JOIN sys.extended_properties AS e
  ON e.class = 1 AND e.major_id = c.object_id AND e.minor_id = c.column_id AND e.name = N'MS_Description'
WHERE t.object_id = {number}"""

LOWS = """
SELECT t.capture_instance, CONVERT(varchar(22), sys.fn_cdc_get_min_lsn(t.capture_instance), 1) AS low
FROM cdc.change_tables AS t WHERE t.capture_instance IN ({names})"""

LOCK = """
DECLARE @rivet int;
EXEC @rivet = sp_getapplock @Resource = {name}, @LockMode = N'Exclusive', @LockOwner = N'Session', @LockTimeout = 0;
SELECT @rivet AS answer"""

# Transactions of any captured table; the capture job's own markers, of transaction 0x00, are none.
LAG = """
SELECT COUNT_BIG(*) AS transactions, DATEDIFF(second, MIN(m.tran_end_time), SYSDATETIME()) AS oldest_seconds,
       (SELECT DATEDIFF(second, MAX(p.tran_end_time), SYSDATETIME()) FROM cdc.lsn_time_mapping AS p
        WHERE p.start_lsn <= {at}) AS position_seconds,
       (SELECT DATEDIFF(second, MAX(n.tran_end_time), SYSDATETIME()) FROM cdc.lsn_time_mapping AS n) AS newest_seconds
FROM cdc.lsn_time_mapping AS m WHERE m.start_lsn > {at} AND m.tran_id <> 0x00"""

RETENTION = "SELECT retention FROM msdb.dbo.cdc_jobs WHERE database_id = DB_ID() AND job_type = N'cleanup'"
DEFAULT_RETENTION_MINUTES = 4320


# --- positions -----------------------------------------------------------------------------------


def position_at(lsn: int) -> Position:
    """Return the position at an LSN."""
    digits = lsn.to_bytes(LSN_BYTES, "big").hex()
    return Position(key=digits, text=f"0x{digits}", type="Custom")


def lsn_of(position: Position) -> int:
    """Read the LSN of a position of ours.

    Raises:
        CheckpointUnusable: its text is no LSN.
    """
    if not LSN.fullmatch(position.text):
        raise CheckpointUnusable(
            f"The checkpoint's position is {position.text!r}, and SQL Server's are 0x and 20 hexadecimal digits. "
            f"It is of another source; begin anew with `rivet state reset`."
        )
    return int(position.text, 16)


def literal(lsn: int) -> str:
    """Write an LSN as a binary literal."""
    return position_at(lsn).text


# --- statements ----------------------------------------------------------------------------------


def changes_of(instance: str, low: int, high: int) -> str:
    """Name the changes of one capture instance from one LSN to another, both included."""
    function = quote(f"fn_cdc_get_all_changes_{instance}")
    # `all` leaves the rows before updates out, and with them what a changed key was.
    return f"cdc.{function}({literal(low)}, {literal(high)}, N'all update old')"


def window(instances: Sequence[str], low: int, high: int, *, most: int) -> str:
    """Count the first `most` changes of all instances, each instance's with its last LSN; then ask what is left.

    A window that ends with the greatest of them ends with a commit, the same one whenever it is asked. Both answers
    come in one batch: the clean-up may run meanwhile, so what is left is asked behind the count.
    """
    each = " UNION ALL ".join(
        # 3 is a row before its update: half of a change, which 4 counts.
        f"SELECT {place} AS i, [__$start_lsn] AS l FROM {changes_of(name, low, high)} AS c WHERE [__$operation] <> 3"
        for place, name in enumerate(instances)
    )
    first = f"SELECT TOP ({most}) v.i, v.l FROM ({each}) AS v ORDER BY v.l"
    return (
        f"SELECT u.i, COUNT_BIG(*) AS n, CONVERT(varchar(22), MAX(u.l), 1) AS last FROM ({first}) AS u "
        f"GROUP BY u.i; {lows(instances)}"
    )


def lows(instances: Sequence[str]) -> str:
    """Ask for the least LSN that each instance still has."""
    return LOWS.format(names=", ".join(map(quote_text, instances)))


ENVELOPE_ITEMS = (
    "[__$start_lsn]",
    "[__$seqval]",
    "[__$operation]",
    "[__$update_mask]",
    # A subquery and no join: the mapping's columns have names that a captured table may have too.
    "(SELECT m.tran_end_time FROM cdc.lsn_time_mapping AS m WHERE m.start_lsn = [__$start_lsn]) AS [_rivet_time]",
)


def rows(instance: str, items: Sequence[str], low: int, high: int) -> str:
    """Read the changes of one instance in log order; what the log says of each row stands before `items`."""
    return (
        f"SELECT {', '.join((*ENVELOPE_ITEMS, *items))} FROM {changes_of(instance, low, high)} AS c "
        f"ORDER BY [__$start_lsn], [__$seqval], [__$operation]"
    )
