"""Messages in a topic of Apache Kafka (`type: kafka`), each window in one transaction.

Belongs here: the YAML block, the transaction that publishes a window, what a re-run means. Not here: clients and
errors (`kafka_client.py`), the transaction (`kafka_transaction.py`), what is refused (`kafka_topic.py`), committed
windows (`kafka_windows.py`), what messages are made of (`write/messages/`).

The manifest of a window is a record in a topic of windows, written inside the transaction that produces its rows: both
are visible, or none is, and all that reads manifests elsewhere (cursors, drift, provenance, `rivet validate`) reads
them here.

    fence       init_transactions: what an earlier run with our transactional id has open is aborted, and it can
                commit no more; what it did commit is visible from here on
    look        the window's manifest is still the one that was planned for; else WindowTaken
    produce     rows, in their order
    manifest    the last message
    commit

First copies of several tables are windows of one transaction, under the id of the first and behind the fences of all.

A process that dies anywhere before the commit leaves an open transaction, which readers of committed messages never
see: the next run of the export ends it, or the broker does after `transaction_timeout_s`. Until then such readers wait
behind it.
"""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Annotated, Any, BinaryIO, ClassVar, Literal, Self, cast

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from rivet_resources.contracts.addressing import LOOPBACK, MANIFESTS, STAGED, stem_of
from rivet_resources.contracts.evidence import Finding
from rivet_resources.contracts.messages import Rerun, Topic, TopicCount, WindowMessages
from rivet_resources.contracts.parts import Part
from rivet_resources.contracts.settings import Settings
from rivet_resources.destinations import kafka_proofs
from rivet_resources.destinations.kafka_client import KafkaLocation
from rivet_resources.destinations.kafka_topic import KafkaTopic
from rivet_resources.destinations.kafka_transaction import produce_windows
from rivet_resources.destinations.local import LocalRoot
from rivet_resources.errors import DestinationError
from rivet_resources.extras import KAFKA, Extra
from rivet_resources.scratch import private_folder
from rivet_resources.secrets import is_set

