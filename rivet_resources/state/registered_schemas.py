"""The schema registry inside the store: subjects, their versions, the schemas behind their ids.

Belongs here: the tables `schema_content`, `schema_subject` and `schema_version`, and what was agreed with any registry
(`schema_agreement`). Not here: rules of compatibility, HTTP (`rivet_resources/schema_registry/`).
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Boolean, Column, Connection, Integer, Table, Text, delete, func, select, text, update

from rivet_resources.contracts.schema_registry import (
    KnownSchema,
    RegisteredSchema,
    SchemaFormat,
    SubjectVersion,
    identity,
)
from rivet_resources.state.database import METADATA, Instant, insert, now, upsert

schema_content = Table(
    "schema_content",
    METADATA,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("identity", Text, nullable=False, unique=True),
    Column("format", Text, nullable=False),
    Column("text", Text, nullable=False),
)
schema_subject = Table(
    "schema_subject",
    METADATA,
    Column("subject", Text, primary_key=True),
    Column("owner", Text, nullable=False),
    Column("compatibility", Text),
    Column("mode", Text),
    Column("last_version", Integer, nullable=False),
)
schema_version = Table(
    "schema_version",
    METADATA,
    Column("subject", Text, primary_key=True),
    Column("version", Integer, primary_key=True),
    Column("id", Integer, nullable=False),
    Column("deleted", Boolean, nullable=False),
    Column("registered_at", Instant, nullable=False),
)
schema_agreement = Table(
    "schema_agreement",
    METADATA,
    Column("export_name", Text, primary_key=True),
    Column("registry", Text, primary_key=True),
    Column("subject", Text, primary_key=True),
    Column("columns", Text, primary_key=True),
    Column("version", Integer, nullable=False),
    Column("id", Integer, nullable=False),
    Column("format", Text, nullable=False),
    Column("md5", Text, nullable=False),
    Column("sha256", Text, nullable=False),
    Column("agreed_at", Instant, nullable=False),
)

LOCK_KEY = 0x5249564555  # beside that of migrations
# The subject whose compatibility and mode hold where a subject has none.
OF_ALL = ""


@dataclass(frozen=True)
class Subject:
    """What is kept of a subject beside its versions; an `owner` of '' is nobody of Rivet's."""

    subject: str
    owner: str = ""
    compatibility: str | None = None
    mode: str | None = None
    last_version: int = 0


def take_turn(connection: Connection) -> None:
    """Wait for other writers; on SQLite a writing transaction is alone anyway."""
    if connection.dialect.name != "sqlite":
        # Writers take turns (`take_turn`), since a number follows from those that are there.
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": LOCK_KEY})


def subjects(connection: Connection, *, deleted: bool = False) -> list[str]:
    """List the subjects that have a version, sorted; `deleted` ones too, where asked for."""
    query = select(schema_version.c.subject).distinct()
    query = query if deleted else query.where(schema_version.c.deleted.is_(False))
    return sorted(connection.execute(query).scalars())


def subject_of(connection: Connection, subject: str) -> Subject | None:
    """Read what is kept of a subject; None where nothing is."""
    row = connection.execute(select(schema_subject).where(schema_subject.c.subject == subject)).one_or_none()
    return None if row is None else Subject(row.subject, row.owner, row.compatibility, row.mode, row.last_version)


def keep_subject(connection: Connection, found: Subject) -> None:
    """Write what is kept of a subject, over what was."""
    values = {name: getattr(found, name) for name in ("subject", "owner", "compatibility", "mode", "last_version")}
    upsert(connection, schema_subject, values)


def versions(connection: Connection, subject: str, *, deleted: bool = False) -> list[SubjectVersion]:
    """Return the versions of a subject, oldest first; `deleted` ones too, where asked for."""
    joined = schema_version.join(schema_content, schema_version.c.id == schema_content.c.id)
    query = select(schema_version, schema_content.c.format, schema_content.c.text).select_from(joined)
    query = query.where(schema_version.c.subject == subject).order_by(schema_version.c.version)
    query = query if deleted else query.where(schema_version.c.deleted.is_(False))
    return [SubjectVersion(row.subject, row.version, row.id, row.format, row.text) for row in connection.execute(query)]


