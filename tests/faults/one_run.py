"""One run of an export of the numbers 1…n, in a process of its own that may die at a chosen effect.

Belongs here: what such a process does, with real destinations and the real state store. Not here: what
must hold afterwards (`test_commit_deaths.py`).
"""

from __future__ import annotations

import base64
import hashlib
import os
import secrets
import tempfile
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from rivet_resources.commit.manifest import Manifest, current_manifests, window_manifest
from rivet_resources.commit.publish import publish, sweep_if_due
from rivet_resources.contracts.addressing import read_start
from rivet_resources.contracts.destination import Destination, Root
from rivet_resources.contracts.extract import CursorMove, Extract, Staged, Window
from rivet_resources.contracts.parts import Measures, Part
from rivet_resources.destinations.azure import Azure
from rivet_resources.destinations.gcs import Gcs
from rivet_resources.destinations.local import Local
from rivet_resources.destinations.s3 import S3
from rivet_resources.state.runs import RunRecord
from rivet_resources.state.store import open_state
from tests.fakes import extract_of

EXPORT = "orders"
DEAD = 86  # exit code of a chosen death
DAY = Window("2026-01-31", datetime(2026, 1, 31, tzinfo=UTC), datetime(2026, 2, 1, tzinfo=UTC), "dt=2026-01-31")
EFFECTS = ("stage", "publish", "put", "swap", "delete", "discard", "sweep")


@dataclass(frozen=True)
class Run:
    """What one run is told. `kind` is all, time or after; `die_at` a step's name, or the number of an effect."""

    destination: dict[str, Any]
    state_url: str
    kind: str
    rows: int
    die_at: str | int = ""


def destination_of(settings: dict[str, Any]) -> Destination:
    """Build the destination that a YAML block describes."""
    return {"local": Local, "s3": S3, "gcs": Gcs, "azure": Azure}[settings["type"]](**settings)


class Mortal:
    """A root whose process dies in place of its n-th effect."""

    def __init__(self, root: Root, die_at: int) -> None:
        self._root, self._left = root, die_at

    def __getattr__(self, name: str) -> Any:
        inner = getattr(self._root, name)
        if name not in EFFECTS:
            return inner

        def effect(*args: Any, **named: Any) -> Any:
            if self._left == 0:
                os._exit(DEAD)
            self._left -= 1
            return inner(*args, **named)

        return effect


def die(name: str, *, at: str | int) -> None:
    """Die where a step would begin."""
    if name == at:
        os._exit(DEAD)


def execute(run: Run) -> Manifest | None:
    """Sweep, stage the rows in two parts, publish; the order of a real run."""
    destination, state = destination_of(run.destination), open_state(run.state_url)
    root = destination.root(EXPORT)
    now = datetime.now(UTC)
    run_id = f"{EXPORT}_{now:%Y%m%dT%H%M%S}.000_{secrets.token_hex(3)}"
    cursor = state.cursor(EXPORT)
    extract = plan(run, destination, run_id, low=cursor.value if cursor else None)
    state.begin_run(RunRecord(run_id, EXPORT, extract.window.key, now, mode=extract.mode))
    sweep_if_due(root, export=EXPORT, state=state)
    staged = stage(extract, root, first=int(extract.cursor.low or 0) + 1 if extract.cursor else 1, last=run.rows)
    mortal = Mortal(root, run.die_at) if isinstance(run.die_at, int) else root
    manifest = publish(staged, root=mortal, state=state, step=lambda name: die(name, at=run.die_at))
    die("end", at=run.die_at)
    state.finish_run(run_id, "success")
    return manifest


def plan(run: Run, destination: Destination, run_id: str, *, low: str | None) -> Extract:
    """Describe the window of a run; the numbers themselves are the cursor."""
    table = pa.table({"id": pa.array([], pa.int64())})
    extract = replace(extract_of(table, Path("/unused")), destination=destination, run_id=run_id)
    if run.kind == "all":
        return extract
    if run.kind == "time":
        return replace(extract, mode="time_window", window=DAY)
    move = CursorMove(low=low, high=str(run.rows), column="id")
    return replace(extract, mode="incremental", window=Window(f"after={low or 'start'}"), cursor=move)


def stage(extract: Extract, root: Root, *, first: int, last: int, parts: int = 2) -> Staged:
    """Write the numbers from `first` to `last` into parts and stage them."""
    found = window_manifest(root, extract.window)
    numbers = list(range(first, last + 1))
    pieces = [numbers[piece::parts] for piece in range(parts)]
    with tempfile.TemporaryDirectory() as scratch:
        staged = tuple(stage_part(extract, root, Path(scratch), index, piece) for index, piece in enumerate(pieces))
    schema = pa.schema([pa.field("id", pa.int64())])
    return Staged(
        extract, staged, Measures(rows=len(numbers)), schema.serialize().to_pybytes(),
        previous=found[1] if found else None, started_at=datetime.now(UTC),
    )  # fmt: skip


def stage_part(extract: Extract, root: Root, scratch: Path, index: int, numbers: list[int]) -> Part:
    """Write one Parquet file and stage it under the name a task would give it."""
    file = scratch / f"chunk{index}-0.parquet"
    pq.write_table(pa.table({"id": pa.array(numbers, pa.int64())}), file)
    content = file.read_bytes()
    began = read_start(extract.run_id) or DAY.start
    name = f"{EXPORT}_{began:%Y%m%d_%H%M%S}_000_{extract.run_id[-6:]}_chunk{index}.parquet"
    path = f"{extract.window.folder}/{name}".lstrip("/")
    md5 = base64.b64encode(hashlib.md5(content).digest()).decode()
    where = root.stage(file, run_id=extract.run_id, path=path, md5=md5)
    return Part(path, len(numbers), len(content), f"xxh3:{xxhash.xxh3_64_hexdigest(content)}", md5, where, index)


def committed(root: Root) -> list[int]:
    """Read the numbers that a reader of manifests sees, ascending, repeats included."""
    tables = [
        pq.read_table(root.open(part.path)) for manifest in current_manifests(root).values() for part in manifest.parts
    ]
    return sorted(pa.concat_tables(tables)["id"].to_pylist()) if tables else []
