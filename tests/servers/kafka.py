"""Apache Kafka for tests: one process in KRaft mode, from its jars.

Belongs here: starting and ending it, topics, rights, and reading topics as others would. The jars come from Maven's
repository into `KAFKA_FOLDER`; tests are skipped where they are not there.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.servers.postgres import free_port
from tests.servers.registries import _end_with_us

KAFKA_FOLDER = Path(os.environ.get("RIVET_KAFKA", Path.home() / ".cache/rivet-kafka"))
KAFKA_COMMAND = f"mvn -f .ci/kafka.xml dependency:copy-dependencies -DoutputDirectory={KAFKA_FOLDER}"
START_SECONDS = 120
PASSWORD = "correct-horse"
USERS = ("rivet", "nobody")  # of SCRAM; who may do what is for `grant`


def is_there() -> bool:
    """Return whether its jars and a Java are there."""
    return any(KAFKA_FOLDER.glob("kafka_2.13-*.jar")) and shutil.which("java") is not None


@dataclass
class Broker:
    """One running Kafka: a line without sign-in, and one with a password.

    `certificates`: then two more, by TLS: with SCRAM, and with a certificate of the client; rights are asked for on all
    but the plain one.
    """

    folder: Path
    certificates: Path | None = None
    port: int = field(default_factory=free_port)
    sasl_port: int = field(default_factory=free_port)
    controller_port: int = field(default_factory=free_port)
    scram_port: int = field(default_factory=free_port)
    mutual_port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None

    @property
    def servers(self) -> str:
        """Return its address."""
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it, again too, and wait until it answers."""
        settings = self.folder / "server.properties"
        if not settings.exists():
            self.folder.mkdir(parents=True, exist_ok=True)
            settings.write_text("".join(f"{name}={value}\n" for name, value in self._settings().items()))
            users = [f"SCRAM-SHA-512=[name={user},password={PASSWORD}]" for user in USERS if self.certificates]
            words = [word for user in users for word in ("--add-scram", user)]
            format_words = ("format", "-t", "MkU3OEVBNTcwNTJENDM2Qg", "-c", str(settings), *words)
            self._java("kafka.tools.StorageTool", *format_words).wait(60)
        self.process = self._java("kafka.Kafka", str(settings))
        until = time.monotonic() + START_SECONDS
        while time.monotonic() < until and self.process.poll() is None:
            if self._answers():
                return
            time.sleep(0.2)
        raise RuntimeError(f"Kafka did not start: {(self.folder / 'log').read_text()[-2000:]}")

    def kill(self) -> None:
        """End it at once."""
        if self.process is not None:
            self.process.kill()
            self.process.wait(30)
            self.process = None

    def pause(self) -> None:
        """Let it answer nobody."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it answer again."""
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    def _settings(self) -> Mapping[str, str]:
        plain = "org.apache.kafka.common.security.plain.PlainLoginModule required"
        return {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@127.0.0.1:{self.controller_port}",
            "controller.listener.names": "CONTROLLER",
            "listeners": f"PLAIN://127.0.0.1:{self.port},SASL://127.0.0.1:{self.sasl_port},"
            f"CONTROLLER://127.0.0.1:{self.controller_port}",
            "advertised.listeners": f"PLAIN://127.0.0.1:{self.port},SASL://127.0.0.1:{self.sasl_port}",
            "listener.security.protocol.map": "PLAIN:PLAINTEXT,SASL:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
            "inter.broker.listener.name": "PLAIN",
            "listener.name.sasl.sasl.enabled.mechanisms": "PLAIN",
            "listener.name.sasl.plain.sasl.jaas.config": f'{plain} user_rivet="{PASSWORD}";',
            "sasl.enabled.mechanisms": "PLAIN",
            "log.dirs": str(self.folder / "data"),
            "offsets.topic.replication.factor": "1",
            "offsets.topic.num.partitions": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "transaction.state.log.num.partitions": "1",
            "group.initial.rebalance.delay.ms": "0",
            "auto.create.topics.enable": "false",
            "num.network.threads": "2",
            "num.io.threads": "2",
            "log.cleaner.dedupe.buffer.size": "4194304",
            "log.cleaner.threads": "1",
            "background.threads": "2",
            **(self._secured(self.certificates) if self.certificates else {}),
        }

    def _secured(self, certificates: Path) -> Mapping[str, str]:
        """Add the lines by TLS, whose users have no right but those that are granted."""
        here = f"127.0.0.1:{self.port},SASL://127.0.0.1:{self.sasl_port}"
        more = f"SCRAM://127.0.0.1:{self.scram_port},MUTUAL://127.0.0.1:{self.mutual_port}"
        pair = self.folder / "broker.pem"
        pair.write_text((certificates / "good.key").read_text() + (certificates / "good.pem").read_text())
        scram = "listener.name.scram.scram-sha-512.sasl.jaas.config"
        return {
            "listeners": f"PLAIN://{here},CONTROLLER://127.0.0.1:{self.controller_port},{more}",
            "advertised.listeners": f"PLAIN://{here},{more}",
            "listener.security.protocol.map": "PLAIN:PLAINTEXT,SASL:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT,SCRAM:SASL_SSL,"
            "MUTUAL:SSL",
            "listener.name.scram.sasl.enabled.mechanisms": "SCRAM-SHA-512",
            scram: "org.apache.kafka.common.security.scram.ScramLoginModule required;",
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(pair),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(certificates / "ours.pem"),
            "listener.name.mutual.ssl.client.auth": "required",
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS",
        }

    def _java(self, *words: str) -> subprocess.Popen[bytes]:
        command = [
            "java", "-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto", "-cp",
            f"{KAFKA_FOLDER}/*", *words,
        ]  # fmt: skip
        with (self.folder / "log").open("ab") as log:
            return subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.folder, preexec_fn=_end_with_us
            )

    def _answers(self) -> bool:
        from confluent_kafka import KafkaException

        try:
            self.admin().list_topics(timeout=1)
        except KafkaException:
            return False
        return True

    # --- topics ----------------------------------------------------------------------------------

    def admin(self) -> Any:
        """Return an admin client."""
        from confluent_kafka.admin import AdminClient

        return AdminClient({"bootstrap.servers": self.servers, "log_level": 0})

    def topic(self, name: str = "", *, partitions: int = 3, **settings: str) -> str:
        """Make a topic; its name."""
        from confluent_kafka.admin import NewTopic

        name = name or f"t{uuid.uuid4().hex[:10]}"
        config = {key.replace("_", "."): value for key, value in settings.items()}
        admin = self.admin()
        for future in admin.create_topics([NewTopic(name, num_partitions=partitions, config=config)]).values():
            future.result(30)
        while name not in admin.list_topics(timeout=10).topics:
            time.sleep(0.05)
        return name

    def grant(self, user: str, *rights: tuple[str, str, str]) -> None:
        """Let a user do things: (TOPIC, GROUP, TRANSACTIONAL_ID or BROKER; its name, `x*` for a prefix; READ …)."""
        from confluent_kafka.admin import AclBinding, AclOperation, AclPermissionType, ResourcePatternType, ResourceType

        bindings = [
            AclBinding(
                ResourceType[kind], name.rstrip("*"),
                ResourcePatternType.PREFIXED if name.endswith("*") else ResourcePatternType.LITERAL,
                f"User:{user}", "*", AclOperation[right], AclPermissionType.ALLOW,
            )
            for kind, name, right in rights
        ]  # fmt: skip
        admin = self.admin()
        for future in admin.create_acls(bindings).values():
            future.result(30)

    def revoke(self, user: str) -> None:
        """Take all rights of a user."""
        from confluent_kafka.admin import (
            AclBindingFilter,
            AclOperation,
            AclPermissionType,
            ResourcePatternType,
            ResourceType,
        )

        every = AclBindingFilter(
            ResourceType.ANY, None, ResourcePatternType.ANY, f"User:{user}", None, AclOperation.ANY,
            AclPermissionType.ANY,
        )  # fmt: skip
        admin = self.admin()
        for future in admin.delete_acls([every]).values():
            future.result(30)

    def remove(self, name: str) -> None:
        """Delete a topic, and wait until it is gone."""
        admin = self.admin()
        for future in admin.delete_topics([name]).values():
            future.result(30)
        while name in admin.list_topics(timeout=10).topics:
            time.sleep(0.05)
        time.sleep(0.5)

    def read(
        self, topic: str, *, isolation: str = "read_committed", decode: Callable[[Any], Any] | None = None
    ) -> list[Any]:
        """Return all messages of a topic, partition by partition, as a consumer of its own gets them."""
        from confluent_kafka import Consumer, TopicPartition

        consumer = Consumer({
            "bootstrap.servers": self.servers, "group.id": uuid.uuid4().hex, "isolation.level": isolation,
            "enable.partition.eof": True, "auto.offset.reset": "earliest", "enable.auto.commit": False,
            "fetch.wait.max.ms": 20,
        })  # fmt: skip
        try:
            partitions = consumer.list_topics(topic, timeout=30).topics[topic].partitions
            found = []
            for number in sorted(partitions):
                consumer.assign([TopicPartition(topic, number, 0)])
                until = time.monotonic() + 30
                while True:
                    assert time.monotonic() < until
                    message = consumer.poll(0.2)
                    if message is not None and message.error() is not None:
                        break
                    if message is not None:
                        found.append(decode(message) if decode else message)
            return found
        finally:
            consumer.close()


@contextmanager
def broker(folder: Path, *, certificates: Path | None = None) -> Iterator[Broker]:
    """Run a Kafka of one's own."""
    one = Broker(folder, certificates)
    try:
        one.start()
        yield one
    finally:
        one.kill()
