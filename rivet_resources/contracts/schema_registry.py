"""What a schema registry is to the rest: subjects, their versions, and where a window's schema is kept.

Belongs here: the values and the protocol that the store's own registry and a server's client share. Not here: either of
them (`schema_registry/`), which schema a window has and whether it may be published (`rivet_assets/run/`).

The words are Confluent's: a *subject* is a name with numbered *versions*; each version's schema has an *id*, the same
in all subjects. Source: Confluent documentation, "Schema Registry API Reference", version 7.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, Protocol

SchemaFormat = Literal["avro", "json", "protobuf"]
Compatibility = Literal[
    "none", "backward", "backward_transitive", "forward", "forward_transitive", "full", "full_transitive"
]
COMPATIBILITIES: tuple[Compatibility, ...] = (
    "none", "backward", "backward_transitive", "forward", "forward_transitive", "full", "full_transitive",
)  # fmt: skip
LONGEST_SUBJECT = 200


@dataclass(frozen=True)
class SubjectVersion:
    """One version of a subject, as a registry has it. `references`: other schemas that its text needs."""

    subject: str
    version: int
    id: int
    format: SchemaFormat
    text: str
    references: bool = False


@dataclass(frozen=True)
class RegisteredSchema:
    """Where the schema of a window is registered; kept with its manifest."""

    subject: str
    version: int
    id: int
    format: SchemaFormat
    md5: str  # of the canonical form
    sha256: str
    # Of Protobuf: {column: (number, the same of its members)}; told to whom encodes rows, and kept nowhere.
    numbers: Mapping[str, Any] | None = field(default=None, compare=False)

    def __str__(self) -> str:
        """Return it in one line."""
        return f"{self.subject} version {self.version}, id {self.id}"

    @property
    def facts(self) -> dict[str, Any]:
        """Return it as manifests hold it."""
        return {name: value for name, value in asdict(self).items() if name != "numbers"}


@dataclass(frozen=True)
class KnownSchema:
    """A schema that was agreed before, and how many seconds ago that was."""

    schema: RegisteredSchema
    age_seconds: float


class SchemaRegistry(Protocol):
    """Where schemas are registered; its methods raise `SchemaRegistryError` (`schema_registry/errors.py`)."""

    @property
    def name(self) -> str:
        """Name it for people, without a secret."""

    @property
    def key(self) -> str:
        """Name it in the store: the same registry has the same key, whoever signs in."""

    def subjects(self) -> list[str]:
        """List the subjects, sorted."""

    def versions(self, subject: str) -> list[int]:
        """List the versions of a subject, oldest first; [] where there is no such subject."""

    def version(self, subject: str, number: int) -> SubjectVersion | None:
        """Read one version; None where it is not there, or no more."""

    def schema(self, number: int) -> tuple[SchemaFormat, str] | None:
        """Read the schema of an id; None where there is none."""

    def find(self, subject: str, form: SchemaFormat, text: str) -> SubjectVersion | None:
        """Find the version of a subject that has this schema; None where none has."""

    def check_owner(self, subject: str, *, owner: str) -> None:
        """See that this owner may add versions; a registry that keeps no owners lets everybody.

        Raises:
            SubjectTaken: it is another owner's.
        """

    def declare(self, subject: str, rule: Compatibility, *, owner: str) -> None:
        """Make a rule the subject's, where that is new; where owners are kept, its owner may change it too."""

    def register(self, subject: str, form: SchemaFormat, text: str, *, owner: str) -> int:
        """Add a version, or find the one that is there; its id.

        Args:
            owner: whose subject it becomes, where it is new and the registry keeps owners.

        Raises:
            SchemaIncompatible: the registry's own rule refuses it.
            SubjectTaken: it is another owner's.
        """

    def compatibility(self, subject: str) -> Compatibility:
        """Return the rule of a subject: its own, else that of all."""

    def own_compatibility(self, subject: str) -> Compatibility | None:
        """Return the rule that was set for a subject; None where none was."""

    def set_compatibility(self, subject: str, rule: Compatibility | None) -> None:
        """Set the rule of a subject; None: it has none of its own."""


def identity(form: SchemaFormat, text: str) -> str:
    """Hash a schema as it is meant, so that another order of keys, or other blanks, is no other schema."""
    content = text if form == "protobuf" else json.dumps(json.loads(text), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(f"{form}\n{content}".encode()).hexdigest()
