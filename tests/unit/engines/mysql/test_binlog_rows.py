"""Rows of made-up events, walked in lockstep, against rows cut one by one."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from rivet_resources.engines.mysql.binlog import events as ev
from rivet_resources.engines.mysql.binlog.events import DELETE, INSERT, UPDATE, Field
from rivet_resources.engines.mysql.binlog.gtid import runs
from rivet_resources.engines.mysql.binlog.row_layout import RowCells, RowLayout, big, little, prefix_of
from rivet_resources.engines.mysql.binlog.rows import BinlogRows, RowsEvent, rows_of
from rivet_resources.errors import LogRefused

KINDS: tuple[tuple[int, tuple[int, ...]], ...] = (
    (ev.LONG, ()), (ev.TINY, ()), (ev.INT24, ()), (ev.VARCHAR, (40, 0)), (ev.VARCHAR, (0, 4)), (ev.BLOB, (2,)),
    (ev.DECIMAL, (12, 2)), (ev.DATETIME2, (6,)), (ev.BIT, (3, 1)),
)  # fmt: skip
Row = list[bytes | None]


def fields_of(dice: random.Random, count: int) -> list[Field]:
    """Make up columns."""
    return [Field(f"c{i}", *dice.choice(KINDS), nullable=dice.random() < 0.4) for i in range(count)]


def row_of(dice: random.Random, fields: list[Field], layout: RowLayout) -> Row:
    """Make up a row: each cell's own bytes."""
    found: Row = []
    for field, width in zip(fields, layout.widths, strict=True):
        size = dice.choice((0, 1, 7, 30)) if width is None else width
        found.append(None if field.nullable and dice.random() < 0.3 else dice.randbytes(size))
    return found


def image_of(row: Row, layout: RowLayout) -> bytes:
    """Write a row as the servers do; bits behind the last column are set."""
    nulls = sum(1 << i for i, cell in enumerate(row) if cell is None) | -1 << len(row)
    image = (nulls & (1 << 8 * layout.bitmap) - 1).to_bytes(layout.bitmap, "little")
    for cell, prefix in zip(row, layout.prefixes, strict=True):
        image += b"" if cell is None else len(cell).to_bytes(prefix, "little") + cell if prefix else cell
    return image


def cut(rows: BinlogRows, cells: tuple[RowCells, ...]) -> list[Row]:
    """Cut each cell out, one by one."""
    data, found = rows.buffer.tobytes(), []
    for i in range(len(rows.op)):
        found.append([None if c.null[i] else data[c.start[i] : c.start[i] + c.length[i]] for c in cells])
    return found


@pytest.mark.parametrize("seed", range(30))
def test_cells_lie_where_one_by_one_reading_finds_them(seed: int) -> None:
    """Any columns, NULLs, operations and rows per event; rows come in the order of the events."""
    dice = random.Random(seed)
    fields = fields_of(dice, dice.choice((1, 3, 8, 9, 20)))
    layout = RowLayout(fields)
    events: list[RowsEvent] = []
    expected: list[tuple[int, int, int, Row, Row]] = []
    for index in range(dice.randrange(1, 12)):
        op = dice.choice((INSERT, UPDATE, DELETE) if seed % 3 else (INSERT,))
        data = junk = dice.randbytes(dice.randrange(30))
        for number in range(dice.randrange(6)):
            old, new = row_of(dice, fields, layout), row_of(dice, fields, layout)
            data += (image_of(old, layout) if op == UPDATE else b"") + image_of(new, layout)
            expected.append((op, index, ((index + 5) << 32) + 2 * number + 1, old if op == UPDATE else new, new))
        events.append((data, len(junk), op, index, index + 5))

    found = rows_of(events, layout, key=(), keeps_before=True)

    assert [each[0] for each in expected] == found.op.tolist()
    assert [each[1] for each in expected] == found.transaction.tolist()
    assert [each[2] for each in expected] == found.seq.tolist()
    assert [each[3] for each in expected] == cut(found, found.before)
    assert [each[4] for each in expected] == cut(found, found.cells)
    assert [each[0] != INSERT for each in expected] == found.has_before.tolist()


