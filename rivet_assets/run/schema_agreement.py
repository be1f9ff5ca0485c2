"""Whether a window's schema may be published, by its subject in a schema registry: checked before a row is read.

Belongs here: the order of questions, and what each answer means for the window. Not here: asking (`rivet_resources/
schema_registry/`), what breaks readers (its `languages/`).

A schema that was agreed is remembered in the state store by its columns, and for `cache` nothing is asked. After that
the registry is asked whether it still has it, under the same id: one that has lost a version, or says another schema is
meant by an id, gets nothing published on its word. Readers of the windows of before would be misled by both.

A new schema is held against the versions by our own rules; the registry's answer to registering it is a second opinion.
It is registered when its window is ready to be published, so that a window that is refused leaves no version behind.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from rivet_resources.contracts.schema_registry import (
    Compatibility,
    KnownSchema,
    RegisteredSchema,
    SchemaFormat,
    SchemaRegistry,
    SubjectVersion,
)
from rivet_resources.schema_registry.client import HttpSchemaRegistry
from rivet_resources.schema_registry.embedded import EmbeddedSchemaRegistry
from rivet_resources.schema_registry.errors import (
    SchemaIncompatible,
    SchemaNotRegistered,
    SchemaRegistryContradiction,
    SchemaUnreadable,
    SubjectTaken,
)
from rivet_resources.schema_registry.languages.language import breaks, fingerprints, is_same, language
from rivet_resources.schema_registry.languages.protobuf import numbers_of
from rivet_resources.secrets import resolve_secret

if TYPE_CHECKING:
    from rivet_assets.blocks.export import Export
    from rivet_assets.blocks.schema_registry import SchemaRegistrySettings
    from rivet_assets.config.load import RivetConfig
    from rivet_resources.state.store import State

MOST_BREAKS = 10  # told in one message
_numbers: dict[str, dict[str, tuple[int, Any]]] = {}  # of Protobuf's fields, by the checksum of the schema


@dataclass(frozen=True)
class SchemaProposal:
    """A schema that may be published: registered already, or fit to be."""

    text: str
    columns: str  # the identity of the columns, by which the store remembers it
    registered: SubjectVersion | None = None
    remembered: RegisteredSchema | None = None  # nothing was asked


@dataclass(frozen=True)
class SchemaCheck:
    """What of a schema breaks its subject's rule. `version`: it is registered already, as that; None: it is not."""

    export: str
    subject: str
    compatibility: Compatibility
    against: tuple[str, ...]
    breaks: tuple[str, ...]
    version: int | None = None


