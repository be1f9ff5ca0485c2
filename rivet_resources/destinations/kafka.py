"""Messages in a topic of Apache Kafka (`type: kafka`), each window in one transaction.

Belongs here: the YAML block, the transaction that publishes a window, what a re-run means. Not here: clients and errors
(`kafka_client.py`), reading committed windows (`kafka_windows.py`), what messages are made of (`write/messages/`).

How a run knows what is committed (decided 2026-11): the manifest of a window is a record in a topic of windows, written
inside the transaction that produces its rows. So both are visible, or none is, and all that reads manifests elsewhere
(cursors, drift, provenance, `rivet validate`) reads them here. Offsets of a consumer group, which Kafka can also commit
in a transaction, were rejected: they expire when nobody is in the group (offsets.retention.minutes, a week), hold 4 KB
of text, and no reader sees which windows there are.

    fence       init_transactions: what an earlier run with our transactional id has open is aborted, and it can
                commit no more; what it did commit is visible from here on
    look        the window's manifest is still the one that was planned for; else WindowTaken
    produce     rows, in their order
    manifest    the last message
    commit

A process that dies anywhere before the commit leaves an open transaction, which readers of committed messages never see:
the next run of the export ends it, or the broker does after `transaction_timeout_s`. Until then such readers wait
behind it.
"""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Annotated, Any, BinaryIO, ClassVar, Literal, Self

import pyarrow.compute as pc
from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from rivet_resources.contracts.addressing import LOOPBACK, MANIFESTS, STAGED, stem_of
from rivet_resources.contracts.evidence import Finding
from rivet_resources.contracts.messages import RUN_HEADER, WINDOW_HEADER, Messages, Rerun, TopicCount, WindowAccount
from rivet_resources.contracts.parts import Part
from rivet_resources.contracts.settings import Settings
from rivet_resources.destinations.kafka_client import (
    Heard,
    KafkaLocation,
    MessageTooLarge,
    TopicChanged,
    TopicMissing,
    ask,
    make_consumer,
    make_producer,
    translate_errors,
)
from rivet_resources.destinations.kafka_windows import (
    ACCOUNT,
    TopicFacts,
    WindowRecord,
    WindowsTopic,
    consume,
    describe,
    offsets,
    spell_account,
    topic_settings,
)
from rivet_resources.destinations.local import LocalRoot
from rivet_resources.destinations.stores import window_taken
from rivet_resources.errors import DestinationError, DestinationUnreachable
from rivet_resources.extras import KAFKA, Extra
from rivet_resources.scratch import private_folder

TOPIC_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}")
PLACEHOLDERS = ("{export}", "{table}")
# What makes a window exact, or is a key of its own; no property may change it.
OURS = re.compile(
    r"bootstrap\.servers|metadata\.broker\.list|client\.id|group\..*|transactional\.id|transaction\..*|enable\.idempotence"
    r"|acks|request\.required\.acks|max\.in\.flight.*|isolation\.level|security\.protocol|sasl\..*|ssl\..*|.*_cb"
    r"|delivery\..*|on_delivery|dr_.*|retries|message\.send\.max\.retries|message\.timeout\.ms|delivery\.timeout\.ms"
    r"|message\.max\.bytes|compression\..*|partitioner|enable\.gapless\.guarantee|enable\.auto.*|plugin\..*"
)
OVERHEAD_BYTES = 512  # of a message in a batch: lengths, offsets, headers; what is left to the broker's own account
LARGEST_BYTES = 1_000_000_000  # what librdkafka can be told


def _topic(name: str) -> str:
    """Refuse what no topic is called.

    Raises:
        ValueError
    """
    plain = name
    for placeholder in PLACEHOLDERS:
        plain = plain.replace(placeholder, "x")
    if not TOPIC_NAME.fullmatch(plain) or plain in (".", ".."):
        raise ValueError(
            f"{name!r} is no topic: 1 to 249 letters, digits, '.', '_' and '-', and the placeholders {{export}} and "
            f"{{table}}"
        )
    return name


