"""What a SQL Server fault means to us: which class, whether to ask again, and words that are safe to show.

Belongs here: the tables of error numbers and texts, and the cleaning of driver messages. Not here: asking again
(retry.py, reader.py), how the driver tells a number (driver.py).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from rivet_resources.deadlines import LOOK_AT_LINE, SILENT
from rivet_resources.engines.shared import faults
from rivet_resources.errors import (
    RivetError,
    SourceAuth,
    SourceLost,
    SourceMissing,
    SourcePermission,
    UnknownTable,
)
from rivet_resources.tls_faults import tls_fault

# The database is not there, is closed to the login, or is not up yet; connect.py asks which.
CANNOT_OPEN = 4060
# Numbers of faults of timing or connection, with the seconds that are added to the backoff. `contract.md`, section
# 16, row 15; Microsoft, "Troubleshoot transient connection errors in SQL Database"; 3960: a snapshot's write conflict.
# From 17000 on: a server that starts, stops, is upgraded or is full; 9xx: a database that recovers, is restored or
# fails over; 701 to 8651, 1101, 1105, 1204: no memory, no room for sorting or no locks. Source: Microsoft, "Database
# Engine events and errors".
PASSING: Mapping[int, float] = {
    1205: 1.0, 1222: 0.0, 3960: 1.0, 1203: 1.0, 601: 1.0,
    40197: 10.0, 40501: 10.0, 40613: 10.0, 49918: 10.0, 49919: 10.0, 49920: 10.0, 10928: 10.0, 10929: 10.0,
    10936: 10.0, 10053: 10.0, 10054: 10.0, 10060: 10.0, CANNOT_OPEN: 10.0, 233: 10.0, 64: 10.0, 121: 10.0,
    4014: 10.0, 4221: 10.0, 40143: 10.0, 615: 10.0, 596: 10.0, 9001: 10.0,
    921: 10.0, 922: 10.0, 927: 10.0, 976: 10.0, 983: 10.0, 988: 10.0,
    6005: 10.0, 17142: 10.0, 17187: 10.0, 17189: 10.0, 17197: 10.0, 17809: 10.0, 18401: 10.0, 18451: 10.0, 18461: 10.0,
    701: 5.0, 802: 5.0, 8645: 5.0, 8651: 5.0, 1101: 5.0, 1105: 5.0, 1204: 5.0,
}  # fmt: skip
LOGIN_FAILED = 18456
AUTH = frozenset({LOGIN_FAILED, 18452, 18470, 18486, 18487, 18488, 4064, 40532, 40615, 916})
PERMISSION = frozenset({229, 230, 262, 297, 300, 371})
UNKNOWN_TABLE = frozenset({208, 2812})
CLIENT_TIMEOUT = -2
# What the relation's disappearance or change looks like once it was described.
CHANGED = frozenset({208, 207, 3961, 3958, 8124})
SNAPSHOT_REFUSED = frozenset({3952, 3951, 3957})

# Where the driver tells no number: a piece of the lower-cased text, the number it stands for. First match wins.
TEXTS: Sequence[tuple[str, int]] = (
    ("query timeout expired", CLIENT_TIMEOUT),
    # These say "login failed" too, which is for good where it stands alone.
    ("cannot open database", CANNOT_OPEN),
    ("cannot open server", 40532),
    ("script upgrade mode", 18401),
    ("only administrators may connect", 18451),
    ("server is in single user mode", 18461),
    ("login failed due to timeout", 17197),
    ("login failed", LOGIN_FAILED),
    # No ticket, or none for this server: Microsoft's drivers, then MIT Kerberos.
    ("sspi provider", LOGIN_FAILED),
    ("kerberos credentials", LOGIN_FAILED),
    ("krb5", LOGIN_FAILED),
    ("gssapi", LOGIN_FAILED),
    ("not ready to accept new client connections", 17187),
    ("user connections has already been reached", 17809),
    ("service has been paused", 17142),
    ("shutdown is in progress", 6005),
    ("is being recovered", 922),
    ("in the middle of a restore", 927),
    ("not accessible for queries", 976),
    ("replica is not in the primary or secondary role", 983),
    ("lacks a quorum", 988),
    ("is not currently available", 40613),
    ("service has encountered an error processing your request", 40197),
    ("service is currently busy", 40501),
    ("not enough resources to process", 49918),
    ("too many create or update operations", 49919),
    ("too many operations in progress", 49920),
    ("resource id", 10928),
    ("deadlock", 1205),
    ("lock request time out", 1222),
    ("invalid object name", 208),
    ("permission was denied", 229),
    ("login timeout expired", 10060),
    ("communication link failure", 10054),
    ("tcp provider", 10054),
    ("connection is broken", 10054),
    ("connection reset", 10054),
    ("unable to establish connection", 10054),
    ("connection was terminated", 10054),
    ("unexpected eof", 10054),
    ("protocol error in tds stream", 10054),
    ("connection not open", 10054),
)
SOCKET = frozenset({10053, 10054, 10060, 233, 64})


def number_of(error: BaseException) -> int:
    """Return the fault's number, from the server or from the text; 0 when neither tells."""
    known = getattr(error, "number", 0)
    if known:
        return int(known)
    text = str(error).lower()
    return next((number for piece, number in TEXTS if piece in text), 0)


