"""Which columns were masked because of a tag, so that a comment that is gone unmasks nothing in silence.

Belongs here: the table `export_masks`. Not here: what a change means (`rivet_assets/run/masked_columns.py`). A reset
does not forget them: whoever begins anew has not said that plain values may be published.
"""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import Column, Connection, Table, Text, select

from rivet_resources.state.database import METADATA, Instant, insert, now

export_masks = Table(
    "export_masks",
    METADATA,
    Column("export_name", Text, primary_key=True),
    Column("column_name", Text, primary_key=True),  # '': that the export was looked at
    Column("tag", Text, nullable=False),
    Column("masked_at", Instant, nullable=False),
)


def read(connection: Connection, export: str) -> dict[str, str] | None:
    """Return {column: tag} of what was ever masked; None where nobody looked yet."""
    query = select(export_masks.c.column_name, export_masks.c.tag).where(export_masks.c.export_name == export)
    found = {row.column_name: row.tag for row in connection.execute(query)}
    return {name: tag for name, tag in found.items() if name} if found else None


def save(connection: Connection, export: str, masked: Mapping[str, str]) -> None:
    """Add columns with their tags to those that are known."""
    for name, tag in {"": "", **masked}.items():
        row = insert(connection, export_masks).values(
            export_name=export, column_name=name, tag=tag, masked_at=now(connection)
        )
        connection.execute(
            row.on_conflict_do_update(index_elements=["export_name", "column_name"], set_={"tag": row.excluded.tag})
        )
