"""Connections to Kafka: settings of librdkafka, and what its errors mean to a user.

Belongs here: how producers, consumers and the admin client are made, and which error class an answer becomes. Not here:
what is produced (`kafka.py`), the topic of committed windows (`kafka_windows.py`).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from rivet_resources.errors import (
    DestinationAuth,
    DestinationError,
    DestinationPermission,
    DestinationTls,
    DestinationUnreachable,
    RivetError,
    WindowTaken,
)
from rivet_resources.extras import KAFKA
from rivet_resources.secrets import resolve_secret


class TopicMissing(DestinationError):
    """The topic does not exist; Rivet never creates one that holds rows."""

    code = "RIVET_KAFKA_TOPIC_MISSING"


class MessageTooLarge(DestinationError):
    """A message is larger than the topic takes; nothing of its window was produced."""

    code = "RIVET_KAFKA_MESSAGE_TOO_LARGE"
    exit_code = 3


class TransactionsRefused(DestinationError):
    """The broker has no transactions, or not such as are asked for."""

    code = "RIVET_KAFKA_TRANSACTIONS"


class TopicChanged(DestinationError):
    """The topic is not what committed windows were produced to: made anew, or with another number of partitions."""

    code = "RIVET_KAFKA_TOPIC_CHANGED"
    exit_code = 3


@dataclass(frozen=True)
class KafkaLocation:
    """Where a cluster is and how one signs in; plain data, no secret."""

    servers: str
    tls: bool = False
    ca_file: str | None = None
    certificate_file: str | None = None
    key_file: str | None = None
    mechanism: str | None = None
    username: str | None = None
    password_env: str | None = None
    timeout_seconds: int = 60
    client_settings: tuple[tuple[str, str], ...] = ()

    def settings(self) -> dict[str, Any]:
        """Return what every client of librdkafka is told.

        Raises:
            ConfigError: the variable of the password is not set.
        """
        protocol = ("SASL_" if self.mechanism else "") + ("SSL" if self.tls else "PLAINTEXT")
        told: dict[str, Any] = {
            **dict(self.client_settings),
            "bootstrap.servers": self.servers,
            "client.id": "rivet",
            "security.protocol": protocol,
            "socket.timeout.ms": min(self.timeout_seconds, 60) * 1000,
            "log_level": 0,  # what matters comes as an error of ours
        }
        if self.mechanism:
            password = self.password()
            told |= {"sasl.mechanisms": self.mechanism, "sasl.username": self.username, "sasl.password": password}
        files = {
            "ssl.ca.location": self.ca_file,
            "ssl.certificate.location": self.certificate_file,
            "ssl.key.location": self.key_file,
        }
        return told | {name: path for name, path in files.items() if path}

    def password(self) -> str | None:
        """Read the password as it is now, since a secret may be changed while a process lives.

        Raises:
            ConfigError
        """
        return resolve_secret(None, env=self.password_env, key="password") if self.mechanism else None


@dataclass
class Heard:
    """What a client said beside its answers: the last fault of a connection, and the first message not delivered."""

    fault: Any = None
    undelivered: Any = None
    logged: list[str] = field(default_factory=list)

    def error(self, error: Any) -> None:
        """Note a fault; one that says why is not forgotten for one that says only that all brokers are away."""
        # librdkafka tells first why one connection failed, then that all brokers are down, which is only what follows
        # from it.
        if self.fault is None or not says_why(self.fault):
            self.fault = error

    def delivered(self, error: Any, message: Any) -> None:
        """Note a message that did not arrive."""
        if error is not None and self.undelivered is None:
            self.undelivered = error


def says_why(fault: Any) -> bool:
    """Return whether a fault of a connection names a cause that waiting does not cure."""
    return fault.name() in AUTH or _is_of_tls(fault)


def _is_of_tls(fault: Any) -> bool:
    """Return whether TLS failed; a broker that refuses our certificate is told of as a line that broke."""
    return fault.name() == "_SSL" or (fault.name() == "_TRANSPORT" and "SSL" in fault.str())


def make_producer(location: KafkaLocation, heard: Heard, **settings: Any) -> Any:
    """Return a producer; nothing is asked of a broker yet."""
    KAFKA.require()
    from confluent_kafka import Producer  # driver

    return Producer({**location.settings(), "error_cb": heard.error, "on_delivery": heard.delivered, **settings})


def make_consumer(location: KafkaLocation, heard: Heard, **settings: Any) -> Any:
    """Return a consumer of committed messages, which is in no group."""
    KAFKA.require()
    from confluent_kafka import Consumer  # driver

    return Consumer({
        **location.settings(), "error_cb": heard.error, "group.id": "rivet", "enable.auto.commit": False,
        # "auto.offset.reset: error", as what retention removed must be an error, and not a jump to a place that is
        # still there.
        "isolation.level": "read_committed", "enable.partition.eof": True, "auto.offset.reset": "error",
        "check.crcs": True, "fetch.wait.max.ms": 20, **settings,
    })  # fmt: skip


def admin_of(location: KafkaLocation) -> tuple[Any, Heard]:
    """Return the admin client of this process for a cluster, and what it heard."""
    # By process: a client's threads do not survive a fork.
    return _admin(location, os.getpid(), location.password())


@lru_cache(maxsize=8)
def _admin(location: KafkaLocation, process: int, password: str | None) -> tuple[Any, Heard]:
    """Keep a client for each password: one that signed in with an older one could not come back."""
    from confluent_kafka.admin import AdminClient  # driver

    heard = Heard()
    return AdminClient({**location.settings(), "error_cb": heard.error}), heard


def ask(location: KafkaLocation, request: Callable[[Any], Mapping[Any, Any]], *, uri: str, action: str) -> list[Any]:
    """Ask the admin client, and return its answers in their order.

    Raises:
        DestinationError and its kin.
    """
    KAFKA.require()
    from confluent_kafka import KafkaException  # driver

    with translate_errors(uri=uri, action=action, servers=location.servers) as heard:
        admin, told = admin_of(location)
        admin.poll(0)
        heard.append(told)
        # The client lives on: a fault of an earlier question must not be taken for this one's.
        told.fault = None
        futures, until = list(request(admin).values()), time.monotonic() + location.timeout_seconds
        while not all(future.done() for future in futures) and time.monotonic() < until:
            # Waiting would not change it.
            if told.fault is not None and says_why(told.fault):
                raise KafkaException(told.fault)
            # Else nobody is told of faults.
            admin.poll(0.01)
        return [future.result(timeout=0) for future in futures]


# --- errors --------------------------------------------------------------------------------------

# Names of librdkafka's codes → what a user can do. Source: librdkafka 2, `rdkafka.h`, RD_KAFKA_RESP_ERR_*.
FENCED = frozenset({"_FENCED", "PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH", "INVALID_PRODUCER_ID_MAPPING"})
AUTH = frozenset({"_AUTHENTICATION", "SASL_AUTHENTICATION_FAILED", "UNSUPPORTED_SASL_MECHANISM", "ILLEGAL_SASL_STATE"})
RIGHTS: Mapping[str, str] = {
    "TOPIC_AUTHORIZATION_FAILED": "READ, WRITE and DESCRIBE on the topic and on its topic of windows",
    "TRANSACTIONAL_ID_AUTHORIZATION_FAILED": "WRITE and DESCRIBE on the transactional id",
    "CLUSTER_AUTHORIZATION_FAILED": "CREATE on the cluster, or make the topic of windows yourself",
    "GROUP_AUTHORIZATION_FAILED": "READ on the group rivet",
}
TO_CREATE = "CREATE on it, or make it yourself, with one partition and cleanup.policy=compact"
MISSING = frozenset({"UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION", "UNKNOWN_TOPIC_ID"})
NO_TRANSACTIONS = frozenset({"_UNSUPPORTED_FEATURE", "UNSUPPORTED_VERSION", "UNSUPPORTED_FOR_MESSAGE_FORMAT"})
AWAY = frozenset({
    "_TRANSPORT", "_ALL_BROKERS_DOWN", "_RESOLVE", "_TIMED_OUT", "_MSG_TIMED_OUT", "_TIMED_OUT_QUEUE",
    "REQUEST_TIMED_OUT",
    "NOT_ENOUGH_REPLICAS", "NOT_ENOUGH_REPLICAS_AFTER_APPEND", "LEADER_NOT_AVAILABLE", "NOT_LEADER_FOR_PARTITION",
    "BROKER_NOT_AVAILABLE", "COORDINATOR_NOT_AVAILABLE", "COORDINATOR_LOAD_IN_PROGRESS", "NOT_COORDINATOR",
    "CONCURRENT_TRANSACTIONS", "NETWORK_EXCEPTION", "KAFKA_STORAGE_ERROR", "_DESTROY", "_WAIT_COORD", "_STATE",
    "OFFSET_NOT_AVAILABLE", "_PURGE_QUEUE", "_PURGE_INFLIGHT", "_GAPLESS_GUARANTEE",
})  # fmt: skip


@dataclass
class translate_errors:
    """Raise what librdkafka says in the house voice; the block may add what its clients heard, which says more.

    Raises:
        DestinationError and its kin, WindowTaken.
    """

    uri: str
    action: str
    servers: str
    heard: list[Heard] = field(default_factory=list)

    def __enter__(self) -> list[Heard]:
        """Begin; what is added to the list is asked when something fails."""
        return self.heard

    # Not a generator: of a fatal error the client raises a `KafkaError`, which is no exception of Python's, so `except`
    # and generators do not see it; and where a callback is due meanwhile, a `SystemError` (confluent-kafka 2.16).
    def __exit__(self, kind: Any, error: Any, trace: object) -> None:
        """Raise in the place of what was raised."""
        if error is None:
            return
        from confluent_kafka import KafkaError, KafkaException  # driver

        if not isinstance(error, KafkaError | KafkaException | TimeoutError | BufferError | SystemError):
            return
        code = error.args[0] if isinstance(error, KafkaException) and error.args else None
        code = error if isinstance(error, KafkaError) else code
        reasons = [code, *(fault for each in self.heard for fault in (each.undelivered, each.fault))]
        if isinstance(error, SystemError) and not any(reasons):
            return
        cause = error if isinstance(error, BaseException) else None
        raise meaning(reasons, uri=self.uri, action=self.action, servers=self.servers) from cause


def code_of(error: DestinationError) -> str:
    """Name the code of librdkafka behind an error; '' where there is none."""
    from confluent_kafka import KafkaException  # driver

    cause = error.__cause__
    return str(cause.args[0].name()) if isinstance(cause, KafkaException) and cause.args else ""


def meaning(reasons: list[Any], *, uri: str, action: str, servers: str) -> RivetError:
    """Return the error of ours for what was said; one that names a cause goes before one that says it took long."""
    named = [each for each in reasons if each is not None]
    # A message that ran out of time is told beside the reason why nothing could be sent; the reason is what helps.
    causes = [each for each in named if each.name() not in AWAY or _is_of_tls(each)] or named
    cause = causes[0] if causes else None
    name, where = (cause.name() if cause is not None else "_TIMED_OUT"), f"{uri}: cannot {action}"
    if name in FENCED:
        return WindowTaken(
            f"{where}: another run with the same transactional id began to produce, and fenced this one; or the window "
            f"took longer than `transaction_timeout_s`. Nothing of it is visible. Let one run of an export work at a "
            f"time, and run again."
        )
    if name in AUTH:
        return DestinationAuth(
            f"{where}: {servers} refused the sign-in ({name}). Check username, mechanism and the variable of "
            f"password_env; without `mechanism` nobody signs in."
        )
    if name in RIGHTS:
        right = TO_CREATE if action.startswith("create ") else RIGHTS[name]
        return DestinationPermission(f"{where}: it is not allowed ({name}). Grant {right}.")
    if cause is not None and _is_of_tls(cause):
        return DestinationTls(
            f"{where}: TLS with {servers} failed. Check `tls`, ca_file and the broker's certificate; where brokers ask "
            f"clients for one, certificate_file and key_file."
        )
    if name in MISSING:
        return TopicMissing(
            f"{where}: there is no such topic. Rivet creates none that holds rows; create it with as many partitions "
            f"as its readers need, such as `kafka-topics.sh --create --topic NAME --partitions 6`, or correct `topic`."
        )
    if name in NO_TRANSACTIONS:
        return TransactionsRefused(
            f"{where}: {servers} has no transactions ({name}), so no window could be produced exactly once. Use Apache "
            f"Kafka 2.5 or newer, or a service that has them."
        )
    if name == "INVALID_TRANSACTION_TIMEOUT":
        return TransactionsRefused(
            f"{where}: the broker takes no transaction of that length. Lower `transaction_timeout_s`, or raise "
            f"transaction.max.timeout.ms of the broker."
        )
    if name in ("MSG_SIZE_TOO_LARGE", "RECORD_LIST_TOO_LARGE", "INVALID_MSG_SIZE"):
        return MessageTooLarge(
            f"{where}: a message is larger than the broker takes. Raise max.message.bytes of the topic, or leave out "
            f"the large column."
        )
    if name in ("INVALID_RECORD", "INVALID_MSG"):
        return DestinationError(
            f"{where}: the topic refuses the messages; a compacted topic takes none without a key. Name columns as "
            f"`key` of the destination, or change cleanup.policy."
        )
    if cause is None or name in AWAY or cause.retriable():
        return DestinationUnreachable(
            f"{where}: {servers} did not answer as it should ({name}). Check bootstrap_servers, `tls`, the brokers and "
            f"the network; the run may be repeated."
        )
    return DestinationError(f"{where}: Kafka refused ({name}). Look at the broker's log.")
