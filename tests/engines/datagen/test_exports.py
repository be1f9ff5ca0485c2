"""Made-up rows as a source: every mode reads them as it reads a table, the same ones each time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from pydantic import ValidationError

from rivet_assets.config.load import load_config
from rivet_assets.launch.run_exports import Outcome, run_exports
from rivet_assets.modes import registry
from rivet_assets.modes.protocol import Planning
from rivet_resources.contracts.relation import Chunk, Relation
from rivet_resources.contracts.settings import Tuning, pace
from rivet_resources.contracts.source import ColumnRule, TypeRules
from rivet_resources.contracts.types import JSON
from rivet_resources.engines.datagen.session import DatagenSession
from rivet_resources.engines.datagen.source import Datagen
from rivet_resources.engines.datagen.sql import Numbers, numbers_of
from rivet_resources.errors import ConfigError, SourceError, UnknownColumn, UnknownTable
from tests.lab import Lab

CLOCK = "2026-01-31T12:00:00Z"
EAGER = pace(Tuning(profile="fast", batch_size=97), None)


def source(**settings: Any) -> Datagen:
    """Return 1000 orders at full speed, of a fixed seed and clock."""
    fixed = {"pattern": "orders", "events_per_second": 0, "max_events": 1000, "seed": 7, "clock": CLOCK}
    return Datagen(**{**fixed, **settings})


def planned(made: Datagen, **columns: str) -> tuple[DatagenSession, Relation]:
    """Open a plan and describe the stream."""
    with made.session(application="rivet:test", pace=EAGER) as session:
        rules = TypeRules({name: ColumnRule(type=word) for name, word in columns.items()})
        assert isinstance(session, DatagenSession)
        return session, session.describe(table=made.stream_name, query=None, params={}, rules=rules)


def read(made: Datagen, session: DatagenSession, relation: Relation, *chunks: Chunk) -> pa.Table:
    """Read chunks as tasks do."""
    pages = (
        page.table
        for chunk in chunks
        for page in made.pages(
            chunk, relation.columns, snapshot=session.snapshot, application="", pace=EAGER, wait=lambda rows: None
        )
    )
    return pa.concat_tables([*pages, pa.schema([column.field for column in relation.columns]).empty_table()])


def whole(made: Datagen, *, pieces: int = 1, where: str = "", **columns: str) -> pa.Table:
    """Read everything."""
    session, relation = planned(made, **columns)
    return read(made, session, relation, *session.chunks(relation, where=where, pieces=pieces))


PATTERNS = ["sequence", "random", "users", "orders", "events", "metrics", "key_value"]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_two_runs_of_one_seed_are_equal_however_they_are_cut(pattern):
    """Seed, settings, count and clock decide every row; pages and chunks do not."""
    made = source(pattern=pattern)

    assert whole(made, pieces=1).equals(whole(made, pieces=7))
    assert whole(made).num_rows == 1000


def test_chunks_that_run_side_by_side_share_the_rate():
    """Each takes its part, which shows in its pages: a page is at most a second's worth."""
    made = source(events_per_second=8, max_events=8)
    session, relation = planned(made)

    chunks = session.chunks(relation, pieces=4)
    pages = [
        page.table.num_rows
        for page in made.pages(
            chunks[0], relation.columns, snapshot=session.snapshot, application="", pace=EAGER, wait=lambda rows: None
        )
    ]

    assert [4, 4, 4, 4] == [chunk.abreast for chunk in chunks]
    assert [2] == pages


def test_chunks_of_a_parallel_export_know_how_many_run_at_once(tmp_path: Path) -> None:
    """In mode chunked at most `parallel` tasks run, so that many share the rate, whatever the number of chunks."""
    export = {
        "name": "orders", "table": "orders", "mode": "chunked", "chunk_column": "_sequence", "chunk_size": 100,
        "parallel": 3, "format": "parquet", "destination": {"type": "local", "path": str(tmp_path)},
    }  # fmt: skip
    document = {"source": source().model_dump(mode="json", exclude_none=True), "exports": [export]}
    (tmp_path / "rivet.yaml").write_text(yaml.safe_dump(document))
    (chunked,) = load_config(tmp_path / "rivet.yaml").exports
    session, relation = planned(source())

    extract = chunked.extract(
        Planning(
            source=source(), session=session, relation=relation, window=None, cursor=None, run_id="r",
            started_at=datetime.now(UTC), tasks=4,
        )
    )  # fmt: skip

    assert [3] * 10 == [chunk.abreast for chunk in extract.chunks]


