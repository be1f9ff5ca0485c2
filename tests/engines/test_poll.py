"""Polling by timestamp, seen from outside: a YAML block in, changes in the union of the manifests out."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import urlsplit, urlunsplit
from uuid import uuid4

import pytest
import yaml

from rivet_assets.modes.protocol import Planning
from rivet_resources.contracts.extract import Extract
from rivet_resources.contracts.settings import pace
from rivet_resources.contracts.source import Horizon
from rivet_resources.engines.postgres.session import PostgresSession
from rivet_resources.engines.sqlite.session import SqliteSession
from rivet_resources.engines.sqlserver import horizon as sqlserver_horizon
from rivet_resources.poll import ties
from rivet_resources.poll.watermark import Mark, Watermark, parse
from tests import processes
from tests.faults.dying import DIED
from tests.lab import Lab, lab_in
from tests.lab_engines import ENGINES, Engine

pytestmark = pytest.mark.matrix

FIRST = datetime(2026, 1, 1, tzinfo=UTC)
NOTES = {"id": "whole", "made": "instant", "changed": "instant", "gone": "instant", "note": "note"}
POLL = {"name": "notes", "table": "notes", "mode": "poll", "updated_at_column": "changed"}
SOFT = {"delete_detection": {"type": "soft_delete", "column": "gone"}}
DIFF = {"delete_detection": {"type": "full_diff", "max_delete_ratio": 0.5}}

everywhere = pytest.mark.parametrize("engine", ENGINES, indirect=True)
Change = tuple[object, ...]
ROWS_OF_SECONDS = 24
SESSIONS: dict[str, type] = {"postgres": PostgresSession, "sqlite": SqliteSession}


@pytest.fixture(params=["postgres", "sqlite"])
def engine(request: pytest.FixtureRequest) -> Engine:
    """The engine a test runs on."""
    return ENGINES[request.param]


@pytest.fixture
def bare(tmp_path: Path, engine: Engine, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Lab:
    """A database without tables, and an empty folder."""
    return lab_in(tmp_path, engine, request, monkeypatch)


@pytest.fixture
def lab(bare: Lab) -> Lab:
    """A database with an empty table of notes, and an empty folder."""
    bare.create("notes", NOTES, index=["changed", "gone"])
    return bare


def at(second: float) -> datetime:
    """Return an instant by its second."""
    return FIRST + timedelta(seconds=second)


def note(number: int, second: float | None, *, made: float = 0, gone: float | None = None) -> dict[str, object]:
    """Make a row that was changed at a second."""
    return {
        "id": number,
        "made": at(made),
        "changed": None if second is None else at(second),
        "gone": None if gone is None else at(gone),
        "note": f"note {number}",
    }


def change(lab: Lab, number: int, **cells: object) -> None:
    """Update one row."""
    listed = ", ".join(f"{name} = {lab.literal(value)}" for name, value in cells.items())
    lab.sql(f"UPDATE notes SET {listed} WHERE id = {number}")


def poll(lab: Lab, **keys: object) -> None:
    """Run the poll once, which must succeed."""
    outcome = lab.export(yaml.safe_dump(POLL | keys))

    assert outcome.success, outcome.message


def refused(lab: Lab, **keys: object) -> str:
    """Run the poll once, which must fail; gives what it says."""
    outcome = lab.export(yaml.safe_dump(POLL | keys))

    assert not outcome.success
    return outcome.message


def planned(lab: Lab, *, cursor: str | None = None, **keys: object) -> Extract:
    """Plan one run, and read nothing."""
    config = lab.config(yaml.safe_dump(POLL | keys))
    export: Any = config.export("notes")
    source = config.source_of(export)[1]
    with source.session(application="rivet:notes", pace=pace(source.tuning, None)) as session:
        relation = session.describe(table="notes", query=None, params={}, rules=export.type_rules())
        planning = Planning(source, session, relation, None, cursor, "run", datetime.now(UTC), tasks=1)
        extract: Extract = export.extract(planning)
        return extract


def changes(lab: Lab) -> list[Change]:
    """Read every published change as (id, operation), in the order a mirror would apply them."""
    rows: list[Any] = lab.rows("notes")
    return [(row["id"], row["__op"]) for row in sorted(rows, key=lambda row: (row["__pos"], row["__seq"], row["id"]))]


def mirror(lab: Lab) -> dict[object, object]:
    """Apply the published changes as a mirror does: {id: note}."""
    state: dict[object, object] = {}
    rows: list[Any] = lab.rows("notes")
    for row in sorted(rows, key=lambda row: (row["__pos"], row["__seq"])):
        if row["__op"] == "delete":
            state.pop(row["id"], None)
        else:
            state[row["id"]] = row["note"]
    return state


def watermark(lab: Lab) -> Watermark:
    """Read how far the poll has come."""
    cursor = lab.state.cursor("notes")
    return parse(cursor.value if cursor else None, export="notes")


# --- windows -------------------------------------------------------------------------------------


@everywhere
def test_each_version_that_a_poll_sees_comes_once(lab: Lab) -> None:
    """The first run gives the rows there are, the next ones what changed since, and an idle one nothing."""
    lab.insert("notes", [note(1, 0), note(2, 2)])
    poll(lab, created_at_column="made")
    change(lab, 1, changed=at(9), note="newer")
    poll(lab, created_at_column="made")
    poll(lab, created_at_column="made")

    assert [(1, "insert"), (2, "update"), (1, "update")] == changes(lab)
    assert {1: "newer", 2: "note 2"} == mirror(lab)


@everywhere
def test_envelope_says_when_and_in_which_order(lab: Lab) -> None:
    """`__pos` sorts like `updated_at`, `__ts` is it, and the columns that follow are those of the table."""
    lab.insert("notes", [note(1, 1.25), note(2, 0.5)])

    poll(lab)

    (first, second) = lab.rows("notes")
    assert ("2026-01-01T00:00:01.250000", at(1.25)) == (first["__pos"], first["__ts"])
    assert ("2026-01-01T00:00:00.500000", at(0.5)) == (second["__pos"], second["__ts"])
    assert ["__op", "__pos", "__seq", "__ts", "__unchanged", *NOTES] == list(first)


@everywhere
@pytest.mark.parametrize("batch", [1, 3, 7])
def test_tie_across_the_edge_of_a_run_is_read_once(lab: Lab, batch: int) -> None:
    """Runs that end inside rows of one stamp go on behind the very row they ended with."""
    lab.insert("notes", [note(number, 5 if number < 8 else 6) for number in range(10)])

    runs = 0
    while len(lab.ids("notes")) < 10 and runs < 11:
        poll(lab, poll_batch_size=batch, max_pages=1)
        runs += 1
        assert min(10, runs * batch) == len(lab.ids("notes"))

    assert list(range(10)) == lab.ids("notes")


def test_plain_comparison_of_stamps_would_lose_the_tie(lab: Lab) -> None:
    """What the key in the watermark is for: behind the same row, `changed > …` finds none of those that are left."""
    lab.insert("notes", [note(number, 5) for number in range(10)])
    poll(lab, poll_batch_size=4, max_pages=1)
    cursor, (stamp, _) = lab.state.cursor("notes"), watermark(lab).updated or ()
    assert cursor is not None

    extract = planned(lab, cursor=cursor.value)

    source, column = extract.source, extract.relation.column("changed")
    assert column is not None
    plain = f"{source.quote('changed')} > {source.literal(stamp.value, column)}"
    with source.session(application="rivet:test", pace=extract.pace) as session:
        counted = [session.count(extract.relation, where=where) for where in (plain, extract.chunks[0].where)]
    assert [0, 6] == counted


@everywhere
def test_watermark_is_the_last_delivered_row(lab: Lab) -> None:
    """Stamp and key of a row that was read, typed, in the source's precision; never the upper bound."""
    lab.insert("notes", [note(1, 1), note(10, 1.000001), note(2, 1.000001)])

    poll(lab)

    (stamp, key) = watermark(lab).updated or ()
    assert "2026-01-01T00:00:01.000001" == stamp.value.removesuffix("Z")
    assert Mark("id", "int64", "10") == key


