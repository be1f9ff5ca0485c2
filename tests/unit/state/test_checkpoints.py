"""What every store of checkpoints keeps and refuses: one suite on SQLite, PostgreSQL, a folder and a single file.

Cases of `connectors.md`, section 14, "Checkpoint", 5, 6, 9 and 10, and of `cdc.md`, section 14, row 13.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import text

from rivet_resources.errors import CheckpointUnusable
from rivet_resources.state.checkpoints.stores import (
    Checkpoint,
    Checkpoints,
    checkpoint_rows,
    file_checkpoints,
    state_checkpoints,
)
from rivet_resources.state.database import Database
from rivet_resources.state.scopes import Scope
from rivet_resources.state.store import default_url, open_state
from tests import processes

KEY = "shop.public.users"
STORES = ["sqlite", "postgres", "folder", "file"]
MANY = ["sqlite", "postgres", "folder"]  # a single file holds one key

Open = Callable[[], Checkpoints]


def address(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where a store of this kind lies: a URL, a folder (ends in a slash) or a file."""
    if kind == "sqlite":
        return default_url(tmp_path)
    if kind == "postgres":
        return str(request.getfixturevalue("fresh_database"))
    return f"{tmp_path}/ckpt/" if kind == "folder" else f"{tmp_path}/ckpt/orders.ckpt"


def opened(place: str) -> Checkpoints:
    """Open the store that lies there."""
    return state_checkpoints(open_state(place)) if "://" in place else file_checkpoints(place)