@dataclass(frozen=True)
class SchemaGate:
    """What lets the schema of one export pass, or not."""

    registry: SchemaRegistry
    state: State
    export: str
    subject: str
    form: SchemaFormat
    record: str
    rule: Compatibility | None = None  # None: the registry's
    may_register: bool = True
    cache_seconds: float = 0.0
    asked: dict[str, Compatibility] = field(default_factory=dict, compare=False)

    def agree(self, schema: pa.Schema) -> SchemaProposal:
        """Judge the schema of rows that are not read yet; nothing is registered.

        Raises:
            SchemaIncompatible: it breaks readers of its subject's versions.
            SchemaNotRegistered: it may not be registered by this export.
            SchemaRegistryContradiction: a version or an id is not what it was.
            SubjectTaken: the subject is of something else.
            SchemaRegistryError: whatever asking raises.
            UnsupportedColumn: the language cannot hold a column.
        """
        columns = self._columns(schema)
        known = self.state.agreed_schema(self.export, self.registry.key, self.subject, columns)
        # Nothing is asked for a while: a registry that is away must not stop exports whose schema has not changed.
        if known is not None and known.age_seconds < self.cache_seconds:
            return SchemaProposal("", columns, remembered=known.schema)
        proposal = self._proposal(schema, columns, known)
        if proposal.registered is not None:
            # A registry may have been restored from a backup, or set up anew with ids that begin at 1 again: then an id
            # in messages of before means another schema, and their readers would be misled.
            self._confirm(proposal.registered, proposal.text)
            if known is not None and fingerprints(self.form, proposal.text)["sha256"] != known.schema.sha256:
                raise self._contradiction(
                    f"has another schema as version {proposal.registered.version} of subject {self.subject} than when "
                    f"export {self.export} published by it."
                )
            if known is not None and known.schema.id != proposal.registered.id:
                raise self._contradiction(
                    f"has the schema of export {self.export} under id {proposal.registered.id}, and had it under id "
                    f"{known.schema.id}, which published windows name. Was it set up anew?"
                )
            return proposal
        if known is not None:
            raise self._contradiction(
                f"no longer has version {known.schema.version} (id {known.schema.id}) of subject {self.subject}, which "
                f"published windows of export {self.export} name: it was deleted."
            )
        self._judge(proposal)
        if not self.may_register:
            raise SchemaNotRegistered(
                f"The schema of export {self.export} is not registered under subject {self.subject}, and "
                f"auto_register is false. Look at it with `rivet schema show -e {self.export}`, then register it with "
                f"`rivet schema register -e {self.export}`."
            )
        return proposal

    def register(self, proposal: SchemaProposal) -> RegisteredSchema:
        """Register a schema that was agreed, where it is not yet; remember it.

        Raises:
            SchemaIncompatible: the registry's own rule refuses it, or another version came meanwhile.
            SchemaRegistryError: whatever asking raises.
        """
        if proposal.remembered is not None:
            return self._numbered(proposal.remembered, proposal.text)
        found = proposal.registered or self._register(proposal)
        prints = fingerprints(self.form, proposal.text)
        registered = RegisteredSchema(self.subject, found.version, found.id, self.form, prints["md5"], prints["sha256"])
        self.state.agree_schema(self.export, self.registry.key, proposal.columns, registered)
        return self._numbered(registered, proposal.text)

    def _numbered(self, registered: RegisteredSchema, text: str) -> RegisteredSchema:
        """Add the numbers of its fields, in a language that has them: they are part of what its checksum is over.

        Raises:
            SchemaRegistryContradiction: the registry does not have it, or something else under its id.
        """
        if self.form != "protobuf":
            return registered
        # By the checksum of the schema, so that nothing is asked again for each window of a process.
        if registered.sha256 not in _numbers:
            meant = (self.form, text) if text else self.registry.schema(registered.id)
            if meant is None or fingerprints(self.form, meant[1])["sha256"] != registered.sha256:
                what = "no schema" if meant is None else "another schema"
                raise self._contradiction(
                    f"has {what} under id {registered.id}, by which messages of export {self.export} are written."
                )
            _numbers[registered.sha256] = numbers_of(meant[1])
        return replace(registered, numbers=_numbers[registered.sha256])

    def check(self, schema: pa.Schema) -> SchemaCheck:
        """Hold a schema against its subject's versions; nothing is registered, and nothing remembered.

        Raises:
            SchemaRegistryError, UnsupportedColumn, SchemaUnreadable
        """
        proposal = self._proposal(schema, self._columns(schema))
        if proposal.registered is not None:
            version = proposal.registered.version
            return SchemaCheck(self.export, self.subject, self._rule(), (str(version),), (), version)
        olds = self._olds()
        self._refuse_others(proposal.text, olds)
        found = breaks(self.form, proposal.text, [each.text for each in olds], rule=self._rule())
        return SchemaCheck(
            self.export, self.subject, self._rule(), tuple(str(each.version) for each in olds), tuple(found)
        )

    def text_of(self, schema: pa.Schema) -> str:
        """Return the schema as it would be registered."""
        return self._proposal(schema, self._columns(schema)).text

    def forget(self) -> None:
        """Forget what was agreed: the next schema is judged by what the registry has."""
        self.state.forget_schemas(self.export)

    # --- one question each -----------------------------------------------------------------------

    def _columns(self, schema: pa.Schema) -> str:
        """Return the identity of columns in a language: two of one identity have one schema."""
        # In the order of the columns: another order is another record in Avro.
        lines = "".join(f"{each.name}\t{each.type}\t{each.nullable}\n" for each in schema)
        return sha256(f"{self.form}\n{self.record}\n{self.rule}\n{lines}".encode()).hexdigest()

    def _proposal(self, schema: pa.Schema, columns: str, known: KnownSchema | None = None) -> SchemaProposal:
        """Return the schema of columns, and the version that has it, if one has."""
        spoken = language(self.form)
        # Derived anew, it may be another.
        if known is not None and (spoken.FOLLOWS_VERSIONS or spoken.FOLLOWS_RULE):
            there = self.registry.version(self.subject, known.schema.version)
            return SchemaProposal("" if there is None else there.text, columns, there)
        numbers = self.registry.versions(self.subject) if spoken.FOLLOWS_VERSIONS else []
        before = [self._version(numbers[-1]).text] if numbers else []
        rule = self._rule() if spoken.FOLLOWS_RULE else "none"
        text = spoken.derive(schema, name=self.record, rule=rule, before=before)
        found = self.registry.find(self.subject, self.form, text)
        return SchemaProposal(text, columns, found)

    def _rule(self) -> Compatibility:
        if self.rule is not None:
            return self.rule
        if self.subject not in self.asked:
            self.asked[self.subject] = self.registry.compatibility(self.subject)
        return self.asked[self.subject]

    def _olds(self, below: int | None = None) -> list[SubjectVersion]:
        """Read the versions that a new one is held against, the newest last."""
        numbers = [each for each in self.registry.versions(self.subject) if below is None or each < below]
        return [self._version(each) for each in (numbers if self._rule().endswith("_transitive") else numbers[-1:])]

    def _version(self, number: int) -> SubjectVersion:
        found = self.registry.version(self.subject, number)
        if found is None:
            raise self._contradiction(f"lists version {number} of subject {self.subject}, and does not have it.")
        if found.references:
            raise SchemaUnreadable(
                f"Version {number} of subject {self.subject} needs other schemas, which Rivet does not resolve. Name "
                f"another subject for export {self.export}."
            )
        return found

    def _judge(self, proposal: SchemaProposal) -> None:
        """Hold a new schema against the versions that are there.

        Raises:
            SchemaIncompatible, SubjectTaken, SchemaUnreadable
        """
        self.registry.check_owner(self.subject, owner=self.state.schema_owner(self.export))
        olds = self._olds()
        self._refuse_others(proposal.text, olds)
        self._refuse_breaks(proposal.text, olds)

    def _refuse_others(self, text: str, olds: Sequence[SubjectVersion]) -> None:
        """Refuse a subject whose versions are of another language, or describe something else.

        Raises:
            SubjectTaken
        """
        spoken = language(self.form)
        for old in olds:
            name = spoken.name_of(old.text) if old.format == self.form else ""
            what = f"a schema in {old.format}" if old.format != self.form else f"the schema of {name}"
            if old.format != self.form or (name and name != spoken.name_of(text)):
                raise SubjectTaken(
                    f"Subject {self.subject} of export {self.export} has {what}, and not of "
                    f"{spoken.name_of(text)} in {self.form}: it is somebody else's. Name another subject, or, if it is "
                    f"the same thing, write its name as `schema_registry: {{record: …}}`."
                )

    def _refuse_breaks(self, text: str, olds: Sequence[SubjectVersion]) -> None:
        found = breaks(self.form, text, [each.text for each in olds], rule=self._rule())
        if not found:
            return
        more = f"; and {len(found) - MOST_BREAKS} more" if len(found) > MOST_BREAKS else ""
        raise SchemaIncompatible(
            f"Export {self.export}: its schema breaks compatibility {self._rule()} of subject {self.subject} "
            f"(against version {', '.join(str(each.version) for each in olds)}): "
            f"{'; '.join(found[:MOST_BREAKS])}{more}. Nothing was published. Bring the columns back with "
            f"`transforms:` or `columns:`, or name another subject, or let it pass once with "
            f"`rivet schema register -e {self.export} --compatibility none`."
        )

    def _register(self, proposal: SchemaProposal) -> SubjectVersion:
        owner = self.state.schema_owner(self.export)
        if self.rule is not None:
            # Before the first version, or the registry would judge it by the rule of all.
            self.registry.declare(self.subject, self.rule, owner=owner)
        # The registry's own rule is a second opinion: it may be stricter than ours, and is what other producers go by.
        number = self.registry.register(self.subject, self.form, proposal.text, owner=owner)
        # Asked back by content: an id alone does not say under which version, and some registries give an old id to a
        # new subject.
        found = self.registry.find(self.subject, self.form, proposal.text)
        if found is None or found.id != number:
            raise self._contradiction(f"took the schema of export {self.export} as id {number}, and does not have it.")
        self._confirm(found, proposal.text)
        # Somebody may have added versions since ours was judged.
        self._refuse_breaks(proposal.text, self._olds(below=found.version))
        return found

    def _confirm(self, found: SubjectVersion, text: str) -> None:
        """See that the id means this very schema, for everybody who resolves it.

        Raises:
            SchemaRegistryContradiction
        """
        meant = self.registry.schema(found.id)
        if meant is None or meant[0] != self.form or not is_same(self.form, meant[1], text):
            what = "no schema" if meant is None else "another schema"
            raise self._contradiction(
                f"says that version {found.version} of subject {self.subject} has id {found.id}, and means {what} by "
                f"that."
            )

    def _contradiction(self, what: str) -> SchemaRegistryContradiction:
        return SchemaRegistryContradiction(
            f"The schema registry {self.registry.name} {what} Nothing was published. Look at `rivet schema list` and "
            f"at the registry; when it is right as it is, `rivet schema register -e {self.export}` begins anew with it."
        )


def schema_gate(config: RivetConfig, export: Export, state: State) -> SchemaGate | None:
    """Return what lets the schema of an export pass; None where it registers none. Asks nobody yet.

    Raises:
        ConfigError: the variable of the password is not set.
    """
    asked = export.schema_registry
    if asked is None or config.schema_registry is None:
        return None
    return SchemaGate(
        registry_of(config.schema_registry, state),
        state,
        export.name,
        config.subject_of(export),
        asked.format,
        asked.record or export.name,
        asked.compatibility,
        asked.auto_register,
        config.schema_registry.cache,
    )


def registry_of(settings: SchemaRegistrySettings, state: State) -> SchemaRegistry:
    """Return the registry that a configuration names. Asks nobody yet.

    Raises:
        ConfigError: the variable of the password is not set.
    """
    if settings.url is None:
        return EmbeddedSchemaRegistry(state)
    password = resolve_secret(settings.password, env=settings.password_env, key="password")
    return HttpSchemaRegistry(settings.url, settings.username, password, settings.ca_file, settings.timeout)
