"""Checkpoint files: what lies in a folder, what damage is refused, and deaths at every call to the system.

Cases of `connectors.md`, section 14, "Checkpoint", 7 and 8, and of `cdc.md`, section 14, row 13.
"""

from __future__ import annotations

import builtins
import errno
import io
import json
import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rivet_resources.errors import CheckpointUnusable, DiskFull, StateError
from rivet_resources.state.checkpoints import file_swap as checkpoint_place
from rivet_resources.state.checkpoints.files import FileCheckpoints
from rivet_resources.state.checkpoints.record import checksum
from rivet_resources.state.checkpoints.stores import checkpoint_rows, file_checkpoints
from tests.unit.state.test_checkpoints import KEY, at
from tests.unit.state.test_opening import ordinary_user


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The file of a store with two saves of one key."""
    path = tmp_path / "orders.ckpt"
    store = file_checkpoints(path)
    store.take(KEY)
    store.save(at("0/100"))
    store.save(at("0/200"))
    return path


def rewrite(path: Path, **fields: object) -> None:
    """Change fields of a record and sum it anew; None leaves a field out."""
    record = json.loads(path.read_text()) | fields
    record = {name: value for name, value in record.items() if value is not ...}
    if "checksum" not in fields:
        record["checksum"] = checksum(record)
    path.write_text(json.dumps(record))


# --- what lies there -----------------------------------------------------------------------------


def test_record_is_pretty_json_with_the_fields_of_the_design(path: Path):
    """One can read it, and every field of `connectors.md`, section 10, is there under its name."""
    content = path.read_text()
    record = json.loads(content)

    assert content.startswith('{\n  "version": 1,\n')
    assert list(record)[-1] == "checksum"
    assert set(record) == {
        "version", "key", "source_type", "position_type", "position", "sort_key", "timestamp", "transaction_id",
        "metadata", "generation", "source_identity", "pipeline", "run_id", "checksum",
    }  # fmt: skip
    assert record["checksum"] == checksum(record)
    assert record["checksum"].startswith("sha256:")


def test_file_name_is_exactly_the_file_and_the_one_before_is_kept(path: Path):
    """`checkpoint: state/orders.ckpt` names the record itself; nothing temporary stays."""
    assert sorted(os.listdir(path.parent)) == [
        "orders.ckpt",
        "orders.ckpt.generation",
        "orders.ckpt.lock",
        "orders.ckpt.prev",
    ]
    assert json.loads(path.read_text())["position"] == "0/200"
    assert json.loads(path.with_name("orders.ckpt.prev").read_text())["position"] == "0/100"


@pytest.mark.parametrize("exists", [True, False])
def test_folder_holds_one_file_per_key(tmp_path: Path, exists: bool):
    """A path with a slash at its end, or of a folder that exists, holds `<key>.json`."""
    folder = tmp_path / "deep" / "ckpt"
    if exists:
        folder.mkdir(parents=True)
    store = file_checkpoints(folder if exists else f"{folder}/")
    for key in (KEY, "a b/c".replace("/", ":")):
        store.take(key)
        store.save(at("0/1", key=key))

    assert {name for name in os.listdir(folder) if name.endswith(".json")} == {f"{KEY}.json", "a%20b%3Ac.json"}


def test_relative_path_stays_the_same_after_a_change_of_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The path means the folder in which the store was opened."""
    monkeypatch.chdir(tmp_path)
    store = file_checkpoints("orders.ckpt")
    monkeypatch.chdir("/")
    store.take(KEY)

    assert (tmp_path / "orders.ckpt.generation").exists()


def test_link_to_a_record_is_followed_and_not_replaced(path: Path, tmp_path: Path):
    """A path that leads elsewhere keeps leading there."""
    link = tmp_path / "link.ckpt"
    link.symlink_to(path)
    store = file_checkpoints(link)
    _, ours = store.take(KEY)
    store.save(at("0/300", ours))

    assert link.is_symlink()
    assert file_checkpoints(path).load(KEY).position == "0/300"