@pytest.fixture(params=STORES)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where an empty store of each kind lies."""
    return address(request.param, request, tmp_path)


@pytest.fixture
def store(place: str) -> Checkpoints:
    """An empty store of each kind."""
    return opened(place)


@pytest.fixture(params=MANY)
def many(request: pytest.FixtureRequest, tmp_path: Path) -> Checkpoints:
    """An empty store of each kind that holds several keys."""
    return opened(address(request.param, request, tmp_path))


def at(position: str, generation: int = 1, **values: object) -> Checkpoint:
    """A checkpoint of a PostgreSQL log."""
    checkpoint = Checkpoint(
        key=KEY,
        source_type="postgres",
        position_type="PostgresLsn",
        position=position,
        sort_key=f"{int(position.split('/')[1], 16):016x}",
        metadata={"table": "users", "zone": 'Ω \n "'},
        generation=generation,
        source_identity="system_identifier:7",
        pipeline="users_to_lake",
        run_id="r1",
        timestamp=1753000000,
        transaction_id="771",
    )
    return replace(checkpoint, **values)


# --- what comes back -----------------------------------------------------------------------------


def test_checkpoint_comes_back_from_a_store_opened_anew(place: str):
    """Every field, metadata and transaction id included, is what was saved."""
    store = opened(place)
    assert store.take(KEY) == (None, 1)
    store.save(at("0/1234ABCD"))

    again = opened(place)
    assert again.load(KEY) == at("0/1234ABCD")
    assert again.take(KEY) == (at("0/1234ABCD"), 2)
    assert again.list() == [(KEY, at("0/1234ABCD"))]
    assert again.all() == {KEY: at("0/1234ABCD")}


def test_key_that_was_never_saved_has_no_checkpoint(store: Checkpoints):
    """Taking a key is no position: nothing is listed, loaded, or an error."""
    assert store.load(KEY) is None
    store.take(KEY)

    assert store.load(KEY) is None
    assert store.list() == []
    assert store.all() == {}
    assert store.take(KEY) == (None, 2)


def test_save_without_a_time_is_stamped_with_its_own(store: Checkpoints):
    """A drain leaves the time to the store."""
    store.take(KEY)
    before = int(time.time())
    store.save(at("0/1", timestamp=0))

    assert before <= store.load(KEY).timestamp <= time.time()
    assert store.load(KEY).age() < 60


def test_age_is_never_negative():
    """Clocks of two hosts differ; a checkpoint from the future is new."""
    now = int(time.time())

    assert 3599 <= at("0/1", timestamp=now - 3600).age() <= 3601
    assert at("0/1", timestamp=now + 3600).age() == 0


def test_copies_with_another_text_leave_the_rest():
    """`with_metadata` adds over what is there; `with_transaction_id` replaces one field."""
    changed = at("0/1").with_metadata(table="t", more="x").with_transaction_id(None)

    assert changed == at("0/1", metadata={"table": "t", "zone": 'Ω \n "', "more": "x"}, transaction_id=None)


@pytest.mark.parametrize("key", ["a", "ab.c", "a b", "%41", "Ω-é", "x" * 200, ".hidden", 'a:b*c?<>|"', "a.json.prev"])
def test_unusual_key_is_kept_apart_and_listed_as_it_is(many: Checkpoints, key: str):
    """Whatever a key looks like, it comes back under exactly its own name."""
    for each in (key, "A", "%2541"):
        many.take(each)
        many.save(at("0/1", key=each))

    assert {name for name, _ in many.list()} == {key, "A", "%2541"}
    assert many.load(key) == at("0/1", key=key)


@pytest.mark.parametrize("act", ["save", "load", "delete", "take", "reset", "resets"])
def test_key_that_cannot_name_a_file_is_refused_everywhere(store: Checkpoints, act: str):
    """Saving, loading and deleting refuse alike, so no store holds what another cannot."""
    for key in ("", "foo/bar", "foo\\bar", "../x", ".", "..", "a\0b", "a\nb", "x" * 201, "Ω" * 101):
        arguments = {"save": [at("0/1", key=key)], "reset": [key, "why"]}.get(act, [key])
        with pytest.raises(CheckpointUnusable, match=r"Checkpoint key .* is not allowed"):
            getattr(store, act)(*arguments)


# --- what may follow -----------------------------------------------------------------------------


def test_equal_position_is_saved_again(store: Checkpoints):
    """A run that died after its save does the same again."""
    store.take(KEY)
    store.save(at("0/FF"))
    store.save(at("0/FF", run_id="r2"))
    store.save(at("0/100", run_id="r3"))

    assert store.load(KEY) == at("0/100", run_id="r3")


def test_position_behind_the_stored_one_is_refused(store: Checkpoints):
    """Also where the text would sort the other way; the stored one stays."""
    store.take(KEY)
    store.save(at("0/100"))
    with pytest.raises(CheckpointUnusable, match="lies behind the stored one"):
        store.save(at("0/FF"))

    assert store.load(KEY) == at("0/100")


def test_custom_position_is_ordered_by_the_key_of_the_log(store: Checkpoints):
    """A type without an order of its own has the sort key; without one, only the generation rules."""
    custom = replace(at("0/1"), position_type="Custom", position="seq:10", sort_key="b", source_type="datagen")
    store.take(KEY)
    store.save(custom)
    with pytest.raises(CheckpointUnusable, match="lies behind"):
        store.save(replace(custom, position="seq:9", sort_key="a"))
    store.save(replace(custom, position="seq:8", sort_key=""))

    assert store.load(KEY).position == "seq:8"


def test_change_of_type_is_ordered_by_the_key_of_the_log(store: Checkpoints):
    """A server that turns to transaction ids keeps its place."""
    binlog = replace(at("0/1"), source_type="mysql", position_type="MysqlBinlog", position="b.000002:4", sort_key="2")
    ids = replace(binlog, position_type="Gtid", position="3e11fa47-71ca-11e1-9e33-c80aa9429562:1-5", sort_key="3")
    store.take(KEY)
    store.save(binlog)
    with pytest.raises(CheckpointUnusable, match="lies behind"):
        store.save(replace(ids, sort_key="1"))
    store.save(ids)

    assert store.load(KEY) == ids


def test_position_of_another_source_is_refused(store: Checkpoints):
    """A restored or replaced server has places of the same names that mean something else."""
    store.take(KEY)
    store.save(at("0/100"))
    with pytest.raises(CheckpointUnusable, match="belongs to another source"):
        store.save(at("0/200", source_identity="system_identifier:8"))

    assert store.load(KEY) == at("0/100")


@pytest.mark.parametrize(
    "wrong",
    [
        {"position": "0/1FFFFFFFF"},
        {"position": "here"},
        {"position_type": "Gtid"},
        {"position_type": "Mongo"},
        {"position_type": "Custom", "position": ""},
    ],
)
def test_text_that_is_no_position_is_never_stored(store: Checkpoints, wrong: dict[str, str]):
    """What could not be read back is refused when it is saved, without showing it."""
    store.take(KEY)
    with pytest.raises(CheckpointUnusable, match=r"its position is no|position_type is none of") as refused:
        store.save(replace(at("0/1"), **wrong))

    assert store.load(KEY) is None
    assert "here" not in str(refused.value).replace("there", "")


# --- generations ---------------------------------------------------------------------------------


def test_run_that_was_taken_over_can_save_no_more(store: Checkpoints):
    """A zombie is fenced from the moment another takes the key, not only from its first save."""
    _, old = store.take(KEY)
    store.save(at("0/1", old))
    _, new = store.take(KEY)
    with pytest.raises(CheckpointUnusable, match="another run took it over"):
        store.save(at("0/9", old))

    assert new > old
    assert store.load(KEY) == at("0/1", old)
    store.save(at("0/2", new))
    with pytest.raises(CheckpointUnusable, match="another run took it over"):
        store.save(at("0/9", old))
    assert store.load(KEY) == at("0/2", new)


def test_run_is_fenced_before_anybody_saved(store: Checkpoints):
    """The generation is remembered without a position too."""
    _, old = store.take(KEY)
    store.take(KEY)

    with pytest.raises(CheckpointUnusable, match="another run took it over"):
        store.save(at("0/1", old))
    assert store.load(KEY) is None


def test_generation_that_nobody_took_saves_nothing(store: Checkpoints):
    """A store that was emptied under a run does not take its position for a first one."""
    with pytest.raises(CheckpointUnusable, match="was removed or replaced while this run had it"):
        store.save(at("0/1", 5))

    assert store.load(KEY) is None


@pytest.mark.parametrize("act", ["delete", "reset"])
def test_forgotten_checkpoint_stays_forgotten(store: Checkpoints, act: str):
    """The run that had the key may not bring it back; the next one starts without a position, above it."""
    _, ours = store.take(KEY)
    store.save(at("0/100", ours))
    store.delete(KEY) if act == "delete" else store.reset(KEY, "moved to a new server")
    with pytest.raises(CheckpointUnusable, match="another run took it over"):
        store.save(at("0/200", ours))

    assert store.load(KEY) is None
    assert store.list() == []
    none, later = store.take(KEY)
    assert none is None
    assert later > ours + 1
    store.save(at("0/1", later, source_identity="system_identifier:8"))
    assert store.load(KEY).position == "0/1"


def test_deleting_what_is_not_there_succeeds(store: Checkpoints):
    """Also twice, and of a key that was only taken."""
    store.delete(KEY)
    store.delete(KEY)
    store.take(KEY)
    store.delete(KEY)

    assert store.load(KEY) is None


def test_reset_is_noted_with_its_reason(place: str):
    """The audit tells what was given up, when and why; a delete leaves no entry."""
    store = opened(place)
    store.take(KEY)
    store.save(at("0/100"))
    before = int(time.time())
    store.reset(KEY, "restored the server")
    store.reset(KEY, "again")
    store.delete(KEY)

    first, second = opened(place).resets(KEY)
    assert (first.key, first.reason, first.position, first.generation) == (KEY, "restored the server", "0/100", 2)
    assert (second.reason, second.position, second.generation) == ("again", None, 3)
    assert before <= first.timestamp <= second.timestamp <= time.time()


# --- threads and processes -----------------------------------------------------------------------


def test_of_many_threads_that_take_a_key_each_gets_its_own_generation(store: Checkpoints):
    """No generation is given twice, and only the highest may save."""
    with ThreadPoolExecutor(8) as pool:
        taken = sorted(generation for _, generation in pool.map(lambda _: store.take(KEY), range(40)))

    def save(generation: int) -> bool:
        try:
            store.save(at(f"0/{generation:X}", generation))
        except CheckpointUnusable:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert [generation for generation in taken if pool.submit(save, generation).result()] == [40]
    assert taken == list(range(1, 41))


RACE = """
import sys
from pathlib import Path
from rivet_resources.errors import CheckpointUnusable
from rivet_resources.state.checkpoints.stores import Checkpoint, file_checkpoints, state_checkpoints
from rivet_resources.state.store import open_state
place, key, name = sys.argv[1:]
store = state_checkpoints(open_state(place)) if "://" in place else file_checkpoints(place)
print("ready", flush=True)
sys.stdin.readline()
wins = []
for number in range(15):
    record, ours = store.take(key)
    at = int(record.position.split("/")[1], 16) + 1 if record else 1
    next_ = Checkpoint(key=key, source_type="postgres", position_type="PostgresLsn", position=f"0/{at:X}",
                       generation=ours, run_id=name)
    try:
        store.save(next_)
        wins.append(at)
    except CheckpointUnusable:
        pass
