"""A resumable run that ended badly in other ways than by dying: what is kept of it, and what is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from rivet_resources.read.stage import Exporter
from tests.lab import Lab, lab_in
from tests.lab_engines import SQLITE

pytestmark = pytest.mark.faults

BLOCK = """
name: people
table: people
mode: chunked
chunk_column: id
chunk_size: 5
chunk_checkpoint: true
quality: {null_ratio_max: {note: 0}}
"""
SECRET = "jo@example.com"


@pytest.fixture
def lab(tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Lab:
    """Twenty people in four chunks; one has no note."""
    laboratory = lab_in(tmp_path, SQLITE, request, monkeypatch)
    laboratory.create("people", {"id": "whole", "note": "note"})
    laboratory.insert("people", [{"id": n, "note": None if n == 7 else SECRET} for n in range(20)])
    return laboratory


def test_chunks_that_a_gate_refused_are_read_again(lab: Lab) -> None:
    """Once the source is clean the next run is: no row of the refused window comes back."""
    refused = lab.export(BLOCK)
    lab.sql("UPDATE people SET note = 'clean' WHERE id = 7")

    outcome = lab.export(BLOCK)

    assert (3, True) == (refused.exit_code, outcome.success), outcome.message
    assert "clean" == lab.rows("people")[7]["note"]
    assert [] == lab.state.chunk_progress("people")


def test_error_of_a_library_is_stored_without_its_text(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may quote rows: history and journal keep its kind alone."""

    def stage(*_: object, **__: object) -> None:
        raise ValueError(f"cannot convert {SECRET!r}")

    monkeypatch.setattr(Exporter, "stage", stage)
    outcome = lab.export(BLOCK)

    (record,) = lab.state.runs("people")
    assert (False, "failed", "ValueError") == (outcome.success, record.status, record.error_message)
    assert not any(SECRET in str(entry) for entry in lab.state.journal("people"))