def test_max_events_is_the_number_of_rows():
    """Five events are five rows, {"value": 0} to {"value": 4} where nothing is added."""
    made = source(pattern="sequence", max_events=5, include_sequence=False, include_timestamp=False)

    assert whole(made).to_pylist() == [{"value": n} for n in range(5)]


def test_custom_fields_are_on_every_row():
    """A custom field is a column with one value."""
    assert set(whole(source(custom_fields={"env": "test"})).column("env").to_pylist()) == {"test"}


def test_typed_columns_reach_the_page():
    """Orders have instants and decimals, events have JSON."""
    orders, events = whole(source()).schema, whole(source(pattern="events")).schema

    assert str(orders.field("created_at").type) == "timestamp[us, tz=UTC]"
    assert str(orders.field("unit_price").type) == "decimal128(12, 2)"
    assert events.field("payload").type == JSON
    assert not orders.field("order_id").nullable


def test_override_decides_the_type():
    """`columns:` types made-up columns like any others."""
    table = whole(source(), unit_price="float8", quantity="text", created_at="text")

    assert [str(table.schema.field(n).type) for n in ("unit_price", "quantity", "created_at")] == [
        "double", "string", "string",
    ]  # fmt: skip


def test_no_seed_means_other_rows_and_a_note():
    """Without a seed each run draws one and tells which, so that it can be had again."""
    made = source(seed=None)
    (first, relation), (second, _) = planned(made), planned(made)
    seed = int(first.note.split("seed=")[1].split()[0])

    assert first.snapshot != second.snapshot
    assert read(made, first, relation, *first.chunks(relation)).equals(whole(source(seed=seed)))


WHERE = [
    ("\"status\" = 'pending'", lambda row: row["status"] == "pending"),
    ('"quantity" > 5 AND "currency" <> \'EUR\'', lambda row: row["quantity"] > 5 and row["currency"] != "EUR"),
    ('"_sequence" >= 10 AND "_sequence" < 20', lambda row: 10 <= row["_sequence"] < 20),
    ("1 = 0", lambda row: False),
]


@pytest.mark.parametrize(("where", "holds"), WHERE)
def test_predicate_keeps_its_rows(where, holds):
    """Predicates that modes write are evaluated exactly, by arithmetic or by DuckDB."""
    made = source()
    session, relation = planned(made)
    expected = [row for row in whole(made).to_pylist() if holds(row)]

    assert whole(made, where=where, pieces=3).to_pylist() == expected
    assert session.count(relation, where=where) == len(expected)


@pytest.mark.parametrize("name", ["order_id", "quantity", "unit_price", "created_at", "_sequence", "_timestamp"])
def test_bounds_and_literals_agree_with_the_rows(name):
    """MIN and MAX of any column, rendered as literals, hold every row between them."""
    made = source()
    session, relation = planned(made)
    column, bounds = relation.column(name), session.bounds(relation, name)
    low, high = (made.literal(text, column) for text in (bounds.low, bounds.high))

    assert session.count(relation, where=f'"{name}" >= {low} AND "{name}" <= {high}') == 1000
    assert session.count(relation, where=f'"{name}" < {low} OR "{name}" > {high}') == 0


@pytest.mark.parametrize("name", ["order_id", "unit_price", "created_at", "_sequence"])
def test_inner_bounds_cut_into_equal_pieces(name):
    """Pieces between inner bounds are of about one size, and together hold all."""
    made = source()
    session, relation = planned(made)
    column = relation.column(name)
    inner = [made.literal(text, column) for text in session.keyset_bounds(relation, (name,), 4)]
    counts = [session.count(relation, where=f'"{name}" <= {bound}') for bound in inner]

    assert [round(count, -1) for count in counts] == [250, 500, 750]


