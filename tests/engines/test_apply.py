"""Mirror and history made by Spark from committed windows, against a table that knows its own past."""

from __future__ import annotations

import os
import time as time_
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rivet_resources.commit.manifest import Manifest, current_manifests
from rivet_resources.commit.publish import publish
from rivet_resources.commit.reader import read_parts
from rivet_resources.contracts.change_log import change_schema
from rivet_resources.contracts.extract import Staged
from rivet_resources.contracts.settings import Spark
from rivet_resources.contracts.types import JSON, UUID
from rivet_resources.destinations.s3 import S3
from rivet_resources.errors import KeyShared, ManifestUnreadable, UnknownColumn, UnsupportedColumn, WindowConflict
from rivet_resources.read.executor import TaskFailed
from rivet_resources.shape.change_envelope import as_inserts
from rivet_resources.spark.runtime import SparkRuntime
from rivet_resources.state.store import open_state
from rivet_resources.tables.history import stage_history
from rivet_resources.tables.mirror import stage_mirror
from tests.applying import KEY, TABLE, Change, Lake, Shop, position
from tests.fakes import FolderDestination, FolderRoot
from tests.servers.postgres import ObjectStore

pytestmark = pytest.mark.spark

STAGES: dict[str, Callable[..., Staged | None]] = {"mirror": stage_mirror, "history": stage_history}
RANDOM = settings(
    max_examples=2, deadline=None, derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)  # fmt: skip


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """An empty folder and a state store."""
    return Lake.at(tmp_path / "lake", open_state(f"sqlite:///{tmp_path}/state.db"))


def apply(lake: Lake, name: str, spark: Any, **more: Any) -> Manifest | None:
    """Stage and publish the next version; None when there is nothing new."""
    derived = lake.derived(name, **more)
    staged = STAGES[name](derived, spark=spark)
    return publish(staged, root=derived.root, state=lake.state) if staged else None


def row(id_: int | None, area: str | None = "n", note: str | None = None) -> dict[str, Any]:
    """Make a row of TABLE."""
    return {"id": id_, "area": area, "note": note, "paid": None}


def change(op: str, number: int, cells: dict[str, Any], *, seq: int = 1, unchanged: list[str] | None = None) -> Change:
    """Make a change whose time nobody knows."""
    return {"__op": op, "__pos": position(number), "__seq": seq, "__ts": None, "__unchanged": unchanged, **cells}


def ids(lake: Lake) -> list[Any]:
    """Read the keys' first column of the mirror."""
    return sorted(one[0] for one in lake.rows("mirror"))


# --- what it holds -------------------------------------------------------------------------------


@pytest.mark.rare
@RANDOM
@given(seed=st.integers(0, 10**6), cuts=st.sets(st.integers(1, 11), max_size=2))
def test_random_cuts_give_what_the_table_is_and_was(
    seed: int, cuts: set[int], tmp_path: Path, spark_runtime: Any
) -> None:
    """However the log is cut into windows, truncates and all, and whatever comes twice, even late, nothing is off."""
    folder = tmp_path / uuid.uuid4().hex
    lake = Lake.at(folder, open_state(f"sqlite:///{folder}.db"))
    shop = Shop.lived(seed)
    lake.copy(shop.copied.values())
    begin = 0
    for end in sorted({*cuts, len(shop.log)}):
        changes = [one for part in shop.log[begin:end] for one in part.changes]
        late = [one for part in shop.log[:begin] for one in part.changes][-5:]
        disorder = changes + changes[-3:] + late
        shop.random.shuffle(disorder)
        lake.drain(disorder, high=position(end + 1), pieces=2)
        begin = end
        for name in STAGES:
            apply(lake, name, spark_runtime)

    mirror, history = lake.rows("mirror"), lake.rows("history")

    assert Counter(shop.states()) == Counter(mirror)
    assert Counter(shop.versions()) == Counter(history)
    assert Counter(mirror) == Counter(version[6:] for version in history if version[4])


