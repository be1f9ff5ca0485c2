"""What Rivet relies on, by its own conformance suites, and what this package is for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from rivet_example.append_file import AppendFile
from rivet_example.initials import Initials
from rivet_example.null_share import NullShare

from rivet_resources.conformance import CHECK_PROMISES, STEP_PROMISES

PAGE = pa.table({"id": [1, 2, 3], "name": ["Ada King Lovelace", None, "Grace Hopper"]})


@pytest.mark.parametrize("promise", STEP_PROMISES, ids=lambda each: each.__name__)
def test_step_keeps(promise: Callable[..., None]) -> None:
    """Planned columns come out, whatever page a row comes in."""
    promise(Initials(column="name"), PAGE)


@pytest.mark.parametrize("promise", CHECK_PROMISES, ids=lambda each: each.__name__)
def test_check_keeps(promise: Callable[..., None]) -> None:
    """Numbers come out, whatever file a row lies in."""
    promise(NullShare(column="name"), PAGE)


def test_names_become_initials() -> None:
    """What the step is for."""
    assert Initials(column="name").apply(PAGE).column("name").to_pylist() == ["AKL", None, "GH"]


def test_share_of_missing_names() -> None:
    """What the check is for."""
    assert NullShare(column="name").measure(ds.dataset(PAGE)) == pytest.approx(1 / 3)


def test_events_are_appended(tmp_path: Path) -> None:
    """What the notifier is for."""
    AppendFile(path=tmp_path / "events").send({"event": "failure"})
    assert (tmp_path / "events").read_text() == '{"event": "failure"}\n'
