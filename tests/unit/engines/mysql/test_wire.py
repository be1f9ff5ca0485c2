"""Answers of MySQL's text protocol, built by hand and said by a socket, as PyMySQL's connection hears them."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress

import numpy as np
import pyarrow as pa
import pymysql
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pymysql.constants import FIELD_TYPE

from rivet_resources.engines.mysql.wire import headers
from rivet_resources.engines.mysql.wire import packets as mysql_packets
from rivet_resources.engines.mysql.wire import rows as mysql_wire
from rivet_resources.engines.mysql.wire.packets import CONTINUED, Definition, RawRows
from rivet_resources.engines.shared.paging import TooLarge

UTF8, BINARY = 45, 63
EOF = b"\xfe\x00\x00\x02\x00"


def coded(value: bytes | None) -> bytes:
    """A value as the text protocol writes it."""
    if value is None:
        return b"\xfb"
    size = len(value)
    if size < 0xFB:
        return bytes([size]) + value
    for code, width in ((0xFC, 2), (0xFD, 3), (0xFE, 8)):
        if size < 1 << 8 * width:
            return bytes([code]) + size.to_bytes(width, "little") + value
    raise AssertionError


def packets(*payloads: bytes, number: int = 0) -> bytes:
    """Payloads in packets with their headers; one of 16 MB or more goes on in further packets."""
    said = bytearray()
    for payload in payloads:
        while True:
            part, payload = payload[:CONTINUED], payload[CONTINUED:]
            said += len(part).to_bytes(3, "little") + bytes([number & 0xFF]) + part
            number += 1
            if len(part) < CONTINUED:
                break
    return bytes(said)


def definition(name: str, type_code: int = FIELD_TYPE.VAR_STRING, charset: int = UTF8) -> bytes:
    """A column definition packet."""
    texts = b"".join(coded(text) for text in (b"def", b"", b"t", b"t", name.encode(), name.encode()))
    fixed = charset.to_bytes(2, "little") + bytes(4) + bytes([type_code]) + bytes(5)
    return texts + b"\x0c" + fixed


def answer(rows: list[list[bytes | None]], *, columns: list[bytes] | None = None, last: bytes = EOF) -> bytes:
    """A whole answer: definitions, rows, the last packet."""
    columns = columns or [definition(f"c{i}") for i in range(len(rows[0]))]
    lines = [b"".join(coded(value) for value in row) for row in rows]
    return packets(bytes([len(columns)]), *columns, EOF, *lines, last, number=1)


def raw(rows: list[list[bytes | None]], types: list[tuple[int, int]] | None = None) -> RawRows:
    """Rows as they stand in memory, each behind its header, without a socket."""
    lines = [b"".join(coded(value) for value in row) for row in rows]
    types = types or [(FIELD_TYPE.VAR_STRING, UTF8)] * len(rows[0])
    columns = tuple(Definition(f"c{i}", code, charset, 0, 0, 0) for i, (code, charset) in enumerate(types))
    sizes = np.array([0] + [len(line) + 4 for line in lines])
    headers = np.cumsum(sizes)[:-1].astype(np.int64)
    return mysql_packets.join_packets(columns, np.frombuffer(bytearray(packets(*lines)), np.uint8), headers)


class Server:
    """An emulator: one end of a socket pair, which says what it is given; the other end is PyMySQL's."""

    def __init__(self) -> None:
        mine, theirs = socket.socketpair()
        theirs.settimeout(20)
        self.socket = mine
        self.connection = pymysql.connect(defer_connect=True, charset="utf8mb4", read_timeout=20)
        self.connection._sock = theirs
        self.connection._rfile = theirs.makefile("rb")
        self.connection._current_timeout = None

    def query(self, said: bytes, *, limit_bytes: int | None = None, is_closing: bool = False) -> RawRows:
        """Ask for rows while the server says `said`."""

        def speak() -> None:
            self.socket.recv(4096)
            with suppress(OSError):  # the test may be over before all is said
                self.socket.sendall(said)
            if is_closing:
                self.socket.close()

        speaker = threading.Thread(target=speak, daemon=True)
        speaker.start()
        return mysql_packets.query(self.connection, "SELECT 1", limit_bytes=limit_bytes)


@pytest.fixture
def server() -> Iterator[Server]:
    """A server that says what a test tells it to."""
    emulator = Server()
    yield emulator
    emulator.connection._force_close()
    emulator.socket.close()


LENGTHS = [0, 1, 5, 250, 251, 252, 255, 256, 65_535, 65_536, 70_000]


