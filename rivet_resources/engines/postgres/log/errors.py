"""What a fault of the slot, its publication or its plugin means to us, and what to do about it (`cdc.md`, section 13).

Belongs here: tables of SQLSTATEs with pieces of text, and their advice. Not here: faults that every statement may
have (postgres/errors.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from rivet_resources.engines.postgres.connect import ConnectionParams
from rivet_resources.engines.postgres.errors import clean, fault, sqlstate_of
from rivet_resources.engines.postgres.sql import quote
from rivet_resources.errors import LogBusy, LogSetup, PositionLost, RivetError, SourcePermission

LOST = (
    "Changes are gone: run the export with `mode: full` or `initial: snapshot`, after its checkpoint was reset and "
    "the slot dropped with SELECT pg_drop_replication_slot('{slot}')."
)


class Names(Protocol):
    """The names that messages need."""

    @property
    def slot(self) -> str: ...

    @property
    def publication(self) -> str: ...


@dataclass(frozen=True)
class Meaning:
    """A fault we know: its SQLSTATE ('' any), a piece of its lower-cased text ('' any), our class, what to say."""

    sqlstate: str
    piece: str
    error: type[RivetError]
    advice: str


# First match wins. Texts as 15.20 and 18.4 write them; slots, publications and plugins have no SQLSTATEs of their own.
MEANINGS = (
    Meaning(
        "55006", "is active for pid", LogBusy,
        "Another reader has slot {slot}; ours left it alone. Find it with SELECT active_pid FROM pg_replication_slots "
        "WHERE slot_name = '{slot}', and give each export a slot of its own.",
    ),
    Meaning("55000", "can no longer get changes from replication slot", PositionLost, LOST),
    Meaning("55000", "can no longer access replication slot", PositionLost, LOST),
    Meaning("55000", "has been invalidated", PositionLost, LOST),
    Meaning("42704", "replication slot", PositionLost, "Slot {slot} is not there any more. " + LOST),
    Meaning(
        "55000", "was not created in this database", LogSetup,
        "Slot {slot} belongs to another database of this server. Give the export another `cdc.slot`.",
    ),
    Meaning(
        "42710", "replication slot", LogSetup,
        "Slot {slot} was made by somebody else in this very moment. Give the export another `cdc.slot`.",
    ),
    Meaning(
        "42602", "replication slot", LogSetup,
        "`cdc.slot` may hold lower-case letters, digits and underscores only, at most 63 of them.",
    ),
    Meaning(
        "", "wal_level", LogSetup,
        "Set wal_level = logical and restart the server: ALTER SYSTEM SET wal_level = 'logical'.",
    ),
    Meaning(
        "", "max_replication_slots > 0", LogSetup,
        "Raise it and restart the server: ALTER SYSTEM SET max_replication_slots = 10.",
    ),
    Meaning(
        "53400", "replication slots are in use", LogSetup,
        "Drop abandoned slots (SELECT slot_name FROM pg_replication_slots WHERE NOT active), or raise "
        "max_replication_slots and restart the server.",
    ),
    Meaning(
        "53400", "temporary file size", LogSetup,
        "The server's disk for one answer is limited: raise temp_file_limit for this role, or lower `cdc.rollover`.",
    ),
    Meaning(
        "42704", "publication", LogSetup,
        "The log was written while publication {publication} was not there, so this slot can never be read. Make the "
        "publication, drop the slot, reset the checkpoint, take a new snapshot.",
    ),
    Meaning(
        "42501", "output plugin", LogSetup,
        "Let a superuser add pgoutput to output_plugin_libraries.",
    ),
    Meaning("42501", "use replication slots", SourcePermission, "Let a superuser run: ALTER ROLE {user} REPLICATION."),
    Meaning(
        "42501", "permission denied for database", SourcePermission,
        "Let the tables' owner make the publication; or let an owner run GRANT CREATE ON DATABASE for {user}.",
    ),
    Meaning("42501", "must be owner of", SourcePermission, "Let the tables' owner make the publication."),
    Meaning(
        "0A000", "recovery", LogSetup,
        "A standby before PostgreSQL 16 cannot decode its log. Name the primary as the source.",
    ),
    Meaning(
        "0A000", "binary output", LogSetup,
        "Slot {slot} has another plugin than pgoutput. Choose another `cdc.slot`.",
    ),
)  # fmt: skip


def log_fault(error: BaseException, *, doing: str, peek: Names, conn_params: ConnectionParams) -> RivetError:
    """Turn a driver's error about the log into ours; the rest as for any statement."""
    state, text = sqlstate_of(error), str(error).lower()
    for meaning in MEANINGS:
        # A fault in mid-stream comes without its SQLSTATE.
        if meaning.piece in text and (not state or meaning.sqlstate in ("", state)):
            said = f"PostgreSQL said: {clean(error, secrets=conn_params.secrets)}" + (f" ({state})" if state else "")
            advice = meaning.advice.format(
                slot=peek.slot,
                publication=quote(peek.publication),
                user=quote(conn_params.user) if conn_params.user else "the role",
            )
            return meaning.error(f"While {doing}: {said}. {advice}")
    found = fault(error, doing=doing, user=conn_params.user, secrets=conn_params.secrets)
    return found


ACCEPT = (
    "The log does not tell that. Begin anew: run `rivet state reset` for the export and SELECT "
    "pg_drop_replication_slot('{slot}'), then run it with `initial: snapshot`; or take what is published as it is, "
    "with `cdc: {{accept_untold: [{kind}]}}`."
)


def untold(what: str, *, at: str, kind: str, slot: str) -> PositionLost:
    """Return what happened to rows without a word in the log."""
    # Like a lost position: what is published cannot be mended by reading on.
    return PositionLost(f"Since our checkpoint at {at}, {what}. {ACCEPT.format(slot=slot, kind=kind)}")


def position_lost(why: str, *, slot: str) -> PositionLost:
    """Return the error that the source no longer has what comes behind our checkpoint."""
    return PositionLost(f"{why} {LOST.format(slot=slot)}")