@pytest.mark.parametrize("seed", range(4))
def test_random_cuts_of_a_log_that_has_all_columns_give_what_the_table_is(
    seed: int, tmp_path: Path, spark_runtime: Any
) -> None:
    """Where every change carries its whole row, rows go from part to part, and nothing is off either."""
    lake = Lake.at(tmp_path / "lake", open_state(f"sqlite:///{tmp_path}/state.db"))
    shop = Shop.lived(seed, carries_all=True)
    lake.copy(shop.copied.values())
    begin = 0
    for end in sorted({shop.random.randint(1, 11), shop.random.randint(1, 11), len(shop.log)}):
        changes = [one for part in shop.log[begin:end] for one in part.changes]
        late = [one for part in shop.log[:begin] for one in part.changes][-5:]
        disorder = changes + changes[-3:] + late
        shop.random.shuffle(disorder)
        lake.drain(disorder, high=position(end + 1), pieces=2)
        begin = end
        apply(lake, "mirror", spark_runtime)

        assert Counter(tuple(r.values()) for r in shop.log[end - 1].after.values()) == Counter(lake.rows("mirror"))


def test_zeros_of_both_signs_are_one_key(tmp_path: Path, spark_runtime: Any) -> None:
    """A key of floats is compared by value."""
    lake = Lake.at(tmp_path / "lake", open_state(f"sqlite:///{tmp_path}/state.db"))
    schema = pa.schema([("ratio", pa.float64()), ("note", pa.string())])
    lake.copy(pa.Table.from_pylist([{"ratio": -0.0, "note": "a"}, {"ratio": 1.5, "note": "b"}], schema))
    lake.drain([{**change("delete", 2, {}), "ratio": 0.0}], high=position(3), schema=schema)

    apply(lake, "mirror", spark_runtime, key=("ratio",))

    assert [(1.5, "b")] == lake.rows("mirror")


def test_first_copy_alone_is_the_first_version(lake: Lake, spark_runtime: Any) -> None:
    """Before any change the mirror is the copy, and the history its rows since nobody knows when."""
    lake.copy([row(1, note="a"), row(None)])

    apply(lake, "mirror", spark_runtime)
    apply(lake, "history", spark_runtime)

    assert {(1, "n", "a", None), (None, "n", None, None)} == set(lake.rows("mirror"))
    since = (None, position(1), None, None, True, "insert")
    assert {(*since, 1, "n", "a", None), (*since, None, "n", None, None)} == set(lake.rows("history"))


@pytest.mark.parametrize("name", STAGES)
def test_repeated_run_writes_nothing(lake: Lake, spark_runtime: Any, name: str) -> None:
    """With no new window there is no new version, and not one file changes."""
    lake.copy([row(1)])
    lake.drain([change("insert", 2, row(2))], high=position(3))
    apply(lake, name, spark_runtime)
    before = lake.derived(name).root.list()

    assert apply(lake, name, spark_runtime) is None
    assert before == lake.derived(name).root.list()


def test_window_without_changes_moves_the_position_only(lake: Lake, spark_runtime: Any) -> None:
    """An idle window makes a version of the same rows, which reaches further."""
    lake.copy([row(1), row(2)])
    apply(lake, "mirror", spark_runtime)
    lake.drain([], high=position(9))

    manifest = apply(lake, "mirror", spark_runtime)

    assert manifest is not None
    assert manifest.applied is not None
    assert (position(9), 2) == (manifest.applied.high, manifest.row_count)
    assert [1, 2] == ids(lake)


def test_window_that_was_published_again_and_longer_is_applied_from_where_it_was(
    lake: Lake, spark_runtime: Any
) -> None:
    """A drain that died before its checkpoint publishes its window anew; what was applied is not applied twice."""
    lake.copy([row(1)])
    lake.drain([change("insert", 2, row(2, note="old"))], high=position(3))
    apply(lake, "history", spark_runtime)
    lake.reached = position(1)
    lake.state.reset_cursor(lake.export)
    again = [change("insert", 2, row(2, note="old")), change("update", 4, row(2, note="new"))]
    lake.state.advance_cursor(lake.export, position(1), expected=None)
    lake.drain(again, high=position(5))

    apply(lake, "history", spark_runtime)

    found = {(version[1], version[3], *version[6:9]) for version in lake.rows("history")}
    closed = (position(2), position(4), 2, "n", "old")
    assert {(position(1), None, 1, "n", None), closed, (position(4), None, 2, "n", "new")} == found


