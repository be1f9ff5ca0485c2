"""Bytes of a stranger as events of a binary log: each ends in a value, or in the module's own refusal, and soon."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from contextlib import suppress

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rivet_resources.engines.mysql.binlog import events as ev
from rivet_resources.engines.mysql.binlog import texts as mysql_texts
from rivet_resources.engines.mysql.binlog.compression import LARGEST_EVENT, inflate, unpack_events
from rivet_resources.engines.mysql.binlog.json import json_text
from rivet_resources.engines.mysql.binlog.row_layout import RowLayout
from rivet_resources.engines.mysql.binlog.rows import rows_of
from rivet_resources.errors import LogRefused

FEW = settings(max_examples=300, derandomize=True, deadline=None, database=None)
BYTES = st.binary(max_size=400)
HEAD = bytes(20)

READERS: dict[str, Callable[[bytes], object]] = {
    "table name": lambda data: ev.table_name(HEAD + data),
    "table map": lambda data: ev.table_map(HEAD + data, is_mariadb=False),
    "table map of MariaDB": lambda data: ev.table_map(HEAD + data, is_mariadb=True),
    "statement": lambda data: ev.query(HEAD + data),
    "compressed statement": lambda data: ev.query(bytes(5) + b"\xa5" + bytes(14) + data),
    "begin": lambda data: ev.is_begin(data + b"\0BEGIN"),
    "GTID": ev.mysql_gtid,
    "GTID of MariaDB": ev.mariadb_gtid,
    "rotation": ev.rotation,
    "JSON": json_text,
}


@pytest.mark.parametrize("reader", READERS)
@FEW
@given(data=BYTES)
def test_event_of_any_bytes_is_read_or_refused(reader: str, data: bytes) -> None:
    """No error of Python's own comes out."""
    with suppress(LogRefused):
        READERS[reader](data)


@FEW
@given(data=BYTES)
def test_compressed_bytes_are_opened_or_refused(data: bytes) -> None:
    """Both decompressors have errors of their own, which their callers put into words."""
    for act in (inflate, lambda data: list(unpack_events(bytes(20) + data))):
        with suppress(ValueError, OSError):
            act(data)


@FEW
@given(
    kinds=st.lists(st.sampled_from([1, 3, 8, 15, 16, 17, 245, 246, 247, 252, 254, 255]), min_size=1, max_size=6),
    meta=st.binary(min_size=12, max_size=12),
    rows=st.lists(st.binary(max_size=60), min_size=1, max_size=3),
    nullable=st.booleans(),
)
@example(kinds=[252], meta=b"\x08" * 12, rows=[b"\0" + b"\xff" * 8], nullable=True)
@example(kinds=[247], meta=b"\xc8" * 12, rows=[b"\0" * 30], nullable=False)
@example(kinds=[246], meta=b"\x01\xff" * 6, rows=[b"\0" * 30], nullable=False)
def test_rows_never_lie_outside_of_their_event(
    kinds: list[int], meta: bytes, rows: list[bytes], nullable: bool
) -> None:
    """Whatever lengths say, each cell is inside the buffer, so that its bytes can be cut out without another look."""
    fields = [
        ev.Field(f"c{i}", kind, tuple(meta[2 * i : 2 * i + 2]), nullable=nullable) for i, kind in enumerate(kinds)
    ]
    try:
        found = rows_of(
            [(row, 0, 0, 0, i + 1) for i, row in enumerate(rows)], RowLayout(fields), key=(), keeps_before=False
        )
    except LogRefused:
        return
    for cells in found.cells:
        assert ((cells.start >= 0) & (cells.length >= 0)).all()
        assert ((cells.start + cells.length)[~cells.null] <= len(found.buffer)).all()
        mysql_texts.gather(found.buffer, cells).validate(full=True)


def test_table_map_without_columns_is_refused() -> None:
    """Its rows take no room, and would never end."""
    body = bytes(8) + b"\x01d\0" + b"\x01t\0" + b"\0" + b"\0"

    with pytest.raises(LogRefused, match="table map"):
        ev.table_map(HEAD + body, is_mariadb=False)


def test_compression_bombs_are_not_opened() -> None:
    """A few bytes that would fill the memory are refused when they pass what they say, or what any event can be."""
    bomb = zlib.compress(bytes(200 << 20), 9)
    for said in (100, (200 << 20) - 1):
        with pytest.raises(ValueError, match="not as long as it says"):
            inflate(b"\x84" + said.to_bytes(4, "big") + bomb)
    with pytest.raises(LogRefused, match="COMPRESSED column"):
        mysql_texts.inflate_columns(pa.array([b"\x84" + (100).to_bytes(4, "big") + bomb]))


def test_transaction_that_is_longer_than_it_says_is_refused() -> None:
    """An event's length comes from the stranger too; the sum of them is what the head promised."""

    def payload(event: bytes, whole: int) -> bytes:
        body = pa.compress(event, codec="zstd", asbytes=True)
        return bytes(20) + b"\x02\x01\x00" + b"\x03\x03\xfc" + whole.to_bytes(2, "little") + b"\0" + body

    event = bytes(9) + (30).to_bytes(4, "little") + bytes(6) + b"x" * 11
    assert 1 == len(list(unpack_events(payload(event, 30))))
    for wrong in (payload(event * 3, 60), payload(event, 31)):
        with pytest.raises(ValueError):
            list(unpack_events(wrong))
    for length in (5, LARGEST_EVENT + 1):
        with pytest.raises(ValueError, match="not as long"):
            list(unpack_events(payload(event[:9] + length.to_bytes(4, "little") + event[13:], 60_000)))


def test_json_that_holds_itself_or_itself_many_times_ends() -> None:
    """Offsets may lead anywhere: back into their own container, or a thousand times into the same one."""
    own = bytes([2]) + (1).to_bytes(2, "little") + (100).to_bytes(2, "little") + bytes([2]) + bytes(2)
    level, data = b"", b""
    for _ in range(12):  # each array holds the one behind it nine times
        count = 9
        size = 4 + count * 3
        entry = bytes([2]) + size.to_bytes(2, "little")
        level = count.to_bytes(2, "little") + size.to_bytes(2, "little") + entry * count
        data += level
    for text in (own, bytes([2]) + data):
        with pytest.raises(LogRefused, match="JSON value"):
            json_text(text)