@pytest.mark.parametrize("seed", range(10))
def test_update_of_the_key_is_two_rows_with_all_cells_of_each(seed: int) -> None:
    """The old row as a delete, then the new one; updates of other columns stay one row."""
    dice = random.Random(seed)
    fields = [Field("id", ev.LONG, (), False), Field("code", ev.VARCHAR, (40, 0), False), *fields_of(dice, 3)]
    layout = RowLayout(fields)
    data, expected = b"", []
    for number in range(20):
        old, new = row_of(dice, fields, layout), row_of(dice, fields, layout)
        if dice.random() < 0.5:
            new[0], new[1] = old[0], old[1]
            expected.append((UPDATE, 2 * number + 1, new))
        else:
            expected += [(DELETE, 2 * number, old), (INSERT, 2 * number + 1, new)]
        data += image_of(old, layout) + image_of(new, layout)

    found = rows_of([(data, 0, UPDATE, 0, 0)], layout, key=(1, 0), keeps_before=False)

    assert expected == list(zip(found.op.tolist(), found.seq.tolist(), cut(found, found.cells), strict=True))


def test_null_in_a_column_that_is_not_null_is_read_as_such() -> None:
    """A table map that promises too much does not shift the columns behind."""
    fields = [Field("a", ev.LONG, (), False), Field("b", ev.LONG, (), False), Field("c", ev.VARCHAR, (9, 0), False)]
    layout = RowLayout(fields)
    rows: list[Row] = [[b"aaaa", b"bbbb", b"c"], [None, b"bbbb", b"cc"], [b"aaaa", None, None]]
    data = b"".join(image_of(row, layout) for row in rows)

    found = rows_of([(data, 0, INSERT, 0, 1)], layout, key=(0,), keeps_before=False)

    assert rows == cut(found, found.cells)


def test_event_that_ends_elsewhere_than_its_last_row_is_refused() -> None:
    """A row cut off, or with bytes behind it, is never half a row."""
    layout = RowLayout([Field("a", ev.LONG, (), False), Field("b", ev.VARCHAR, (9, 0), True)])
    row = image_of([b"aaaa", b"bbb"], layout)
    good: RowsEvent = (row, 0, INSERT, 0, 1)
    for data in (row[:-1], row + row[:-2], row[:-4] + b"\xff"):
        with pytest.raises(LogRefused, match="does not end where its last row does"):
            rows_of([good, (data, 0, INSERT, 0, 2)], layout, key=(), keeps_before=False)


def test_numbers_of_each_width_are_read_at_any_place() -> None:
    """Aligned or not, of either byte order; eight bytes wrap into the sign."""
    data = random.Random(1).randbytes(80)
    buffer, at = np.frombuffer(data + bytes(16), np.uint8), np.arange(60)
    for size in range(1, 9):
        for read, order in ((little, "little"), (big, "big")):
            expected: list[Any] = [int.from_bytes(data[i : i + size], order, signed=size == 8) for i in at]
            assert expected == read(buffer, at, size).tolist()


def test_gtids_that_follow_each_other_are_joined() -> None:
    """Per source, in the order of the log; those without a name are no part."""
    one, two = (0, 1), (0, 2)
    assert [(one, 5, 6), (two, 7, 7), (one, 8, 9)] == list(
        runs([(one, 5), None, ((0, 1), 6), (two, 7), (one, 8), (one, 9)])
    )
    assert [] == list(runs([None]))


@pytest.mark.parametrize(("length", "prefix"), [(0, 1), (255, 1), (256, 2), (65535, 2)])
def test_length_of_a_text_has_one_byte_up_to_255(length: int, prefix: int) -> None:
    """varchar(64) in utf8mb4 takes up to 256 bytes, so its cells begin with two."""
    assert prefix == prefix_of(Field("c", ev.VARCHAR, divmod(length, 256)[::-1], nullable=True))
