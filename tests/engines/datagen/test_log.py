"""Made-up changes as a change log: the same cycles for the same seed, wherever a drain is cut."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any, Literal

import pyarrow as pa
import pytest

from rivet_assets.modes.registry import MODES
from rivet_resources.contracts.change_log import Capture, Changes, Commit, Position, change_schema
from rivet_resources.contracts.settings import Tuning, pace
from rivet_resources.contracts.source import ColumnRule, TypeRules
from rivet_resources.engines.datagen.log import cycles as datagen_cycles
from rivet_resources.engines.datagen.log.cycles import DELETE, INSERT, UPDATE, Cycles
from rivet_resources.engines.datagen.log.log import DatagenLog
from rivet_resources.engines.datagen.rows import PATTERNS, Recipe
from rivet_resources.engines.datagen.source import Datagen
from rivet_resources.engines.mysql.source import MySql
from rivet_resources.engines.postgres.source import Postgres
from rivet_resources.engines.sqlite.source import Sqlite
from rivet_resources.engines.sqlserver.source import SqlServer
from rivet_resources.errors import CheckpointUnusable, LogSetup, UnknownColumn, UnknownTable

EAGER = pace(Tuning(profile="fast"), None)
CLOCK = "2026-01-31T12:00:00Z"


def source(**settings: Any) -> Datagen:
    """Return a stream of 1000 changes of orders at full speed, of a fixed seed and clock."""
    fixed = {"pattern": "orders", "events_per_second": 0, "max_events": 1000, "seed": 7, "clock": CLOCK}
    return Datagen(**{**fixed, **settings})


def opened(made: Datagen, **settings: Any) -> DatagenLog:
    """Open its log."""
    columns = {name: ColumnRule(type=word) for name, word in settings.pop("columns", {}).items()}
    table = settings.pop("table", made.stream_name)
    with made.open_log(Capture("e", (table,), TypeRules(columns), **settings), application="t", pace=EAGER) as log:
        assert isinstance(log, DatagenLog)
        return log


def drained(log: DatagenLog, after: Position | None = None, *, most: int = 10**9) -> pa.Table:
    """Read everything after a position, window by window, or the first `most` changes of a stream without end."""
    target, found = log.survey().target, []
    after = after or log.begin()
    while after.key < target.key:
        for item in log.read(after, target, most=most):
            if isinstance(item, Changes):
                found.append(item.data)
            else:
                after = item.position
        if most < 10**9 and log.capture.max_events:
            break
    return pa.concat_tables(found)


def replayed(rows: Iterable[dict[str, Any]], key: str) -> dict[Any, dict[str, Any]]:
    """Keep what is live after changes, by key; every change must fit what is there."""
    live: dict[Any, dict[str, Any]] = {}
    for row in rows:
        is_there = row[key] in live
        assert is_there == (row["__op"] != "insert"), row
        if row["__op"] == "delete":
            assert plain(live.pop(row[key])) == plain(row)
        else:
            live[row[key]] = row
    return live


def plain(row: dict[str, Any]) -> dict[str, Any]:
    """Leave the envelope out."""
    return {name: cell for name, cell in row.items() if not name.startswith("__")}


def test_operations_come_in_the_promised_shares():
    """Of 1000 changes: 50 to 70 % inserts, 20 to 40 % updates, 5 to 15 % deletes; the first is an insert."""
    words = drained(opened(source())).column("__op").to_pylist()

    shares = {word: count / len(words) for word, count in Counter(words).items()}
    assert words[0] == "insert"
    assert (0.5 <= shares["insert"] <= 0.7, 0.2 <= shares["update"] <= 0.4, 0.05 <= shares["delete"] <= 0.15) == (
        True,
        True,
        True,
    )


@pytest.mark.parametrize("pattern", [name for name, made in PATTERNS.items() if made.is_unique])
def test_replay_is_the_pool(pattern: str):
    """Changes touch live rows only, a delete holds the row as it was, and what is left is the pool."""
    made = source(pattern=pattern)
    log = opened(made)

    live = replayed(drained(log).to_pylist(), PATTERNS[pattern].identity)

    assert log._cycles is not None
    assert sorted(row["_sequence"] for row in live.values()) == sorted(born for born, _, _ in log._cycles.pool)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_update_keeps_what_tells_the_row(pattern: str):
    """The pattern's identity and the row's number stay; the rest is a fresh record."""
    name = PATTERNS[pattern].identity
    rows = [row for row in drained(opened(source(pattern=pattern), before=True)).to_pylist() if row["__op"] == "update"]

    assert len(rows) > 100
    for row in rows:
        assert (row[name], row["_sequence"]) == (row["__before"][name], row["__before"]["_sequence"])
        assert plain(row) != row["__before"]


def test_before_is_the_last_image():
    """`__before` of a change is what the changes before it made; inserts have none."""
    live: dict[str, Any] = {}
    for row in drained(opened(source(), before=True)).to_pylist():
        assert row["__before"] == live.get(row["order_id"])
        live[row["order_id"]] = plain(row)
        if row["__op"] == "delete":
            del live[row["order_id"]]


def test_sequence_counts_its_updates():
    """`value` stays n and `revision` counts up from 0."""
    live = replayed(drained(opened(source(pattern="sequence"))).to_pylist(), "value")

    assert {row["revision"] for row in live.values()} >= {0, 1, 2}
    assert all((row["revision"] == 0) == (row["__op"] == "insert") for row in live.values())


def test_full_pool_makes_room_with_a_delete(monkeypatch: pytest.MonkeyPatch):
    """An insert that finds the pool full deletes a row first; both are events, and a replay still is the pool."""
    monkeypatch.setattr(datagen_cycles, "POOL", 5)
    log = opened(source())

    rows = drained(log).to_pylist()

    live = replayed(rows, "order_id")
    assert log._cycles is not None
    assert len(rows) == 1000
    assert len(live) == len(log._cycles.pool) <= 5


@pytest.mark.parametrize("pattern", PATTERNS)
def test_equal_seeds_make_equal_changes(pattern: str):
    """Two runs of one seed and clock are equal; another seed makes others."""
    one, two = (drained(opened(source(pattern=pattern))) for _ in range(2))

    assert one.equals(two)
    assert not one.equals(drained(opened(source(pattern=pattern, seed=8))))


@pytest.mark.parametrize("most", [1, 7, 8, 333])
def test_cut_windows_give_the_same_union(most: int):
    """Windows of any size join to the same changes, with the same numbers."""
    made = source(max_events=500)

    assert drained(opened(made), most=most).equals(drained(opened(made)))


@pytest.mark.parametrize("n", [0, 1, 7, 8, 9, 499, 500])
def test_a_new_run_goes_on_anywhere(n: int):
    """A drain that resumes at n makes what a whole one makes from there; a key sorts as its number does."""
    made = source(max_events=500)
    start = opened(made).begin()
    at = Position(key=f"{n:016x}", text=f"seq:{n}", type="Custom", more=start.more)

    items = list(opened(made).read(at, opened(made).survey().target, most=10**6))

    rest = [item.data for item in items if isinstance(item, Changes)]
    whole = drained(opened(made))
    assert pa.concat_tables([whole.schema.empty_table(), *rest]).equals(whole.slice(n))
    assert isinstance(items[-1], Commit)
    assert (items[-1].position.text, items[-1].position.key) == ("seq:500", f"{500:016x}")


def test_positions_of_changes_lie_inside_their_window():
    """Each `__pos` is above the start of its window and at most its end."""
    log = opened(source())
    start = log.begin()
    items = list(log.read(start, log.survey().target, most=10))

    places = [place for item in items if isinstance(item, Changes) for place in item.data.column("__pos").to_pylist()]
    assert (len(places), start.key < min(places), items[-1].position.key) == (10, True, max(places))  # type: ignore[union-attr]


def test_changes_have_the_schema_of_a_part():
    """The envelope, then the columns as an export types them, overrides included."""
    log = opened(source(), columns={"quantity": "int2"})
    (changes,) = (item for item in log.read(log.begin(), log.survey().target, most=5) if isinstance(item, Changes))

    assert changes.data.schema == change_schema(pa.schema([c.field for c in changes.columns]))
    assert changes.data.schema.field("quantity").type == pa.int16()
    with pytest.raises(UnknownColumn):
        drained(opened(source(), columns={"nosuch": "int2"}))
    with pytest.raises(UnknownTable):
        drained(opened(source(), table="nosuch"))


def test_stream_without_seed_keeps_the_one_it_drew():
    """The position carries seed and clock, so that the next run goes on with the same stream."""
    made = source(seed=None, clock=None)
    start = opened(made).begin()

    assert drained(opened(made), start).equals(drained(opened(made), start))
    assert not drained(opened(made)).equals(drained(opened(made), start))
    with pytest.raises(CheckpointUnusable, match="seed"):
        list(opened(made).read(Position("0" * 16, "seq:0", "Custom"), start, most=1))


def test_stream_without_end_needs_a_drain_with_one():
    """Neither `max_events`: refused with both ways out. The drain's own bound is enough."""
    endless = source(max_events=0, cdc_mode=True)
    with pytest.raises(LogSetup, match=r"`max_events` of the source.*`cdc_mode: true`.*`cdc: \{max_events"):
        opened(endless).survey()
    assert [finding.status for finding in opened(endless).preflight()] == ["fail"]

    bounded = opened(endless, max_events=50)

    assert drained(bounded, most=50).equals(drained(opened(source(max_events=50))))
    assert [finding.status for finding in bounded.preflight()] == ["ok"]
    assert bounded.lag(bounded.begin()).unread_changes == 50


