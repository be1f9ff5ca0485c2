"""What Kubernetes answers, and what of it only a person can change."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import pytest
from py4j.protocol import Py4JError

from rivet_resources.contracts.settings import Spark, is_encrypted
from rivet_resources.errors import SparkEnded, SparkUnavailable
from rivet_resources.spark import cluster, idle, kubernetes
from rivet_resources.spark.idle import IdleWatch
from rivet_resources.spark.kubernetes import Executors

MASTER = "k8s://https://127.0.0.1:6443"
REFUSAL = (
    "KubernetesClientException: Failure executing: POST at: https://h:6443/api/v1/namespaces/exports/pods. Message: "
    'pods "rivet-exec-1" is forbidden: {}. Received status: Status(apiVersion=v1, code=403)\n\tat io.fabric8…\n'
)
QUOTA = "exceeded quota: few, requested: pods=1, used: pods=0, limited: pods=0"


class Java:
    """An object of Java's: a getter for each of its values."""

    def __init__(self, **values: Any) -> None:
        for name, value in values.items():
            setattr(self, f"get{name}", lambda value=value: value)


def container(*, waiting: str = "", terminated: str = "", message: str = "") -> Java:
    """Return what is told of a container: it waits, has ended, or runs."""
    waits = Java(Reason=waiting, Message=message) if waiting else None
    ended = Java(Reason=terminated, Message=message, ExitCode=137) if terminated else None
    return Java(Image="image:1", State=Java(Waiting=waits, Terminated=ended))


def pod(*containers: Java, unscheduled: str = "") -> Java:
    """Return what is told of a pod."""
    conditions = [Java(Type="PodScheduled", Status="False", Reason="Unschedulable", Message=unscheduled)]
    status = Java(ContainerStatuses=list(containers), Conditions=conditions if unscheduled else [])
    return Java(Metadata=Java(Name="rivet-exec-1"), Status=status)


@dataclass
class Client:
    """What a client of Kubernetes is asked: a chain of calls that ends in lists of pods or events."""

    pods_there: list[Java] = field(default_factory=list)
    events_there: list[Java] = field(default_factory=list)
    kind: str = "pods"

    def __getattr__(self, name: str) -> Callable[..., Self]:
        if name == "v1":  # the way to events
            return lambda: type(self)(self.pods_there, self.events_there, "events")  # type: ignore[return-value]
        return lambda *_: self

    def list(self) -> Java:
        """List what was asked for."""
        return Java(Items=self.events_there if self.kind == "events" else self.pods_there)


def executors(*pods: Java, events: tuple[Java, ...] = (), log: Path | None = None) -> Executors:
    """Return executors of these pods."""
    return Executors(Client(list(pods), list(events)), "exports", "spark-1", log)


@pytest.mark.parametrize(
    ("master", "expected"),
    [
        ("k8s://https://h:6443", ("https", "h", 6443)),
        ("k8s://h", ("https", "h", 443)),
        ("k8s://http://h", ("http", "h", 80)),
        ("k8s://https://[fd00::1]:6443", ("https", "fd00::1", 6443)),
    ],
)
def test_place_of_the_api_is_read_as_spark_does(master: str, expected: tuple[str, str, int]) -> None:
    """Without a scheme it is https."""
    assert expected == kubernetes.api_place(master)


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No proxy, and no file of this machine's user."""
    for name in kubernetes.PROXIES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))


