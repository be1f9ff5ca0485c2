"""What a process of ours spares itself while it starts, and that nothing is gone for it later."""

from __future__ import annotations

import gc
import importlib.util
import subprocess
import sys

import pytest

from rivet_resources import process_start

pytestmark = pytest.mark.skipif(not importlib.util.find_spec("pandas"), reason="pandas is not installed")


def told(code: str) -> str:
    """Run Python in a process of its own; what it prints."""
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.strip()


def test_arrow_makes_arrays_without_pandas() -> None:
    """pyarrow imports pandas at its first array, which costs 0.3 CPU s; not after `import_without_frames`."""
    array = "import sys, pyarrow as pa; pa.repeat(1, 2); print('pandas' in sys.modules)"

    assert told(array) == "True"
    assert told(f"from rivet_resources import process_start as p; p.import_without_frames(); {array}") == "False"


def test_frames_can_still_be_made() -> None:
    """A frame asked of Arrow later finds pandas as ever."""
    code = """
from rivet_resources.process_start import import_without_frames
import_without_frames("json", "a_module_that_nobody_has")
import pyarrow as pa
print(pa.table({"n": [1, 2]}).to_pandas()["n"].sum())
import pandas
print(pa.array(pandas.Series([1, None])).null_count)
"""

    assert told(code).split() == ["3", "1"]


def test_garbage_is_collected_as_usual_when_the_work_begins() -> None:
    """The start's thresholds end with it; a process that never took them keeps its own."""
    before = gc.get_threshold()
    try:
        gc.set_threshold(123, 4, 5)
        process_start.settle()
        assert gc.get_threshold() == (123, 4, 5)

        process_start.collect_rarely()
        assert gc.get_threshold() == process_start.WHILE_STARTING
        process_start.settle()
        assert gc.get_threshold() == process_start.USUAL
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
