"""Small real parts for tests without servers: a source over an Arrow table, a destination over a folder.

Belongs here: objects that keep the protocols in a few lines. Not here: fixtures (`conftest.py`) and servers.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa

from rivet_resources.contracts.addressing import parent_of
from rivet_resources.contracts.evidence import Pressure
from rivet_resources.contracts.extract import Extract, Window
from rivet_resources.contracts.parts import Part
from rivet_resources.contracts.relation import Chunk, Relation
from rivet_resources.contracts.settings import Pace, Tuning, pace
from rivet_resources.contracts.source import Page, Wait
from rivet_resources.contracts.types import Column
from rivet_resources.errors import RivetError, WindowTaken
from rivet_resources.write.formats.parquet import Parquet

FAST = pace(None, Tuning(profile="fast", retry_backoff_ms=0))
RUN_ID = "orders_20260131T120000.123_abc123"


def columns_of(table: pa.Table) -> tuple[Column, ...]:
    """Describe an Arrow table as a source would."""
    return tuple(
        Column(name=f.name, native=str(f.type), arrow=f.type, select=f'"{f.name}"', nullable=f.nullable)
        for f in table.schema
    )


@dataclass
class TableSource:
    """A source whose rows are an Arrow table; chunk `blocks` are row ranges, pages have `page_rows` rows.

    `faults` are raised, one per reading, after the first page of that reading; `readings` counts them.
    """

    table: pa.Table
    page_rows: int = 10_000
    special: dict[str, dict[str, int]] = field(default_factory=dict)
    faults: list[RivetError] = field(default_factory=list)
    readings: int = 0
    type: str = "table"
    tuning: Tuning | None = None

    def pages(
        self,
        chunk: Chunk,
        columns: tuple[Column, ...],
        *,
        snapshot: str | None,
        application: str,
        pace: Pace,
        wait: Wait,
    ) -> Iterator[Page]:
        """Yield the chunk's rows, typed as the columns say."""
        self.readings += 1
        first, end = chunk.blocks if chunk.blocks != (0, 0) else (0, self.table.num_rows)
        rows = self.table.slice(first, end - first).select([column.name for column in columns])
        for start in range(0, max(rows.num_rows, 1), self.page_rows):
            page = rows.slice(start, self.page_rows)
            yield Page(page, self.special if start == 0 else {}, statement_ms=1.0)
            if self.faults:
                raise self.faults.pop(0)
            wait(page.num_rows)

    def quote(self, name: str) -> str:
        """Quote as SQL does."""
        return '"' + name.replace('"', '""') + '"'

    def literal(self, text: str, column: Column) -> str:
        """Quote a text."""
        return "'" + text.replace("'", "''") + "'"

    def no_bound(self, column: Column, *, is_paged: bool) -> str:
        """Take every type as a bound."""
        return ""

    def lineage_name(self, table: str) -> tuple[str, str]:
        """Split a name; the schema is `main`."""
        schema, _, name = table.replace('"', "").rpartition(".")
        return schema or "main", name


@dataclass(frozen=True)
class FolderDestination:
    """A destination below a folder, without fsyncs, locks or templates."""

    path: Path
    type: str = "folder"
    extra: None = None

    def root(self, export: str) -> FolderRoot:
        """Address one export."""
        return FolderRoot(self.path / export)