print(wins, flush=True)
"""


@pytest.mark.xdist_group("processes")  # one worker starts one fork server
def test_of_processes_that_race_each_step_is_won_once(place: str):
    """A counter that three processes push up through take and save never skips and never repeats."""
    opened(place).take(KEY)
    children = [processes.Process("-c", RACE, place, KEY, f"r{number}") for number in range(3)]
    for child in children:
        assert child.stdout.readline() == "ready\n"
    for child in children:
        child.stdin.write("go\n")
        child.stdin.flush()
    wins = [json.loads(child.communicate(timeout=120)[0]) for child in children]

    last = int(opened(place).load(KEY).position.split("/")[1], 16)
    assert sorted(step for steps in wins for step in steps) == list(range(1, last + 1))


def test_reader_amid_writers_sees_whole_records_only(store: Checkpoints):
    """Loading never meets a half-written or a missing record."""
    _, ours = store.take(KEY)
    store.save(at("0/1", ours))
    ended = threading.Event()

    def write() -> None:
        for number in range(2, 60):
            store.save(at(f"0/{number:X}", ours))
        ended.set()

    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(write)
        seen = []
        while not ended.is_set() and not writing.done():
            seen.append(int(store.load(KEY).position.split("/")[1], 16))
        writing.result()

    assert seen == sorted(seen)
    assert store.load(KEY).position == "0/3B"


# --- the state store's own -----------------------------------------------------------------------


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """An empty state store in each database."""
    return address(request.param, request, tmp_path)


def execute(url: str, statement: str) -> None:
    """Change a row behind the store's back."""
    database = Database(url)
    with database.write() as connection:
        connection.execute(text(statement))
    database.close()


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        ("position = '0/200'", "its checksum does not fit"),
        ("saved_generation = 9", "its checksum does not fit"),
        ("version = 2", "it has version 2, and this Rivet knows up to 1"),
        ("version = NULL", "its version is not a number"),
        ("checksum = NULL", "its checksum does not fit"),
        ("source_identity = NULL", "source_identity is of the wrong kind"),
        ("metadata = '{\"table\"'", "it is cut off or is not JSON"),
        ("metadata = NULL", "it is empty"),
        ("checkpoint_key = 'other'", "its checksum does not fit"),
    ],
)
def test_row_that_was_damaged_is_refused_and_the_others_work(url: str, damage: str, reason: str):
    """The run refuses and keeps its generation as it was; the list shows which key it is; a reset gives it up."""
    store = opened(url)
    for key in (KEY, "good"):
        store.take(key)
        store.save(at("0/100", key=key))
    execute(url, f"UPDATE checkpoint SET {damage} WHERE checkpoint_key = '{KEY}'")
    key = "other" if "other" in damage else KEY
    for act in (store.take, store.load):
        with pytest.raises(CheckpointUnusable, match=reason):
            act(key)
    with pytest.raises(CheckpointUnusable, match=f"cannot be read: {key}"):
        store.all()
    with pytest.raises(CheckpointUnusable, match=reason):
        store.save(at("0/300", key=key))

    assert dict(store.list()) == {key: None, "good": at("0/100", key="good")}
    assert store.load("good") == at("0/100", key="good")
    store.reset(key, "damaged")
    assert store.take(key) == (None, 3)


