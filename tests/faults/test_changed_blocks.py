"""An export whose block was changed between a death and the next run: no finished chunk of the old block is published.

Belongs here: every kind of key that decides what is in a chunk, and those that must not cost its progress. Not here:
what a death leaves (`test_deaths.py`).
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests import processes
from tests.faults.dying import DIED
from tests.lab import Lab, lab_in
from tests.lab_engines import POSTGRES, SQLITE

pytestmark = pytest.mark.faults
BLOCK = """
name: people
table: people
mode: chunked
chunk_column: id
chunk_size: 25
chunk_checkpoint: true
parallel: 1
"""
HASHED = "transforms: [{{type: mask, fields: [note], method: hash, key: {}}}]"


@pytest.fixture
def lab(tmp_path: Path, fresh_sqlite: str, monkeypatch: pytest.MonkeyPatch) -> Lab:
    """A hundred people in four chunks; two of them, of different chunks, share a note."""
    monkeypatch.setenv("LAB_URL", fresh_sqlite)
    monkeypatch.chdir(tmp_path)
    laboratory = Lab(tmp_path, fresh_sqlite, SQLITE)
    laboratory.create("people", {"id": "whole", "note": "note"})
    laboratory.insert("people", [{"id": n, "note": f"jo{1 if n == 30 else n}@example.com"} for n in range(100)])
    return laboratory


def die(lab: Lab, more: str = "") -> None:
    """Run until the first chunk is finished, and die."""
    lab.config(BLOCK + more)
    died = processes.run("tests.faults.dying", str(lab.folder / "rivet.yaml"), "part")
    assert died.returncode == DIED, died.stdout + died.stderr


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", "transforms: [{type: mask, fields: [note], method: redact}]"),
        ("", "transforms: [{type: filter, field: id, op: '>', value: 3}]"),
        (HASHED.format("a-key-of-16-chars"), HASHED.format("another-key-of-16")),
        ("", "meta_columns: {row_hash: true}"),
        ("", "on_special_value: 'null'"),
        ("compression: none", "format: csv\ncompression: none"),
    ],
    ids=["mask", "filter", "key of a hash", "row hash", "special values", "format"],
)
def test_chunks_of_another_block_are_read_again(lab: Lab, before: str, after: str) -> None:
    """What is published is what a run of the new block alone publishes."""
    die(lab, before)

    outcome = lab.export(BLOCK + after)

    assert outcome.success, outcome.message
    (manifest,) = lab.manifests("people").values()
    assert "resumed" != manifest.consistency
    resumed = lab.rows("people")
    assert lab.export(BLOCK.replace("chunk_checkpoint: true", "chunk_checkpoint: false") + after).success
    assert lab.rows("people") == resumed
    assert not ("redact" in after and any("@" in str(row["note"]) for row in resumed))


def test_rule_that_came_later_sees_every_row(lab: Lab) -> None:
    """A value that repeats across chunks is found, though one of them was finished before the rule was there."""
    die(lab)

    outcome = lab.export(BLOCK + "quality: {unique_columns: [note]}")

    assert (False, {}) == (outcome.success, lab.manifests("people"))


@pytest.mark.parametrize("more", ["parallel: 2", "tuning: {throttle_ms: 5}", "description: Who there is"])
def test_chunks_stay_where_only_the_manner_of_reading_changed(lab: Lab, more: str) -> None:
    """A gentler or a better described run goes on where the dead one ended."""
    die(lab)

    outcome = lab.export((BLOCK.replace("parallel: 1\n", "") if "parallel" in more else BLOCK) + more)

    assert outcome.success, outcome.message
    assert ["resumed"] == [manifest.consistency for manifest in lab.manifests("people").values()]
    assert list(range(100)) == lab.ids("people")


def test_resumed_run_tells_what_it_read_and_what_it_kept(lab: Lab) -> None:
    """Rows of a dead run's chunks are in the window and not in what this run read; its notes say so."""
    die(lab)

    outcome = lab.export(BLOCK)

    (record,) = lab.state.runs("people", last=1)
    note = "1 of 4 chunks (25 rows) were kept of a run that died, so they are of an earlier instant"
    assert (100, 75, 75) == (record.total_rows, record.rows_read, json.loads(record.harm or "{}")["rows_read"])
    assert note in outcome.notes


def test_chunks_from_before_a_tag_are_read_again(
    tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A column whose tag came after a death is masked in all chunks; the block is the same."""
    lab, rules = lab_in(tmp_path, POSTGRES, request, monkeypatch), "mask_tags: {pii: {method: redact}}"
    lab.create("people", {"id": "whole", "note": "note"})
    lab.insert("people", [{"id": n, "note": f"jo{n}@example.com"} for n in range(100)])
    die(lab, rules)
    lab.sql("COMMENT ON COLUMN people.note IS 'pii'")

    outcome = lab.export(BLOCK + rules)

    assert outcome.success, outcome.message
    assert {"[REDACTED]"} == {row["note"] for row in lab.rows("people")}
