"""What a drain asks of its log."""

from __future__ import annotations

from pathlib import Path

from rivet_assets.config.load import load_config
from rivet_assets.modes.cdc import drain_of

BLOCK = """
source: {type: postgres, url_env: SHOP_URL}
exports:
  - name: shop
    mode: cdc
    table: orders
    key: [number, place]
    apply: [mirror]
    transforms:
      - {type: rename, columns: {id: nr}}
      - {type: rename, columns: {nr: number, number: other}}
    format: parquet
    destination: {type: local, path: lake}
"""


def test_key_goes_to_the_log_by_the_names_of_the_source(tmp_path: Path) -> None:
    """Steps name columns anew, one behind the other; the log knows nothing of that."""
    (tmp_path / "rivet.yaml").write_text(BLOCK)
    export = drain_of(load_config(tmp_path / "rivet.yaml").exports[0])

    assert export is not None
    assert ("id", "place") == export.capture(deployment="").key