def test_unknown_fields_survive_a_rewrite(path: Path):
    """What another Rivet wrote beside ours is kept."""
    rewrite(path, later={"a": [1]})
    store = file_checkpoints(path)
    assert store.load(KEY) == at("0/200")
    store.save(at("0/300"))

    assert json.loads(path.read_text())["later"] == {"a": [1]}
    assert store.load(KEY) == at("0/300")


def test_record_of_the_original_is_readable_with_generation_0(tmp_path: Path):
    """It has no version, key, identity or sum; the next save makes it ours."""
    path = tmp_path / "orders.ckpt"
    original = {"source_type": "postgres", "position_type": "PostgresLsn", "position": "0/100", "timestamp": 17}
    path.write_text(json.dumps({**original, "transaction_id": None, "metadata": {"table": "users"}}))
    store = file_checkpoints(path)

    record, ours = store.take(KEY)
    assert (record.key, record.position, record.generation, record.metadata) == (KEY, "0/100", 0, {"table": "users"})
    assert ours == 1
    store.save(at("0/200", ours))
    assert store.load(KEY) == at("0/200", ours)


def test_record_put_back_without_its_generation_counts_by_its_own(path: Path):
    """A backup of the record alone is enough to go on, above the generation that wrote it."""
    path.with_name("orders.ckpt.generation").unlink()
    rewrite(path, generation=6)

    assert file_checkpoints(path).take(KEY)[1] == 7


def test_only_the_lock_and_the_fence_remain_of_a_deleted_record(path: Path):
    """Deleting removes the one before too; a reset keeps the record as the one before, and the audit."""
    file_checkpoints(path).delete(KEY)
    assert sorted(os.listdir(path.parent)) == ["orders.ckpt.generation", "orders.ckpt.lock"]

    store = file_checkpoints(path)
    _, ours = store.take(KEY)
    store.save(at("0/1", ours))
    store.reset(KEY, "why")
    assert sorted(os.listdir(path.parent)) == [
        "orders.ckpt.audit",
        "orders.ckpt.generation",
        "orders.ckpt.lock",
        "orders.ckpt.prev",
    ]


def test_what_killed_writers_left_is_ignored_and_removed_after_an_hour(path: Path):
    """Young ones may belong to a living writer."""
    old, young = (path.with_name(f".orders.ckpt.{word}.tmp") for word in ("old", "young"))
    for each in (old, young):
        each.write_text("{")
    os.utime(old, (0, time.time() - 3601))
    store = file_checkpoints(path)
    assert store.load(KEY) == at("0/200")
    store.take(KEY)

    assert (old.exists(), young.exists()) == (False, True)


# --- damage --------------------------------------------------------------------------------------


def cut(path: Path) -> None:
    """End the file in its middle."""
    path.write_bytes(path.read_bytes()[:200])


