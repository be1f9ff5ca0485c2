"""An engine, a destination, a format and a step from outside: registered, and nothing else of Rivet is touched.

They stand here whole, as somebody's plugin would: a list of numbers, a folder, lines of JSON arrays, and a sum.
"""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, Literal, Self

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from click.testing import CliRunner

from rivet_assets.cli.main import commands
from rivet_assets.config.json_schema import config_json_schema
from rivet_assets.config.load import load_text
from rivet_resources import registry
from rivet_resources.commit.manifest import current_manifests
from rivet_resources.contracts.engine_facts import EngineFacts
from rivet_resources.contracts.evidence import Pressure
from rivet_resources.contracts.format import FormatKeys
from rivet_resources.contracts.mode_facts import ModeFacts
from rivet_resources.contracts.provenance import DatabaseIdentity
from rivet_resources.contracts.relation import Chunk, Relation
from rivet_resources.contracts.settings import Pace, Settings, Tuning
from rivet_resources.contracts.source import Page, TypeRules, Wait
from rivet_resources.contracts.transform import StepPlan
from rivet_resources.contracts.types import Column
from tests.fakes import FolderRoot

COLUMNS = tuple(Column(name, "number", pa.int64(), f'"{name}"', nullable=False) for name in ("id", "square"))


# --- an engine -----------------------------------------------------------------------------------


class Numbers(Settings):
    """The numbers from 1 on, and their squares."""

    type: Literal["numbers"] = "numbers"
    facts: ClassVar[EngineFacts] = EngineFacts(reads_blocks=True)
    last: int
    tuning: Tuning | None = None

    @contextmanager
    def session(self, *, application: str, pace: Pace, snapshot: bool = True) -> Iterator[NumbersSession]:
        """Plan."""
        yield NumbersSession(self)

    def pages(
        self,
        chunk: Chunk,
        columns: tuple[Column, ...],
        *,
        snapshot: str | None,
        application: str,
        pace: Pace,
        wait: Wait,
    ) -> Generator[Page, None, None]:
        """Count."""
        low, high = chunk.blocks
        for first in range(low, high, 100):
            numbers = pa.array(range(first, min(first + 100, high)), pa.int64())
            made = {"id": numbers, "square": pc.multiply(numbers, numbers)}
            yield Page(pa.table({column.name: made[column.name] for column in columns}), {}, statement_ms=0.0)
            wait(len(numbers))

    @contextmanager
    def gauge(self, *, application: str, pace: Pace) -> Iterator[NumbersGauge]:
        """Look at nothing."""
        yield NumbersGauge()

    def refuses(self, mode: ModeFacts, relation: Literal["table", "query"]) -> str:
        """Return what cannot be."""
        return (
            "" if (mode.name, relation) == ("full", "table") else "numbers are counted once, from the first to the last"
        )

    def quote(self, name: str) -> str:
        """Quote."""
        return f'"{name}"'

    def literal(self, text: str, column: Column) -> str:
        """Write a number."""
        return text

    def no_bound(self, column: Column, *, is_paged: bool) -> str:
        """Take all."""
        return ""

    def lineage_name(self, table: str) -> tuple[str, str]:
        """Split."""
        return "all", table


