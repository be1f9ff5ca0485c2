"""The printed JSON schema: valid, described, and of one mind with the loader where a schema can be."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from pydantic import TypeAdapter

from rivet_assets.config.load import ExportsAttributes, RivetConfig, config_json_schema
from rivet_assets.config.yaml_document import read_yaml
from tests.unit.config.test_load import BLOCK, HEAD, NAMED, ORIGINAL, VALUES

BAD = Path(__file__).parent / "config_errors"
GOOD = [ORIGINAL, *NAMED, *(f"{HEAD}  - {{{BLOCK}, {keys}}}" for keys in VALUES)]
REFERENCES = (
    f"{HEAD}  - {{{BLOCK}, parallel: '${{N}}', skip_empty: '${{B}}', compression: '${{C}}', max_file_size: '${{S}}'}}"
)

# Rules that one key alone can break; `dg check yaml` sees these and points at the key.
SEEN = {
    "not_allowed_words": ["exports.0.compression", "exports.0.format", "exports.0.on_special_value",
                          "source.environment", "source.tls.mode", "spark"],
    "unknown_keys": ["", "exports.0", "exports.0.quality", "source"],
    "out_of_range": ["exports.0.group", "exports.0.parallel", "exports.0.quality.null_ratio_max.note",
                     "exports.0.query", "source.tuning.batch_size"],
    "type_misspelled": ["exports.0.destination.type", "source.type"],
    "mode_misspelled": ["exports.0.mode"],
    "keys_of_other_modes": ["exports.0"],
}  # fmt: skip

# Keys of other packages' blocks that still need a sentence; `type` and `mode` explain themselves.
UNDESCRIBED = {"S3.region"}


def faults(block: Any) -> list[str]:
    """List the places the schema objects to."""
    return sorted(".".join(map(str, error.absolute_path)) for error in validator().iter_errors(block))


@cache
def validator() -> jsonschema.Draft202012Validator:
    """Build the schema once; that takes a quarter of a second."""
    return jsonschema.Draft202012Validator(config_json_schema())


def test_schema_is_a_json_schema() -> None:
    """Editors refuse to work with anything else."""
    jsonschema.Draft202012Validator.check_schema(config_json_schema())


@pytest.mark.parametrize("text", [*GOOD, REFERENCES], ids=range(len(GOOD) + 1))
def test_schema_accepts_what_the_loader_accepts(text: str) -> None:
    """No good file is underlined in an editor; a reference may stand for a number, truth value or word."""
    assert [] == faults(read_yaml(text).value)


@pytest.mark.parametrize("case", SEEN)
def test_schema_points_at_the_wrong_key(case: str) -> None:
    """An error inside a block is told at its key, not at the block."""
    assert SEEN[case] == faults(yaml.safe_load((BAD / f"{case}.yaml").read_text()))


def test_every_key_is_described() -> None:
    """The description is the text of the Docs tab in Dagster and of editors."""
    undescribed = {name for name, key in keys(RivetConfig.model_json_schema()) if "description" not in key}
    chosen_by = {name for name in undescribed if name.rpartition(".")[2] in ("type", "mode")}

    assert set() == undescribed - UNDESCRIBED - chosen_by


def keys(schema: Any, name: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Walk over every key of every block of a schema, choices left out."""
    if isinstance(schema, dict):
        name = schema.get("title", name)
        if schema.get("additionalProperties") is False:
            yield from ((f"{name}.{key}", value) for key, value in schema["properties"].items())
        for value in schema.values():
            yield from keys(value, name)
    elif isinstance(schema, list):
        for item in schema:
            yield from keys(item, name)


def test_model_of_a_component_takes_references_for_numbers() -> None:
    """`dg` validates before the component may substitute; nothing may be refused there."""
    attributes = {"exports": [{"parallel": "${N}"}]}

    assert attributes == TypeAdapter(ExportsAttributes).validate_python(attributes).root


def test_schema_can_stand_inside_another() -> None:
    """`dg list components` embeds the schemas of all components in one."""
    schema = TypeAdapter(dict[str, ExportsAttributes]).json_schema()
    jsonschema.Draft202012Validator.check_schema(schema)

    assert list(jsonschema.Draft202012Validator(schema).iter_errors({"a": {"exports": [{"mode": "x"}]}}))