# --- cutting and gathering -----------------------------------------------------------------------


def test_every_class_of_length_may_stand_in_one_column() -> None:
    """Empty, short, two-byte and three-byte lengths and NULL, in any order, come back as they were."""
    values = [b"x" * length for length in LENGTHS] + [None, b"", None]
    rows = [[b"before", value, str(i).encode()] for i, value in enumerate(values)]

    batch = mysql_wire.batch(raw(rows))

    assert batch.column(1).cast(pa.binary()).to_pylist() == values
    assert batch.column(2).to_pylist() == [str(i) for i in range(len(values))]


def test_an_eight_byte_length_is_read_whole() -> None:
    """A length may be written with more bytes than it needs."""
    line = b"\xfe" + (3).to_bytes(8, "little") + b"abc" + coded(b"d")
    columns = (Definition("a", 253, UTF8, 0, 0, 0), Definition("b", 253, UTF8, 0, 0, 0))
    rows = mysql_packets.join_packets(columns, np.frombuffer(bytearray(packets(line)), np.uint8), np.array([0]))

    assert mysql_wire.batch(rows).to_pylist() == [{"a": "abc", "b": "d"}]


COLUMNS: dict[str, list[bytes | None]] = {
    "one length": [b"2024-01-01"] * 5,
    "one length and a NULL": [b"2024-01-01", None, b"2024-01-02"],
    "only NULL": [None, None],
    "only empty": [b"", b""],
    "empty is not NULL": [b"", None, b""],
    "several lengths": [b"1", b"22", b"333", b""],
    "long": [b"y" * 5000, b"z" * 3000, None, b"", b"w" * 70_000],
    "UTF-8": ["ñ ✓ 🎉".encode(), b"abc", "é".encode()],
    "one row": [b"a"],
    "nine rows, the last a NULL": [b"a"] * 8 + [None],
}


@pytest.mark.parametrize("name", COLUMNS)
def test_values_are_gathered_whatever_their_lengths(name: str) -> None:
    """Text and binary columns give each value once, in order."""
    values = COLUMNS[name]
    rows = [[value, b"between", value] for value in values]
    kinds = [(FIELD_TYPE.VAR_STRING, UTF8), (FIELD_TYPE.LONG, BINARY), (FIELD_TYPE.BLOB, BINARY)]

    batch = mysql_wire.batch(raw(rows, kinds))

    assert batch.schema.types == [pa.string(), pa.string(), pa.binary()]
    assert batch.column(0).to_pylist() == [None if value is None else value.decode() for value in values]
    assert batch.column(2).to_pylist() == values
    batch.validate(full=True)


def test_no_rows_give_columns_without_cells() -> None:
    """An empty page keeps its columns and types."""
    columns = (Definition("a", 253, UTF8, 0, 0, 0), Definition("b", FIELD_TYPE.BIT, BINARY, 0, 0, 0))
    nothing = np.empty(0, np.int64)

    batch = mysql_wire.batch(RawRows(columns, np.empty(0, np.uint8), nothing, nothing))

    assert (batch.num_rows, batch.schema.types) == (0, [pa.string(), pa.binary()])


TYPES = [
    (FIELD_TYPE.LONGLONG, BINARY, pa.string()),
    (FIELD_TYPE.NEWDECIMAL, BINARY, pa.string()),
    (FIELD_TYPE.DATETIME, BINARY, pa.string()),
    (FIELD_TYPE.TIME, BINARY, pa.string()),
    (FIELD_TYPE.JSON, BINARY, pa.string()),
    (FIELD_TYPE.VAR_STRING, UTF8, pa.string()),
    (FIELD_TYPE.BLOB, UTF8, pa.string()),
    (FIELD_TYPE.VAR_STRING, BINARY, pa.binary()),
    (FIELD_TYPE.STRING, BINARY, pa.binary()),
    (FIELD_TYPE.BLOB, BINARY, pa.binary()),
    (FIELD_TYPE.GEOMETRY, BINARY, pa.binary()),
    (FIELD_TYPE.BIT, UTF8, pa.binary()),
]


@pytest.mark.parametrize(("code", "charset", "arrow"), TYPES)
def test_binary_columns_are_bytes_and_all_others_text(code: int, charset: int, arrow: pa.DataType) -> None:
    """Numbers, times and JSON report the binary charset and are text all the same."""
    assert mysql_wire.batch(raw([[b"1"]], [(code, charset)])).schema.types == [arrow]


