"""A cluster's workers: our package is sent to them, and each host shows that it can do the work before any row is read.

Belongs here: what is sent, what a host is asked, what its refusal means. Not here: sessions (`sessions.py`), tasks,
a cluster on which nobody ever answers (`idle.py`).

A worker needs a Python of the driver's version with what `pip install rivet` brings, the drivers of its source and
destination, and whatever variables and files the configuration names.
"""

from __future__ import annotations

import atexit
import fcntl
import functools
import importlib.metadata
import os
import pickle
import re
import shutil
import socket
import sys
import tempfile
import time
import uuid
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rivet_resources import scratch
from rivet_resources.contracts.addressing import PROBE
from rivet_resources.contracts.settings import how_to_encrypt, is_encrypted, is_kubernetes, shows_its_secret
from rivet_resources.errors import RivetError, SparkEnded, SparkKilled, SparkUnavailable, WorkerCutOff, WorkerUnfit
from rivet_resources.secrets import Variables, declared_references, lend, named_variables, read_variable
from rivet_resources.spark import kubernetes, yarn
from rivet_resources.spark.sessions import first_line

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    from rivet_resources.contracts.destination import Destination
    from rivet_resources.contracts.settings import Pace
    from rivet_resources.contracts.source import Source

Act = Callable[["Iterator[pa.RecordBatch]"], "Iterator[pa.RecordBatch]"]  # what `mapInArrow` takes

PACKAGE = Path(__file__).parents[1]
MOST_TASKS = 1_000  # that are looked at for the name of a host
MEMORY_LOOKS = 10
ROUNDS = 3  # of looking for hosts that registered meanwhile
ROOM_BYTES = 4 * 1024 * 1024  # that a host must have for unfinished parts; a full disk has none
SPREAD_SECONDS = 0.3  # for which a question holds its slot, so that the next one goes to another host
EXECUTOR = re.compile(r"\(TID \d+\) \((\S+) executor")
INSTALL = (
    "Install Rivet with the extras of this export there, or name the Python that has it in PYSPARK_PYTHON or "
    "`spark: conf: spark.pyspark.python`"
)
# What Spark says when a worker's Python cannot run our task at all, and what that means.
MISFITS = (
    (
        re.compile(r'Cannot run program "([^"]*)"'),
        "has no Python at {0}; name one that is there in PYSPARK_PYTHON or `spark: conf: spark.pyspark.python`",
    ),
    (
        re.compile(r"No module named '([\w.]+)'"),
        f"lacks the Python package {{0}}. {INSTALL}",
    ),
    (
        re.compile(r"AccessDeniedException: (\./[\w.]*\w)"),
        "may not write {0} into its working folder; give its image a WORKDIR that its user may write",
    ),
    (
        re.compile(r"PYTHON_VERSION_MISMATCH.*?different version:? \(?(\d+\.\d+)", re.DOTALL),
        "runs Python {0}, and this machine another; give both the same minor version",
    ),
    (
        re.compile(r"PYTHON_VERSION_MISMATCH"),
        "runs another minor version of Python than this machine; give both the same",
    ),
)


