"""What a polled row becomes, and how far a poll has come, without a database."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest

from rivet_assets.config.load import RivetConfig
from rivet_resources.contracts.change_log import ENVELOPE
from rivet_resources.contracts.relation import Relation
from rivet_resources.contracts.rows.poll import PollShape
from rivet_resources.contracts.types import Column
from rivet_resources.engines.mysql.source import MySql
from rivet_resources.engines.postgres.source import Postgres
from rivet_resources.errors import SourceError, StateError
from rivet_resources.poll.places import Order
from rivet_resources.poll.watermark import Mark, Tie, Watermark, check_fits, parse
from rivet_resources.shape.poll_envelope import diffed, enveloped, first_seq, poll_schema, positions

FIRST = datetime(2026, 1, 1, tzinfo=UTC)
INSTANT = pa.timestamp("us", "UTC")


def at(second: float | None) -> datetime | None:
    """Return an instant by its second."""
    return None if second is None else FIRST + timedelta(seconds=second)


def page(*rows: tuple[float | None, float | None, float | None]) -> pa.Table:
    """Make a page of rows (made, changed, gone), by their seconds."""
    cells = [pa.array([at(cell) for cell in column], INSTANT) for column in zip(*rows, strict=True)]
    return pa.table([pa.array(range(len(rows)), pa.int64()), *cells], names=["id", "made", "changed", "gone"])


def told(table: pa.Table, **shape: str) -> list[tuple[Any, ...]]:
    """Return (operation, position's seconds, sequence) of each row."""
    op, where, seq, _, unchanged = enveloped(table, PollShape(**{"updated_at": "changed"} | shape), first=1)
    assert unchanged.null_count == table.num_rows
    return list(zip(op.to_pylist(), [text and text[17:] for text in where.to_pylist()], seq.to_pylist(), strict=True))


# --- rows ----------------------------------------------------------------------------------------


def test_row_never_touched_since_it_was_made_is_an_insert() -> None:
    """The guess by created_at; NULL says update, and so does a poll that knows no created_at."""
    rows = page((1, 1, None), (1, 2, None), (None, 3, None))

    assert ["insert", "update", "update"] == [row[0] for row in told(rows, created_at="made")]
    assert ["update"] * 3 == [row[0] for row in told(rows)]


def test_delete_stands_at_the_later_of_mark_and_stamp() -> None:
    """And without a mark a row is no delete; rows of one position are told apart by their number."""
    rows = page((0, 5, 9), (0, 5, 3), (0, 5, 5), (0, 5, None), (0, None, 4))

    expected = [
        ("delete", "09.000000", 1), ("delete", "05.000000", 2), ("delete", "05.000000", 3),
        ("update", "05.000000", 4), ("delete", "04.000000", 5),
    ]  # fmt: skip
    assert expected == told(rows, deleted_at="gone")


def test_time_of_a_delete_is_that_of_its_mark() -> None:
    """`__ts` says when it happened, whatever place it has in the order."""
    stamps = enveloped(page((0, 5, 3), (0, 5, None)), PollShape("changed", deleted_at="gone"), first=1)[3]

    assert [at(3), at(5)] == stamps.to_pylist()


def test_fallback_places_a_row_without_a_stamp() -> None:
    """Where it is placed is where it was made, so it reads as an insert."""
    assert [("insert", "07.000000", 1)] == told(page((7, None, None)), created_at="made", fallback="made")


def test_envelope_has_the_types_of_changes() -> None:
    """A mirror reads polled parts as it reads those of a log."""
    columns = enveloped(page((1, 2, None)), PollShape("changed"), first=1)

    assert [field.type for field in ENVELOPE] == [column.type for column in columns]


def test_schema_says_that_the_operation_is_a_guess() -> None:
    """And every column of the table may be missing in a delete."""
    schema = poll_schema(pa.schema([pa.field("id", pa.int64(), nullable=False)]))

    assert [field.name for field in ENVELOPE] == schema.names[:5]
    assert b"guess" in schema.field("__op").metadata[b"rivet.note"]
    assert schema.field("id").nullable


def test_rows_of_a_diff_have_its_position_and_numbers_of_their_own() -> None:
    """Two that are gone at one position are two changes."""
    rows = page((0, 1, None), (0, None, None), (0, None, None))

    expected = [("update", "30.000000", 1), ("delete", "30.000000", 2), ("delete", "30.000000", 3)]
    assert expected == told(diffed(rows, position="2026-01-01T00:00:30.000000"), deleted_at="")


def test_numbers_rise_from_chunk_to_chunk_and_from_window_to_window() -> None:
    """A mark's chunk comes behind that of the rows, a diff's last, a later window behind all; they fit 64 bits."""
    places = [(0, 0), (0, 1), (0, 2), (1, 0), (2, 0), (10_000_000, 2)]
    numbers = [first_seq(window, chunk) for window, chunk in places]

    assert sorted(numbers) == numbers
    assert all(later - earlier > 10**10 for earlier, later in pairwise(numbers))
    assert numbers[0] == 1
    assert numbers[-1] < 1 << 63


@pytest.mark.parametrize("unit", ["us", "ns"])
@pytest.mark.parametrize("zone", [None, "UTC"])
def test_positions_sort_like_the_stamps(unit: str, zone: str | None) -> None:
    """As texts of one length, in whatever precision and with or without a zone."""
    counts = [0, 1, 999_999, 1_000_000, -62_135_596_800_000_000, 253_402_300_799_999_999]
    if unit == "ns":
        counts = [0, 1, 999_999_999, 4_102_444_800_000_000_000]
    stamps = pa.array(sorted(counts), pa.timestamp(unit, zone))

    texts = positions(stamps).to_pylist()

    assert texts == sorted(texts)
    assert 1 == len({len(text) for text in texts})


# --- the watermark -------------------------------------------------------------------------------

PLACE = (Mark("changed", "timestamp[us, tz=UTC]", "2026-01-01T00:00:01.000001Z"), Mark("id", "int64", "10"))


@pytest.mark.parametrize(
    "held",
    [
        Watermark(), Watermark(PLACE), Watermark(None, PLACE), Watermark(PLACE, PLACE, 3),
        Watermark(PLACE, PLACE, 0, 1, Tie(("00ff", "01ff")), Tie((), "02ff")), Watermark(PLACE, updated_tie=Tie()),
    ],
    ids=str,
)  # fmt: skip
def test_watermark_comes_back_as_it_was(held: Watermark) -> None:
    """One text, the same for the same place."""
    assert held == parse(held.text, export="notes")
    assert held.text == parse(held.text, export="notes").text


@pytest.mark.parametrize("text", ["2026-01-01T00:00:00Z", "17", "[]", '{"updated":[{"colum":1}]}', '{"updated":7}'])
def test_cursor_of_another_mode_is_refused(text: str) -> None:
    """It is no watermark; what to do is said."""
    with pytest.raises(StateError, match="state reset"):
        parse(text, export="notes")


def test_place_in_another_order_is_refused() -> None:
    """A key of another type sorts otherwise: 10 comes before 2 as a text."""
    changed = Column("changed", "timestamptz", INSTANT, '"changed"')

    check_fits(PLACE, (changed, Column("id", "bigint", pa.int64(), '"id"')), export="notes")
    with pytest.raises(SourceError, match="id \\(string\\)"):
        check_fits(PLACE, (changed, Column("id", "text", pa.string(), '"id"')), export="notes")


# --- predicates ----------------------------------------------------------------------------------

FACTS: dict[str, tuple[Any, str, str]] = {
    "postgres": (Postgres, "timestamptz", "int8"),
    "mysql": (MySql, "timestamp", "bigint"),
}


def order(engine: str) -> Order:
    """Return the order (changed, id) of a table of an engine."""
    kind, stamp, whole = FACTS[engine]
    source = kind(type=engine, url=f"{engine}://u@localhost/d")
    columns = (
        Column("changed", stamp, INSTANT, "", facts=(("base", stamp),)),
        Column("id", whole, pa.int64(), "", facts=(("base", whole),)),
    )
    return Order(source, Relation("notes", "notes", columns, is_table=True), columns)


def test_page_of_postgres_begins_behind_a_row_value() -> None:
    """The form that an index on (changed, id) serves."""
    stamp = "'2026-01-01T00:00:01.000001Z'::timestamptz"

    assert f"""("changed", "id") > ({stamp}, '10'::int8)""" == order("postgres").after(PLACE)
    assert order("postgres").until(PLACE).startswith(f'"changed" <= {stamp} AND NOT (')


def test_page_of_mysql_begins_behind_the_bounded_nested_form() -> None:
    """Row values scan the whole table there; the leading bound gives the index its range."""
    stamp = "TIMESTAMP'2026-01-01 00:00:01.000001'"

    expected = f"`changed` >= {stamp} AND (`changed` > {stamp} OR (`changed` = {stamp} AND (`id` > 10)))"
    assert expected == order("mysql").after(PLACE)


def test_window_is_closed_on_both_sides() -> None:
    """(low, high]: whatever comes later belongs to the next one."""
    within = order("mysql").within(PLACE, (PLACE[0], Mark("id", "int64", "12")))

    assert "`id` > 10" in within
    assert "NOT (`changed` >=" in within
    assert "`id` > 12" in within


# --- the YAML block ------------------------------------------------------------------------------

BLOCK = {
    "name": "notes",
    "table": "notes",
    "mode": "poll",
    "updated_at_column": "changed",
    "format": "parquet",
    "destination": {"type": "local", "path": "/tmp/lake"},
}

MISFITS: dict[str, tuple[dict[str, Any], str]] = {
    "query": ({"table": None, "query": "SELECT 1"}, "rows of a table"),
    "mark without column": ({"delete_detection": {"type": "soft_delete"}}, "go together"),
    "column without mark": ({"delete_detection": {"column": "gone"}}, "go together"),
    "ratio of another type": ({"delete_detection": {"max_delete_ratio": 0.1}}, "only for type: full_diff"),
    "coalesce without created_at": ({"null_policy": "coalesce"}, "name the created_at_column"),
    "window under cap": ({"visibility": "cap", "lag_window_seconds": 5}, "has no meaning"),
    "filter": ({"transforms": [{"type": "filter", "field": "id", "value": 1}]}, "filter"),
    "row hash": ({"meta_columns": {"row_hash": True}}, "row_hash"),
    "diff of csv": ({"format": "csv", "delete_detection": {"type": "full_diff"}}, "parquet"),
    "stamp as mark": ({"delete_detection": {"type": "soft_delete", "column": "changed"}}, "at once"),
    "diff by stamp": ({"primary_key": ["changed"], "delete_detection": {"type": "full_diff"}}, "at once"),
    "batch too large": ({"poll_batch_size": 1_000_001}, "1000000"),
    "batch too small": ({"poll_batch_size": 0}, "1"),
}


def load(**keys: Any) -> RivetConfig:
    """Read a block of `exports:`."""
    block = {key: value for key, value in (BLOCK | keys).items() if value is not None}
    return RivetConfig.model_validate({"source": {"type": "sqlite", "path": "/tmp/x.db"}, "exports": [block]})


def test_defaults_are_those_of_the_contract() -> None:
    """Batches of 10000, no deletions, the cap where it can be seen, NULL stamps refused."""
    export: Any = load().export("notes")

    assert (10_000, None, "auto", 60, "fail") == (
        export.poll_batch_size, export.max_pages, export.visibility, export.lag_window_seconds, export.null_policy
    )  # fmt: skip
    assert ("disabled", 0.05, 1) == (
        export.delete_detection.type, export.delete_detection.max_delete_ratio, export.delete_detection.every
    )  # fmt: skip


@pytest.mark.parametrize("kind", MISFITS)
def test_keys_that_mean_nothing_together_are_refused(kind: str) -> None:
    """Each with what to do."""
    keys, said = MISFITS[kind]

    with pytest.raises(ValueError, match=said):
        load(**keys)
