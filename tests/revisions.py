"""Dagster's migrations are read once per process, not once per instance in memory.

Each such instance stamps two databases with the newest revision, for which alembic loads all of them: 0.08 of the 0.56
CPU s of a small export (profiled 2026-11-23). `rivet run` pays it once, a worker of tests a thousand times.
"""

from functools import lru_cache

from alembic.script import ScriptDirectory
from dagster._core.storage.event_log import in_memory as events
from dagster._core.storage.runs import in_memory as runs
from dagster._core.storage.sql import get_alembic_config


def read_once() -> None:
    """Let all instances of this process share what was read for the first; Dagster keeps one configuration each."""
    ScriptDirectory.from_config = staticmethod(lru_cache(ScriptDirectory.from_config))


def read_now() -> None:
    """Read them before processes are forked that would each read them."""
    read_once()
    for storage in (runs, events):
        ScriptDirectory.from_config(get_alembic_config(str(storage.__file__), "sqlite/alembic/alembic.ini")).get_heads()
