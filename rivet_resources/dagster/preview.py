"""The first rows of a window for an asset's page, where an export asks for them with `preview:`.

Belongs here: reading them from a published part, so that they are masked exactly as the file is. They go to Dagster's
event log and nowhere else: no message, log line or error holds one.
"""

from __future__ import annotations

from typing import Any

import dagster as dg

from rivet_resources.commit.manifest import Manifest, schema_of
from rivet_resources.contracts.destination import Root

PREVIEW = "rivet/preview"
LONGEST_CELL = 200  # characters


def preview(root: Root, manifest: Manifest | None, *, rows: int) -> dict[str, Any]:
    """Return the metadata of some rows of a published window; {} where none are asked for, or none can be read."""
    # A part that cannot be read again is no trouble of a run that has published it.
    if manifest is None or rows == 0:
        return {}
    try:
        names, cells = _first(root, manifest, rows)
    except Exception:
        # Whatever it says may hold a cell.
        return {}
    records = [dg.TableRecord(dict(zip(names, row, strict=True))) for row in cells]
    schema = dg.TableSchema([dg.TableColumn(name) for name in names])
    return {PREVIEW: dg.MetadataValue.table(records=records, schema=schema)} if records else {}


def _first(root: Root, manifest: Manifest, rows: int) -> tuple[list[str], list[list[str | None]]]:
    schema, cells = schema_of(manifest), list[list[str | None]]()
    for part in manifest.parts:
        with root.open(part.path) as file:
            for table in manifest.file_format().tables(file, schema):
                columns = table.slice(0, rows - len(cells)).to_pydict()
                found = [columns.get(name, []) for name in schema.names]
                cells += [[_text(cell) for cell in row] for row in zip(*found, strict=True)]
                if len(cells) >= rows:
                    return schema.names, cells
    return schema.names, cells


def _text(cell: Any) -> str | None:
    if cell is None:
        return None
    text = cell.hex() if isinstance(cell, bytes) else str(cell)
    return text if len(text) <= LONGEST_CELL else f"{text[:LONGEST_CELL]}…"
