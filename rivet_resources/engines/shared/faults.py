"""What a fault is called and what to do about it, where that is the same for every engine.

Belongs here: making a message safe to show, and sentences without anything of one engine in them. Not here: which code
of which engine means what (`engines/*/errors.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

from rivet_resources.errors import (
    SourceAuth,
    SourceChanged,
    SourceError,
    SourceMissing,
    SourceTls,
    SourceUnreachable,
    StatementTimeout,
    UnknownTable,
)
from rivet_resources.tls_faults import TlsFault

LONGEST_MESSAGE = 500


def one_line(words: str, *, secrets: Sequence[str] = ()) -> str:
    """Return a message without secrets and control bytes, on one line, cut where it is long."""
    # Drivers print what they connected with. Replaced before the text is cut, or half a password could stay at the
    # end.
    for secret in secrets:
        if secret:
            words = words.replace(secret, "…")
    # Control bytes of a server's message would change the terminal, and line ends would forge lines of a log.
    return " ".join("".join(c if c.isprintable() else " " for c in words).split())[:LONGEST_MESSAGE]


def timed_out(doing: str, *, owner: str = "source") -> StatementTimeout:
    """Return the fault of a statement that ran into its limit; `owner` is who is to be given an index."""
    return StatementTimeout(
        f"While {doing}: the statement ran into `tuning.statement_timeout_s`. The same statement would again: "
        f"raise that limit, lower `tuning.batch_size`, or give the {owner} an index for it."
    )


def cancelled(doing: str) -> SourceError:
    """Return the fault of a statement that somebody at the server ended."""
    return SourceError(f"While {doing}: someone at the source cancelled the statement. Ask them, then run again.")


def no_table(doing: str, said: str) -> UnknownTable:
    """Return the fault of a statement on a table that is not there."""
    return UnknownTable(f"While {doing}: {said}. Fix `table` or `query` of the export.")


def for_good(doing: str, said: str) -> SourceError:
    """Return the fault of a statement that would fail again."""
    return SourceError(f"While {doing}: {said}. Fix the query or the source, then run again.")


def relation_changed(relation: str) -> SourceChanged:
    """Return the fault of a relation that is another one than when it was described."""
    return SourceChanged(
        f"{relation} was dropped or altered while it was read. Nothing is published; run again once the change is done."
    )


def unsafe_line(product: str, where: str, said: str, line: TlsFault) -> SourceTls:
    """Return the fault of a connection whose TLS was refused."""
    return SourceTls(f"{product} at {where} cannot be reached safely: {line.why} ({said}). {line.fix}")


def login_refused(product: str, where: str, said: str) -> SourceAuth:
    """Return the fault of a user or password that the server does not take."""
    return SourceAuth(
        f"{product} at {where} refused the login: {said}. Check `user`, the password reference and `tls` of the source."
    )


def no_database(product: str, where: str, said: str) -> SourceMissing:
    """Return the fault of a database that the server does not have."""
    return SourceMissing(
        f"{product} at {where} has no such database: {said}. Fix `database` of the source, or create it."
    )


def unreachable(product: str, where: str, said: str) -> SourceUnreachable:
    """Return the fault of a server that does not answer."""
    return SourceUnreachable(
        f"{product} at {where} cannot be reached: {said}. Check `host`, `port` and the network from this machine."
    )


def not_shown(name: str, *, near: Sequence[str], where_listed: str) -> UnknownTable:
    """Return the fault of a table that this user does not see, with the ones that look like it."""
    hint = f"Did you mean {' or '.join(near)}?" if near else f"See which tables the user sees {where_listed}."
    return UnknownTable(f"The source shows no table {name} to this user. Fix `table` of the export. {hint}")