@everywhere
def test_rerun_after_an_empty_window_keeps_the_watermark(lab: Lab) -> None:
    """A run that finds nothing leaves cursor and rows as they are."""
    lab.insert("notes", [note(1, 1)])
    poll(lab)
    before = watermark(lab)

    poll(lab)
    poll(lab)

    assert before == watermark(lab)
    assert [1] == lab.ids("notes")


@everywhere
def test_rows_that_come_later_with_the_last_stamp_come_once(lab: Lab) -> None:
    """Clocks of applications give a stamp again; a smaller key than the last one is no reason to be lost."""
    lab.insert("notes", [note(5, 1), note(7, 1), note(1, 0)])
    poll(lab)
    lab.insert("notes", [note(3, 1), note(9, 1)])
    poll(lab)
    lab.insert("notes", [note(2, 1), note(11, 2)])
    poll(lab)
    before = watermark(lab)
    poll(lab)
    poll(lab)

    assert [1, 2, 3, 5, 7, 9, 11] == lab.ids("notes")
    assert before == watermark(lab)


@everywhere
def test_row_that_leaves_the_last_stamp_is_no_news(lab: Lab) -> None:
    """Nor is it one when another one comes in its place: only what was never told is."""
    lab.insert("notes", [note(5, 1), note(7, 1)])
    poll(lab)
    lab.sql("DELETE FROM notes WHERE id = 5")
    poll(lab)
    windows = list(lab.manifests("notes"))
    lab.insert("notes", [note(4, 1)])
    poll(lab)

    assert ["after=start"] == windows[:1]
    assert 2 >= len(windows)  # an empty one stands where the next begins
    assert [4, 5, 7] == lab.ids("notes")