TOPIC_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}")
PLACEHOLDERS = ("{export}", "{table}")
# What makes a window exact, or is a key of its own; no setting of the client may change it.
OURS = re.compile(
    r"bootstrap\.servers|metadata\.broker\.list|client\.id|group\..*|transactional\.id|transaction\..*|enable\.idempotence"
    r"|acks|request\.required\.acks|max\.in\.flight.*|isolation\.level|security\.protocol|sasl\..*|ssl\..*|.*_cb"
    r"|delivery\..*|on_delivery|dr_.*|retries|message\.send\.max\.retries|message\.timeout\.ms|delivery\.timeout\.ms"
    r"|message\.max\.bytes|compression\..*|partitioner|enable\.gapless\.guarantee|enable\.auto.*|plugin\..*"
)


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
ClientSettings = Annotated[tuple[tuple[str, str], ...], BeforeValidator(_pairs, json_schema_input_type=dict[str, str])]


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
    username: str | None = Field(None, min_length=1, description="of SASL, with `mechanism` and `password_env`")
    password_env: str | None = Field(None, description="environment variable that holds the password")
    allow_insecure_endpoint: bool = Field(False, description="accept plain lines to another machine")
    client_settings: ClientSettings = Field(
        (), description="further settings of librdkafka, such as linger.ms; none that makes it inexact"
    )

    @model_validator(mode="after")
    def can_be_exact(self) -> Self:
        """Refuse half a sign-in, plain lines to other machines, and settings that would lose or repeat rows."""
        if bool(self.mechanism) != bool(self.username and self.password_env) or (
            bool(self.username) != bool(self.password_env)
        ):
            raise ValueError("has half of a sign-in; write mechanism, username and password_env, or none of them")
        if bool(self.certificate_file) != bool(self.key_file):
            raise ValueError("has half of a client certificate; write certificate_file and key_file, or none of them")
        # Rows and, with SASL/PLAIN, the password itself would pass in the clear.
        if not self.is_encrypted and not self.is_here and not self.allow_insecure_endpoint:
            raise ValueError(
                "sends rows over a plain line to another machine; leave out `tls: false`, or set "
                "`allow_insecure_endpoint: true`"
            )
        if not self.is_encrypted and (self.ca_file or self.certificate_file):
            raise ValueError("has certificates, and the line is plain; write `tls: true`")
        # By name, since librdkafka would take them without a word: `acks=0` alone makes a window that may have holes.
        ours = sorted(name for name, _ in self.client_settings if OURS.fullmatch(name))
        if ours:
            raise ValueError(
                f"sets {', '.join(ours)} under `client_settings`, which decide whether each row comes once, or have "
                f"keys of their own; remove them"
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
            client_settings=self.client_settings,
        )

    def topic_of(self, export: str) -> str:
        """Name the topic of an export, or of one of its tables."""
        # The name of a table among several has a slash, which a topic's may not have.
        return self.topic.replace("{export}", export.replace("/", ".")).replace("{table}", stem_of(export))

    def root(self, export: str) -> KafkaRoot:
        """Address one export's topic; parts wait in a folder of this machine, under this user's id."""
        topic = self.topic_of(export)
        windows = _topic(self.windows_topic.replace("{topic}", topic))
        # By cluster and topics: two configurations with an export of one name must not sweep each other's parts.
        name = hashlib.sha256(f"{self.bootstrap_servers}\n{topic}\n{windows}".encode()).hexdigest()[:16]
        at = KafkaTopic(
            self.location,
            export,
            _topic(topic),
            windows,
            f"{self.transactional_id_prefix}.{topic}.{export}",
            self.transaction_timeout_s,
            self.compression,
            self.partitions,
        )
        return KafkaRoot(at, LocalRoot(f"{stage_folder()}/{name}/{export}", export), self.on_rerun)

    def credentials(self) -> Iterator[Finding]:
        """Yield who signs in, without a secret."""
        if self.mechanism is None:
            who = "a client certificate" if self.certificate_file else "nobody signs in"
            yield Finding("credentials", "ok", who)
        elif not is_set(self.password_env or ""):
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

    at: KafkaTopic
    beside: LocalRoot
    on_rerun: Rerun = "refuse"
    keeps_manifests: bool = True

    @property
    def uri(self) -> str:
        """Name it for people: kafka://host:9092/orders."""
        return self.at.uri

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
        # A part is no message by itself: only the whole window is produced, with its manifest, in one transaction
        # (`append`).
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

    def read(self, path: str) -> tuple[bytes, str] | None:
        """Read a manifest, whose version is the offset of its record; or a sidecar of the staging folder."""
        if not path.startswith(f"{MANIFESTS}/"):
            return self.staging.read(path)
        # How a run knows what is committed (decided 2026-11): the manifest of a window is a record in a topic of
        # windows, written inside the transaction that produces its rows. Offsets of a consumer group, which Kafka can
        # also commit in a transaction, were rejected: they expire when nobody is in the group
        # (offsets.retention.minutes, a week), hold 4 KB of text, and no reader sees which windows there are.
        found = self.at.windows.read(self.at.export).get(path)
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
        found = self.at.windows.read(self.at.export)
        return {path: len(record.content) for path, record in found.items() if path.startswith(prefix)}

    def list_after(self, path: str, *, most: int) -> dict[str, str | None]:
        """List the manifests that follow, in the order of their names."""
        return dict.fromkeys([each for each in sorted(self.list(f"{MANIFESTS}/")) if each > path][:most])

    def delete(self, paths: Iterable[str]) -> None:
        """Remove sidecars; messages and their manifests stay, and nothing else is there."""
        # Asked for what a file store would remove as replaced; in a topic nothing is.
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

    # --- a window in a transaction, and what can be proved of it ---------------------------------

    def append(
        self,
        window: WindowMessages,
        *,
        step: Callable[[str], None],
        beside: Sequence[tuple[Topic, WindowMessages]] = (),
    ) -> None:
        """Produce messages and their window's manifest in one transaction; see `Topic`.

        Raises:
            WindowTaken: another run committed one of the windows, or fenced this one.
            DestinationError and its kin; nothing of the windows is visible then.
        """
        # One destination has one kind of root.
        others = [(cast(KafkaRoot, root).at, messages) for root, messages in beside]
        produce_windows([(self.at, window), *others], step=step)

    def newest(self) -> str:
        """Return the highest `__pos` of the changes that are in the topic."""
        return max((each.account.newest for each in self.at.windows.read(self.at.export).values()), default="")

    def count(self, path: str, run_id: str, window: str) -> TopicCount:
        """Count the messages of a window that a reader of committed messages finds."""
        return kafka_proofs.count(self.at, path, run_id, window)

    def check(self) -> None:
        """Prove that brokers answer, that the topic is there, and that a transaction can begin and end."""
        kafka_proofs.check(self.at)

    def findings(self) -> Iterator[Finding]:
        """Look at brokers, topic and rights, for `rivet doctor`; nothing is produced."""
        return kafka_proofs.findings(self.at)