def test_unknown_value_is_null_and_counted(lake: Lake, spark_runtime: Any) -> None:
    """A cell the log never carried is NULL, and the measures name its column for the check of special values."""
    lake.copy([])
    lake.drain([change("update", 2, row(7), unchanged=["note"])], high=position(3))

    staged = stage_mirror(lake.derived("mirror"), spark=spark_runtime)

    assert staged is not None
    assert {"note": {"unchanged_unknown": 1}} == staged.measures.special_values


# --- another copy, and what is missing -----------------------------------------------------------


@pytest.mark.parametrize("name", STAGES)
def test_new_first_copy_is_built_anew(lake: Lake, spark_runtime: Any, name: str) -> None:
    """Rows that only the old copy knew are gone once another copy replaced everything."""
    lake.copy([row(1), row(2)])
    lake.drain([change("insert", 2, row(3))], high=position(3))
    apply(lake, name, spark_runtime)
    lake.copy([row(8)], at=position(2))

    apply(lake, name, spark_runtime)

    assert [8] == [one[-4] for one in lake.rows(name)]


def test_missing_window_is_refused(lake: Lake, spark_runtime: Any) -> None:
    """Changes whose manifest is gone are not passed over."""
    lake.copy([row(1)])
    apply(lake, "mirror", spark_runtime)
    gone = lake.drain([change("insert", 2, row(2))], high=position(3))
    lake.drain([change("insert", 4, row(4))], high=position(5))
    lake.changes.delete([gone.path])

    with pytest.raises(ManifestUnreadable, match=f"no changes between position {position(1)} and {position(3)}"):
        apply(lake, "mirror", spark_runtime)


def test_applied_windows_may_go(lake: Lake, spark_runtime: Any) -> None:
    """A version goes on from itself when the windows it holds were cleared away."""
    copied = lake.copy([row(1)])
    held = lake.drain([change("insert", 2, row(2))], high=position(3))
    apply(lake, "mirror", spark_runtime)
    lake.changes.delete([copied.path, held.path])
    lake.drain([change("insert", 4, row(4))], high=position(5))

    apply(lake, "mirror", spark_runtime)

    assert [1, 2, 4] == ids(lake)


def test_changes_without_their_beginning_make_no_mirror(lake: Lake, spark_runtime: Any) -> None:
    """Without the first window nobody knows the rows that never changed."""
    copied = lake.copy([row(1)])
    lake.drain([change("insert", 2, row(2))], high=position(3))
    lake.changes.delete([copied.path])

    with pytest.raises(ManifestUnreadable, match="no window after=start"):
        apply(lake, "mirror", spark_runtime)


def test_place_of_something_else_is_refused(lake: Lake, spark_runtime: Any) -> None:
    """A mirror does not replace a history."""
    lake.copy([row(1)])
    apply(lake, "history", spark_runtime)

    with pytest.raises(WindowConflict, match="mode history, which a mirror would replace"):
        stage_mirror(lake.derived("history"), spark=spark_runtime)


# --- keys that nobody knows to be unique ----------------------------------------------------------


