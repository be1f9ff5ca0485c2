"""A Kubernetes of one node on this machine: its own API server, scheduler, controllers, kubelet and containerd.

Belongs here: making and ending it, its image, asking its API. Not here: the network (`spark_cluster.py`), what a run on
it must do (`tests/cluster`).

The programs are 500 MB that only these tests need: `RIVET_TEST_KUBERNETES` names the folder whose `bin` holds them
(`MAKE` fills one). containerd and kubelet run in mount and process namespaces of their own, so that a kill of the one
process takes every pod along, and nothing of theirs is written to /var/lib, /run or the kernel's settings of this
machine. Pods have addresses on the bridge that the hosts of the other clusters have, and no way out of it. An
executor's image holds its entry point alone; Java, Python and packages are mounted from this machine, without Rivet.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import ssl
import subprocess
import sys
import tarfile
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from rivet_resources.spark.jvm import find_java, spark_home
from tests.servers.spark_cluster import bridge, network, until

MAKE = ".ci/kubernetes FOLDER"
PROGRAMS = (
    "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "containerd", "containerd-shim-runc-v2",
    "ctr", "runc", "etcd", "tini-static", "pause", "bridge", "host-local", "loopback",
)  # fmt: skip
API_PORT = 6443
ADMIN = "rivet-tests-admin"  # a token; the API listens on an address that only this machine has
NAMESPACE = "exports"
ACCOUNT = "rivet"  # the service account of drivers, with the rights that the guide names
IMAGE = "localhost/rivet-executor:test"
GUIDE = Path(__file__).parents[2] / "docs/guides/cluster.md"
WITH_US = ("setpriv", "--pdeathsig", "KILL")  # what starts it may be killed, and nothing of it may stay
CGROUPS = Path("/sys/fs/cgroup")
# What kubelet would set for the whole machine; it finds them as it wants them, in its own mount namespace.
# Source: Kubernetes, pkg/kubelet/cm/container_manager_linux.go, `setupKernelTunables`.
TUNABLES: Mapping[str, str] = {
    "vm/overcommit_memory": "1", "vm/panic_on_oom": "0", "kernel/panic": "10", "kernel/panic_on_oops": "1",
    "kernel/keys/root_maxkeys": "1000000", "kernel/keys/root_maxbytes": "25000000",
}  # fmt: skip


def programs() -> Path | None:
    """Return the folder of the programs; None where there is none."""
    folder = Path(os.environ.get("RIVET_TEST_KUBERNETES", "/nowhere")) / "bin"
    return folder if all((folder / name).exists() for name in PROGRAMS) else None


def from_guide(name: str) -> str:
    """Return a file that the guide shows: the block whose first line, or second behind `#!`, names it as a comment."""
    blocks = GUIDE.read_text().split("```")[1::2]
    for block in (each.partition("\n")[2] for each in blocks):
        if any(line.startswith(f"# {name}") for line in block.splitlines()[:2]):
            return block
    raise LookupError(f"{GUIDE} shows no {name}")


@dataclass
class Kubernetes:
    """A cluster of one node; to tests what `Cluster` of Spark's own is."""

    folder: Path
    node: subprocess.Popen[bytes] | None = None
    others: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def at(self) -> str:
        """Return the address of its API."""
        return f"https://{network().driver}:{API_PORT}"

    @property
    def master(self) -> str:
        """Return the URL for `spark: master`."""
        return f"k8s://{self.at}"

    @property
    def python(self) -> str:
        """Return the Python of its pods that has what Rivet needs, and not Rivet."""
        return "/opt/rivet/bin/python3"

    @property
    def environment(self) -> dict[str, str]:
        """Return what the driver's environment must say."""
        return {"KUBECONFIG": str(self.folder / "rivet.kubeconfig")}

    @property
    def conf(self) -> dict[str, str]:
        """Return what `spark: conf` must say."""
        return {
            "spark.driver.host": network().driver, "spark.pyspark.python": self.python,
            "spark.executor.memory": "512m", "spark.executor.cores": "2", "spark.executor.instances": "2",
            "spark.kubernetes.namespace": NAMESPACE, "spark.kubernetes.container.image": IMAGE,
            "spark.kubernetes.container.image.pullPolicy": "Never",
            "spark.kubernetes.executor.request.cores": "300m",
            "spark.kubernetes.executor.podTemplateFile": str(self.folder / "pod.yaml"),
        }  # fmt: skip

    def asked(self, path: str, *, method: str = "GET", body: Mapping[str, Any] | None = None, patch: str = "") -> Any:
        """Return what the API answers an administrator."""
        headers = {"Authorization": f"Bearer {ADMIN}", "Content-Type": patch or "application/json"}
        data = json.dumps(body).encode() if body is not None else None
        request = urllib.request.Request(self.at + path, data=data, method=method, headers=headers)
        known = ssl.create_default_context(cafile=str(self.folder / "api.pem"))
        with urllib.request.urlopen(request, timeout=20, context=known) as answer:
            return json.loads(answer.read())

    def make(self, document: Mapping[str, Any], *, namespace: str = NAMESPACE) -> None:
        """Make an object, as `kubectl create` does."""
        kind, version = str(document["kind"]), str(document["apiVersion"])
        at = "/api/v1" if version == "v1" else f"/apis/{version}"
        place = "" if kind == "Namespace" else f"/namespaces/{namespace}"
        self.asked(f"{at}{place}/{kind.lower()}s", method="POST", body=document)

    def pods(self, *, namespace: str = NAMESPACE, labels: str = "spark-role=executor") -> list[dict[str, Any]]:
        """List pods, those that have ended too."""
        found: list[dict[str, Any]] = self.asked(f"/api/v1/namespaces/{namespace}/pods?labelSelector={labels}")["items"]
        return found

    def delete_pod(self, name: str, *, namespace: str = NAMESPACE) -> None:
        """End a pod at once, as `kubectl delete pod --force --grace-period=0` does."""
        self.asked(f"/api/v1/namespaces/{namespace}/pods/{name}?gracePeriodSeconds=0", method="DELETE")

    def token(self, account: str = ACCOUNT, *, namespace: str = NAMESPACE) -> str:
        """Return a token of a service account."""
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
        return str(self.asked(path, method="POST", body=body)["status"]["token"])

    def write_kubeconfig(self, file: str, token: str) -> Path:
        """Write the file by which `kubectl`, kubelet and Spark find the API."""
        cluster = {"server": self.at, "certificate-authority": str(self.folder / "api.pem")}
        path = self.folder / file
        path.write_text(yaml.safe_dump({
            "apiVersion": "v1", "kind": "Config", "current-context": "it",
            "clusters": [{"name": "it", "cluster": cluster}], "users": [{"name": "it", "user": {"token": token}}],
            "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it", "namespace": NAMESPACE}}],
        }))  # fmt: skip
        return path

    def written(self) -> str:
        """Return what it knows and wrote of pods: their logs, all objects but secrets, the log of each of its parts."""
        kinds = ("pods", "configmaps", "events")
        told = "".join(json.dumps(self.asked(f"/api/v1/namespaces/{NAMESPACE}/{kind}")) for kind in kinds)
        logs = [*self.folder.glob("log/pods/*/*/*"), *self.folder.glob("*.log")]
        return told + "".join(path.read_text(errors="replace") for path in logs if path.is_file())

    def start(self, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        """Start one of its programs."""
        with open(self.folder / f"{Path(name).name}.log", "ab") as log:
            command = [*WITH_US, str(_bin() / name), *arguments]
            process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, cwd=self.folder)
        self.others.append(process)
        return process

    def start_api(self) -> None:
        """Start the store and the API."""
        at = f"http://127.0.0.1:{20_000 + network().number}"
        self.start(
            "etcd", "--data-dir", str(self.folder / "etcd"), "--listen-client-urls", at, "--advertise-client-urls", at,
            "--listen-peer-urls", f"http://127.0.0.1:{21_000 + network().number}",
        )  # fmt: skip
        key, certificate = str(self.folder / "api.key"), str(self.folder / "api.pem")
        (self.folder / "tokens").write_text(f'{ADMIN},admin,1,"system:masters"\n')
        self.start(
            "kube-apiserver", f"--etcd-servers={at}", f"--bind-address={network().driver}",
            f"--secure-port={API_PORT}", f"--advertise-address={network().driver}", f"--tls-cert-file={certificate}",
            f"--tls-private-key-file={key}", f"--service-account-issuer={self.at}",
            f"--service-account-key-file={key}", f"--service-account-signing-key-file={key}",
            f"--token-auth-file={self.folder}/tokens", "--authorization-mode=RBAC", "--profiling=false",
            f"--service-cluster-ip-range=10.78.{network().number}.0/24", "--event-ttl=10m",
        )  # fmt: skip
        until(lambda: self.asked("/api/v1/namespaces/kube-system"))

    def start_control(self) -> None:
        """Start what schedules pods, counts quotas and collects what is nobody's."""
        admin = self.write_kubeconfig("admin.kubeconfig", ADMIN)
        self.start("kube-scheduler", f"--kubeconfig={admin}", "--leader-elect=false", "--secure-port=0")
        self.start(
            "kube-controller-manager", f"--kubeconfig={admin}", "--leader-elect=false", "--secure-port=0",
            f"--root-ca-file={self.folder}/api.pem", f"--service-account-private-key-file={self.folder}/api.key",
        )  # fmt: skip

    def start_node(self) -> None:
        """Start containerd and kubelet, in namespaces of their own."""
        for each in ("lib", "log", "tunables"):
            (self.folder / each).mkdir(exist_ok=True)
        _write_node_files(self.folder)
        for group in _cgroups():
            group.mkdir(exist_ok=True)
        lines = [
            "mount --make-rshared /", "mount -t tmpfs none /run", f"mount --bind {self.folder}/lib /var/lib",
            f"mount --bind {self.folder}/log /var/log",
            *(f"mount --bind {self.folder}/tunables/{name.replace('/', '_')} /proc/sys/{name}" for name in TUNABLES),
            f"{_bin()}/containerd --config {self.folder}/containerd.toml >{self.folder}/containerd.log 2>&1 &",
            f"exec {_bin()}/kubelet --config={self.folder}/kubelet.yaml --kubeconfig={self.folder}/admin.kubeconfig"
            f" --hostname-override={self.name} --node-ip={network().driver}",
        ]  # fmt: skip
        space = ["unshare", "--mount", "--propagation", "private", "--pid", "--fork", "--kill-child", "--mount-proc"]
        environment = {"PATH": f"{_bin()}:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": str(self.folder)}
        with open(self.folder / "kubelet.log", "ab") as log:
            self.node = subprocess.Popen(
                [*WITH_US, *space, str(_bin() / "tini-static"), "--", "sh", "-ec", "\n".join(lines)],
                stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=environment, start_new_session=True,
            )  # fmt: skip

    @property
    def name(self) -> str:
        """Return the name of its node."""
        return network().host(1)

    def load_image(self, file: Path) -> None:
        """Give an image to the node; a file as `docker save` writes one."""
        assert self.node is not None
        inside = ["nsenter", "-t", str(_child(self.node.pid)), "-m", str(_bin() / "ctr")]
        to = ["-a", "/run/containerd/containerd.sock", "-n", "k8s.io", "images", "import", str(file)]
        until(lambda: subprocess.run([*inside, *to], capture_output=True, check=False).returncode == 0)

    def is_ready(self) -> bool:
        """Return whether the node takes pods and a pod finds its service account."""
        with suppress(urllib.error.HTTPError):
            conditions = self.asked(f"/api/v1/nodes/{self.name}")["status"]["conditions"]
            ready = any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)
            return ready and bool(self.asked(f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/default"))
        return False

    def end(self) -> None:
        """End all of it as a power failure does, pods included."""
        for process in [*([self.node] if self.node else []), *self.others]:
            process.kill()
            process.wait()
        for group in _cgroups():
            _remove_cgroup(group)


def _bin() -> Path:
    folder = programs()
    assert folder is not None, MAKE
    return folder


def _child(pid: int) -> int:
    """Return the process that `unshare` forked, the first of its namespace."""
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])


