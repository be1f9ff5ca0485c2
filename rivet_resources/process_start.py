"""What a process of ours spares itself: collections of garbage that is none, packages of frames, heaps of its threads.

Belongs here: the start of commands and of Spark's Python workers, and of a task's threads. Not here: processes that run
other people's code, such as a code location, where nothing may be hidden.

Of a run of a thousand rows, 2.7 CPU s in all, 0.5 were the garbage collector's: an import makes objects that stay, and
each collection looks at all of them again.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

# New objects before a collection, and collections before one of older objects.
WHILE_STARTING = (50_000, 20, 10)
USUAL = (700, 10, 10)  # Python 3.11 to 3.13
# Another 0.3 CPU s of a small run, where somebody has installed them: pyarrow imports pandas to ask whether a list is
# one of its columns, ADBC imports polars (measured 2026-11).
FRAMES = ("pandas", "polars")
M_ARENA_MAX = -8  # <malloc.h>


def collect_rarely() -> None:
    """Collect garbage rarely until `settle`: for a process that begins to import."""
    gc.set_threshold(*WHILE_STARTING)


def settle() -> None:
    """End what `collect_rarely` began; what is there by now is never looked at again. Nothing where it never began."""
    if gc.get_threshold() == WHILE_STARTING:
        # What was imported stays until the end: moved out of the collector's sight, it costs no later collection
        # anything.
        gc.freeze()
        gc.set_threshold(*USUAL)


def import_without_frames(*names: str) -> None:
    """Import modules, those that are installed, so that they find neither pandas nor polars; pyarrow too.

    pyarrow asks once, at its first array. It finds pandas all the same when somebody wants a frame of it later.
    """
    with _hidden(FRAMES):
        for name in names:
            # An extra that is not installed is reported by who needs it.
            with suppress(ImportError):
                importlib.import_module(name)
        with suppress(ImportError):
            importlib.import_module("pyarrow").repeat(False, 0)


def share_one_heap() -> None:
    """Let threads that start from now on share one heap of the C library; nothing where it is another one than glibc.

    A page is read in one thread and freed in another. With a heap each, glibc keeps what was freed for the thread that
    asked for it: a task of 5 million narrow rows then takes 70 to 100 MB more, for the same CPU (measured 2026-11).
    """
    with suppress(Exception):
        ctypes.CDLL(None).mallopt(M_ARENA_MAX, 1)


class _Hidden:
    """A finder that comes before all others and finds nothing of some packages, in the thread that made it."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self._names = names
        self._thread = threading.get_ident()  # others may want a frame meanwhile

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        """Leave a module to the next finder.

        Raises:
            ModuleNotFoundError: it is hidden.
        """
        # Not None in `sys.modules`, as one does in Python: what Cython compiled takes that for the package.
        if name.partition(".")[0] in self._names and threading.get_ident() == self._thread:
            raise ModuleNotFoundError(f"{name} is not needed here", name=name)


@contextmanager
def _hidden(names: tuple[str, ...]) -> Iterator[None]:
    """Let no import of this thread find these packages meanwhile; those that are there already stay."""
    finder = _Hidden(names)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
