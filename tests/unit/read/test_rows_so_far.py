"""How many rows a run has read so far, as other processes see it."""

from __future__ import annotations

from pathlib import Path

from rivet_resources.read.rows_so_far import StageProgress, rows_of


def test_rows_of_finished_chunks_stay_counted(tmp_path: Path) -> None:
    """A task takes its count away with its folder, and what it has read is read all the same."""
    (tmp_path / "attempt").mkdir()
    (tmp_path / "attempt" / "rows").write_text("5")
    before = rows_of(tmp_path)
    progress = StageProgress(tmp_path, 3, lambda done, of, rows: None)

    progress.chunk_done(100)

    assert (5, 105) == (before, rows_of(tmp_path))
