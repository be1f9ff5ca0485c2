"""A run whose window was taken from it between reading and publishing, as the IO manager meets it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from rivet_resources.dagster.io_manager import StagedOutput
from rivet_resources.errors import WindowTaken
from tests.unit.commit.test_manifest import ALL, Lake


class LostLease:
    """Proves itself so many times, and then no more."""

    def __init__(self, proofs: int) -> None:
        self.left = proofs

    def check(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise WindowTaken("another run has the window")


@pytest.mark.parametrize("proofs", [0, 1], ids=["before the parts", "before the manifest"])
def test_run_that_lost_its_window_publishes_nothing(tmp_path: Path, proofs: int) -> None:
    """Asked before parts get their names, and again right before the swap; the old rows stay, whole."""
    lake = Lake(tmp_path)
    lake.commit(ALL, 1, 3)
    before = lake.parts()
    offer = StagedOutput(lake.stage(ALL, 1, 5), lake.root, cast(Any, lake.state), cast(Any, LostLease(proofs)))

    with pytest.raises(WindowTaken):
        offer.publish()

    assert ([1, 2, 3], before) == (lake.rows(), lake.parts())
