"""What a MySQL or MariaDB fault means to us: which class, whether to ask again, and words that are safe to show.

Belongs here: the tables of error codes, and the cleaning of server messages. Not here: asking again
(retry.py, shared/paging.py). Codes below 2000 and from 3000 on are the server's, those between the client's.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from rivet_resources.engines.shared import faults
from rivet_resources.errors import (
    RivetError,
    SourceAuth,
    SourceLost,
    SourcePermission,
    UnknownTable,
)
from rivet_resources.tls_faults import tls_fault

# Faults of timing or connection, not of the query, with the seconds that are added to the backoff. Source: MySQL 9
# "Server Error Message Reference", MariaDB "Error Code List", `contract.md`, section 6.
PASSING = {
    1213: 1.0,  # ER_LOCK_DEADLOCK
    1205: 0.0,  # ER_LOCK_WAIT_TIMEOUT
    3572: 0.0,  # ER_LOCK_NOWAIT
    # ER_CHECKREAD: the row changed since the snapshot (MariaDB, innodb_snapshot_isolation).
    1020: 1.0,
    1040: 15.0,  # ER_CON_COUNT_ERROR
    1203: 15.0,  # ER_TOO_MANY_USER_CONNECTIONS
    1226: 15.0,  # ER_USER_LIMIT_REACHED
    1053: 15.0,  # ER_SERVER_SHUTDOWN
    1077: 15.0,  # ER_NORMAL_SHUTDOWN
    1079: 15.0,  # ER_SHUTDOWN_COMPLETE
    3032: 15.0,  # ER_SERVER_OFFLINE_MODE
    3168: 15.0,  # ER_SERVER_ISNT_AVAILABLE
    # ER_UNKNOWN_COM_ERROR: of Galera, a node that has not joined its cluster yet, or has left it.
    1047: 15.0,
    9001: 15.0,  # ProxySQL: no server of the group could be reached in time
    1042: 5.0,  # ER_BAD_HOST_ERROR: the server's own question to DNS
    1021: 5.0,  # ER_DISK_FULL: no room for a temporary table
    1037: 5.0,  # ER_OUTOFMEMORY
    1041: 5.0,  # ER_OUT_OF_RESOURCES
    1135: 5.0,  # ER_CANT_CREATE_THREAD
    1152: 0.0,  # ER_ABORTING_CONNECTION
    # ER_NET_PACKET_TOO_LARGE: what we send is small, so the line garbled it.
    1153: 0.0,
    1158: 0.0, 1159: 0.0, 1160: 0.0, 1161: 0.0,  # ER_NET_*: reading or writing packets
    1184: 0.0,  # ER_NEW_ABORTING_CONNECTION
    1927: 0.0,  # ER_CONNECTION_KILLED, MariaDB
    3169: 0.0,  # ER_SESSION_WAS_KILLED
    4031: 0.0,  # ER_CLIENT_INTERACTION_TIMEOUT: idle longer than wait_timeout
    2002: 0.0, 2003: 0.0, 2005: 0.0,  # CR_CONNECTION_ERROR, CR_CONN_HOST_ERROR, CR_UNKNOWN_HOST
    2006: 0.0, 2013: 0.0, 2055: 0.0,  # CR_SERVER_GONE_ERROR, CR_SERVER_LOST, CR_SERVER_LOST_EXTENDED
    2014: 0.0, 2027: 0.0,  # CR_COMMANDS_OUT_OF_SYNC, CR_MALFORMED_PACKET: the line lost its place
}  # fmt: skip
CONNECTIONS_TAKEN = frozenset({1040, 1203, 1226})
TAKEN = (
    "Every connection that this user may open is taken: run again when some are free, lower `parallel` of the exports, "
    "or let the administrator raise max_connections or the user's own limit."
)
# ER_QUERY_TIMEOUT of MySQL (max_execution_time), ER_STATEMENT_TIMEOUT of MariaDB (max_statement_time).
TIMEOUTS = frozenset({3024, 1969})
CANCELLED = 1317  # ER_QUERY_INTERRUPTED: KILL QUERY
AUTH = frozenset({
    1044,  # ER_DBACCESS_DENIED_ERROR
    1045,  # ER_ACCESS_DENIED_ERROR
    1129, 1130,  # ER_HOST_IS_BLOCKED, ER_HOST_NOT_PRIVILEGED
    1251, 2059, 2061,  # ER_NOT_SUPPORTED_AUTH_MODE, CR_AUTH_PLUGIN_CANNOT_LOAD, CR_AUTH_PLUGIN_ERR
    1698,  # ER_ACCESS_DENIED_NO_PASSWORD_ERROR
    1820, 1862,  # ER_MUST_CHANGE_PASSWORD
    3118, 4151,  # ER_ACCOUNT_HAS_BEEN_LOCKED of MySQL and of MariaDB
    3159,  # ER_SECURE_TRANSPORT_REQUIRED
    3955,  # ER_USER_ACCESS_DENIED_FOR_USER_ACCOUNT_BLOCKED_BY_PASSWORD_LOCK
})  # fmt: skip
# ER_TABLEACCESS_DENIED_ERROR, ER_COLUMNACCESS_DENIED_ERROR, ER_SPECIFIC_ACCESS_DENIED_ERROR, ER_VIEW_INVALID.
PERMISSION = frozenset({1142, 1143, 1227, 1370})
UNKNOWN_DATABASE = 1049  # ER_BAD_DB_ERROR
UNKNOWN_TABLE = 1146  # ER_NO_SUCH_TABLE
# What the relation's disappearance or change looks like once it was described: unknown table, column, database, an
# invalid view, a snapshot older than the table's last ALTER.
CHANGED = frozenset({1146, 1054, 1049, 1356, 1412})
UNREACHABLE = frozenset({2002, 2003, 2005, 2006, 2013})
CODES_OF_TLS = frozenset({2026, 3159})  # CR_SSL_CONNECTION_ERROR, ER_SECURE_TRANSPORT_REQUIRED
# A fault of TLS reaches us under these too: of the line, or none at all.
CODES_OF_LINES = frozenset({0, 2002, 2003, 2013})


def code_of(error: BaseException) -> int:
    """Return the fault's number; the line's own faults, and PyMySQL's word for a closed one, have the lost line's."""
    if isinstance(error, (OSError, EOFError)):
        return 2013
    given = error.args[0] if error.args else None
    # PyMySQL raises InterfaceError(0, '') for a connection that it closed itself.
    if given == 0 and "Interface" in type(error).__name__:
        return 2013
    return given if isinstance(given, int) else 0


# Texts that quote a value of a row, an argument, or SQL; what stands in the quotes is cut out.
QUOTED_VALUE = re.compile(
    r"(?i)(duplicate entry|incorrect \S+(?: \S+)? value:?|truncated incorrect \S+ value:?|out of range value|"
    r"cannot convert string|is out of range in|value|string)\s*'(?:[^']|'')*'?"
)
QUOTED_SQL = re.compile(r"(?is)\bnear '.*' at line \d+$")
URL = re.compile(r"\b(?:mysql|mariadb)://\S+")


def clean(text: object, *, secrets: Sequence[str] = ()) -> str:
    """Make a server's message safe to show: no secret, no SQL, no quoted value of a row, no control bytes, one line."""
    args: tuple[object, ...] = text.args if isinstance(text, BaseException) else ()
    words = str(args[1] if len(args) > 1 else text)
    # SQL before values: a statement in the message has quotes that the other pattern would take for a value's.
    words = QUOTED_VALUE.sub(r"\1 …", QUOTED_SQL.sub("near …", words))
    words = URL.sub("mysql://…", words)
    return faults.one_line(words, secrets=secrets)


