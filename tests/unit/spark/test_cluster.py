"""What a cluster's own words mean, what is sent to its workers, and what they are lent."""

from __future__ import annotations

import pickle
import sqlite3
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pydantic import SecretStr

from rivet_resources import secrets
from rivet_resources.contracts.settings import is_cluster, pace
from rivet_resources.destinations.local import Local
from rivet_resources.destinations.s3 import S3
from rivet_resources.engines.postgres.source import Postgres
from rivet_resources.engines.sqlite.source import Sqlite
from rivet_resources.errors import ConfigError
from rivet_resources.shape.transforms.mask import Mask
from rivet_resources.shape.transforms.mask_tags import MaskRule, TagMasks
from rivet_resources.spark import cluster

# As Spark 4.3 says it, through py4j (seen on a standalone cluster, 2026-11-24).
LOST = "Job aborted due to stage failure: Task 0 in stage 0.0 failed 4 times, most recent failure: Lost task 0.3 in "
TOLD = {
    'stage 0.0 (TID 3) (10.77.0.11 executor 0): java.io.IOException: Cannot run program "/nowhere/python": error=2':
        "Spark's worker on 10.77.0.11 has no Python at /nowhere/python; name one",
    "stage 0.0 (TID 16) (10.77.1.29 executor 1): java.nio.file.AccessDeniedException: ./rivet_package.zip":
        "Spark's worker on 10.77.1.29 may not write ./rivet_package.zip into its working folder; give its image a",
    "stage 0.0 (TID 3) (w2 executor 1): ModuleNotFoundError: No module named 'pyarrow'":
        "Spark's worker on w2 lacks the Python package pyarrow. Install Rivet",
    "stage 0.0 (TID 3) (w2 executor 1): PySparkRuntimeError: [PYTHON_VERSION_MISMATCH] Python in worker has different "
    "version: 3.9 than that in driver: 3.11":
        "Spark's worker on w2 runs Python 3.9, and this machine another; give both the same minor version",
}  # fmt: skip


@pytest.mark.parametrize("told", TOLD)
def test_words_of_spark_are_read(told: str) -> None:
    """With the host, and what to do."""
    found = cluster.unfit(LOST + told)

    assert found is not None
    assert str(found).startswith(TOLD[told])
    assert found.exit_code == 1


def test_words_that_mean_nothing_known_are_left_to_others() -> None:
    """A task that died of anything else is no matter of its host."""
    assert cluster.unfit(LOST + "stage 0.0 (TID 3) (w2 executor 1): ExecutorLostFailure") is None


@pytest.mark.parametrize(
    ("master", "expected"),
    [("local", False), ("local[*,3]", False), ("local-cluster[2,1,1024]", True), ("spark://h:1", True),
     ("yarn", True), ("k8s://https://h", True)],
)  # fmt: skip
def test_cluster_is_whatever_runs_tasks_elsewhere(master: str, expected: bool) -> None:
    """By the master's form alone."""
    assert expected == is_cluster(master)


def test_package_is_imported_from_the_archive_alone() -> None:
    """What a task imports is in it, and nothing beside it is needed but the installed packages."""
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import rivet_resources.read.executor as executor; "
        "import rivet_resources.engines.postgres.source, rivet_resources.destinations.s3; print(executor.__file__)"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", code, str(cluster.archive())], capture_output=True, text=True, cwd="/"
    )

    assert done.stdout.startswith(f"{cluster.archive()}/rivet_resources/"), done.stderr


@dataclass(frozen=True)
class Steps:
    """Something that holds steps, as an extract does."""

    transforms: tuple[Mask | TagMasks, ...]


def test_variables_are_found_wherever_they_are_named() -> None:
    """In a source, a destination and a step; a value that is no name of a variable is none."""
    source = Postgres(host="db", user="u", database="d", password_env="SHOP_PASSWORD")
    lake = S3(bucket="lake", region="r", access_key_env="LAKE_KEY", secret_key_env="LAKE_SECRET")
    mask = Mask.model_validate({"type": "mask", "fields": ["a"], "method": "hash", "key_env": "MASK_KEY"})

    by_tag = {"pii": MaskRule(method="hash", key_env="TAG_KEY")}

    named = list(secrets.named_variables(source, lake, Steps((mask, TagMasks(by_tag)))))

    assert ["SHOP_PASSWORD", "LAKE_KEY", "LAKE_SECRET", "MASK_KEY", "TAG_KEY"] == named


def test_lent_variable_is_used_where_the_environment_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host's own wins, and a literal before both; a variable that nobody has is refused as ever."""
    monkeypatch.setattr(secrets, "_lent", {})
    secrets.lend({"SHOP_PASSWORD": "lent"})

    assert "lent" == secrets.resolve_secret(None, env="SHOP_PASSWORD", key="password")
    assert "written" == secrets.resolve_secret(SecretStr("written"), env="SHOP_PASSWORD", key="password")
    monkeypatch.setenv("SHOP_PASSWORD", "own")
    assert "own" == secrets.resolve_secret(None, env="SHOP_PASSWORD", key="password")
    with pytest.raises(ConfigError, match="OTHER"):
        secrets.resolve_secret(None, env="OTHER", key="password")


