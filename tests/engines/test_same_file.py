"""The same rows in every engine give the same file: equal Arrow types, equal cells, equal row hashes, in every mode."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest

from rivet_resources.shape.rowhash.hash import row_hashes
from tests.engines.typed import AT, MODES, export
from tests.lab import Lab, lab_in
from tests.lab_engines import ENGINES

pytestmark = pytest.mark.wide

WORDS = {
    "id": "whole", "at": "instant", "number": "number", "ratio": "ratio", "amount": "amount", "note": "note",
    "payload": "payload", "flag": "flag", "day": "day", "moment": "moment", "instant": "instant",
}  # fmt: skip
SCHEMA = pa.schema(
    {
        "id": pa.int64(),
        "at": pa.timestamp("us", "UTC"),
        "number": pa.int32(),
        "ratio": pa.float64(),
        "amount": pa.decimal128(12, 2),
        "note": pa.string(),
        "payload": pa.binary(),
        "flag": pa.bool_(),
        "day": pa.date32(),
        "moment": pa.timestamp("us"),
        "instant": pa.timestamp("us", "UTC"),
    }
)
EDGES = {
    "id": [1, 2, 3, 4, 9223372036854775807],
    "number": [2147483647, -2147483648, 0, None, -1],
    "ratio": [0.1, -1e300, 1.7976931348623157e308, None, 3.0],
    "amount": [Decimal("9999999999.99"), Decimal("-0.01"), Decimal("0.00"), None, Decimal("1.10")],
    "note": ["", "ñ ✓ 🎉", "tab\tquote\"'`\\N", None, "NULL"],
    "payload": [b"", b"\0\xff'\\", b"\xde\xad\xbe\xef", None, bytes(16)],
    "flag": [True, False, True, None, False],
    "day": [date(1, 1, 1), date(9999, 12, 31), date(1970, 1, 1), None, date(1582, 10, 10)],
    "moment": [
        datetime(18, 4, 1),
        datetime(9999, 12, 31, 23, 59, 59, 999999),
        datetime(1970, 1, 1, 0, 0, 0, 1),
        None,
        datetime(1900, 2, 28, 23, 59, 59),
    ],
    "instant": [
        datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC),
        datetime(2038, 1, 19, 3, 14, 7, tzinfo=UTC),
        datetime(2026, 3, 29, 1, 30, 0, 123456, tzinfo=UTC),
        None,
        datetime(2000, 2, 29, 12, tzinfo=UTC),
    ],
}


def rows() -> Iterator[dict[str, object]]:
    """Yield the edges, and two hundred rows drawn once and for all."""
    for place, number in enumerate(EDGES["id"]):
        yield {"id": number, "at": AT, **{name: cells[place] for name, cells in EDGES.items() if name != "id"}}
    dice = random.Random(20261121)
    for number in range(10, 210):
        micros = dice.randrange(2**50)
        yield {
            "id": number,
            "at": AT + timedelta(microseconds=dice.randrange(10**9)),
            "number": dice.randrange(-(2**31), 2**31),
            "ratio": dice.uniform(-1, 1) * 10.0 ** dice.randrange(-200, 200),
            "amount": Decimal(dice.randrange(-(10**12) + 1, 10**12)).scaleb(-2),
            "note": "".join(chr(dice.choice((65, 233, 0x416, 0x4E2D, 0x1F389))) for _ in range(dice.randrange(9))),
            "payload": dice.randbytes(dice.randrange(20)),
            "flag": dice.random() < 0.5,
            "day": date.fromordinal(dice.randrange(1, 3652059)),
            "moment": datetime(1, 1, 1) + timedelta(days=dice.randrange(3652058), microseconds=dice.randrange(10**10)),
            "instant": datetime(1970, 1, 2, tzinfo=UTC) + timedelta(microseconds=micros),
        }


EXPECTED = pa.Table.from_pylist(list(rows()), SCHEMA).sort_by("id")


@pytest.fixture(params=ENGINES)
def lab(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    """The same rows, in each engine."""
    engine = ENGINES[request.param]
    laboratory = lab_in(tmp_path, engine, request, monkeypatch)
    laboratory.create("everything", WORDS, index=["at"])
    laboratory.insert("everything", rows())
    return laboratory


@pytest.mark.parametrize("mode", MODES)
def test_every_engine_writes_the_same_rows(lab: Lab, mode: str) -> None:
    """Types, cells and row hashes are those of the rows themselves, whichever engine keeps them."""
    export(lab, "everything", mode, meta_columns="{row_hash: true}")

    table = lab.table("everything")
    types = [(field.name, field.type) for field in table.schema if field.name in SCHEMA.names]
    assert [(field.name, field.type) for field in SCHEMA] == types
    assert EXPECTED.to_pylist() == table.select(SCHEMA.names).to_pylist()
    hashes = row_hashes(EXPECTED.combine_chunks(), SCHEMA.names)
    assert hashes.to_pylist() == table.column("_rivet_row_hash").to_pylist()