def test_unknown_fields_of_a_row_survive(url: str):
    """What another Rivet wrote beside ours is kept, and summed."""
    from rivet_resources.state.checkpoints.record import checksum, pack

    store = opened(url)
    store.take(KEY)
    store.save(at("0/1"))
    summed = checksum({**pack(at("0/1")), "later": [1, {"a": "b"}]})
    execute(url, f"""UPDATE checkpoint SET unknown = '{{"later": [1, {{"a": "b"}}]}}', checksum = '{summed}'""")
    assert store.load(KEY) == at("0/1")
    store.save(at("0/2"))

    database = Database(url)
    with database.read() as connection:
        kept = connection.execute(text("SELECT unknown FROM checkpoint")).scalar_one()
    assert json.loads(kept) == {"later": [1, {"a": "b"}]}
    assert store.load(KEY) == at("0/2")


def test_reset_of_an_export_leaves_its_checkpoint_alone(url: str):
    """A cursor can be read again from the manifests; a log's position cannot, so nothing but its own reset drops it."""
    state = open_state(url)
    store = state_checkpoints(state)
    store.take(KEY)
    store.save(at("0/1"))
    state.reset(KEY)
    state.rebuild(KEY, [])

    assert store.load(KEY) == at("0/1")
    assert state.exports() == []
    state.close()