INVALID = {
    "a latin1 byte": [b"caf\xe9"],
    "half a character": [b"abc\xc3"],
    "a character cut in two cells": [b"abc\xc3", b"\xa9def"],
    "a lone surrogate": [b"\xed\xa0\x80"],
    "in the last cell of many": [b"x"] * 100 + [b"\xff"],
}


@pytest.mark.parametrize("name", INVALID)
def test_text_that_is_not_utf8_comes_as_bytes(name: str) -> None:
    """Invalid bytes never pass for text, even when their neighbour completes them."""
    values = INVALID[name]

    column = mysql_wire.batch(raw([[value] for value in values])).column(0)

    assert (column.type, column.to_pylist()) == (pa.binary(), values)


def test_a_row_that_does_not_end_with_its_packet_is_refused() -> None:
    """Lengths that lead beyond a row, or stop before its end, are no row."""
    for line in (b"\x05abc", b"\x02abc", b"\xfe" + b"\xff" * 8, b""):
        rows = mysql_packets.join_packets(
            (Definition("a", 253, UTF8, 0, 0, 0),), np.frombuffer(bytearray(packets(line)), np.uint8), np.array([0])
        )
        with pytest.raises(pymysql.err.InternalError):
            mysql_wire.batch(rows)


# --- packets -------------------------------------------------------------------------------------


def test_an_answer_is_read_whole_and_the_connection_lives_on(server: Server) -> None:
    """After a clean end the next statement works, over as many packets as there are numbers, and more."""
    rows: list[list[bytes | None]] = [[str(i).encode(), b"text" if i % 3 else None] for i in range(1000)]
    server.query(answer(rows))

    batch = mysql_wire.batch(server.query(answer(rows)))

    assert [list(row.values()) for row in batch.to_pylist()] == [
        [None if value is None else value.decode() for value in row] for row in rows
    ]
    assert batch.schema.names == ["c0", "c1"]


def test_rows_of_one_answer_outlive_the_next_statement(server: Server) -> None:
    """The memory of a page is used again only when nobody looks at its rows any more."""
    first = server.query(answer([[b"first"]] * 100))

    server.query(answer([[b"later"]] * 100))

    assert set(mysql_wire.batch(first).column(0).to_pylist()) == {"first"}


def test_an_answer_without_rows_has_its_columns(server: Server) -> None:
    """No rows are no error."""
    rows = server.query(answer([], columns=[definition("a"), definition("b")]))

    assert ([c.name for c in rows.columns], len(rows.starts)) == (["a", "b"], 0)


ODD_ROWS: dict[str, list[list[bytes | None]]] = {
    "values full of zeros": [[bytes(50), b"a"] for _ in range(300)],
    "values that look like headers": [[b"\x05\x00\x00\x01\xfe\x00\x00\x02\x00", b"\x01\x00\x00\x02a"]] * 300,
    "rows that end like an end packet": [[b"x", b"\x05\x00\x00\x09\xfe\x00\x00\x02\x00"]] * 20_000,
    "values full of 255": [[b"\xff" * 300, b"\x00\xff"]] * 3000,
    "long rows": [[b"a" * 70_000, b"b"]] * 40,
    "rows of all sizes": [[b"a" * (i * 37 % 4000), b"b"] for i in range(3000)],
}


@pytest.mark.parametrize("name", ODD_ROWS)
def test_no_value_is_taken_for_a_packet(name: str, server: Server) -> None:
    """Whatever the values hold, rows begin and end where their packets do."""
    rows = ODD_ROWS[name]
    columns = [definition("a", charset=BINARY), definition("b", charset=BINARY)]

    batch = mysql_wire.batch(server.query(answer(rows, columns=columns)))

    assert [list(row.values()) for row in batch.to_pylist()] == rows


LINES: dict[str, Callable[[int], bytes]] = {
    "texts": lambda row: coded(b"x" * 180),
    "texts with empty ones": lambda row: coded(b"x" * 180) + coded(b"") * 2,
    "small numbers, nearly all zeros": lambda row: b"\0\0\0" + row.to_bytes(8, "little") * 6,
    "rows of several lengths": lambda row: bytes(row * 37 % 300),
    "what looks like headers": lambda row: bytes([4, 0, 0, row & 0xFF]) * (1 + row % 20),
}


@pytest.mark.parametrize("name", LINES)
def test_many_packets_are_walked_from_many_places(name: str) -> None:
    """Where lanes do not meet, steps would be taken in silence, and the walk be slow."""
    buffer = np.frombuffer(bytearray(packets(*(LINES[name](row) for row in range(5000)), EOF)), np.uint8)

    fast, slow = headers.walk_by_lanes(buffer), headers.walk_by_steps(buffer)

    assert fast is not None
    assert slow is not None
    assert slow.tolist() == fast.tolist()