def become_folder(path: Path) -> None:
    """Put a folder where the record was."""
    path.unlink()
    path.mkdir()


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "garbage": (lambda path: path.write_bytes(b"\x00\xffgarbage"), "it is cut off or is not JSON"),
    "empty": (lambda path: path.write_bytes(b""), "it is empty"),
    "blank": (lambda path: path.write_bytes(b" \n"), "it is empty"),
    "cut": (cut, "it is cut off or is not JSON"),
    "list": (lambda path: path.write_text("[1]"), "it is not a JSON object"),
    "deep": (lambda path: path.write_text("[" * 100_000), "it is cut off or is not JSON"),
    "gone": (lambda path: path.unlink(), "it is gone, though a run has saved one"),
    "folder": (become_folder, "it cannot be read: Is a directory"),
    "newer": (lambda path: rewrite(path, version=2), "it has version 2, and this Rivet knows up to 1. Upgrade"),
    "no version, yet a sum": (
        lambda path: rewrite(path, version=..., checksum="sha256:0"),
        "its checksum does not fit",
    ),
    "version as text": (lambda path: rewrite(path, version="1"), "its version is not a number"),
    "no position": (lambda path: rewrite(path, position=...), "it lacks position"),
    "no sum": (lambda path: rewrite(path, checksum=...), "it lacks checksum"),
    "nothing but version": (lambda path: path.write_text('{"version": 1}'), "it lacks source_type, position_type, "),
    "wrong sum": (lambda path: rewrite(path, checksum="sha256:0"), "its checksum does not fit"),
    "edited": (
        lambda path: path.write_text(path.read_text().replace("0/200", "0/900")),
        "its checksum does not fit: it was changed by hand, or damaged",
    ),
    "other key": (lambda path: rewrite(path, key="lines"), "it is the record of key 'lines'"),
    "generation as text": (lambda path: rewrite(path, generation="7"), "generation is of the wrong kind"),
    "generation true": (lambda path: rewrite(path, generation=True), "generation is of the wrong kind"),
    "negative time": (lambda path: rewrite(path, timestamp=-1), "timestamp is of the wrong kind"),
    "metadata of numbers": (lambda path: rewrite(path, metadata={"a": 1}), "metadata is of the wrong kind"),
    "unknown type": (lambda path: rewrite(path, position_type="Mongo"), "position_type is none of"),
    "no lsn": (lambda path: rewrite(path, position="1/2/3"), "its position is no PostgresLsn of postgres"),
    "overflow": (lambda path: rewrite(path, position="0/1FFFFFFFF"), "its position is no PostgresLsn of postgres"),
    "fence cut": (lambda path: cut_fence(path, "{"), "it is cut off or is not JSON"),
    "fence empty": (lambda path: cut_fence(path, ""), "it is empty"),
    "fence newer": (lambda path: cut_fence(path, '{"version": 2}'), "it is not a generation of this version"),
    "fence of another": (
        lambda path: cut_fence(path, '{"version": 1, "key": "lines", "generation": 1, "saved": true}'),
        "it is the one of key 'lines'",
    ),
}


def cut_fence(path: Path, content: str) -> None:
    """Write another generation file."""
    path.with_name(f"{path.name}.generation").write_text(content)


@pytest.mark.parametrize("name", DAMAGE)
def test_damaged_record_is_refused_by_all_but_its_own_reset(tmp_path: Path, name: str):
    """The store opens, the key is flagged, other keys work, a run refuses and saves nothing; the message says where."""
    store = file_checkpoints(f"{tmp_path}/")
    for key in (KEY, "good"):
        store.take(key)
        store.save(at("0/200", key=key))
    damage, reason = DAMAGE[name]
    damage(tmp_path / f"{KEY}.json")
    before = {name: (tmp_path / name).read_bytes() for name in os.listdir(tmp_path) if (tmp_path / name).is_file()}

    for act in (store.take, store.load, lambda key: store.save(at("0/300", key=key))):
        with pytest.raises(CheckpointUnusable) as refused:
            act(KEY)
        assert reason in str(refused.value)
        assert str(tmp_path / f"{KEY}.json") in str(refused.value)
        assert not re.search(r"0/[1239]", str(refused.value))
    with pytest.raises(CheckpointUnusable, match=f"cannot be read: {KEY}"):
        store.all()
    assert dict(store.list()) == {"good": at("0/200", key="good"), KEY: None}
    assert reason in checkpoint_rows(store)[1]["corrupt"]
    assert before == {
        name: (tmp_path / name).read_bytes() for name in os.listdir(tmp_path) if (tmp_path / name).is_file()
    }

    store.reset(KEY, "damaged")
    record, ours = store.take(KEY)
    store.save(at("0/1", ours))
    assert record is None
    assert store.load(KEY) == at("0/1", ours)


