"""`schema_registry:` from the file to Dagster and the command line: what is published, registered, refused."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from rivet_assets.cli.commands.schema import schema_group
from rivet_assets.config.load import RivetConfig, load_config
from rivet_assets.doctor.examine import examine
from rivet_assets.launch.run_exports import Outcome, run_exports
from rivet_assets.run.admit.scope import state_of
from rivet_resources.commit.manifest import Manifest, current_manifests
from rivet_resources.destinations.local import Local
from rivet_resources.errors import ConfigError, RivetError
from rivet_resources.schema_registry.client import HttpSchemaRegistry
from rivet_resources.schema_registry.embedded import EmbeddedSchemaRegistry
from tests.servers.registries import own_registry, scripted_registry

EMBEDDED = {"embedded": True}


class Shop:
    """A table of orders, and an export of it whose schema is registered."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.sql("CREATE TABLE orders (id INTEGER PRIMARY KEY, status TEXT)", "INSERT INTO orders VALUES (1, 'new')")

    def sql(self, *statements: str) -> None:
        """Run statements at the source."""
        with closing(sqlite3.connect(self.folder / "shop.db")) as connection, connection:
            for statement in statements:
                connection.execute(statement)

    def config(self, registry: dict[str, Any] = EMBEDDED, schema: Any = "avro", **keys: Any) -> RivetConfig:
        """Write and load the configuration."""
        export = {
            "name": "orders", "table": "orders", "format": "parquet", "schema_registry": schema,
            "destination": {"type": "local", "path": str(self.folder / "lake")}, **keys,
        }  # fmt: skip
        document = {
            "source": {"type": "sqlite", "path": str(self.folder / "shop.db")}, "spark": "inline",
            "schema_registry": {"cache": 0, **registry}, "exports": [export],
        }  # fmt: skip
        path = self.folder / "rivet.yaml"
        path.write_text(yaml.safe_dump(document))
        return load_config(path)

    def run(self, *arguments: Any, **keys: Any) -> Outcome:
        """Run the export."""
        [outcome] = run_exports(self.config(*arguments, **keys))
        return outcome

    def schema(self, *words: str) -> Result:
        """Run a command `rivet schema …` on the configuration that was written last."""
        line = [words[0], "-c", str(self.folder / "rivet.yaml"), *words[1:]]
        return CliRunner().invoke(schema_group, line, standalone_mode=False)

    @property
    def published(self) -> dict[str, Manifest]:
        """Read what readers see."""
        return current_manifests(Local(type="local", path=str(self.folder / "lake")).root("orders"))

    @property
    def registry(self) -> EmbeddedSchemaRegistry:
        """Open the registry in the store."""
        return EmbeddedSchemaRegistry(state_of(self.config()))


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shop:
    """A shop in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DAGSTER_HOME", raising=False)
    return Shop(tmp_path)


@pytest.mark.parametrize("form", ["avro", "json", "protobuf"])
def test_manifest_names_the_registered_schema(shop: Shop, form: str) -> None:
    """Subject, version, id and fingerprints; a column that readers can do without is a new version."""
    first = shop.run(schema=form)
    [before] = shop.published.values()
    shop.sql("ALTER TABLE orders ADD COLUMN nick TEXT")
    second = shop.run(schema=form)
    [after] = shop.published.values()

    assert first.success
    assert second.success
    assert before.registered_schema is not None
    assert after.registered_schema is not None
    assert ("orders-value", 1, 1, form) == (
        before.registered_schema.subject, before.registered_schema.version, before.registered_schema.id,
        before.registered_schema.format,
    )  # fmt: skip
    assert 2 == after.registered_schema.version
    assert before.registered_schema.sha256 != after.registered_schema.sha256
    found = shop.registry.version("orders-value", 2)
    assert found is not None
    assert "nick" in found.text
    assert "registered_schema" in json.loads(after.content)


def test_manifest_without_a_registry_is_as_it_was(shop: Shop) -> None:
    """An export that does not use the key has no trace of it."""
    outcome = shop.run(schema=None)

    assert outcome.success
    assert ["registered_schema" in json.loads(each.content) for each in shop.published.values()] == [False]
    assert [] == shop.registry.subjects()


def test_window_that_breaks_readers_is_not_published(shop: Shop) -> None:
    """Exit code 4, the old window stays, nothing is registered; the named way out lets it pass."""
    shop.run()
    before = shop.published
    shop.sql("ALTER TABLE orders ADD COLUMN pos INTEGER NOT NULL DEFAULT 1")
    refused = shop.run()

    assert (4, "RIVET_SCHEMA_INCOMPATIBLE") == (refused.exit_code, refused.code)
    assert "pos is missing" in refused.message
    assert before == shop.published
    assert [1] == shop.registry.versions("orders-value")
    assert 3 == shop.schema("check", "-e", "orders").return_value
    assert 0 == shop.schema("register", "-e", "orders", "--compatibility", "none").return_value
    assert shop.registry.own_compatibility("orders-value") is None
    assert shop.run().success
    assert [2] == [each.registered_schema.version for each in shop.published.values() if each.registered_schema]


@pytest.mark.parametrize(
    "keys", [{"quality": {"row_count_min": 2}}, {"skip_empty": True}], ids=["refused by a rule", "nothing to publish"]
)
def test_window_that_is_not_published_registers_nothing(shop: Shop, keys: dict[str, Any]) -> None:
    """Only who reads a version may need to understand it."""
    if "skip_empty" in keys:
        shop.sql("DELETE FROM orders")
    shop.run(**keys)

    assert {} == shop.published
    assert [] == shop.registry.subjects()


def test_registry_that_is_away_stops_every_window(shop: Shop) -> None:
    """Exit code 2, nothing is published unchecked; but a schema that was agreed lately needs no registry."""
    config = {"url": "http://127.0.0.1:9", "timeout": 1}
    away = shop.run(config)

    assert (2, "RIVET_SCHEMA_REGISTRY_UNREACHABLE") == (away.exit_code, away.code)
    assert {} == shop.published
    with own_registry(shop.registry) as url:
        assert shop.run({"url": url, "cache": "1h"}).success
    assert shop.run({"url": url, "cache": "1h"}).success
    assert 2 == shop.run({"url": url, "timeout": 1}).exit_code


def test_backfill_asks_a_registry_that_is_away_for_a_few_windows_only(shop: Shop) -> None:
    """Each of them would wait for it; and one schema serves all windows of a run that finds it."""
    shop.sql("DROP TABLE orders", "CREATE TABLE orders (id INTEGER PRIMARY KEY, at TIMESTAMP)")
    days = {"mode": "time_window", "time_column": "at", "start": "2026-01-01", "columns": {"at": "timestamp"}}
    with scripted_registry(lambda method, path: (503, {})) as (url, came):
        [outcome] = run_exports(shop.config({"url": url}, **days), partitions=["2026-01-01...2026-01-20"])

    assert 2 == outcome.exit_code
    assert 0 < len(came) < 10
    [outcome] = run_exports(shop.config({**EMBEDDED, "cache": "1h"}, **days), partitions=["2026-01-01...2026-01-06"])
    assert outcome.success
    assert 6 == len(shop.published)
    assert {1} == {each.registered_schema.version for each in shop.published.values() if each.registered_schema}


def test_doctor_asks_the_registry(shop: Shop) -> None:
    """Which rule each subject has; and where it is away, what to look at."""
    asked = [row for row in examine(shop.config()) if row.about == "schema registry"]
    away = [row for row in examine(shop.config({"url": "http://127.0.0.1:9"})) if row.about == "schema registry"]

    assert [("ok", True)] == [(row.status, "orders-value" in row.text and "backward" in row.text) for row in asked]
    assert [("fail", "connectivity")] == [(row.status, row.category) for row in away]


def test_registry_that_dies_before_registering_leaves_nothing(shop: Shop) -> None:
    """The rows were read already: no part stays, and the next run begins anew."""
    answers: dict[str, Any] = {"GET /subjects/orders-value/versions": [], "GET /config": {"compatibilityLevel": "NONE"}}

    def answer(method: str, path: str) -> tuple[int, Any]:
        if method == "POST" and path.endswith("/versions"):
            return 503, {}
        return (200, answers[f"{method} {path}"]) if f"{method} {path}" in answers else (404, {})

    with scripted_registry(answer) as (url, came):
        outcome = shop.run({"url": url})

    assert (2, "RIVET_SCHEMA_REGISTRY_UNREACHABLE") == (outcome.exit_code, outcome.code)
    assert "POST /subjects/orders-value/versions" in came
    assert [] == [path for path in (shop.folder / "lake").rglob("*") if path.is_file()]
    assert shop.run().success


def test_columns_of_rivet_are_part_of_the_schema(shop: Shop) -> None:
    """What is registered describes the parts, whoever made a column."""
    shop.run(
        meta_columns={"exported_at": True, "row_hash": True},
        transforms=[{"type": "rename", "columns": {"status": "state"}}],
    )
    found = shop.registry.version("orders-value", 1)

    assert found is not None
    assert ["id", "state", "_rivet_exported_at", "_rivet_row_hash"] == [
        each["name"] for each in json.loads(found.text)["fields"]
    ]
    shown = shop.schema("show", "-e", "orders")
    assert "_rivet_row_hash" not in shown.output  # the file that was written last has no such columns


def test_commands_show_what_is_there(shop: Shop) -> None:
    """`list`, `show`, `check`, `register`; and errors of ours where nothing is."""
    shop.config({"embedded": True}, {"format": "json", "subject": "the orders", "auto_register": False})
    refused = shop.run(EMBEDDED, {"format": "json", "subject": "the orders", "auto_register": False})

    assert (4, "RIVET_SCHEMA_NOT_REGISTERED") == (refused.exit_code, refused.code)
    told = json.loads(shop.schema("register", "-e", "orders", "--json").output)
    assert ("the orders", 1, "json") == (told["subject"], told["version"], told["format"])
    assert shop.run(EMBEDDED, {"format": "json", "subject": "the orders", "auto_register": False}).success
    [row] = json.loads(shop.schema("list", "--json").output)
    assert ("the orders", "orders", 1, 1, "backward") == tuple(
        row[key] for key in ("subject", "export", "versions", "latest", "compatibility")
    )
    assert json.loads(shop.schema("show", "--subject", "the orders").output) == json.loads(
        shop.schema("show", "-e", "orders").output
    )
    assert {"md5", "sha256"} == set(json.loads(shop.schema("show", "-e", "orders", "--fingerprints").output))
    assert "message orders" in shop.schema("show", "-e", "orders", "--format", "protobuf").output
    assert "registered as version 1 of the orders" in shop.schema("check", "-e", "orders").output
    for words in (("show", "--subject", "none"), ("show", "--subject", "the orders", "--version", "9")):
        assert isinstance(shop.schema(*words).exception, ConfigError)
    shop.config(schema=None)
    assert isinstance(shop.schema("check", "-e", "orders").exception, ConfigError)


def test_schema_is_inferred_from_a_sample(shop: Shop) -> None:
    """Of the first rows of a file; one that is no sample is refused without its cells."""
    shop.config()
    (shop.folder / "rows.ndjson").write_text('{"id": 1, "tags": ["a"]}\n{"id": 2.5, "more": {"x": null}}\n')
    (shop.folder / "rows.csv").write_text("id,day\n1,2026-01-31\n")
    (shop.folder / "bad.ndjson").write_text('{"id": 1}\n{"id": "hunter2"}\n')
    sample = str(shop.folder / "rows.ndjson")

    found = json.loads(shop.schema("show", "--sample", sample, "--format", "json").output)
    assert {"id", "tags", "more"} == set(found["properties"])
    assert ["null", "number", "string"] == found["properties"]["id"]["type"]
    assert "rows" == json.loads(shop.schema("show", "--sample", sample).output)["name"]
    assert (
        "optional int64 id = 1;"
        in shop.schema("show", "--sample", str(shop.folder / "rows.csv"), "--format", "protobuf").output
    )
    for name in ("bad.ndjson", "shop.db", "none.csv"):
        error = shop.schema("show", "--sample", str(shop.folder / name)).exception
        assert isinstance(error, ConfigError)
        assert "hunter2" not in str(error)


def test_server_of_the_command_answers_until_it_is_interrupted(shop: Shop) -> None:
    """And refuses to open the store to other machines without a password, or to read one that others could."""
    shop.run()
    environment = {**os.environ, "REGISTRY_PASSWORD": "hunter2"}
    words = [sys.executable, "-m", "rivet_assets.cli.main", "schema", "serve", "--port", "0"]
    words += ["--username", "rivet", "--password-env", "REGISTRY_PASSWORD"]
    with subprocess.Popen(words, cwd=shop.folder, env=environment, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        line = server.stderr.readline()
        url = next(word for word in line.split() if word.startswith("http://"))
        subjects = HttpSchemaRegistry(url, "rivet", "hunter2").subjects()
        said = server.stderr.readline()  # is written behind the answer, by the thread that gave it
        server.send_signal(signal.SIGINT)
        said += server.stderr.read()

    assert ["orders-value"] == subjects
    assert 0 == server.returncode
    assert "GET /subjects 200" in said
    assert "hunter2" not in line + said
    for words, told in (
        (["--host", "0.0.0.0"], "every machine"),
        (["--host", "0.0.0.0", "--username", "rivet", "--password-env", "PATH"], "without TLS"),
    ):
        error = shop.schema("serve", *words).exception
        assert isinstance(error, RivetError)
        assert told in str(error)
