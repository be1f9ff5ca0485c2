"""A Kafka behind TLS, SCRAM and rights: what is documented suffices, and each refusal is told as what it is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rivet_resources.destinations.kafka import Kafka
from rivet_resources.destinations.probe import probe
from rivet_resources.errors import DestinationAuth, DestinationPermission, DestinationTls, RivetError
from tests.engines.test_kafka import ALL, configure, ids, shop
from tests.faults.topic_run import export_once
from tests.servers import kafka as servers_kafka
from tests.servers import own as servers_own
from tests.servers.kafka import Broker

pytestmark = pytest.mark.xdist_group("kafka_secured")
__all__ = ["shop"]
SIGN_IN = "mechanism: SCRAM-SHA-512, username: {user}, password_env: KAFKA_PASSWORD, timeout_s: 5"
# What docs/guides/kafka.md says a user needs; TOPIC stands for the topic of rows.
RIGHTS = (
    *(("TOPIC", "TOPIC*", right) for right in ("WRITE", "READ", "DESCRIBE", "DESCRIBE_CONFIGS")),
    ("TOPIC", "TOPIC_rivet_windows", "CREATE"),
    *(("TRANSACTIONAL_ID", "rivet.*", right) for right in ("WRITE", "DESCRIBE")),
    ("GROUP", "rivet", "READ"),
)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with authorities and certificates."""
    folder = tmp_path_factory.mktemp("certificates") / "of"
    servers_own.make_certificates(folder)
    return folder


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory, certificates: Path) -> Iterator[Broker]:
    """A Kafka that lets nobody in without a name, and nobody do what was not granted."""
    if not servers_kafka.is_there():
        pytest.skip(f"no Kafka in {servers_kafka.KAFKA_FOLDER}: {servers_kafka.KAFKA_COMMAND}")
    with servers_kafka.broker(tmp_path_factory.mktemp("kafka") / "broker", certificates=certificates) as one:
        yield one


