"""`text_compression:` of an export that has windows of before: all of them are proved and read alike."""

from __future__ import annotations

import gzip
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner

from rivet_assets.cli.main import commands
from rivet_resources.commit.manifest import current_manifests
from rivet_resources.destinations.local import Local

CONFIG = """
source: {{type: sqlite, path: shop.db}}
spark: inline
exports:
  - name: orders
    table: orders
    mode: incremental
    cursor_column: id
    format: {form}
    {key}
    destination: {{type: local, path: lake}}
"""


def rivet(*words: str) -> str:
    """Run a command in this process; what it told."""
    done = CliRunner().invoke(commands, list(words), standalone_mode=False)
    assert (0, None) == (done.return_value or 0, done.exception), done.output
    return done.output


@pytest.mark.parametrize("form", ["csv", "ndjson"])
def test_export_that_switches_between_its_runs_stays_whole(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Plain, gzip, zstd and plain again, a window each: files tell what they are, and every proof reads them."""
    monkeypatch.chdir(tmp_path)
    for number, key in enumerate(("", "text_compression: gzip", "text_compression: zstd", "")):
        with closing(sqlite3.connect("shop.db")) as shop, shop:
            shop.execute("CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, note TEXT NOT NULL)")
            shop.executemany("INSERT INTO orders VALUES (?, ?)", [(number * 10 + n, f"ä\n{n}") for n in range(10)])
        Path("rivet.yaml").write_text(CONFIG.format(form=form, key=key))
        rivet("run")

    rivet("validate", "--depth", "full")
    rivet("reconcile")

    manifests = sorted(current_manifests(Local(path="lake").root("orders")).values(), key=lambda each: each.finished_at)
    assert ["none", "gzip(6)", "zstd(1)", "none"] == [each.compression for each in manifests]
    paths = [part.path for each in manifests for part in each.parts]
    assert [f".{form}", f".{form}.gz", f".{form}.zst", f".{form}"] == [path[path.index(".") :] for path in paths]
    text = gzip.decompress(Path("lake/orders", paths[1]).read_bytes()).decode()
    assert 10 == text.count("ä")
