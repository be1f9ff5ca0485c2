"""Checkpoints that are gone, empty, cut, of another source or older than what was committed, seen from outside.

Belongs here: what a drain does about them. Not here: what a store does (`unit/test_checkpoint*.py`).
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from rivet_resources.errors import CheckpointUnusable, LogSetup, PositionLost, WindowConflict
from tests.faults.shop import Shop, mysql_shop, postgres_shop

pytestmark = [pytest.mark.faults, pytest.mark.matrix]

ANEW = "rivet state reset"


@pytest.fixture(params=["postgres", "mariadb"])
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shop]:
    """A shop that keeps its position in a file; drained twice, and written to since."""
    settings = ", checkpoint: orders.ckpt"
    if request.param == "postgres":
        with postgres_shop(request.getfixturevalue("fresh_database"), tmp_path, settings=settings) as made:
            yield begun(made)
    else:
        yield begun(mysql_shop(request.getfixturevalue("fresh_mariadb"), tmp_path, settings=settings))


def begun(shop: Shop) -> Shop:
    shop.write()
    shop.drain()
    shop.write()
    shop.drain()
    shop.write()
    return shop


def drop_slot(shop: Shop) -> None:
    if shop.engine == "postgres":
        shop.run("SELECT pg_drop_replication_slot('{slot}')")


DAMAGES: dict[str, Callable[[Path], object]] = {
    "gone": lambda file: file.unlink(),
    "empty": lambda file: file.write_bytes(b""),
    "cut": lambda file: file.write_bytes(file.read_bytes()[:200]),
    "garbage": lambda file: file.write_bytes(b"\0" * 300),
    "edited": lambda file: file.write_text(file.read_text().replace('"generation": ', '"generation": 1')),
    "newer": lambda file: file.write_text(file.read_text().replace('"version": ', '"version": 9')),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_file_is_refused_and_the_right_one_goes_on(shop: Shop, damage: str) -> None:
    """Never from now on, never from the beginning: put back, it goes on where it was; given up, it begins anew."""
    file = shop.folder / "orders.ckpt"
    kept = file.read_bytes()
    account, seen = shop.account(), shop.seen()
    DAMAGES[damage](file)
    for _ in range(2):
        with pytest.raises(CheckpointUnusable, match=r"orders\.ckpt cannot be used") as failure:
            shop.drain()
        assert damage == "newer" or ANEW in str(failure.value)
    assert (account, seen) == (shop.account(), shop.seen())
    file.write_bytes(kept)
    shop.drain()
    shop.must_hold()

    DAMAGES[damage](file)
    drop_slot(shop)
    shop.give_up()
    shop.drain()
    shop.must_hold()


def test_everything_kept_beside_the_config_is_gone(shop: Shop) -> None:
    """State store, checkpoint and fence: what is published proves that there was a position."""
    account, seen = shop.account(), shop.seen()
    forget_all(shop)
    for _ in range(2):  # a refusal must not pave the way for the next run
        with pytest.raises(CheckpointUnusable, match="no checkpoint") as failure:
            shop.drain()
        assert ANEW in str(failure.value)
    assert (account, seen) == (shop.account(), shop.seen())

    drop_slot(shop)
    shop.give_up()
    shop.drain()
    shop.must_hold()
    shop.write()
    shop.drain()
    shop.must_hold()


@pytest.mark.parametrize("shop", ["postgres"], indirect=True)  # a binary log keeps no account of its readers
def test_lost_position_of_a_slot_that_published_nowhere_is_refused(shop: Shop) -> None:
    """With the destination gone as well, the slot itself says that somebody began."""
    forget_all(shop)
    shutil.rmtree(shop.folder / "lake")
    account = shop.account()
    with pytest.raises(LogSetup, match=r"is there already.* no checkpoint.*pg_drop_replication_slot"):
        shop.drain()
    assert account == shop.account()


def forget_all(shop: Shop) -> None:
    """Remove what lies beside the config, but for the lake."""
    for path in shop.folder.iterdir():
        if path.name not in ("rivet.yaml", "lake"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def test_checkpoint_of_another_export_is_refused(shop: Shop) -> None:
    """Two exports that were given one file."""
    text = shop.config.read_text()
    shop.config.write_text(text.replace("name: orders", "name: other"))
    with pytest.raises(CheckpointUnusable, match="Give each its own path"):
        shop.drain()
    shop.config.write_text(text)
    shop.drain()
    shop.must_hold()


def test_checkpoint_of_another_source_is_refused(shop: Shop) -> None:
    """The address leads to another server now, with a checkpoint whose sum fits."""
    store, key = shop.checkpoints()
    stored, generation = store.take(key)
    assert stored is not None
    shop.give_up()
    identity = stored.source_identity + "7"
    _, generation = store.take(key)
    store.save(replace(stored, source_identity=identity, generation=generation))
    with shop.refused(CheckpointUnusable, "is of source", "Point the source back", ANEW):
        shop.drain()


def test_restored_backup_is_refused_or_read_again(shop: Shop) -> None:
    """An older record beside a newer fence: the slot is past it; a binary log gives it all again, shown once."""
    older = shop.folder / "backup.ckpt"
    shutil.copyfile(shop.folder / "orders.ckpt", older)
    shop.drain()
    shop.must_hold()
    shop.write()
    shutil.copyfile(older, shop.folder / "orders.ckpt")
    if shop.engine == "postgres":
        with shop.refused(PositionLost, "someone else read from it", "initial: snapshot"):
            shop.drain()
        drop_slot(shop)
        shop.give_up()
    shop.drain()
    shop.must_hold()


def test_checkpoint_from_before_a_reset_shows_no_change_twice(shop: Shop) -> None:
    """Its window would stand beside those of the newer chain, which begins behind it."""
    older = shop.folder / "backup.ckpt"
    shutil.copyfile(shop.folder / "orders.ckpt", older)
    shop.write()
    if shop.engine == "postgres":
        drop_slot(shop)
    shop.give_up()
    shop.drain()
    shop.write()
    shop.drain()
    newer = shop.folder / "newer.ckpt"
    shutil.copyfile(shop.folder / "orders.ckpt", newer)
    shutil.copyfile(older, shop.folder / "orders.ckpt")
    shop.write()
    # A slot knows how far it was read.
    error, words = (PositionLost, "someone else read") if shop.engine == "postgres" else (WindowConflict, "began anew")
    with shop.refused(error, words, "`rivet state reset"):
        shop.drain()
    shutil.copyfile(newer, shop.folder / "orders.ckpt")
    shop.drain()
    shop.must_hold()


def test_run_that_was_believed_dead_saves_no_more(shop: Shop) -> None:
    """An older generation: another run took the checkpoint meanwhile; nothing is acknowledged."""
    account = shop.account()

    def taken() -> None:
        store, key = shop.checkpoints()
        store.take(key)

    with pytest.raises(CheckpointUnusable, match="another run took it over"):
        shop.at("checkpoint", taken)
    assert account == shop.account()
    shop.drain()
    shop.must_hold()
