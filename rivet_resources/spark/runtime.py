"""The Spark session: started when first asked for, shared by everybody in the process, stopped by who started it.

Belongs here: sharing and ending a session. Not here: the ways to one and its settings
(`sessions.py`), jobs (`read/stage.py`).
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rivet_resources.contracts.settings import Spark, is_cluster, is_kubernetes
from rivet_resources.errors import SparkUnavailable
from rivet_resources.secrets import declared_references
from rivet_resources.spark import cluster, jvm, jvm_archive, kubernetes, yarn
from rivet_resources.spark import sessions as spark_sessions
from rivet_resources.spark.cluster import Ends
from rivet_resources.spark.idle import IdleWatch, StartWatch

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    from rivet_resources.contracts.extract import Extract

log = logging.getLogger(__name__)

# For our own jobs: three operators per plan are not worth a compiler (0.6 CPU s per run, measured).
TASK_CONF: Mapping[str, str] = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
}

REFUSAL_SECONDS = 20.0
MOST_PARALLEL = 256  # one thread of the driver each


@dataclass
class _Started:
    """The process's one Spark, who uses it, and how it ends."""

    settings: Spark
    context: SparkContext | None = None  # None: a Connect client
    opened: SparkSession | None = None  # made of the context when first asked for
    jvm: jvm.Jvm | None = None  # None: a Connect client, or a JVM that this process had before
    submitted: bool = False  # by spark-submit
    users: set[SparkRuntime] = field(default_factory=set)
    watch: IdleWatch | None = None  # of a cluster

    def is_alive(self) -> bool:
        """Return whether it can still be used; somebody may have stopped it, or killed the JVM."""
        if self.jvm is not None and self.jvm.process.poll() is not None:
            return False
        # A cluster manager stops the context of an application that it ended, and leaves its JVM.
        return self.context is None or not cluster.is_stopped(self.context)

    def session(self) -> SparkSession:
        """Return the session, making it at the first call."""
        # A session is made of its context only when somebody asks for one: the tasks of exports run as plain jobs, and
        # the classes of SQL and their work are half of a JVM's start (8.4 CPU s with them, 4.2 without, measured
        # 2026-11).
        if self.opened is None:
            assert self.context is not None
            self.opened = spark_sessions.session_over(self.context)
        return self.opened


@dataclass(frozen=True)
class _Early:
    """A JVM that comes up while its owner still plans."""

    jvm: jvm.Jvm
    owner: SparkRuntime


@dataclass(frozen=True)
class _Refusal:
    """Why Kubernetes let no application begin, and until when nobody asks it again."""

    settings: Spark
    error: SparkUnavailable
    until: float  # of `time.monotonic`


# One session per process, because `getOrCreate` would silently hand the second resource the first one's session anyway
# (`dagster.md`, section 6): runtimes that start while one is up join it, and the last to stop ends it.
_lock = threading.RLock()
_started: _Started | None = None
_early: _Early | None = None
_refusal: _Refusal | None = None


