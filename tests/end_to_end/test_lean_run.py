"""What `rivet run` does not import where its file does not ask for it: each costs every run its time."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.lab import lab_in
from tests.lab_engines import ENGINES

# A process of its own: those of `processes.py` come from one that has imported everything.
RUN = """
import json, sys
from rivet_assets.cli.main import main
sys.argv = ["rivet", "run", "-q", "-c", "rivet.yaml"]
try:
    main()
finally:
    print(json.dumps(sorted(sys.modules)))
"""
OF_OTHERS = ("rivet_resources.write.formats.avro", "rivet_resources.write.messages", "pyspark.sql", "fastavro", "boto3")
needs_frames = pytest.mark.skipif(
    not (importlib.util.find_spec("pandas") and importlib.util.find_spec("polars")), reason="no frames to import"
)


@needs_frames
@pytest.mark.parametrize("engine", ["postgres", "sqlite"])
def test_a_run_imports_neither_frames_nor_what_its_file_does_not_name(
    engine: str, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pandas and polars, which pyarrow and ADBC look for, took 0.3 of 2.2 CPU s; Avro's cells once brought pandas."""
    lab = lab_in(tmp_path, ENGINES[engine], request, monkeypatch)
    lab.create("orders", {"id": "whole", "note": "note"})
    lab.insert("orders", [{"id": 1, "note": "a"}])
    lab.config("{name: orders, table: orders, mode: full}")

    done = subprocess.run([sys.executable, "-c", RUN], capture_output=True, text=True, check=False, cwd=tmp_path)

    assert done.returncode == 0, done.stderr
    imported = set(json.loads(done.stdout))
    assert "pyarrow" in imported
    assert not {name for name in imported if name.partition(".")[0] in ("pandas", "polars") or name in OF_OTHERS}
    assert lab.ids("orders") == [1]