@functools.lru_cache(maxsize=1)
def archive() -> Path:
    """Pack our package for Python's own importer of archives; the file lives as long as this process."""
    folder = Path(tempfile.mkdtemp(prefix="rivet-package-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = folder / "rivet_package.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        # Our own package comes from the driver, so that both sides always run the same code.
        for file in sorted(PACKAGE.rglob("*.py")):
            packed.write(file, file.relative_to(PACKAGE.parent))
    return path


@dataclass(frozen=True)
class Ends:
    """Both ends of an export: what a host must reach; and its steps, whose variables it must have."""

    source: Source
    destination: Destination
    export: str
    pace: Pace
    steps: tuple[object, ...] = ()


@dataclass(frozen=True)
class Question:
    """What a host is asked: to reach both ends, with the variables that the driver may lend it."""

    ends: Ends
    marker: str  # a file that the driver wrote at the destination; "" where nothing is kept
    lent: Variables


@dataclass(frozen=True)
class Answer:
    """What one host said. `versions`: of the packages that it imported for its answer."""

    host: str
    asked: bool = True  # False: it told its name alone
    fault: str = ""
    retry: bool = False
    way_out: str = ""
    versions: tuple[tuple[str, str], ...] = ()


def examine(context: SparkContext, ends: Ends, *, at_once: int | None = None) -> list[str]:
    """Ask every host that is there to reach source and destination; return their names.

    A host that joins later is not asked; its tasks fail by themselves, and `unfit` tells why.

    Args:
        at_once: how many connections to the source the questions may hold at an instant; None: one from each host.

    Raises:
        WorkerUnfit: a host cannot do the work; each is named with its reason.
        SparkEnded: the cluster ended the application meanwhile.
        SparkUnavailable: nobody could be asked.
    """
    from py4j.protocol import Py4JError  # Spark
    from pyspark.errors import PySparkException  # Spark

    root = ends.destination.root(ends.export)
    # A host that can write may still write elsewhere: `/lake` on a worker is its own disk unless something is mounted
    # there. Only reading what the driver wrote proves that it is one place.
    marker = f"{PROBE}_{uuid.uuid4().hex[:8]}"
    lent = lendable(context, ends.source, ends.destination, *ends.steps)
    keeps = root.keeps_manifests
    if keeps:
        root.put(marker, b"rivet")
    # Bytes, so that a worker that lacks a package fails inside `_asked`, where it can be said, and not in Spark's own
    # reading.
    packed = pickle.dumps(Question(ends, marker if keeps else "", lent))
    needed = tuple(_needed())
    answers: dict[str, Answer] = {}
    try:
        for _ in range(ROUNDS):
            for some in _some_at_once(context, at_once, answers):
                told = [_judged(each) for each in _ask(context, packed, needed, some) if each.asked]
                # A later word replaces none that was good, but a fault on the same host counts.
                answers |= {each.host: each for each in told if each.host not in answers or each.fault}
            if len(answers) >= _hosts(context):
                break
    # Which of the two it is depends on whether a session was ever opened in this process.
    except (Py4JError, PySparkException) as error:
        if (found := cluster_fault(str(error), context)) is not None:
            raise found from None
        raise SparkUnavailable(
            f"Spark at {context.master} gave up before its workers had answered: {first_line(error)}. The logs of its "
            f"executors tell more (of a standalone cluster: the folder `work` of each worker), and RIVET_SPARK_LOG=- "
            f"shows Spark's own log of this machine."
        ) from None
    finally:
        if keeps:
            root.delete([marker])
    _refuse([each for each in answers.values() if each.fault], _why_nothing_was_lent(context))
    return sorted(answers)


def _some_at_once(
    context: SparkContext, at_once: int | None, answers: Mapping[str, Answer]
) -> Iterator[frozenset[str] | None]:
    """Yield the hosts that are to be asked together; None: all that are there."""
    if at_once is None or _hosts(context) <= at_once:
        yield None
        return
    hosts = sorted({each.host for each in _ask(context, b"", (), frozenset())} - answers.keys())
    for begin in range(0, len(hosts), max(1, at_once)):
        yield frozenset(hosts[begin : begin + max(1, at_once)])


def _ask(context: SparkContext, packed: bytes, needed: tuple[str, ...], hosts: frozenset[str] | None) -> list[Answer]:
    """Ask these hosts, once per process; the others tell their names."""
    # More questions than slots, and each holds its slot for a moment: so they reach every host.
    count = max(2, 2 * int(context.defaultParallelism))
    task = functools.partial(_answered, packed, needed, hosts)
    told: list[Answer] = context.parallelize(range(count), count).mapPartitions(task).collect()
    return told


def _why_nothing_was_lent(context: SparkContext) -> str:
    """Return the reason where somebody would expect it otherwise, "" elsewhere."""
    if not shows_its_secret(context.getConf(), context.master):
        return ""
    return (
        "The driver lends no variables although lines are encrypted, since Spark writes their secret into the "
        f"specification of its pods, where others read it. To lend them, {how_to_encrypt(context.master)}"
    )


def _refuse(faults: list[Answer], why_nothing_was_lent: str = "") -> None:
    """Raise where there is a fault, naming all of them."""
    if not faults:
        return
    told = "; ".join(f"host {each.host}: {each.fault}" for each in faults)
    # All: one host that will never do makes another try pointless.
    kind = WorkerCutOff if all(each.retry for each in faults) else WorkerUnfit
    ways = [each.way_out for each in faults]
    if any("Environment variable" in each.fault for each in faults):
        ways.append(why_nothing_was_lent)
    ways_out = "".join(f". {each}" for each in dict.fromkeys(ways) if each)
    raise kind(f"Spark's workers cannot do this export. {told}{ways_out}")


@functools.lru_cache(maxsize=1)
def _needed() -> Mapping[str, Any]:
    """Return which versions of other packages Rivet takes, `SpecifierSet` by name; {} where it was not installed."""
    from packaging.requirements import Requirement  # start

    with suppress(importlib.metadata.PackageNotFoundError):
        asked = map(Requirement, importlib.metadata.requires("rivet") or ())
        # PySpark's Python side comes from Spark's own installation there, whatever else lies beside it.
        return {each.name: each.specifier for each in asked if each.specifier and each.name != "pyspark"}
    return {}


def _judged(answer: Answer) -> Answer:
    """Return an answer with a fault where the host has another version of a package than Rivet takes."""
    needed = _needed()
    others = [
        f"{name} {version}, and Rivet takes {needed[name]}"
        for name, version in answer.versions
        if not needed[name].contains(version, prereleases=True)
    ]
    if not others:
        return answer
    # In place of what came of it: a fault that an old package raised says nothing to anybody.
    return replace(answer, fault=f"its Python has {'; '.join(others)}", retry=False, way_out=INSTALL)


def lendable(context: SparkContext, *blocks: object) -> Variables:
    """Return the variables that these blocks name, with their values, where Spark's own lines are encrypted.

    Where secrets lie in stores is told in any case: it is no secret, and each host reads them with its own rights.
    """
    told = declared_references()
    # Variables hold passwords. Over plain lines they stay here, and a host must have its own.
    if not is_encrypted(context.getConf(), context.master):
        return told
    return {**{name: os.environ[name] for name in named_variables(*blocks) if name in os.environ}, **told}


def with_variables(session: SparkSession, act: Act, *blocks: object) -> Act:
    """Return what `mapInArrow` takes, such that the variables of these blocks are there wherever it runs."""
    # A client of Spark Connect does not know how its server speaks to its workers, so nothing is lent.
    is_client = ".connect." in type(session).__module__
    lent = declared_references() if is_client else lendable(session.sparkContext, *blocks)
    return functools.partial(_having, act, lent) if lent else act


def _having(act: Act, lent: Variables, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Run in an executor."""
    lend(lent)
    yield from act(batches)


def _hosts(context: SparkContext) -> int:
    executors: Any = context._jsc.sc().statusTracker().getExecutorInfos()
    driver = str(context.getConf().get("spark.driver.host"))
    # Spark lists the driver among its executors.
    return len({each.host() for each in executors} - {driver}) or 1


def _answered(
    packed: bytes, needed: tuple[str, ...], hosts: frozenset[str] | None, _: Iterator[int]
) -> Iterator[Answer]:
    """Run in an executor: answer once per host and process, and hold the slot for a moment."""
    if hosts is None or socket.gethostname() in hosts:
        yield replace(_asked(packed), versions=_versions(needed))
    else:
        yield Answer(socket.gethostname(), asked=False)
    time.sleep(SPREAD_SECONDS)


def _versions(names: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """Return the versions of those of these packages that this process has imported."""
    found = []
    for name in names:
        # Not `packages_distributions`, which reads the list of files of all packages.
        if name.replace("-", "_").lower() in sys.modules:
            with suppress(importlib.metadata.PackageNotFoundError):
                found.append((name, importlib.metadata.version(name)))
    return tuple(found)


@functools.lru_cache(maxsize=4)
def _asked(packed: bytes) -> Answer:
    host = socket.gethostname()
    try:
        question: Question = pickle.loads(packed)
        lend(question.lent)
        return Answer(host, fault=_fault(question))
    except RivetError as error:
        return Answer(host, fault=str(error), retry=error.retry)
    except ModuleNotFoundError as error:
        return Answer(host, fault=f"its Python, {sys.executable}, lacks the package {error.name}", way_out=INSTALL)
    except Exception as error:
        # A foreign text may hold a secret.
        return Answer(host, fault=f"{type(error).__name__} was raised while it was asked")


def _fault(question: Question) -> str:
    """Do what a task does, and return what is wrong; "" where nothing is.

    Raises:
        RivetError: an end cannot be reached, or there is no room for unfinished parts.
    """
    ends = question.ends
    # `snapshot=False`: one question per host must not hold a transaction open at the source.
    with _one_at_a_time(), ends.source.session(application="rivet probe", pace=ends.pace, snapshot=False) as session:
        session.now()
    root = ends.destination.root(ends.export)
    if question.marker and root.read(question.marker) is None:
        return f"{root.uri} is another place there than on this machine; use one that both can reach"
    # `Root.check` has one name, and several processes ask at once.
    own = f"{PROBE}_{uuid.uuid4().hex[:8]}"
    root.put(own, b"rivet")
    root.delete([own])
    for name in named_variables(*ends.steps):
        if read_variable(name) is None:
            return f"Environment variable {name} (of `transforms`) is not set. Export it, then run again."
    with scratch.temporary("probe") as folder, scratch.enough_room(folder):
        (folder / "room").write_bytes(bytes(ROOM_BYTES))
    return ""


@contextmanager
def _one_at_a_time() -> Iterator[None]:
    """Let one process of a host connect after the other: many slots must not cost the source as many connections."""
    try:
        path = Path(tempfile.gettempdir()) / f"rivet-probe-{os.getuid()}.lock"
        lock = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    except OSError:
        yield  # what is wrong with the folder is asked for by itself
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def unfit(told: str, context: SparkContext | None = None) -> WorkerUnfit | None:
    """Return why a worker could not run a task at all, read from Spark's own words; None where it is nothing known.

    Args:
        context: whose job it was; it knows the host where the words do not.
    """
    found = next(((pattern, form, match) for pattern, form in MISFITS if (match := pattern.search(told))), None)
    if found is None:
        return None
    pattern, form, match = found
    name = host_of(told) or _failed_on(context, pattern)
    host = f"Spark's worker on {name}" if name else "A worker of Spark"
    return WorkerUnfit(
        f"{host} {form.format(*match.groups())}. This machine runs Python {sys.version_info[0]}.{sys.version_info[1]}."
    )


def cluster_fault(told: str, context: SparkContext | None) -> RivetError | None:
    """Return what Spark's words of a job that failed mean where they are of the cluster, and not of the task."""
    return kubernetes.fault_of(context) or application_end(told, context) or unfit(told, context)


def application_end(told: str, context: SparkContext | None) -> SparkEnded | None:
    """Return that the application was ended, by whom if that is known; None where it goes on.

    Args:
        told: Spark's words of a job that failed.
        context: whose job it was.
    """
    removed = re.search(r"Master removed our application: (\w+)", told)  # a standalone master
    if context is None or not (removed or "SparkContext was shut down" in told or is_stopped(context)):
        return None
    state, reason = (removed[1], "") if removed else _told_end(context)
    words = f"Spark's application on {context.master} was ended while it worked"
    words += f": {state}{f' ({reason})' if reason else ''}" if state else ""
    if state == "KILLED":
        return SparkKilled(f"{words}. Nothing was published. It is not started again by itself; run again to go on.")
    return SparkEnded(f"{words}. Nothing was published. The cluster's own log of it tells why; run again.")


def _told_end(context: SparkContext) -> tuple[str, str]:
    """Return what its cluster manager tells of an application that has ended: its state, and a reason."""
    if context.master == "yarn":
        return yarn.end_of(context)
    return kubernetes.end_of(context) if is_kubernetes(context.master) else ("", "")


def is_stopped(context: SparkContext) -> bool:
    """Return whether a context is of no use any more, whoever stopped it; a JVM that is gone included."""
    scala: Any = context._jsc
    try:
        return scala is None or bool(scala.sc().isStopped())
    except Exception:
        return True


def _failed_on(context: SparkContext | None, pattern: re.Pattern[str]) -> str:
    """Return the hosts whose tasks failed with such words; of an exception in Python, Spark 4 tells nothing else."""
    if context is None:
        return ""
    hosts: set[str] = set()
    # What Spark remembers of its tasks comes a little later than the end of the job.
    for _ in range(MEMORY_LOOKS):
        # A message that lacks a name is better than none.
        with suppress(Exception):
            hosts = {host for host, told in _failed_tasks(context) if pattern.search(told)}
        if hosts:
            break
        time.sleep(0.1)
    return ", ".join(sorted(hosts))


def _failed_tasks(context: SparkContext) -> Iterator[tuple[str, str]]:
    """Yield the host of each task that failed, and what it said."""
    store: Any = context._jsc.sc().statusStore()
    tracker = context.statusTracker()
    jobs = [job for number in tracker.getJobIdsForGroup(None) if (job := tracker.getJobInfo(number)) is not None]
    for stage in (stage for job in jobs for stage in job.stageIds):
        tasks = store.taskList(stage, 0, MOST_TASKS)
        for task in (tasks.apply(number) for number in range(tasks.size())):
            if task.status() == "FAILED":
                yield task.host(), task.errorMessage().get()


def host_of(told: str) -> str:
    """Return the host that Spark's own words name, "" where they name none."""
    executor = EXECUTOR.search(told)
    return executor[1] if executor else ""