def test_api_that_does_not_answer_is_refused_at_once(
    alone: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """One that is not there, and one that takes connections and is silent; through a proxy nobody knows."""
    monkeypatch.setattr(kubernetes, "CONNECT_TIMEOUT_SECONDS", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as server:
        silent = f"k8s://https://127.0.0.1:{server.getsockname()[1]}"
        for master, words in (("k8s://https://127.0.0.1:1", "refused"), (silent, "timed out")):
            with pytest.raises(SparkUnavailable, match=f"{master}.* does not answer: .*{words}"):
                kubernetes.refuse_silent_api(Spark(master=master))
    kubernetes.refuse_silent_api(Spark(master="yarn"))
    (tmp_path / "config").write_text("clusters: [{cluster: {proxy-url: http://proxy:3128}}]")
    kubernetes.refuse_silent_api(Spark(master="k8s://https://127.0.0.1:1"))


def test_api_that_answers_anything_is_spoken_to(alone: None) -> None:
    """Whom to trust is decided by Spark's client, which has the certificates."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            line, _ = server.accept()
            line.sendall(b"HTTP/1.0 400 Bad Request\r\n\r\n")
            line.close()

        thread = threading.Thread(target=answer)
        thread.start()
        kubernetes.refuse_silent_api(Spark(master=f"k8s://https://127.0.0.1:{server.getsockname()[1]}"))
        thread.join()


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("Unauthorized", "refuses us: Unauthorized"),
        ('selfsubjectaccessreviews.authorization.k8s.io is forbidden: User "u" cannot create it', ""),
    ],
)
def test_account_that_the_api_does_not_know_is_refused(
    answer: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that may not ask what it may do is not: Spark will see."""

    def refused(*_: object) -> None:
        raise Py4JError(f"Failure executing: POST at: https://h/x. Message: {answer}. Received status: Status(…")

    monkeypatch.setattr(kubernetes, "client_of", refused)
    with pytest.raises(SparkUnavailable, match=expected) if expected else nullcontext():
        kubernetes.refuse_missing_rights(None, {"spark.master": MASTER})


@pytest.mark.parametrize(
    ("reason", "looks"),
    [
        ("ErrImageNeverPull", kubernetes.HOPELESS_LOOKS),
        ("CreateContainerConfigError", kubernetes.HOPELESS_LOOKS),
        ("ImagePullBackOff", kubernetes.PULLING_LOOKS),
    ],
)
def test_pod_that_only_a_person_can_mend_is_given_up(reason: str, looks: int) -> None:
    """After a moment; of a registry that may be away, after a while."""
    found = executors(pod(container(waiting=reason, message='secret "nobody" not found')))

    faults = [found.fault() for _ in range(looks)]

    assert [None] * (looks - 1) == faults[:-1]
    assert f'{reason}, secret "nobody" not found' in str(faults[-1])


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (executors(pod(unscheduled="0/1 nodes are available: 1 Insufficient memory.")), "Unschedulable, 0/1 nodes"),
        (executors(pod(container(waiting="ContainerCreating"))), "rivet-exec-1 has not started yet"),
        (
            executors(
                pod(container(waiting="ContainerCreating")),
                events=(
                    Java(InvolvedObject=Java(Name="rivet-exec-1"), Reason="FailedMount", Message="no such volume"),
                    Java(InvolvedObject=Java(Name="rivet-exec-1"), Reason="MissingClusterDNS", Message="harmless"),
                    Java(InvolvedObject=Java(Name="other"), Reason="BackOff", Message="not ours"),
                ),
            ),
            "FailedMount, no such volume",
        ),
        (executors(pod(container(terminated="OOMKilled"))), "OOMKilled, exit code 137"),
        (executors(), ""),
    ],
)
def test_what_time_may_mend_is_told_and_waited_for(found: Executors, expected: str) -> None:
    """As a full cluster does, which others may leave."""
    faults = [found.fault() for _ in range(2 * kubernetes.PULLING_LOOKS)]

    assert {None} == set(faults)
    assert expected in found.look().words


@pytest.mark.parametrize(
    ("answer", "hopeless"),
    [(QUOTA, False), ("violates PodSecurity restricted", True), ("failed quota: few: must specify cpu", True)],
)
def test_refusal_to_make_a_pod_is_read_in_the_log_of_spark(answer: str, hopeless: bool, tmp_path: Path) -> None:
    """Nobody else is told; a quota may have room later, a rule has none."""
    log = tmp_path / "log"
    log.write_text("26/11/26 WARN something\n" + REFUSAL.format("older") + REFUSAL.format(answer))
    found = executors(log=log)

    told = [found.fault() for _ in range(2)][-1]

    assert hopeless == (told is not None)
    assert f'pods "rivet-exec-1" is forbidden: {answer}' in found.look().words


@pytest.mark.parametrize(
    ("conf", "expected"),
    [
        ({}, 2),
        ({"spark.executor.instances": "4"}, 4),
        ({"spark.executor.instances": "10"}, 8),
        ({"spark.executor.instances": "10", "spark.dynamicAllocation.enabled": "true"}, 0),
    ],
)
def test_start_waits_for_as_many_executors_as_spark_would(conf: dict[str, str], expected: int) -> None:
    """Four fifths; none where they come with the first job."""
    assert expected == kubernetes.first_executors(conf)


