"""Our HTTP API by Confluent's own client and serializers, and by ours."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from rivet_resources.schema_registry.client import HttpSchemaRegistry
from rivet_resources.schema_registry.embedded import EmbeddedSchemaRegistry
from rivet_resources.schema_registry.errors import (
    SchemaIncompatible,
    SchemaRegistryAuth,
    SchemaRegistryError,
    SchemaRegistryTls,
    SchemaRegistryUnreachable,
)
from rivet_resources.schema_registry.languages import avro, json_schema
from rivet_resources.schema_registry.server import MOST_BYTES, RegistryApi
from rivet_resources.state.store import default_url, open_state
from tests.schema_cases import CHANGES, LANGUAGES, Language
from tests.servers.registries import own_registry
from tests.unit.schema_registry.test_languages import texts

OLD, NEW, BROKEN = (
    avro.derive(CHANGES[name].after, name="orders", rule="backward", before=())
    for name in ("nothing", "a column that may be NULL comes", "a column without NULL comes")
)


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[EmbeddedSchemaRegistry]:
    """An empty registry in a file."""
    state = open_state(default_url(tmp_path))
    yield EmbeddedSchemaRegistry(state)
    state.close()


@pytest.fixture
def url(registry: EmbeddedSchemaRegistry) -> Iterator[str]:
    """Its address."""
    with own_registry(registry) as address:
        yield address


@pytest.fixture
def confluent(url: str) -> Any:
    """Confluent's client of it."""
    from confluent_kafka.schema_registry import SchemaRegistryClient

    return SchemaRegistryClient({"url": url, "max.retries": 0})


def test_confluents_client_is_answered(confluent: Any) -> None:
    """Registering, looking up, rules, deleting, each as its documentation has it."""
    from confluent_kafka.schema_registry import Schema
    from confluent_kafka.schema_registry.error import SchemaRegistryError as Refused

    old, new, broken = (Schema(text, "AVRO") for text in (OLD, NEW, BROKEN))
    number = confluent.register_schema("a/b value", old)

    assert 1 == number
    assert OLD == confluent.get_schema(number).schema_str
    assert ["a/b value"] == confluent.get_subjects()
    assert 1 == confluent.lookup_schema("a/b value", old).version == confluent.get_latest_version("a/b value").version
    assert confluent.test_compatibility("a/b value", new)
    assert not confluent.test_compatibility("a/b value", broken)
    with pytest.raises(Refused) as refused:
        confluent.register_schema("a/b value", broken)
    assert (409, 409) == (refused.value.http_status_code, refused.value.error_code)
    confluent.set_compatibility("a/b value", "NONE")
    assert "NONE" == confluent.get_compatibility("a/b value")
    assert 2 == confluent.register_schema("a/b value", broken)
    assert [1, 2] == confluent.get_versions("a/b value")
    assert 1 == confluent.delete_version("a/b value", 1)
    with pytest.raises(Refused) as refused:
        confluent.get_version("a/b value", 1)
    assert (404, 40402) == (refused.value.http_status_code, refused.value.error_code)
    assert [2] == confluent.delete_subject("a/b value")
    assert [] == confluent.get_subjects()


def test_serializers_of_others_use_it(confluent: Any) -> None:
    """Confluent's write and read Avro and JSON by the schemas that Rivet derives."""
    from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
    from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
    from confluent_kafka.serialization import MessageField, SerializationContext

    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("status", pa.string())])
    row = {"id": 1, "status": None}
    of_avro = avro.derive(schema, name="orders", rule="backward", before=())
    of_json = json_schema.derive(schema, name="orders", rule="backward", before=())
    place = SerializationContext("orders", MessageField.VALUE)
    other = SerializationContext("orders_json", MessageField.VALUE)

    by_avro = AvroSerializer(confluent, of_avro)(row, place)
    by_json = JSONSerializer(of_json, confluent)(row, other)

    assert row == AvroDeserializer(confluent)(by_avro, place)
    assert row == JSONDeserializer(of_json, schema_registry_client=confluent)(by_json, other)
    assert {"orders-value", "orders_json-value"} == set(confluent.get_subjects())


@pytest.mark.parametrize("form", LANGUAGES)
def test_our_client_finds_what_it_registered(url: str, form: Language) -> None:
    """Versions, ids, rules and languages come through HTTP as they were given."""
    registry = HttpSchemaRegistry(url)
    old, new = texts(form, "a column that may be NULL comes", "backward")
    registry.declare("a/b", "full_transitive", owner="")
    number = registry.register("a/b", form, old, owner="")
    found = registry.find("a/b", form, old)

    assert found is not None
    assert (number, 1, form, old) == (found.id, found.version, found.format, found.text)
    assert (form, old) == registry.schema(number)
    assert found == registry.version("a/b", 1)
    assert (["a/b"], [1]) == (registry.subjects(), registry.versions("a/b"))
    assert "full_transitive" == registry.compatibility("a/b") == registry.own_compatibility("a/b")
    assert (None, None, None) == (registry.find("a/b", form, new), registry.version("a/b", 9), registry.schema(9))
    assert ([], None) == (registry.versions("none"), registry.own_compatibility("none"))
    registry.set_compatibility("a/b", None)
    assert "backward" == registry.compatibility("a/b")


