"""`spark: {resource: …}`: exports on the Spark of a project's own resource, which they neither start nor stop."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from rivet_assets.config.load import load_text
from rivet_assets.launch.run_exports import run_exports
from rivet_resources.errors import ConfigError

CONFIG = """
source: {type: datagen, pattern: orders, max_events: 1000, events_per_second: 0, seed: 1}
spark: {resource: pyspark}
exports:
  - {name: orders, table: orders, format: parquet, destination: {type: local, path: lake}}
"""
# A process of its own, since this one may have a session already.
SCRIPT = """
import json, sys
import dagster as dg
from dagster_pyspark import LazyPySparkResource, PySparkResource
from pyspark import SparkContext
from rivet_assets import RivetResource, build_rivet_definitions

kind = {"eager": PySparkResource, "lazy": LazyPySparkResource}[sys.argv[1]]

@dg.asset(deps=[dg.AssetKey(["datagen", "orders"])], required_resource_keys={"pyspark"})
def downstream(context):
    session = context.resources.pyspark.spark_session
    return dg.MaterializeResult(metadata={"rows": session.read.parquet("lake/orders/*.parquet").count()})

defs = dg.Definitions.merge(
    build_rivet_definitions("rivet.yaml"),
    dg.Definitions(
        assets=[downstream],
        resources={"pyspark": kind(spark_config={
            "spark.master": "local[1]", "spark.app.name": "acme", "spark.ui.enabled": "false",
            "spark.sql.session.timeZone": "UTC",
        })},
    ),
)
with dg.DagsterInstance.ephemeral() as instance:
    done = defs.resolve_implicit_global_asset_job_def().execute_in_process(instance=instance)
context = SparkContext._active_spark_context
print(json.dumps({
    "success": done.success,
    "rows": done.asset_materializations_for_node("downstream")[0].metadata["rows"].value,
    "app": context.appName,
    "alive": context._jsc is not None,
    "jobs": len(context.statusTracker().getJobIdsForGroup(None)),
    "same": RivetResource().spark_session.sparkContext is context,
}))
context.stop()
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["eager", pytest.param("lazy", marks=pytest.mark.rare)])
def test_exports_run_on_the_projects_own_spark(kind: str, tmp_path: Path) -> None:
    """One session in the process, of the project's settings; exports leave it running for what comes after."""
    (tmp_path / "rivet.yaml").write_text(CONFIG)

    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, kind], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )

    assert 0 == done.returncode, done.stderr[-3000:]
    told = json.loads(done.stdout.splitlines()[-1])
    assert told.pop("jobs") >= 1
    assert {"success": True, "rows": 1000, "app": "acme", "alive": True, "same": True} == told


def test_command_line_has_no_resources(tmp_path: Path) -> None:
    """`rivet run` refuses by name, before anything begins."""
    config = load_text(CONFIG, file=tmp_path / "rivet.yaml")

    with pytest.raises(ConfigError, match=r"`spark\.resource` is a resource of a Dagster project"):
        run_exports(config)
