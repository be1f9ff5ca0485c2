"""The YAML block `translation:`: keys, groups, owners and tags of the assets, for all exports of a file.

Belongs here: the keys and their rules. Not here: what an asset shows (`dagster/pages/specs.py`), the same in Python
(`dagster/translator.py`). Names and defaults are those of dagster-dlt, -sling and -dbt; templates are not: what they
resolve is shown in the UI, so a pattern knows `{source}` and `{export}` and nothing else.
"""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field

from rivet_assets.blocks.export_values import GroupName, Owner, Texts, rule_broken
from rivet_resources.contracts.settings import Settings

CODE = "RIVET_CONFIG_TRANSLATION"
PART = re.compile(r"[A-Za-z0-9_.-]+")
SOURCE, EXPORT = "{source}", "{export}"


def _parts(value: object) -> object:
    return tuple(value.split("/")) if isinstance(value, str) else value


def _key_prefix(parts: tuple[str, ...]) -> tuple[str, ...]:
    wrong = [part for part in parts if not PART.fullmatch(part)]
    if wrong or not parts:
        raise rule_broken(
            CODE,
            f"'{'/'.join(parts)}' cannot begin an asset key; write letters, digits, '_', '.' and '-', parted by '/'",
        )
    return parts


def _key_pattern(text: str) -> str:
    parts = text.replace(SOURCE, "x").replace(EXPORT, "x").split("/")
    if EXPORT not in text or not all(PART.fullmatch(part) for part in parts):
        raise rule_broken(
            CODE,
            f"'{text}' is not a pattern of asset keys; write {EXPORT} (all exports would have one key without it), "
            f"{SOURCE} if you like, and letters, digits, '_', '.' and '-', parted by '/', such as raw/{EXPORT}",
        )
    return text


class Translation(Settings):
    """How the assets of a file's exports are called and described in Dagster; an export's own keys win."""

    key: Annotated[str, AfterValidator(_key_pattern)] = Field(
        "{source}/{export}", description="pattern of the asset key, parts parted by '/'"
    )
    key_prefix: (
        Annotated[
            tuple[str, ...],
            BeforeValidator(_parts, json_schema_input_type=str | list[str]),
            AfterValidator(_key_prefix),
        ]
        | None
    ) = Field(None, description="parts before each key: warehouse/raw, or a list")
    group_name: GroupName | None = Field(None, description="Dagster group of exports without `group:`")
    owners: tuple[Owner, ...] = Field((), description="of exports without `owners:`; e-mail addresses, or team:name")
    tags: Texts = Field(default_factory=dict, description="Dagster tags of every asset; an export's own tags win")
    metadata: dict[str, str | int | float | bool] = Field(
        default_factory=dict, description="further entries of every asset's page"
    )

    def key_parts(self, *, source: str, export: list[str]) -> list[str]:
        """Return the asset key of an export, whose own name may have several parts."""
        filled: list[str] = []
        for part in self.key.split("/"):
            whole = export if part == EXPORT else [part.replace(SOURCE, source).replace(EXPORT, ".".join(export))]
            filled += whole
        return [*(self.key_prefix or ()), *filled]
