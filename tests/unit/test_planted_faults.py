"""Every fault of `python -m tests.mutations` can be planted: its text is in the code, once, and its tests exist."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutations.__main__ import flaw_of
from tests.mutations.table import FAULTS, Fault

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_fault_applies(fault: Fault) -> None:
    """A line that was rewritten takes its fault with it, or nobody knows any more that a test guards it."""
    assert flaw_of(fault, (ROOT / fault.file).read_text()) == ""
    for test in fault.tests:
        path, _, name = test.partition("::")
        assert not path.startswith("tests/") or f"def {name.partition('[')[0]}" in (ROOT / path).read_text(), test