@everywhere
def test_marks_that_come_later_with_the_last_mark_delete(lab: Lab) -> None:
    """The second pass looks at its own last stamp."""
    lab.insert("notes", [note(number, 1) for number in (1, 2, 3)])
    poll(lab, **SOFT)
    change(lab, 2, gone=at(5))
    poll(lab, **SOFT)
    change(lab, 1, gone=at(5))
    poll(lab, **SOFT)
    poll(lab, **SOFT)

    assert [(1, "delete"), (2, "delete")] == sorted(each for each in changes(lab) if each[1] == "delete")
    assert {3: "note 3"} == mirror(lab)


def test_stamp_of_many_rows_is_told_again_when_more_come_to_it(lab: Lab) -> None:
    """Their keys are known by one digest, so none is lost, and a mirror takes each as it is."""
    lab.insert("notes", [note(2 * number, 1) for number in range(60)])
    poll(lab)
    poll(lab)
    told = len(changes(lab))
    lab.insert("notes", [note(31, 1)])
    poll(lab)
    again = len(changes(lab))
    poll(lab)

    assert (60, 121, 121) == (told, again, len(changes(lab)))
    assert {*range(0, 120, 2), 31} == set(mirror(lab))


def test_stamp_that_too_many_rows_have_is_said(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their keys are not read at every run."""
    monkeypatch.setattr(ties, "MOST_LISTED", 3)
    lab.insert("notes", [note(number, 1) for number in range(5)])
    poll(lab)

    extract = planned(lab, cursor=watermark(lab).text)

    assert any("more than 3 rows have the last changed" in each for each in extract.notes)


def test_full_diff_and_the_last_stamp_tell_a_late_row_once(lab: Lab) -> None:
    """The diff compares the rows of lower stamps only, in its turn and without it."""
    keys = {"delete_detection": {"type": "full_diff", "max_delete_ratio": 0.5, "every": 2}}
    lab.insert("notes", [note(number, 1) for number in (4, 5, 6)])
    poll(lab, **keys)
    for number in (1, 2, 3):
        lab.insert("notes", [note(number, 1)])
        poll(lab, **keys)

    assert [1, 2, 3, 4, 5, 6] == lab.ids("notes")


def test_empty_table_gives_an_empty_window(lab: Lab) -> None:
    """There is nothing to remember after a first run without rows, and the next one begins at the beginning."""
    poll(lab)
    lab.insert("notes", [note(1, 1)])

    poll(lab)

    assert [1] == lab.ids("notes")
    assert ["after=start"] == list(lab.manifests("notes"))


@pytest.mark.parametrize("place", ["page", "part", "manifest", "success", "cursor", "metrics"])
def test_death_at_any_place_neither_loses_nor_repeats(lab: Lab, place: str) -> None:
    """A run that died is replaced by the next one, whatever came in between."""
    lab.insert("notes", [note(number, number) for number in range(40)])
    poll(lab, poll_batch_size=20, max_pages=1, **SOFT)
    lab.insert("notes", [note(number, 100 + number) for number in range(100, 120)])
    change(lab, 3, gone=at(200))
    lab.config(yaml.safe_dump(POLL | SOFT | {"poll_batch_size": 4}))
    died = processes.run("tests.faults.dying", str(lab.folder / "rivet.yaml"), place)
    assert died.returncode == DIED, died.stdout + died.stderr
    change(lab, 5, changed=at(300))

    poll(lab, **SOFT)
    poll(lab, **SOFT)

    upserts = sorted(number for number, op in changes(lab) if op != "delete")  # type: ignore[type-var]
    assert sorted([*range(40), 5, *range(100, 120)]) == upserts
    assert [3] == [number for number, op in changes(lab) if op == "delete"]


# --- keys ----------------------------------------------------------------------------------------

KEYS = {
    "numbers": (("whole",), [(number,) for number in (2, 10, 9, 100)]),
    "decimals": (("amount",), [(f"{number}.50",) for number in (2, 10, 9, 100)]),
    "texts": (("note",), [(text,) for text in ("10", "2", "b", "a'b", "č", "B2", "z ")]),
    "bytes": (("payload",), [(bytes([number, 0, 255]),) for number in (3, 1, 2)]),
    "days": (("day",), [((FIRST + timedelta(days=days)).date(),) for days in (3, 1, 2)]),
    "several": (("note", "whole"), [("b", 1), ("a", 10), ("a", 2), ("b", 2)]),
}


@everywhere
@pytest.mark.parametrize("kind", KEYS)
def test_key_of_any_type_resumes_a_tie(bare: Lab, kind: str) -> None:
    """Row by row through one stamp: the database's own order of the key, whatever its type."""
    words, rows = KEYS[kind]
    names = [f"k{number}" for number in range(len(words))]
    types = bare.engine.types
    ddl = [f"{name} {types[word]} NOT NULL" for name, word in zip(names, words, strict=True)]
    bare.sql(f"CREATE TABLE notes ({', '.join(ddl)}, changed {types['instant']}, PRIMARY KEY ({', '.join(names)}))")
    needed = dict(zip([*names, "changed"], [*words, "instant"], strict=True))
    rules = bare.engine.columns
    bare.columns["notes"] = {name: rules[word] for name, word in needed.items() if word in rules}
    bare.insert("notes", [dict(zip(names, row, strict=True)) | {"changed": at(1)} for row in rows])

    for _ in rows:
        poll(bare, poll_batch_size=1, max_pages=1)

    expected = sorted(tuple(map(str, row)) for row in rows)
    assert expected == sorted(tuple(str(row[name]) for name in names) for row in bare.rows("notes"))
    assert len(rows) == len(bare.manifests("notes"))


UNFIT = {
    "fraction": ("id {ratio} NOT NULL PRIMARY KEY", {"primary_key": ["id"]}, "fractions"),
    "nullable": ("id {whole}", {"primary_key": ["id"]}, "may be NULL"),
    "none": ("id {whole} NOT NULL", {}, "no key that can be polled"),
}


@everywhere
@pytest.mark.parametrize("kind", UNFIT)
def test_key_that_cannot_tell_rows_apart_is_refused(bare: Lab, kind: str) -> None:
    """Fractions, NULLs, and no key at all."""
    ddl, keys, said = UNFIT[kind]
    types = bare.engine.types
    bare.sql(f"CREATE TABLE notes ({ddl.format(**types)}, changed {types['instant']})")
    bare.columns["notes"] = {"changed": "timestamp_tz"} if bare.engine.name == "sqlite" else {}

    assert said in refused(bare, **keys)


@pytest.mark.parametrize("engine", ["mariadb", "mysql", "sqlserver"], indirect=True)
def test_named_text_key_without_a_unique_index_is_refused(bare: Lab) -> None:
    """A collation may call two texts equal, so that a place would mean two rows."""
    types = bare.engine.types
    bare.sql(f"CREATE TABLE notes (code {types['note']} NOT NULL, changed {types['instant']})")

    assert "collation" in refused(bare, primary_key=["code"])


@pytest.mark.parametrize("engine", ["mariadb", "mysql"], indirect=True)
def test_text_key_that_ignores_case_resumes_by_its_collation(bare: Lab) -> None:
    """`b` sorts between `A` and `C`: comparison and order are the server's own, so none is skipped."""
    types = bare.engine.types
    collated = "varchar(20) COLLATE utf8mb4_general_ci"
    bare.sql(f"CREATE TABLE notes (code {collated} NOT NULL PRIMARY KEY, changed {types['instant']})")
    bare.insert("notes", [{"code": code, "changed": at(1)} for code in ("A", "b", "C", "d")])

    for _ in range(4):
        poll(bare, poll_batch_size=1, max_pages=1)

    assert ["A", "C", "b", "d"] == sorted(str(row["code"]) for row in bare.rows("notes"))


def test_watermark_of_another_order_is_refused(lab: Lab) -> None:
    """Places in two orders cannot be compared; the message names both."""
    lab.insert("notes", [note(1, 1)])
    poll(lab)

    message = refused(lab, updated_at_column="made")

    assert [] == [said for said in ("changed", "made", "state reset") if said not in message]


# --- late commits --------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["postgres", "mariadb", "mysql"], indirect=True)
def test_no_row_of_four_writers_is_missed_or_repeated(lab: Lab) -> None:
    """Transactions stay open behind their stamps while polls go on; below the cap none is passed over."""
    clock = {"postgres": "now()"}.get(lab.engine.name, "now(6)")
    committed, done, polled = list[int](), threading.Event(), threading.Event()

    def write(writer: int) -> None:
        random = Random(writer)
        for turn in range(12):
            number = writer * 1000 + turn
            if turn == 6:  # however slow the machine is, at least one poll falls between the writes
                assert polled.wait(60)
            with lab.writer() as transaction:
                transaction.execute(f"INSERT INTO notes (id, changed, note) VALUES ({number}, {clock}, 'x')")
                done.wait(random.random() * 0.4)
                transaction.commit()
            committed.append(number)

    writers = [threading.Thread(target=write, args=(writer,)) for writer in range(4)]
    for thread in writers:
        thread.start()
    polls = 0
    while any(thread.is_alive() for thread in writers):
        poll(lab, max_pages=1, poll_batch_size=5)
        polls += 1
        polled.set()
    deadline = time.monotonic() + 30
    while len(lab.ids("notes")) < len(committed) and time.monotonic() < deadline:
        poll(lab)

    assert sorted(committed) == lab.ids("notes")
    assert polls > 1


@pytest.mark.parametrize("engine", ["postgres", "mariadb", "mysql", "sqlserver"], indirect=True)
def test_open_transaction_holds_the_poll_back_and_is_named(lab: Lab) -> None:
    """A row behind an open transaction waits for it; what held it back is told."""
    lab.insert("notes", [note(1, 1)])
    with lab.writer() as late:
        late.execute("UPDATE notes SET note = 'late' WHERE id = 1")
        _settle(lab)
        stamp = lab.literal(datetime.now(UTC))
        lab.sql(f"INSERT INTO notes (id, changed, note) VALUES (2, {stamp}, 'n')")
        if lab.engine.name == "sqlserver":
            time.sleep(sqlserver_horizon.MARGIN.total_seconds() + 0.5)  # it stays so far behind without any reason

        extract = planned(lab)
        poll(lab)
        held = lab.ids("notes")
        late.commit()
    _settle(lab)
    poll(lab)

    assert any("held back by" in told for told in extract.notes)
    assert [1] == held
    assert [1, 2] == lab.ids("notes")


def _settle(lab: Lab) -> None:
    time.sleep(lab.engine.settled_seconds)


@everywhere
def test_lag_window_stays_behind_and_warns(lab: Lab) -> None:
    """Rows younger than the window wait, and the run says that it may miss some."""
    lab.insert("notes", [note(1, 1)])
    young = lab.literal(datetime.now(UTC) - timedelta(seconds=100))
    lab.sql(f"INSERT INTO notes (id, changed, note) VALUES (2, {young}, 'young')")

    extract = planned(lab, visibility="lag_window", lag_window_seconds=50_000)
    poll(lab, visibility="lag_window", lag_window_seconds=50_000)

    assert [1] == lab.ids("notes")
    assert any("may miss rows" in told for told in extract.notes)


@everywhere
def test_cap_needs_no_warning(lab: Lab) -> None:
    """Where open transactions can be seen nothing can be missed, and nothing is said of it."""
    lab.insert("notes", [note(1, 1)])

    extract = planned(lab, visibility="cap")

    assert not any("may miss rows" in told for told in extract.notes)


@pytest.mark.parametrize("engine", ["mariadb", "mysql"], indirect=True)
def test_user_who_may_not_see_transactions_stays_behind_and_warns(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under `auto` a lag window takes the cap's place; `visibility: cap` is refused with the grant."""
    lab.insert("notes", [note(1, 1)])
    young = lab.literal(datetime.now(UTC) - timedelta(seconds=100))
    lab.sql(f"INSERT INTO notes (id, changed, note) VALUES (2, {young}, 'young')")
    url, name = urlsplit(lab.url), f"blind{uuid4().hex[:8]}"
    lab.sql(f"CREATE USER {name}@'%' IDENTIFIED BY 'pw'", f"GRANT SELECT ON {url.path[1:]}.* TO {name}@'%'")
    host = url.netloc.rpartition("@")[2]
    monkeypatch.setenv("LAB_URL", urlunsplit(url._replace(netloc=f"{name}:pw@{host}")))
    try:
        extract = planned(lab, lag_window_seconds=50_000)
        poll(lab, lag_window_seconds=50_000)
        message = refused(lab, visibility="cap")
    finally:
        lab.sql(f"DROP USER {name}@'%'")

    assert [1] == lab.ids("notes")
    assert any("may miss rows" in told and "GRANT PROCESS" in told for told in extract.notes)
    assert "GRANT PROCESS" in message


def test_long_open_transaction_is_told_with_its_age(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """After ten minutes of holding back, the run says that somebody should end it."""
    lab.insert("notes", [note(1, 1)])
    horizon = Horizon("2026-01-01T00:00:01.000000Z", "held back by pid 7", held_seconds=601)
    monkeypatch.setattr(SESSIONS[lab.engine.name], "horizon", lambda *args, **keys: horizon)

    assert any("open for 601 s holds the poll back" in told for told in planned(lab).notes)


@everywhere
def test_clock_behind_the_watermark_is_refused(lab: Lab) -> None:
    """New rows would get stamps below what was polled, and be missed for ever."""
    lab.insert("notes", [note(1, 1)])
    poll(lab)
    held = watermark(lab).updated or ()
    ahead = (Mark(held[0].column, held[0].type, held[0].value.replace("2026", "2099")), *held[1:])

    with pytest.raises(Exception, match="moved back"):
        planned(lab, cursor=Watermark(ahead).text)


# --- stamps --------------------------------------------------------------------------------------


def test_rows_without_a_stamp_are_refused_and_counted(lab: Lab) -> None:
    """No poll would ever read them."""
    lab.insert("notes", [note(1, 1), note(2, None), note(3, None)])

    assert "NULL in 2 rows" in refused(lab)


@everywhere
def test_coalesce_places_rows_by_their_creation(lab: Lab) -> None:
    """A row that was never updated comes at the time it was made, and later at that of its update."""
    lab.insert("notes", [note(1, 5), note(2, None, made=7), note(3, None, made=3)])
    rule = {"null_policy": "coalesce", "created_at_column": "made"}
    poll(lab, **rule, poll_batch_size=1, max_pages=2)
    poll(lab, **rule)
    change(lab, 3, changed=at(20))
    poll(lab, **rule)

    assert [(3, "insert"), (1, "update"), (2, "insert"), (3, "update")] == changes(lab)


@pytest.mark.parametrize("engine", ["postgres", "mariadb", "mysql"], indirect=True)
def test_stamps_of_whole_seconds_lose_no_row_of_the_running_second(bare: Lab) -> None:
    """A stamp cut or rounded to the second lies below the instant it was taken at; the bound is cut as well."""
    stamp = "timestamptz(0)" if bare.engine.name == "postgres" else "datetime(0)"
    default = "now()" if bare.engine.name == "postgres" else "UTC_TIMESTAMP()"
    bare.sql(f"CREATE TABLE notes (id bigint PRIMARY KEY, changed {stamp} NOT NULL)")
    for number in range(ROWS_OF_SECONDS):
        bare.sql(f"INSERT INTO notes VALUES ({-number}, {default})")  # below the last row of the same second
        if number % 4 == 3:
            poll(bare)
    deadline = time.monotonic() + 30
    while len(bare.ids("notes")) < ROWS_OF_SECONDS and time.monotonic() < deadline:
        poll(bare)

    assert list(range(1 - ROWS_OF_SECONDS, 1)) == bare.ids("notes")


def test_stamp_must_be_a_timestamp(lab: Lab) -> None:
    """A growing number is for mode incremental."""
    assert "must be a timestamp." in refused(lab, updated_at_column="id")


def test_missing_index_is_told_with_its_ddl(bare: Lab) -> None:
    """Without an index each run reads the table."""
    bare.create("notes", NOTES)
    bare.insert("notes", [note(1, 1)])

    extract = planned(bare)

    assert any("CREATE INDEX" in told and '"changed", "id"' in told for told in extract.notes)


# --- deletions -----------------------------------------------------------------------------------


@everywhere
def test_marked_rows_become_deletes(lab: Lab) -> None:
    """A mark gives one delete; an undelete that moves `updated_at` brings the row back."""
    lab.insert("notes", [note(1, 1), note(2, 2), note(3, 3, gone=4)])
    poll(lab, **SOFT)
    first = mirror(lab)
    change(lab, 1, gone=at(10))
    poll(lab, **SOFT)
    second = mirror(lab)
    change(lab, 1, gone=None, changed=at(20))
    poll(lab, **SOFT)
    poll(lab, **SOFT)

    assert {1: "note 1", 2: "note 2"} == first
    assert {2: "note 2"} == second
    assert {1: "note 1", 2: "note 2"} == mirror(lab)
    assert [(1, "update"), (2, "update"), (3, "delete"), (1, "delete"), (1, "update")] == changes(lab)


@everywhere
def test_no_two_changes_share_position_and_number(lab: Lab) -> None:
    """Rows of one stamp, in one window and in several, and two deletions that one diff finds."""
    lab.insert("notes", [note(number, 1) for number in range(7)])
    for _ in range(2):
        poll(lab, poll_batch_size=2, max_pages=1)  # each ends inside the tie
    poll(lab)
    lab.insert("notes", [note(20, 1), note(21, 1)])  # behind the last key, and with its stamp
    lab.sql("DELETE FROM notes WHERE id IN (0, 1)")
    poll(lab, **DIFF)
    lab.sql("DELETE FROM notes WHERE id IN (20, 21)")
    poll(lab, **DIFF)

    pairs = [(row["__pos"], row["__seq"]) for row in lab.rows("notes")]
    assert len(pairs) == len(set(pairs)) == 7 + 2 + 2 + 2
    assert {number: f"note {number}" for number in range(2, 7)} == mirror(lab)


@pytest.mark.parametrize("place", ["manifest", "cursor"])
def test_numbers_of_a_window_that_is_read_again_are_its_own(lab: Lab, place: str) -> None:
    """A run that died is replaced; what it had numbered meets nothing of the windows before and behind it."""
    lab.insert("notes", [note(number, 1) for number in range(6)])
    poll(lab, poll_batch_size=2, max_pages=1)
    lab.config(yaml.safe_dump(POLL | {"poll_batch_size": 2, "max_pages": 1}))
    died = processes.run("tests.faults.dying", str(lab.folder / "rivet.yaml"), place)
    assert died.returncode == DIED, died.stdout + died.stderr
    lab.insert("notes", [note(10, 1)])
    poll(lab)
    poll(lab)

    pairs = [(row["__pos"], row["__seq"]) for row in lab.rows("notes")]
    assert len(pairs) == len(set(pairs)) == 7


@everywhere
def test_mark_of_a_slower_clock_still_deletes(lab: Lab) -> None:
    """A mark stamped before the last update comes behind it all the same; on a tie the delete is last."""
    lab.insert("notes", [note(1, 10), note(2, 10)])
    poll(lab, **SOFT)

    change(lab, 1, gone=at(5))
    change(lab, 2, gone=at(10))
    poll(lab, **SOFT)

    assert {} == mirror(lab)


def test_marks_are_paged_with_ties(lab: Lab) -> None:
    """The second pass has a watermark of its own, stamp and key."""
    lab.insert("notes", [note(number, 1) for number in range(6)])
    poll(lab, **SOFT)
    lab.sql(f"UPDATE notes SET gone = {lab.literal(at(50))}")

    for _ in range(3):
        poll(lab, **SOFT, poll_batch_size=2, max_pages=1)

    assert [(number, "delete") for number in range(6)] == changes(lab)[6:]
    assert 12 == len(changes(lab))


@everywhere
def test_full_diff_finds_what_no_stamp_tells(lab: Lab) -> None:
    """Rows deleted for good go; a row that was missed, with an old stamp, comes; a second diff finds nothing."""
    lab.insert("notes", [note(number, number) for number in range(10)])
    poll(lab, **DIFF)
    lab.sql("DELETE FROM notes WHERE id IN (2, 3)")
    change(lab, 4, changed=at(4.5), note="missed")
    lab.insert("notes", [note(50, 0.5), note(60, 60)])
    poll(lab, **DIFF)
    found = len(changes(lab))
    poll(lab, **DIFF)
    poll(lab, **DIFF)

    numbers = [0, 1, 4, 5, 6, 7, 8, 9, 50, 60]
    expected = {number: "missed" if number == 4 else f"note {number}" for number in numbers}
    assert expected == mirror(lab)
    assert found == len(changes(lab)) == 10 + 5
    assert 1 == watermark(lab).diffs


def test_row_that_returns_with_its_old_stamp_is_found_again(lab: Lab) -> None:
    """Deleted, restored from a backup, deleted again: each diff comes behind the last one."""
    lab.insert("notes", [note(number, number) for number in range(4)])
    poll(lab, **DIFF)
    states = []
    for step in ("DELETE FROM notes WHERE id = 1", None, "DELETE FROM notes WHERE id = 1"):
        if step is None:
            lab.insert("notes", [note(1, 1)])
        else:
            lab.sql(step)
        poll(lab, **DIFF)
        states.append(sorted(mirror(lab)))  # type: ignore[type-var]

    assert [[0, 2, 3], [0, 1, 2, 3], [0, 2, 3]] == states


@pytest.mark.parametrize("kind", KEYS)
def test_full_diff_compares_keys_of_any_type(bare: Lab, kind: str) -> None:
    """The one row that is gone is found, and no other."""
    words, rows = KEYS[kind]
    names = [f"k{number}" for number in range(len(words))]
    types = bare.engine.types
    ddl = [f"{name} {types[word]} NOT NULL" for name, word in zip(names, words, strict=True)]
    bare.sql(f"CREATE TABLE notes ({', '.join(ddl)}, changed {types['instant']}, PRIMARY KEY ({', '.join(names)}))")
    rules = bare.engine.columns
    needed = dict(zip([*names, "changed"], [*words, "instant"], strict=True))
    bare.columns["notes"] = {name: rules[word] for name, word in needed.items() if word in rules}
    bare.insert("notes", [dict(zip(names, row, strict=True)) | {"changed": at(1)} for row in rows])
    poll(bare, **DIFF)
    gone = " AND ".join(f"{name} = {bare.literal(cell)}" for name, cell in zip(names, rows[1], strict=True))
    bare.sql(f"DELETE FROM notes WHERE {gone}")

    poll(bare, **DIFF)
    poll(bare, **DIFF)

    deleted = [tuple(row[name] for name in names) for row in bare.rows("notes") if row["__op"] == "delete"]
    assert [tuple(map(str, rows[1]))] == [tuple(map(str, cells)) for cells in deleted]
    assert len(rows) + 1 == len(bare.rows("notes"))


@pytest.mark.parametrize("left", [0, 4], ids=["none left", "too many gone"])
def test_full_diff_stops_before_it_empties_a_mirror(lab: Lab, left: int) -> None:
    """Nothing of the run is published, and the message says how to go on."""
    lab.insert("notes", [note(number, number) for number in range(10)])
    poll(lab, **DIFF)
    lab.sql(f"DELETE FROM notes WHERE id >= {left}")

    message = refused(lab, **DIFF)

    assert "stopped" in message
    assert "Nothing was published" in message
    assert list(range(10)) == lab.ids("notes")


def test_full_diff_runs_every_nth_time(lab: Lab) -> None:
    """Runs in between cost no comparison, and do not undo what the last one found."""
    every = {"delete_detection": {"type": "full_diff", "max_delete_ratio": 0.5, "every": 3}}
    lab.insert("notes", [note(number, number) for number in range(4)])
    poll(lab, **every)
    lab.sql("DELETE FROM notes WHERE id = 2")

    seen = []
    for _ in range(5):
        poll(lab, **every)
        seen.append(2 in mirror(lab))

    assert [True, False, False, False, False] == seen


def test_death_after_a_full_diff_was_published_repeats_nothing(lab: Lab) -> None:
    """The window of the run that died is replaced, and its finds are found again, once."""
    lab.insert("notes", [note(number, number) for number in range(10)])
    poll(lab, **DIFF)
    lab.sql("DELETE FROM notes WHERE id = 2")
    lab.config(yaml.safe_dump(POLL | DIFF))
    died = processes.run("tests.faults.dying", str(lab.folder / "rivet.yaml"), "cursor")
    assert died.returncode == DIED, died.stdout + died.stderr

    poll(lab, **DIFF)
    poll(lab, **DIFF)

    assert [2] == [number for number, op in changes(lab) if op == "delete"]
    assert 11 == len(changes(lab))


def test_transform_keeps_the_envelope(lab: Lab) -> None:
    """Steps shape the table's columns; operation and position were told before."""
    lab.insert("notes", [note(1, 1), note(2, 2, gone=3)])
    steps: Iterable[object] = [{"type": "keep", "columns": ["id", "note"]}]

    poll(lab, **SOFT, transforms=steps)

    assert [(1, "update"), (2, "delete")] == changes(lab)
    assert ["__op", "__pos", "__seq", "__ts", "__unchanged", "id", "note"] == list(lab.rows("notes")[0])
