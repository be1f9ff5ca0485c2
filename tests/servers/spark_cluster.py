"""A Spark cluster of two hosts on one machine: Spark's own master and workers, each worker in namespaces of its own.

Belongs here: making and ending it, what its hosts can see. Not here: what a run on it must do (`tests/cluster`).

Each host has its own network address, host name, temporary folder and environment, and sees this repository as an empty
folder: only the packages that a user would install on a worker are there (a bind mount of the virtual environment).
Namespaces need root; without it the cluster cannot be made, and its tests are skipped with that reason. Each process
that makes clusters has a network of its own (`network`), so that two checkouts can be tested on one machine.
"""

from __future__ import annotations

import fcntl
import functools
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from rivet_resources.spark.jvm import find_java, spark_home

ROOT = Path(__file__).parents[2]
MASTER_PORT, MASTER_UI = 57077, 57080  # at an address of our own
WORKER = "org.apache.spark.deploy.worker.Worker"
MASTER = "org.apache.spark.deploy.master.Master"
START_SECONDS = 180


@dataclass(frozen=True)
class Network:
    """The addresses and names of one process's cluster; its number is nobody else's while the process lives."""

    number: int
    lock: int  # a file's number; the kernel frees it when the process dies, however that dies

    @property
    def driver(self) -> str:
        """Return the address of this machine that hosts reach."""
        return self.address(1)

    @property
    def master(self) -> str:
        """Return the URL for `spark: master`."""
        return f"spark://{self.driver}:{MASTER_PORT}"

    @property
    def bridge(self) -> str:
        """Return the name of the interface that joins the hosts."""
        return f"rvt{self.number}br"

    def address(self, last: int) -> str:
        """Return one address of the network."""
        return f"10.77.{self.number}.{last}"

    def host(self, number: int) -> str:
        """Return the name of a host."""
        return f"rvt{self.number}w{number}"


