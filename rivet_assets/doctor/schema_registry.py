"""What `rivet doctor` asks a schema registry: whether it answers, as whom we ask, and what rule each subject has.

Belongs here: one registry, nothing is registered. Not here: the check before a window (`run/schema_agreement.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rivet_assets.doctor.row import Row, fault_row
from rivet_assets.run.schema_agreement import registry_of
from rivet_resources.errors import RivetError

if TYPE_CHECKING:
    from rivet_assets.blocks.export import Export
    from rivet_assets.config.load import RivetConfig
    from rivet_resources.state.store import State


def schema_registry_rows(config: RivetConfig, exports: Sequence[Export], state: State) -> list[Row]:
    """Ask for the subject of each export that registers its schema; no row where none does."""
    about, rows = "schema registry", list[Row]()
    subjects = [config.subject_of(export) for export in exports if export.schema_registry is not None]
    if config.schema_registry is None or not subjects:
        return []
    try:
        registry = registry_of(config.schema_registry, state)
        for subject in subjects:
            versions, rule = registry.versions(subject), registry.compatibility(subject)
            told = f"{len(versions)} versions" if versions else "new"
            rows.append(Row("subject", "ok", f"{subject} {registry.name}: {told}, {rule}", about=about))
    except RivetError as error:
        rows.append(fault_row(about, "answer", error))
    return rows