@pytest.mark.parametrize("name", [*STAGES, "mirror by rows"])
def test_two_rows_of_one_key_end_the_run_and_leave_the_version_before(
    lake: Lake, spark_runtime: Any, name: str
) -> None:
    """`SET id = id + 1`, one change a window: what was exact so far stays, whichever way the rows go."""
    kind, missing = name.split()[0], ["note"] if "rows" in name else None
    lake.copy([row(1), row(2)])
    lake.drain([change("delete", 2, row(3), seq=2), change("insert", 2, row(3), seq=3)], high=position(2))
    apply(lake, kind, spark_runtime, judges_key=True)
    before, parts = lake.rows(kind), lake.derived(kind).root.list()
    lake.drain([change("update", 3, row(2), unchanged=missing), change("delete", 4, row(1), seq=2),
                change("insert", 4, row(2), seq=3)], high=position(4))  # fmt: skip

    with pytest.raises(KeyShared, match=f"orders_{kind}: at position {position(4)} of the log"):
        apply(lake, kind, spark_runtime, judges_key=True)

    assert (before, parts) == (lake.rows(kind), lake.derived(kind).root.list())


@pytest.mark.parametrize("name", STAGES)
def test_copy_with_two_rows_of_one_key_is_refused(lake: Lake, spark_runtime: Any, name: str) -> None:
    """Before any change came; where the source keeps the key unique nobody looks."""
    lake.copy([row(1, note="a"), row(1, note="b"), row(2)])

    with pytest.raises(KeyShared, match="1 key"):
        apply(lake, name, spark_runtime, judges_key=True)


@pytest.mark.parametrize("name", STAGES)
def test_changes_that_were_read_by_another_key_are_refused(lake: Lake, spark_runtime: Any, name: str) -> None:
    """A table's key was changed: a row that was moved under the new one would stay under its old value, too."""
    lake.copy([row(1, "a"), row(2, "b")])
    lake.drain([change("update", 2, row(2, "c"))], high=position(2))
    apply(lake, name, spark_runtime, key=("id",))
    before = lake.rows(name)

    with pytest.raises(KeyShared, match=f"at position {position(2)} of the log a row is changed whose key"):
        apply(lake, name, spark_runtime, key=("area",))

    assert before == lake.rows(name)


def test_keys_that_versions_had_and_truncates_freed_are_free(lake: Lake, spark_runtime: Any) -> None:
    """A closed version of a history is in nobody's way."""
    lake.copy([row(1), row(2)])
    lake.drain([change("delete", 2, row(1))], high=position(2))
    apply(lake, "history", spark_runtime, judges_key=True)
    lake.drain([change("insert", 3, row(1)), change("truncate", 4, {}), change("insert", 5, row(2))], high=position(5))

    apply(lake, "history", spark_runtime, judges_key=True)

    assert [2] == [version[6] for version in lake.rows("history") if version[4]]


# --- columns -------------------------------------------------------------------------------------


def test_newest_window_decides_the_columns(lake: Lake, spark_runtime: Any) -> None:
    """A column added is NULL in older rows, one dropped is gone from the mirror and stays in the history."""
    lake.copy([row(1, note="a"), row(2, note="b")])
    apply(lake, "mirror", spark_runtime)
    apply(lake, "history", spark_runtime)
    newer = pa.schema(
        [("id", pa.int64()), ("area", pa.string()), ("paid", pa.decimal128(12, 2)), ("city", pa.string())]
    )
    lake.drain([change("update", 2, {"id": 2, "area": "n", "city": "Brno"})], high=position(3), schema=newer)

    apply(lake, "mirror", spark_runtime)
    apply(lake, "history", spark_runtime)

    assert {(1, "n", None, None), (2, "n", None, "Brno")} == set(lake.rows("mirror"))
    found = {(one[4], *one[6:]) for one in lake.rows("history")}
    kept, past, now = (
        (True, 1, "n", None, None, "a"),
        (False, 2, "n", None, None, "b"),
        (True, 2, "n", None, "Brno", None),
    )
    assert {kept, past, now} == found


def test_widened_column_takes_its_new_type(lake: Lake, spark_runtime: Any) -> None:
    """Rows of before the change of a type are given in the newer one."""
    narrow = pa.schema(
        [("id", pa.int32()), ("area", pa.string()), ("note", pa.string()), ("paid", pa.decimal128(12, 2))]
    )
    lake.copy(pa.Table.from_pylist([row(1)], narrow))
    apply(lake, "mirror", spark_runtime)
    lake.drain([change("insert", 2, row(2**40))], high=position(3))

    apply(lake, "mirror", spark_runtime)

    assert [1, 2**40] == ids(lake)


