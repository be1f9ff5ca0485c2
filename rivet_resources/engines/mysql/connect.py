"""One connection to MySQL or MariaDB: its parameters, and the settings pinned on it before anything is read.

Belongs here: `ConnectionParams`, opening, pinning, small statements. Not here: the YAML block (source.py), which ways
to prove a password are taken (sign_in.py).
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any

from rivet_resources.contracts.settings import Tls
from rivet_resources.engines.mysql import leftover, sql
from rivet_resources.engines.mysql.errors import connect_fault, fault
from rivet_resources.engines.mysql.sign_in import connection_class
from rivet_resources.engines.mysql.wire import packets as mysql_packets
from rivet_resources.engines.shared import kept_connections
from rivet_resources.engines.shared.server import Address, is_loopback, system_authorities
from rivet_resources.errors import ConfigError, SourceError

if TYPE_CHECKING:
    from pymysql.connections import Connection

CONNECT_SECONDS = 10
CHARSET = "utf8mb4"
# COM_RESET_CONNECTION, which PyMySQL does not name. Source: MySQL's documentation of its protocol, "Utility Commands".
RESET_CONNECTION = 0x1F

Row = tuple[str | None, ...]


@dataclass(frozen=True)
class ConnectionParams:
    """All that one connection needs. Holds secrets: never logged, never pickled, lives as long as its reader."""

    address: Address
    tls: Tls | None
    settings: Mapping[str, str]  # session variables, values as SQL
    application: str
    patience_seconds: float  # for an answer, or more of one
    secrets: tuple[str, ...] = field(repr=False)
    is_capped: bool = False  # by `max_connections`

    @property
    def key(self) -> str:
        """Return what sessions share that may use one connection after another."""
        at, settings = self.address, sorted(self.settings.items())
        place = (at.host, at.port, at.user, at.password, at.database, sorted(at.options.items()))
        return kept_connections.key_of("mysql", place, self.tls, settings, self.patience_seconds)

    @property
    def where(self) -> str:
        """Name the place in messages."""
        return self.address.options.get("unix_socket") or self.address.where

    @property
    def is_verified(self) -> bool:
        """Return whether the server has proved who it is: by a certificate, or by a socket of this machine."""
        return "unix_socket" in self.address.options or (self.tls is not None and self.tls.mode.startswith("verify-"))

    @property
    def is_local(self) -> bool:
        """Return whether the line stays on this machine."""
        return is_loopback(self.address.host)

    @property
    def comment(self) -> str:
        """Return the comment that every statement begins with: a process list shows who asks, and of which process."""
        return f"/* {self.application.replace('*', '').replace('/', '')} {leftover.token()} */ "

    def parameters(self) -> dict[str, Any]:
        """Return PyMySQL's parameters."""
        from pymysql.converters import encoders  # driver

        at = self.address
        known = {
            "host": at.host, "port": at.port, "user": at.user, "database": at.database or None,
            # As UTF-8; the driver would take latin1.
            "password": (at.password or "").encode(),
            "unix_socket": at.options.get("unix_socket"),
        }  # fmt: skip
        return {
            **known,
            "charset": CHARSET,
            "autocommit": True,
            # No decoders: cells of the catalog stay texts.
            "conv": encoders,
            # `cell_text` decodes them: DDL quotes defaults that are bytes and no text.
            "use_unicode": False,
            "program_name": self.application[:512],
            "connect_timeout": CONNECT_SECONDS,
            "read_timeout": self.patience_seconds,
            "write_timeout": self.patience_seconds,
            **_tls_parameters(self.tls),
        }


def connect(conn_params: ConnectionParams) -> Connection[Any]:
    """Open one autocommit connection with every setting pinned and read back.

    Raises:
        SourceUnreachable, SourceAuth, SourceLost, SourceError, ConfigError
    """
    import pymysql  # driver

    parameters = conn_params.parameters()
    try:
        connection: Connection[Any] = connection_class()(
            is_verified=conn_params.is_verified, is_local=conn_params.is_local, **parameters
        )
    except (pymysql.MySQLError, OSError, EOFError, RuntimeError, *mysql_packets.MALFORMED) as error:
        # More than the driver's own errors: what answers at a wrong port makes it stumble over bytes that are no
        # protocol.
        raise connect_fault(error, where=conn_params.where, secrets=conn_params.secrets) from None
    leftover.note_connection(conn_params.where, conn_params.address.user or "", connection.thread_id())
    try:
        pin(connection, conn_params)
        _end_leftovers(connection, conn_params)
    except pymysql.MySQLError as error:
        # Without a good-bye: a session that is pinned in part must not be used, and may not even answer.
        connection._force_close()
        raise fault(error, doing=f"pinning the session at {conn_params.where}", secrets=conn_params.secrets) from None
    except BaseException:
        connection._force_close()
        raise
    return connection


