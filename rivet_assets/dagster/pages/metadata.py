"""What people see of a published window: names that stay, numbers that are numbers, so that Dagster can plot them.

Belongs here: facts of a staged window as Dagster metadata, its data version. Not here: facts known before a run
(`specs.py`), verdicts (`check_events.py`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import dagster as dg
import pyarrow as pa

from rivet_assets.dagster.pages.lineage import column_lineage
from rivet_assets.dagster.pages.page import DETAILS, SUMMARY, details, summary
from rivet_assets.dagster.pages.profile_facts import profile_facts
from rivet_assets.dagster.pages.window_timeline import newest_windows, timeline_facts, window_text
from rivet_assets.run.attempt import Attempt, Site
from rivet_assets.run.journal import strategy
from rivet_assets.run.words import human_bytes
from rivet_resources.contracts.extract import Extract, Staged
from rivet_resources.contracts.parts import Measures
from rivet_resources.shape.shape import planned

OUR_COLUMNS = {
    "_rivet_exported_at": "when this window was exported; one instant for all of it",
    "_rivet_row_hash": "low 64 bits of XXH3-128 over the row's cells; the manifest says which",
}
# Under the first name Dagster shows rows as those of the table. An increment's are rows of that load alone.
ROWS = {
    "all": "dagster/row_count",
    "time": "dagster/partition_row_count",
    "value": "dagster/partition_row_count",
    "snapshot": "dagster/partition_row_count",
    "after": "rivet/rows",
}


def describe(site: Site, attempt: Attempt) -> dict[str, Any]:
    """Return the metadata of a staged window as it will be published; publishing adds its seconds and the manifest.

    A page shows them all, in this order: few, and each once. Numbers are for plots, so their names stay.
    """
    staged, rows = attempt.staged, attempt.staged.measures.rows
    extract, size = staged.extract, sum(part.size_bytes for part in staged.parts)
    drift = [f"The columns changed: {attempt.drift}."] if attempt.drift else []
    notes = [*drift, *extract.notes]
    lead = {
        "Rows": rows,
        "Window": window_text(site.export, staged),
        "Files": files_text(len(staged.parts), size),
        "Took": seconds_text(sum(staged.seconds.values())),
        "Read": f"{strategy(extract)}, {staged.consistency}",
        "Schema": "" if extract.registered is None else str(extract.registered),
        "Late rows": late_rows(attempt) or "",
        "Asked for": site.asked,
    }
    facts: dict[str, Any] = {SUMMARY: summary(lead, notes), ROWS[extract.window.kind]: rows}
    facts |= {"rivet/size_mb": megabytes(size), "rivet/seconds": round(sum(staged.seconds.values()), 3)}
    facts |= timeline_facts(site.export, staged)
    if (age := cursor_age(extract, staged.started_at)) is not None:
        facts["rivet/cursor_age_seconds"] = age
    if (late := late_rows(attempt)) is not None:
        facts["rivet/late_rows"] = late
    facts |= profile_facts(staged.profile)
    windows = newest_windows(site.export, staged, site.state)
    details_ = details(_figures(staged), cost=staged.harm, staged=staged, notes=notes, windows=windows)
    return facts | {"dagster/uri": site.root.uri, **_schema(site, staged), DETAILS: details_}


def cursor_age(extract: Extract, at: datetime) -> float | None:
    """Return how many seconds lie between a cursor that is an instant and now, by this machine's clock; else None."""
    # None of times without a zone: nobody knows how far they are from ours.
    cursor = extract.cursor
    column = extract.relation.column(cursor.column) if cursor is not None else None
    if cursor is None or cursor.high is None or column is None or not pa.types.is_timestamp(column.arrow):
        return None
    if column.arrow.tz is None:
        return None
    try:
        # Never below 0: the clock of the source may be ahead of ours.
        return round(max(0.0, (at - datetime.fromisoformat(cursor.high)).total_seconds()), 3)
    except ValueError:  # a year beyond Python's
        return None


def late_rows(attempt: Attempt) -> int | None:
    """Return how many rows a window has more than when it was last committed; None when it never was."""
    return None if attempt.previous_rows is None else attempt.staged.measures.rows - attempt.previous_rows


def _figures(staged: Staged) -> dict[str, Any]:
    """Return what a run measured, beyond what its page leads with."""
    extract, measures = staged.extract, staged.measures
    read = staged.seconds.get("read", 0.0)
    return {
        "run_id": extract.run_id,
        "chunks": len(extract.chunks),
        "profile": extract.pace.profile,
        "rows_read": staged.rows_read,
        # Without the rows that an earlier run had read: this run's seconds were not spent on them.
        "rows_per_second": round((measures.rows - staged.kept.rows) / read) if read else 0,
        **{f"seconds_{step}": round(seconds, 3) for step, seconds in staged.seconds.items()},
        "pages": measures.pages,
        "throttled_seconds": round(measures.throttled_seconds, 3),
        "cpu_seconds": round(measures.cpu_seconds, 3),
        "peak_mb": round(measures.peak_mb, 1),
        "retries": measures.retries,
        "special_values": special_values_count(measures),
    }


def special_values_count(measures: Measures) -> int:
    """Count the values that were replaced because their type cannot hold them."""
    return sum(sum(kinds.values()) for kinds in measures.special_values.values())


def files_text(files: int, size_bytes: int) -> str:
    """Return files and bytes as people read them."""
    return f"{files:,} file{'' if files == 1 else 's'}, {human_bytes(size_bytes)}"


def seconds_text(seconds: float) -> str:
    """Return seconds as people read them."""
    return f"{seconds:,.1f} s"


def megabytes(size_bytes: int) -> float:
    """Return bytes as a number that a plot can label, in the unit of `human_bytes`."""
    return round(size_bytes / 2**20, 3)


def data_version(staged: Staged) -> dg.DataVersion:
    """Name the content: equal when the same rows were written again, so that nothing downstream needs to wake."""
    digest = hashlib.sha256(staged.schema_ipc)
    # Sorted: which chunk ended first says nothing of the rows, and must wake nobody.
    for fingerprint in sorted(part.fingerprint for part in staged.parts):
        digest.update(fingerprint.encode())
    # What an incremental run adds is new even if equal rows came before.
    if staged.extract.window.kind == "after":
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
    native = "" if made else facts.get("rivet.native_type", "")
    told = "; ".join(word for word in (comment, made, native) if word)
    return dg.TableColumn(
        name=field.name,
        type=str(field.type),
        description=told or None,
        constraints=dg.TableColumnConstraints(nullable=field.nullable),
    )
