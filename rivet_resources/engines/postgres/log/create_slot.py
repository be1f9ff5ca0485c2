"""The first step on PostgreSQL: the publication, then the slot, so that no change is ever written without either.

Belongs here: making both with the least rights, and refusing what stands there already. Not here: the snapshot
(log.py), the judgement of settings (preflight.py).
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, Protocol

from rivet_resources.contracts.change_log import Capture, Position, Survey
from rivet_resources.engines.postgres.catalog import Catalog
from rivet_resources.engines.postgres.log.lsn import lsn_number, position
from rivet_resources.engines.postgres.log.survey import publication_of, quote_table, refuse_lost, refuse_setup
from rivet_resources.engines.postgres.sql import quote
from rivet_resources.errors import LogSetup, SourceError, SourcePermission, StatementTimeout

SLOT_SECONDS = 60.0  # a new slot waits for every open write transaction
OPEN_WRITERS = """
SELECT string_agg(pid::text, ', ' ORDER BY xact_start) FROM pg_stat_activity
WHERE backend_xid IS NOT NULL AND pid <> pg_backend_pid()"""


class LogConnection(Catalog, Protocol):
    """What this module needs from a log."""

    def limited_to(self, seconds: float) -> AbstractContextManager[None]: ...


def take_over(capture: Capture, found: Survey) -> Position:
    """Take over the slot that an earlier run of ours made before it died; nothing was read from it.

    Raises:
        LogBusy, PositionLost, LogSetup: it is not a slot we could have made, or it cannot be read.
    """
    made = position(lsn_number(str(found.facts["slot"]["confirmed_flush_lsn"])))
    refuse_lost(made, found)
    return made


def begin(log: LogConnection, capture: Capture, found: Survey) -> Position:
    """Make what reading needs and give the position from which nothing is missed.

    Raises:
        LogSetup: the slot is there and nobody says that it is ours, or a prerequisite is missing.
        SourcePermission: the publication or the slot may not be made; the message says who may.
    """
    slot = found.facts["slot"]
    if slot:
        raise LogSetup(
            f"Slot {capture.slot} is there already, at {slot.get('confirmed_flush_lsn')}, and this export has no "
            "checkpoint: what was read from it is not known. Restore the checkpoint; or, if no one else reads it, run "
            f"SELECT pg_drop_replication_slot('{capture.slot}') and start again; or choose another `cdc.slot`."
        )
    if missing := [table for table, known in found.facts["tables"].items() if not known["oid"]]:
        raise LogSetup(f"The source shows no table {' and no table '.join(missing)}. Fix `table` of the export.")
    if found.facts["publication"] is None:
        # Ahead of the slot: pgoutput looks the publication up in the catalog as it was at each
        # change, so log that is older than it can never be read through this slot (42704).
        _publish(log, capture)
    else:
        refuse_setup(found.facts)
    return _slot(log, capture)


def publication_sql(capture: Capture) -> str:
    """Write the publication of these tables and no others, partitions under their root's name."""
    tables = ", ".join(map(quote_table, capture.tables))
    return (
        f"CREATE PUBLICATION {quote(publication_of(capture))} FOR TABLE {tables} "
        "WITH (publish_via_partition_root = true)"
    )


def _publish(log: LogConnection, capture: Capture) -> None:
    statement = publication_sql(capture)
    # Every session of ours is read-only by default. It ends before the
    # slot is made: a transaction that has written cannot make one (25001).
    log.ask("BEGIN READ WRITE", doing="making the publication")
    try:
        log.ask(statement, doing="making the publication")
        log.ask("COMMIT", doing="making the publication")
    except SourceError as error:
        log.ask("ROLLBACK", doing="making the publication")
        if isinstance(error, SourcePermission):
            raise SourcePermission(
                f"User {log.user} may not make publication {publication_of(capture)}. "
                f"Let the tables' owner run: {statement}."
            ) from None
        raise


def _slot(log: LogConnection, capture: Capture) -> Position:
    """Make the slot within a time; a refusal leaves nothing behind.

    Raises:
        LogSetup: write transactions stayed open all that time.
    """
    doing = f"making slot {capture.slot}"
    log.ask("BEGIN", doing=doing)
    try:
        # A timeout leaves no half-made slot behind, so this wait may be cut off and tried again.
        log.ask(f"SELECT set_config('statement_timeout', '{int(SLOT_SECONDS * 1000)}', true)", doing=doing)
        with log.limited_to(SLOT_SECONDS):
            rows: list[tuple[Any, ...]] = log.ask(
                "SELECT lsn::text FROM pg_create_logical_replication_slot(%s, 'pgoutput')", (capture.slot,), doing=doing
            )
        log.ask("COMMIT", doing=doing)
    except SourceError as error:
        log.ask("ROLLBACK", doing=doing)
        if isinstance(error, StatementTimeout):
            pids = log.ask(OPEN_WRITERS, doing=doing)[0][0]
            raise LogSetup(
                f"Slot {capture.slot} could not be made within {SLOT_SECONDS:g} s: it waits for transactions that were "
                f"writing when it began ({f'PID {pids}' if pids else 'ask pg_stat_activity and pg_prepared_xacts'}). "
                "Nothing was left behind. End them, or run again when they are done."
            ) from None
        raise
    return position(lsn_number(str(rows[0][0])))