@pytest.fixture(autouse=True)
def password(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the password of every user."""
    monkeypatch.setenv("KAFKA_PASSWORD", servers_kafka.PASSWORD)


def granted(broker: Broker, topic: str, user: str, *, without: tuple[str, str] | None = None) -> None:
    """Grant what is documented, but one right on one kind of thing."""
    broker.revoke(user)
    rights = [(kind, name.replace("TOPIC", topic), right) for kind, name, right in RIGHTS if (kind, right) != without]
    broker.grant(user, *rights)


def config_of(folder: Path, broker: Broker, topic: str, port: int, more: str) -> Path:
    """Write a config that goes to one of the broker's lines."""
    config = configure(folder, broker, topic, more=f", {more}")
    config.write_text(config.read_text().replace(broker.servers, f"127.0.0.1:{port}"))
    return config


def test_user_with_the_documented_rights_exports(secured: Broker, shop: Path, certificates: Path) -> None:
    """TLS, SCRAM, and no right more than the guide names; a second run asks for what only readers need."""
    topic = secured.topic()
    granted(secured, topic, "rivet")
    tls = f"tls: true, ca_file: {certificates}/ours.pem, "
    config = config_of(shop, secured, topic, secured.scram_port, tls + SIGN_IN.format(user="rivet"))

    assert 90 == export_once(config)
    assert ids(secured, topic) == ALL
    config.write_text(config.read_text().replace("topic:", "on_rerun: append, topic:"))
    assert 90 == export_once(config)


@pytest.mark.rare
@pytest.mark.parametrize(
    "missing",
    [("TOPIC", "WRITE"), ("TOPIC", "CREATE"), ("TRANSACTIONAL_ID", "WRITE")],
    ids=":".join,
)
def test_right_that_is_missing_is_named(
    secured: Broker, shop: Path, certificates: Path, missing: tuple[str, str]
) -> None:
    """By what to grant; nothing becomes visible, and with the right the same command goes on."""
    topic = secured.topic()
    granted(secured, topic, "rivet", without=missing)
    tls = f"tls: true, ca_file: {certificates}/ours.pem, "
    config = config_of(shop, secured, topic, secured.scram_port, tls + SIGN_IN.format(user="rivet"))

    with pytest.raises(DestinationPermission, match="Grant .*" + missing[1]):
        export_once(config)
    assert ids(secured, topic) == []
    granted(secured, topic, "rivet")

    assert 90 == export_once(config)
    assert ids(secured, topic) == ALL


@pytest.mark.rare
def test_right_to_read_what_is_committed_is_named(secured: Broker, shop: Path, certificates: Path) -> None:
    """A first run has nothing to read there; the next one may not guess what it did."""
    topic = secured.topic()
    granted(secured, topic, "rivet", without=("TOPIC", "READ"))
    tls = f"tls: true, ca_file: {certificates}/ours.pem, "
    config = config_of(shop, secured, topic, secured.scram_port, tls + SIGN_IN.format(user="rivet"))
    export_once(config)
    config.write_text(config.read_text().replace("timeout_s: 5", "timeout_s: 6"))  # a process of its own

    with pytest.raises(DestinationPermission, match="Grant READ"):
        export_once(config)


@pytest.mark.rare
def test_sign_in_that_is_refused_is_told_as_that(
    secured: Broker, shop: Path, certificates: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wrong password, a user nobody knows, and nobody signing in at all."""
    topic = secured.topic()
    granted(secured, topic, "rivet")
    tls = f"tls: true, ca_file: {certificates}/ours.pem, "
    monkeypatch.setenv("KAFKA_PASSWORD", "guessed-wrongly")
    for user in ("rivet", "stranger"):
        config = config_of(shop, secured, topic, secured.scram_port, tls + SIGN_IN.format(user=user))
        with pytest.raises(DestinationAuth, match="refused the sign-in") as refused:
            export_once(config)
        assert "guessed" not in str(refused.value)
    monkeypatch.setenv("KAFKA_PASSWORD", servers_kafka.PASSWORD)
    plainly = SIGN_IN.format(user="rivet").replace("SCRAM-SHA-512", "PLAIN")
    with pytest.raises(DestinationAuth, match="mechanism"):
        export_once(config_of(shop, secured, topic, secured.scram_port, tls + plainly))


@pytest.mark.rare
@pytest.mark.parametrize(
    "lines",
    ["tls: true", "tls: true, ca_file: {certificates}/theirs.pem"],
    ids=["no authority", "another authority"],
)
def test_certificate_that_cannot_be_trusted_is_told_as_that(
    secured: Broker, shop: Path, certificates: Path, lines: str
) -> None:
    """TLS that fails is no broker that is away."""
    topic = secured.topic()
    lines = lines.format(certificates=certificates) + ", "
    with pytest.raises(DestinationTls, match="ca_file"):
        export_once(config_of(shop, secured, topic, secured.scram_port, lines + SIGN_IN.format(user="rivet")))


@pytest.mark.rare
def test_certificate_of_the_client_lets_it_in(secured: Broker, shop: Path, certificates: Path) -> None:
    """Mutual TLS: without a certificate nobody comes in, with one its name has the rights."""
    topic = secured.topic()
    granted(secured, topic, "CN=localhost")
    tls = f"tls: true, ca_file: {certificates}/ours.pem, timeout_s: 5"
    with pytest.raises(DestinationTls):
        export_once(config_of(shop, secured, topic, secured.mutual_port, tls))
    own = f", certificate_file: {certificates}/good.pem, key_file: {certificates}/good.key"

    assert 90 == export_once(config_of(shop, secured, topic, secured.mutual_port, tls + own))
    assert ids(secured, topic) == ALL


@pytest.mark.rare
def test_doctor_names_the_right_that_is_missing(secured: Broker, certificates: Path) -> None:
    """Before a run, by the same question."""
    topic = secured.topic()
    granted(secured, topic, "nobody", without=("TRANSACTIONAL_ID", "WRITE"))
    destination = Kafka(
        bootstrap_servers=f"127.0.0.1:{secured.scram_port}", topic=topic, tls=True, timeout_s=5,
        ca_file=certificates / "ours.pem", mechanism="SCRAM-SHA-512", username="nobody",
        password_env="KAFKA_PASSWORD",
    )  # fmt: skip
    try:
        found = list(probe(destination.root("orders")))
        told = " ".join(f"{each.text} {each.fix}" for each in found if each.status != "ok")
    except RivetError as error:
        told = str(error)

    assert "WRITE and DESCRIBE on the transactional id" in told
