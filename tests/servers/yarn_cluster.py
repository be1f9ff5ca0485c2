"""A YARN of two hosts on one machine: Hadoop's ResourceManager, and a NodeManager in namespaces of its own on each.

Belongs here: making and ending it, what its hosts can see, what an application left on them. Not here: namespaces
(`spark_cluster.py`), what a run on it must do (`tests/cluster`).

The jars of Hadoop are 70 MB that only these tests need: `RIVET_TEST_YARN` names a folder of them (`COPY` fills one).
Files are shared by `file:///`, as a cluster shares its HDFS: at the same path on each host.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from xml.sax.saxutils import escape

from rivet_resources.spark.jvm import find_java, spark_home
from tests.servers.spark_cluster import Host, bridge, namespace, network, until

COPY = "mvn -f .ci/yarn.xml dependency:copy-dependencies -DincludeScope=runtime -DoutputDirectory=FOLDER"
RESOURCE_MANAGER = "org.apache.hadoop.yarn.server.resourcemanager.ResourceManager"
NODE_MANAGER = "org.apache.hadoop.yarn.server.nodemanager.NodeManager"
RM_PORT, RM_UI, NM_PORT, NM_UI = 8032, 8088, 8041, 8042
HOST_MEMORY_MB = 2048


def jars() -> Path | None:
    """Return the folder of Hadoop's jars; None where there is none."""
    folder = Path(os.environ.get("RIVET_TEST_YARN", "/nowhere"))
    return folder if list(folder.glob("hadoop-yarn-server-nodemanager-*.jar")) else None


@dataclass
class YarnHost(Host):
    """A machine with one NodeManager."""

    conf_dir: Path = Path()

    def start(self) -> None:
        """Start the NodeManager in namespaces of its own."""
        own = {
            "yarn.nodemanager.hostname": self.address,
            "yarn.nodemanager.address": f"{self.address}:{NM_PORT}",
            "yarn.nodemanager.localizer.address": f"{self.address}:8040",
            "yarn.nodemanager.webapp.address": f"{self.address}:{NM_UI}",
            "yarn.nodemanager.local-dirs": f"{self.folder}/tmp/yarn",
            "yarn.nodemanager.log-dirs": f"{self.folder}/work",
        }
        self.conf_dir = _write_conf(self.folder / "conf", SETTINGS | _of_network() | own)
        self.environment = {**self.environment, "HADOOP_CONF_DIR": str(self.conf_dir)}
        super().start()

    def program(self, home: str) -> str:
        """Return the options and the class of its one JVM."""
        return f"-Xmx160m {' '.join(OPTIONS)} -cp {self.conf_dir}:{jars()}/* {NODE_MANAGER}"

    def logs(self) -> str:
        """Return what its NodeManager and containers wrote, their launch scripts too."""
        found = [self.folder / "log", *self.folder.glob("work/*/*/*")]
        return "\n".join(path.read_text(errors="replace") for path in found if path.is_file())


# For a machine that has little to spare; nothing of it changes what an application sees.
OPTIONS = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dhadoop.root.logger=INFO,console")
SETTINGS: Mapping[str, str] = {
    "fs.defaultFS": "file:///",
    "hadoop.http.staticuser.user": "root",
    "yarn.nodemanager.resource.memory-mb": str(HOST_MEMORY_MB),
    "yarn.nodemanager.resource.cpu-vcores": "4",
    "yarn.scheduler.minimum-allocation-mb": "128",
    "yarn.nodemanager.vmem-check-enabled": "false",
    "yarn.nodemanager.disk-health-checker.max-disk-utilization-per-disk-percentage": "99.5",
    "yarn.nodemanager.delete.debug-delay-sec": "600",  # so that tests can read launch scripts afterwards
    "yarn.nm.liveness-monitor.expiry-interval-ms": "6000",
    "yarn.nodemanager.env-whitelist": "JAVA_HOME",
    "yarn.scheduler.capacity.root.queues": "default",
    "yarn.scheduler.capacity.root.default.capacity": "100",
    "yarn.scheduler.capacity.maximum-am-resource-percent": "0.5",
}


def _of_network() -> dict[str, str]:
    """Return the addresses of the ResourceManager."""
    ports = {
        "address": RM_PORT,
        "scheduler.address": 8030,
        "resource-tracker.address": 8031,
        "admin.address": 8033,
        "webapp.address": RM_UI,
    }
    return {
        "yarn.resourcemanager.hostname": network().driver,
        **{f"yarn.resourcemanager.{key}": f"{network().driver}:{port}" for key, port in ports.items()},
    }