def _cgroups() -> list[Path]:
    """Return the group of all our pods in each hierarchy."""
    if not (CGROUPS / "memory").is_dir():  # version 2
        return [CGROUPS / network().bridge]
    return [each / network().bridge for each in CGROUPS.iterdir() if each.is_dir() and each.name != "unified"]


def _remove_cgroup(group: Path) -> None:
    if not group.exists():
        return
    until(lambda: not any(path.read_text().split() for path in group.rglob("cgroup.procs")))
    for folder in sorted((path for path in group.rglob("*") if path.is_dir()), reverse=True):
        folder.rmdir()
    group.rmdir()


def _write_node_files(folder: Path) -> None:
    for name, value in TUNABLES.items():
        (folder / "tunables" / name.replace("/", "_")).write_text(value)
    range_ = [[{
        "subnet": f"{network().address(0)}/24", "rangeStart": network().address(20), "rangeEnd": network().address(250),
    }]]  # fmt: skip
    ipam = {"type": "host-local", "dataDir": f"{folder}/addresses", "ranges": range_}
    (folder / "cni").mkdir(exist_ok=True)
    (folder / "cni" / "bridge.conf").write_text(
        json.dumps({"cniVersion": "0.4.0", "name": "rivet", "type": "bridge", "bridge": network().bridge, "ipam": ipam})
    )
    (folder / "containerd.toml").write_text(f"""version = 2
root = "{folder}/containerd"
state = "/run/containerd"
[grpc]
  address = "/run/containerd/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "localhost/pause:test"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{_bin()}"
    conf_dir = "{folder}/cni"
""")
    kubelet = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration", "failCgroupV1": False,
        "address": network().driver, "port": 10_250, "healthzPort": 0, "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{network().bridge}", "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
        "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
        "authorization": {"mode": "AlwaysAllow"}, "makeIPTablesUtilChains": False, "failSwapOn": False,
        "evictionHard": {"memory.available": "50Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
        "imageGCHighThresholdPercent": 100, "maxPods": 40, "registerNode": True,
    }  # fmt: skip
    (folder / "kubelet.yaml").write_text(yaml.safe_dump(kubelet))