def test_key_that_the_changes_lack_is_refused(lake: Lake, spark_runtime: Any) -> None:
    """The message names the column and those there are."""
    lake.copy([row(1)])

    with pytest.raises(UnknownColumn, match="no column 'nr'; it has id, area, note, paid"):
        apply(lake, "mirror", spark_runtime, key=("nr",))


def test_column_with_a_name_of_versions_is_refused(lake: Lake, spark_runtime: Any) -> None:
    """A history does not overwrite a column of the table."""
    lake.copy(pa.table({"id": [1], "valid_to": ["x"]}))

    with pytest.raises(UnsupportedColumn, match="has a column 'valid_to'"):
        apply(lake, "history", spark_runtime, key=("id",))


def extension(kind: pa.DataType, stored: list[object]) -> pa.Array:
    """Make an array of an extension type."""
    return pa.ExtensionArray.from_storage(kind, pa.array(stored, kind.storage_type))


def every_type() -> pa.Table:
    """Make two rows of every type that columns have."""
    some = uuid.UUID(int=5).bytes
    cells = {
        "id": pa.array([1, 2], pa.int64()),
        "flag": pa.array([True, None]),
        "small": pa.array([-128, None], pa.int8()),
        "large": pa.array([2**64 - 1, None], pa.uint64()),
        "ratio": pa.array([float("nan"), -0.0]),
        "amount": pa.array([Decimal("1.20"), None], pa.decimal128(20, 2)),
        "wide": pa.array([Decimal("9" * 60), None], pa.decimal256(60, 0)),
        "name": pa.array(["é\x00", ""]),
        "raw": pa.array([b"\x00\xff", None]),
        "day": pa.array([date(1, 1, 1), date(9999, 12, 31)]),
        "clock": pa.array([time(23, 59, 59, 999_999), None], pa.time64("us")),
        "naive": pa.array([datetime(1, 1, 1), datetime(9999, 12, 31)], pa.timestamp("us")),
        "instant": pa.array([-62_135_596_800_000_000, None], pa.timestamp("us", "UTC")),
        "exact": pa.array([1, None], pa.timestamp("ns")),
        "code": extension(UUID, [some, None]),
        "body": extension(JSON, ['{"a": 1}', None]),
        "tags": pa.array([["a", None], []], pa.list_(pa.string())),
        "codes": pa.ListArray.from_arrays(pa.array([0, 2, 2], pa.int32()), extension(UUID, [some, None])),
    }
    return pa.table(cells)


NATIVE = ("id", "flag", "small", "ratio", "amount", "name", "raw", "day", "naive", "instant", "tags")


@pytest.mark.parametrize("columns", [None, NATIVE], ids=["all", "read by Spark itself"])
def test_every_type_comes_through_as_a_full_export_writes_it(
    lake: Lake, spark_runtime: Any, columns: tuple[str, ...] | None
) -> None:
    """Parts of a mirror have the schema and the cells of the parts that the changes were read from."""
    rows = every_type().select(columns) if columns else every_type()
    lake.copy(rows.slice(0, 1))
    table = pa.concat_tables([rows.slice(1)])
    envelope = {"__op": ["insert"], "__pos": [position(2)], "__seq": [1], "__ts": [None], "__unchanged": [None]}
    schema = change_schema(table.schema)
    cells = [pa.array(envelope[f.name], f.type) if f.name in envelope else table.column(f.name) for f in schema]
    lake.window(pa.Table.from_arrays(cells, schema=schema), high=position(3))

    manifest = apply(lake, "mirror", spark_runtime, key=("id",))

    assert manifest is not None
    root = lake.derived("mirror").root
    found = pa.concat_tables(pq.read_table(root.open(part.path)) for part in manifest.parts).sort_by("id")
    assert rows.schema == found.schema.remove_metadata()
    for name in rows.column_names:
        assert str(rows.column(name).to_pylist()) == str(found.column(name).to_pylist()), name


