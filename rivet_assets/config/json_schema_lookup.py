"""What the models say about one place of a configuration: known keys, allowed words, whether it is a secret.

Belongs here: walking the JSON schema along a location, with the raw block deciding at each choice. Not here:
the schema itself (`json_schema.py` prints it).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from rivet_assets.blocks.choice import Loc, nearest
from rivet_assets.config.root import RivetConfig
from rivet_resources.registry import DESTINATIONS, ENGINES, FORMATS, STEPS


@dataclass(frozen=True)
class SchemaEntry:
    """What is known of one place; all empty where the models know nothing of it."""

    keys: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    text: str = ""
    is_secret: bool = False


def describe(block: Any, loc: Loc) -> SchemaEntry:
    """Describe the place `loc` of a raw root block."""
    schema: Mapping[str, Any] = _schema()
    for step in loc:
        schema = _step(_resolve(schema, block), step)
        block = _value(block, step)
    here = _resolve(schema, block)
    return SchemaEntry(
        keys=tuple(here.get("properties", ())),
        words=tuple(str(word) for word in here.get("enum", ())),
        text=str(schema.get("description", here.get("description", ""))),
        is_secret=here.get("format") == "password",
    )


def _schema() -> dict[str, Any]:
    return _schema_of(tuple(word for each in (ENGINES, DESTINATIONS, FORMATS, STEPS) for word in each))


@cache
def _schema_of(words: tuple[str, ...]) -> dict[str, Any]:
    """Return the schema while the registry has these words."""
    return RivetConfig.model_json_schema()


def _resolve(schema: Mapping[str, Any], block: Any) -> Mapping[str, Any]:
    """Follow references, and the branch that the block chooses."""
    while True:
        if "$ref" in schema:
            schema = _schema()["$defs"][schema["$ref"].rsplit("/", 1)[1]]
        elif "else" in schema and "properties" not in schema:
            schema = schema["else"]
        elif "allOf" in schema:
            schema = _choose_branch(schema, block)
        elif "anyOf" in schema:
            schema = _best(schema["anyOf"], block)
        else:
            return schema


def _choose_branch(schema: Mapping[str, Any], block: Any) -> Mapping[str, Any]:
    """Take the branch of a `Choice`; with a wrong word, the one that was probably meant."""
    ((key, words),) = schema["properties"].items()
    word = _value(block, key)
    word = words.get("default") if word is None else word
    if word not in words["enum"]:
        word = nearest(word, words["enum"]) or words["enum"][0]
    branch = next(each for each in schema["allOf"] if word in each["if"]["properties"][key]["enum"])
    chosen: Mapping[str, Any] = branch["then"]
    return chosen


def _best(members: list[dict[str, Any]], block: Any) -> Mapping[str, Any]:
    """Take the member that can hold what stands there: a block for a block, else the first that is not null."""
    rest = [member for member in members if member.get("type") != "null"]
    if isinstance(block, Mapping):
        rest.sort(key=lambda member: "$ref" not in member and "properties" not in member and "allOf" not in member)
    return rest[0]


def _step(schema: Mapping[str, Any], step: str | int) -> Mapping[str, Any]:
    if isinstance(step, int):
        items = schema.get("items", {})
    else:
        items = schema.get("properties", {}).get(step, schema.get("additionalProperties", {}))
    return items if isinstance(items, Mapping) else {}


def _value(block: Any, step: str | int) -> Any:
    if isinstance(block, Mapping):
        return block.get(step)
    return block[step] if isinstance(block, list) and isinstance(step, int) and step < len(block) else None
