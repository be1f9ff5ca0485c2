"""What `rivet doctor` asks a destination: who signs in, and whether commits can be made there.

Belongs here: one destination. Not here: the proof itself (`destinations/probing.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rivet_assets.doctor.row import Row, fault_row, finding_rows
from rivet_resources.destinations.probe import probe
from rivet_resources.errors import RivetError

if TYPE_CHECKING:
    from rivet_assets.blocks.export import Export
    from rivet_resources.contracts.destination import Destination


def destination_rows(destination: Destination, export: Export) -> list[Row]:
    """Return who signs in, then prove that a window could be published; nothing is left behind."""
    root = destination.root(export.name)
    about = f"destination {root.uri}"
    if destination.extra is not None and destination.extra.missing():
        return [fault_row(about, "client", destination.extra.error())]
    rows = list(finding_rows(about, destination.credentials(), category="auth"))
    if any(row.status == "fail" for row in rows):  # the store would only repeat it, after its retries
        return rows
    try:
        for finding in probe(root):
            rows += finding_rows(about, [finding], category="destination")
    except RivetError as error:
        rows.append(fault_row(about, "write", error))
    return rows