def test_file_of_one_key_is_not_given_to_another(path: Path):
    """Two exports with one path would mix two logs, so even a reset under the wrong key leaves it alone."""
    store = file_checkpoints(path)
    for act in (store.take, store.load, store.delete, lambda key: store.reset(key, "x")):
        with pytest.raises(CheckpointUnusable, match=f"key '{KEY}'"):
            act("lines")

    assert store.load(KEY) == at("0/200")


def test_key_that_was_only_taken_keeps_its_file_too(tmp_path: Path):
    """The fence says whose the file is before there is a record."""
    store = file_checkpoints(tmp_path / "orders.ckpt")
    store.take(KEY)

    with pytest.raises(CheckpointUnusable, match=f"it is the one of key '{KEY}'"):
        store.take("lines")


def test_damaged_single_file_is_listed_under_its_own_name(path: Path):
    """Whose it is stands in its fence."""
    path.write_text("")

    assert file_checkpoints(path).list() == [(KEY, None)]


# --- the system refuses --------------------------------------------------------------------------


def test_folder_that_cannot_be_written_is_named(path: Path):
    """The message says what to do, and the record stays."""
    path.parent.chmod(0o755)
    with ordinary_user(), pytest.raises(StateError, match=r"orders\.ckpt cannot be written: Permission denied"):
        file_checkpoints(path).take(KEY)

    assert file_checkpoints(path).load(KEY) == at("0/200")


def test_disk_that_is_full_leaves_the_old_record(path: Path, monkeypatch: pytest.MonkeyPatch):
    """The save fails, may be tried again later, and nothing temporary stays."""

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    store = file_checkpoints(path)
    monkeypatch.setattr(checkpoint_place.os, "fsync", full)
    with pytest.raises(DiskFull, match=r"orders\.ckpt cannot be written: No space left"):
        store.save(at("0/300"))
    monkeypatch.undo()

    assert store.load(KEY) == at("0/200")
    assert [name for name in os.listdir(path.parent) if name.endswith(".tmp")] == []
    store.save(at("0/300"))


def test_file_system_without_hard_links_keeps_the_one_before(path: Path, monkeypatch: pytest.MonkeyPatch):
    """It is copied there."""

    def link(*_: object) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(checkpoint_place.os, "link", link)
    file_checkpoints(path).save(at("0/300"))

    assert json.loads(path.with_name("orders.ckpt.prev").read_text())["position"] == "0/200"


def test_save_reaches_the_disk_before_it_returns(path: Path, monkeypatch: pytest.MonkeyPatch):
    """The order is: content, fsync, rename, fsync of the folder."""
    done: list[str] = []
    for name in ("fsync", "replace"):
        original = getattr(os, name)

        def noted(*args: object, name: str = name, original: Callable[..., object] = original) -> object:
            is_folder = name == "fsync" and os.path.isdir(f"/proc/self/fd/{args[0]}")
            done.append("folder" if is_folder else name if name == "fsync" else f"{name} {Path(str(args[1])).name}")
            return original(*args)

        monkeypatch.setattr(checkpoint_place.os, name, noted)
    file_checkpoints(path).save(at("0/300"))

    assert done == ["replace orders.ckpt.prev", "fsync", "replace orders.ckpt", "folder"]


# --- deaths --------------------------------------------------------------------------------------

CALLS = ("open", "fsync", "replace", "link", "unlink", "close")
ACTS: dict[str, Callable[[FileCheckpoints], object]] = {
    "save": lambda store: store.save(at("0/300")),
    "take": lambda store: store.take(KEY),
    "reset": lambda store: store.reset(KEY, "why"),
    "delete": lambda store: store.delete(KEY),
}


