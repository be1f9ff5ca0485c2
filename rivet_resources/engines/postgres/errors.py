"""What a PostgreSQL fault means to us: which class, whether to ask again, and words that are safe to show.

Belongs here: the tables of SQLSTATEs and texts, and the cleaning of driver messages. Not here: asking again
(retry.py, pages.py).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from rivet_resources.deadlines import LOOK_AT_LINE, SILENT
from rivet_resources.engines.shared import faults
from rivet_resources.errors import (
    RivetError,
    SourceAuth,
    SourceError,
    SourceLost,
    SourcePermission,
    UnknownTable,
)
from rivet_resources.tls_faults import tls_fault

# Faults of timing or connection, not of the query: full SQLSTATEs or two-letter classes, with the seconds that
# are added to the backoff. Source: PostgreSQL documentation, Appendix A; `contract.md`, section 6.
PASSING = {
    "57P01": 15.0, "57P02": 15.0, "57P03": 15.0, "53300": 15.0, "53": 5.0, "40001": 1.0, "40P01": 1.0,
    "55P03": 0.0, "25P03": 0.0, "57P05": 0.0, "08": 0.0,
}  # fmt: skip
# What to do where waiting alone may not help.
ADVICE = {
    "53300": "Every connection that this user may open is taken: run again when some are free, lower `parallel` of the "
    "exports, or let the administrator raise max_connections or the role's CONNECTION LIMIT.",
}
# What the relation's disappearance or change looks like once it was described.
# 0A000 comes with `cached plan must not change result type`.
CHANGED = frozenset({"42P01", "42703", "42704", "0A000", "2BP01", "42804", "42883"})

# Errors in mid-stream reach us as a text without SQLSTATE (`engine.md`, section 2, trap 5). First match wins.
# Rows: a piece of the lower-cased text, the SQLSTATE it stands for.
TEXTS = (
    ("statement timeout", "57014"),
    ("due to user request", "57014"),
    ("lock timeout", "55P03"),
    ("conflict with recovery", "40001"),
    ("terminating connection due to administrator", "57P01"),
    ("crash of another server process", "57P02"),
    ("idle-in-transaction timeout", "25P03"),
    ("idle-session timeout", "57P05"),
    ("password authentication failed", "28P01"),
    ("pg_hba.conf", "28000"),  # has no entry for the line, or one that rejects it
    ("is not permitted to log in", "28000"),
    ("no password supplied", "28P01"),
    ("no such user", "28000"),
    ("authentication failed", "28000"),
    ("too many clients", "53300"),
    ("too many connections for", "53300"),  # a role, or a database
    ("remaining connection slots", "53300"),
    ("starting up", "57P03"),
    ("shutting down", "57P03"),
    ("not yet accepting connections", "57P03"),
    ("deadlock", "40P01"),
    ("could not serialize", "40001"),
    ("permission denied", "42501"),
    ("closed the connection unexpectedly", "08006"),
    ("no connection to the server", "08006"),
    ("connection not open", "08006"),
    ("connection is closed", "08006"),
    ("connection reset", "08006"),
    ("broken pipe", "08006"),
    ("ssl syscall error", "08006"),
    ("unexpected eof", "08006"),
    ("connection refused", "08001"),
    ("no route to host", "08001"),
    ("network is unreachable", "08001"),
    ("could not translate host name", "08001"),
    ("failed to resolve host", "08001"),
    ("timeout expired", "08001"),
    ("connection timed out", "08006"),
    ("could not receive data", "08006"),
    ("lost synchronization", "08006"),
    ("invalid snapshot identifier", "22023"),
    ("could not import the requested snapshot", "55000"),
    ("invalid byte sequence for encoding", "22021"),
    ("has no equivalent in encoding", "22P05"),
)
# A text, or a name or comment in the catalog, that the server cannot give as UTF-8.
UNWRITABLE = frozenset({"22021", "22P05"})

# Of connections that are refused, whose SQLSTATE libpq does not tell; also in the words of PgBouncer.
NO_ROLE = re.compile(r'(?i)role "[^"]*" does not exist')
MISSING = re.compile(r"(?i)database \"[^\"]*\" does not exist|no such database")
POOL_IS_FULL = "query_wait_timeout"  # of PgBouncer, beside the words of a server that went away
FOR_GOOD = re.compile(r"(?i)\binvalid (?:\w+ value|port number|integer value|connection option|uri)")


def sqlstate_of(error: BaseException) -> str:
    """Return the fault's SQLSTATE, from the driver or from its text; '' when neither tells."""
    known = getattr(error, "sqlstate", None)
    if known:
        return str(known)
    text = str(error).lower()
    return next((state for piece, state in TEXTS if piece in text), "")