def test_lag_counts_what_is_left():
    """All at the beginning, none at the end."""
    log = opened(source())
    assert [log.lag(at).unread_changes for at in (log.begin(), log.survey().target)] == [1000, 0]


def test_identity_is_of_seed_and_pattern():
    """Another seed or pattern is another source."""
    variants = [source(), source(), source(seed=8), source(pattern="users")]
    assert len({opened(made).survey().identity for made in variants}) == 3


def test_first_copy_is_empty():
    """The stream begins with no rows, and says so with the columns its changes have."""
    made = source(pattern="sequence")
    with opened(made).handover() as handover:
        relation = handover.session.describe(table="datagen", query=None, params={}, rules=TypeRules({}))
        (chunk,) = handover.session.chunks(relation)
        pages = made.pages(
            chunk, relation.columns, snapshot=handover.session.snapshot, application="", pace=EAGER, wait=print
        )
        assert (sum(page.table.num_rows for page in pages), handover.seen()) == (0, "")
    assert [c.name for c in relation.columns] == ["value", "_sequence", "_timestamp", "revision"]


def test_position_of_another_kind_is_refused():
    """A text that is no position of ours is not read as one."""
    log = opened(source())
    with pytest.raises(CheckpointUnusable, match="seq:"):
        log.refuse_lost(Position("0", "0/16B3748", "PostgresLsn"), log.survey())