def _pairs(value: object) -> object:
    return tuple(sorted(value.items())) if isinstance(value, Mapping) else value


TopicName = Annotated[str, AfterValidator(_topic)]
# Pairs, as a destination is a key of dictionaries.
Properties = Annotated[tuple[tuple[str, str], ...], BeforeValidator(_pairs, json_schema_input_type=dict[str, str])]


class Kafka(Settings):
    """A topic; it must exist. The topic of windows is made where it is missing."""

    type: Literal["kafka"] = "kafka"
    is_stream: ClassVar[bool] = False
    is_topic: ClassVar[bool] = True
    extra: ClassVar[Extra | None] = KAFKA
    schemes: ClassVar[tuple[str, ...]] = ("kafka",)
    only_here: ClassVar[str] = "produces from this machine, where parts wait for their window"

    bootstrap_servers: str = Field(min_length=1, description="host:port, several with commas")
    topic: TopicName = Field("{export}", description="{export}, {table}; never created by Rivet")
    windows_topic: TopicName = Field(
        "{topic}_rivet_windows", description="compacted topic with a record for each committed window; {topic}"
    )
    key: tuple[str, ...] | None = Field(
        None, description="columns of each message's key; default: the table's key; []: messages without a key"
    )
    on_rerun: Rerun = Field(
        "refuse",
        description="of a window that was committed already: refuse, or append: its rows are produced once more",
    )
    partitions: int | None = Field(
        None,
        ge=1,
        description="how many the topic has now, after somebody changed that; default: as at the last window",
    )
    compression: Literal["none", "gzip", "snappy", "lz4", "zstd"] = Field("none", description="of batches of messages")
    transactional_id_prefix: str = Field(
        "rivet", pattern=r"^[A-Za-z0-9._-]{1,100}$", description="transactional ids are <prefix>.<topic>.<export>"
    )
    transaction_timeout_s: int = Field(
        600,
        ge=10,
        le=86_400,
        description="longest transaction of a window; at most the broker's, which is 900 by default",
    )
    timeout_s: int = Field(60, ge=5, le=600, description="how long a broker may not answer")
    tls: bool | None = Field(None, description="default: yes, but to this machine")
    ca_file: Path | None = Field(None, description="PEM file with the certificate authority of the brokers")
    certificate_file: Path | None = Field(None, description="PEM file with this client's certificate")
    key_file: Path | None = Field(None, description="PEM file with the key of this client's certificate")
    mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] | None = Field(
        None, description="of SASL; default: nobody signs in"
    )
    username: str | None = Field(None, min_length=1)
    password_env: str | None = Field(None, description="environment variable that holds the password")
    allow_insecure_endpoint: bool = Field(False, description="accept plain lines to another machine")
    properties: Properties = Field(
        (), description="further settings of librdkafka, such as linger.ms; none that makes it inexact"
    )

    @model_validator(mode="after")
    def can_be_exact(self) -> Self:
        """Refuse half a sign-in, plain lines to other machines, and properties that would lose or repeat rows."""
        if bool(self.mechanism) != bool(self.username and self.password_env) or (
            bool(self.username) != bool(self.password_env)
        ):
            raise ValueError("has half of a sign-in; write mechanism, username and password_env, or none of them")
        if bool(self.certificate_file) != bool(self.key_file):
            raise ValueError("has half of a client certificate; write certificate_file and key_file, or none of them")
        if not self.is_encrypted and not self.is_here and not self.allow_insecure_endpoint:
            raise ValueError(
                "sends rows over a plain line to another machine; leave out `tls: false`, or set "
                "`allow_insecure_endpoint: true`"
            )
        if not self.is_encrypted and (self.ca_file or self.certificate_file):
            raise ValueError("has certificates, and the line is plain; write `tls: true`")
        ours = sorted(name for name, _ in self.properties if OURS.fullmatch(name))
        if ours:
            raise ValueError(
                f"sets {', '.join(ours)} under `properties`, which decide whether each row comes once, or have keys of "
                f"their own; remove them"
            )
        return self

    @property
    def is_here(self) -> bool:
        """Return whether all brokers named are this machine."""
        hosts = [each.strip().rpartition(":")[0].strip("[]") for each in self.bootstrap_servers.split(",")]
        return all(host in LOOPBACK for host in hosts)

    @property
    def is_encrypted(self) -> bool:
        """Return whether lines are TLS."""
        return (not self.is_here) if self.tls is None else self.tls

    @property
    def location(self) -> KafkaLocation:
        """Return what clients need to know of this block."""
        return KafkaLocation(
            servers=self.bootstrap_servers,
            tls=self.is_encrypted,
            ca_file=str(self.ca_file) if self.ca_file else None,
            certificate_file=str(self.certificate_file) if self.certificate_file else None,
            key_file=str(self.key_file) if self.key_file else None,
            mechanism=self.mechanism,
            username=self.username,
            password_env=self.password_env,
            timeout_seconds=self.timeout_s,
            properties=self.properties,
        )

    def topic_of(self, export: str) -> str:
        """Name the topic of an export, or of one of its tables."""
        return self.topic.replace("{export}", export.replace("/", ".")).replace("{table}", stem_of(export))

    def root(self, export: str) -> KafkaRoot:
        """Address one export's topic; parts wait in a folder of this machine, under this user's id."""
        topic = self.topic_of(export)
        windows = _topic(self.windows_topic.replace("{topic}", topic))
        name = hashlib.sha256(f"{self.bootstrap_servers}\n{topic}\n{windows}".encode()).hexdigest()[:16]
        return KafkaRoot(
            self.location,
            LocalRoot(f"{stage_folder()}/{name}/{export}", export),
            export,
            _topic(topic),
            windows,
            self.on_rerun,
            f"{self.transactional_id_prefix}.{topic}.{export}",
            self.transaction_timeout_s,
            self.compression,
            self.partitions,
        )

    def credentials(self) -> Iterator[Finding]:
        """Yield who signs in, without a secret."""
        if self.mechanism is None:
            who = "a client certificate" if self.certificate_file else "nobody signs in"
            yield Finding("credentials", "ok", who)
        elif not os.environ.get(self.password_env or ""):
            text = f"the variable {self.password_env} is not set or empty, while the config signs in by it"
            yield Finding("credentials", "fail", text, f"export {self.password_env}=…")
        else:
            yield Finding("credentials", "ok", f"{self.username} by {self.mechanism}, password in {self.password_env}")

    @staticmethod
    def read_address(address: str) -> dict[str, str]:
        """Return servers and topic of `host:port/topic`."""
        servers, _, topic = address.partition("/")
        found = {"bootstrap_servers": servers, "topic": topic.strip("/")}
        return {key: value for key, value in found.items() if value} if servers else {}

    def on(self, day: date) -> Self:
        """A topic has no date."""
        return self