def die_at(number: int) -> None:
    """Let this process die by SIGKILL before its so-many-th call that changes a file; a write dies amid its bytes."""
    left = iter(range(number - 1))

    def counted(name: str) -> Callable[..., object]:
        original = getattr(os, name)

        def call(*args: object, **kwargs: object) -> object:
            if next(left, None) is None:
                os.kill(os.getpid(), signal.SIGKILL)
            return original(*args, **kwargs)

        return call

    class Half(io.FileIO):
        def write(self, content: bytes) -> int:
            if next(left, None) is None:
                super().write(bytes(content)[: len(content) // 2])
                os.kill(os.getpid(), signal.SIGKILL)
            return super().write(content)

    for name in CALLS:
        setattr(os, name, counted(name))
    original = builtins.open
    builtins.open = lambda file, mode="r", **rest: (
        io.BufferedWriter(Half(file, mode)) if mode in ("wb", "ab") else original(file, mode, **rest)
    )


def deaths(path: Path, act: str, prepare: Callable[[], None]) -> Iterator[int]:
    """Yield once per place at which the act can die, then once when it gets through; each time on a new store."""
    number, code = 0, -signal.SIGKILL
    while code:
        number += 1
        prepare()
        child = os.fork()
        if child == 0:
            try:
                die_at(number)
                ACTS[act](FileCheckpoints(path))
                os._exit(0)
            finally:
                os._exit(1)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert code in (0, -signal.SIGKILL)
        yield code
    assert number > 5  # there were places to die at


def prepared(path: Path) -> Callable[[], None]:
    """Make a folder that holds two saves of one key."""

    def prepare() -> None:
        for name in os.listdir(path.parent):
            (path.parent / name).unlink()
        store = file_checkpoints(path)
        store.take(KEY)
        store.save(at("0/100"))
        store.save(at("0/200"))

    return prepare


@pytest.mark.faults
def test_killed_save_leaves_the_old_record_or_the_new_one(path: Path):
    """Wherever it dies, the store loads, the next run goes on and the old one before is whole."""
    seen = []
    for _ in deaths(path, "save", prepared(path)):
        record, ours = file_checkpoints(path).take(KEY)
        assert record in (at("0/200"), at("0/300"))
        assert json.loads(path.with_name("orders.ckpt.prev").read_text())["position"] in ("0/100", "0/200")
        file_checkpoints(path).save(at("0/300", ours))
        seen.append(record.position)

    assert (seen[0], seen[-1]) == ("0/200", "0/300")
    assert seen == sorted(seen)


@pytest.mark.faults
def test_killed_first_save_leaves_none_or_the_new_one(path: Path):
    """Before the first record there is nothing to fall back to, and nothing that blocks the next run."""

    def prepare() -> None:
        for name in os.listdir(path.parent):
            (path.parent / name).unlink()
        file_checkpoints(path).take(KEY)

    seen = []
    for _ in deaths(path, "save", prepare):
        record, ours = file_checkpoints(path).take(KEY)
        assert record in (None, at("0/300"))
        file_checkpoints(path).save(at("0/300", ours))
        seen.append(record is not None)

    assert (seen[0], seen[-1]) == (False, True)
    assert seen == sorted(seen)


@pytest.mark.faults
def test_killed_take_leaves_the_record_and_never_a_lower_generation(path: Path):
    """Whether or not the fence was raised, the next one to take is above every earlier one."""
    for code in deaths(path, "take", prepared(path)):
        assert file_checkpoints(path).load(KEY) == at("0/200")
        assert file_checkpoints(path).take(KEY)[1] in ((2, 3) if code else (3,))


@pytest.mark.faults
@pytest.mark.parametrize("act", ["reset", "delete"])
def test_killed_reset_forgets_or_keeps_and_can_be_repeated(path: Path, act: str):
    """A record half given up is still whole; the same command again ends it."""
    seen = []
    for _ in deaths(path, act, prepared(path)):
        record = file_checkpoints(path).load(KEY)
        assert record in (None, at("0/200"))
        if record is None and act == "reset":
            assert [entry.reason for entry in file_checkpoints(path).resets(KEY)] == ["why"]
        seen.append(record is None)
        store = FileCheckpoints(path)
        store.reset(KEY, "again") if act == "reset" else store.delete(KEY)
        assert store.take(KEY)[0] is None

    assert (seen[0], seen[-1]) == (False, True)
