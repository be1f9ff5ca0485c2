"""The schema registry inside the state store.

Belongs here: its rules about owners, modes and compatibility. Not here: the tables (`state/registered_schemas.py`),
HTTP (`server.py`).

Subjects that came over HTTP have no owner.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast

from sqlalchemy import Connection

from rivet_resources.contracts.schema_registry import Compatibility, SchemaFormat, SubjectVersion, identity
from rivet_resources.schema_registry.errors import SchemaIncompatible, SchemaRegistryError, SubjectTaken
from rivet_resources.schema_registry.languages.language import breaks, language
from rivet_resources.state import registered_schemas as tables
from rivet_resources.state.registered_schemas import OF_ALL, Subject
from rivet_resources.state.store import State

DEFAULT: Compatibility = "backward"  # as Confluent's
READ_WRITE, READ_ONLY = "READWRITE", "READONLY"
MOST_BREAKS = 20  # told in one message


@dataclass(frozen=True)
class EmbeddedSchemaRegistry:
    """The registry of everyone who shares a state store."""

    state: State
    key: str = "embedded"

    @property
    def name(self) -> str:
        """Name it for people."""
        return f"in the state store {self.state.name}"

    def subjects(self, *, deleted: bool = False) -> list[str]:
        """List the subjects, sorted; `deleted` ones too, where asked for."""
        with self.state.reading_schemas() as connection:
            return tables.subjects(connection, deleted=deleted)

    def versions(self, subject: str) -> list[int]:
        """List the versions of a subject, oldest first; [] where there is no such subject."""
        return [each.version for each in self.all_versions(subject)]

    def all_versions(self, subject: str, *, deleted: bool = False) -> list[SubjectVersion]:
        """Return the versions of a subject, oldest first; `deleted` ones too, where asked for."""
        with self.state.reading_schemas() as connection:
            return tables.versions(connection, subject, deleted=deleted)

    def version(self, subject: str, number: int) -> SubjectVersion | None:
        """Read one version; None where it is not there, or no more."""
        return next((each for each in self.all_versions(subject) if each.version == number), None)

    def schema(self, number: int) -> tuple[SchemaFormat, str] | None:
        """Read the schema of an id; None where there is none."""
        with self.state.reading_schemas() as connection:
            return tables.content(connection, number)

    def places_of(self, number: int) -> list[tuple[str, int]]:
        """Return the subjects and versions that have the schema of an id."""
        with self.state.reading_schemas() as connection:
            return tables.places_of(connection, number)

    def find(self, subject: str, form: SchemaFormat, text: str) -> SubjectVersion | None:
        """Find the version of a subject that has this schema; None where none has."""
        return _same(self.all_versions(subject), form, text)

    def check_owner(self, subject: str, *, owner: str) -> None:
        """See that this owner may add versions.

        Raises:
            SubjectTaken: another export made the subject.
        """
        # A subject that an export made is that export's: nobody else adds versions to it.
        with self.state.reading_schemas() as connection:
            _refuse_stranger(tables.subject_of(connection, subject) or Subject(subject), owner)

    def declare(self, subject: str, rule: Compatibility, *, owner: str) -> None:
        """Make a rule the subject's, where the subject is new or this owner's."""
        with self.state.writing_schemas() as connection:
            kept = tables.subject_of(connection, subject) or Subject(subject, owner)
            if kept.owner == owner and kept.compatibility != rule:
                tables.keep_subject(connection, replace(kept, compatibility=rule))

    def register(self, subject: str, form: SchemaFormat, text: str, *, owner: str) -> int:
        """Add a version, or find the one that is there; its id.

        Raises:
            SchemaIncompatible: the subject's rule refuses it.
            SubjectTaken: another export made the subject.
            SchemaUnreadable: it is no schema of its language.
            SchemaRegistryError: the subject is read-only.
        """
        language(form).canonical(text)  # raises
        with self.state.writing_schemas() as connection:
            kept = tables.subject_of(connection, subject) or Subject(subject)
            there = tables.versions(connection, subject)
            # Before the mode and the owner: to find what is there changes nothing, and serializers ask like this at
            # every start.
            if (found := _same(there, form, text)) is not None:
                return found.id
            if self._mode(connection, kept) == READ_ONLY:
                raise SchemaRegistryError(f"Subject {subject} is read-only. Set its mode to READWRITE first.")
            _refuse_stranger(kept, owner)
            # The first to register owns it; one whose versions were all deleted has had an owner before.
            if not kept.last_version:
                kept = replace(kept, owner=owner)
            _refuse_breaks(subject, form, text, there, rule=self._rule(connection, kept))
            return tables.add_version(connection, kept, form, text).id

    def delete(self, subject: str, versions: Sequence[int], *, permanent: bool) -> None:
        """Hide versions of a subject, or remove them for good; no id and no number is given again."""
        with self.state.writing_schemas() as connection:
            for version in versions:
                tables.delete_version(connection, subject, version, permanent=permanent)

    def compatibility(self, subject: str) -> Compatibility:
        """Return the rule of a subject: its own, else that of all."""
        with self.state.reading_schemas() as connection:
            return self._rule(connection, tables.subject_of(connection, subject))

    def own_compatibility(self, subject: str) -> Compatibility | None:
        """Return the rule that was set for a subject, or for all (''); None where none was."""
        with self.state.reading_schemas() as connection:
            kept = tables.subject_of(connection, subject)
        return cast("Compatibility | None", kept.compatibility) if kept is not None else None

    def set_compatibility(self, subject: str, rule: Compatibility | None) -> None:
        """Set the rule of a subject, or of all (''); None: it has none of its own."""
        with self.state.writing_schemas() as connection:
            kept = tables.subject_of(connection, subject) or Subject(subject)
            tables.keep_subject(connection, replace(kept, compatibility=rule))

    def mode(self, subject: str) -> str:
        """Return whether a subject, or all (''), may be written: READWRITE or READONLY."""
        with self.state.reading_schemas() as connection:
            return self._mode(connection, tables.subject_of(connection, subject))

    def set_mode(self, subject: str, mode: str) -> None:
        """Set whether a subject, or all (''), may be written."""
        with self.state.writing_schemas() as connection:
            kept = tables.subject_of(connection, subject) or Subject(subject)
            tables.keep_subject(connection, replace(kept, mode=mode))

    def _rule(self, connection: Connection, kept: Subject | None) -> Compatibility:
        own = kept.compatibility if kept is not None else None
        of_all = tables.subject_of(connection, OF_ALL) if own is None else None
        return cast("Compatibility", own or (of_all.compatibility if of_all is not None else None) or DEFAULT)

    def _mode(self, connection: Connection, kept: Subject | None) -> str:
        own = kept.mode if kept is not None else None
        of_all = tables.subject_of(connection, OF_ALL) if own is None else None
        return own or (of_all.mode if of_all is not None else None) or READ_WRITE


def _refuse_stranger(kept: Subject, owner: str) -> None:
    """Refuse to add versions to what another export made; a subject that came over HTTP is everybody's.

    Raises:
        SubjectTaken
    """
    if kept.owner and kept.owner != owner:
        raise SubjectTaken(
            f"Subject {kept.subject} belongs to export {kept.owner}. Name another one under "
            f"`schema_registry: {{subject: …}}` of the export."
        )


def _same(there: Sequence[SubjectVersion], form: SchemaFormat, text: str) -> SubjectVersion | None:
    """Find a schema among versions, the newest first."""
    wanted = identity(form, text)
    return next((each for each in reversed(there) if identity(each.format, each.text) == wanted), None)


def _refuse_breaks(
    subject: str, form: SchemaFormat, text: str, there: Sequence[SubjectVersion], *, rule: Compatibility
) -> None:
    """Refuse a schema that breaks readers.

    Raises:
        SchemaIncompatible
    """
    # No rule can hold a schema of one language against one of another, so none can vouch for the change.
    others = [each for each in there if each.format != form]
    if others and rule != "none":
        raise SchemaIncompatible(
            f"Subject {subject} has versions in {others[-1].format}, and this schema is {form}. Name another subject."
        )
    found = breaks(form, text, [each.text for each in there if each.format == form], rule=rule)
    if found:
        told = "; ".join(found[:MOST_BREAKS])
        raise SchemaIncompatible(f"Subject {subject} is {rule}, and this schema breaks that: {told}.")