def test_mirror_is_read_by_assets_downstream(lake: Lake, spark_runtime: Any) -> None:
    """Whatever types its columns have, also lists of what Spark has no type for."""
    lake.copy(every_type())

    manifest = apply(lake, "mirror", spark_runtime, key=("id",))

    assert manifest is not None
    found = read_parts(spark_runtime.session(), lake.derived("mirror").root, [manifest]).toArrow().sort_by("id")
    assert [[str(uuid.UUID(int=5)), None], []] == found["codes"].to_pylist()
    assert [str(uuid.UUID(int=5)), None] == found["code"].to_pylist()
    assert ["23:59:59.999999", None] == found["clock"].to_pylist()


# --- deaths, and other places --------------------------------------------------------------------


class Died(BaseException):
    """Nothing catches it: what a killed process would have done next is not done."""


@pytest.mark.faults
@pytest.mark.parametrize("died_at", ["parts", "manifest", "success", "cursor"])
def test_rerun_after_a_death_in_publishing_ends_right(lake: Lake, spark_runtime: Any, died_at: str) -> None:
    """Readers see the old version or the new one, whole; the next run ends with the new one."""
    lake.copy([row(1)])
    apply(lake, "mirror", spark_runtime)
    lake.drain([change("delete", 2, row(1)), change("insert", 3, row(3))], high=position(4))
    derived = lake.derived("mirror")
    staged = stage_mirror(derived, spark=spark_runtime)
    assert staged is not None

    def die(step: str) -> None:
        if step == died_at:
            raise Died

    with pytest.raises(Died):
        publish(staged, root=derived.root, state=lake.state, step=die)
    between = ids(lake)
    apply(lake, "mirror", spark_runtime)

    assert between == ([1] if died_at in ("parts", "manifest") else [3])
    assert [3] == ids(lake)


@dataclass(frozen=True)
class DeadlyDestination(FolderDestination):
    """A folder where a task that stages dies without a word."""

    def root(self, export: str) -> FolderRoot:
        """Address one export."""
        return DeadlyRoot(self.path / export, owner=os.getpid())


@dataclass(frozen=True)
class DeadlyRoot(FolderRoot):
    """Ends its process when something is staged; only in a task's process."""

    owner: int = 0

    def stage(self, file: Path, *, run_id: str, path: str, md5: str) -> dict[str, Any]:
        """Die."""
        os._exit(86)


@pytest.mark.faults
def test_rerun_after_tasks_died_ends_right(lake: Lake, spark_runtime: Any) -> None:
    """A task killed in each of its attempts fails the run, shows nothing, and the next run is complete."""
    lake.copy([row(1)])
    apply(lake, "mirror", spark_runtime)
    lake.drain([change("insert", 2, row(2))], high=position(3))
    deadly = DeadlyDestination(lake.destination.path)  # type: ignore[attr-defined]

    with pytest.raises(TaskFailed, match="a Python process died while changes were applied"):
        stage_mirror(lake.derived("mirror", destination=deadly), spark=spark_runtime)
    between = ids(lake)
    apply(lake, "mirror", spark_runtime)

    assert [1] == between
    assert [1, 2] == ids(lake)


@dataclass(frozen=True)
class SecondDiesDestination(FolderDestination):
    """A folder where whoever stages second dies."""

    def root(self, export: str) -> FolderRoot:
        """Address one export."""
        return SecondDiesRoot(self.path / export)


@dataclass(frozen=True)
class SecondDiesRoot(FolderRoot):
    """Lets one part be staged, and ends the process of the others once it is."""

    def stage(self, file: Path, *, run_id: str, path: str, md5: str) -> dict[str, Any]:
        """Stage, or wait and die."""
        if "chunk0" in path:
            return super().stage(file, run_id=run_id, path=path, md5=md5)
        for _ in range(2_000):
            if list(self.folder.glob(f"_staged/{run_id}/*chunk0*")):
                break
            time_.sleep(0.01)
        os._exit(86)


