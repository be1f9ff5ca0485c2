"""No row lost, doubled or wrong: 500 random workloads per engine, each made of its seed.

`pytest tests/workloads --whole` runs all; otherwise a few run, others each day. A failure tells how to run it again.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lab import lab_in
from tests.lab_engines import ENGINES
from tests.workloads.plan import plan
from tests.workloads.run import doing

pytestmark = [pytest.mark.faults, pytest.mark.vast]

SEEDS = range(500)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("engine", ENGINES)
def test_no_row_is_lost_doubled_or_wrong(
    engine: str, seed: int, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is written, altered and killed around it, the export shows what its mode promises."""
    workload = plan(engine, seed)
    lab = lab_in(tmp_path, ENGINES[engine], request, monkeypatch)
    with doing(workload, lab) as made:
        try:
            made.all()
        except Exception as error:
            again = f"pytest -n 0 'tests/workloads/test_workloads.py::{request.node.name}'"
            steps = "\n  ".join(made.told)
            raise AssertionError(f"{again}\n{workload.mode} {made.block()}  {steps}\n{error}") from error
