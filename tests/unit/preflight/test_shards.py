"""Answers for shards, joined to one for each export."""

from __future__ import annotations

from pathlib import Path

from rivet_assets.config.load import load_config
from rivet_assets.modes.by_shard import shards_apart
from rivet_assets.preflight.checked import Checked
from rivet_assets.preflight.shards import join_shards, looked_at_as
from rivet_resources.errors import ConfigError

YAML = """
source: {type: sqlite, path: shop.db}
exports:
  - &one {name: one, table: t, format: parquet, shards: {eu: EU, us: US}, destination: {type: local, path: lake}}
  - {<<: *one, name: other}
"""


def test_shards_that_cannot_be_opened_are_named_once_for_each_export(tmp_path: Path) -> None:
    """Two exports of one source share what it raised."""
    (tmp_path / "rivet.yaml").write_text(YAML)
    exports = load_config(tmp_path / "rivet.yaml").exports
    faults = {"eu": ConfigError("EU is not set."), "us": ConfigError("US is not set.")}
    found = {
        looked_at_as(alone): Checked(alone.name, error=faults[shard])
        for export in exports
        for shard, alone in shards_apart(export)
    }

    joined = join_shards(found, exports)

    told = "shard eu: EU is not set.; shard us: US is not set."
    assert [told, told] == [str(joined[name].error) for name in ("one", "other")]