def _end_leftovers(connection: Connection[Any], conn_params: ConnectionParams) -> None:
    """End what dead processes of this machine left running; a server that does not let us keeps it to its end."""
    import pymysql  # driver

    with suppress(pymysql.MySQLError):
        leftover.end_leftovers(
            lambda statement: rows_of(connection, conn_params.comment + statement),
            where=conn_params.where, user=conn_params.address.user or "", number=connection.thread_id(),
        )  # fmt: skip


def borrow(conn_params: ConnectionParams) -> Connection[Any]:
    """Return a connection that an earlier session of this command left behind, pinned as a new one; else a new one.

    Raises:
        as `connect`
    """
    import pymysql  # driver

    return kept_connections.borrow(
        conn_params,
        wake=lambda kept: pin(kept, conn_params),
        deaths=(pymysql.MySQLError, OSError),
        connect=lambda: connect(conn_params),
    )


def hand_back(connection: Connection[Any], conn_params: ConnectionParams) -> None:
    """End a session; see `kept_connections.hand_back`."""
    if connection.open:
        kept_connections.hand_back(connection, conn_params, is_cleaned=_is_cleaned)


def _is_cleaned(connection: Connection[Any]) -> bool:
    """Take a session's transaction, variables, locks and temporary tables away; False: it is not worth keeping."""
    import pymysql  # driver

    try:
        connection._execute_command(RESET_CONNECTION, b"")
        connection._read_ok_packet()
        # As it was opened; the server took its own defaults again.
        connection.set_character_set(CHARSET)
        connection.autocommit(True)
    except (pymysql.MySQLError, OSError, *mysql_packets.MALFORMED):
        return False
    return True


def pin(connection: Connection[Any], conn_params: ConnectionParams) -> None:
    """Set every setting that this server has, and read it back: a proxy may swallow what it does not like.

    Raises:
        SourceError: the server shows another value than was set.
    """
    wanted = conn_params.settings
    # First, and by itself: a server's limit cuts the answer of SHOW off as well, and what is not shown is not set.
    rows_of(connection, f"{conn_params.comment}SET SESSION sql_select_limit = {wanted['sql_select_limit']}")
    names = ", ".join(sql.quote_text(name) for name in wanted)
    shown = f"{conn_params.comment}SHOW SESSION VARIABLES WHERE Variable_name IN ({names})"
    there = [str(row[0]).lower() for row in rows_of(connection, shown)]
    # Only what this server has: MySQL and MariaDB name their timeouts differently, and an unknown name refuses the
    # whole statement.
    rows_of(connection, "SET SESSION " + ", SESSION ".join(f"{name} = {wanted[name]}" for name in there))
    found = {str(row[0]).lower(): row[1] or "" for row in rows_of(connection, shown)}
    for name in there:
        if not _is_same(wanted[name].strip("'"), found.get(name, "")):
            raise SourceError(
                f"The server at {conn_params.where} shows {name} = {found.get(name)!r} after it was set to "
                f"{wanted[name]}. Is a proxy between? Connect to the server itself, or let its administrator "
                f"allow SET {name}."
            )


def _is_same(wanted: str, found: str) -> bool:
    """Compare a setting as written and as shown: ON is 1, 300 is 300.000000."""
    words = {"ON": "1", "OFF": "0"}
    one, other = (words.get(text.upper(), text) for text in (wanted, found))
    try:
        return Decimal(one) == Decimal(other)
    except InvalidOperation:
        return one.lower() == other.lower()


def rows_of(connection: Connection[Any], statement: str) -> list[Row]:
    """Run one small statement; its rows as texts, () for one that returns none."""
    from pymysql import err  # driver

    with connection.cursor() as cursor:
        try:
            cursor.execute(statement)
            return [tuple(cell_text(cell) for cell in row) for row in cursor.fetchall()]
        except mysql_packets.MALFORMED:
            # The rest of the answer would be taken for the next one's.
            connection._force_close()
            raise err.InternalError("the answer is not as the protocol has it") from None


def cell_text(cell: object) -> str | None:
    if isinstance(cell, bytes):
        return cell.decode("utf-8", "replace")
    return None if cell is None else str(cell)


def _tls_parameters(tls: Tls | None) -> dict[str, Any]:
    """Return PyMySQL's part of the `tls:` block; without one the host is this machine, and nothing is encrypted."""
    if tls is None or tls.mode == "disable":
        return {"ssl_disabled": True}
    if tls.mode == "require":
        # A context without checks, which is what `require` means: encrypted, to whoever answers.
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        return {"ssl": context}
    authorities = str(tls.ca_file) if tls.ca_file else system_authorities()
    try:
        context = ssl.create_default_context(cafile=None if authorities == "system" else authorities)
    except OSError as error:
        raise ConfigError(
            f"`tls.ca_file` {authorities} cannot be read: {error.strerror or 'it holds no certificate'}. "
            f"Name a PEM file with the certificate authority."
        ) from None
    # What MySQL generates for itself lacks a key identifier, which Python's strict check demands since 3.13.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    context.check_hostname = tls.mode == "verify-full"
    return {"ssl": context}
