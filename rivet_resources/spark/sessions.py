"""The three ways to a Spark session: a JVM started directly, spark-submit, a Connect endpoint.

Belongs here: which settings are fixed and why, and what a refusal of Spark means. Not here: who shares
the session and when it ends (`runtime.py`), the JVM's command line (`jvm.py`).
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from rivet_resources import extras
from rivet_resources.contracts.settings import Spark, is_cluster, is_kubernetes
from rivet_resources.errors import SparkUnavailable
from rivet_resources.secrets import declared_references
from rivet_resources.spark import jvm, jvm_archive, kubernetes

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

# Each with its reason; `spark: conf:` may override any (`engine.md`, section 8).
FIXED: Mapping[str, str] = {
    "spark.app.name": "rivet",
    "spark.ui.enabled": "false",  # 1 s of start, and a port
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.catalogImplementation": "in-memory",  # no Hive metastore beside the lake
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "100000",  # all descriptors of a task in one batch
    "spark.python.worker.reuse": "true",
    "spark.task.cpus": "1",
}
LOCAL: Mapping[str, str] = {
    "spark.driver.host": "127.0.0.1",  # a laptop that changes networks keeps its driver
    "spark.driver.bindAddress": "127.0.0.1",
}
# Spark's own pattern, and what the variables of executors and addresses of databases are called.
REMOTE: Mapping[str, str] = {
    "spark.redaction.regex": r"(?i)secret|password|token|access[.]?key|executorEnv|appMasterEnv|[._-](url|dsn)\b",
}
KUBERNETES: Mapping[str, str] = {
    # Spark would wait for its first executors inside of its start, where it hears no signal and where an end leaves
    # pods behind; `IdleWatch.await_executors` waits instead.
    "spark.scheduler.maxRegisteredResourcesWaitingTime": "0s",
    # Spark 4.3 counts each pod that a quota does not allow, once a second, and ends the application after some, also
    # one that has executors at work. Those that end by themselves are counted in `kubernetes.py`.
    "spark.executor.maxNumFailures": "1000000000",
}
# Only spark-submit understands these: packages are downloaded, cluster managers are prepared.
NEEDS_SUBMIT = ("spark.jars", "spark.submit.", "spark.kubernetes.", "spark.yarn.")
# Workers are forked with their imports done; where forking a process with libraries loaded is safe.
DAEMON = {"spark.python.daemon.module": "rivet_resources.spark.worker_daemon"}
FORKING: Mapping[str, str] = DAEMON if sys.platform == "linux" else {}
CONNECT_TIMEOUT_SECONDS = 5.0


def needs_submit(settings: Spark) -> bool:
    """Return whether only spark-submit can start this: a cluster manager, packages, or a configured installation."""
    if settings.remote:
        return True
    conf_dir = Path(os.environ.get("SPARK_CONF_DIR") or jvm.spark_home() / "conf")
    return (
        not settings.master.startswith(("local", "spark://"))
        or any(key.startswith(NEEDS_SUBMIT) for key in settings.conf)
        or (conf_dir / "spark-defaults.conf").exists()
    )


def _conf(settings: Spark) -> dict[str, str]:
    # The daemon is a module of this package, which another machine has only once a job has sent it.
    own = REMOTE if is_cluster(settings.master) else {**LOCAL, **FORKING}
    if is_kubernetes(settings.master):
        own = {**own, **KUBERNETES}
    # Where secrets lie; each worker reads them with the rights of its host.
    own = {**own, **{f"spark.executorEnv.{name}": text for name, text in declared_references().items()}}
    return {**FIXED, **own, "spark.master": settings.master, **settings.conf}


def start_jvm(settings: Spark, archive: tuple[str, ...] | None) -> jvm.Jvm:
    java = jvm.find_java()
    launch = jvm.Launch(
        java, settings.driver_memory, settings.jit,
        archive=jvm_archive.use(java) if archive is None else archive,
        options=tuple(settings.conf.get("spark.driver.extraJavaOptions", "").split()),
        extra_class_path=settings.conf.get("spark.driver.extraClassPath", ""),
        # Elsewhere no task runs below it.
        niceness=settings.niceness if settings.master.startswith("local") else 0,
    )  # fmt: skip
    # SPARK_LOCAL_IP: else a warning about the host name. PYTHONPATH: tasks import this package, installed or not.
    local = {"SPARK_LOCAL_IP": "127.0.0.1"} if settings.master.startswith("local") else {}
    return jvm.start(launch, extra_env={**local, "PYTHONPATH": _python_path()})


def _python_path() -> str:
    here = str(Path(__file__).parents[2])
    return os.pathsep.join([here, *filter(None, [os.environ.get("PYTHONPATH")])])


def _python_of_tasks(settings: Spark) -> AbstractContextManager[None]:
    """Choose the interpreter of tasks: the configured one, else $PYSPARK_PYTHON, else on this machine our own.

    PySpark reads the variable when a context starts; `spark.pyspark.python` is read by spark-submit only. A path of
    this machine means nothing on another, where it is `python3` then.
    """
    own = None if is_cluster(settings.master) else sys.executable
    # The file first, as with spark-submit: a variable of somebody's profile must not outweigh what is written there.
    python = settings.conf.get("spark.pyspark.python") or os.environ.get("PYSPARK_PYTHON") or own
    return jvm.variables({} if python is None else {"PYSPARK_PYTHON": python})


def classic(settings: Spark, started: jvm.Jvm) -> SparkContext:
    """Make the context in a JVM that we started."""
    from pyspark import SparkConf, SparkContext  # Spark

    # Before the first call into the JVM with anything but texts.
    spare_pandas()
    # No defaults: what `_conf` says is all there is. The files of an installation go through spark-submit
    # (`needs_submit`).
    conf = SparkConf(loadDefaults=False).setAll(list(_conf(settings).items()))
    gateway = started.gateway()
    with _python_of_tasks(settings), refusals(settings.master):
        context = SparkContext(conf=conf, gateway=gateway)
    _quieten(context)
    return context


def session_over(context: SparkContext) -> SparkSession:
    """Make the session of a context.

    Raises:
        SparkUnavailable: a setting of its own that Spark refuses.
    """
    from pyspark.sql import SparkSession  # Spark

    spare_pandas()
    with refusals(context.master):
        session: SparkSession = SparkSession(context)
    return session


def spare_pandas() -> None:
    """Keep pyspark from importing pandas where only Arrow passes: 1.3 CPU s of each run (measured, PySpark 4.3).

    Its numpy converters import `pyspark.testing`, and with it pandas, to learn whether numpy is there; `mapInArrow`
    imports pandas to compare its version. The base does not install pandas; who uses it with Spark does.
    """
    import numpy as np  # start
    from pyspark.sql import types  # Spark
    from pyspark.sql.pandas import functions  # Spark

    types.NumpyScalarConverter.can_convert = lambda self, obj: isinstance(obj, np.generic)
    types.NumpyArrayConverter.can_convert = lambda self, obj: isinstance(obj, np.ndarray) and obj.ndim == 1
    functions.require_minimum_pandas_version = lambda: None  # type: ignore[attr-defined]


def is_for_context_alone(key: str) -> bool:
    """Return whether a setting is a secret that spark-submit itself does not need; those of Hadoop fetch packages."""
    return re.search("(?i)secret|password|token", key) is not None and not key.startswith("spark.hadoop.")


def submit(settings: Spark) -> tuple[jvm.Jvm | None, SparkSession]:
    """Start through pyspark's own launcher, which runs spark-submit; None where this process had a JVM already."""
    from pyspark import SparkConf, SparkContext  # Spark
    from pyspark.sql import SparkSession  # Spark

    spare_pandas()
    options = f"-XX:+UseSerialGC {' '.join(jvm.JIT[settings.jit])}"
    options = f"{options} {settings.conf.get('spark.driver.extraJavaOptions', '')}".strip()
    conf = {**_conf(settings), "spark.driver.memory": settings.driver_memory, "spark.driver.extraJavaOptions": options}
    # spark-submit is a shell script that knows only JAVA_HOME and the PATH, not the wheel's Java.
    home = {} if "JAVA_HOME" in os.environ else {"JAVA_HOME": str(jvm.find_java().home)}
    # Its settings stand in its command line, which every user of this machine can read. The context gets all of them
    # once its JVM is there.
    told = [(key, value) for key, value in conf.items() if not is_for_context_alone(key)]
    started: jvm.Jvm | None = None
    try:
        with jvm.variables(home | jvm.locale_of()), _python_of_tasks(settings), refusals(settings.master):
            if SparkContext._gateway is None:
                started = jvm.submit(SparkConf(loadDefaults=False).setAll(told))
                SparkContext._ensure_initialized(gateway=started.gateway())
            if is_kubernetes(settings.master):
                kubernetes.refuse_missing_rights(SparkContext._jvm, conf)
            session: SparkSession = SparkSession.builder.config(map=conf).getOrCreate()
    except BaseException:
        # Also of an interrupt: it would go on asking the cluster for a place.
        if started is not None:
            SparkContext._gateway = SparkContext._jvm = None
            started.end()
        raise
    _quieten(session.sparkContext)
    return started, session