def _make_certificate(folder: Path) -> None:
    """Write the certificate of the API, its own authority."""
    command = [
        "openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "30", "-subj", "/CN=rivet-tests",
        "-keyout", "api.key", "-out", "api.pem",
        "-addext", f"subjectAltName=IP:{network().driver},DNS:kubernetes.default.svc",
    ]  # fmt: skip
    subprocess.run(command, cwd=folder, check=True, capture_output=True)


def _write_image(file: Path, name: str, entry: list[str], files: Mapping[str, bytes], folders: list[str]) -> None:
    """Write an image of one layer as `docker save` does."""
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        for path in folders:
            made = tarfile.TarInfo(path)
            made.type, made.mode = tarfile.DIRTYPE, 0o1777
            tar.addfile(made)
        for link in ("bin", "sbin", "lib", "lib64") if "usr" in folders else ():
            made = tarfile.TarInfo(link)
            made.type, made.linkname = tarfile.SYMTYPE, f"usr/{link}"
            tar.addfile(made)
        for path, content in files.items():
            made = tarfile.TarInfo(path)
            made.size, made.mode = len(content), 0o755
            tar.addfile(made, io.BytesIO(content))

    digest = hashlib.sha256(layer.getvalue()).hexdigest()
    config = {
        "architecture": "amd64", "os": "linux", "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
        "config": {"Entrypoint": entry, "WorkingDir": "/", "Env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"]},
    }  # fmt: skip
    manifest = [{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]
    contents = {
        "config.json": json.dumps(config).encode(), "layer.tar": layer.getvalue(),
        "manifest.json": json.dumps(manifest).encode(),
    }  # fmt: skip
    with tarfile.open(file, "w") as tar:
        for path, content in contents.items():
            made = tarfile.TarInfo(path)
            made.size = len(content)
            tar.addfile(made, io.BytesIO(content))


def _write_images(folder: Path) -> Iterator[Path]:
    """Write what pods run: the program that holds a pod's network, and an executor by the guide's entry point."""
    pause = (_bin() / "pause").read_bytes()
    _write_image(folder / "pause.tar", "localhost/pause:test", ["/pause"], {"pause": pause}, [])
    yield folder / "pause.tar"
    files = {
        "opt/entrypoint.sh": from_guide("entrypoint.sh").encode(),
        "opt/tini": (_bin() / "tini-static").read_bytes(),
        "etc/passwd": b"root:x:0:0:root:/root:/bin/sh\n",
    }
    folders = ["usr", "proc", "sys", "dev", "tmp", "run", "root", "var", "var/tmp", "etc", "opt", "opt/rivet"]
    _write_image(folder / "executor.tar", IMAGE, ["/opt/tini", "-s", "--", "/opt/entrypoint.sh"], files, folders)
    yield folder / "executor.tar"


def _pod_template() -> dict[str, Any]:
    """Return a pod that has this machine's programs, this environment's packages and not this repository."""
    home = Path("/opt/rivet") / spark_home().relative_to(sys.prefix)
    java = find_java().home
    mounted = {"/usr": "/usr", "/opt/rivet": sys.prefix, sys.base_prefix: sys.base_prefix, str(java): str(java)}
    mounted |= {str(path): str(path) for path in Path("/etc").glob("java-*")}
    mounted = {inside: here for inside, here in mounted.items() if inside == "/usr" or not inside.startswith("/usr/")}
    names = {inside: f"part-{number}" for number, inside in enumerate(mounted)}
    environment = {"JAVA_HOME": str(java), "SPARK_HOME": str(home)}
    return {
        "apiVersion": "v1", "kind": "Pod",
        "spec": {
            "automountServiceAccountToken": False,
            "containers": [{
                "name": "executor",
                "env": [{"name": name, "value": value} for name, value in environment.items()],
                "volumeMounts": [
                    {"name": name, "mountPath": inside, "readOnly": True} for inside, name in names.items()
                ],
            }],
            "volumes": [{"name": names[inside], "hostPath": {"path": here}} for inside, here in mounted.items()],
        },
    }  # fmt: skip


@contextmanager
def kubernetes_cluster(folder: Path) -> Iterator[Kubernetes]:
    """Make a cluster until the block ends; `Kubernetes.environment` is of a service account with the guide's rights."""
    folder.mkdir(parents=True)
    cluster = Kubernetes(folder)
    _make_certificate(folder)
    (folder / "pod.yaml").write_text(yaml.safe_dump(_pod_template()))
    with ExitStack() as stack:
        stack.enter_context(bridge())
        stack.callback(cluster.end)
        cluster.start_api()
        cluster.start_control()
        cluster.start_node()
        for document in yaml.safe_load_all(from_guide("rbac.yaml")):
            cluster.make(document)
        for image in _write_images(folder):
            cluster.load_image(image)
        until(cluster.is_ready)
        cluster.write_kubeconfig("rivet.kubeconfig", cluster.token())
        yield cluster
