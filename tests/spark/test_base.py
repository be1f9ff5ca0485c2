"""What pip installs without extras is enough for Spark: no driver, no client, and no pandas, in any process."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from rivet_resources.extras import EXTRAS
from tests.processes import ROOT

pytestmark = pytest.mark.spark

# Python runs it at the start of every process, Spark's workers included. Who only asks whether a package is there
# (`importlib.util.find_spec`, as PySpark's converters do) hears no, as where it is not installed.
HIDE = """
from importlib.machinery import PathFinder

find = PathFinder.find_spec

def find_visible(name, path=None, target=None):
    if any(name == each or name.startswith(each + ".") for each in HIDDEN):
        return None
    return find(name, path, target)

PathFinder.find_spec = find_visible
"""
CONFIG = """
spark: SPARK
source: {type: sqlite, path: shop.db}
exports:
  - {name: orders, table: orders, format: parquet, destination: {type: local, path: lake}}
"""


@pytest.mark.rare
@pytest.mark.slow
@pytest.mark.parametrize("spark", ["spark", "{conf: {spark.submit.deployMode: client}}"], ids=["own start", "submit"])
def test_base_exports_on_spark_without_any_extra(spark, tmp_path: Path):
    """A JVM that Rivet starts, and one that spark-submit does."""
    hidden = [module for extra in EXTRAS for module in extra.modules]
    (tmp_path / "hide").mkdir()
    (tmp_path / "hide" / "sitecustomize.py").write_text(HIDE.replace("HIDDEN", json.dumps(hidden)))
    (tmp_path / "rivet.yaml").write_text(CONFIG.replace("SPARK", spark))
    with sqlite3.connect(tmp_path / "shop.db") as shop:
        shop.executescript("CREATE TABLE orders (id INTEGER PRIMARY KEY); INSERT INTO orders VALUES (1), (2), (3)")
    shop.close()

    done = subprocess.run(
        [sys.executable, "-m", "rivet_assets.cli.main", "run"], cwd=tmp_path, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": f"{tmp_path / 'hide'}{os.pathsep}{ROOT}"},
    )  # fmt: skip

    assert 0 == done.returncode, done.stderr
    (part,) = (tmp_path / "lake").rglob("*.parquet")
    assert [1, 2, 3] == sorted(pq.read_table(part).column("id").to_pylist())
