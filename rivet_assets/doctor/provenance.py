"""What `rivet doctor` says of whose state and files an export would meet.

Belongs here: rows of what a run would refuse. Not here: foreseeing it (`run/admit/provenance.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from rivet_assets.doctor.row import Row, finding_rows
from rivet_assets.run.admit.provenance import NAME, ForeseenRead, provenance_findings

if TYPE_CHECKING:
    from rivet_assets.blocks.export import Export
    from rivet_resources.state.store import State

OURS = "state and destination are of this database, or nothing is there yet"
UNKNOWN = "Do what the rows of the destination and of the state store say, then ask again."


def provenance_rows(
    exports: Sequence[Export], read: Mapping[str, Mapping[str, ForeseenRead]], state: State | None
) -> list[Row]:
    """Judge what each export would meet; no row of one whose source did not say who it is."""
    rows: list[Row] = []
    for name, findings in provenance_findings(exports, read, state).items():
        fixed = [replace(each, fix=UNKNOWN if each.status == "warn" else ways_out(name)) for each in findings]
        rows += finding_rows(f"export {name}", fixed, category=NAME)
        if not findings:
            rows.append(Row(NAME, "ok", OURS, about=f"export {name}"))
    order = {f"export {export.name}": place for place, export in enumerate(exports)}
    return sorted(rows, key=lambda row: order[row.about])


def ways_out(export: str) -> str:
    """Name what an administrator may do about state or files of another database."""
    return (
        f"Point `source` or `destination` back; or go on with `rivet run -e {export} --adopt`; or begin anew with "
        f"`rivet state reset -e {export}`, or at another `destination` path."
    )
