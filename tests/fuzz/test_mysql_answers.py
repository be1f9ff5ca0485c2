"""Bytes of a stranger as an answer of MySQL: each ends in columns, or in PyMySQL's own class of faults."""

from __future__ import annotations

import numpy as np
import pymysql
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rivet_resources.engines.mysql.wire import packets as mysql_packets
from rivet_resources.engines.mysql.wire import rows as mysql_wire
from rivet_resources.engines.mysql.wire.packets import Definition, RawRows

FEW = settings(max_examples=500, derandomize=True, deadline=None, database=None)
EIGHT = [b"\xfe" + number.to_bytes(8, "little") for number in (2**63, 2**64 - 1, 2**63 - 1, 2**32, 5)]
PIECE = st.one_of(st.binary(max_size=6), st.sampled_from([b"\xfb", b"\xfc\xff\xff", b"\xfd\1\0\0x", *EIGHT]))


def raw(rows: list[bytes], columns: int) -> RawRows:
    """Rows as the packets' walk gives them."""
    ends = np.cumsum([len(row) for row in rows]).astype(np.int64)
    types = tuple(Definition(f"c{i}", 253, 45 if i % 2 else 63, 0, 0, 0) for i in range(columns))
    return RawRows(types, np.frombuffer(b"".join(rows), np.uint8), np.append(0, ends[:-1]).astype(np.int64), ends)


@FEW
@given(rows=st.lists(st.lists(PIECE, max_size=4).map(b"".join), min_size=1, max_size=5), columns=st.integers(1, 4))
@example(rows=[b"\xfe" + (2**64 - 9).to_bytes(8, "little")], columns=1)
@example(rows=[EIGHT[2] + EIGHT[2] + b"\1x"], columns=3)
def test_rows_of_any_bytes_are_cut_or_refused(rows: list[bytes], columns: int) -> None:
    """Lengths with a sign, and sums of them that wrap, bring the place back to where it should be."""
    try:
        found = mysql_wire.batch(raw(rows, columns))
    except pymysql.MySQLError:
        return
    found.validate(full=True)
    sizes = [sum(len(cell.as_py() or b"") for cell in (row,)) for column in found.columns for row in column]
    assert sum(sizes) <= sum(map(len, rows))


def test_negative_length_is_refused() -> None:
    """What ended the process with a segmentation fault before: minus 9, so that the next column begins at 0 again."""
    back = b"\xfe" + (2**64 - 9).to_bytes(8, "little")

    with pytest.raises(pymysql.MySQLError, match="longer than the answer"):
        mysql_wire.batch(raw([back + b"\x09" + b"x" * 9], 2))


@FEW
@given(data=st.binary(min_size=5, max_size=120))
def test_packets_of_any_bytes_are_walked_or_not(data: bytes) -> None:
    """The two walks agree, and what they give lies inside."""
    buffer = np.frombuffer(data, np.uint8)
    headers = mysql_packets.walk(buffer)
    if headers is not None:
        found = mysql_packets.join_packets((), buffer[: int(headers[-1])].copy(), headers[:-1])
        assert (found.starts <= found.ends).all()
