"""A small laboratory: one source database, one folder as destination, one state store, and the public way in.

Belongs here: running exports as a user does (a YAML text, through Dagster) and reading what a reader of
manifests sees. Not here: anything that knows how Rivet works inside.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
import yaml

from rivet_assets.config.load import RivetConfig, load_config
from rivet_assets.launch.run_exports import Outcome, run_exports
from rivet_resources.commit.manifest import Manifest, current_manifests
from rivet_resources.destinations.local import Local
from rivet_resources.state.scopes import Scope
from rivet_resources.state.store import State, default_url, open_state
from tests.lab_engines import POSTGRES, Engine, Open

TUNING = {"throttle_ms": 0, "max_retries": 1, "retry_backoff_ms": 100}
INSERTED_AT_ONCE = 500


@dataclass
class Lab:
    """Where one test works: an empty folder, and a database of one engine at `url` (a path, for SQLite)."""

    folder: Path
    url: str
    engine: Engine = POSTGRES
    columns: dict[str, dict[str, str]] = field(default_factory=dict)  # table → `columns:` its exports need

    def sql(self, *statements: str) -> None:
        """Run statements at the source over one connection, each in its own transaction."""
        with self.engine.connect(self.url) as execute:
            for statement in statements:
                execute(statement)

    def writer(self) -> AbstractContextManager[Open]:
        """Open a transaction at the source that commits when told to."""
        return self.engine.writer(self.url)

    def literal(self, value: object) -> str:
        """Write a Python value as the engine's SQL."""
        return self.engine.literal(value)

    def create(
        self, table: str, columns: Mapping[str, str], *, index: Sequence[str] = (), ddl: Mapping[str, str] | None = None
    ) -> None:
        """Make a table with the key `id`.

        Args:
            columns: name → word of the engine: whole, instant, day, amount, note.
            ddl: name → type as the engine spells it, for further columns.
        """
        types = {name: self.engine.types[word] for name, word in columns.items()} | dict(ddl or {})
        made = [f"{name} {sql}{' NOT NULL PRIMARY KEY' if name == 'id' else ''}" for name, sql in types.items()]
        self.sql(
            f"CREATE TABLE {table} ({', '.join(made)})",
            *(f"CREATE INDEX {table}_{name} ON {table} ({name})" for name in index),
        )
        needed = {name: self.engine.columns[word] for name, word in columns.items() if word in self.engine.columns}
        if needed:
            self.columns[table] = needed

    def insert(self, table: str, rows: Iterable[Mapping[str, object]]) -> None:
        """Insert rows of equal keys."""
        rows = list(rows)
        names = ", ".join(rows[0])
        values = [f"({', '.join(self.literal(value) for value in row.values())})" for row in rows]
        pieces = [values[i : i + INSERTED_AT_ONCE] for i in range(0, len(values), INSERTED_AT_ONCE)]
        self.sql(*(f"INSERT INTO {table} ({names}) VALUES {', '.join(piece)}" for piece in pieces))

    def analyze(self, table: str) -> None:
        """Let the engine count what it has."""
        self.sql(self.engine.analyze.format(table))

    def config(self, *blocks: str) -> RivetConfig:
        """Write a rivet.yaml of these blocks, each completed with a local destination and a format, and load it.

        The environment's LAB_URL must be this lab's `url`.
        """
        head = {"source": {**self.engine.source, "tuning": TUNING}, "spark": "inline"}
        path = self.folder / "rivet.yaml"
        path.write_text(yaml.safe_dump(head | {"exports": [self._completed(block) for block in blocks]}))
        return load_config(path)

    def _completed(self, block: str) -> dict[str, object]:
        export = {"format": "parquet", "destination": {"type": "local", "path": str(self.folder / "lake")}}
        export |= yaml.safe_load(textwrap.dedent(block))
        needed = self.columns.get(str(export.get("table", next(iter(self.columns), ""))))
        if needed:
            export["columns"] = needed | export.get("columns", {})
        return export

    def export(self, block: str, *, partitions: tuple[str, ...] = ()) -> Outcome:
        """Run one export to its end, through Dagster; the outcome is returned, success or not."""
        (outcome,) = run_exports(self.config(block), partitions=partitions)
        return outcome

    def manifests(self, export: str) -> dict[str, Manifest]:
        """Read what a reader sees: the current manifests by window key."""
        return current_manifests(self.root(export))

    def root(self, export: str):
        """Address the export's folder."""
        return Local(type="local", path=str(self.folder / "lake")).root(export)

    def table(self, export: str) -> pa.Table:
        """Read the Parquet parts of the manifests as pyarrow does by itself, ordered by `id`."""
        paths = [path for path in self.parts(export) if path.suffix == ".parquet"]
        return pa.concat_tables([pq.read_table(path) for path in paths]).sort_by("id")

    def parts(self, export: str) -> list[Path]:
        """List the files that the manifests name."""
        folder = self.folder / "lake" / export
        return [folder / part.path for manifest in self.manifests(export).values() for part in manifest.parts]

    def rows(self, export: str) -> list[dict[str, object]]:
        """Read the union of the manifests, ordered by `id` where there is one."""
        tables = [
            pq.read_table(path) if path.suffix == ".parquet" else pa.csv.read_csv(path) for path in self.parts(export)
        ]
        rows = pa.concat_tables(tables, promote_options="permissive").to_pylist() if tables else []
        return sorted(rows, key=lambda row: (row.get("id") is None, row.get("id")))

    def schema(self, export: str) -> dict[str, str]:
        """Return the Arrow type of each column as the manifests' parts have it; one, or a failure."""
        found = {tuple((field.name, str(field.type)) for field in pq.read_schema(path)) for path in self.parts(export)}
        (one,) = found
        return dict(one)

    def ids(self, export: str) -> list[object]:
        """Read the `id` of every committed row, ascending, repeats included."""
        return [row["id"] for row in self.rows(export)]

    @property
    def state(self) -> State:
        """Open the state store the exports use; names are those of this lab's exports."""
        return store_of(self.folder, self.engine.source["type"])


@dataclass(frozen=True)
class AnyExport(Mapping[str, str]):
    """What `Scope.sources` is where every export has one source."""

    source: str

    def __getitem__(self, name: str) -> str:
        if ":" in name:  # a permit to connect
            raise KeyError(name)
        return self.source

    def __iter__(self) -> Iterator[str]:
        return iter(("any",))

    def __len__(self) -> int:
        return 1


def store_of(folder: Path, source: str = "postgres") -> State:
    """Open the store beside a configuration, with the names of its exports, which have one source."""
    return open_state(default_url(folder)).of(Scope(sources=AnyExport(source)))


def lab_in(folder: Path, engine: Engine, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Lab:
    """Open an empty database of an engine, and go to an empty folder; configurations find the database in LAB_URL."""
    laboratory = Lab(folder, request.getfixturevalue(engine.fixture), engine)
    monkeypatch.setenv("LAB_URL", laboratory.url)
    monkeypatch.chdir(folder)
    return laboratory
