"""Kubernetes as a cluster manager: whether its API answers and lets us make executors, and why there are none.

Belongs here: what Kubernetes itself answers, asked by the client and the settings that Spark uses. Not here: sessions
(`sessions.py`), hosts (`cluster.py`), noticing that work waits (`idle.py`).

Spark writes such answers into its log and goes on: an executor that may not be made, whose image is not there or whose
secret nobody made is tried again for ever, and the job waits.
"""

from __future__ import annotations

import math
import os
import re
import socket
import ssl
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from rivet_resources.contracts.settings import Spark, is_kubernetes
from rivet_resources.errors import SparkUnavailable

if TYPE_CHECKING:
    from pyspark import SparkContext

CONNECT_TIMEOUT_SECONDS = 5.0
# Through a proxy the API's own address may be out of reach and still be right.
PROXIES = ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy")
PREFIX = "spark.kubernetes.authenticate"  # Constants of Spark's Config.scala: of a driver in client mode
# What Spark 4.3 does with executors: verb and resource. Without the others it only leaves something behind.
NEEDED = (
    ("create", "pods"), ("get", "pods"), ("list", "pods"), ("watch", "pods"), ("delete", "pods"),
    ("deletecollection", "pods"), ("create", "configmaps"),
)  # fmt: skip
# Of a container that waits; each is for ever unless somebody changes the image, the secret or the template.
# Source: Kubernetes, pkg/kubelet/images/types.go and pkg/kubelet/kuberuntime/kuberuntime_container.go.
HOPELESS = frozenset({"ErrImageNeverPull", "InvalidImageName", "CreateContainerConfigError", "CreateContainerError"})
# A registry may be away for a moment, so these are hopeless only after a while.
PULLING = frozenset({"ErrImagePull", "ImagePullBackOff"})
HOPELESS_LOOKS = 2  # one after the other, with the same reason
PULLING_LOOKS = 12  # a minute of `idle.LOOK_SECONDS`
REFUSED = re.compile(r"/pods\. Message: (.*?)\.? Received status", re.DOTALL)
HARMLESS = frozenset({"MissingClusterDNS", "DNSConfigForming"})  # warnings that keep no pod from starting
WAITS = "exceeded quota"  # room that somebody else may give back
ENDS = 4  # executors that ended while none was there; Spark deletes their pods, and not each is seen
NOT_TOLD = re.compile("selfsubjectaccessreviews.* is forbidden")
LOG_BYTES = 200_000  # of the end of Spark's log; a stack of Java is 10 kB
LOOK_SECONDS = 0.2  # of waiting for the first executors
FIRST_EXECUTORS_SECONDS = 30.0  # spark.scheduler.maxRegisteredResourcesWaitingTime, which Spark waits deaf to signals


def api_place(master: str) -> tuple[str, str, int]:
    """Return scheme, host and port of an API, as Spark reads `k8s://…`."""
    url = master.removeprefix("k8s://")
    place = urlsplit(url if "://" in url else f"https://{url}")
    return place.scheme, place.hostname or "", place.port or (80 if place.scheme == "http" else 443)


def refuse_silent_api(settings: Spark) -> None:
    """Raise where nobody answers at the API's address; Spark would try for minutes.

    Raises:
        SparkUnavailable
    """
    if not is_kubernetes(settings.master) or any(os.environ.get(name) for name in PROXIES) or _has_proxy():
        return
    try:
        scheme, host, port = api_place(settings.master)
        with socket.create_connection((host, port), CONNECT_TIMEOUT_SECONDS) as line:
            line.settimeout(CONNECT_TIMEOUT_SECONDS)
            if scheme == "https":
                _greet(line, host)
    except (OSError, ValueError) as error:
        raise SparkUnavailable(
            f"Kubernetes' API (`spark: master: {settings.master}`) does not answer: {error}. Check host and port (form "
            f"k8s://https://host:6443; `kubectl cluster-info` shows them), and that it runs; or remove `master` to run "
            f"on this machine."
        ) from None


def _greet(line: socket.socket, host: str) -> None:
    """Begin TLS and send nothing: an address may take connections and answer none."""
    hello = ssl.create_default_context()
    hello.check_hostname, hello.verify_mode = False, ssl.CERT_NONE  # whom Spark trusts is for Spark to say
    # A server that wants a certificate of us, or another version of TLS, has answered.
    with suppress(ssl.SSLError):
        hello.wrap_socket(line, server_hostname=host).close()


def _has_proxy() -> bool:
    named = os.environ.get("KUBECONFIG") or str(Path.home() / ".kube/config")
    for file in map(Path, named.split(os.pathsep)):
        with suppress(OSError):
            if "proxy-url" in file.read_text(errors="replace"):
                return True
    return False


