"""Bytes of a stranger as pgoutput: each ends in a value or in LogRefused, and no cell lies outside of the buffer."""

from __future__ import annotations

import struct
from contextlib import suppress

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rivet_resources.engines.postgres.log import messages
from rivet_resources.errors import LogRefused

FEW = settings(max_examples=500, derandomize=True, deadline=None, database=None)


@FEW
@given(data=st.binary(max_size=200))
def test_relations_and_truncates_of_any_bytes_are_read_or_refused(data: bytes) -> None:
    """No error of Python's own comes out."""
    for read in (messages.parse_relation, messages.parse_truncate):
        with suppress(LogRefused):
            read(data)


@FEW
@given(
    tuples=st.lists(
        st.lists(st.tuples(st.sampled_from(b"ntub"), st.integers(0, 9) | st.integers(0, 2**32 - 1)), max_size=4),
        min_size=1,
        max_size=4,
    ),
    columns=st.integers(1, 4),
)
@example(tuples=[[(ord("t"), 2**32 - 1)]], columns=1)
@example(tuples=[[(ord("t"), 2**31), (ord("t"), 2**31)]], columns=2)
def test_cells_of_any_length_lie_inside_of_the_buffer(tuples: list[list[tuple[int, int]]], columns: int) -> None:
    """Lengths of 32 bits lead 4 GB away; cutting them out would read foreign memory, or none at all."""
    said = [
        b"\0\1" + b"".join(bytes([kind]) + (struct.pack(">I", size) + b"x" * min(size, 9) if kind == ord("t") else b"")
                            for kind, size in cells)
        for cells in tuples
    ]  # fmt: skip
    buffer = np.frombuffer(b"".join(said), np.uint8)
    starts = np.cumsum([0, *map(len, said)])[:-1].astype(np.int64)
    try:
        cells, ends = messages.walk(buffer, starts, columns)
    except LogRefused:
        return
    assert (ends <= len(buffer)).all()
    for each in cells:
        assert ((each.starts + each.lengths)[each.kinds == messages.TEXT] <= len(buffer)).all()


def test_length_that_leads_out_of_the_buffer_is_refused() -> None:
    """What ended the process with a segmentation fault before."""
    row = b"\0\1t" + struct.pack(">I", 2**31 + 5) + b"x"

    with pytest.raises(LogRefused, match="A row of PostgreSQL's log is not as the protocol has it"):
        messages.walk(np.frombuffer(row, np.uint8), np.array([0]), 1)


def test_empty_message_is_refused() -> None:
    """Else its kind would be the next one's."""
    with pytest.raises(LogRefused):
        messages.split(pa.array([b"B" + bytes(20), b"", b"C"], pa.binary()))
