"""A log of changes that was compacted or cut off makes the same mirror and the same history, and keeps its order."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from rivet_resources.commit.manifest import current_manifests, manifest_paths, read_manifests
from rivet_resources.commit.publish import publish
from rivet_resources.contracts.destination import Root
from rivet_resources.contracts.retention import Retention
from rivet_resources.destinations.local import Local
from rivet_resources.prove.validate import validate
from rivet_resources.state.store import open_state
from rivet_resources.tables.history import stage_history
from rivet_resources.tables.mirror import stage_mirror
from rivet_resources.upkeep.compact import CompactSite, compact
from rivet_resources.upkeep.plan import CompactPolicy, in_order, plan_joins
from rivet_resources.upkeep.retain import outdated_windows
from rivet_resources.upkeep.sweep import sweep_retired
from rivet_resources.write.formats.parquet import Parquet
from tests.applying import Lake, Shop, position, run_id

STAGES = {"mirror": stage_mirror, "history": stage_history}


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """An empty folder and a state store."""
    return Lake(Local(type="local", path=str(tmp_path / "lake")), open_state(f"sqlite:///{tmp_path}/state.db"))


def apply(lake: Lake, name: str, spark: Any) -> None:
    """Make the next version of a mirror or history, if there is anything new."""
    derived = lake.derived(name)
    staged = STAGES[name](derived, spark=spark)
    if staged is not None:
        publish(staged, root=derived.root, state=lake.state)


def joined(lake: Lake) -> int:
    """Join all windows that can be, and remove what they replace; how many windows were joined."""
    root, windows = lake.changes, 0
    there = {each.entry for each in read_manifests(root, manifest_paths(root))}
    for join in plan_joins(current_manifests(root), CompactPolicy(1 << 28, 2, datetime.now(UTC))):
        site = CompactSite(
            root, lake.destination, Parquet(), run_id(lake.export), datetime.now(UTC), prove_lease=lambda: None
        )  # fmt: skip
        compact(join, site, there=there)
        windows += len(join.windows)
    sweep_retired(root, read_manifests(root, manifest_paths(root)), living=())
    return windows


def drained(lake: Lake, shop: Shop, begin: int, end: int) -> None:
    """Publish a window for each transaction."""
    for number in range(begin, end):
        lake.drain(shop.log[number].changes, high=position(number + 2))


def log_of(root: Root) -> list[tuple[Any, ...]]:
    """Read the log as the chain of windows and the order of parts have it."""
    windows = in_order(current_manifests(root))
    tables = [pq.read_table(root.open(part.path)) for each in windows for part in each.parts]
    return [(row["__pos"], row["__seq"]) for table in tables for row in table.to_pylist()]


@pytest.mark.spark
@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(1, marks=pytest.mark.wide),
        pytest.param(2, marks=pytest.mark.matrix),
        pytest.param(3, marks=pytest.mark.matrix),
    ],
)
def test_mirror_and_history_are_those_of_the_log_whenever_it_was_compacted(
    lake: Lake, seed: int, spark_runtime: Any
) -> None:
    """Joined windows reach over the position that a version holds: what it has is passed over, the rest applied."""
    shop = Shop.lived(seed)
    lake.copy(shop.copied.values())
    drained(lake, shop, 0, 5)
    apply(lake, "mirror", spark_runtime)
    drained(lake, shop, 5, 12)

    windows = joined(lake)
    for name in STAGES:
        apply(lake, name, spark_runtime)

    assert 11 == windows  # all but the first copy and the newest
    assert Counter(shop.states()) == Counter(lake.rows("mirror"))
    assert Counter(shop.versions()) == Counter(lake.rows("history"))


def test_changes_stay_in_the_order_of_their_log(lake: Lake) -> None:
    """Row for row the log is as it was, proven, and a window that is drained next follows it."""
    shop = Shop.lived(5)
    lake.copy(shop.copied.values())
    drained(lake, shop, 0, 11)
    before = log_of(lake.changes)

    joined(lake)
    after = log_of(lake.changes)
    drained(lake, shop, 11, 12)

    assert before == after
    assert () == validate(lake.changes, export=lake.export).all_flaws
    assert 4 == len(current_manifests(lake.changes))  # the copy, the joined one, two at the end


def test_changes_that_a_mirror_has_not_applied_are_never_dropped(lake: Lake) -> None:
    """However old they are; without any version nothing goes."""
    shop = Shop.lived(7)
    lake.copy(shop.copied.values())
    drained(lake, shop, 0, 8)
    late = datetime.now(UTC) + timedelta(days=999)

    def dropped(applied: str | None) -> list[str | None]:
        found = outdated_windows(
            current_manifests(lake.changes), Retention(age=timedelta(days=1)), now=late, there=(), applied=applied
        )
        return [each.cursor.high for each in found if each.cursor]

    assert [] == dropped("")
    assert [position(1), position(2), position(3)] == dropped(position(3))
    assert [position(each) for each in range(1, 9)] == dropped(None)  # the last one holds the position