def places_of(connection: Connection, number: int, *, deleted: bool = False) -> list[tuple[str, int]]:
    """Return the subjects and versions that have the schema of an id."""
    table = schema_version.c
    query = select(table.subject, table.version).where(table.id == number).order_by(table.subject, table.version)
    query = query if deleted else query.where(table.deleted.is_(False))
    return [(row.subject, row.version) for row in connection.execute(query)]


def content(connection: Connection, number: int) -> tuple[SchemaFormat, str] | None:
    """Read the schema of an id; None where there is none."""
    row = connection.execute(select(schema_content).where(schema_content.c.id == number)).one_or_none()
    return None if row is None else (row.format, row.text)


def content_id(connection: Connection, form: SchemaFormat, schema: str) -> int | None:
    """Find the id of a schema; None where it has none."""
    query = select(schema_content.c.id).where(schema_content.c.identity == identity(form, schema))
    return connection.execute(query).scalar_one_or_none()


def add_version(connection: Connection, subject: Subject, form: SchemaFormat, schema: str) -> SubjectVersion:
    """Add a version behind all that there ever were; the caller took its turn."""
    number = content_id(connection, form, schema)
    if number is None:
        # Writers take turns (`take_turn`), so the highest one and one more is nobody's.
        # An id is never given twice: `schema_content` forgets nothing, whatever versions are removed.
        highest = connection.execute(select(func.max(schema_content.c.id))).scalar_one()
        number = (highest or 0) + 1
        values = {"id": number, "identity": identity(form, schema), "format": form, "text": schema}
        connection.execute(insert(connection, schema_content).values(**values))
    # Kept with the subject and not counted from the rows: a version that was deleted for good leaves none.
    # A version's number is never given twice either.
    version = subject.last_version + 1
    row = {"subject": subject.subject, "version": version, "id": number, "deleted": False}
    connection.execute(insert(connection, schema_version).values(**row, registered_at=now(connection)))
    kept = Subject(subject.subject, subject.owner, subject.compatibility, subject.mode, version)
    keep_subject(connection, kept)
    return SubjectVersion(subject.subject, version, number, form, schema)


def delete_version(connection: Connection, subject: str, version: int, *, permanent: bool) -> None:
    """Hide a version, or remove it for good; its number and its id are not given again."""
    # Only the version goes: messages carry the id for ever, so `schema_content` keeps what it stands for.
    chosen = (schema_version.c.subject == subject) & (schema_version.c.version == version)
    if permanent:
        connection.execute(delete(schema_version).where(chosen))
    else:
        connection.execute(update(schema_version).where(chosen).values(deleted=True))


# --- what was agreed -----------------------------------------------------------------------------


def agreed(connection: Connection, export: str, registry: str, subject: str, columns: str) -> KnownSchema | None:
    """Return what is remembered of a schema, by the identity of its columns; None where it was never agreed."""
    table = schema_agreement.c
    query = select(schema_agreement).where(
        table.export_name == export, table.registry == registry, table.subject == subject, table.columns == columns
    )
    row = connection.execute(query).one_or_none()
    if row is None:
        return None
    found = RegisteredSchema(row.subject, row.version, row.id, row.format, row.md5, row.sha256)
    return KnownSchema(found, (now(connection) - row.agreed_at).total_seconds())


def agree(connection: Connection, export: str, registry: str, columns: str, found: RegisteredSchema) -> None:
    """Remember that the schema of columns is this version and id of its subject."""
    key = {"export_name": export, "registry": registry, "columns": columns}
    upsert(connection, schema_agreement, {**key, **found.facts, "agreed_at": now(connection)})


def forget(connection: Connection, export: str) -> None:
    """Forget what was agreed for an export; the registry is asked again."""
    connection.execute(delete(schema_agreement).where(schema_agreement.c.export_name == export))