def stage_folder() -> Path:
    """Name the folder below which parts wait; others may guess it, so it is looked at before use."""
    return Path(tempfile.gettempdir()) / f"rivet-kafka-{os.getuid()}"


@dataclass(frozen=True)
class KafkaRoot:
    """One export's topic; implements `Root` and `Topic`."""

    location: KafkaLocation
    beside: LocalRoot
    export: str
    topic: str
    windows_topic: str
    on_rerun: Rerun = "refuse"
    transactional_id: str = ""
    transaction_seconds: int = 600
    compression: str = "none"
    partitions: int | None = None
    keeps_manifests: bool = True

    @property
    def uri(self) -> str:
        """Name it for people: kafka://host:9092/orders."""
        return f"kafka://{self.location.servers}/{self.topic}"

    # --- parts wait on this machine --------------------------------------------------------------

    @property
    def staging(self) -> LocalRoot:
        """Return the staging folder, made or proved to be private.

        Raises:
            DestinationError: it is another user's, or a link.
        """
        base = stage_folder()
        if Path(self.beside.uri).is_relative_to(base):
            private_folder(base)
        return self.beside

    def stage(self, file: Path, *, run_id: str, path: str, md5: str) -> dict[str, Any]:
        """Keep the file until all parts are there and the gate has passed."""
        return self.staging.stage(file, run_id=run_id, path=path, md5=md5)

    def staged_exists(self, part: Part) -> bool:
        """Return whether the part still waits."""
        return self.staging.staged_exists(part)

    def staged_file(self, part: Part) -> Path:
        """Return the file of a staged part.

        Raises:
            DestinationError: it is gone.
        """
        file = Path(self.staging.uri, part.staged["path"])
        if not file.exists():
            raise DestinationError(
                f"{self.uri}: staged part {file} is gone. Something removed it while the run worked; run again."
            )
        return file

    def publish(self, part: Part) -> None:
        """See that the part still waits: it is produced with its window."""
        self.staged_file(part)

    def discard(self, parts: Iterable[Part]) -> None:
        """Remove waiting parts; missing ones are fine."""
        self.staging.discard(parts)

    def staged_runs(self) -> set[str]:
        """Name the runs that have something staged here."""
        return self.staging.staged_runs()

    def sweep(self, *, keep: Iterable[str], everywhere: bool = True) -> int:
        """Remove what other runs staged here."""
        return self.staging.sweep(keep=keep, everywhere=everywhere)

    # --- manifests are records -------------------------------------------------------------------

    @property
    def windows(self) -> WindowsTopic:
        """Return the topic of committed windows."""
        return WindowsTopic(self.location, self.windows_topic, self.uri)

    def read(self, path: str) -> tuple[bytes, str] | None:
        """Read a manifest, whose version is the offset of its record; or a sidecar of the staging folder."""
        if not path.startswith(f"{MANIFESTS}/"):
            return self.staging.read(path)
        found = self.windows.read(self.export).get(path)
        return None if found is None else (found.content, found.version)

    def put(self, path: str, content: bytes) -> None:
        """Write a sidecar into the staging folder; markers for readers of files have no place in a topic."""
        if path.startswith(f"{STAGED}/"):
            self.staging.put(path, content)

    def swap(self, path: str, content: bytes, *, expected: str | None) -> str:
        """Refuse: a manifest is committed with its messages, by `append`.

        Raises:
            DestinationError: always.
        """
        raise DestinationError(
            f"{self.uri}: the manifest {path} cannot be changed, since its messages cannot. Run the window again with "
            f"`on_rerun: append`, or name another topic."
        )

    def list(self, prefix: str = "") -> dict[str, int]:
        """List the manifests, with their sizes."""
        found = self.windows.read(self.export)
        return {path: len(record.content) for path, record in found.items() if path.startswith(prefix)}

    def list_after(self, path: str, *, most: int) -> tuple[str, ...]:
        """List the manifests that follow, in the order of their names."""
        return tuple(each for each in sorted(self.list(f"{MANIFESTS}/")) if each > path)[:most]

    def delete(self, paths: Iterable[str]) -> None:
        """Remove sidecars; messages and their manifests stay, and nothing else is there."""
        self.staging.delete([path for path in paths if path.startswith(f"{STAGED}/")])

    def local_path(self, path: str) -> None:
        """Return None: nothing of it is a file of this machine."""

    def open(self, path: str) -> BinaryIO:
        """Refuse: messages are read by consumers.

        Raises:
            DestinationError: always.
        """
        raise DestinationError(
            f"{self.uri}: {path} was produced as messages, and is no file any more. Read the topic with a consumer and "
            f"isolation.level=read_committed."
        )

    # --- a window in a transaction ---------------------------------------------------------------

    def append(
        self,
        batches: Iterable[Messages],
        *,
        path: str,
        content: bytes,
        expected: str | None,
        step: Callable[[str], None],
    ) -> None:
        """Produce messages and their window's manifest in one transaction.

        Raises:
            WindowTaken: another run committed the window, or fenced this one.
            DestinationError and its kin; nothing of the window is visible then.
        """
        facts = self._topic_facts()
        self._make_windows_topic()
        limit = self._largest()
        heard = Heard()
        with self._translate("produce") as said:
            said.append(heard)
            producer = self._producer(heard, limit)
            producer.init_transactions(float(self.location.timeout_seconds))
            standing = self.windows.read(self.export, settled=True)
            found = standing.get(path)
            if (None if found is None else found.version) != expected:
                raise window_taken(self.uri, path)
            self._refuse_changed(facts, standing)
            lows = offsets(self.location, self.topic, facts.partitions, uri=self.uri, all_there_is=True)
            producer.begin_transaction()
            try:
                _Transaction(self, producer, heard, facts, limit, step).run(batches, lows, path, content)
            except BaseException:
                with suppress(Exception):  # the fault that ended it is the one to tell
                    producer.purge()
                    producer.abort_transaction(5.0)
                raise

    def newest(self) -> str:
        """Return the highest `__pos` of the changes that are in the topic."""
        return max((each.account.newest for each in self.windows.read(self.export).values()), default="")

    def _producer(self, heard: Heard, limit: int) -> Any:
        return make_producer(
            self.location,
            heard,
            **{
                "transactional.id": self.transactional_id,
                "transaction.timeout.ms": self.transaction_seconds * 1000,
                "message.timeout.ms": min(self.location.timeout_seconds, self.transaction_seconds) * 1000,
                "enable.idempotence": True,
                "acks": "all",
                "delivery.report.only.error": True,
                "partitioner": "murmur2_random",  # that of Java's producers, so that tables can be joined by key
                "compression.type": self.compression,
                "message.max.bytes": min(limit + OVERHEAD_BYTES, LARGEST_BYTES),
                "queue.buffering.max.kbytes": 262_144,
                "queue.buffering.max.messages": 500_000,
                **{name: value for name, value in {"linger.ms": "20", "batch.size": "1000000"}.items()
                   if name not in dict(self.location.properties)},
            },
        )  # fmt: skip

    def _topic_facts(self) -> TopicFacts:
        """Return what the topic is like.

        Raises:
            TopicMissing
        """
        found = describe(self.location, [self.topic], uri=self.uri)[0]
        if found is None:
            raise TopicMissing(
                f"{self.uri}: there is no topic {self.topic}. Rivet creates none that holds rows; create it with as many "
                f"partitions as its readers need, such as `kafka-topics.sh --create --topic {self.topic} --partitions "
                f"6`, or correct `topic`."
            )
        return found

    def _refuse_changed(self, now: TopicFacts, standing: dict[str, WindowRecord]) -> None:
        """Refuse a topic whose keys would go to other partitions than before, or that lost what was committed.

        Raises:
            TopicChanged
        """
        produced = [each for each in standing.values() if each.account.messages]
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
                f"{fewer if now.partitions != before.partitions else ''}, so windows that count as committed are not in "
                f"it. Name another `windows_topic` and run `rivet state reset -e {self.export}`: all is produced "
                f"again."
            )
        if before.partitions != now.partitions and self.partitions is None:
            raise TopicChanged(
                f"{self.uri}: topic {self.topic} has {now.partitions} partitions, and had {before.partitions} at its last "
                f"window. Keys go to other partitions now, so readers may see changes of a row out of order. Where that "
                f"is fine, write `partitions: {now.partitions}`; else name a new topic."
            )

    def _largest(self) -> int:
        """Return how large a message may be; what a cluster does not tell is its default."""
        try:
            return int(topic_settings(self.location, self.topic, uri=self.uri)["max.message.bytes"])
        except (KeyError, ValueError, DestinationError) as error:
            if isinstance(error, DestinationUnreachable):
                raise
            return 1_048_588  # message.max.bytes of brokers; without DESCRIBE_CONFIGS nobody tells another

    def _make_windows_topic(self) -> None:
        """Make the topic of windows where it is missing: compacted, of one partition.

        Raises:
            DestinationPermission: this user may not; the message names the right.
        """
        if describe(self.location, [self.windows_topic], uri=self.uri)[0] is not None:
            return
        from confluent_kafka import KafkaException  # driver
        from confluent_kafka.admin import NewTopic  # driver

        new = NewTopic(self.windows_topic, num_partitions=1, config={"cleanup.policy": "compact"})
        try:
            ask(
                self.location, lambda admin: admin.create_topics([new]), uri=self.uri,
                action=f"create {self.windows_topic}",
            )  # fmt: skip
        except DestinationError as error:
            cause = error.__cause__
            if not (isinstance(cause, KafkaException) and cause.args[0].name() == "TOPIC_ALREADY_EXISTS"):
                raise
        until = time.monotonic() + self.location.timeout_seconds
        while describe(self.location, [self.windows_topic], uri=self.uri)[0] is None:  # brokers hear of it one by one
            if time.monotonic() > until:
                raise DestinationUnreachable(f"{self.uri}: {self.windows_topic} was created, and is not there yet.")
            time.sleep(0.1)

    def _translate(self, action: str) -> Any:
        return translate_errors(uri=self.uri, action=action, servers=self.location.servers)

    # --- proofs ----------------------------------------------------------------------------------

    def count(self, path: str, run_id: str, window: str) -> TopicCount:
        """Count the messages of a window that a reader of committed messages finds.

        Raises:
            DestinationError and its kin.
        """
        found = self.windows.read(self.export).get(path)
        facts = describe(self.location, [self.topic], uri=self.uri)[0]
        if found is None or facts is None or facts.id != found.account.topic_id:
            return TopicCount(doubt=f"topic {self.topic} is not the one that it was produced to")
        account = found.account
        doubt = self._doubt(account)
        if doubt:
            return TopicCount(doubt=doubt)
        heard, counted, ours = Heard(), 0, (run_id.encode(), window.encode())
        with self._translate(f"count what is in {self.topic}") as said:
            said.append(heard)
            consumer = make_consumer(self.location, heard)
            try:
                for partition, (low, high) in enumerate(account.offsets):
                    if low == high:
                        continue
                    seconds = self.location.timeout_seconds
                    for message in consume(consumer, self.topic, partition, low, high, seconds=seconds):
                        headers = dict(message.headers() or ())
                        counted += (headers.get(RUN_HEADER), headers.get(WINDOW_HEADER)) == ours
            finally:
                consumer.close()
        return TopicCount(counted, account.messages)

    def _doubt(self, account: WindowAccount) -> str:
        """Return why the messages of a window cannot be counted; '' where they can."""
        policy = topic_settings(self.location, self.topic, uri=self.uri).get("cleanup.policy", "")
        if "compact" in policy:
            return f"topic {self.topic} is compacted, which removes messages whose key came again"
        firsts = offsets(self.location, self.topic, account.partitions, uri=self.uri, first=True)
        if any(first > low and low != high for first, (low, high) in zip(firsts, account.offsets, strict=True)):
            return f"the retention of topic {self.topic} has removed messages of it"
        return ""

    def check(self) -> None:
        """Prove that brokers answer, that the topic is there, and that a transaction can begin and end.

        Raises:
            DestinationError and its kin.
        """
        self._topic_facts()
        heard = Heard()
        with self._translate("begin a transaction") as said:
            said.append(heard)
            probing = f"{self.transactional_id}.doctor"  # the export's own would fence a run
            settings = {
                "transactional.id": probing,
                "transaction.timeout.ms": self.transaction_seconds * 1000,
                "message.timeout.ms": min(self.location.timeout_seconds, self.transaction_seconds) * 1000,
            }
            producer = make_producer(self.location, heard, **settings)
            producer.init_transactions(float(self.location.timeout_seconds))
            producer.begin_transaction()
            producer.abort_transaction(float(self.location.timeout_seconds))

    def findings(self) -> Iterator[Finding]:
        """Look at brokers, topic and rights, for `rivet doctor`; nothing is produced."""
        self.check()
        facts = self._topic_facts()
        yield Finding("topic", "ok", f"{self.topic}, {facts.partitions} partitions")
        yield Finding("transaction", "ok", f"one began and ended, under {self.transactional_id}.doctor")
        there = describe(self.location, [self.windows_topic], uri=self.uri)[0]
        if there is None:
            yield Finding("windows_topic", "ok", f"{self.windows_topic} is made by the first run, which needs CREATE")
            return
        policy = topic_settings(self.location, self.windows_topic, uri=self.uri).get("cleanup.policy", "")
        if policy == "compact" and there.partitions == 1:
            yield Finding("windows_topic", "ok", f"{self.windows_topic}, compacted, of one partition")
            return
        text = (
            f"{self.windows_topic} has {there.partitions} partitions and cleanup.policy={policy}: records of windows "
        )
        fix = f"kafka-configs.sh --alter --topic {self.windows_topic} --add-config cleanup.policy=compact"
        yield Finding("windows_topic", "fail", text + "could get lost, and their rows would be produced again", fix)


