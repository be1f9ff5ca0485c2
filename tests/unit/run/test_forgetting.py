"""What is done behind a failure does not hide it: removing what was staged."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa

from rivet_assets.run.attempt import forget_after_failure
from rivet_resources.contracts.extract import Staged
from rivet_resources.contracts.parts import Measures, Part
from rivet_resources.errors import DestinationUnreachable
from tests.fakes import FolderRoot, extract_of


class Refusing(FolderRoot):
    """A folder in which nothing can be removed."""

    def discard(self, parts: Iterable[Part]) -> None:
        """Refuse it."""
        raise DestinationUnreachable("s3://lake: cannot remove objects")


def test_store_that_removes_nothing_does_not_hide_why_a_run_failed(tmp_path: Path) -> None:
    """It is told, and chunks of a refused window are forgotten all the same: a later run must not take them."""
    forgotten, said = list[Any](), list[str]()
    state = SimpleNamespace(forget_chunks=lambda export, window: forgotten.append((export, window)))
    site: Any = SimpleNamespace(root=Refusing(tmp_path), state=state, tell=said.append)
    extract = replace(extract_of(pa.table({"id": [1]}), tmp_path), fingerprint="xxh3:0", chunks=())
    staged = Staged(extract, (), Measures(), b"", previous=None, started_at=datetime.now(UTC))

    forget_after_failure(site, staged)

    assert [(extract.export, extract.window.key)] == forgotten
    assert 1 == len(said)
    assert "cannot remove objects" in said[0]