def client_of(jvm: Any, conf: Mapping[str, str]) -> Any:
    """Make the client that Spark itself makes: of the same file, token and certificates."""
    spark_conf = jvm.org.apache.spark.SparkConf(True)
    for key, value in conf.items():
        spark_conf.set(key, value)
    k8s = jvm.org.apache.spark.deploy.k8s
    kinds = getattr(getattr(k8s, "SparkKubernetesClientFactory$ClientType$"), "MODULE$")
    option = jvm.scala.Option
    return k8s.SparkKubernetesClientFactory.createKubernetesClient(
        k8s.KubernetesUtils.parseMasterUrl(conf["spark.master"]), option.apply(namespace_of(conf)), PREFIX,
        kinds.Driver(), spark_conf, option.empty(),
    )  # fmt: skip


def namespace_of(conf: Any) -> str:
    """Return where executors are made; Spark does not take the one of the client's file."""
    return str(conf.get("spark.kubernetes.namespace", "default"))


def refuse_missing_rights(jvm: Any, conf: Mapping[str, str]) -> None:
    """Raise where the API does not let us make, see or end executors; Spark would wait for ever.

    Raises:
        SparkUnavailable
    """
    from py4j.protocol import Py4JError  # Spark

    try:
        client = client_of(jvm, conf)
        try:
            missing = [right for right in NEEDED if not _may(jvm, client, namespace_of(conf), *right)]
        finally:
            client.close()
    except Py4JError as error:
        # Who may not ask for rights may still have them.
        if NOT_TOLD.search(answer_of(error)):
            return
        raise SparkUnavailable(
            f"Kubernetes' API (`spark: master: {conf['spark.master']}`) refuses us: {answer_of(error)}. Check the "
            f"account: KUBECONFIG, else ~/.kube/config, else the pod's service account, else "
            f"spark.kubernetes.authenticate.* in `spark: conf`."
        ) from None
    if missing:
        told = ", ".join(f"{verb} {resource}" for verb, resource in missing)
        raise SparkUnavailable(
            f"The account that Spark has at Kubernetes ({conf['spark.master']}) lacks rights in the namespace "
            f"{namespace_of(conf)} (spark.kubernetes.namespace): {told}. Bind a Role with them to it; "
            f"docs/guides/cluster.md has one."
        )


def _may(jvm: Any, client: Any, namespace: str, verb: str, resource: str) -> bool:
    review = jvm.io.fabric8.kubernetes.api.model.authorization.v1.SelfSubjectAccessReviewBuilder()
    asked = review.withNewSpec().withNewResourceAttributes().withNamespace(namespace)
    asked = asked.withVerb(verb).withResource(resource).endResourceAttributes().endSpec().build()
    answer = client.authorization().v1().selfSubjectAccessReview().create(asked)
    return bool(answer.getStatus().getAllowed())


def answer_of(error: Exception) -> str:
    """Return what Kubernetes answered, of an error of its client in Java; else the first line of that."""
    told = str(getattr(error, "java_exception", None) or error)
    found = re.search(r"Message: (.*?)\.? Received status", told, re.DOTALL)
    words = found[1] if found else next(iter(told.strip().splitlines()), type(error).__name__)
    return _on_one_line(words)


def _on_one_line(text: Any, most: int = 300) -> str:
    return " ".join(str(text or "").split())[:most].rstrip(".")


@dataclass(frozen=True)
class Obstacle:
    """Why executors are not there, in Kubernetes' words."""

    words: str
    kind: str = ""
    hopeless: bool = False  # nobody but a person can change it
    after_looks: int = HOPELESS_LOOKS


NOTHING = Obstacle("")