def _quieten(context: SparkContext) -> None:
    """Keep a context from printing that the JVM hung up on it, in every end that is not in good order."""
    if context._accumulatorServer is not None:
        context._accumulatorServer.handle_error = lambda *_: None


def refuse_silent_master(master: str) -> None:
    """Raise where nobody listens at the addresses of a standalone master; Spark would try for a minute.

    Raises:
        SparkUnavailable
    """
    places = re.fullmatch(r"spark://(.+)", master)
    reasons = []
    for place in places[1].split(",") if places else ():
        at = urlsplit(f"//{place}")
        try:
            socket.create_connection((at.hostname or "", at.port or 7077), CONNECT_TIMEOUT_SECONDS).close()
            return
        except (OSError, ValueError) as error:
            reasons.append(f"{place}: {error}")
    if reasons:
        raise SparkUnavailable(
            f"Spark's master (`spark: master: {master}`) does not answer: {'; '.join(reasons)}. Check host and port "
            f"(form spark://host:7077), and that it runs; or remove `master` to run on this machine."
        )


def connect(settings: Spark) -> SparkSession:
    """Make a Spark Connect session; a silent endpoint is refused here, since the client would try for ten minutes."""
    remote = str(settings.remote)
    place = urlsplit(remote)
    try:
        socket.create_connection((place.hostname or "", place.port or 15002), CONNECT_TIMEOUT_SECONDS).close()
    except (OSError, ValueError) as error:
        raise SparkUnavailable(
            f"Spark Connect at {place.hostname}:{place.port or 15002} (`spark: remote`) does not answer: {error}. "
            f"Check host and port, form sc://host:15002, or remove `remote` to run on this machine."
        ) from error
    # A client sets what is of its session; the rest was decided when the server started.
    conf = {key: value for key, value in settings.conf.items() if key.startswith("spark.sql.")}
    try:
        from pyspark.sql import SparkSession  # Spark

        with refusals(f"{place.hostname}:{place.port or 15002}"):
            builder = SparkSession.builder.remote(remote).config("spark.sql.session.timeZone", "UTC")
            session: SparkSession = builder.config(map=conf).getOrCreate()
            return session
    except ImportError as error:
        raise SparkUnavailable(f"{extras.CONNECT.error()}, or remove `remote` to run on this machine.") from error


@contextlib.contextmanager
def refusals(where: str) -> Iterator[None]:
    """Turn whatever Spark throws at its start into one sentence."""
    from py4j.protocol import Py4JError  # Spark
    from pyspark.errors import PySparkException  # Spark

    try:
        yield
    except ImportError:
        # A missing package is told by whoever knows which to install.
        raise
    except (Py4JError, PySparkException) as error:
        reason = first_line(error)
        raise SparkUnavailable(
            f"Spark at {where} did not start: {reason}. Check `spark: master` and `spark: conf`, "
            f"or set `spark: inline` to work without Spark."
        ) from error


def first_line(error: Exception) -> str:
    """Return the first line of what Spark says of an error, without a Java stack."""
    java: Any = getattr(error, "java_exception", None)
    # `toString` and not the message of py4j, which adds the whole Java stack.
    text = str(java.toString()) if java is not None else str(error)
    return text.strip().splitlines()[0][:300] if text.strip() else type(error).__name__
