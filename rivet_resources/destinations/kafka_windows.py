"""The topic of committed windows: one record for each, written in the transaction that produced its rows.

Belongs here: reading it, and what its records look like. Not here: writing one (`kafka.py`), what a manifest says
(`commit/manifest.py`).

A record's key is `<export>/<path of the manifest>`, its value the manifest, its header `rivet.account` what the window
left in the topic of rows.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from threading import Lock
from typing import Any

from rivet_resources.contracts.messages import WindowAccount
from rivet_resources.destinations.kafka_client import (
    Heard,
    KafkaLocation,
    ask,
    code_of,
    make_consumer,
    translate_errors,
)
from rivet_resources.errors import DestinationError, DestinationUnreachable

ACCOUNT = "rivet.account"
LOOK_SECONDS = 0.2


@dataclass(frozen=True)
class WindowRecord:
    """One committed window."""

    content: bytes
    version: str  # its offset
    account: WindowAccount


@dataclass
class _View:
    """What this process has read of a topic of windows so far."""

    lock: Lock = field(default_factory=Lock)
    records: dict[str, WindowRecord] = field(default_factory=dict)
    next: int = 0
    topic_id: str = ""


_views: dict[tuple[KafkaLocation, str, int], _View] = {}


@dataclass(frozen=True)
class WindowsTopic:
    """The committed windows of whoever shares a topic of windows."""

    location: KafkaLocation
    topic: str
    uri: str

    def read(self, export: str, *, settled: bool = False) -> dict[str, WindowRecord]:
        """Return the windows of an export by the paths of their manifests; {} where the topic is not there yet.

        Args:
            settled: wait until no transaction of another run is open in it, since what that commits stands before.

        Raises:
            DestinationError and its kin.
        """
        # By process: after a fork the child would share positions, but not the threads of the clients that read.
        view = _views.setdefault((self.location, self.topic, os.getpid()), _View())
        with view.lock:
            self._refresh(view, settled=settled)
            return {
                key.removeprefix(f"{export}:"): record
                for key, record in view.records.items()
                if key.startswith(f"{export}:")
            }

    def _refresh(self, view: _View, *, settled: bool) -> None:
        found = describe(self.location, [self.topic], uri=self.uri)[0]
        # By id and not by name: a topic of the same name that was made anew has none of the records that we remember.
        if found is None or view.topic_id != found.id:  # nothing yet, or made anew
            view.records, view.next, view.topic_id = {}, 0, found.id if found else ""
        if found is None:
            return
        # "The newest record of a window" is defined by offsets, which partitions do not share. With one, and compacted,
        # it stays.
        if found.partitions != 1:
            raise DestinationError(
                f"{self.uri}: the topic of windows {self.topic} has {found.partitions} partitions, and its records "
                f"need one order. Name another topic as `windows_topic`, or make it with one partition."
            )
        end = self._end(settled=settled)
        if end <= view.next:
            return
        heard = Heard()
        with translate_errors(uri=self.uri, action=f"read {self.topic}", servers=self.location.servers) as said:
            said.append(heard)
            consumer = make_consumer(self.location, heard)
            try:
                for message in consume(consumer, self.topic, 0, view.next, end, seconds=self.location.timeout_seconds):
                    note(view.records, message)
            finally:
                consumer.close()
        view.next = end

    def _end(self, *, settled: bool) -> int:
        """Return where what is committed ends.

        Raises:
            DestinationUnreachable: a transaction stays open in it for too long.
        """
        until = time.monotonic() + self.location.timeout_seconds
        while True:
            # Committed first: what commits between the two questions makes them differ, and is looked at once more.
            committed = offsets(self.location, self.topic, 1, uri=self.uri)[0]
            # Committed messages end before the first open transaction: where both ends agree, none is open.
            if not settled or committed == offsets(self.location, self.topic, 1, uri=self.uri, all_there_is=True)[0]:
                return committed
            if time.monotonic() > until:
                raise DestinationUnreachable(
                    f"{self.uri}: a transaction of another export is open in {self.topic}, where windows of this one "
                    f"may stand behind it. Run again when that run has ended; a dead one's is ended by the broker "
                    f"after its `transaction_timeout_s`."
                )
            time.sleep(LOOK_SECONDS)


def note(records: dict[str, WindowRecord], message: Any) -> None:
    """Take one record over; one without a value removes its window."""
    key = message.key().decode()
    if message.value() is None:
        records.pop(key, None)
        return
    given = json.loads(dict(message.headers() or ()).get(ACCOUNT, b"{}"))
    given["offsets"] = tuple(map(tuple, given.get("offsets", ())))
    records[key] = WindowRecord(message.value(), str(message.offset()), WindowAccount(**given))


def spell_account(account: WindowAccount) -> bytes:
    """Return what `note` reads."""
    return json.dumps(asdict(account)).encode()


# --- questions to the cluster --------------------------------------------------------------------


@dataclass(frozen=True)
class TopicFacts:
    """What a cluster says of a topic."""

    id: str
    partitions: int


def describe(location: KafkaLocation, topics: list[str], *, uri: str) -> list[TopicFacts | None]:
    """Return what is known of topics; None: it is not there.

    Raises:
        DestinationError and its kin.
    """
    return [_facts(location, topic, uri=uri) for topic in topics]


def _facts(location: KafkaLocation, topic: str, *, uri: str) -> TopicFacts | None:
    from confluent_kafka import TopicCollection  # driver

    try:
        (answer,) = ask(
            location,
            lambda admin: admin.describe_topics(TopicCollection([topic]), request_timeout=location.timeout_seconds),
            uri=uri, action=f"look at topic {topic}",
        )  # fmt: skip
    except DestinationError as error:
        if code_of(error) in ("UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC"):
            return None
        raise
    return TopicFacts(str(answer.topic_id), len(answer.partitions))


def offsets(
    location: KafkaLocation, topic: str, partitions: int, *, uri: str, all_there_is: bool = False, first: bool = False
) -> list[int]:
    """Return where each partition ends for readers of committed messages; with `all_there_is` what is open too."""
    from confluent_kafka import IsolationLevel, TopicPartition  # driver
    from confluent_kafka.admin import OffsetSpec  # driver

    spec = OffsetSpec.earliest() if first else OffsetSpec.latest()
    level = IsolationLevel.READ_UNCOMMITTED if all_there_is else IsolationLevel.READ_COMMITTED
    asked = {TopicPartition(topic, number): spec for number in range(partitions)}
    answers = ask(
        location,
        lambda admin: admin.list_offsets(asked, isolation_level=level, request_timeout=location.timeout_seconds),
        uri=uri, action=f"look at the offsets of {topic}",
    )  # fmt: skip
    return [int(answer.offset) for answer in answers]


def consume(consumer: Any, topic: str, partition: int, low: int, high: int, *, seconds: float) -> Any:
    """Yield the committed messages of [low, high) of a partition.

    Raises:
        DestinationUnreachable: they do not come.
        KafkaException
    """
    from confluent_kafka import KafkaError, KafkaException, TopicPartition  # driver

    consumer.assign([TopicPartition(topic, partition, low)])
    heard_at = time.monotonic()
    while True:
        message = consumer.poll(LOOK_SECONDS)
        if message is None:
            if time.monotonic() - heard_at > seconds:
                raise DestinationUnreachable(
                    f"{topic}: partition {partition} stopped answering while what is committed was read. Run again."
                )
            continue
        heard_at = time.monotonic()
        error = message.error()
        # The end of a partition comes as an error with an offset. It is needed: marks
        # of transactions take numbers, too, so the last message may lie below `high`.
        if error is not None and error.code() != KafkaError._PARTITION_EOF:
            raise KafkaException(error)
        if message.offset() >= high:
            return
        if error is None:
            yield message


def topic_settings(location: KafkaLocation, topic: str, *, uri: str) -> Mapping[str, str]:
    """Return the settings of a topic.

    Raises:
        DestinationError and its kin.
    """
    from confluent_kafka.admin import ConfigResource, ResourceType  # driver

    resource = ConfigResource(ResourceType.TOPIC, topic)
    found = ask(
        location, lambda admin: admin.describe_configs([resource]), uri=uri, action=f"read the settings of {topic}"
    )[0]
    return {name: str(entry.value) for name, entry in found.items()}
