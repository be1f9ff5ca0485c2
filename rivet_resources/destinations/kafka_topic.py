"""One topic with its topic of windows: what it is like, and what of it is refused.

Belongs here: questions before a window is produced. Not here: producing (`kafka_transaction.py`), the YAML block
(`kafka.py`), proofs (`kafka_proofs.py`).
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from rivet_resources.destinations.kafka_client import (
    KafkaLocation,
    TopicChanged,
    TopicMissing,
    ask,
    code_of,
    translate_errors,
)
from rivet_resources.destinations.kafka_windows import TopicFacts, WindowRecord, WindowsTopic, describe, topic_settings
from rivet_resources.errors import DestinationError, DestinationUnreachable

DEFAULT_LARGEST = 1_048_588  # message.max.bytes of brokers


@dataclass(frozen=True)
class KafkaTopic:
    """Where the rows of one export go; plain data, no secret."""

    location: KafkaLocation
    export: str
    topic: str
    windows_topic: str
    transactional_id: str = ""
    transaction_seconds: int = 600
    compression: str = "none"
    partitions: int | None = None

    @property
    def uri(self) -> str:
        """Name it for people: kafka://host:9092/orders."""
        return f"kafka://{self.location.servers}/{self.topic}"

    @property
    def windows(self) -> WindowsTopic:
        """Return the topic of committed windows."""
        return WindowsTopic(self.location, self.windows_topic, self.uri)

    def translate(self, action: str) -> translate_errors:
        """Raise what clients say in the house voice."""
        return translate_errors(self.uri, action, self.location.servers)

    def facts(self) -> TopicFacts:
        """Return what the topic is like.

        Raises:
            TopicMissing
        """
        found = describe(self.location, [self.topic], uri=self.uri)[0]
        if found is None:
            raise TopicMissing(
                f"{self.uri}: there is no topic {self.topic}. Rivet creates none that holds rows; create it with as "
                f"many partitions as its readers need, such as `kafka-topics.sh --create --topic {self.topic} "
                f"--partitions 6`, or correct `topic`."
            )
        return found

    def refuse_changed(self, now: TopicFacts, standing: Mapping[str, WindowRecord]) -> None:
        """Refuse a topic whose keys would go to other partitions than before, or that lost what was committed.

        Raises:
            TopicChanged
        """
        produced = [each for each in standing.values() if each.account.messages]
        # By offset of the record, which is the order of commits; windows that produced nothing say nothing of the
        # topic.
        last = max(produced, key=lambda each: int(each.version), default=None)
        if self.partitions is not None and self.partitions != now.partitions:
            raise TopicChanged(
                f"{self.uri}: the topic has {now.partitions} partitions, and `partitions` says {self.partitions}. "
                f"Correct one of them."
            )
        if last is None:
            return
        before = last.account
        if before.topic_id != now.id:
            fewer = f", now with {now.partitions} partitions and not {before.partitions}"
            raise TopicChanged(
                f"{self.uri}: topic {self.topic} was deleted and made anew since its last window"
                f"{fewer if now.partitions != before.partitions else ''}, so windows that count as committed are not "
                f"in it. Name another `windows_topic` and run `rivet state reset -e {self.export}`: all is produced "
                f"again."
            )
        # A key's partition is its hash modulo their number, and Kafka orders messages within a partition only.
        if before.partitions != now.partitions and self.partitions is None:
            raise TopicChanged(
                f"{self.uri}: topic {self.topic} has {now.partitions} partitions, and had {before.partitions} at its "
                f"last window. Keys go to other partitions now, so readers may see changes of a row out of order. "
                f"Where that is fine, write `partitions: {now.partitions}`; else name a new topic."
            )

    def largest(self) -> int:
        """Return how large a message may be; what a cluster does not tell is its default."""
        try:
            return int(topic_settings(self.location, self.topic, uri=self.uri)["max.message.bytes"])
        except (KeyError, ValueError, DestinationError) as error:
            if isinstance(error, DestinationUnreachable):
                raise
            # Without DESCRIBE_CONFIGS nobody tells another.
            return DEFAULT_LARGEST

    def make_windows_topic(self) -> None:
        """Make the topic of windows where it is missing: compacted, of one partition.

        Raises:
            DestinationPermission: this user may not; the message names the right.
        """
        if describe(self.location, [self.windows_topic], uri=self.uri)[0] is not None:
            return
        from confluent_kafka.admin import NewTopic  # driver

        new = NewTopic(self.windows_topic, num_partitions=1, config={"cleanup.policy": "compact"})
        try:
            ask(
                self.location, lambda admin: admin.create_topics([new]), uri=self.uri,
                action=f"create {self.windows_topic}",
            )  # fmt: skip
        except DestinationError as error:
            if code_of(error) != "TOPIC_ALREADY_EXISTS":
                raise
        until = time.monotonic() + self.location.timeout_seconds
        # Brokers hear of it one by one.
        while describe(self.location, [self.windows_topic], uri=self.uri)[0] is None:
            if time.monotonic() > until:
                raise DestinationUnreachable(f"{self.uri}: {self.windows_topic} was created, and is not there yet.")
            time.sleep(0.1)