def clean(text: object, *, secrets: Sequence[str] = ()) -> str:
    """Make a driver's message safe to show: no secret, no SQL, no quoted value of a row, no control bytes, one line."""
    # What follows these words quotes SQL and row values: `Key (email)=(…) already exists`.
    words = re.split(r"\n\s*(?:Query was|DETAIL|CONTEXT|HINT|LINE \d+)\b", str(text))[0]
    words = re.sub(r"^.*?\b(?:ERROR|FATAL|PANIC):\s+", "", words, flags=re.DOTALL)
    # Asked with and without TLS (`sslmode=prefer`), a server refuses twice in the same words.
    words = re.sub(r"^(.+)\nconnection to server [^\n]* (?:ERROR|FATAL):\s+\1\s*$", r"\1", words)
    words = re.sub(r"\s*SQLSTATE: \w+$", "", words.strip())
    # libpq's guess at why nobody listens; ours says where to look.
    words = re.sub(r"\n\s*Is the server running [^?]*\?", "", words)
    # These texts quote the value that did not fit.
    words = re.sub(r"(?i)(invalid input \S+[^\"]*|out of range[^\"]*|syntax for [^\"]*)\"[^\"]*\"", r"\1…", words)
    words = re.sub(r"(?i)\bpassword\s*=\s*\S+", "password=…", words)
    words = re.sub(r"\bpostgres(?:ql)?://\S+", "postgresql://…", words)
    return faults.one_line(words, secrets=secrets)


def fault(error: BaseException, *, doing: str, user: str = "", secrets: Sequence[str] = ()) -> RivetError:
    """Turn a driver's error into ours. `doing` says what was asked, in words: `reading page 3 of orders`.

    SourceLost when a new connection may succeed; everything unknown is permanent.
    """
    if SILENT in str(error):
        return SourceLost(f"While {doing}: {clean(error)}. {LOOK_AT_LINE}")
    state = sqlstate_of(error)
    said = f"PostgreSQL said: {clean(error, secrets=secrets)}" + (f" ({state})" if state else "")
    # One SQLSTATE for two things, which only the text tells apart: the server's time limit, and somebody's cancel.
    if state == "57014" and "user request" not in str(error):
        return faults.timed_out(doing)
    if state == "57014":
        return faults.cancelled(doing)
    if POOL_IS_FULL in said:
        return SourceLost(
            f"While {doing}: PgBouncer found no free connection to the server within its query_wait_timeout. Planner "
            f"and tasks hold one each: raise default_pool_size to `parallel` + 2, or name the server itself."
        )
    extra = PASSING.get(state, PASSING.get(state[:2]))
    if extra is not None:
        advice = ADVICE.get(state, "The source may answer later; run again.")
        return SourceLost(f"While {doing}: {said}. {advice}", extra_seconds=extra)
    if state.startswith("28"):
        return SourceAuth(f"While {doing}: {said}. Check `user` and the password reference of the source.")
    if state == "42P01":
        return faults.no_table(doing, said)
    if state == "42501":
        return SourcePermission(
            f"While {doing}: {said}. Let the owner run: GRANT SELECT ON <table> TO {user or '<user>'}."
        )
    if state in UNWRITABLE:
        return SourceError(
            f"While {doing}: {said}. Correct the text at the source; or export the bytes that it has there, by a query "
            f"with convert_to(<column>, getdatabaseencoding())."
        )
    return faults.for_good(doing, said)


def connect_fault(error: BaseException, *, where: str, secrets: Sequence[str] = (), refusal: str = "") -> RivetError:
    """Turn a refused connection into ours: whatever does not say that it is for good may pass.

    `where` is host and port, which are no secret; `refusal` is why the certificate was refused, if that is known.
    """
    state = sqlstate_of(error)
    said = clean(error, secrets=secrets)
    line = tls_fault(refusal or said) if not getattr(error, "sqlstate", None) else None
    if line is not None:
        return faults.unsafe_line("PostgreSQL", where, said, line)
    if state.startswith("28") or NO_ROLE.search(said):
        plain = " If it takes protected lines only, add `tls: {mode: verify-full}`." if "no encryption" in said else ""
        return SourceAuth(
            f"PostgreSQL at {where} refused the login: {said}. Check `user`, the password reference and `tls` of "
            f"the source.{plain}"
        )
    if MISSING.search(said):
        return faults.no_database("PostgreSQL", where, said)
    if state[:2] in ("08", "") and not FOR_GOOD.search(said) and POOL_IS_FULL not in said:
        return faults.unreachable("PostgreSQL", where, said)
    return fault(error, doing=f"connecting to PostgreSQL at {where}", secrets=secrets)


def change_of_relation(error: RivetError, cause: BaseException, *, relation: str) -> RivetError:
    """Return that the relation changed under the reader, when the SQLSTATE means that; else the error itself."""
    if sqlstate_of(cause) not in CHANGED or isinstance(error, SourceLost):
        return error
    return faults.relation_changed(relation)


def unknown_table(name: str, *, near: Sequence[str]) -> UnknownTable:
    """Return the error that a table is not there, with the ones that look like it."""
    return faults.not_shown(name, near=near, where_listed="with \\dt in psql")
