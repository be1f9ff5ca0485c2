"""Every engine, destination, format and transform that there is, with the keys of its block: what `rivet spec` lists.

Belongs here: reading the registry and its models. Not here: the blocks that belong to no one thing, such as `tuning`
(`docs/reference/yaml.md`, `rivet schema config`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from pydantic import BaseModel

from rivet_assets.blocks.choice import nearest
from rivet_resources.errors import ConfigError
from rivet_resources.registry import CHECKS, DESTINATIONS, ENGINES, FORMATS, NOTIFIERS, STEPS, Registry

KINDS: Mapping[str, Registry] = MappingProxyType(
    {
        "engine": ENGINES,
        "destination": DESTINATIONS,
        "format": FORMATS,
        "transform": STEPS,
        "check": CHECKS,
        "notifier": NOTIFIERS,
    }
)


@dataclass(frozen=True)
class Key:
    """One key of a block; `default` is None where it must be given or has none."""

    key: str
    type: str
    is_required: bool
    default: Any
    description: str


@dataclass(frozen=True)
class Block:
    """One thing of the registry: the words that name it in YAML, the extra that it needs ('': none), its keys."""

    kind: str
    words: tuple[str, ...]
    extra: str
    keys: tuple[Key, ...]


def spec(*names: str) -> list[Block]:
    """List the blocks that have one of these words, or are of one of these kinds; all, when none is named.

    Raises:
        ConfigError: a name is neither.
    """
    blocks = [block for kind, registry in KINDS.items() for block in _blocks(kind, registry)]
    for name in names:
        if name not in KINDS and not any(name in block.words for block in blocks):
            meant = nearest(name, [*KINDS, *(word for block in blocks for word in block.words)])
            hint = f"; did you mean {meant!r}?" if meant else "."
            raise ConfigError(
                f"There is no {', '.join([*KINDS][:-1])} or {[*KINDS][-1]} {name!r}{hint} `rivet spec` lists all."
            )
    return [block for block in blocks if not names or {block.kind, *block.words} & set(names)]


def _blocks(kind: str, registry: Registry) -> Iterator[Block]:
    words: dict[type[Any], list[str]] = {}
    for word, made in registry.usable().items():
        words.setdefault(made, []).append(word)
    for made, its in words.items():
        facts = getattr(made, "facts", made)
        extra = getattr(facts, "extra", None)
        yield Block(kind, tuple(its), getattr(extra, "name", ""), tuple(_keys(made)))


def _keys(model: type[BaseModel]) -> Iterator[Key]:
    schema = model.model_json_schema()
    for name, field in schema.get("properties", {}).items():
        yield Key(
            name,
            _type(field),
            name in schema.get("required", ()),
            field.get("default"),
            field.get("description", ""),
        )


def _type(schema: Mapping[str, Any]) -> str:
    """Return in words what a key takes."""
    if "anyOf" in schema:
        return " | ".join(dict.fromkeys(_type(each) for each in schema["anyOf"] if each.get("type") != "null"))
    if "enum" in schema:
        return " | ".join(str(word) for word in schema["enum"])
    if "const" in schema:
        return str(schema["const"])
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items', {}))}"
    if "$ref" in schema or schema.get("type") == "object" or "allOf" in schema:
        return "block"
    return {"string": "text", "integer": "whole number", "boolean": "true | false"}.get(
        str(schema.get("type")), str(schema.get("type", "any value"))
    )
