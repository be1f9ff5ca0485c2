"""`type: rivet_assets.Exports` in a project of the user's own."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import dagster as dg
import pytest

REPOSITORY = Path(__file__).parents[2]
PYPROJECT = """
[tool.dg]
directory_type = "project"
[tool.dg.project]
root_module = "mine"
registry_modules = ["rivet_assets.dagster.component"]
"""
GOOD = """
type: rivet_assets.Exports

attributes:
  sources:
    shop: {type: postgres, url_env: SHOP_URL}
  exports:
    - name: orders
      table: orders
      format: parquet
      destination: {type: local, path: lake}
"""
BAD = GOOD.replace("table: orders", "table: orders\n      mode: tme_window")


@pytest.fixture
def project(tmp_path):
    """A Dagster project with one component file; give its text to write it."""
    (tmp_path / "pyproject.toml").write_text(PYPROJECT)
    folder = tmp_path / "mine" / "defs" / "shop"
    folder.mkdir(parents=True)
    for package in (tmp_path / "mine", tmp_path / "mine" / "defs"):
        (package / "__init__.py").touch()

    def written(text: str) -> Path:
        (folder / "defs.yaml").write_text(textwrap.dedent(text).lstrip())
        return tmp_path

    return written


def dg_check(project: Path) -> subprocess.CompletedProcess[str]:
    """Run `dg check yaml` there."""
    env = os.environ | {"PYTHONPATH": f"{REPOSITORY}:{project}", "DAGSTER_DISABLE_TELEMETRY": "yes"}
    dg_command = str(Path(sys.executable).with_name("dg"))
    return subprocess.run([dg_command, "check", "yaml"], cwd=project, env=env, capture_output=True, text=True)


def test_component_gives_the_assets_of_its_block(project, monkeypatch):
    """The same YAML as rivet.yaml, with assets, checks and source tables, ready to run."""
    folder = project(GOOD)
    monkeypatch.syspath_prepend(str(folder))
    for name in [name for name in sys.modules if name == "mine" or name.startswith("mine.")]:
        monkeypatch.delitem(sys.modules, name)

    definitions = dg.load_from_defs_folder(path_within_project=folder)

    dg.Definitions.validate_loadable(definitions)
    specs = {spec.key.to_user_string(): spec for spec in definitions.resolve_all_asset_specs()}
    references = specs["shop/orders"].metadata["dagster/code_references"].code_references
    assert {"shop/orders", "shop/public/orders"} == set(specs)
    assert [(str(folder / "mine/defs/shop/defs.yaml"), 7)] == [(ref.file_path, ref.line_number) for ref in references]


@pytest.mark.slow
def test_dg_check_points_at_the_wrong_line(project):
    """The message has file, line, value and what is allowed, with a caret below."""
    checked = dg_check(project(BAD))

    assert 0 != checked.returncode
    assert "mine/defs/shop/defs.yaml:9" in checked.stdout
    assert (
        "^ 'tme_window' is not one of ['full', 'incremental', 'chunked', 'time_window', 'cdc', 'poll']"
        in checked.stdout
    )


@pytest.mark.slow
def test_dg_check_accepts_a_right_file(project):
    """No finding, exit code 0."""
    assert 0 == dg_check(project(GOOD)).returncode
