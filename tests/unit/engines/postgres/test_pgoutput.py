"""pgoutput without a server: what a snapshot has seen, texts of PostgreSQL as arrays, messages in any batches."""

from __future__ import annotations

import struct

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rivet_resources.engines.postgres.log import messages
from rivet_resources.engines.postgres.log.lsn import SnapshotVisibility, lsn_number, lsn_text, position
from rivet_resources.engines.postgres.log.texts import DRIVER
from rivet_resources.errors import CheckpointUnusable


def test_position_sorts_as_text_and_reads_back() -> None:
    """A key has 16 digits whatever the place, and the text is PostgreSQL's own."""
    made = [position(number) for number in (1, 0xFFFFFFFF, 1 << 32, 0x16B374D848)]

    assert [one.key for one in made] == sorted(one.key for one in made)
    assert ("00000016b374d848", "16/B374D848") == (made[3].key, made[3].text)
    assert [1, 0xFFFFFFFF, 1 << 32, 0x16B374D848] == [lsn_number(one.text) for one in made]
    assert "1/0" == lsn_text(1 << 32)


@pytest.mark.parametrize("text", ["", "16", "g/1", "binlog.000001:4"])
def test_text_that_is_no_position_is_refused(text: str) -> None:
    """A foreign checkpoint never reads as some place."""
    with pytest.raises(CheckpointUnusable, match="no PostgreSQL log position"):
        lsn_number(text)


EPOCH = 1 << 32


@pytest.mark.parametrize(
    ("seen", "whole", "holds"),
    [
        ("10:20:12,15", 9, True), ("10:20:12,15", 12, False), ("10:20:12,15", 13, True), ("10:20:12,15", 20, False),
        (f"{3 * EPOCH - 5}:{3 * EPOCH + 5}:{3 * EPOCH + 1}", 3 * EPOCH - 6, True),
        (f"{3 * EPOCH - 5}:{3 * EPOCH + 5}:{3 * EPOCH + 1}", 3 * EPOCH - 4, True),
        (f"{3 * EPOCH - 5}:{3 * EPOCH + 5}:{3 * EPOCH + 1}", 3 * EPOCH + 1, False),
        (f"{3 * EPOCH - 5}:{3 * EPOCH + 5}:{3 * EPOCH + 1}", 3 * EPOCH + 4, True),
        (f"{3 * EPOCH - 5}:{3 * EPOCH - 1}:", 3 * EPOCH + 7, False),
        ("", 5, False),
    ],
)  # fmt: skip
def test_snapshot_tells_what_it_has_seen_over_epochs(seen: str, whole: int, holds: bool) -> None:
    """The log's 32 bits mean the transaction nearest to the snapshot, before and after they wrap."""
    assert [holds] == SnapshotVisibility.parse(seen).holds(np.array([whole % EPOCH])).tolist()


def test_text_that_is_no_snapshot_is_refused() -> None:
    """A damaged note of a handover never filters by chance."""
    with pytest.raises(CheckpointUnusable, match="no snapshot"):
        SnapshotVisibility.parse("10:20")


@settings(deadline=None)
@given(st.lists(st.none() | st.binary(max_size=20)))
def test_hexadecimal_bytes_read_back(values: list[bytes | None]) -> None:
    """Whatever bytes and NULLs stand side by side, each cell has its own."""
    texts = pa.array([None if value is None else "\\x" + value.hex() for value in values], pa.string())

    assert values == DRIVER["bytea"](texts).to_pylist()
    assert values[1:] == DRIVER["bytea"](texts[1:]).to_pylist()


@settings(deadline=None)
@given(st.lists(st.lists(st.none() | st.text(alphabet="aé€🎉 ", max_size=9), min_size=3, max_size=3), min_size=1))
def test_rows_are_walked_as_they_were_written(rows: list[list[str | None]]) -> None:
    """Cells of any lengths, NULLs among them, are gathered column by column."""
    batch = messages.split(pa.array([insert(row) for row in rows], pa.binary()))
    cells, ends = messages.walk(batch.buffer, batch.starts + 6, 3)

    got = [messages.gather(batch.buffer, column).to_pylist() for column in cells]

    assert rows == [list(row) for row in zip(*got, strict=True)]
    assert batch.ends.tolist() == ends.tolist()


def insert(row: list[str | None]) -> bytes:
    """Write an I message."""
    encoded = [b"n" if cell is None else b"t" + struct.pack(">I", len(cell.encode())) + cell.encode() for cell in row]
    return b"I" + struct.pack(">I", 7) + b"N" + struct.pack(">H", len(row)) + b"".join(encoded)