# --- rows to print -------------------------------------------------------------------------------


def test_rows_show_position_age_and_what_cannot_be_used(many: Checkpoints):
    """One row per key, sorted; a custom position may hold a row's values and is not shown."""
    now = int(time.time())
    for key, values in {"b": {}, "a": {"position_type": "Custom", "position": "jane@example.com"}}.items():
        many.take(key)
        many.save(replace(at("0/100", key=key, timestamp=now - 60), **values))

    custom, plain = checkpoint_rows(many)
    assert (custom["key"], custom["position"], custom["corrupt"]) == ("a", "(custom)", None)
    assert 60 <= plain.pop("age_seconds") < 120
    assert plain == {
        "key": "b",
        "source": "postgres",
        "position": "0/100",
        "generation": 1,
        "run_id": "r1",
        "corrupt": None,
    }


# --- projects ------------------------------------------------------------------------------------


def of_project(url: str, project: str) -> Checkpoints:
    """Open the checkpoints of a project in a state store."""
    return state_checkpoints(open_state(url).of(Scope(project)))


def test_projects_of_one_state_store_have_each_their_own_checkpoints(tmp_path: Path):
    """The same key is another row for each; lists, resets and generations are apart."""
    url = f"sqlite:///{tmp_path}/state.db"
    one, two, none = (of_project(url, project) for project in ("one", "two/x", ""))
    for store, position in ((one, "0/1"), (two, "0/2"), (none, "0/3")):
        store.take(KEY)
        store.save(at(position))
    two.reset(KEY, "on purpose")

    assert ["0/1", None, "0/3"] == [(found := store.load(KEY)) and found.position for store in (one, two, none)]
    assert [[KEY], [], [KEY]] == [[key for key, _ in store.list()] for store in (one, two, none)]
    assert [0, 1, 0] == [len(store.resets(KEY)) for store in (one, two, none)]


def test_checkpoint_of_before_is_taken_over_by_the_project_of_its_source(tmp_path: Path):
    """Another source of the same key leaves it; who has one of its own already keeps that."""
    url = f"sqlite:///{tmp_path}/state.db"
    before = open_state(url).checkpoints()
    before.take(KEY)
    before.save(at("0/1"))
    stranger, owner = of_project(url, "stranger"), of_project(url, "owner")

    stranger.adopt(KEY, "system_identifier:8")
    assert (None, 1) == stranger.take(KEY)
    stranger.adopt(KEY, "system_identifier:7")
    owner.adopt(KEY, "system_identifier:7")
    owner.adopt(KEY, "system_identifier:7")

    assert (at("0/1"), 2) == owner.take(KEY)
    assert [None, None] == [stranger.load(KEY), before.load(KEY)]
