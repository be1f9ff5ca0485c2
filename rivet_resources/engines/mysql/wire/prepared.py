"""One statement sent as a prepared one, so that its rows come in the binary protocol; as text where that is refused.

Belongs here: preparing, executing, letting go, when the text protocol must do. Not here: bytes of the answer
(packets.py, stream.py), cells of either protocol (binary.py, rows.py).

Numbers and times come as they are stored: the server spends half of the text protocol's work on writing doubles as
decimal digits (5 million narrow rows of MySQL 9.7: 5.8 CPU s as text, measured 2026-11-26), and we the rest on
reading them back.
Source of the packets: MySQL internals manual, "COM_STMT_PREPARE", "COM_STMT_EXECUTE", "COM_STMT_CLOSE".
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any
from weakref import WeakSet

from rivet_resources.engines.mysql.wire.packets import MALFORMED, Definition, definitions

# The server has no room for one more prepared statement; the statement cannot be prepared; there is something between
# us and the server that does not know the command. Source: MySQL 8.0 error reference (1461, 1295, 1047, 1615).
REFUSALS = frozenset({1461, 1295, 1047})
# The table left the server's cache of definitions between the two, as often as it tried; one that is too small does so
# to views again and again.
NEEDS_PREPARING = 1615
HEAD = struct.Struct("<IHH")  # behind the status byte: statement, columns, parameters
EXECUTE = struct.Struct("<IBI")  # statement, no cursor, once
TEXT_ONLY: WeakSet[Any] = WeakSet()  # connections that were refused a prepared statement


@dataclass(frozen=True)
class Sent:
    """A statement whose rows are on their way."""

    columns: tuple[Definition, ...]
    statement: int | None  # the prepared one's number; None: its rows come as text

    @property
    def is_binary(self) -> bool:
        """Return whether its rows are of the binary protocol."""
        return self.statement is not None


def send(connection: Any, sql: str) -> Sent:
    """Send one statement, and read what columns its rows have.

    Raises:
        pymysql.err.MySQLError: what the server says.
    """
    from pymysql.constants import COMMAND  # driver

    statement = None if connection in TEXT_ONLY else _prepare(connection, sql)
    columns = None if statement is None else _execute(connection, statement)
    if columns is not None:
        return Sent(columns, statement)
    connection._execute_command(COMMAND.COM_QUERY, sql)
    return Sent(definitions(connection), None)


def let_go(connection: Any, sent: Sent) -> None:
    """Let the server forget a statement whose answer was read to its end; nothing answers that."""
    if sent.statement is not None:
        _close(connection, sent.statement)


def _prepare(connection: Any, sql: str) -> int | None:
    """Prepare; None where the text protocol must do.

    Raises:
        pymysql.err.MySQLError: the server does not take the statement.
    """
    from pymysql import err  # driver
    from pymysql.constants import COMMAND  # driver

    connection._execute_command(COMMAND.COM_STMT_PREPARE, sql)
    try:
        head = connection._read_packet()
    except err.MySQLError as error:
        if error.args[:1] and error.args[0] in REFUSALS and connection.open:
            TEXT_ONLY.add(connection)
            return None
        raise
    try:
        number, columns, parameters = HEAD.unpack_from(head.get_all_data(), 1)
        # Descriptions of parameters, then of columns; each kind ends with EOF.
        for count in filter(None, (parameters, columns)):
            for _ in range(count + 1):
                connection._read_packet()
    except MALFORMED:
        raise err.InternalError("the answer to preparing is not as the protocol has it") from None
    if columns and not parameters:
        return int(number)
    # No rows, or a `?` outside of quotes: as text the server says itself what is wrong with that.
    _close(connection, number)
    return None


def _execute(connection: Any, statement: int) -> tuple[Definition, ...] | None:
    """Execute, and read the columns of the rows; None where the text protocol must do.

    Asked again and not taken from the preparing: the table may have been altered in between.

    Raises:
        pymysql.err.MySQLError: the server does not execute the statement.
    """
    from pymysql import err  # driver
    from pymysql.constants import COMMAND  # driver

    connection._execute_command(COMMAND.COM_STMT_EXECUTE, EXECUTE.pack(statement, 0, 1))
    try:
        return definitions(connection)
    except err.MySQLError as error:
        if error.args[:1] != (NEEDS_PREPARING,):
            raise
        TEXT_ONLY.add(connection)
        _close(connection, statement)
        return None


def _close(connection: Any, statement: int) -> None:
    from pymysql.constants import COMMAND  # driver

    connection._execute_command(COMMAND.COM_STMT_CLOSE, struct.pack("<I", statement))