@dataclass
class _Transaction:
    """The messages of one window inside an open transaction."""

    root: KafkaRoot
    producer: Any
    heard: Heard
    facts: TopicFacts
    limit: int
    step: Callable[[str], None]
    messages: int = 0
    newest: str = ""

    def run(self, batches: Iterable[Messages], lows: list[int], path: str, content: bytes) -> None:
        """Produce rows, then the manifest, and commit."""
        for number, batch in enumerate(batches):
            self._refuse_large(batch)
            self._produce(batch)
            self.newest = max(self.newest, batch.newest)
            if number == 0:
                self._flush()
                self.step("produce")
        self._flush()
        root = self.root
        highs = offsets(root.location, root.topic, self.facts.partitions, uri=root.uri, all_there_is=True)
        account = WindowAccount(
            self.messages, self.facts.partitions, self.facts.id, tuple(zip(lows, highs, strict=True)), self.newest
        )
        self.step("commit")
        self.producer.produce(
            root.windows_topic, content, f"{root.export}:{path}", 0, headers=[(ACCOUNT, spell_account(account))]
        )
        self._flush()
        self.producer.commit_transaction(float(root.location.timeout_seconds))

    def _refuse_large(self, batch: Messages) -> None:
        """Refuse a message that the topic does not take, before the broker does.

        Raises:
            MessageTooLarge
        """
        size = pc.fill_null(pc.binary_length(batch.values), 0)
        if batch.keys is not None:
            size = pc.add(size, pc.fill_null(pc.binary_length(batch.keys), 0))
        largest = int(pc.max(size).as_py() or 0)
        if largest + OVERHEAD_BYTES > self.limit:
            raise MessageTooLarge(
                f"{self.root.uri}: a row of export {self.root.export} is a message of {largest} bytes, and the topic takes "
                f"{self.limit} (max.message.bytes) with its headers. Nothing of the window is visible. Raise it with "
                f"`kafka-configs.sh --alter --topic {self.root.topic} --add-config max.message.bytes={2 * largest}`, or "
                f"leave out the large column."
            )

    def _produce(self, batch: Messages) -> None:
        """Hand messages to the producer, which sends them in the background."""
        topic, common = self.root.topic, list(batch.common)
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
            for partition in range(self.facts.partitions) if everywhere else (-1,):
                while True:
                    try:
                        self.producer.produce(self.root.topic, value, key, partition, headers=own)
                        break
                    except BufferError:
                        self._wait()
                self.messages += 1
        self._refuse_undelivered()

    def _flush(self) -> None:
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
        if self.heard.undelivered is not None:
            from confluent_kafka import KafkaException  # driver

            raise KafkaException(self.heard.undelivered)
