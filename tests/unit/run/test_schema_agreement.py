"""What lets a window's schema pass: remembered, registered, compatible; and a registry that is not what it was."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from sqlalchemy import text

from rivet_assets.run.schema_agreement import SchemaGate
from rivet_resources.contracts.schema_registry import RegisteredSchema
from rivet_resources.schema_registry.embedded import EmbeddedSchemaRegistry
from rivet_resources.schema_registry.errors import (
    SchemaIncompatible,
    SchemaNotRegistered,
    SchemaRegistryContradiction,
    SchemaUnreadable,
    SubjectTaken,
)
from rivet_resources.state.scopes import Scope
from rivet_resources.state.store import State, default_url, open_state
from tests.schema_cases import BASE, CHANGES, LANGUAGES, Language

NICK = CHANGES["a column that may be NULL comes"].after
MUST = CHANGES["a column without NULL comes"].after


@dataclass
class Watched:
    """A registry whose questions are counted, and some of whose answers a test makes up."""

    registry: EmbeddedSchemaRegistry
    made_up: dict[str, Callable[[Any], Any]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.registry, name)
        if not callable(found):
            return found

        def ask(*arguments: Any, **options: Any) -> Any:
            self.asked.append(name)
            return self.made_up.get(name, lambda answer: answer)(found(*arguments, **options))

        return ask


@pytest.fixture
def state(tmp_path: Path) -> Iterator[State]:
    """A store whose scope has an export `orders` of source `shop`."""
    store = open_state(default_url(tmp_path))
    yield store.of(Scope("", {"orders": "shop", "other": "shop"}))
    store.close()


@pytest.fixture
def registry(state: State) -> Watched:
    """The store's registry."""
    return Watched(EmbeddedSchemaRegistry(state))


def gate(registry: Watched, form: Language = "avro", **settings: Any) -> SchemaGate:
    """Return the gate of `orders`; nothing is remembered for long unless a test says so."""
    made = SchemaGate(registry, registry.registry.state, "orders", "orders-value", form, "orders", "backward")
    return replace(made, **settings)


def publish(made: SchemaGate, schema: pa.Schema) -> RegisteredSchema:
    """Do what a window does: agree, stage, register."""
    return made.register(made.agree(schema))


@pytest.mark.parametrize("form", LANGUAGES)
def test_schema_that_was_agreed_asks_nobody(registry: Watched, form: Language) -> None:
    """Not for as long as `cache` says; then it asks again, and finds the same."""
    remembering = gate(registry, form, cache_seconds=60.0)
    first = publish(remembering, BASE)
    registry.asked.clear()

    assert first == publish(remembering, BASE)
    assert [] == registry.asked
    assert first == publish(gate(registry, form), BASE)
    assert "schema" in registry.asked
    assert (1, 1) == (first.version, first.id)


@pytest.mark.parametrize("form", LANGUAGES)
def test_columns_of_before_are_the_version_of_before(registry: Watched, form: Language) -> None:
    """A column that comes and goes is no third version."""
    made = gate(registry, form, rule="none")

    assert [1, 2, 1, 2] == [publish(made, each).version for each in (BASE, NICK, BASE, NICK)]


def test_nothing_is_registered_before_the_window_is_ready(registry: Watched) -> None:
    """A window that fails on the way leaves no version behind."""
    gate(registry).agree(BASE)

    assert [] == registry.subjects()


@pytest.mark.parametrize("form", ["avro", "json"])
def test_schema_that_breaks_readers_is_refused_with_its_column(registry: Watched, form: Language) -> None:
    """What, which rule, against which version, and the ways out."""
    publish(gate(registry, form), BASE)

    with pytest.raises(SchemaIncompatible, match=r"breaks compatibility backward .*version 1.*nick.*rivet schema reg"):
        gate(registry, form).agree(MUST)
    assert [1] == registry.versions("orders-value")
    assert 4 == SchemaIncompatible.exit_code


def test_rule_of_the_registry_holds_where_the_export_has_none(registry: Watched) -> None:
    """It is asked for once."""
    publish(gate(registry, rule=None), BASE)
    registry.set_compatibility("orders-value", "full")

    with pytest.raises(SchemaIncompatible, match="full"):
        gate(registry, rule=None).agree(CHANGES["a column without NULL goes"].after)


def test_export_that_may_not_register_finds_or_stops(registry: Watched) -> None:
    """`auto_register: false`: somebody else decides what readers get."""
    careful = gate(registry, may_register=False)

    with pytest.raises(SchemaNotRegistered, match="rivet schema register -e orders"):
        careful.agree(BASE)
    publish(gate(registry), BASE)
    assert 1 == publish(careful, BASE).version


def test_version_that_was_deleted_stops_the_window(registry: Watched) -> None:
    """Windows that are published name it; registering it anew by itself would go round whoever deleted it."""
    publish(gate(registry), BASE)
    registry.delete("orders-value", [1], permanent=False)

    with pytest.raises(SchemaRegistryContradiction, match=r"version 1 .id 1. of subject orders-value.*deleted"):
        gate(registry).agree(BASE)
    gate(registry).forget()
    assert 2 == publish(gate(registry), BASE).version