def test_what_is_not_offered_is_refused_by_name(registry: EmbeddedSchemaRegistry) -> None:
    """With Confluent's codes, and never with an error of the program."""
    api = RegistryApi(registry)
    registry.register("a", "avro", OLD, owner="shop//orders")
    body = {"schema": NEW}
    cases = {
        ("POST", "/subjects/a/versions", json.dumps({**body, "references": [{"name": "x"}]})): (422, 42201),
        ("POST", "/subjects/a/versions", json.dumps({**body, "schemaType": "XML"})): (422, 42201),
        ("POST", "/subjects/a/versions", json.dumps(body)): (403, 40301),
        ("POST", "/subjects/b/versions", json.dumps({"schema": "{"})): (422, 42201),
        ("POST", "/subjects/b/versions", json.dumps({"schema": 7})): (422, 42201),
        ("POST", "/subjects/b/versions", "[" * 100_000): (400, 400),
        ("POST", "/subjects/b/versions", "no"): (400, 400),
        ("POST", "/subjects/b", json.dumps(body)): (404, 40401),
        ("POST", "/subjects/a", json.dumps(body)): (404, 40403),
        ("GET", "/subjects/a/versions/0", ""): (422, 42202),
        ("GET", f"/subjects/a/versions/{'9' * 5000}", ""): (422, 42202),
        ("GET", "/subjects/a/versions/2", ""): (404, 40402),
        ("GET", "/subjects/b/versions", ""): (404, 40401),
        ("GET", "/schemas/ids/x", ""): (404, 40403),
        ("GET", f"/schemas/ids/{'9' * 5000}", ""): (404, 40403),
        ("GET", "/config/b", ""): (404, 40408),
        ("PUT", "/config", json.dumps({"compatibility": "SOME"})): (422, 42203),
        ("PUT", "/mode", json.dumps({"mode": "IMPORT"})): (422, 42204),
        ("DELETE", "/subjects/a?permanent=true", ""): (404, 40405),
        ("DELETE", "/subjects/a/versions/1?permanent=true", ""): (404, 40407),
        ("PATCH", "/subjects", ""): (405, 405),
        ("GET", "/contexts", ""): (404, 404),
    }
    for (method, path, text), expected in cases.items():
        status, document = api.answer(method, path, text.encode())

        assert expected == (status, document["error_code"]), (method, path[:60], document)


def test_paths_that_readers_use_answer(registry: EmbeddedSchemaRegistry) -> None:
    """Those beside the ones that clients above asked."""
    api = RegistryApi(registry)
    registry.register("a", "avro", OLD, owner="")
    answers = {
        path: api.answer("GET", path, b"")
        for path in (
            "/", "/schemas/types", "/schemas/ids/1/schema", "/schemas/ids/1/subjects", "/schemas/ids/1/versions",
            "/mode", "/mode/a", "/config", "/config/a?defaultToGlobal=true", "/subjects/a/versions/latest/schema",
            "/subjects?subjectPrefix=b",
        )
    }  # fmt: skip

    assert {200} == {status for status, _ in answers.values()}
    assert ["a"] == answers["/schemas/ids/1/subjects"][1]
    assert [{"subject": "a", "version": 1}] == answers["/schemas/ids/1/versions"][1]
    assert json.loads(OLD) == answers["/subjects/a/versions/latest/schema"][1] == answers["/schemas/ids/1/schema"][1]
    assert {"compatibilityLevel": "BACKWARD"} == answers["/config/a?defaultToGlobal=true"][1]
    assert [] == answers["/subjects?subjectPrefix=b"][1]


def test_only_who_has_the_password_is_answered(registry: EmbeddedSchemaRegistry) -> None:
    """Nobody else reads or writes."""
    with own_registry(registry, username="rivet", password="secret word") as url:
        allowed = HttpSchemaRegistry(url, "rivet", "secret word")
        allowed.register("a", "avro", OLD, owner="")
        for stranger in (HttpSchemaRegistry(url), HttpSchemaRegistry(url, "rivet", "wrong")):
            with pytest.raises(SchemaRegistryAuth) as refused:
                stranger.subjects()

            assert "wrong" not in str(refused.value)
        assert ["a"] == allowed.subjects()


def test_line_is_protected_and_the_certificate_is_checked(registry: EmbeddedSchemaRegistry, tmp_path: Path) -> None:
    """A client that knows the authority is answered; one that does not asks nothing."""
    pem, key = tmp_path / "server.pem", tmp_path / "server.key"
    words = "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext subjectAltName=DNS:localhost"
    subprocess.run(["openssl", *words.split(), "-keyout", key, "-out", pem], check=True, capture_output=True)

    with own_registry(registry, certificate=pem, key=key) as url:
        assert [] == HttpSchemaRegistry(url, ca_file=pem).subjects()
        with pytest.raises(SchemaRegistryTls, match="authority"):
            HttpSchemaRegistry(url).subjects()
        with pytest.raises(SchemaRegistryTls, match="PEM"):
            HttpSchemaRegistry(url, ca_file=key).subjects()
        with pytest.raises((SchemaRegistryUnreachable, SchemaRegistryError)):
            HttpSchemaRegistry(url.replace("https", "http")).subjects()


def test_body_that_is_too_large_is_not_read(url: str) -> None:
    """Nor one whose length nobody knows."""
    from http.client import HTTPConnection

    too_large = {"Content-Length": str(MOST_BYTES + 1)}
    for headers in (too_large, {"Transfer-Encoding": "chunked"}, {"Content-Length": "-1"}):
        line = HTTPConnection(url.removeprefix("http://"), timeout=10)
        line.putrequest("POST", "/subjects/a/versions")
        for name, value in headers.items():
            line.putheader(name, value)
        line.endheaders()

        assert 413 == line.getresponse().status
        line.close()


def test_incompatible_schema_is_told_with_its_column(url: str) -> None:
    """Our client passes the registry's words on."""
    registry = HttpSchemaRegistry(url)
    registry.register("a", "avro", OLD, owner="")

    with pytest.raises(SchemaIncompatible, match="nick is missing"):
        registry.register("a", "avro", BROKEN, owner="")
