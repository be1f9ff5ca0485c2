"""What a process of ours spares itself while it starts, and that nothing is gone for it later."""

from __future__ import annotations

import gc
import importlib.util
import platform
import subprocess
import sys
from pathlib import Path

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


HEAPS = """
import ctypes, sys, threading
from rivet_resources.process_start import share_one_heap

if sys.argv[1] == "shared":
    share_one_heap()
libc = ctypes.CDLL(None)
libc.fopen.restype = libc.malloc.restype = ctypes.c_void_p
together = threading.Barrier(4)

def take():
    together.wait()
    libc.malloc(5000)

threads = [threading.Thread(target=take) for _ in range(4)]
for each in threads:
    each.start()
for each in threads:
    each.join()
file = ctypes.c_void_p(libc.fopen(sys.argv[2].encode(), b"w"))
libc.malloc_info(0, file)
libc.fclose(file)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library than glibc")
@pytest.mark.parametrize("whose", ["shared", "their own"])
def test_threads_share_one_heap(whose: str, tmp_path: Path) -> None:
    """As the C library tells itself, of a process of its own; without us each thread makes one."""
    heaps = tmp_path / "heaps.xml"

    subprocess.run([sys.executable, "-c", HEAPS, whose, str(heaps)], check=True)

    assert (heaps.read_text().count("<heap nr=") == 1) == (whose == "shared")