LINES = {"spark.authenticate": "true", "spark.network.crypto.enabled": "true"}
FILE = {"spark.authenticate.secret.file": "/etc/spark/secret"}


@pytest.mark.parametrize(
    ("master", "conf", "expected"),
    [
        ("spark://h:7077", LINES, True),
        (MASTER, LINES, False),
        (MASTER, {**LINES, **FILE}, True),
        (MASTER, FILE, False),
    ],
)
def test_nothing_is_lent_by_a_secret_that_stands_in_pods(master: str, conf: dict[str, str], expected: bool) -> None:
    """Spark writes its own into their specification unless a file holds it; who may see pods reads it there."""
    assert expected == is_encrypted(conf, master)
    assert expected == Spark(master=master, conf=conf).is_encrypted


@dataclass(eq=False)
class Context:
    """What is asked of Spark's context while nobody takes its work."""

    conf: dict[str, str] = field(default_factory=dict)
    master: str = MASTER
    applicationId: str = "spark-1"
    stopped: threading.Event = field(default_factory=threading.Event)

    def __getattr__(self, name: str) -> Any:
        if name in ("_jsc", "_jvm"):
            return self
        raise AttributeError(name)

    def sc(self) -> Self:
        """Return the context of the JVM."""
        return self

    def statusTracker(self) -> Self:
        """Return what knows executors and jobs."""
        return self

    def getExecutorInfos(self) -> list[str]:
        """List the driver alone."""
        return ["driver"]

    def getActiveJobIds(self) -> list[int]:
        """List no job: none has begun."""
        return []

    def getConf(self) -> Self:
        """Return the settings."""
        return self

    def getAll(self) -> list[tuple[str, str]]:
        """List the settings."""
        return list(self.conf.items())

    def isStopped(self) -> bool:
        """Return whether somebody stopped it."""
        return self.stopped.is_set()

    def stop(self) -> None:
        """Stop it."""
        self.stopped.set()


def known(context: Context, monkeypatch: pytest.MonkeyPatch, *pods: Java) -> Executors:
    """Return the executors of a context, which its end is told by."""
    monkeypatch.setattr(kubernetes, "client_of", lambda *_: Client(list(pods)))
    return kubernetes.executors_of(context, None)  # type: ignore[arg-type]


def test_application_without_hope_is_ended_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """While it still waits for its first executors, and for whoever sees a job of it fail."""
    context = Context()
    found = known(context, monkeypatch, pod(container(waiting="InvalidImageName")))
    watch = IdleWatch(context, found, look_seconds=0.001)  # type: ignore[arg-type]

    with pytest.raises(SparkUnavailable, match="InvalidImageName, image:1"):
        watch.await_executors(2, seconds=10)

    assert context.stopped.wait(10)
    told = cluster.cluster_fault("Job 0 cancelled because SparkContext was shut down", context)  # type: ignore[arg-type]
    assert found.given_up is told


def test_application_whose_executors_end_tells_how_the_last_one_did(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark gives up after some, and says nothing of why."""
    context = Context()
    found = known(context, monkeypatch, pod(container(terminated="OOMKilled")))
    found.fault()
    context.stop()

    told = cluster.cluster_fault("the JVM is gone", context)  # type: ignore[arg-type]

    assert isinstance(told, SparkEnded)
    assert "executors ended again and again (rivet-exec-1, OOMKilled, exit code 137)" in str(told)


def test_work_that_waits_is_told_in_the_words_of_kubernetes(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the command that shows more."""
    told: list[str] = []
    context = Context()
    found = known(context, monkeypatch, pod(unscheduled="0/1 nodes are available"))
    said = threading.Event()

    def warning(text: str, *facts: Any) -> None:
        told.append(text % facts)
        said.set()

    monkeypatch.setattr(idle.log, "warning", warning)
    watch = IdleWatch(context, found, look_seconds=0.001, patience_seconds=0)  # type: ignore[arg-type]
    assert said.wait(10)
    watch.end()

    assert "Kubernetes says of its pods in the namespace default: Unschedulable, 0/1 nodes are available" in told[0]
    assert "kubectl get pods -n default -l spark-app-selector=spark-1" in told[0]