RANGES = [
    ("", Numbers(0, None)),
    ("1 = 0", Numbers(0, 0)),
    ('"n" >= 5 AND "n" <= 9', Numbers(5, 10)),
    ('"n" > 5', Numbers(6, None)),
    ('("n" <= 9 OR "n" IS NULL)', Numbers(0, 10)),
    ('"n" > 5 AND "n" < 3', Numbers(6, 6)),
    ('"m" > 5', None),
    ('"n" > 5 OR "n" < 3', None),
    ("\"n\" > '5'", None),
    ('"n" > 5.5', None),
]


@pytest.mark.parametrize(("where", "expected"), RANGES)
def test_range_of_numbers_is_read_out_of_a_predicate(where, expected):
    """What modes write about the number is arithmetic; all else is left to DuckDB."""
    assert numbers_of(where, ("n",)) == expected


def test_endless_stream_continues_where_it_stood():
    """Each run takes a minute's worth of rows; the next one continues with the next number."""
    made = source(max_events=0, events_per_second=20)
    session, relation = planned(made)
    column = relation.column("_sequence")
    first = session.horizon(relation, "_sequence", column, after=None)
    second = session.horizon(relation, "_sequence", column, after=first.high)

    assert (first.high, second.high) == ("1199", "2399")
    assert first.note == "the stream is endless; this run made 1200 rows, the next one continues"


def test_endless_stream_has_no_end_to_count_to():
    """What would need the last row of an endless stream is refused in words."""
    session, relation = planned(source(max_events=0))

    with pytest.raises(SourceError, match="`max_events`"):
        session.count(relation)
    with pytest.raises(SourceError, match="cursor_column: _sequence"):
        session.horizon(relation, "created_at", relation.column("created_at"), after=None)


REFUSED = [
    ("full", "query", 10, "no queries"),
    ("full", "table", 0, "endless"),
    ("chunked", "table", 0, "endless"),
    ("incremental", "table", 0, ""),
    ("full", "table", 10, ""),
    ("time_window", "table", 10, ""),
]


@pytest.mark.parametrize(("mode", "relation", "events", "words"), REFUSED)
def test_mode_that_cannot_be_is_refused_in_words(mode, relation, events, words):
    """What datagen cannot do is known before anything runs."""
    said = source(max_events=events).refuses(registry.MODES[mode].answers, relation)

    assert words in said
    assert bool(said) == bool(words)


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"events_per_second": 100_001}, "is 100001; write 0"),
    ({"events_per_second": -1}, "is -1; write 0"),
    ({"pattern": "cats"}, "pattern"),
    ({"stream_name": ""}, "stream_name"),
    ({"stream_name": "x" * 256}, "stream_name"),
    ({"custom_fields": {"STATUS": 1}}, "differ only in case"),
    ({"custom_fields": {"n": 2**63}}, "64 bits"),
    ({"max_events": -1}, "max_events"),
    ({"speed": 1}, "speed"),
]


@pytest.mark.parametrize(("settings", "words"), WRONG)
def test_wrong_setting_is_refused(settings, words):
    """Every key says what it allows."""
    with pytest.raises(ValidationError, match=words):
        source(**settings)


def test_fastest_rate_is_allowed():
    """100000 is the last rate that is."""
    assert source(events_per_second=100_000).events_per_second == 100_000


def test_table_goes_by_three_names():
    """The stream is found by its name, with its namespace, or by its pattern; nothing else is."""
    made = source(stream_name="shop", namespace="demo")
    session, _ = planned(made)
    for name in ("shop", "demo.shop", "orders"):
        assert session.describe(table=name, query=None, params={}, rules=TypeRules({})).name == "demo.shop"

    with pytest.raises(UnknownTable, match=r"demo\.shop"):
        session.describe(table="users", query=None, params={}, rules=TypeRules({}))
    with pytest.raises(UnknownColumn, match="it has order_id"):
        session.describe(table="shop", query=None, params={}, rules=TypeRules({"x": ColumnRule(type="text")}))
    with pytest.raises(ConfigError, match="no queries"):
        session.describe(table=None, query="SELECT 1", params={}, rules=TypeRules({}))


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({}, ("_sequence",)),
        ({"include_sequence": False}, ("order_id",)),
        ({"pattern": "metrics", "include_sequence": False}, ("metric_id",)),
        ({"pattern": "random", "include_sequence": False}, ()),
        ({"include_sequence": False, "custom_fields": {"order_id": "x"}}, ()),
    ],
)
def test_key_is_what_tells_rows_apart(settings, key):
    """The number is the key; without it, an identity that repeats for no row."""
    assert planned(source(**settings))[1].key == key