@dataclass(frozen=True)
class Context:
    """What of Spark's context is asked for its settings."""

    conf: dict[str, str] = field(default_factory=dict)
    master: str = "spark://h:7077"

    def getConf(self) -> dict[str, str]:
        """Return the settings."""
        return self.conf


@dataclass(frozen=True)
class Session:
    """What of Spark's session leads to its context."""

    sparkContext: Context


ENCRYPTED = {"spark.authenticate": "true", "spark.network.crypto.enabled": "true"}


@pytest.mark.parametrize(("conf", "expected"), [(ENCRYPTED, "lent"), ({}, None)])
def test_tables_of_changes_are_lent_what_exports_are(
    conf: dict[str, str], expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over encrypted lines, and over no others."""
    monkeypatch.setattr(secrets, "_lent", {})
    monkeypatch.setenv("LAKE_SECRET", "lent")
    lake = S3(bucket="lake", region="r", access_key_env="LAKE_KEY", secret_key_env="LAKE_SECRET")

    def act(batches: Iterator[pa.RecordBatch]) -> Iterator[Any]:
        yield secrets.read_variable("LAKE_SECRET")

    task: Any = cluster.with_variables(Session(Context(conf)), act, lake.root("orders"))  # type: ignore[arg-type]
    monkeypatch.delenv("LAKE_SECRET")

    assert [expected] == list(task(iter(())))


@pytest.fixture
def ends(tmp_path: Path) -> cluster.Ends:
    """Both ends of an export that this process reaches."""
    with closing(sqlite3.connect(tmp_path / "shop.db")) as connection:
        connection.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY)")
    (tmp_path / "lake").mkdir()
    return cluster.Ends(
        Sqlite(path=str(tmp_path / "shop.db")), Local(path=str(tmp_path / "lake")), "orders", pace(None, None)
    )


def answer_of(ends: cluster.Ends) -> cluster.Answer:
    """Return what this process says, as a worker would."""
    return cluster._asked(pickle.dumps(cluster.Question(ends, "", {})))


def test_host_that_can_do_all_has_no_fault(ends: cluster.Ends) -> None:
    """It reached both ends and had room."""
    assert "" == answer_of(ends).fault


def test_host_without_room_for_unfinished_parts_is_told(ends: cluster.Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before a row is read: a task would find out when its first part is full."""
    monkeypatch.setattr(tempfile, "tempdir", "/proc/nowhere")

    assert "point TMPDIR at a folder" in answer_of(ends).fault


def test_host_without_any_folder_for_them_is_told(ends: cluster.Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container whose disk is read-only."""

    def nowhere() -> str:
        raise FileNotFoundError

    monkeypatch.setattr(tempfile, "gettempdir", nowhere)

    assert "Point TMPDIR at a disk with room" in answer_of(ends).fault


def test_host_without_the_variable_of_a_step_is_told(ends: cluster.Ends) -> None:
    """A mask reads its key in the task."""
    step = Mask.model_validate({"type": "mask", "fields": ["a"], "method": "hash", "key_env": "RIVET_NO_SUCH_KEY"})

    found = answer_of(cluster.Ends(ends.source, ends.destination, ends.export, ends.pace, (step,)))

    assert "Environment variable RIVET_NO_SUCH_KEY" in found.fault


def test_host_with_another_version_of_a_package_is_told() -> None:
    """With both versions, whatever else it met: an old package fails in ways that nobody understands."""
    found = cluster._judged(cluster.Answer("w2", "AttributeError was raised", versions=(("pyarrow", "14.0.2"),)))

    assert "its Python has pyarrow 14.0.2, and Rivet takes <27,>=26" == found.fault
    assert "spark.pyspark.python" in found.way_out
    assert "" == cluster._judged(cluster.Answer("w2", versions=cluster._versions(tuple(cluster._needed())))).fault


def test_processes_of_a_host_connect_one_after_the_other() -> None:
    """A host with many slots is asked as often, and costs the source one connection."""
    order: list[str] = []

    def second() -> None:
        with cluster._one_at_a_time():
            order.append("second")

    thread = threading.Thread(target=second)
    with cluster._one_at_a_time():
        thread.start()
        thread.join(0.05)
        order.append("first")
    thread.join(10)

    assert ["first", "second"] == order


@pytest.mark.parametrize(
    ("at_once", "expected"),
    [(None, [None]), (3, [None]), (2, [{"w1", "w3"}]), (1, [{"w1"}, {"w3"}])],
)
def test_hosts_are_asked_no_more_at_once_than_the_source_allows(
    at_once: int | None, expected: list[set[str] | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host that has answered is not asked again; where all may be asked, nobody is asked for its name first."""
    monkeypatch.setattr(cluster, "_hosts", lambda _: 3)
    names = [cluster.Answer(name, asked=False) for name in ("w1", "w2", "w3", "w2")]
    monkeypatch.setattr(cluster, "_ask", lambda *_: names)

    asked = cluster._some_at_once(Context(), at_once, {"w2": cluster.Answer("w2")})  # type: ignore[arg-type]

    assert expected == list(asked)