@pytest.mark.faults
def test_parts_of_a_run_whose_job_died_are_removed(
    lake: Lake, spark_runtime: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What tasks staged before another one died goes; what other runs staged stays."""
    monkeypatch.setattr("rivet_resources.tables.places.SPREAD_BYTES", 1)
    lake.window(as_inserts(pa.Table.from_pylist([row(1), row(2)], TABLE), position(1)), high=position(1), pieces=2)
    other = stage_mirror(lake.derived("mirror"), spark=spark_runtime)
    dying = lake.derived("mirror", destination=SecondDiesDestination(lake.destination.path))  # type: ignore[attr-defined]

    with pytest.raises(TaskFailed):
        stage_mirror(dying, spark=spark_runtime)

    assert other is not None
    assert 2 == len(other.parts)
    assert {other.extract.run_id} == dying.root.staged_runs()
    assert all(dying.root.staged_exists(part) for part in other.parts)


def test_version_of_another_run_is_not_overwritten(lake: Lake, spark_runtime: Any) -> None:
    """Of two runs that staged the same version, the second to publish is refused."""
    lake.copy([row(1)])
    plans = [lake.derived("mirror"), lake.derived("mirror")]
    first, second = (stage_mirror(plan, spark=spark_runtime) for plan in plans)
    assert first is not None
    assert second is not None
    publish(first, root=plans[0].root, state=lake.state)

    from rivet_resources.errors import WindowTaken

    with pytest.raises(WindowTaken):
        publish(second, root=plans[1].root, state=lake.state)
    assert [1] == ids(lake)


def test_mirror_in_an_object_store(tmp_path: Path, s3_server: ObjectStore, spark_runtime: Any) -> None:
    """Changes and mirror in S3 go through the destination's own client."""
    place = S3(bucket=s3_server.bucket, prefix=uuid.uuid4().hex, endpoint=s3_server.endpoint)
    lake = Lake(place, open_state(f"sqlite:///{tmp_path}/state.db"))
    shop = Shop.lived(3)
    lake.copy(shop.copied.values())
    apply(lake, "mirror", spark_runtime)
    lake.drain([one for part in shop.log for one in part.changes], high=position(13), pieces=3)

    apply(lake, "mirror", spark_runtime)

    assert Counter(shop.states()) == Counter(lake.rows("mirror"))
    root = lake.derived("mirror").root
    (manifest,) = current_manifests(root).values()
    assert {part.path for part in manifest.parts} == {path for path in root.list() if path.endswith(".parquet")}


def test_measures_of_a_mirror_serve_its_quality_rules(lake: Lake, spark_runtime: Any) -> None:
    """NULLs and unique columns are measured as an export's are."""
    lake.copy([row(1, note="a"), row(2, note="a"), row(3)])

    staged = stage_mirror(lake.derived("mirror", unique_columns=("note",)), spark=spark_runtime)

    assert staged is not None
    assert (3, 1) == (staged.measures.rows, staged.measures.nulls["note"])
    assert ["note"] == list(staged.measures.unique)


def test_session_without_a_jvm_is_refused(lake: Lake) -> None:
    """`spark: inline` has no way to apply changes."""
    from rivet_resources.errors import SparkUnavailable

    lake.copy([row(1)])

    with pytest.raises(SparkUnavailable):
        stage_mirror(lake.derived("mirror"), spark=SparkRuntime(Spark(engine="inline")))


def test_key_order_of_the_table_is_kept(lake: Lake, spark_runtime: Any) -> None:
    """Columns stand in the table's order, wherever its key is."""
    lake.copy([row(1)])

    manifest = apply(lake, "mirror", spark_runtime, key=tuple(reversed(KEY)))

    assert manifest is not None
    part = pq.read_schema(lake.derived("mirror").root.open(manifest.parts[0].path))
    assert TABLE.names == part.names
