"""Rooms: a folder that a newcomer can take in at a glance."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import rivet_assets
import rivet_resources

MOST_FILES = 25  # the fullest folder of the projects that Rivet is compared with in issue 12


def test_no_folder_has_more_files_than_one_can_take_in() -> None:
    """A room that fills up is two rooms."""
    roots = [Path(package.__file__ or "").parent for package in (rivet_assets, rivet_resources)]
    counted = Counter(path.parent for root in roots for path in root.rglob("*.py"))

    assert len(counted) > 50
    assert {} == {str(folder): count for folder, count in counted.items() if count > MOST_FILES}
