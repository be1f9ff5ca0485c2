"""`python -m tests.bench.rowhash [--rows 200000]`: CPU a row of hashing ten narrow columns.

Belongs here: the row hash beside what a machine-independent yardstick costs (Arrow casting every column to text) and
beside a loop over rows. Not here: whether hashes are right (tests/unit/shape/test_rowhash.py). Rounds take turns, and
the best of each counts, since other processes share the machine's caches.
"""

from __future__ import annotations

import argparse
import struct
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from rivet_resources.shape.rowhash.hash import row_hashes
from tests.bench.measuring import table

NULLS = 0.1  # of the two texts


def main() -> None:
    """Print nanoseconds of one process's CPU a row, and the ratio to the yardstick."""
    args = _arguments()
    rows = narrow(args.rows)
    sample = rows.slice(args.rows // 2, min(20_000, args.rows // 2))
    contenders: dict[str, tuple[pa.Table, Callable[[pa.Table], Any]]] = {
        "Arrow casts every column to text": (rows, cast),
        "Arrow casts, and joins the texts of a row": (rows, joined),
        "row_hashes": (rows, lambda found: row_hashes(found, found.column_names)),
        "a loop over rows (of a sample)": (sample, looped),
    }
    assert row_hashes(sample, sample.column_names).to_pylist() == looped(sample), "the loop hashes otherwise"
    best = dict.fromkeys(contenders, float("inf"))
    for _ in range(args.rounds):
        for name, (found, run) in contenders.items():
            began = time.process_time()
            run(found)
            best[name] = min(best[name], (time.process_time() - began) / found.num_rows * 1e9)
    yardstick = next(iter(best.values()))
    lines = [(name, each, each / yardstick) for name, each in best.items()]
    print(table((f"{args.rows} rows of ten columns", "CPU ns a row", "× casts"), lines))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=200_000, help="rows of the table")
    parser.add_argument("--rounds", type=int, default=9, help="rounds, of which the best counts")
    return parser.parse_args()


def narrow(rows: int) -> pa.Table:
    """Make rows of two bigints, an int, a decimal, a double, an instant, a date, a bool and two short texts."""
    random = np.random.default_rng(7)
    number = np.arange(rows, dtype=np.int64)
    micros = 1_735_689_600_000_000 + number * 6_300_000 + random.integers(0, 1_000_000, rows)
    cents = np.stack([number * 31 % 10_000_000, np.zeros(rows, np.int64)], axis=1)
    status = pa.array(["new", "paid", "shipped", "returned", None]).take(pa.array(random.integers(0, 5, rows)))
    note = pc.binary_join_element_wise("note", pa.array(random.integers(0, 10**6, rows)).cast(pa.string()), " ")
    return pa.table(
        {
            "id": number + 1,
            "customer_id": number * 7_919 % 100_003,
            "items": (number % 9).astype(np.int32),
            "amount": pa.Array.from_buffers(pa.decimal128(12, 2), rows, [None, pa.py_buffer(cents)]),
            "weight": number % 9_973 / 7.0,
            "created_at": pa.array(micros).cast(pa.timestamp("us", "UTC")),
            "shipped_on": pa.array((20_089 + number // 13_715).astype(np.int32)).cast(pa.date32()),
            "gift": random.random(rows) < 0.5,
            "status": status,
            "note": pc.if_else(pa.array(random.random(rows) < NULLS), pa.scalar(None, pa.string()), note),
        }
    )


def cast(found: pa.Table) -> list[pa.ChunkedArray]:
    """Spell each column by Arrow; instants as naive, which spares a look into the zone database for every cell."""
    return [(one.cast(pa.timestamp("us")) if pa.types.is_timestamp(one.type) else one).cast(pa.string())
            for one in found.columns]  # fmt: skip


def joined(found: pa.Table) -> Any:
    """Join the texts of each row, without frames."""
    return pc.binary_join_element_wise(*cast(found), "|", null_handling="replace", null_replacement="")


def looped(found: pa.Table) -> list[int]:
    """Hash one row after the other."""
    spelled = [_texts(one) for one in found.columns]
    digests = [xxhash.xxh3_128_digest(b"".join(map(_frame, row))) for row in zip(*spelled, strict=True)]
    return [int.from_bytes(one[8:], "big", signed=True) for one in digests]


def _texts(column: pa.ChunkedArray) -> list[str | None]:
    cells = column.to_pylist()
    spell: Callable[[Any], str] = str
    if pa.types.is_boolean(column.type):
        spell = lambda cell: str(cell).lower()  # noqa: E731
    elif pa.types.is_timestamp(column.type):
        spell = lambda cell: _stamp(cell.isoformat(timespec="microseconds"))  # noqa: E731
    return [None if cell is None else spell(cell) for cell in cells]


def _stamp(text: str) -> str:
    text = text.removesuffix("+00:00")
    while text.endswith("000") and "." in text:
        text = text[:-3].removesuffix(".")
    return f"{text}Z"


def _frame(text: str | None) -> bytes:
    if text is None:
        return b"\0"
    spelled = text.encode()
    return b"\1" + struct.pack("<I", len(spelled)) + spelled


if __name__ == "__main__":
    main()
