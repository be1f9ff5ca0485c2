"""How a fault travels back from a task."""

from __future__ import annotations

import pytest

from rivet_resources.errors import DiskFull
from rivet_resources.read.executor import describe, rebuild


@pytest.mark.parametrize(("host", "expected"), [("", "No space is left."), ("w2", "Host w2: No space is left.")])
def test_fault_of_another_machine_names_it(host: str, expected: str) -> None:
    """Its class and its message stay; who reads it looks at the right disk."""
    told = describe(DiskFull("No space is left."))

    found = rebuild({**told, "host": host or told["host"]})

    assert expected == str(found)
    assert DiskFull is type(found)
