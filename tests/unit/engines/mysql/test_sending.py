"""Preparing a statement before servers that refuse it, or answer what no server should: an emulator says it."""

from __future__ import annotations

import struct

import pytest
from pymysql import err

from rivet_resources.engines.mysql.wire import prepared
from tests.unit.engines.mysql.test_wire import EOF, Server, answer, definition, packets
from tests.unit.engines.mysql.test_wire import server as server

COLUMN = definition("a")


def ready(*, columns: int = 1, parameters: int = 0) -> bytes:
    """The answer to preparing: the statement is number 7."""
    head = b"\0" + struct.pack("<IHH", 7, columns, parameters) + b"\0\0\0"
    kinds = [*[COLUMN] * parameters, *([EOF] if parameters else []), *[COLUMN] * columns, *([EOF] if columns else [])]
    return packets(head, *kinds, number=1)


def refused(code: int) -> bytes:
    """The server says no."""
    return packets(b"\xff" + code.to_bytes(2, "little") + b"#HY000no", number=1)


def heard(server: Server) -> list[int]:
    """The commands that were sent, each by its number."""
    server.socket.setblocking(False)
    said, found = server.socket.recv(1 << 16), []
    while said:
        size = int.from_bytes(said[:3], "little")
        found.append(said[4])
        said = said[4 + size :]
    return found


PREPARE, EXECUTE, CLOSE, QUERY = 0x16, 0x17, 0x19, 0x03
ROWS = answer([[b"x"]], columns=[COLUMN])


def test_a_prepared_statement_is_executed(server: Server) -> None:
    """Its columns are those of the execution."""
    server.socket.sendall(ready() + ROWS)

    sent = prepared.send(server.connection, "SELECT a")

    assert (sent.statement, sent.is_binary, [each.name for each in sent.columns]) == (7, True, ["a"])
    assert heard(server) == [PREPARE, EXECUTE]


@pytest.mark.parametrize("code", sorted(prepared.REFUSALS))
def test_who_takes_no_prepared_statement_is_asked_in_text_from_then_on(code: int, server: Server) -> None:
    """Once refused is refused for this connection: each page would cost a question more."""
    server.socket.sendall(refused(code) + ROWS)
    sent = prepared.send(server.connection, "SELECT a")
    server.connection._rfile.read(len(packets(b"\1x", EOF)))  # the rows
    server.socket.sendall(ROWS)
    again = prepared.send(server.connection, "SELECT a")

    assert (sent.is_binary, again.is_binary) == (False, False)
    assert heard(server) == [PREPARE, QUERY, QUERY]


def test_a_statement_that_the_server_forgets_again_and_again_goes_as_text(server: Server) -> None:
    """As views do where its cache of definitions is too small."""
    server.socket.sendall(ready() + refused(prepared.NEEDS_PREPARING) + ROWS)

    sent = prepared.send(server.connection, "SELECT a")

    assert (sent.is_binary, heard(server)) == (False, [PREPARE, EXECUTE, CLOSE, QUERY])


def test_any_other_refusal_is_the_statements_own(server: Server) -> None:
    """A table that is not there is not there in text either."""
    server.socket.sendall(refused(1146))

    with pytest.raises(err.ProgrammingError):
        prepared.send(server.connection, "SELECT a")
    assert server.connection not in prepared.TEXT_ONLY


@pytest.mark.parametrize("said", [ready(parameters=1), ready(columns=0)], ids=["a parameter", "no columns"])
def test_what_cannot_be_executed_as_it_is_goes_as_text(said: bytes, server: Server) -> None:
    """The server is told to forget it, and says itself what is wrong."""
    server.socket.sendall(said + refused(1064))

    with pytest.raises(err.ProgrammingError):
        prepared.send(server.connection, "SELECT ?")

    assert heard(server) == [PREPARE, CLOSE, QUERY]


def test_an_answer_that_is_none_is_refused(server: Server) -> None:
    """Shorter than the protocol has it."""
    server.socket.sendall(packets(b"\0\7", number=1))

    with pytest.raises(err.InternalError, match="preparing"):
        prepared.send(server.connection, "SELECT a")
