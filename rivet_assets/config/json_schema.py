"""The JSON schema of the configuration, for editors, `rivet schema config` and `dg check yaml`.

Belongs here: the schema as printed, and the model a Dagster component shows to `dg`. Not here: validation of
what the schema cannot say, which is nearly all (`load.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler, RootModel
from pydantic_core import CoreSchema, core_schema

from rivet_assets.config.root import RivetConfig

# A whole scalar, or the beginning of one, that substitution will replace.
REFERENCE = {"type": "string", "pattern": r"\$\{"}
# Texts may hold a reference as they are; these may not.
STRICT = ("integer", "number", "boolean")


class _SchemaOf:
    """Pydantic metadata: show the schema of a model, validate nothing."""

    def __init__(self, model: type[RivetConfig]) -> None:
        self.model = model

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Keep the model's schema inside, for its JSON schema, and step around it."""
        return core_schema.no_info_wrap_validator_function(
            lambda value, _inner: value, handler.generate_schema(self.model)
        )

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """Let a reference stand wherever a number, truth value or word is expected."""
        root = handler(schema)
        _admit_references(root, handler.resolve_ref_schema, set())
        return root


class ExportsAttributes(RootModel[Annotated[dict[str, Any], _SchemaOf(RivetConfig)]]):
    """The `attributes:` of `type: rivet_assets.Exports`, not validated yet: references come first.

    `dg` validates a component's model before the component may substitute anything, so a number written as
    `${ROWS}` would be refused. This model takes what stands there; `config_from_attributes` does the rest.
    """


def config_json_schema() -> dict[str, Any]:
    """Return the JSON schema (2020-12) of `rivet.yaml` and of a component's attributes."""
    schema = ExportsAttributes.model_json_schema()
    schema |= {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "rivet.yaml"}
    return schema


def _admit_references(schema: Any, resolve: Callable[[dict[str, Any]], dict[str, Any]], seen: set[str]) -> None:
    """Rewrite every strict scalar below, definitions included, in place."""
    if isinstance(schema, list):
        for item in schema:
            _admit_references(item, resolve, seen)
    if not isinstance(schema, dict):
        return
    reference = schema.get("$ref")
    if reference is not None and reference not in seen:
        seen.add(reference)
        _admit_references(resolve(schema), resolve, seen)
    if "anyOf" in schema:
        _branch(schema)
    if _is_strict(schema):
        _wrap(schema)
        return
    for key, value in schema.items():
        if key in ("properties", "$defs"):  # names of keys there, which may be words of JSON schema, such as `pattern`
            _admit_references(list(value.values()), resolve, seen)
        elif key not in ("if", "default", "enum", "const", "required"):
            _admit_references(value, resolve, seen)


def _branch(schema: dict[str, Any]) -> None:
    """Turn `anyOf` into if/else by the kind of value, so that an error inside a block is told at its key."""
    members = [member for member in schema["anyOf"] if member.get("type") != "null"]
    blocks = [
        member for member in members if not {"type", "enum", "const"} & member.keys() or member.get("type") == "object"
    ]
    scalars = [member for member in members if member not in blocks]
    if len(members) == 1:
        schema |= {"if": {"type": "null"}, "then": {}, "else": members[0]}
    elif blocks:
        schema |= {"if": {"type": "object"}, "then": blocks[0], "else": {"anyOf": [*scalars, {"type": "null"}]}}
    else:
        return
    del schema["anyOf"]


def _is_strict(schema: dict[str, Any]) -> bool:
    return schema.get("type") in STRICT or "pattern" in schema or ("enum" in schema and "if" not in schema)


def _wrap(schema: dict[str, Any]) -> None:
    """Make a strict scalar `a reference, or else this`: an error is still told with the scalar's own words."""
    notes: dict[str, Any] = {key: schema.pop(key) for key in ("title", "description", "default") if key in schema}
    strict = dict(schema)
    schema.clear()
    schema.update(notes)
    schema.update({"if": REFERENCE, "then": {}, "else": strict})
