"""An export at some destination, made without a database, whose published bytes a test may damage.

Belongs here: committing an Arrow table as a run does, and editing what is published. Not here: what is seen of it.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa

from rivet_resources.commit.manifest import Manifest, manifest_path, success_marker
from rivet_resources.commit.publish import publish
from rivet_resources.contracts.destination import Root
from rivet_resources.contracts.extract import Window
from rivet_resources.prove.flaws import Depth, Validated
from rivet_resources.prove.validate import validate
from rivet_resources.read.stage import Exporter
from rivet_resources.spark.runtime import Spark, SparkRuntime
from rivet_resources.state.store import State
from tests.fakes import extract_of

ALL = Window("all")
JANUARY = Window("2026-01-31", datetime(2026, 1, 31, tzinfo=UTC), datetime(2026, 2, 1, tzinfo=UTC), "dt=2026-01-31")
ORDERS = pa.table({
    "id": pa.array(range(400), pa.int64()),
    "note": [None if n % 5 == 0 else "" if n % 5 == 1 else f"note {n}" for n in range(400)],
    "amount": pa.array([Decimal(n) / 4 for n in range(400)], pa.decimal128(12, 2)),
    "at": pa.array([datetime(2026, 1, 31, n % 24, tzinfo=UTC) for n in range(400)], pa.timestamp("us", "UTC")),
    "paid": [n % 3 == 0 for n in range(400)],
    "weight": [n / 7 for n in range(400)],
})  # fmt: skip


@dataclass
class Published:
    """An export at some destination; what is published is damaged by its bytes."""

    place: Any
    state: State
    export: str = "orders"
    last: Manifest | None = None

    @property
    def root(self) -> Root:
        """Address the export's folder."""
        root: Root = self.place.root(self.export)
        return root

    def commit(self, table: pa.Table = ORDERS, *, window: Window = ALL, **changes: Any) -> Manifest:
        """Export a table in four chunks, as a run does."""
        run_id = f"orders_{datetime.now(UTC):%Y%m%dT%H%M%S}.000_{secrets.token_hex(3)}"
        extract = extract_of(
            table, Path("/unused"), destination=self.place, window=window, run_id=run_id, export=self.export,
            **{"pieces": 4, **changes},
        )  # fmt: skip
        staged = Exporter(SparkRuntime(Spark(engine="inline")), self.state).stage(extract)
        manifest = publish(staged, root=self.root, state=self.state)
        assert manifest is not None
        self.last = manifest
        return manifest

    def validate(self, depth: Depth = "full", **how: Any) -> Validated:
        """Look at the folder."""
        return validate(self.root, export=self.export, depth=depth, state=self.state, **how)

    def codes(self, depth: Depth = "full") -> list[str]:
        """Name what is found."""
        return [flaw.short for flaw in self.validate(depth).all_flaws]

    def bytes_of(self, path: str) -> bytes:
        """Read any object."""
        found = self.root.read(path)
        assert found is not None
        return found[0]

    def change(self, path: str, edit: Callable[[bytes], bytes]) -> None:
        """Put other bytes in an object's place."""
        self.root.put(path, edit(self.bytes_of(path)))

    def edit_manifest(self, edit: Callable[[dict[str, Any]], Any], window: Window = ALL) -> None:
        """Edit the JSON of a window's manifest, and nothing that follows from it."""
        self.change(manifest_path(window), lambda content: _edited(content, edit))

    def edit_everywhere(self, edit: Callable[[dict[str, Any]], Any]) -> None:
        """Edit a manifest as somebody does who knows the markers: its copy and `_SUCCESS` follow."""
        self.edit_manifest(edit)
        content = self.bytes_of(manifest_path(ALL))  # of the export's own folder: both are equal there
        self.root.put("manifest.json", content)
        self.root.put("_SUCCESS", success_marker(content))

    @property
    def parts(self) -> list[str]:
        """Name the parts of the last commit."""
        assert self.last is not None
        return [part.path for part in self.last.parts]


def _edited(content: bytes, edit: Callable[[dict[str, Any]], Any]) -> bytes:
    document = json.loads(content)
    edit(document)
    return json.dumps(document, indent=2).encode() + b"\n"


def flipped(content: bytes) -> bytes:
    """Flip one bit in the middle."""
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


@contextmanager
def closing(state: State) -> Iterator[State]:
    """Close a store behind the block."""
    try:
        yield state
    finally:
        state.close()