def test_plan_of_other_rows_has_another_name():
    """Chunks of a dead run may be kept only if a new run would make the same rows."""
    names = {
        planned(source(**s))[1].sql for s in ({}, {"seed": 8}, {"custom_fields": {"a": 1}}, {"clock": "2026-02-01"})
    }

    assert len(names) == 4


# --- the whole way, as a user goes it ------------------------------------------------------------


def export(folder: Path, block: str, partitions: tuple[str, ...] = (), **settings: Any) -> Outcome:
    """Run one export of made-up rows through Dagster."""
    fixed = source(**settings).model_dump(mode="json", exclude_none=True, exclude_defaults=True)
    head = {
        "source": {"type": "datagen", "events_per_second": 0, **fixed, "tuning": {"profile": "fast"}},
        "spark": "inline",
    }
    made = {"name": "made", "table": "orders", "format": "parquet", **yaml.safe_load(block)}
    made["destination"] = {"type": "local", "path": str(folder / "lake")}
    path = folder / "rivet.yaml"
    path.write_text(yaml.safe_dump({**head, "exports": [made]}))
    (outcome,) = run_exports(load_config(path), partitions=partitions)
    return outcome


MODES = [
    "mode: full",
    "{mode: full, parallel: 3}",
    "mode: chunked",
    "{mode: chunked, chunk_size: 300, parallel: 2}",
    "{mode: chunked, chunk_column: quantity, chunk_size: 2}",
    "{mode: chunked, chunk_by_key: order_id, parallel: 3}",
    "{mode: chunked, chunk_column: created_at, chunk_by_days: 2}",
    "{mode: incremental, cursor_column: _sequence}",
    "{mode: incremental, cursor_column: created_at}",
]


@pytest.mark.parametrize("block", MODES)
def test_every_mode_reads_the_same_rows(block, tmp_path):
    """Whatever the mode, the files hold what the seed says."""
    outcome = export(tmp_path, block)

    lab = Lab(tmp_path, "")
    assert (outcome.status, outcome.message, outcome.rows) == ("success", "", 1000)
    assert sorted(row["_sequence"] for row in lab.rows("made")) == list(range(1000))


def test_windows_of_time_hold_disjoint_rows(tmp_path):
    """Each row lies in the window of its own day."""
    days = [(datetime(2026, 1, 31, tzinfo=UTC) - timedelta(days=n)).date().isoformat() for n in range(7, 0, -1)]
    outcome = export(
        tmp_path, "{mode: time_window, time_column: created_at, start: 2026-01-24, end: 2026-02-01}", tuple(days)
    )

    rows = Lab(tmp_path, "").rows("made")
    expected = [row for row in whole(source()).to_pylist() if row["created_at"].date().isoformat() in days]
    assert outcome.status == "success"
    assert sorted(row["_sequence"] for row in rows) == [row["_sequence"] for row in expected]


def test_endless_stream_is_exported_run_by_run(tmp_path):
    """Two runs of an endless stream hold two stretches, without a gap and without a repeat."""
    block = "{mode: incremental, cursor_column: _sequence, table: numbers}"
    settings = {"pattern": "sequence", "stream_name": "numbers", "max_events": 0, "include_timestamp": False}
    outcomes = [export(tmp_path, block, **settings) for _ in range(2)]
    lab = Lab(tmp_path, "")
    numbers = pa.concat_tables([pq.read_table(path) for path in lab.parts("made")]).column("_sequence")

    assert [(outcome.status, outcome.rows) for outcome in outcomes] == [("success", 1_000_000)] * 2
    assert numbers.sort().equals(pa.chunked_array([pa.array(range(2_000_000))]))