@dataclass(frozen=True)
class FolderRoot:
    """One export's folder; versions are MD5 sums."""

    folder: Path
    keeps_manifests: bool = True

    @property
    def uri(self) -> str:
        """Name the folder."""
        return str(self.folder)

    def stage(self, file: Path, *, run_id: str, path: str, md5: str) -> dict[str, Any]:
        """Move a file into `_staged/<run id>/`."""
        target = self.folder / "_staged" / run_id / file.name
        if target.exists():
            raise AssertionError(f"two attempts share the staged name {file.name}")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(file, target)
        return {"path": f"_staged/{run_id}/{file.name}"}

    def staged_exists(self, part: Part) -> bool:
        """Look for the staged file."""
        path = self.folder / part.staged["path"]
        return path.exists() and bool(path.stat().st_size == part.size_bytes)

    def publish(self, part: Part) -> None:
        """Rename; a missing staged file was published before."""
        target = self.folder / part.path
        target.parent.mkdir(parents=True, exist_ok=True)
        if (self.folder / part.staged["path"]).exists():
            (self.folder / part.staged["path"]).rename(target)

    def discard(self, parts: Iterable[Part]) -> None:
        """Unlink staged files."""
        self.delete(part.staged["path"] for part in parts)

    def read(self, path: str) -> tuple[bytes, str] | None:
        """Read with version."""
        if not (self.folder / path).is_file():
            return None
        content = (self.folder / path).read_bytes()
        return content, hashlib.md5(content).hexdigest()

    def put(self, path: str, content: bytes) -> None:
        """Write, whatever stood there."""
        (self.folder / path).parent.mkdir(parents=True, exist_ok=True)
        (self.folder / path).write_bytes(content)

    def swap(self, path: str, content: bytes, *, expected: str | None) -> str:
        """Write if the version is still `expected`."""
        found = self.read(path)
        if (found[1] if found else None) != expected:
            raise WindowTaken(f"{path} was written by another run.")
        self.put(path, content)
        return hashlib.md5(content).hexdigest()

    def list(self, prefix: str = "") -> dict[str, int]:
        """List visible files."""
        files = {p.relative_to(self.folder).as_posix(): p.stat().st_size for p in self.folder.rglob("*") if p.is_file()}
        return {
            path: size for path, size in files.items() if path.startswith(prefix) and not path.startswith("_staged/")
        }

    def list_after(self, path: str, *, most: int) -> dict[str, str | None]:
        """List what follows a path in its folder."""
        found = (each for each in self.list(parent_of(path)) if each > path)
        return dict.fromkeys(sorted(found)[:most])

    def staged(self) -> set[str]:
        """List invisible files: for tests only."""
        found = self.folder / "_staged"
        return {p.relative_to(self.folder).as_posix() for p in found.rglob("*") if p.is_file()}

    def delete(self, paths: Iterable[str]) -> None:
        """Unlink."""
        for path in paths:
            (self.folder / path).unlink(missing_ok=True)

    def local_path(self, path: str) -> Path:
        """Name the file."""
        return self.folder / path

    def open(self, path: str) -> BinaryIO:
        """Open for reading."""
        return (self.folder / path).open("rb")

    def staged_runs(self) -> set[str]:
        """Name the runs that have staged."""
        return {run.name for run in (self.folder / "_staged").glob("*")}

    def sweep(self, *, keep: Iterable[str], everywhere: bool = True) -> int:
        """Remove staged folders of other runs."""
        listed = list((self.folder / "_staged").glob("*"))
        kept = set(keep)
        gone = [run for run in listed if run.name not in kept]
        for run in gone:
            shutil.rmtree(run)
        return len(gone)

    def check(self) -> None:
        """Make the folder."""
        self.folder.mkdir(parents=True, exist_ok=True)


def extract_of(table: pa.Table, folder: Path, *, pieces: int = 1, **changes: Any) -> Extract:
    """Plan a full export of an Arrow table in so many chunks; `changes` replace fields of the plan."""
    bounds = [table.num_rows * piece // pieces for piece in range(pieces + 1)]
    chunks = tuple(Chunk(i, "blocks", "main.orders", blocks=(bounds[i], bounds[i + 1])) for i in range(pieces))
    plan: dict[str, Any] = {
        "export": "orders", "mode": "full", "window": Window("all"), "run_id": RUN_ID,
        "relation": Relation("main.orders", '"main"."orders"', columns_of(table), is_table=True),
        "chunks": chunks, "source": TableSource(table), "destination": FolderDestination(folder),
        "format": Parquet(), "pace": FAST, "consistency": "single",
    }  # fmt: skip
    return Extract(**(plan | changes))


NOON = datetime(2026, 1, 31, 12, 0, tzinfo=UTC)


@dataclass
class ScriptedGauge:
    """Looks as written down; the last one lasts. An error is raised."""

    looks: list[Pressure | Exception]
    counted: list[float] = field(default_factory=lambda: [10.0, 17.0])
    looked: int = 0

    def look(self) -> Pressure:
        """Return the next look."""
        now = self.looks[min(self.looked, len(self.looks) - 1)]
        self.looked += 1
        if isinstance(now, Exception):
            raise now
        return now

    def counters(self) -> Mapping[str, float]:
        """Return the next number of deadlocks."""
        return {"deadlocks": self.counted.pop(0) if len(self.counted) > 1 else self.counted[0]}


def column(arrow: pa.DataType, cells: list[Any]) -> pa.Array:
    """Build a column, from storage numbers where Python has no such value."""
    if pa.types.is_temporal(arrow):
        return pa.array(cells, pa.int64() if arrow.bit_width == 64 else pa.int32()).view(arrow)
    if isinstance(arrow, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(arrow, pa.array(cells, arrow.storage_type))
    if pa.types.is_struct(arrow):
        children = [column(child.type, [None if c is None else c[child.name] for c in cells]) for child in arrow]
        absent = pa.array([cell is None for cell in cells], pa.bool_())
        if not children:
            return pa.array(cells, arrow)
        return pa.StructArray.from_arrays(children, fields=list(arrow), mask=absent)
    return pa.array(cells, arrow)
