"""What can be proved of a topic: how many messages of a window readers find, and whether one may produce.

Belongs here: looking. Not here: what that comes to for an export (`prove/topic.py`), for `rivet doctor` (`probe.py`).
"""

from __future__ import annotations

from collections.abc import Iterator

from rivet_resources.contracts.evidence import Finding
from rivet_resources.contracts.messages import RUN_HEADER, WINDOW_HEADER, TopicCount, WindowAccount
from rivet_resources.destinations.kafka_client import Heard, make_consumer, make_producer
from rivet_resources.destinations.kafka_topic import KafkaTopic
from rivet_resources.destinations.kafka_transaction import transaction_settings
from rivet_resources.destinations.kafka_windows import consume, describe, offsets, topic_settings


def count(at: KafkaTopic, path: str, run_id: str, window: str) -> TopicCount:
    """Count the messages of a window that a reader of committed messages finds.

    Raises:
        DestinationError and its kin.
    """
    found = at.windows.read(at.export).get(path)
    facts = describe(at.location, [at.topic], uri=at.uri)[0]
    if found is None or facts is None or facts.id != found.account.topic_id:
        return TopicCount(doubt=f"topic {at.topic} is not the one that it was produced to")
    account = found.account
    doubt = _doubt(at, account)
    if doubt:
        return TopicCount(doubt=doubt)
    heard, counted, ours = Heard(), 0, (run_id.encode(), window.encode())
    with at.translate(f"count what is in {at.topic}") as said:
        said.append(heard)
        consumer = make_consumer(at.location, heard)
        try:
            for partition, (low, high) in enumerate(account.offsets):
                if low == high:
                    continue
                seconds = at.location.timeout_seconds
                for message in consume(consumer, at.topic, partition, low, high, seconds=seconds):
                    headers = dict(message.headers() or ())
                    counted += (headers.get(RUN_HEADER), headers.get(WINDOW_HEADER)) == ours
        finally:
            consumer.close()
    return TopicCount(counted, account.messages)


def _doubt(at: KafkaTopic, account: WindowAccount) -> str:
    """Return why the messages of a window cannot be counted; '' where they can."""
    policy = topic_settings(at.location, at.topic, uri=at.uri).get("cleanup.policy", "")
    if "compact" in policy:
        return f"topic {at.topic} is compacted, which removes messages whose key came again"
    firsts = offsets(at.location, at.topic, account.partitions, uri=at.uri, first=True)
    if any(first > low and low != high for first, (low, high) in zip(firsts, account.offsets, strict=True)):
        return f"the retention of topic {at.topic} has removed messages of it"
    return ""


def check(at: KafkaTopic) -> None:
    """Prove that brokers answer, that the topic is there, and that a transaction can begin and end.

    Raises:
        DestinationError and its kin.
    """
    at.facts()
    heard = Heard()
    with at.translate("begin a transaction") as said:
        said.append(heard)
        # An id of its own: the export's would fence a run.
        settings = transaction_settings(at, f"{at.transactional_id}.doctor")
        producer = make_producer(at.location, heard, **settings)
        producer.init_transactions(float(at.location.timeout_seconds))
        producer.begin_transaction()
        producer.abort_transaction(float(at.location.timeout_seconds))


def findings(at: KafkaTopic) -> Iterator[Finding]:
    """Look at brokers, topic and rights, for `rivet doctor`; nothing is produced."""
    check(at)
    facts = at.facts()
    yield Finding("topic", "ok", f"{at.topic}, {facts.partitions} partitions")
    yield Finding("transaction", "ok", f"one began and ended, under {at.transactional_id}.doctor")
    there = describe(at.location, [at.windows_topic], uri=at.uri)[0]
    if there is None:
        yield Finding("windows_topic", "ok", f"{at.windows_topic} is made by the first run, which needs CREATE")
        return
    policy = topic_settings(at.location, at.windows_topic, uri=at.uri).get("cleanup.policy", "")
    if policy == "compact" and there.partitions == 1:
        yield Finding("windows_topic", "ok", f"{at.windows_topic}, compacted, of one partition")
        return
    text = f"{at.windows_topic} has {there.partitions} partitions and cleanup.policy={policy}: records of windows "
    fix = f"kafka-configs.sh --alter --topic {at.windows_topic} --add-config cleanup.policy=compact"
    yield Finding("windows_topic", "fail", text + "could get lost, and their rows would be produced again", fix)