@functools.cache
def network() -> Network:
    """Return the network of this process, claimed at the first call."""
    for number in range(1, 255):
        lock = os.open(f"/run/lock/rivet-cluster-{number}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return Network(number, lock)
        except BlockingIOError:
            os.close(lock)
    raise OSError("all 254 networks of clusters are in use on this machine")


@functools.cache
def unmakeable() -> str:
    """Return why no cluster can be made here, "" where one can."""
    if sys.platform != "linux" or os.geteuid():
        return "a cluster of two hosts needs Linux and root, for network namespaces"
    if not shutil.which("ip") or not shutil.which("unshare"):
        return "a cluster of two hosts needs the programs ip and unshare"
    name = f"rvt{os.getpid()}"
    tried = [
        f"ip netns add {name}", f"ip link add v{name} type veth peer name p{name}", f"ip link add b{name} type bridge",
        f"ip netns exec {name} unshare -m -u --propagation private true",
    ]  # fmt: skip
    done = [subprocess.run(shlex.split(command), capture_output=True, text=True) for command in tried]
    for left in (f"link del v{name}", f"link del b{name}", f"netns del {name}"):
        subprocess.run(["ip", *left.split()], capture_output=True)
    refused = next((each for each in done if each.returncode), None)
    return f"no network namespace can be made: {refused.stderr.strip()}" if refused else ""


@dataclass
class Host:
    """A machine with one Spark worker."""

    name: str
    address: str
    folder: Path
    environment: Mapping[str, str]
    options: tuple[str, ...]
    others: Sequence[tuple[str, str]] = ()  # addresses and names of hosts that it knows, itself too
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the worker in namespaces of its own."""
        for each in ("tmp", "work"):
            (self.folder / each).mkdir(parents=True, exist_ok=True)
        own = (self.address, self.name)
        known = [("127.0.0.1", "localhost"), own, *(each for each in self.others if each != own)]
        (self.folder / "hosts").write_text("".join(f"{address} {name}\n" for address, name in known))
        python = self.folder.parent / "python"  # the same path on each
        python.mkdir(exist_ok=True)
        home = f"{python}/{spark_home().relative_to(sys.prefix)}"
        script = " && ".join(
            [
                f"hostname {self.name}",
                f"mount --bind {sys.prefix} {python}",
                f"mount -t tmpfs none {ROOT}",
                f"mount --bind {self.folder}/hosts /etc/hosts",  # where no name server knows these names
                "cd /",
                f"exec {find_java().executable} {self.program(home)}",
            ]
        )
        environment = {
            "PATH": os.environ["PATH"], "HOME": str(self.folder), "TMPDIR": str(self.folder / "tmp"),
            "SPARK_HOME": home, "SPARK_SCALA_VERSION": "2.13", "SPARK_LOCAL_IP": self.address,
            "SPARK_LOCAL_DIRS": str(self.folder / "tmp"),
            "PYSPARK_PYTHON": f"{python}/bin/python3", "JAVA_HOME": str(find_java().home), **self.environment,
        }  # fmt: skip
        space = ["ip", "netns", "exec", self.name, "unshare", "-m", "-u", "--propagation", "private"]
        with open(self.folder / "log", "ab") as log:
            self.process = subprocess.Popen(
                [*space, "sh", "-c", script.replace("/*", "/\\*")],
                env=environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip

    def program(self, home: str) -> str:
        """Return the options and the class of its one JVM; `home` is where Spark lies there."""
        at = f"--host {self.address} --work-dir {self.folder}/work --webui-port 0 {network().master}"
        return f"-Xmx128m {' '.join(self.options)} -cp {home}/jars/* {WORKER} --cores 2 --memory 1g {at}"

    def kill(self) -> None:
        """End it as a power failure does, with all that runs on it."""
        pids = subprocess.run(["ip", "netns", "pids", self.name], capture_output=True, text=True).stdout.split()
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def logs(self) -> str:
        """Return what its worker and executors wrote."""
        found = [self.folder / "log", *self.folder.glob("work/*/*/std*")]
        return "\n".join(path.read_text(errors="replace") for path in found)


@dataclass
class Cluster:
    """A master and its hosts."""

    folder: Path
    secret: str = ""
    hosts: list[Host] = field(default_factory=list)

    @property
    def python(self) -> str:
        """Return the Python of its hosts that has what Rivet needs, and not Rivet."""
        return f"{self.folder}/python/bin/python3"

    @property
    def environment(self) -> dict[str, str]:
        """Return what the driver's environment must say."""
        return {}

    @property
    def conf(self) -> dict[str, str]:
        """Return what `spark: conf` must say."""
        conf = {
            "spark.driver.host": network().driver, "spark.pyspark.python": self.python,
            "spark.executor.memory": "512m",
        }  # fmt: skip
        if self.secret:
            conf |= {"spark.authenticate": "true", "spark.authenticate.secret": self.secret}
            conf |= {"spark.network.crypto.enabled": "true"}
        return conf

    @property
    def options(self) -> tuple[str, ...]:
        """Return the options of the JVMs of masters and workers."""
        return tuple(f"-D{key}={value}" for key, value in self.conf.items() if "auth" in key or "crypto" in key)

    @property
    def master(self) -> str:
        """Return the URL for `spark: master`."""
        return network().master

    def workers(self) -> int:
        """Return how many workers the master knows alive."""
        with urllib.request.urlopen(f"http://{network().driver}:{MASTER_UI}/json/", timeout=5) as answer:
            return answer.read().decode().count('"state" : "ALIVE"')


def run(command: str) -> None:
    """Run a command of this machine."""
    subprocess.run(shlex.split(command), check=True, capture_output=True)


@contextmanager
def spark_cluster(
    folder: Path, *, hosts: int = 2, environment: Mapping[str, str] | None = None, secret: str = ""
) -> Iterator[Cluster]:
    """Make a cluster until the block ends.

    Args:
        environment: variables of its workers, and so of tasks.
        secret: of Spark's own, for masters and workers that speak to nobody without; lines are encrypted then.
    """
    cluster = Cluster(folder, secret)
    with ExitStack() as stack:
        stack.enter_context(bridge())
        stack.enter_context(_master(cluster))
        for number in range(hosts):
            name = network().host(number + 1)
            host = Host(name, network().address(11 + number), folder / name, environment or {}, cluster.options)
            stack.enter_context(namespace(host))
            host.start()
            stack.callback(host.kill)
            cluster.hosts.append(host)
        until(lambda: cluster.workers() >= hosts)
        yield cluster


def until(there: object) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        try:
            if there():  # type: ignore[operator]
                return
        except OSError:
            pass
        time.sleep(0.1)
    raise TimeoutError(f"the cluster was not up within {START_SECONDS} s")


@contextmanager
def bridge() -> Iterator[None]:
    name = network().bridge
    subprocess.run(["ip", "link", "del", name], capture_output=True)  # of tests that were killed
    run(f"ip link add {name} type bridge")
    try:
        run(f"ip addr add {network().driver}/24 dev {name}")
        run(f"ip link set {name} up")
        yield
    finally:
        run(f"ip link del {name}")


@contextmanager
def namespace(host: Host) -> Iterator[None]:
    host.folder.mkdir(parents=True)
    near, far = f"v{host.name}", f"p{host.name}"
    for left in (["netns", "del", host.name], ["link", "del", near]):  # of tests that were killed
        subprocess.run(["ip", *left], capture_output=True)
    run(f"ip netns add {host.name}")
    try:
        run(f"ip link add {near} type veth peer name {far}")
        run(f"ip link set {near} master {network().bridge}")
        run(f"ip link set {near} up")
        run(f"ip link set {far} netns {host.name}")
        for each in (f"addr add {host.address}/24 dev {far}", f"link set {far} up", "link set lo up"):
            run(f"ip netns exec {host.name} ip {each}")
        yield
    finally:
        run(f"ip link del {near}")
        run(f"ip netns del {host.name}")


@contextmanager
def _master(cluster: Cluster) -> Iterator[None]:
    folder = cluster.folder
    command = [
        str(find_java().executable), "-Xmx128m", *cluster.options, "-cp", f"{spark_home()}/jars/*", MASTER,
        "--host", network().driver, "--port", str(MASTER_PORT), "--webui-port", str(MASTER_UI),
    ]  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "master.log", "ab") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=log, stdin=subprocess.DEVNULL,
            env={**os.environ, "SPARK_LOCAL_IP": network().driver, "SPARK_HOME": str(spark_home())},
        )  # fmt: skip
    try:
        yield
    finally:
        process.kill()
        process.wait()
