"""What a run does otherwise where its destination is a topic: nothing that was produced can be replaced.

Belongs here: windows that a dead run produced, and which columns of a row are its message. Not here: what is refused
(`rivet_resources/commit/rerun.py`), producing (`rivet_resources/commit/append.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pyarrow as pa

from rivet_resources.commit.manifest import window_manifest
from rivet_resources.contracts.extract import Extract, Staged
from rivet_resources.contracts.messages import Topic, is_topic, value_schema
from rivet_resources.contracts.parts import Measures
from rivet_resources.shape.shape import schema_of

if TYPE_CHECKING:
    from rivet_resources.contracts.destination import Root
    from rivet_resources.state.store import State


def registered_columns(extract: Extract) -> pa.Schema:
    """Return the columns whose schema is registered: of a message, those of its value."""
    schema = schema_of(extract)
    return value_schema(schema) if is_topic(extract.destination) else schema


def finished_in_topic(extract: Extract, *, root: Root, state: State, tell: Callable[[str], None]) -> Staged | None:
    """Finish what a run began that died between its commit and the state store; None where there is no such run.

    Returns:
        A window with nothing to publish.
    """
    # Its window is in the topic, and reading it anew would only lead to a refusal, or to a second copy of its rows.
    found = window_manifest(root, extract.window) if isinstance(root, Topic) else None
    if found is None or found[0].row_count == 0:
        return None
    manifest, version = found
    if state.has_files_of(extract.export, manifest.run_id, manifest.window):
        return None
    state.record_commit(manifest)
    tell(
        f"{extract.export} {manifest.window}: run {manifest.run_id} produced it and died before it could say so; "
        f"its {manifest.row_count} rows are in {root.uri}, and nothing is produced again."
    )
    return Staged(
        extract=replace(extract, skip_empty=True),
        parts=(),
        measures=Measures(),
        schema_ipc=schema_of(extract).serialize().to_pybytes(),
        previous=version,
        started_at=datetime.now(UTC),
    )
