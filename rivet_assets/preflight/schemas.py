"""`rivet schema`: the schema of an export as its table is now, and how it fits a registry or files; reads no row.

Belongs here: what the commands answer and do. Not here: the rules (`rivet_resources/schema_registry/languages/`), what
is checked before a window is published (`run/schema_agreement.py`), printing (`cli/commands/schema.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.json as arrow_json
import pyarrow.parquet as pq
from pyarrow import csv

from rivet_assets.blocks.export import Export
from rivet_assets.config.root import RivetConfig
from rivet_assets.preflight.contract import look
from rivet_assets.run.admit.scope import state_of
from rivet_assets.run.schema_agreement import SchemaCheck, SchemaGate, registry_of, schema_gate
from rivet_resources.contracts.schema_registry import (
    Compatibility,
    RegisteredSchema,
    SchemaFormat,
    SchemaRegistry,
    SubjectVersion,
)
from rivet_resources.errors import ConfigError
from rivet_resources.schema_registry.errors import SchemaUnreadable
from rivet_resources.schema_registry.languages.language import breaks, language
from rivet_resources.shape.shape import EXPORTED_AT, ROW_HASH

# Types are inferred from this much: a number that becomes a text further down is not seen.
SAMPLE_BYTES = 16 << 20
CODES = ("RIVET_CONFIG_SCHEMA_REGISTRY",)


@dataclass(frozen=True)
class SubjectRow:
    """One subject, as `rivet schema list` shows it."""

    subject: str
    export: str | None  # of this configuration
    versions: int
    latest: int
    id: int
    format: SchemaFormat
    compatibility: Compatibility


def columns_of(config: RivetConfig, export: Export) -> pa.Schema:
    """Return the columns that an export's parts would have now.

    Raises:
        SourceError: the source does not answer, or refuses.
        TransformError: a step does not fit the columns.
    """
    asked = export.meta_columns
    # Rivet's own columns stand in the parts as well, behind those of the table, so they belong to the schema that
    # readers are promised.
    own = [*([EXPORTED_AT] if asked.exported_at else []), *([ROW_HASH] if asked.row_hash is not False else [])]
    return pa.schema([*look(config, export)[1], *own])


def text_of_export(config: RivetConfig, name: str, *, form: SchemaFormat | None = None) -> tuple[SchemaFormat, str]:
    """Return the schema of the columns that an export has now: as it would be registered, or in another language.

    Raises:
        SourceError, SchemaRegistryError
        UnsupportedColumn: the language cannot hold a column.
    """
    export = config.export(name)
    columns = columns_of(config, export)
    gate = schema_gate(config, export, state_of(config))
    if gate is not None and form in (None, gate.form):
        return gate.form, gate.text_of(columns)
    chosen: SchemaFormat = form or "avro"
    return chosen, language(chosen).derive(columns, name=name, rule="backward", before=())


def check_files(
    config: RivetConfig, name: str, *, against: Sequence[Path], rule: Compatibility, form: SchemaFormat | None = None
) -> SchemaCheck:
    """Hold the schema that an export has now against files, the newest last.

    Raises:
        ConfigError: a file cannot be read, or is no schema of that language.
    """
    olds = [read_schema_file(path) for path in against]
    found_form, text = text_of_export(config, name, form=form)
    try:
        found = breaks(found_form, text, olds, rule=rule)
    except SchemaUnreadable as error:
        names = ", ".join(map(str, against))
        raise ConfigError(f"{names}: not all of them are {found_form} schemas that Rivet knows. {error}") from error
    return SchemaCheck(name, "", rule, tuple(map(str, against)), tuple(found))


def check_registry(config: RivetConfig, name: str, *, rule: Compatibility | None) -> SchemaCheck:
    """Hold the schema that an export has now against its subject's versions.

    Raises:
        ConfigError: the export registers no schema.
        SchemaRegistryError
    """
    export = config.export(name)
    gate = gate_of(config, export)
    return replace(gate, rule=rule or gate.rule).check(columns_of(config, export))


def register(config: RivetConfig, name: str, *, rule: Compatibility | None) -> RegisteredSchema:
    """Register the schema that an export has now, and remember it, whatever was agreed before.

    Args:
        rule: to judge by, this once; None: as a window is.

    Raises:
        ConfigError: the export registers no schema.
        SchemaIncompatible, SchemaRegistryError
    """
    export = config.export(name)
    # Whoever types the command is the one that `auto_register: false` waits for.
    gate = replace(gate_of(config, export), may_register=True)
    columns = columns_of(config, export)
    gate.forget()
    if rule is None:
        return gate.register(gate.agree(columns))
    # The registry judges by its own rule as well, and would refuse what the user has just allowed, so for this once it
    # is given theirs.
    with _once(gate.registry, gate.subject, rule):
        proposal = replace(gate, rule=rule).agree(columns)
        # Without a rule of the gate's: the subject's is the user's already, and goes again when the block ends.
        registered = replace(gate, rule=None).register(proposal)
    gate.forget()
    return registered


@contextmanager
def _once(registry: SchemaRegistry, subject: str, rule: Compatibility) -> Iterator[None]:
    """Let a rule hold for a subject until the block ends."""
    # Its own alone: putting back what holds for all would make that the subject's own rule.
    before = registry.own_compatibility(subject)
    registry.set_compatibility(subject, rule)
    try:
        yield
    finally:
        registry.set_compatibility(subject, before)


def gate_of(config: RivetConfig, export: Export) -> SchemaGate:
    """Return what lets the schema of an export pass.

    Raises:
        ConfigError: the export registers none.
    """
    gate = schema_gate(config, export, state_of(config))
    if gate is None:
        raise ConfigError(
            f"Export {export.name} has no `schema_registry:`. Write `schema_registry: avro`, or name files to compare "
            f"with: `rivet schema check --against`.",
            codes=CODES,
        )
    return gate


def registry_in(config: RivetConfig) -> SchemaRegistry:
    """Return the registry of a configuration.

    Raises:
        ConfigError: it names none.
    """
    if config.schema_registry is None:
        raise ConfigError(
            "The configuration names no schema registry. Write `schema_registry: {embedded: true}`, or with a url, at "
            "its top.",
            codes=CODES,
        )
    return registry_of(config.schema_registry, state_of(config))


def list_subjects(config: RivetConfig) -> list[SubjectRow]:
    """Return the subjects of a registry, sorted; one that goes away meanwhile is left out.

    Raises:
        ConfigError, SchemaRegistryError
    """
    registry = registry_in(config)
    exports = {config.subject_of(export): export.name for export in config.exports if export.schema_registry}
    rows = []
    for subject in registry.subjects():
        numbers = registry.versions(subject)
        latest = registry.version(subject, numbers[-1]) if numbers else None
        if latest is not None:
            rows.append(
                SubjectRow(
                    subject, exports.get(subject), len(numbers), latest.version, latest.id, latest.format,
                    registry.compatibility(subject),
                )
            )  # fmt: skip
    return rows


def read_version(config: RivetConfig, subject: str, number: int | None) -> SubjectVersion:
    """Read a version of a subject; None: the newest.

    Raises:
        ConfigError: there is none.
        SchemaRegistryError
    """
    registry = registry_in(config)
    numbers = registry.versions(subject)
    wanted = number if number is not None else next(reversed(numbers), None)
    found = registry.version(subject, wanted) if wanted in numbers and wanted is not None else None
    if found is None:
        there = f"it has {', '.join(map(str, numbers))}" if numbers else "`rivet schema list` shows the subjects"
        raise ConfigError(f"There is no version {wanted or 1} of subject {subject}; {there}.", codes=CODES)
    return found


def text_of_sample(path: Path, *, form: SchemaFormat) -> str:
    """Return the schema of rows like those of a file, inferred from its first 16 MB: any column may be NULL.

    Raises:
        ConfigError: the file cannot be read, or is of no format that samples have.
        UnsupportedColumn: the language cannot hold a column.
    """
    try:
        found = _schema_of_file(path)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror or 'damaged'}. Name a file of rows.") from error
    except pa.ArrowException:  # its text holds cells
        raise ConfigError(f"{path} is no {path.suffix} file whose rows fit one another. Name another one.") from None
    return language(form).derive(found, name=path.name.partition(".")[0], rule="backward", before=())


def _schema_of_file(path: Path) -> pa.Schema:
    suffix = path.suffix.lower()
    if suffix == ".parquet":
        return pq.read_schema(path)
    if suffix == ".csv":
        # Opened as a stream: the types are known when the first block is, however large the file.
        with csv.open_csv(path, read_options=csv.ReadOptions(block_size=SAMPLE_BYTES)) as reader:
            return reader.schema
    if suffix in (".ndjson", ".jsonl"):
        options = arrow_json.ReadOptions(block_size=SAMPLE_BYTES)
        with arrow_json.open_json(path, read_options=options) as reader:
            return reader.schema
    raise ConfigError(f"{path} is no sample that Rivet reads: name a .ndjson, .jsonl, .csv or .parquet file.")


def read_schema_file(path: Path) -> str:
    """Read a file of a schema.

    Raises:
        ConfigError: it cannot be read.
    """
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}. Name a file of a schema.") from error
    except ValueError as error:
        raise ConfigError(f"{path} is no text, so no schema. Name an .avsc, .json or .proto file.") from error
