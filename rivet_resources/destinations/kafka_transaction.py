"""The transaction of one window, or of several: rows, then each window's record, then the commit.

Belongs here: the order of `kafka.py` as code. Not here: what is refused before (`kafka_topic.py`), what an error means
(`kafka_client.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pyarrow.compute as pc

from rivet_resources.contracts.messages import MessageBatch, WindowAccount, WindowMessages
from rivet_resources.destinations.kafka_client import Heard, MessageTooLarge, make_producer
from rivet_resources.destinations.kafka_topic import KafkaTopic
from rivet_resources.destinations.kafka_windows import ACCOUNT, TopicFacts, offsets, spell_account
from rivet_resources.destinations.stores import window_taken

PURGED = ("_PURGE_QUEUE", "_PURGE_INFLIGHT")  # what waits when a transaction fails, as for a right that is missing
OVERHEAD_BYTES = 512  # of a message in a batch: lengths, offsets, headers; what is left to the broker's own account
LARGEST_BYTES = 1_000_000_000  # what librdkafka can be told
# How a producer gathers messages; `client_settings` may say otherwise.
GATHERING = {"linger.ms": "20", "batch.size": "1000000"}


def produce_windows(windows: Sequence[tuple[KafkaTopic, WindowMessages]], *, step: Callable[[str], None]) -> None:
    """Produce the messages of windows with their manifests in one transaction; see `Topic.append`."""
    first = windows[0][0]
    facts = [at.facts() for at, _ in windows]
    for at, _ in windows:
        at.make_windows_topic()
    limits = [at.largest() for at, _ in windows]
    heard = Heard()
    with first.translate("produce") as said:
        said.append(heard)
        # Each table's windows have an id of their own from here on, and an earlier run may have one of them open: it
        # is ended before anybody looks what is committed.
        for at, _ in windows[1:]:
            _fence(make_producer(at.location, heard, **transaction_settings(at, at.transactional_id)), at)
        producer = _producer(first, heard, max(limits))
        # The fence: brokers give this id a new epoch, abort what an earlier producer had open under it, and refuse
        # whatever that one still sends. A lease can expire under a process that hangs; this cannot be outlived.
        _fence(producer, first)
        # Behind the fence: what an earlier run with our id had open is decided by now, and no more of it can come.
        for (at, window), known in zip(windows, facts, strict=True):
            _refuse_taken(at, window, known)
        # Open messages included: others may produce into a topic meanwhile, and what stands before us is not ours.
        lows = [
            offsets(at.location, at.topic, known.partitions, uri=at.uri, all_there_is=True)
            for (at, _), known in zip(windows, facts, strict=True)
        ]
        producer.begin_transaction()
        try:
            sent = [
                _Window(at, window, producer, heard, known, limit, step)
                for (at, window), known, limit in zip(windows, facts, limits, strict=True)
            ]
            _run(sent, lows, producer, step)
        # Ctrl-C too: an open transaction holds back every reader of committed messages until the broker ends it.
        except BaseException:
            with suppress(Exception):  # the fault that ended it is the one to tell
                producer.purge()
                producer.abort_transaction(5.0)
            raise


def _fence(producer: Any, at: KafkaTopic) -> None:
    try:
        producer.init_transactions(float(at.location.timeout_seconds))
    finally:
        producer.poll(0)  # nobody hears of a refused sign-in meanwhile


def _refuse_taken(at: KafkaTopic, window: WindowMessages, facts: TopicFacts) -> None:
    """Refuse a window that another run committed since it was planned, and a topic that is another one.

    Raises:
        WindowTaken, TopicChanged
    """
    standing = at.windows.read(at.export, settled=True)
    found = standing.get(window.path)
    if (None if found is None else found.version) != window.expected:
        raise window_taken(at.uri, window.path)
    at.refuse_changed(facts, standing)


def _run(windows: Sequence[_Window], lows: Sequence[list[int]], producer: Any, step: Callable[[str], None]) -> None:
    """Produce the rows of all windows, then their manifests, and commit."""
    for window in windows:
        window.produce()
    windows[0].flush()
    accounts = [window.account(low) for window, low in zip(windows, lows, strict=True)]
    step("commit")
    for window, account in zip(windows, accounts, strict=True):
        window.tell(account)
    windows[0].flush()
    producer.commit_transaction(float(windows[0].at.location.timeout_seconds))


def transaction_settings(at: KafkaTopic, transactional_id: str) -> dict[str, Any]:
    """Return what makes a producer transactional."""
    return {
        "transactional.id": transactional_id,
        "transaction.timeout.ms": at.transaction_seconds * 1000,
        # librdkafka refuses messages that may live longer than their transaction.
        "message.timeout.ms": min(at.location.timeout_seconds, at.transaction_seconds) * 1000,
    }


def _producer(at: KafkaTopic, heard: Heard, limit: int) -> Any:
    given = dict(at.location.client_settings)
    settings = {
        **transaction_settings(at, at.transactional_id),
        "enable.idempotence": True,
        "acks": "all",
        # Nobody needs to hear of each message that arrived: one that did not is kept in `heard`, and refused before the
        # commit.
        "delivery.report.only.error": True,
        "partitioner": "murmur2_random",  # that of Java's producers, so that tables can be joined by key
        "compression.type": at.compression,
        "message.max.bytes": min(limit + OVERHEAD_BYTES, LARGEST_BYTES),
        "queue.buffering.max.kbytes": 262_144,
        "queue.buffering.max.messages": 500_000,
        **{name: value for name, value in GATHERING.items() if name not in given},
    }
    return make_producer(at.location, heard, **settings)


@dataclass
class _Window:
    """The messages of one window inside an open transaction."""

    at: KafkaTopic
    window: WindowMessages
    producer: Any
    heard: Heard
    facts: TopicFacts
    limit: int
    step: Callable[[str], None]
    messages: int = 0
    newest: str = ""

    def produce(self) -> None:
        """Hand all rows to the producer."""
        for number, batch in enumerate(self.window.batches):
            self._refuse_large(batch)
            self._produce(batch)
            self.newest = max(self.newest, batch.newest)
            # One flush early: a broker that refuses what we produce says so before the whole window is spelled.
            if number == 0:
                self.flush()
                self.step("produce")

    def account(self, lows: list[int]) -> WindowAccount:
        """Return what the window leaves in its topic, once brokers have all messages."""
        at = self.at
        # Behind the flush and before the commit: all our messages lie below, and commit markers above, so `rivet
        # validate` counts within [low, high).
        highs = offsets(at.location, at.topic, self.facts.partitions, uri=at.uri, all_there_is=True)
        spans = tuple(zip(lows, highs, strict=True))
        return WindowAccount(self.messages, self.facts.partitions, self.facts.id, spans, self.newest)

    def tell(self, account: WindowAccount) -> None:
        """Produce the manifest."""
        key, headers = f"{self.at.export}:{self.window.path}", [(ACCOUNT, spell_account(account))]
        self.producer.produce(self.at.windows_topic, self.window.content, key, 0, headers=headers)

    def _refuse_large(self, batch: MessageBatch) -> None:
        """Refuse a message that the topic does not take, before the broker does.

        Raises:
            MessageTooLarge
        """
        size = pc.fill_null(pc.binary_length(batch.values), 0)
        if batch.keys is not None:
            size = pc.add(size, pc.fill_null(pc.binary_length(batch.keys), 0))
        largest = int(pc.max(size).as_py() or 0)
        # A broker's refusal is fatal for the producer and names no row's column or size; this one says what to change.
        if largest + OVERHEAD_BYTES > self.limit:
            raise MessageTooLarge(
                f"{self.at.uri}: a row of export {self.at.export} is a message of {largest} bytes, and the topic takes "
                f"{self.limit} (max.message.bytes) with its headers. Nothing of the window is visible. Raise it with "
                f"`kafka-configs.sh --alter --topic {self.at.topic} --add-config max.message.bytes={2 * largest}`, or "
                f"leave out the large column."
            )

    def _produce(self, batch: MessageBatch) -> None:
        """Hand messages to the producer, which sends them in the background."""
        topic, common = self.at.topic, list(batch.common)
        values = batch.values.to_pylist()
        keys = [None] * len(values) if batch.keys is None else batch.keys.to_pylist()
        headers = [common] * len(values) if batch.own is None else batch.own
        if batch.is_everywhere is not None:
            self._produce_some_everywhere(keys, values, headers, batch.is_everywhere)
            return
        produce, done = self.producer.produce, 0
        while done < len(values):
            try:
                for key, value, own in zip(keys[done:], values[done:], headers[done:], strict=True):
                    produce(topic, value, key, headers=own)
                    done += 1
            # The producer's queue is full, which is how librdkafka asks to wait. Nothing of this message was taken.
            except BufferError:
                self._wait()
        self.messages += done
        self.producer.poll(0)
        self._refuse_undelivered()

    def _produce_some_everywhere(
        self, keys: list[Any], values: list[Any], headers: list[Any], is_everywhere: list[bool]
    ) -> None:
        """Produce messages of which some go to each partition."""
        for key, value, own, everywhere in zip(keys, values, headers, is_everywhere, strict=True):
            # -1: by key. A marker such as a TRUNCATE concerns the rows of every partition.
            for partition in range(self.facts.partitions) if everywhere else (-1,):
                while True:
                    try:
                        # In the same transaction: a reader of committed windows sees this record exactly when readers
                        # see the rows.
                        self.producer.produce(self.at.topic, value, key, partition, headers=own)
                        break
                    except BufferError:
                        self._wait()
                self.messages += 1
        self._refuse_undelivered()

    def flush(self) -> None:
        """Wait until brokers have all messages.

        Raises:
            DestinationUnreachable: none arrives for too long.
        """
        while self.producer.flush(1.0):
            self._refuse_undelivered()
        self._refuse_undelivered()

    def _wait(self) -> None:
        self.producer.poll(0.05)
        self._refuse_undelivered()

    def _refuse_undelivered(self) -> None:
        """Raise what the first message that did not arrive was told; messages wait at most `timeout_s`."""
        if self.heard.undelivered is None:
            return
        from confluent_kafka import KafkaException  # driver

        if self.heard.undelivered.name() in PURGED:
            # The transaction was given up for a reason that only its next step is told; this one changes nothing.
            self.producer.begin_transaction()
        raise KafkaException(self.heard.undelivered)