@dataclass
class Executors:
    """The pods of one application, as Kubernetes tells of them."""

    client: Any
    namespace: str
    application: str
    log_file: Path | None = None  # Spark's own; None where it goes elsewhere
    last_end: str = ""  # of a container of theirs
    _ended: set[str] = field(default_factory=set)  # names of pods
    given_up: SparkUnavailable | None = None
    _seen: Obstacle = NOTHING
    _times: int = 0  # that it was seen, one after the other

    def fault(self) -> SparkUnavailable | None:
        """Look, and return what only a person can change; None where waiting may help."""
        told = self.look()
        # By the kind: the words of two looks may differ by the name of a pod.
        self._times = self._times + 1 if told.kind == self._seen.kind else 1
        self._seen = told
        if told.hopeless and self._times >= told.after_looks:
            self.given_up = self._error(told)
        return self.given_up

    def _error(self, told: Obstacle) -> SparkUnavailable:
        return SparkUnavailable(
            f"Kubernetes cannot start executors in the namespace {self.namespace}: {told.words}. Nothing was "
            f"published. Correct that (`spark: conf: spark.kubernetes.*`, or the object that it names), and run again."
        )

    def look(self) -> Obstacle:
        """Return why no executor is there."""
        pods = self._pods()
        for pod in pods:
            self._remember_end(pod)
        told = [found for pod in pods if (found := waiting_of(pod)) is not NOTHING]
        # What is hopeless of one pod is so of all: they are made of one template.
        worst = next((each for each in told if each.hopeless), None) or next(iter(told), None)
        if worst is None and not pods:
            worst = self._refusal()
        if worst is None and (said := self._said_of([pod for pod in pods if not _has_begun(pod)])):
            worst = Obstacle(said)
        if worst is None and self.last_end:
            words = f"they end again and again, the last one: {self.last_end}"
            worst = Obstacle(words, "ended", hopeless=len(self._ended) >= ENDS, after_looks=1)
        return worst or NOTHING

    def _pods(self) -> list[Any]:
        found = self.client.pods().inNamespace(self.namespace).withLabel("spark-app-selector", self.application)
        return list(found.list().getItems())

    def _remember_end(self, pod: Any) -> None:
        for status in pod.getStatus().getContainerStatuses():
            if (end := status.getState().getTerminated()) is not None:
                reason, code = end.getReason(), end.getExitCode()
                words = _on_one_line(end.getMessage())
                self._ended.add(str(pod.getMetadata().getName()))
                self.last_end = f"{pod.getMetadata().getName()}, {reason}, exit code {code}" + (
                    f" ({words})" if words else ""
                )

    def _refusal(self) -> Obstacle | None:
        """Return what the API answered when Spark wanted to make a pod; only Spark's log has it."""
        if self.log_file is None:
            return None
        with suppress(OSError), open(self.log_file, "rb") as file:
            file.seek(max(0, self.log_file.stat().st_size - LOG_BYTES))
            refused = REFUSED.findall(file.read().decode(errors="replace"))
            if refused:
                words = _on_one_line(refused[-1], 400)
                return Obstacle(f"one may not be made: {words}", "refused", hopeless=WAITS not in words)
        return None

    def _said_of(self, pods: Sequence[Any]) -> str:
        """Return the last warning about pods that have not begun; "" where there is none."""
        names = {str(pod.getMetadata().getName()) for pod in pods}
        if not names:
            return ""
        # Whoever may make pods may not always see events.
        with suppress(Exception):
            events = self.client.v1().events().inNamespace(self.namespace).withField("type", "Warning").list()
            told = [each for each in events.getItems() if each.getInvolvedObject().getName() in names]
            faults = [each for each in told if each.getReason() not in HARMLESS]
            if faults:
                last = faults[-1]
                return _on_one_line(f"{last.getReason()}, {last.getMessage()}")
        return f"{', '.join(sorted(names))} {'has' if len(names) == 1 else 'have'} not started yet"


def _has_begun(pod: Any) -> bool:
    return any(status.getState().getWaiting() is None for status in pod.getStatus().getContainerStatuses())


def waiting_of(pod: Any) -> Obstacle:
    """Return why a pod does not run; `NOTHING` of one that does, or may a moment later."""
    for status in pod.getStatus().getContainerStatuses():
        waiting = status.getState().getWaiting()
        reason = str(waiting.getReason() or "") if waiting is not None else ""
        if reason in HOPELESS | PULLING:
            words = _on_one_line(waiting.getMessage())
            looks = PULLING_LOOKS if reason in PULLING else HOPELESS_LOOKS
            return Obstacle(f"{reason}, {words or status.getImage()}", reason, hopeless=True, after_looks=looks)
    for condition in pod.getStatus().getConditions():
        if condition.getType() == "PodScheduled" and condition.getStatus() == "False":
            return Obstacle(f"{condition.getReason()}, {_on_one_line(condition.getMessage())}", "unscheduled")
    return NOTHING


# By context, so that who sees a job fail finds out why.
_known: weakref.WeakKeyDictionary[SparkContext, Executors] = weakref.WeakKeyDictionary()


def executors_of(context: SparkContext, log_file: Path | None) -> Executors:
    """Return the executors of a context, which `fault_of` and `end_of` know from then on."""
    conf = dict(context.getConf().getAll())
    client = client_of(context._jvm, conf)
    _known[context] = Executors(client, namespace_of(conf), str(context.applicationId), log_file)
    return _known[context]


def fault_of(context: SparkContext | None) -> SparkUnavailable | None:
    """Return why there will be no executors; None where there may be."""
    known = None if context is None or not _known else _known.get(context)
    return None if known is None else known.given_up


def end_of(context: SparkContext) -> tuple[str, str]:
    """Return how an application ended that Spark gave up: what became of its executors, and of the last one; or ""."""
    known = _known.get(context)
    return ("its executors ended again and again", known.last_end) if known and known.last_end else ("", "")


def first_executors(conf: Any) -> int:
    """Return how many executors are worth waiting for: of Kubernetes, four fifths, as Spark itself counts them."""
    if str(conf.get("spark.dynamicAllocation.enabled", "false")).lower() == "true":
        return 0  # it may begin with none, until there is a job
    ratio = float(conf.get("spark.scheduler.minRegisteredResourcesRatio", "0.8"))
    return math.ceil(ratio * int(conf.get("spark.executor.instances", "2")))