class SparkRuntime:
    """Spark as configured, lazily. Threads may share it; it is not picklable and never reaches a task."""

    def __init__(
        self,
        settings: Spark,
        *,
        archive: tuple[str, ...] | None = None,
        session_of: Callable[[], SparkSession] | None = None,
    ) -> None:
        self.settings = settings
        self._session_of = session_of  # of `spark: {resource: …}`: never started nor stopped by us
        self._archive = archive  # None: whatever archive exists; given: the flags of a recording
        self._task_session: SparkSession | None = None
        self._examined: set[str] = set()  # pairs of source and destination that every host could reach

    @property
    def inline(self) -> bool:
        """Return whether tasks run in this process, without a JVM."""
        return self.settings.engine == "inline"

    @property
    def is_remote(self) -> bool:
        """Return whether the session is a Spark Connect client's."""
        if self._session_of is not None:
            return ".connect." in type(self._session_of()).__module__
        return self.settings.remote is not None

    @property
    def is_cluster(self) -> bool:
        """Return whether tasks run on other machines, as far as the settings tell."""
        if self.inline:
            return False
        if self._session_of is not None:
            return self.is_remote or is_cluster(self._any_context().master)
        return self.settings.is_cluster

    @property
    def is_encrypted(self) -> bool:
        """Return whether what the driver tells a cluster's tasks is encrypted, as far as the settings tell."""
        return self.settings.is_encrypted

    @property
    def most_parallel(self) -> int:
        """Return how many tasks a cluster may run at once when it has grown as far as it is allowed to."""
        conf: Mapping[str, str] = self.settings.conf if self.is_remote else dict(self._any_context().getConf().getAll())
        # Those of YARN and Kubernetes may still be starting.
        executors = max(
            int(conf.get(key, "0")) for key in ("spark.dynamicAllocation.maxExecutors", "spark.executor.instances")
        )
        grown = executors * int(conf.get("spark.executor.cores", "1"))
        with spark_sessions.refusals(self.settings.remote or self.settings.master):
            return min(MOST_PARALLEL, max(grown, self.parallelism))

    def examine(self, extract: Extract, *, at_once: int) -> None:
        """Ask each host of a cluster, once per source and destination, whether it can reach both.

        Args:
            at_once: how many connections the questions may hold at an instant.

        Raises:
            WorkerUnfit: a host cannot.
        """
        if not self.is_cluster or self.is_remote:
            return
        # Once per pair and not per extract: the question costs each host a connection, and an export has many windows.
        ends = f"{extract.source!r} {extract.destination!r} {extract.transforms!r}"
        if ends not in self._examined:
            hosts = self.hosts(
                Ends(extract.source, extract.destination, extract.export, extract.pace, extract.transforms),
                at_once=at_once,
            )
            log.info("Spark's workers can do the work: %s", ", ".join(hosts))
            self._examined.add(ends)

    def hosts(self, ends: Ends, *, at_once: int | None = None) -> list[str]:
        """Return the hosts of a cluster that are there, each of which can reach both ends.

        Args:
            at_once: as in `examine`; None: one connection from each host.

        Raises:
            SparkUnavailable: no session could be started.
            WorkerUnfit: a host cannot.
        """
        return cluster.examine(self._any_context(), ends, at_once=at_once)

    def lendable(self, extract: Extract) -> Mapping[str, str]:
        """Return the variables that an extract names, for workers that lack them; none where lines are not encrypted.

        On this machine the workers have them already.
        """
        if not self.is_cluster or self.is_remote:
            return declared_references()
        return cluster.lendable(self._any_context(), extract)

    @property
    def parallelism(self) -> int:
        """Return how many tasks can run at once; a local master answers without starting."""
        if self.inline:
            return 1
        if (cores := _local_cores(self.settings.master)) and not (self._session_of or self.is_remote):
            return cores
        if self.is_remote:
            from pyspark.sql.functions import spark_partition_id  # Spark

            # Connect has no context to ask; a range is cut into as many partitions as there are cores.
            return int(self.session().range(0, 100_000).select(spark_partition_id()).distinct().count())
        return int(self._any_context().defaultParallelism)

    @property
    def task_attempts(self) -> int:
        """Return how often Spark starts a task before it gives up."""
        key, default = "spark.task.maxFailures", "4"
        if self.is_remote:
            return int(self.settings.conf.get(key, default))
        context = self._any_context()
        if context.master.startswith("local"):
            form = re.fullmatch(r"local\[[^,\]]+,\s*(\d+)\]", context.master)
            # A plain local[N] grants one attempt, whatever spark.task.maxFailures says.
            return int(form[1]) if form else 1
        return int(context.getConf().get(key, default) or default)

    @property
    def process(self) -> subprocess.Popen[bytes] | None:
        """Return the JVM's process when we started it, else None."""
        with _lock:
            return _started.jvm.process if _started and _started.jvm else None

    def begin(self) -> None:
        """Start the JVM and return at once, so that it comes up while the caller plans; `session` waits for it.

        Does nothing where a session is up, or somebody in this process is starting one.
        """
        global _early
        # Without waiting: whoever has the lock is starting or stopping Spark, and this call is only there to save time.
        if self.inline or self._session_of or not _lock.acquire(blocking=False):
            return
        try:
            if not (_early or _started or _is_someone_elses() or spark_sessions.needs_submit(self.settings)):
                _early = _Early(spark_sessions.start_jvm(self.settings, self._archive), self)
        finally:
            _lock.release()

    def session(self) -> SparkSession:
        """Return the session, starting it at the first call; the same one for all runtimes of this process.

        Raises:
            SparkUnavailable: no Java, no answer, or settings that Spark refuses; inline settings too.
        """
        if self._session_of is not None:
            return self._session_of()
        with _lock:
            started = self._join()
            # A session that was there before us is used as it is, and never stopped by us.
            return _someone_elses_session() if started is None else started.session()

    def context(self) -> SparkContext | None:
        """Return the context that plain jobs run in, starting it at the first call.

        None where only DataFrames are sure to work: with Spark Connect, and in a session that is somebody else's.

        Raises:
            SparkUnavailable: as `session`.
        """
        if self._session_of is not None:
            return None
        with _lock:
            started = self._join()
            return None if started is None else started.context

    def _join(self) -> _Started | None:
        """Use the Spark of this process, starting it where there is none; None: it is somebody else's. With the lock.

        Raises:
            SparkUnavailable: as `session`.
        """
        global _started
        if self.inline:
            raise SparkUnavailable(
                "`spark: inline` has no Spark session. Remove that line, or give `spark: {master: …}` or `{remote: …}`."
            )
        # A JVM that was killed (as by the system for its memory) must not fail every later export of this process.
        if _started is not None and not _started.is_alive():
            if _started.watch is not None:
                _started.watch.end()
            _forget(_started.jvm)
            _started = self._task_session = None
        if _started is None:
            if _is_someone_elses():
                return None
            _started = self._start()
        elif _started.settings != self.settings and self not in _started.users:
            log.warning("A Spark session with other settings runs in this process already; it is used as it is.")
        _started.users.add(self)
        return _started

    def _any_context(self) -> SparkContext:
        """Return the context of the session that there is, maybe somebody else's; not of a Connect client."""
        return self.context() or self.session().sparkContext

    def _standing_context(self) -> SparkContext | None:
        """Return the context that there is, None where there is none; never a new one, which costs a place in a queue.

        Jobs of a context that has ended have ended too.
        """
        if self._session_of is not None:
            return self._any_context()
        with _lock:
            if _started is None:
                return self._any_context() if _is_someone_elses() else None
            return _started.context if _started.is_alive() else None

    def task_session(self) -> SparkSession:
        """Return a session of the same Spark for our own jobs, whose settings are not the user's."""
        session = self.session()
        with _lock:
            if self.is_remote:
                return session
            if self._task_session is None or self._task_session.sparkContext is not session.sparkContext:
                # Another session of the same Spark: the user's SQL settings may change what our plans do, and ours
                # theirs.
                self._task_session = session.newSession()
                for key, value in TASK_CONF.items():
                    self._task_session.conf.set(key, value)
            return self._task_session

    @contextlib.contextmanager
    def tagged(self, tag: str) -> Iterator[None]:
        """Mark the jobs that this thread submits meanwhile, for `call_off`."""
        marks: Any = self.session() if self.is_remote else self._any_context()
        # Not `SparkSession.addTag` in a session of our own JVM: its tags are known to the thread that set them only.
        add, remove = ("addTag", "removeTag") if self.is_remote else ("addJobTag", "removeJobTag")
        getattr(marks, add)(tag)
        try:
            yield
        finally:
            # The session may be what died.
            with contextlib.suppress(Exception):
                getattr(marks, remove)(tag)

    def call_off(self, tag: str) -> None:
        """Cancel the running jobs of a tag, from any thread; their Python processes are killed within seconds."""
        # The session may be what died.
        with contextlib.suppress(Exception):
            if self.is_remote:
                self.session().interruptTag(tag)
            elif (context := self._standing_context()) is not None:
                context.cancelJobsWithTag(tag)

    def stop(self) -> None:
        """Let go of the session; it ends when we started it and nobody else in this process uses it."""
        global _started
        with _lock:
            self._task_session = None
            if _early is not None and _early.owner is self and (unused := self._take_early()):
                unused.end()
            if _started is None or self not in _started.users:
                return
            _started.users.discard(self)
            # The last one out: in a code location several exports share one JVM, and the first to end must not take it
            # away.
            if not _started.users:
                ending, _started = _started, None
                _end(ending, archive=self._archive)

    def _start(self) -> _Started:
        if self.settings.remote:
            session = spark_sessions.connect(self.settings)
            session.addArtifacts(str(cluster.archive()), pyfile=True)
            return _Started(self.settings, opened=session)
        spark_sessions.refuse_silent_master(self.settings.master)
        yarn.refuse_silent_manager(self.settings)
        kubernetes.refuse_silent_api(self.settings)
        if spark_sessions.needs_submit(self.settings):
            return self._submit()
        started = self._take_early() or spark_sessions.start_jvm(self.settings, self._archive)
        try:
            context = spark_sessions.classic(self.settings, started)
            watch = self._ship(context)
        # Ctrl-C too: a JVM that nobody remembers would stay until this process ends.
        except BaseException:
            _forget(started)
            raise
        atexit.register(_end_at_exit)
        return _Started(self.settings, context, jvm=started, watch=watch)

    def _submit(self) -> _Started:
        global _refusal
        # The start beside the plan was refused, and the export that needs it asks again: it would make new pods.
        if _refusal is not None and _refusal.settings == self.settings and time.monotonic() < _refusal.until:
            raise _refusal.error
        try:
            with StartWatch(self.settings):
                started, session = spark_sessions.submit(self.settings)
            try:
                watch = self._ship(session.sparkContext, started)
            except BaseException:
                _forget(started)
                raise
        except SparkUnavailable as error:
            if is_kubernetes(self.settings.master):
                _refusal = _Refusal(self.settings, error, time.monotonic() + REFUSAL_SECONDS)
            raise
        atexit.register(_end_at_exit)
        return _Started(self.settings, session.sparkContext, session, jvm=started, submitted=True, watch=watch)

    def _ship(self, context: SparkContext, started: jvm.Jvm | None = None) -> IdleWatch | None:
        """Send our package to the workers of a cluster, and begin to watch whether there are any."""
        if not is_cluster(context.master):
            return None
        with spark_sessions.refusals(context.master):
            context.addPyFile(str(cluster.archive()))
        if not is_kubernetes(context.master):
            return IdleWatch(context)
        watch = IdleWatch(context, kubernetes.executors_of(context, started.log_file if started else None))
        try:
            watch.await_executors(kubernetes.first_executors(context.getConf()))
        except BaseException:
            watch.end()
            raise
        return watch

    def _take_early(self) -> jvm.Jvm | None:
        """Take over the JVM that `begin` started, if its settings are ours; else end it."""
        global _early
        early, _early = _early, None
        if early is None or (early.owner.settings == self.settings and early.owner._archive == self._archive):
            return early.jvm if early else None
        # Other memory or another archive: those are options of the JVM's command line and cannot be changed any more.
        early.jvm.end()
        return None


