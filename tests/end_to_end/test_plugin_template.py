"""The package that `docs/examples/plugin` shows: its own tests pass, and its words work in an export."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from rivet_resources.plugins import GROUPS, Plugin

TEMPLATE = Path(__file__).parents[2] / "docs/examples/plugin"

CONFIG = """
source: {type: datagen, pattern: users, max_events: 40, events_per_second: 0, seed: 1}
spark: inline
notifications: {others: [{type: append_file, path: events.ndjson}]}
exports:
  - name: users
    table: users
    format: parquet
    destination: {type: local, path: lake}
    transforms: [{type: initials, column: last_name}]
    contract:
      checks: {no_names: {measure: {type: null_share, column: last_name}, min: 0.5}}
"""


@pytest.fixture
def installed(tmp_path: Path) -> dict[str, str]:
    """Lay the package beside its metadata, as pip would, and put it on the path."""
    site = tmp_path / "site"
    shutil.copytree(TEMPLATE / "rivet_example", site / "rivet_example")
    project = tomllib.loads((TEMPLATE / "pyproject.toml").read_text())["project"]
    info = site / "rivet_example-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    groups = project["entry-points"].items()
    points = ("\n".join([f"[{group}]", *(f"{word} = {path}" for word, path in of.items())]) for group, of in groups)
    (info / "entry_points.txt").write_text("\n".join(points))
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(site), str(TEMPLATE.parents[2])])}


def run(env: dict[str, str], folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python in a process of its own."""
    return subprocess.run([sys.executable, *arguments], cwd=folder, env=env, capture_output=True, text=True)


def test_its_own_tests_pass(installed: dict[str, str], tmp_path: Path) -> None:
    """The suites of `rivet_resources.conformance`, and its own sentences."""
    shutil.copytree(TEMPLATE / "tests", tmp_path / "tests")

    done = run(installed, tmp_path, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "tests")

    assert done.returncode == 0, done.stdout
    assert "11 passed" in done.stdout


def test_its_words_work_in_an_export(installed: dict[str, str], tmp_path: Path) -> None:
    """It is listed; its step shapes, its check keeps the window back, its notifier is told of it."""
    (tmp_path / "rivet.yaml").write_text(CONFIG)
    rivet = ("-m", "rivet_assets.cli.main")

    listed = run(installed, tmp_path, *rivet, "plugins")
    refused = run(installed, tmp_path, *rivet, "run", "-c", "rivet.yaml")
    (tmp_path / "rivet.yaml").write_text(CONFIG.replace("min: 0.5", "max: 0"))
    passed = run(installed, tmp_path, *rivet, "run", "-c", "rivet.yaml")

    assert listed.returncode == 0, listed.stdout
    assert {"initials", "null_share", "append_file"} <= set(listed.stdout.split())
    assert (3, 0) == (refused.returncode, passed.returncode), refused.stderr + passed.stderr
    assert '"event": "failure"' in (tmp_path / "events.ndjson").read_text()


def test_every_word_is_that_of_a_group_and_a_class() -> None:
    """The file that people copy names groups that exist."""
    points = tomllib.loads((TEMPLATE / "pyproject.toml").read_text())["project"]["entry-points"]
    kinds = {group: kind for kind, group in GROUPS.items()}

    assert set(points) <= set(kinds)
    sys.path.insert(0, str(TEMPLATE))
    try:
        for group, words in points.items():
            for word, path in words.items():
                assert Plugin(kinds[group], word, path, "rivet-example", "0.1.0").load().__name__ in path
    finally:
        sys.path.remove(str(TEMPLATE))