def _write_conf(folder: Path, settings: Mapping[str, str]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    properties = "".join(
        f"<property><name>{key}</name><value>{escape(value)}</value></property>\n" for key, value in settings.items()
    )
    for file in ("core-site.xml", "yarn-site.xml", "capacity-scheduler.xml"):
        (folder / file).write_text(f"<configuration>\n{properties}</configuration>\n")
    (folder / "log4j.properties").write_text(
        "log4j.rootLogger=INFO,console\nlog4j.appender.console=org.apache.log4j.ConsoleAppender\n"
        "log4j.appender.console.target=System.err\nlog4j.appender.console.layout=org.apache.log4j.PatternLayout\n"
        "log4j.appender.console.layout.ConversionPattern=%d %p %c: %m%n\n"
    )
    return folder


@dataclass
class YarnCluster:
    """A ResourceManager and its hosts; to tests what `Cluster` of Spark's own is."""

    folder: Path
    hosts: list[YarnHost] = field(default_factory=list)
    master: str = "yarn"
    manager: subprocess.Popen[bytes] | None = None

    @property
    def python(self) -> str:
        """Return the Python of its hosts that has what Rivet needs, and not Rivet."""
        return f"{self.folder}/python/bin/python3"

    @property
    def environment(self) -> dict[str, str]:
        """Return what the driver's environment must say."""
        return {"HADOOP_CONF_DIR": str(self.folder / "conf")}

    @property
    def conf(self) -> dict[str, str]:
        """Return what `spark: conf` must say."""
        home = spark_home().relative_to(sys.prefix)
        return {
            "spark.driver.host": network().driver, "spark.pyspark.python": self.python,
            "spark.executor.memory": "512m", "spark.executor.cores": "2", "spark.executor.instances": "2",
            "spark.yarn.am.memory": "512m", "spark.yarn.stagingDir": f"file://{self.folder}/staging",
            "spark.driver.extraJavaOptions": f"-Djdk.net.hosts.file={self.folder}/hosts",
            "spark.yarn.jars": f"local:{self.folder}/python/{home}/jars/*",
        }  # fmt: skip

    def asked(self, path: str) -> dict[str, object]:
        """Return what the ResourceManager's REST says."""
        with urllib.request.urlopen(f"http://{network().driver}:{RM_UI}/ws/v1/cluster/{path}", timeout=5) as answer:
            told: dict[str, object] = json.loads(answer.read())
        return told

    def workers(self) -> int:
        """Return how many NodeManagers the ResourceManager knows alive."""
        return json.dumps(self.asked("nodes")).count('"state": "RUNNING"')

    def start(self) -> None:
        """Start the ResourceManager."""
        conf = _write_conf(self.folder / "conf", {**SETTINGS, **_of_network()})
        command = [
            str(find_java().executable), "-Xmx192m", *OPTIONS, f"-Djdk.net.hosts.file={self.folder}/hosts",
            "-cp", f"{conf}:{jars()}/*", RESOURCE_MANAGER,
        ]  # fmt: skip
        with open(self.folder / "manager.log", "ab") as log:
            self.manager = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)

    def end(self) -> None:
        """End the ResourceManager as a power failure does."""
        if self.manager is not None:
            self.manager.kill()
            self.manager.wait()


@contextmanager
def yarn_cluster(
    folder: Path, *, hosts: int = 2, environment: Mapping[str, str] | None = None
) -> Iterator[YarnCluster]:
    """Make a cluster until the block ends.

    Args:
        environment: variables of its NodeManagers, which containers do not inherit.
    """
    cluster = YarnCluster(folder)
    (folder / "staging").mkdir(parents=True)
    names = [(network().address(11 + number), network().host(number + 1)) for number in range(hosts)]
    known = [("127.0.0.1", "localhost"), (network().driver, socket.gethostname()), *names]
    (folder / "hosts").write_text("".join(f"{address} {name}\n" for address, name in known))
    with ExitStack() as stack:
        stack.enter_context(bridge())
        cluster.start()
        stack.callback(cluster.end)
        for number in range(hosts):
            name = network().host(number + 1)
            host = YarnHost(name, network().address(11 + number), folder / name, environment or {}, (), names)
            stack.enter_context(namespace(host))
            host.start()
            stack.callback(host.kill)
            cluster.hosts.append(host)
        until(lambda: cluster.workers() >= hosts)
        yield cluster