class NumbersSession:
    """Plans the counting."""

    consistency = "snapshot"
    snapshot = None
    note = ""

    def __init__(self, source: Numbers) -> None:
        self.source = source

    def identity(self) -> DatabaseIdentity:
        """Numbers are the same everywhere."""
        return DatabaseIdentity((), "")

    def describe(
        self, *, table: str | None, query: str | None, params: Mapping[str, str], rules: TypeRules
    ) -> Relation:
        """Name the columns."""
        return Relation(str(table), str(table), COLUMNS, is_table=True, key=("id",), rows_estimate=self.source.last)

    def chunks(
        self, relation: Relation, *, where: str = "", order_by: tuple[str, ...] = (), pieces: int = 1
    ) -> tuple[Chunk, ...]:
        """Cut evenly."""
        ends = [1 + self.source.last * piece // pieces for piece in range(pieces + 1)]
        return tuple(Chunk(n, "blocks", relation.sql, blocks=(ends[n], ends[n + 1])) for n in range(pieces))

    def now(self) -> datetime:
        """Return the time."""
        return datetime.now(UTC)

    def close(self) -> None:
        """End nothing."""


class NumbersGauge:
    """Nobody suffers."""

    def look(self) -> Pressure:
        """Return a pressure that says so."""
        return Pressure(latency_ms=0.0)

    def counters(self) -> Mapping[str, float]:
        """Count nothing."""
        return {}


# --- a destination, a format, a step -------------------------------------------------------------


class Shelf(Settings):
    """A folder, without fsyncs and locks."""

    type: Literal["shelf"] = "shelf"
    is_stream: ClassVar[bool] = False
    extra: ClassVar[None] = None
    schemes: ClassVar[tuple[str, ...]] = ()
    board: Path

    def on(self, day: date) -> Self:
        """No day."""
        return self

    def root(self, export: str) -> FolderRoot:
        """One export's board."""
        return FolderRoot(self.board / export)


class Arrays(Settings):
    """One JSON array per line; the first holds the names."""

    type: Literal["arrays"] = "arrays"
    has_codecs: ClassVar[bool] = False
    keeps_types: ClassVar[bool] = False
    holds_lists: ClassVar[bool] = True
    tells_null: ClassVar[bool] = True
    is_one_line_a_row: ClassVar[bool] = False
    is_parquet: ClassVar[bool] = False
    extension: ClassVar[str] = "jsonl"
    codec: ClassVar[str] = "none"

    @classmethod
    def from_keys(cls, keys: FormatKeys) -> Self:
        """No key matters."""
        return cls()

    def check_schema(self, schema: pa.Schema, *, export: str) -> tuple[str, ...]:
        """Take all."""
        return ()

    def writer(
        self, path: Path, schema: pa.Schema, *, key: tuple[str, ...] = (), limit_bytes: int | None = None
    ) -> ArraysWriter:
        """Open a file."""
        return ArraysWriter(path, schema)

    def rows(self, path: Path, schema: pa.Schema) -> int:
        """Count lines."""
        return len(path.read_text().splitlines()) - 1

    def tables(self, file: BinaryIO, schema: pa.Schema) -> Iterator[pa.Table]:
        """Read all."""
        names, *rows = map(json.loads, file.read().splitlines())
        yield pa.table({name: pa.array([row[n] for row in rows], pa.int64()) for n, name in enumerate(names)})

    def exact_columns(self, schema: pa.Schema) -> frozenset[str]:
        """All of them."""
        return frozenset(schema.names)

    def batches(self, path: Path, schema: pa.Schema) -> Iterator[pa.Table]:
        """Read all."""
        with path.open("rb") as file:
            yield from self.tables(file, schema)


class ArraysWriter:
    """Writes one file of arrays."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self.bytes_written = 0
        self._file = path.open("wb")
        self._put(schema.names)

    def write(self, table: pa.Table) -> None:
        """Append rows."""
        for row in table.to_pylist():
            self._put(list(row.values()))

    def close(self) -> None:
        """Finish the file."""
        os.fsync(self._file.fileno())
        self._file.close()

    def _put(self, row: list[Any]) -> None:
        self.bytes_written += self._file.write(json.dumps(row).encode() + b"\n")


class Sum(Settings):
    """A new column: the sum of others."""

    type: Literal["sum"]
    of: tuple[str, ...]
    into: str

    def plan(self, schema: pa.Schema) -> StepPlan:
        """Append it."""
        origins = {name: frozenset({name}) for name in schema.names} | {self.into: frozenset(self.of)}
        return StepPlan(schema.append(pa.field(self.into, pa.int64())), origins, frozenset())

    def apply(self, table: pa.Table) -> pa.Table:
        """Add up."""
        first, *rest = (table.column(name) for name in self.of)
        for column in rest:
            first = pc.add(first, column)
        return table.append_column(pa.field(self.into, pa.int64()), first)


# --- in use --------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _registered() -> Iterator[None]:
    added = (
        (registry.ENGINES, Numbers), (registry.DESTINATIONS, Shelf), (registry.FORMATS, Arrays), (registry.STEPS, Sum),
    )  # fmt: skip
    words = [(known, str(made.model_fields["type"].annotation.__args__[0]), made) for known, made in added]
    for known, word, made in words:
        known.register(word, made)
    yield
    for known, word, _ in words:
        known.remove(word)


CONFIG = """
source: {type: numbers, last: 250}
spark: inline
exports:
  - name: squares
    table: numbers
    format: arrays
    parallel: 2
    transforms: [{type: sum, of: [id, square], into: both}]
    destination: {type: shelf, board: lake}
"""


def test_parts_of_somebody_elses_make_up_an_export(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It runs, commits, validates and runs again, by the command line."""
    monkeypatch.chdir(tmp_path)
    Path("rivet.yaml").write_text(CONFIG)

    told = [CliRunner().invoke(commands, [word], standalone_mode=False) for word in ("run", "validate", "run")]

    root = FolderRoot(Path("lake/squares"))
    (manifest,) = current_manifests(root).values()
    names, *rows = (
        json.loads(line) for part in manifest.parts for line in (root.folder / part.path).read_text().splitlines()
        if part is manifest.parts[0] or line[1] != '"'
    )  # fmt: skip
    assert [(0, None)] * 3 == [(each.return_value or 0, each.exception) for each in told], told[0].output
    assert ["id", "square", "both"] == names
    assert [[n, n * n, n + n * n] for n in range(1, 251)] == sorted(rows)
    assert ("numbers", "arrays", 250) == (manifest.source.engine, manifest.format, manifest.row_count)


def test_their_keys_are_in_the_schema_and_checked(tmp_path: Path) -> None:
    """Editors offer them, and a wrong key is one line."""
    schema = json.dumps(config_json_schema())

    with pytest.raises(Exception, match="last") as refused:
        load_text(CONFIG.replace("last: 250", "last: many"), file=tmp_path / "rivet.yaml")

    assert all(f'"{word}"' in schema for word in ("numbers", "shelf", "arrays", "sum"))
    assert "rivet.yaml:2" in str(refused.value)


def test_their_settings_travel_to_workers(tmp_path: Path) -> None:
    """A block is plain data: it comes out of a pickle as it went in."""
    export = load_text(CONFIG, file=tmp_path / "rivet.yaml").exports[0]

    assert export == pickle.loads(pickle.dumps(export))


LOADED = """
import sys
from rivet_assets.config.load import load_config
load_config(sys.argv[1])
names = [name.split(".") for name in sys.modules if name.startswith("rivet_resources.")]
rooms = {name[2] for name in names if len(name) > 2 and name[1] in ("engines", "destinations")}
print(*sorted(rooms - {"shared", "stores"}))
"""


def test_configuration_loads_no_engine_and_no_destination_but_its_own(tmp_path: Path) -> None:
    """Who exports a SQLite file to a folder pays for the modules of these two."""
    export = "{name: a, table: t, format: csv, destination: {type: local, path: out}}"
    (tmp_path / "rivet.yaml").write_text(f"source: {{type: sqlite, path: shop.db}}\nexports: [{export}]\n")

    done = subprocess.run(
        [sys.executable, "-c", LOADED, str(tmp_path / "rivet.yaml")], text=True, capture_output=True, check=True
    )

    assert "local sqlite" == done.stdout.strip()