def clean(text: object, *, secrets: Sequence[str] = ()) -> str:
    """Make a driver's message safe to show: no secret, no value of a row, no control bytes, one line."""
    words = re.sub(r"\[(?:Microsoft|SQL Server|ODBC Driver[^\]]*|FreeTDS|unixODBC|Driver Manager)\]", "", str(text))
    words = re.sub(r"^.*?DDBC Error:\s*", "", words, flags=re.DOTALL)
    # Rows show through conversion faults and duplicate keys only; names of objects stay.
    words = re.sub(r"(?i)(value|key value is|truncated value:)\s*(?:'(?:[^']|'')*'|\((?:[^)]*)\))", r"\1 …", words)
    words = re.sub(r"(?i)\b(pwd|password)\s*=\s*[^;\s]+", r"\1=…", words)
    return faults.one_line(words, secrets=secrets)


def fault(error: BaseException, *, doing: str, user: str = "", secrets: Sequence[str] = ()) -> RivetError:
    """Turn a driver's error into ours. `doing` says what was asked, in words: `reading page 3 of orders`.

    SourceLost when a new connection may succeed; everything unknown is permanent.
    """
    if SILENT in str(error):
        return SourceLost(f"While {doing}: {clean(error)}. {LOOK_AT_LINE}")
    number = number_of(error)
    said = f"SQL Server said: {clean(error, secrets=secrets)}" + (f" ({number})" if number > 0 else "")
    # Before `PASSING`: the same statement would run into the limit again.
    if number == CLIENT_TIMEOUT:
        return faults.timed_out(doing)
    if number in PASSING:
        return SourceLost(
            f"While {doing}: {said}. The source may answer later; run again.", extra_seconds=PASSING[number]
        )
    if number in AUTH:
        return SourceAuth(f"While {doing}: {said}. Check `user` and the password reference of the source.")
    if number in UNKNOWN_TABLE:
        return faults.no_table(doing, said)
    if number in PERMISSION:
        return SourcePermission(
            f"While {doing}: {said}. Let the owner run: GRANT SELECT ON <table> TO {user or '<user>'}."
        )
    return faults.for_good(doing, said)


def connect_fault(
    error: BaseException, *, where: str, auth: str = "password", secrets: Sequence[str] = ()
) -> RivetError:
    """Turn a refused connection into ours: whatever does not say that it is for good may pass.

    Args:
        where: host and port, which are no secret.
        auth: how the connection signs in, as the YAML key has it.
    """
    number = number_of(error)
    said = clean(error, secrets=secrets)
    # TLS faults come as a broken socket or without a number, so the text is looked at first.
    line = tls_fault(said) if number in SOCKET | {0, 20, -1} else None
    if line is not None:
        return faults.unsafe_line("SQL Server", where, said, line)
    if number in AUTH:
        return ticket_refused(where, said) if auth == "kerberos" else faults.login_refused("SQL Server", where, said)
    if number in SOCKET:
        return faults.unreachable("SQL Server", where, said)
    return fault(error, doing=f"connecting to SQL Server at {where}", secrets=secrets)


def ticket_refused(where: str, said: str) -> SourceAuth:
    """Return the error that the ticket of this process is missing, has expired or is nobody's there."""
    return SourceAuth(
        f"SQL Server at {where} refused the Kerberos ticket: {said}. Look with `klist` for a valid ticket, get one "
        f"with `kinit`, and connect by the name that the server's SPN has (MSSQLSvc/host:port)."
    )


def missing_database(name: str, *, where: str) -> SourceMissing:
    """Return the error that a server has no such database."""
    return SourceMissing(
        f"SQL Server at {where} has no database {name!r} that this login may see. Fix `database` of the source, or "
        f"create it."
    )


def closed_database(name: str, *, where: str, user: str) -> SourceAuth:
    """Return the error that a database is open, and not for this login."""
    return SourceAuth(
        f"SQL Server at {where} does not let the login {user} into database {name!r}. Fix `database` or `user` of the "
        f"source, or let an administrator run, in that database: CREATE USER [{user}] FOR LOGIN [{user}]."
    )


def change_of_relation(error: RivetError, cause: BaseException, *, relation: str) -> RivetError:
    """Return that the relation changed under the reader, when the number means that; else the error itself."""
    if number_of(cause) not in CHANGED or isinstance(error, SourceLost):
        return error
    return faults.relation_changed(relation)


def unknown_table(name: str, *, near: Sequence[str]) -> UnknownTable:
    """Return the error that a table is not there, with the ones that look like it."""
    return faults.not_shown(name, near=near, where_listed="in sys.tables")