def test_custom_column_stays_as_configured():
    """A custom field that replaces the identity is not put back."""
    rows = drained(opened(source(custom_fields={"order_id": "x"}))).column("order_id").to_pylist()
    assert set(rows) == {"x"}


def replayed_pool(recipe: Recipe, n: int) -> list[datagen_cycles.Entry]:
    """Return the pool of a fresh start at n."""
    fresh = Cycles(recipe)
    fresh.go_to(n)
    return fresh.pool


def test_rolls_do_not_depend_on_where_they_begin():
    """Event n rolls the same whatever stretch it is in."""
    recipe = Recipe("users", 1, source().clock)  # type: ignore[arg-type]
    one, two = Cycles(recipe), Cycles(recipe)
    two.go_to(13)

    assert one.take(40)[13:] == two.take(27)
    one.go_to(13)  # back
    assert one.pool == replayed_pool(recipe, 13)
    assert {event[0] for event in Cycles(recipe).take(200)} == {INSERT, UPDATE, DELETE}


URL = "mssql://u:p@127.0.0.1/d"
SOURCES: list[tuple[Any, Literal["cdc", "poll"], str]] = [
    (Postgres(url="postgresql://u:p@127.0.0.1/d"), "cdc", ""),
    (Postgres(url="postgresql://u:p@127.0.0.1/d"), "poll", ""),
    (MySql(url="mysql://u:p@127.0.0.1/d"), "cdc", ""),
    (MySql(url="mysql://u:p@127.0.0.1/d"), "poll", ""),
    (SqlServer(url=URL), "cdc", ""),
    (SqlServer(url=URL), "poll", ""),
    (Sqlite(path="x.db"), "cdc", "use mode poll"),
    (Sqlite(path="x.db"), "poll", ""),
    (source(), "cdc", ""),
    (source(max_events=0, cdc_mode=True), "cdc", ""),
    (source(), "poll", "use mode cdc"),
]


@pytest.mark.parametrize(("made", "mode", "words"), SOURCES, ids=[f"{made.type}-{mode}" for made, mode, _ in SOURCES])
def test_each_source_says_whether_it_can_follow_changes(made: Any, mode: str, words: str):
    """'' for what works, one sentence with the way out for what does not."""
    said = made.refuses(MODES[mode].answers, "table")
    assert words in said
    assert bool(said) == bool(words)


def test_stream_of_changes_is_for_mode_cdc_only():
    """`cdc_mode: true` keeps batch modes from exporting what was meant as changes."""
    assert "use mode cdc" in source(cdc_mode=True).refuses(MODES["full"].answers, "table")
