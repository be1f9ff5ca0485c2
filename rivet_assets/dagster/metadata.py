"""What people see of a published window: names that stay, numbers that are numbers, so that Dagster can plot them.

Belongs here: facts of a staged window as Dagster metadata, its data version. Not here: facts known before a run
(`specs.py`), verdicts (`check_events.py`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import dagster as dg
import pyarrow as pa

from rivet_assets.dagster.lineage import column_lineage
from rivet_assets.run.attempt import Attempt, Site
from rivet_assets.run.journal import strategy
from rivet_resources.contracts.extract import Staged
from rivet_resources.shape.shape import planned

OUR_COLUMNS = {
    "_rivet_exported_at": "when this window was exported; one instant for all of it",
    "_rivet_row_hash": "low 64 bits of XXH3-128 over the row's cells; the manifest says which",
}
MOST_PARTS = 50  # in the table of parts; all of them are in the manifest


def describe(site: Site, attempt: Attempt) -> dict[str, Any]:
    """Return the metadata of a staged window as it will be published; publishing adds its seconds and the manifest."""
    staged, measures = attempt.staged, attempt.staged.measures
    extract, read = staged.extract, staged.seconds.get("read", 0.0)
    facts: dict[str, Any] = {
        ("dagster/partition_row_count" if extract.window.kind == "time" else "dagster/row_count"): measures.rows,
        "rivet/rows": measures.rows,
        "rivet/strategy": strategy(extract),
        "rivet/chunks": len(extract.chunks),
        "rivet/profile": extract.pace.profile,
        "rivet/rows_read": staged.rows_read,
        "rivet/bytes": sum(part.size_bytes for part in staged.parts),
        "rivet/parts": len(staged.parts),
        **{f"rivet/seconds_{step}": round(seconds, 3) for step, seconds in staged.seconds.items()},
        "rivet/rows_per_second": round((measures.rows - staged.kept.rows) / read) if read else 0,
        "rivet/pages": measures.pages,
        "rivet/longest_statement_ms": round(measures.longest_statement_ms, 1),
        "rivet/throttled_seconds": round(measures.throttled_seconds, 3),
        "rivet/cpu_seconds": round(measures.cpu_seconds, 3),
        "rivet/peak_mb": round(measures.peak_mb, 1),
        "rivet/retries": measures.retries,
        "rivet/special_values": sum(sum(kinds.values()) for kinds in measures.special_values.values()),
        "rivet/consistency": staged.consistency,
        "rivet/window": extract.window.key,
        "rivet/run_id": extract.run_id,
        "dagster/uri": site.root.uri,
        "dagster/table_name": extract.relation.name,
        **{f"rivet/harm_{name}": number for name, number in staged.harm.items()},
        **_schema(site, staged),
    }
    if staged.parts:
        facts["rivet/parts_table"] = parts_table(staged)
    if extract.cursor is not None and extract.cursor.high is not None:
        facts["rivet/cursor"] = extract.cursor.high
    if attempt.previous_rows is not None:
        facts["rivet/late_rows"] = measures.rows - attempt.previous_rows
    if attempt.drift:
        facts["rivet/schema_changes"] = str(attempt.drift)
    if extract.notes:
        facts["rivet/notes"] = dg.MetadataValue.md("\n".join(f"- {note}" for note in extract.notes))
    return facts


def data_version(staged: Staged) -> dg.DataVersion:
    """Name the content: equal when the same rows were written again, so that nothing downstream needs to wake."""
    digest = hashlib.sha256(staged.schema_ipc)
    for fingerprint in sorted(part.fingerprint for part in staged.parts):
        digest.update(fingerprint.encode())
    if staged.extract.window.kind == "after":  # what an incremental run adds is new even if equal rows came before
        digest.update(staged.extract.window.key.encode())
    return dg.DataVersion(digest.hexdigest()[:16])


def table_schema(schema: pa.Schema, comments: Mapping[str, str]) -> dg.TableSchema:
    """Show a schema of the parts: type, native type, nullability, the source's comment."""
    return dg.TableSchema([_column(field, comments.get(field.name, "")) for field in schema])


def _schema(site: Site, staged: Staged) -> dict[str, Any]:
    schema = pa.ipc.read_schema(pa.BufferReader(staged.schema_ipc))
    relation, steps = staged.extract.relation, staged.extract.transforms
    comments = {column.name: column.comment for column in relation.columns}
    facts: dict[str, Any] = {"dagster/column_schema": table_schema(schema, {**comments, **OUR_COLUMNS})}
    origins = planned(relation, steps).origins
    lineage = column_lineage(site.export, origins, source_name=site.source_name, source=site.source)
    if lineage is not None:
        facts["dagster/column_lineage"] = lineage
    return facts


def _column(field: pa.Field, comment: str) -> dg.TableColumn:
    facts = {key.decode(): value.decode() for key, value in (field.metadata or {}).items()}
    made = f"made by {facts['rivet.derived']}" if "rivet.derived" in facts else ""
    told = "; ".join(word for word in (comment, made) if word)
    return dg.TableColumn(
        name=field.name,
        type=str(field.type),
        description=told or facts.get("rivet.native_type"),
        constraints=dg.TableColumnConstraints(nullable=field.nullable),
    )


def parts_table(staged: Staged) -> dg.TableMetadataValue:
    """List the parts of a window, as many as people read."""
    records = [
        dg.TableRecord({"path": part.path, "rows": part.rows, "bytes": part.size_bytes})
        for part in staged.parts[:MOST_PARTS]
    ]
    columns = [dg.TableColumn("path", "string"), dg.TableColumn("rows", "int"), dg.TableColumn("bytes", "int")]
    return dg.TableMetadataValue(records=records, schema=dg.TableSchema(columns))
