"""`python -m tests.bench.compact [--windows 1000] [--rows 100]`: what joining small windows costs, and what it saves.

Belongs here: CPU seconds and requests of `rivet compact`, and of a reader before and after it. Not here: what one more
commit costs (`scale.py`).

The windows are committed by hand, one part each, since 1,000 runs would take an hour; the command is the user's.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa

from rivet_resources.commit.manifest import build_manifest
from rivet_resources.contracts.extract import CursorMove, Extract, Staged, Window
from rivet_resources.contracts.relation import Chunk
from rivet_resources.contracts.source import Page
from rivet_resources.write.measures import Tally
from rivet_resources.write.parts import PartFiles
from tests.bench.measuring import table
from tests.bench.scale import Place, counting, local, on_s3
from tests.fakes import extract_of
from tests.servers.postgres import moto_s3

HEADER = ("step", "CPU s", "wall s", "requests", "of these")
YAML = """
source: {{type: sqlite, path: {folder}/shop.db}}
state: sqlite:///{folder}/state.db
spark: inline
exports:
  - name: orders
    table: orders
    mode: incremental
    cursor_column: id
    format: parquet
    compact: true
    destination: {destination}
"""
READ = """
import sys, pyarrow.parquet as pq
from pathlib import Path
from rivet_assets.config.load import load_config
from rivet_resources.commit.manifest import current_manifests
root = load_config(Path("rivet.yaml")).exports[0].destination.root("orders")
parts = [part.path for each in current_manifests(root).values() for part in each.parts]
print(sum(pq.read_table(root.open(path)).num_rows for path in parts))
"""


def main() -> None:
    """Print one table for each place."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--windows", type=int, default=1000)
    parser.add_argument("--rows", type=int, default=100)
    parser.add_argument("--folder", default="/var/tmp/rivet-bench/compact", help="everything is written here, and kept")
    arguments = parser.parse_args()
    os.environ |= {
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_DEFAULT_REGION": "us-east-1",
        "PYTHONPATH": str(Path(__file__).parents[2]),
    }
    with moto_s3() as store, counting(store.endpoint) as (endpoint, seen):
        for kind in ("local", "s3"):
            folder = Path(arguments.folder) / f"{datetime.now(UTC):%H%M%S}-{kind}"
            folder.mkdir(parents=True)
            place = local(folder) if kind == "local" else on_s3(folder, endpoint, seen)
            (folder / "rivet.yaml").write_text(YAML.format(folder=folder, destination=place.yaml))
            fill(place, windows=arguments.windows, rows=arguments.rows)
            compacting = ["-m", "rivet_assets.cli.main", "compact", "--grace", "0s"]
            lines = [
                measured("a reader before", place, folder, ["-c", READ]),
                measured("rivet compact --dry-run", place, folder, [*compacting, "--dry-run"]),
                measured("rivet compact", place, folder, compacting),
                measured("a reader after", place, folder, ["-c", READ]),
                measured("rivet compact, nothing to do", place, folder, compacting),
            ]
            print(f"\n{kind}\n" + table(HEADER, lines))


def fill(place: Place, *, windows: int, rows: int) -> None:
    """Commit windows of a chain, long ago."""
    root = place.destination.root("orders")
    began = datetime.now(UTC) - timedelta(days=30)
    with tempfile.TemporaryDirectory() as scratch:
        for number in range(windows):
            first, low = number * rows, str(number * rows) if number else None
            numbers = pa.array(range(first + 1, first + rows + 1), pa.int64())
            notes = pa.array([f"note {each.as_py()}" for each in numbers])
            shown = pa.table({"id": numbers, "note": notes})
            at = began + timedelta(seconds=number)
            extract = replace(
                extract_of(shown, Path("/unused")), mode="incremental", window=Window.after(low),
                destination=place.destination, run_id=f"orders_{at:%Y%m%dT%H%M%S}.000_{number:06x}",
                cursor=CursorMove(low=low, high=str(first + rows), column="id"),
            )  # fmt: skip
            staged = written(extract, shown, Path(scratch))
            manifest = build_manifest(staged, staged.parts).model_copy(update={"started_at": at, "finished_at": at})
            for part in staged.parts:
                root.publish(part)
            root.swap(manifest.path, manifest.content, expected=None)


def written(extract: Extract, shown: pa.Table, scratch: Path) -> Staged:
    """Stage a table as a task would."""
    tally = Tally(shown.schema, scratch=scratch)
    root = extract.destination.root(extract.export)
    files = PartFiles(extract, Chunk(0, "cursor", ""), schema=shown.schema, root=root, folder=scratch, label="0")
    tally.add(Page(shown, {}, statement_ms=0.0))
    files.write(shown)
    schema = shown.schema.serialize().to_pybytes()
    return Staged(extract, files.finish(), tally.result(), schema, previous=None, started_at=datetime.now(UTC))


def measured(name: str, place: Place, folder: Path, arguments: list[str]) -> tuple[object, ...]:
    """Run Python in a process of its own; what it cost.

    Raises:
        RuntimeError: it failed; with the end of what it wrote.
    """
    before, began = Counter(place.requests()), datetime.now(UTC)
    with subprocess.Popen(
        [sys.executable, *arguments], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as child:
        assert child.stdout is not None
        said = child.stdout.read()
        _, status, used = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise RuntimeError(f"{name} ended with {child.returncode}:\n{said[-3000:]}")
    requests = Counter(place.requests()) - before
    told = ", ".join(f"{count} {kind}" for kind, count in sorted(requests.items()))
    wall = (datetime.now(UTC) - began).total_seconds()
    return name, round(used.ru_utime + used.ru_stime, 2), round(wall, 1), sum(requests.values()), told


if __name__ == "__main__":
    main()
