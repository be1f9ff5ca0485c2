"""A run that died on one machine is ended on another: the state in PostgreSQL, the parts in a bucket, nothing local."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from rivet_assets.config.load import load_config
from rivet_resources.commit.manifest import current_manifests
from tests import processes
from tests.faults.dying import DIED
from tests.lab import Lab
from tests.lab_engines import POSTGRES

pytestmark = pytest.mark.faults
ROWS = 100


@pytest.fixture
def lab(tmp_path: Path, fresh_database: str, monkeypatch: pytest.MonkeyPatch) -> Lab:
    """A table of four chunks; the state store is in the same database."""
    monkeypatch.setenv("LAB_URL", fresh_database)
    laboratory = Lab(tmp_path, fresh_database)
    laboratory.create("events", {"id": "whole", "note": "note"})
    laboratory.insert("events", [{"id": number, "note": "before"} for number in range(ROWS)])
    laboratory.analyze("events")
    return laboratory


def machine(folder: Path, name: str, destination: dict[str, Any]) -> Path:
    """Make a folder that shares nothing with the other one but what the file names."""
    export = {
        "name": "events", "table": "events", "mode": "chunked", "chunk_column": "id", "chunk_size": 25, "parallel": 1,
        "consistency": "per_chunk", "format": "parquet", "destination": destination,
    }  # fmt: skip
    config = {
        "project": "shop", "state": os.environ["LAB_URL"], "source": POSTGRES.source, "spark": "inline",
        "exports": [export],
    }  # fmt: skip
    path = folder / name / "rivet.yaml"
    (path.parent / "tmp").mkdir(parents=True)
    path.write_text(yaml.safe_dump(config))
    return path


def test_rest_is_read_on_another_machine(lab: Lab, s3: dict[str, Any]) -> None:
    """Its finished chunk is found in store and bucket, and not read again."""
    first, second = (machine(lab.folder, name, s3) for name in ("first", "second"))
    died = processes.run(
        "tests.faults.dying",
        str(first),
        "part",
        cwd=first.parent,
        env=os.environ | {"TMPDIR": str(first.parent / "tmp")},
    )
    assert DIED == died.returncode, died.stdout + died.stderr
    lab.sql("UPDATE events SET note = 'after'")

    ended = processes.run(
        processes.RIVET, "run", cwd=second.parent, env=os.environ | {"TMPDIR": str(second.parent / "tmp")}
    )

    assert 0 == ended.returncode, ended.stdout + ended.stderr
    root = load_config(second).exports[0].destination.root("events")
    (manifest,) = current_manifests(root).values()
    assert ("resumed", ROWS) == (manifest.consistency, manifest.row_count)
    runs = {part.path.rpartition("_")[0] for part in manifest.parts}
    assert 2 == len(runs), [part.path for part in manifest.parts]
