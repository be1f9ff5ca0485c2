"""What a run saw of a source table, shown on the table's own page: its columns, and about how many rows it has.

Belongs here: that one observation. Not here: the table's asset before any run (`specs.py`).

Dagster 1.13.27 shows `dagster/column_schema` of materializations and definitions, and hides an observation's: hence a
name of our own (seen in its page, 2026-11-23).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import dagster as dg

from rivet_assets.dagster.pages.lineage import upstream_keys
from rivet_assets.run.words import human_bytes

if TYPE_CHECKING:
    from rivet_assets.blocks.export import Export
    from rivet_resources.contracts.relation import Relation
    from rivet_resources.contracts.source import Source

COLUMNS = "rivet/columns"


def table_observation(
    export: Export, relation: Relation, *, source_name: str, source: Source
) -> dg.AssetObservation | None:
    """Return what a run tells of the one table that an export reads; None for a query, which may read several."""
    # A catalog is read by runs only, never while definitions load, so a table that no run has read shows no columns.
    if export.table is None or not relation.is_table:
        return None
    (key,) = upstream_keys(export, source_name=source_name, source=source)
    return dg.AssetObservation(key, metadata=table_facts(relation))


def table_facts(relation: Relation) -> Mapping[str, Any]:
    """Return columns in the source's own types, with its comments; estimates are those of its statistics."""
    columns = [
        dg.TableColumn(
            column.name,
            type=column.native,
            description=column.comment or None,
            constraints=dg.TableColumnConstraints(nullable=column.nullable),
        )
        for column in relation.columns
    ]
    facts: dict[str, Any] = {COLUMNS: dg.TableSchema(columns)}
    if relation.rows_estimate is not None:
        facts["rivet/rows_estimate"] = relation.rows_estimate
    if relation.bytes_estimate is not None:
        facts["rivet/size_estimate"] = human_bytes(relation.bytes_estimate)
    if relation.key:
        facts["rivet/key"] = ", ".join(relation.key)
    return facts
