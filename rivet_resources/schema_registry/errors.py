"""What goes wrong with schemas and their registry.

Belongs here: one class per thing a user can do about it. Not here: when it is raised.
"""

from __future__ import annotations

from rivet_resources.errors import DriftRefused, RivetError


class SchemaRegistryError(RivetError):
    """A schema registry refused, and would refuse again."""

    code = "RIVET_SCHEMA_REGISTRY_REFUSED"


class SchemaRegistryUnreachable(SchemaRegistryError):
    """A schema registry did not answer, or asks to come back later; nothing was published unchecked."""

    code = "RIVET_SCHEMA_REGISTRY_UNREACHABLE"
    retry = True
    exit_code = 2


class SchemaRegistryAuth(SchemaRegistryError):
    """A schema registry does not accept the user or the password, or the user may not do this."""

    code = "RIVET_SCHEMA_REGISTRY_AUTH"


class SchemaRegistryTls(SchemaRegistryError):
    """The line to a schema registry cannot be protected: its certificate or its authority is not accepted."""

    code = "RIVET_SCHEMA_REGISTRY_TLS"


class SchemaRegistryContradiction(SchemaRegistryError):
    """A schema registry's answers do not fit one another, or what it said before; nothing was published."""

    code = "RIVET_SCHEMA_REGISTRY_CONTRADICTION"
    exit_code = 3


class SubjectTaken(SchemaRegistryError):
    """A subject belongs to another export, or its versions are of another language."""

    code = "RIVET_SCHEMA_SUBJECT_TAKEN"


class SchemaIncompatible(DriftRefused):
    """The schema breaks readers of its subject's versions; nothing was published."""

    code = "RIVET_SCHEMA_INCOMPATIBLE"


class SchemaNotRegistered(DriftRefused):
    """The schema is not among its subject's versions, and the export may not register it; nothing was published."""

    code = "RIVET_SCHEMA_NOT_REGISTERED"


class SchemaUnreadable(RivetError):
    """A text is no schema of its language, or has a part whose compatibility is not known here."""

    code = "RIVET_SCHEMA_UNREADABLE"
