"""What a schema language answers, and the list of them.

Belongs here: the protocol, the list, what is the same in all languages. Not here: the rules of one language.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Protocol, cast

import pyarrow as pa

from rivet_resources.contracts.schema_registry import Compatibility, SchemaFormat, identity
from rivet_resources.schema_registry.languages import avro_compatibility as rules

# Modules are loaded when a configuration names them.
LANGUAGES: Mapping[SchemaFormat, str] = {
    "avro": "rivet_resources.schema_registry.languages.avro",
    "json": "rivet_resources.schema_registry.languages.json_schema",
    "protobuf": "rivet_resources.schema_registry.languages.protobuf",
}


class SchemaLanguage(Protocol):
    """A language of schemas: a module of this folder."""

    FOLLOWS_VERSIONS: bool  # a schema takes something from the version before it
    FOLLOWS_RULE: bool  # a schema says which changes may come

    def derive(self, schema: pa.Schema, *, name: str, rule: Compatibility, before: Sequence[str]) -> str:
        """Return the schema of rows with these columns.

        Args:
            name: of the export, or of the record.
            rule: some languages say in the schema which changes may come.
            before: texts of the subject's versions, the newest last.

        Raises:
            UnsupportedColumn: the language cannot hold a column.
        """

    def misread(self, reader: str, writer: str) -> list[str]:
        """Return what a reader does not understand of rows of a writer, a line each.

        Raises:
            SchemaUnreadable: one of them is no schema, or has a part whose meaning is not known here.
        """

    def canonical(self, text: str) -> str:
        """Return the form that is equal for schemas that are read alike.

        Raises:
            SchemaUnreadable
        """

    def name_of(self, text: str) -> str:
        """Return the name of what it describes; '' where it has none.

        Raises:
            SchemaUnreadable
        """


def language(form: SchemaFormat) -> SchemaLanguage:
    """Return a language by its word."""
    return cast(SchemaLanguage, import_module(LANGUAGES[form]))


def breaks(form: SchemaFormat, new: str, olds: Sequence[str], *, rule: Compatibility) -> list[str]:
    """Return what of a new schema breaks the rule towards older ones, the newest of them last; [] when nothing does.

    Raises:
        SchemaUnreadable
    """
    return rules.breaks(new, olds, compatibility=rule, misread_by=language(form).misread)


def is_same(form: SchemaFormat, one: str, other: str) -> bool:
    """Return whether two texts are one schema; registries write Protobuf anew, so there only its meaning counts.

    Raises:
        SchemaUnreadable
    """
    if form == "protobuf":
        return one == other or language(form).canonical(one) == language(form).canonical(other)
    return identity(form, one) == identity(form, other)


def fingerprints(form: SchemaFormat, text: str) -> dict[str, str]:
    """Return the MD5 and SHA-256 of the canonical form.

    Raises:
        SchemaUnreadable
    """
    content = language(form).canonical(text).encode()
    return {
        "md5": hashlib.md5(content, usedforsecurity=False).hexdigest(),
        "sha256": hashlib.sha256(content).hexdigest(),
    }