def _local_cores(master: str) -> int | None:
    """Read the cores of a local master, None for a cluster."""
    form = re.fullmatch(r"local(?:\[(\*|\d+)(?:\s*,\s*\d+)?\])?", master)
    if not form:
        return None
    if form[1] == "*":
        # Not the machine's cores: a container or `taskset` may leave us fewer, and each task is a process.
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return int(form[1] or 1)


def _is_someone_elses() -> bool:
    """Return whether somebody else started Spark in this process; asked where we did not."""
    if "pyspark" not in sys.modules:
        return False
    from pyspark import SparkContext  # Spark

    return SparkContext._active_spark_context is not None


def _someone_elses_session() -> SparkSession:
    """Return the session that somebody else started."""
    from pyspark.sql import SparkSession  # Spark

    # pandas, which nobody may have installed.
    spark_sessions.spare_pandas()
    return SparkSession.builder.getOrCreate()


def _end(ending: _Started, *, archive: tuple[str, ...] | None) -> None:
    if ending.watch is not None:
        ending.watch.end()
    if ending.jvm is None:
        ending.session().stop()
        return
    if ending.submitted:
        # In order, and waited for: a cluster manager is told that the application has ended, and removes its files.
        with contextlib.suppress(Exception):
            context: Any = ending.context
            context._jsc.stop()
    _forget(ending.jvm)
    if archive is None and not ending.submitted:
        # Behind the end: recording beside a run made it twice as slow (measured, `jvm_archive.py`).
        jvm_archive.build_in_background(jvm.find_java())


