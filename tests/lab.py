"""A small laboratory: one source database, one folder as destination, one state store, and the public way in.

Belongs here: running exports as a user does (a YAML text, through Dagster) and reading what a reader of
manifests sees. Not here: anything that knows how Rivet works inside.
"""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import yaml

from rivet_assets.config import RivetConfig, load_config
from rivet_assets.run import Outcome, run_exports
from rivet_resources.destinations.local import Local
from rivet_resources.manifest import Manifest, current_manifests
from rivet_resources.state.store import State, default_url, open_state

HEAD = """
source: {{type: postgres, url_env: LAB_URL, tuning: {{throttle_ms: 0, max_retries: 1, retry_backoff_ms: 100}}}}
spark: inline
exports:
"""


@dataclass
class Lab:
    """Where one test works."""

    folder: Path
    url: str

    def sql(self, *statements: str) -> None:
        """Run statements at the source, each in its own transaction."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement)

    def config(self, *blocks: str) -> RivetConfig:
        """Write a rivet.yaml of these blocks, each completed with a local destination and a format, and load it."""
        exports = []
        for block in blocks:
            export = {"format": "parquet", "destination": {"type": "local", "path": str(self.folder / "lake")}}
            exports.append(export | yaml.safe_load(textwrap.dedent(block)))
        path = self.folder / "rivet.yaml"
        path.write_text(HEAD.format() + textwrap.indent(yaml.safe_dump(exports), "  "))
        return load_config(path)

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

    def rows(self, export: str) -> list[dict[str, object]]:
        """Read the union of the manifests, ordered by `id` where there is one."""
        tables = []
        for manifest in self.manifests(export).values():
            for part in manifest.parts:
                path = self.folder / "lake" / export / part.path
                tables.append(pq.read_table(path) if path.suffix == ".parquet" else pa.csv.read_csv(path))
        rows = pa.concat_tables(tables, promote_options="permissive").to_pylist() if tables else []
        return sorted(rows, key=lambda row: (row.get("id") is None, row.get("id")))

    def ids(self, export: str) -> list[object]:
        """Read the `id` of every committed row, ascending, repeats included."""
        return [row["id"] for row in self.rows(export)]

    @property
    def state(self) -> State:
        """Open the state store the exports use."""
        return open_state(default_url(self.folder))
