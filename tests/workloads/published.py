"""What a reader finds: the parts that the manifests name, read by pyarrow, and nothing of Rivet's.

Belongs here: manifests as JSON, parts as rows. Not here: what they must be (`judge.py`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from tests.workloads.values import Row, of_text

Windows = dict[str, list[Row]]
OURS = "_rivet_"  # columns that Rivet appends


def published(folder: Path, words: Mapping[str, str]) -> Windows:
    """Read the rows of every window that no other one hides; {} where nothing was ever committed."""
    manifests = [json.loads(path.read_bytes()) for path in sorted((folder / "_rivet").glob("*.json"))]
    hidden = {(each["window"], each["run_id"]) for manifest in manifests for each in manifest["supersedes"]}
    current = [manifest for manifest in manifests if (manifest["window"], manifest["run_id"]) not in hidden]
    assert len(current) == len({manifest["window"] for manifest in current}), "two manifests of one window"
    return {manifest["window"]: _rows(folder, manifest, words) for manifest in current}


def _rows(folder: Path, manifest: dict[str, Any], words: Mapping[str, str]) -> list[Row]:
    rows: list[Row] = []
    for part in manifest["parts"]:
        found = _read(folder / part["path"], words)
        assert len(found) == part["rows"], f"{part['path']}: {len(found)} rows, its manifest says {part['rows']}"
        rows += [{name: value for name, value in row.items() if not name.startswith(OURS)} for row in found]
    return rows


def _read(path: Path, words: Mapping[str, str]) -> list[Row]:
    if path.suffix == ".parquet":
        return pq.ParquetFile(path).read().to_pylist()
    names = path.read_text(encoding="utf-8").partition("\n")[0].split(",")
    table = pa.csv.read_csv(
        path,
        parse_options=pa.csv.ParseOptions(newlines_in_values=True),
        convert_options=pa.csv.ConvertOptions(
            column_types=dict.fromkeys(names, pa.string()), strings_can_be_null=True, null_values=[""]
        ),
    )
    return [
        {name: of_text(text, words[name]) if name in words else text for name, text in row.items()}
        for row in table.to_pylist()
    ]


def strays(folder: Path) -> list[str]:
    """List the data files that a plain glob finds and no manifest names."""
    manifests = [json.loads(path.read_bytes()) for path in (folder / "_rivet").glob("*.json")]
    named = {part["path"] for manifest in manifests for part in manifest["parts"]}
    found = (path for ending in ("parquet", "csv") for path in folder.rglob(f"*.{ending}"))
    paths = (path.relative_to(folder) for path in found)
    return sorted(str(path) for path in paths if path.parts[0] not in ("_staged", "_rivet") and str(path) not in named)