def _forget(started: jvm.Jvm | None) -> None:
    """End a JVM and clear what pyspark remembers of it, so that a new session can start."""
    from pyspark import SparkContext  # Spark
    from pyspark.sql import SparkSession  # Spark

    context = SparkContext._active_spark_context
    if context is not None and started is not None:
        # Taken away before `stop`, which would wait for its thread, and given a quiet end of its own.
        accumulators, context._accumulatorServer = context._accumulatorServer, None
        # Not `session.stop()`: that waits a second for the JVM to tidy up, which its shutdown hooks do without us.
        context._jsc = None
        # With no JVM side left: clears the class's own memory.
        context.stop()
        if accumulators is not None:
            # Takes up to a second to notice.
            threading.Thread(target=accumulators.shutdown, daemon=True).start()
    # pyspark keeps its one session and gateway in class attributes; what is left there would be handed to the next
    # caller.
    SparkSession._instantiatedSession = None
    SparkSession._activeSession = None
    SparkContext._gateway = None
    SparkContext._jvm = None
    if started is not None:
        started.end()


def _end_at_exit() -> None:
    """End what is still up when the process leaves, so that the JVM's log folder does not stay behind."""
    global _started
    with _lock:
        if _started is not None:
            ending, _started = _started, None
            _end(ending, archive=None)