def test_values_that_hold_whole_packets_are_no_packets() -> None:
    """A lane may begin inside of such a value; it then ends where no other one begins, and steps must do."""
    value = packets(*[b"ab\1"] * 9)
    buffer = np.frombuffer(bytearray(packets(*[coded(value)] * 5000, EOF)), np.uint8)

    fast, slow = headers.walk_by_lanes(buffer), headers.walk_by_steps(buffer)

    assert slow is not None
    assert fast is None or slow.tolist() == fast.tolist()


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # on a busy machine
@given(st.lists(st.binary(max_size=40), min_size=300, max_size=600), st.integers(0, 3))
def test_lanes_never_find_other_packets_than_steps(lines: list[bytes], cut: int) -> None:
    """Whatever rows hold, and where the answer ends too early."""
    said = packets(*lines, EOF)
    buffer = np.frombuffer(bytearray(said[: len(said) - cut]), np.uint8)

    fast, slow = headers.walk_by_lanes(buffer), headers.walk_by_steps(buffer)

    assert fast is None or (slow is not None and slow.tolist() == fast.tolist())


@pytest.mark.parametrize("size", [CONTINUED - 10, CONTINUED - 9, CONTINUED, CONTINUED + 1, 2 * CONTINUED + 5])
def test_a_row_of_16_mb_is_joined_from_its_packets(size: int, server: Server) -> None:
    """A packet of the largest length goes on in the next one, which may be empty, and may begin like an error."""
    value = b"\xff" * size
    rows: list[list[bytes | None]] = [[b"a", b"1"], [value, b"2"], [b"c", b"3"], [value, b"4"]]
    columns = [definition("a", charset=BINARY), definition("b")]

    batch = mysql_wire.batch(server.query(answer(rows, columns=columns)))

    assert batch.column(1).to_pylist() == ["1", "2", "3", "4"]
    assert [cell.as_py() == row[0] for cell, row in zip(batch.column(0), rows, strict=True)] == [True] * 4


ERROR = b"\xff" + (1317).to_bytes(2, "little") + b"#70100Query execution was interrupted"


@pytest.mark.parametrize("rows", [0, 1, 5000])
def test_an_error_behind_any_number_of_rows_is_raised_with_its_code(rows: int, server: Server) -> None:
    """The page fails whole."""
    said = answer([[b"a", b"b"]] * rows, columns=[definition("a"), definition("b")], last=ERROR)

    with pytest.raises(pymysql.err.MySQLError) as raised:
        server.query(said)

    assert raised.value.args == (1317, "Query execution was interrupted")


def test_an_error_instead_of_columns_is_raised_with_its_code(server: Server) -> None:
    """A statement that does not begin has PyMySQL's own error."""
    with pytest.raises(pymysql.err.MySQLError) as raised:
        server.query(packets(ERROR, number=1))

    assert raised.value.args[0] == 1317


@pytest.mark.parametrize("kept", [0.3, 0.5, 0.9, 0.999])
def test_an_answer_that_breaks_off_is_a_lost_connection(kept: float, server: Server) -> None:
    """The end of the line is never the end of the rows."""
    said = answer([[b"a", b"b"]] * 5000)

    with pytest.raises(pymysql.err.OperationalError) as raised:
        server.query(said[: int(len(said) * kept)], is_closing=True)

    assert (raised.value.args[0], server.connection._sock) == (2013, None)


def test_rows_beyond_the_limit_are_not_read_on(server: Server) -> None:
    """A page that is too large stops in mid-answer."""
    said = answer([[b"a" * 1000]] * 5000)

    with pytest.raises(TooLarge):
        server.query(said, limit_bytes=10_000)


def test_a_packet_out_of_its_turn_is_refused(server: Server) -> None:
    """A number that is not the next one means that packets were lost."""
    said = answer([[b"a"]] * 3)

    with pytest.raises(pymysql.err.InternalError):
        server.query(said[:-6] + b"\x63" + said[-5:])


def test_a_statement_without_rows_is_refused(server: Server) -> None:
    """An OK packet is no answer to a question for rows."""
    with pytest.raises(pymysql.err.ProgrammingError):
        server.query(packets(bytes(7), number=1))


def test_a_second_result_is_refused(server: Server) -> None:
    """A procedure's further results would be read as the next statement's."""
    with pytest.raises(pymysql.err.InternalError):
        server.query(answer([[b"a"]], last=b"\xfe\x00\x00\x0a\x00"))
