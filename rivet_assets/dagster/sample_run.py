"""A run with `limit`: what a trial found, on the asset's page; nothing is materialized.

Belongs here: its observation. Not here: reading (`run/sample.py`).
"""

from collections.abc import Iterator, Sequence

import dagster as dg
import pyarrow as pa

from rivet_assets.dagster.pages.metadata import files_text, megabytes, seconds_text, special_values_count, table_schema
from rivet_assets.dagster.pages.page import SUMMARY, summary
from rivet_assets.dagster.run_config import AskedRun
from rivet_assets.run.attempt import Site
from rivet_assets.run.sample import Trial, take_sample
from rivet_resources.contracts.extract import Window


def sample_events(
    asked: AskedRun, site: Site, key: dg.AssetKey, windows: Sequence[Window | None] = (None,)
) -> Iterator[dg.AssetObservation]:
    """Read some rows of each window, and yield what was found as observations.

    Raises:
        RivetError: whatever planning, reading and writing raise; of the first window that does.
    """
    limit = asked.options.limit
    assert limit is not None
    for window in windows:
        found = take_sample(site, limit, window=window, from_start=asked.options.full_refresh)
        asked.context.log.warning(
            f"{site.export.name} {found.window}: {found.measures.rows_read} rows were read as `limit: {limit}` asks "
            f"for; nothing is published."
        )
        yield dg.AssetObservation(key, partition=window.partition if window else None, metadata=_facts(found, limit))


def _facts(found: Trial, limit: int) -> dict[str, dg.MetadataValue]:
    rows = found.measures.rows
    schema = pa.ipc.read_schema(pa.BufferReader(found.staged.schema_ipc))
    comments = {column.name: column.comment for column in found.staged.extract.relation.columns}
    lead = {
        "Asked for": f"limit {limit}: a trial, nothing is published",
        "Rows read": found.measures.rows_read,
        "Rows written": rows,
        "Window": found.window,
        "Files": files_text(found.files, found.size_bytes),
        "Took": seconds_text(found.seconds),
        "Special values": special_values_count(found.measures) or "",
    }
    return {
        SUMMARY: summary(lead, found.staged.extract.notes),
        "rivet/sample_rows": dg.MetadataValue.int(rows),
        "rivet/sample_mb": dg.MetadataValue.float(megabytes(found.size_bytes)),
        "rivet/sample_seconds": dg.MetadataValue.float(round(found.seconds, 3)),
        "dagster/column_schema": dg.MetadataValue.table_schema(table_schema(schema, comments)),
    }
