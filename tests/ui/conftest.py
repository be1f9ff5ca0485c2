"""A shop to export, an instance to look at, and Dagster's web API in this process.

Belongs here: all that touches Dagster's internals, so that an upgrade breaks one file. Not here: what is asserted.
"""

from __future__ import annotations

import asyncio
import os
import textwrap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dagster as dg
import psycopg
import pytest

from rivet_assets.config.load import load_config
from rivet_assets.definitions import definitions_of
from rivet_resources.commit.manifest import Manifest, current_manifests
from rivet_resources.destinations.local import Local

QUIET = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
PASSWORD = "wrong-battery-staple"  # as good as any: the server asks for none on its socket

SHOP = (
    "CREATE TABLE orders (id bigint PRIMARY KEY, at timestamptz NOT NULL, name text, total numeric(12,2))",
    "COMMENT ON COLUMN orders.name IS 'who bought'",
    "INSERT INTO orders SELECT i, timestamptz '2026-01-01 00:00Z' + i * interval '1 hour', "
    "CASE WHEN i % 4 > 0 THEN 'n' || i END, i / 4.0 FROM generate_series(0, 239) i",
)
BLOCK = """
source: {{type: postgres, url_env: SHOP_URL, environment: local}}
spark: inline
exports:
  - name: orders
    table: orders
    format: parquet
    destination: {{type: local, path: {lake}}}
    quality: {{row_count_min: 1, null_ratio_max: {{name: 0.5}}, unique_columns: [id]}}
    description: All orders.
    owners: [team:shop]
    tags: {{layer: raw}}
    schedule: "0 3 * * *"
    freshness: {{fail_after: 26h}}
  - name: days
    table: orders
    mode: time_window
    time_column: at
    start: 2026-01-01
    end: 2026-01-11
    format: parquet
    destination: {{type: local, path: {lake}}}
    quality: {{row_count_min: 24}}
    schedule: "0 4 * * *"
"""


NO_TAGS: Mapping[str, str] = {}


@dataclass
class Shop:
    """A database, a configuration, and the instance that its runs are stored in."""

    folder: Path
    url: str
    instance: dg.DagsterInstance

    @property
    def config(self) -> Path:
        """Name the configuration file."""
        return self.folder / "rivet.yaml"

    def sql(self, *statements: str) -> None:
        """Run statements at the source."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement)

    def configure(self, text: str) -> None:
        """Write the configuration; `{lake}` is where it exports to."""
        self.config.write_text(textwrap.dedent(text).format(lake=self.folder / "lake"))

    def definitions(self, *more: dg.Definitions) -> dg.Definitions:
        """Load the configuration, and what a user adds to it."""
        return dg.Definitions.merge(definitions_of(load_config(self.config)), *more)

    def run(
        self, *keys: str, days: tuple[str, str] | None = None, more: Any = (), tags: Mapping[str, str] = NO_TAGS
    ) -> dg.ExecuteInProcessResult:
        """Materialize assets in one run; with `days`, tagged with a range as the UI's backfills are."""
        first, last = days or ("", "")
        days_tags = {"dagster/asset_partition_range_start": first, "dagster/asset_partition_range_end": last}
        job = self.definitions(*more).resolve_implicit_global_asset_job_def()
        return job.execute_in_process(
            instance=self.instance,
            asset_selection=[dg.AssetKey(key.split("/")) for key in keys],
            tags={**tags, **(days_tags if days else {})},
            raise_on_error=False,
            run_config=QUIET,
        )

    def manifests(self, export: str) -> dict[str, Manifest]:
        """Read what a reader of the lake sees."""
        return current_manifests(Local(type="local", path=str(self.folder / "lake")).root(export))


@pytest.fixture
def shop(tmp_path: Path, fresh_database: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    """Ten days of orders, one an hour, and two exports of them."""
    home = tmp_path / "home"
    home.mkdir()
    (home / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
    monkeypatch.setenv("DAGSTER_HOME", str(home))
    monkeypatch.setenv("SHOP_URL", fresh_database)
    monkeypatch.setenv("RIVET_CONFIG", str(tmp_path / "rivet.yaml"))
    with dg.DagsterInstance.get() as instance:
        made = Shop(tmp_path, fresh_database, instance)
        made.sql(*SHOP)
        made.configure(BLOCK)
        yield made


Ask = Callable[..., Mapping[str, Any]]


@pytest.fixture
def ask(shop: Shop) -> Iterator[Ask]:
    """Ask Dagster's GraphQL API about the location, without a port; the answer's data."""
    import httpx
    from dagster._core.workspace.context import WorkspaceProcessContext
    from dagster._core.workspace.load_target import ModuleTarget
    from dagster_webserver.app import create_app_from_workspace_process_context

    target = ModuleTarget(
        module_name="rivet_assets.definitions", attribute=None, working_directory=os.getcwd(), location_name="rivet"
    )
    with WorkspaceProcessContext(shop.instance, target) as context:
        transport = httpx.ASGITransport(create_app_from_workspace_process_context(context, path_prefix=""))

        async def post(body: Mapping[str, Any]) -> Mapping[str, Any]:
            async with httpx.AsyncClient(transport=transport, base_url="http://dagster", timeout=60) as client:
                return (await client.post("/graphql", json=body)).json()  # type: ignore[no-any-return]

        def asked(query: str, **variables: Any) -> Mapping[str, Any]:
            answer = asyncio.run(post({"query": query, "variables": variables}))
            assert "errors" not in answer, answer["errors"]
            return answer["data"]  # type: ignore[no-any-return]

        yield asked