def fault(error: BaseException, *, doing: str, user: str = "", secrets: Sequence[str] = ()) -> RivetError:
    """Turn a driver's error into ours. `doing` says what was asked, in words: `reading page 3 of orders`.

    SourceLost when a new connection may succeed; everything unknown is permanent.
    """
    code = code_of(error)
    said = f"MySQL said: {clean(error, secrets=secrets)}" + (f" ({code})" if code else "")
    # Before `PASSING`: the same statement would run into the limit again, and cost the source the whole limit each
    # time.
    if code in TIMEOUTS:
        return faults.timed_out(doing)
    if code == CANCELLED:
        return faults.cancelled(doing)
    if code in AUTH:
        return SourceAuth(f"While {doing}: {said}. Check `user`, the password reference and `tls` of the source.")
    if code in PASSING:
        advice = TAKEN if code in CONNECTIONS_TAKEN else "The source may answer later; run again."
        return SourceLost(f"While {doing}: {said}. {advice}", extra_seconds=PASSING[code])
    if code == UNKNOWN_TABLE:
        return faults.no_table(doing, said)
    if code in PERMISSION:
        return SourcePermission(
            f"While {doing}: {said}. "
            f"Let an administrator run: GRANT SELECT ON <database>.<table> TO {user or '<user>'}."
        )
    return faults.for_good(doing, said)


def connect_fault(error: BaseException, *, where: str, secrets: Sequence[str] = ()) -> RivetError:
    """Turn a refused connection into ours: whatever does not say that it is for good may pass.

    `where` is host and port, which are no secret.
    """
    code, said = code_of(error), clean(error, secrets=secrets)
    # Drivers report what TLS refused as a lost line or without a number, so the text is looked at first.
    line = tls_fault(said) if code in CODES_OF_TLS | CODES_OF_LINES else None
    if line is not None:
        return faults.unsafe_line("MySQL", where, said, line)
    if code in AUTH:
        return faults.login_refused("MySQL", where, said)
    if code == UNKNOWN_DATABASE:
        return faults.no_database("MySQL", where, said)
    if code in UNREACHABLE:
        return faults.unreachable("MySQL", where, said)
    return fault(error, doing=f"connecting to MySQL at {where}", secrets=secrets)


def change_of_relation(error: RivetError, cause: BaseException, *, relation: str) -> RivetError:
    """Return that the relation changed under the reader, when the code means that; else the error itself."""
    # The same codes before the relation was described mean a wrong name; the caller knows which of the two it is.
    if code_of(cause) not in CHANGED:
        return error
    return faults.relation_changed(relation)


def unknown_table(name: str, *, near: Sequence[str]) -> UnknownTable:
    """Return the error that a table is not there, with the ones that look like it."""
    return faults.not_shown(name, near=near, where_listed="with SHOW TABLES")
