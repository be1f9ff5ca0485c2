"""Folders that other runs remove while one run looks through them: nobody fails for what is rightly gone."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rivet_resources.destinations import stdout
from rivet_resources.destinations.local import STRAY_SECONDS, LocalRoot
from rivet_resources.destinations.stdout import Stdout
from rivet_resources.read.rows_so_far import rows_in

Vanish = Callable[..., None]


@pytest.fixture
def vanish(monkeypatch: pytest.MonkeyPatch) -> Vanish:
    """Remove folders of these names in the moment somebody begins to read them, as another run's commit does."""

    def prepare(*names: str) -> None:
        def first(read: Callable[..., Any]) -> Callable[..., Any]:
            def reading(place: Any = ".") -> Any:
                if not isinstance(place, int) and Path(place).name in names:
                    monkeypatch.undo()
                    shutil.rmtree(place)
                    prepare(*names)
                return read(place)

            return reading

        monkeypatch.setattr(os, "scandir", first(os.scandir))
        monkeypatch.setattr(os, "listdir", first(os.listdir))

    return prepare


def old(path: Path) -> Path:
    """Write a file, or make a folder, that nobody touched for two days."""
    if path.suffix:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    else:
        path.mkdir(parents=True)
    os.utime(path, (time.time() - 2 * 86400,) * 2)
    return path


def test_sweep_passes_over_what_another_run_removes(tmp_path: Path, vanish: Vanish) -> None:
    """A run that begins while windows of the export are committed sweeps the rest, and does not fail."""
    root = LocalRoot(str(tmp_path / "orders"), "orders")
    (tmp_path / "orders/_staged/live").mkdir(parents=True)
    (tmp_path / "orders/dt=2026-01-01").mkdir()
    stray = old(tmp_path / "orders/dt=2026-01-02/.part.rivet-tmp")
    vanish("live", "dt=2026-01-01")

    assert 1 == root.sweep(keep=["live"])
    assert not stray.exists()
    assert STRAY_SECONDS < 2 * 86400


@pytest.mark.parametrize("gone", ["_staged", "orders"])
def test_staged_runs_of_a_folder_that_goes_are_none(tmp_path: Path, vanish: Vanish, gone: str) -> None:
    """The last run removes the folder itself, when nothing is left in it."""
    root = LocalRoot(str(tmp_path / "orders"), "orders")
    (tmp_path / "orders/_staged").mkdir(parents=True)
    vanish(gone)

    assert set() == root.staged_runs()
    assert 0 == root.sweep(keep=[])


def test_sweep_of_stdout_passes_over_what_another_run_removes(
    tmp_path: Path, vanish: Vanish, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its staging folders of all exports lie side by side."""
    monkeypatch.setattr(stdout.tempfile, "tempdir", str(tmp_path))
    root = Stdout(type="stdout").root("orders")
    base = stdout.stage_folder()
    abandoned = old(base / "items/_staged/dead")
    (base / "customers/_staged/live").mkdir(parents=True)
    vanish("customers")

    root.sweep(keep=[])

    assert not abandoned.exists()


def test_rows_of_a_run_that_ends_are_none(tmp_path: Path, vanish: Vanish) -> None:
    """Who watches a run in the moment of its end is told 0 rows, not an error."""
    (tmp_path / "rivet-run/task").mkdir(parents=True)
    (tmp_path / "rivet-run/task/rows").write_text("7")
    assert 7 == rows_in(tmp_path / "rivet-run")
    vanish("rivet-run")

    assert 0 == rows_in(tmp_path / "rivet-run")
