"""Which exports a contract may look values up in, and the order that follows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml

from rivet_assets.config.load import RivetConfig, load_config
from rivet_assets.launch.run_exports import waves
from rivet_resources.destinations.local import Local
from rivet_resources.errors import ConfigError
from rivet_resources.prove.references import are_comparable
from rivet_resources.write import measures
from rivet_resources.write.measures import SortedRuns, count_missing


def config(folder: Path, *exports: dict[str, Any]) -> RivetConfig:
    """Load a configuration of these exports."""
    common = {"format": "parquet", "destination": {"type": "local", "path": str(folder / "lake")}}
    blocks = [{"table": block["name"], **common, **block} for block in exports]
    path = folder / "rivet.yaml"
    path.write_text(yaml.safe_dump({"source": {"type": "sqlite", "path": "shop.db"}, "exports": blocks}))
    return load_config(path)


def export(name: str, *to: str, **keys: Any) -> dict[str, Any]:
    """Return an export whose contract refers to others."""
    references = {other: {"columns": "other_id", "export": other, "key": "id"} for other in to}
    return {"name": name, **({"contract": {"references": references}} if to else {}), **keys}


@pytest.mark.parametrize(
    ("exports", "told"),
    [
        ([export("a", "bb"), export("b")], "no export of this file; there are a, b"),
        ([export("a", "a")], "this export itself"),
        ([export("a", "b"), export("b", "c"), export("c", "a")], "lead back here"),
        ([export("a", "b"), export("b", destination={"type": "stdout"})], "a stream that keeps nothing"),
        ([export("a", "b"), export("b", mode="poll", updated_at_column="at", primary_key=["id"])], "keeps changes"),
        (
            [{**export("a"), "contract": {"references": {"b": {"columns": "x", "export": "a", "key": ["y", "z"]}}}}],
            "pair",
        ),
    ],
)
def test_reference_that_cannot_be_looked_up_is_refused_with_the_configuration(tmp_path, exports, told):
    """By the key that names it."""
    with pytest.raises(ConfigError, match=told):
        config(tmp_path, *exports)


def test_exports_run_after_those_they_refer_to(tmp_path):
    """Each in a wave after all of its references; those without any are not kept waiting."""
    found = config(
        tmp_path, export("lines", "orders", "goods"), export("orders", "people"), export("people"), export("goods")
    )

    plan = [(each, None) for each in found.exports]

    assert [["people", "goods"], ["orders"], ["lines"]] == [[each.name for each, _ in wave] for wave in waves(plan)]
    assert 1 == len(waves(plan[2:]))


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        (pa.int32(), pa.int64(), True),
        (pa.int64(), pa.uint64(), False),
        (pa.string(), pa.large_string(), True),
        (pa.dictionary(pa.int32(), pa.string()), pa.string(), True),
        (pa.string(), pa.int64(), False),
        (pa.decimal128(9, 2), pa.decimal128(9, 3), False),
        (pa.timestamp("us"), pa.timestamp("us", "UTC"), False),
        (pa.uuid(), pa.string(), False),
    ],
)
def test_types_are_compared_only_where_equal_values_have_equal_hashes(one, other, expected):
    """Whole numbers of any width, texts of any width; the rest only with themselves."""
    assert expected is are_comparable(one, other)


@pytest.mark.parametrize("bucket", [10, 2_000_000])
def test_missing_values_are_counted_once_each_over_all_spills(tmp_path, monkeypatch, bucket):
    """Whatever files and buckets they fall into; NULL in one of several columns is looked up nowhere."""
    monkeypatch.setattr(measures, "SPILL_CELLS", 100)
    monkeypatch.setattr(measures, "BUCKET_CELLS", bucket)
    schema = pa.schema([("a", pa.int64()), ("b", pa.string())])
    root = Local(type="local", path=str(tmp_path / "lake")).root("orders")

    def runs(name: str, numbers: list[int | None]) -> list[Path]:
        (tmp_path / name).mkdir()
        found = SortedRuns(schema, ("a", "b"), tmp_path / name)
        for start in range(0, len(numbers), 50):
            some = numbers[start : start + 50]
            found.add(pa.table([pa.array(some, pa.int64()), pa.array([str(n) for n in some])], schema=schema))
        return found.files()

    for number, file in enumerate(runs("mine", [*range(900), *range(900), None])):
        root.put(f"_staged/run/unique/{number}", file.read_bytes())
    files = [f"_staged/run/unique/{number}" for number in range(len([*(tmp_path / "mine").iterdir()]))]

    assert 3 == count_missing(root, files, runs("theirs", [*range(500), *range(503, 2000)]))
    assert 900 == count_missing(root, files, [])
    assert 0 == count_missing(root, [], runs("more", [1]))