@pytest.mark.parametrize(
    ("question", "lie", "told"),
    [
        ("schema", lambda answer: None, "means no schema by that"),
        ("schema", lambda answer: ("avro", '"int"'), "means another schema by that"),
        ("schema", lambda answer: ("json", answer[1]), "means another schema by that"),
        ("find", lambda answer: replace(answer, id=7), "id 7"),
        ("find", lambda answer: None, "it was deleted"),
    ],
)
def test_id_that_means_something_else_stops_the_window(
    registry: Watched, question: str, lie: Callable[[Any], Any], told: str
) -> None:
    """Readers resolve ids; one that has changed its meaning would show them other columns."""
    publish(gate(registry), BASE)
    registry.made_up[question] = lie

    with pytest.raises(SchemaRegistryContradiction, match=told):
        gate(registry).agree(BASE)


@pytest.mark.parametrize("form", ["json", "protobuf"])
def test_version_that_has_another_schema_now_stops_the_window(registry: Watched, form: Language) -> None:
    """Even where its id is the same."""
    publish(gate(registry, form), BASE)
    other = gate(registry, form).text_of(NICK)
    registry.made_up["version"] = lambda answer: replace(answer, text=other)
    registry.made_up["schema"] = lambda answer: (form, other)

    with pytest.raises(SchemaRegistryContradiction, match="another schema as version 1"):
        gate(registry, form).agree(BASE)


def test_rule_of_a_registry_may_change(registry: Watched) -> None:
    """A JSON schema says which changes may come; one that is registered stays what it is."""
    publish(gate(registry, "json", rule=None), BASE)
    registry.set_compatibility("orders-value", "forward")

    assert 1 == publish(gate(registry, "json", rule=None), BASE).version


def test_registry_that_was_set_up_anew_stops_the_window(registry: Watched, state: State) -> None:
    """The same schema under another id: published windows name the old one."""
    publish(gate(registry), BASE)
    with state.writing_schemas() as connection:
        for table in ("schema_version", "schema_content", "schema_subject"):
            connection.execute(text(f"DELETE FROM {table}"))
    other = gate(registry, subject="first-value", export="other", record="other")
    publish(other, NICK)
    registry.register("orders-value", "avro", gate(registry).text_of(BASE), owner=state.schema_owner("orders"))

    with pytest.raises(SchemaRegistryContradiction, match="under id 2, and had it under id 1"):
        gate(registry).agree(BASE)


def test_registry_that_took_a_schema_and_has_it_not_stops_the_window(registry: Watched) -> None:
    """Nothing is published on its word alone."""
    proposal = gate(registry).agree(BASE)
    registry.made_up["find"] = lambda answer: None

    with pytest.raises(SchemaRegistryContradiction, match="took the schema"):
        gate(registry).register(proposal)


def test_version_that_is_listed_and_not_there_stops_the_window(registry: Watched) -> None:
    """A schema that cannot be held against it is not published."""
    publish(gate(registry), BASE)
    registry.made_up["version"] = lambda answer: None

    with pytest.raises(SchemaRegistryContradiction, match="lists version 1"):
        gate(registry).agree(NICK)


def test_version_that_somebody_adds_meanwhile_is_judged_too(registry: Watched) -> None:
    """Between agreeing and registering lies the whole reading of a window."""
    publish(gate(registry), BASE)
    proposal = gate(registry).agree(NICK)
    registry.set_compatibility("orders-value", "none")
    between = gate(registry).text_of(BASE.append(pa.field("nick", pa.int64(), nullable=False)))
    registry.register("orders-value", "avro", between, owner=registry.registry.state.schema_owner("orders"))

    with pytest.raises(SchemaIncompatible, match="against version 2"):
        gate(registry, rule=None, asked={"orders-value": "backward"}).register(proposal)


@pytest.mark.parametrize(
    ("other", "told"),
    [
        ({"export": "other", "subject": "orders-value"}, "belongs to export //shop//orders"),
        ({"form": "json"}, "a schema in avro"),
        ({"record": "invoices"}, "the schema of orders"),
    ],
)
def test_subject_of_somebody_else_is_left_alone(registry: Watched, other: dict[str, Any], told: str) -> None:
    """Of another export, in another language, of another thing."""
    publish(gate(registry), BASE)

    with pytest.raises(SubjectTaken, match=told):
        gate(registry, **other).agree(NICK)


def test_version_that_needs_other_schemas_is_refused_by_name(registry: Watched) -> None:
    """Its text alone does not say what it means."""
    publish(gate(registry), BASE)
    registry.made_up["version"] = lambda answer: replace(answer, references=True)

    with pytest.raises(SchemaUnreadable, match="needs other schemas"):
        gate(registry).agree(NICK)


def test_reset_export_begins_anew_with_the_registry(registry: Watched, state: State) -> None:
    """`rivet state reset` forgets what was agreed."""
    publish(gate(registry), BASE)
    state.reset("orders")
    registry.delete("orders-value", [1], permanent=False)

    assert 2 == publish(gate(registry), BASE).version


@pytest.mark.parametrize("form", LANGUAGES)
def test_check_tells_without_registering(registry: Watched, form: Language) -> None:
    """And names the version that is registered already."""
    publish(gate(registry, form), BASE)

    assert 1 == gate(registry, form).check(BASE).version
    assert () == gate(registry, form).check(NICK).breaks
    assert (form != "protobuf") == bool(gate(registry, form).check(MUST).breaks)
    assert [1] == registry.versions("orders-value")
