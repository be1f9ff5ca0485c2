"""The registry in the state store: owners, numbers that are given once, rules and modes; in both databases."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rivet_resources.schema_registry.embedded import EmbeddedSchemaRegistry
from rivet_resources.schema_registry.errors import (
    SchemaIncompatible,
    SchemaRegistryError,
    SchemaUnreadable,
    SubjectTaken,
)
from rivet_resources.schema_registry.languages import avro
from rivet_resources.state.store import default_url, open_state
from tests.schema_cases import BASE, CHANGES

OLD, NEW, BROKEN = (
    avro.derive(CHANGES[name].after, name="orders", rule="backward", before=())
    for name in ("nothing", "a column that may be NULL comes", "a column without NULL comes")
)


@pytest.fixture(params=["sqlite", "postgres"])
def registry(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[EmbeddedSchemaRegistry]:
    """An empty registry in each of the two databases."""
    url = default_url(tmp_path) if request.param == "sqlite" else request.getfixturevalue("fresh_database")
    state = open_state(url)
    yield EmbeddedSchemaRegistry(state)
    state.close()


def test_version_and_id_are_given_once(registry: EmbeddedSchemaRegistry) -> None:
    """One schema has one id in all subjects, and a version that is removed for good leaves its number free for ever."""
    first = registry.register("a", "avro", OLD, owner="")
    second = registry.register("a", "avro", NEW, owner="")
    registry.delete("a", [2], permanent=False)
    registry.delete("a", [2], permanent=True)

    assert first == registry.register("b", "avro", OLD, owner="")
    assert second == registry.register("a", "avro", NEW, owner="")
    assert [1, 3] == registry.versions("a")
    assert third_id(registry) > second


def third_id(registry: EmbeddedSchemaRegistry) -> int:
    """Register what nobody has yet."""
    registry.set_compatibility("c", "none")
    return registry.register("c", "avro", BROKEN, owner="")


def test_same_schema_again_is_no_new_version(registry: EmbeddedSchemaRegistry) -> None:
    """Whatever its blanks, and whoever asks."""
    assert 1 == registry.register("a", "avro", OLD, owner="shop//orders")
    assert 1 == registry.register("a", "avro", OLD.replace(",", ", "), owner="")
    assert [1] == registry.versions("a")


def test_subject_of_an_export_is_its_own(registry: EmbeddedSchemaRegistry) -> None:
    """Neither another export nor a client over HTTP adds versions to it; its rule is its owner's too."""
    registry.register("a", "avro", OLD, owner="shop//orders")
    registry.declare("a", "none", owner="other//orders")

    for owner in ("other//orders", ""):
        with pytest.raises(SubjectTaken, match="shop//orders"):
            registry.register("a", "avro", NEW, owner=owner)
    with pytest.raises(SubjectTaken):
        registry.check_owner("a", owner="other//orders")
    assert "backward" == registry.compatibility("a")
    assert 2 == registry.register("a", "avro", NEW, owner="shop//orders")


def test_schema_that_breaks_the_rule_is_no_version(registry: EmbeddedSchemaRegistry) -> None:
    """By the subject's rule, else that of all, else `backward`; another language breaks every rule but none."""
    registry.register("a", "avro", OLD, owner="")

    with pytest.raises(SchemaIncompatible, match="nick is missing"):
        registry.register("a", "avro", BROKEN, owner="")
    with pytest.raises(SchemaIncompatible, match="avro"):
        registry.register("a", "json", '{"type": "object"}', owner="")
    registry.set_compatibility("", "none")
    registry.register("a", "avro", BROKEN, owner="")
    registry.set_compatibility("a", "full")
    with pytest.raises(SchemaIncompatible):
        registry.register("a", "avro", avro.derive(BASE.remove(0), name="orders", rule="full", before=()), owner="")
    assert [1, 2] == registry.versions("a")


def test_read_only_subject_takes_nothing(registry: EmbeddedSchemaRegistry) -> None:
    """But answers what it has."""
    registry.register("a", "avro", OLD, owner="")
    registry.set_mode("", "READONLY")

    with pytest.raises(SchemaRegistryError, match="read-only"):
        registry.register("a", "avro", NEW, owner="")
    assert 1 == registry.register("a", "avro", OLD, owner="")


def test_text_that_is_no_schema_is_kept_nowhere(registry: EmbeddedSchemaRegistry) -> None:
    """Whatever the rule."""
    registry.set_compatibility("", "none")
    for form, text in (("avro", '{"type": "recor'), ("avro", '{"x": 1}'), ("json", "[]"), ("protobuf", "message {")):
        with pytest.raises(SchemaUnreadable):
            registry.register("a", form, text, owner="")  # type: ignore[arg-type]
    assert [] == registry.subjects()


def test_many_at_once_get_one_number_each(registry: EmbeddedSchemaRegistry) -> None:
    """Ten that register different schemas: versions 1 to 10, and as many ids."""
    registry.set_compatibility("", "none")
    texts = [avro.derive(BASE, name=f"orders_{number}", rule="none", before=()) for number in range(10)]

    with ThreadPoolExecutor(5) as pool:
        ids = list(pool.map(lambda text: registry.register("a", "avro", text, owner=""), texts))

    assert list(range(1, 11)) == sorted(ids) == registry.versions("a")
