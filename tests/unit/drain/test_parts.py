"""What becomes of changes before they are written: transforms on both images, lines, formats without lists."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest

from rivet_resources.contracts.change_log import BEFORE, ENVELOPE, Changes, change_schema
from rivet_resources.contracts.types import Column
from rivet_resources.drain.lines import lines
from rivet_resources.drain.parts import ChangeShaping
from rivet_resources.errors import UnsupportedColumn
from rivet_resources.shape.change_envelope import as_inserts, flat, flat_schema
from rivet_resources.shape.transforms.columns import Drop
from rivet_resources.shape.transforms.mask import Mask
from rivet_resources.write.formats.csv import Csv
from rivet_resources.write.formats.parquet import Parquet

COLUMNS = (
    Column("id", "int8", pa.int64(), '"id"', nullable=False),
    Column("email", "text", pa.string(), '"email"'),
    Column("note", "text", pa.string(), '"note"'),
)
IMAGE = pa.struct([("id", pa.int64()), ("email", pa.string()), ("note", pa.string())])


def changes() -> Changes:
    """An insert, an update and a delete, with the row before where there was one."""
    old = {"id": 1, "email": "a@x.org", "note": "old"}
    arrays = [
        pa.array(["insert", "update", "delete"]),
        pa.array(["0a", "0b", "0c"]),
        pa.array([1, 1, 1]),
        pa.nulls(3, ENVELOPE[3].type),
        pa.array([None, ["note"], None], ENVELOPE[4].type),
        pa.array([1, 1, 1]),
        pa.array(["a@x.org", "b@x.org", "b@x.org"]),
        pa.array(["old", None, "old"]),
        pa.array([None, old, {**old, "email": "b@x.org"}], IMAGE),
    ]
    fields = [*ENVELOPE, *(column.field.with_nullable(True) for column in COLUMNS), pa.field(BEFORE, IMAGE)]
    return Changes("orders", COLUMNS, pa.Table.from_arrays(arrays, schema=pa.schema(fields)))


def test_mask_hides_the_row_before_too() -> None:
    """No cell of a masked column is left anywhere in the part, and a change without a row before keeps none."""
    mask = Mask(type="mask", fields=("email",), method="fixed", value="hidden")

    shaped = ChangeShaping((mask, Drop(type="drop", columns=("note",))), None).shape(changes())

    assert "x.org" not in str(shaped.to_pylist())
    assert [None, {"id": 1, "email": "hidden"}, {"id": 1, "email": "hidden"}] == shaped.column(BEFORE).to_pylist()
    assert ["__op", "__pos", "__seq", "__ts", "__unchanged", "id", "email", BEFORE] == shaped.schema.names


def test_column_that_is_called_as_one_of_changes_is_refused_until_it_is_renamed() -> None:
    """A part with two columns of one name is read by some as the one, by others as the other."""
    given = changes()
    columns = tuple(replace(each, name="__op") if each.name == "note" else each for each in given.columns)
    names = ["__op" if name == "note" else name for name in given.data.schema.names]
    named = replace(given, columns=columns, data=given.data.rename_columns(names))

    with pytest.raises(UnsupportedColumn, match=r"Table orders: the source has '__op'.*type: rename"):
        ChangeShaping((), None).shape(named)


def test_line_nests_both_images() -> None:
    """An insert has no `before` and a delete no `after`; an update has the row before where the log had it."""
    shaped = ChangeShaping((), None).shape(changes())

    found = lines(shaped, "public", "orders").to_pylist()

    assert [(None, 1), (1, 1), (1, None)] == [
        ((r["before"] or {}).get("id"), (r["after"] or {}).get("id")) for r in found
    ]
    assert "a@x.org" == found[1]["before"]["email"]
    assert {("public", "orders")} == {(row["schema"], row["table"]) for row in found}


def test_csv_has_the_names_of_unchanged_columns_as_json() -> None:
    """A list has no place in CSV; every other format keeps it."""
    shaped = ChangeShaping((), None).shape(changes()).drop_columns([BEFORE])

    by_csv, by_parquet = flat(shaped, Csv(type="csv")), flat(shaped, Parquet(type="parquet"))

    assert [None, '["note"]', None] == by_csv.column("__unchanged").to_pylist()
    assert by_csv.schema == flat_schema(shaped.schema, Csv(type="csv"))
    assert by_parquet is shaped


def test_first_copy_is_inserts_before_every_change() -> None:
    """Rows of a copy stand at its position with sequence 0 and no time; each cell may be missing in later changes."""
    rows = pa.table({"id": [1, 2]}, schema=pa.schema([pa.field("id", pa.int64(), nullable=False)]))

    made = as_inserts(rows, "0a")

    assert [("insert", "0a", 0, None, 1), ("insert", "0a", 0, None, 2)] == [
        (row["__op"], row["__pos"], row["__seq"], row["__ts"], row["id"]) for row in made.to_pylist()
    ]
    assert made.schema == change_schema(rows.schema)
    assert made.schema.field("id").nullable
