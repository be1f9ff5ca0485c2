"""Many windows in one run: the next ones are staged while one is committed, and all are committed in order.

Belongs here: looking ahead, and what failed windows mean for the rest. Not here: one window (`attempt.py`), what
Dagster is told (`dagster/export_asset.py`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass

from rivet_assets.run.attempt import Attempt, Site, attempt
from rivet_resources.contracts.extract import Window
from rivet_resources.errors import (
    WORST_FIRST,
    BucketMissing,
    ConfigError,
    DestinationAuth,
    DriftRefused,
    ProvenanceRefused,
    RivetError,
    SourceAuth,
    SourceError,
    SourceMissing,
    SourcePermission,
    SourceTls,
    SourceUnreachable,
    SparkUnavailable,
    StateError,
    UnknownColumn,
    UnknownTable,
    UnsupportedColumn,
    WindowConflict,
)
from rivet_resources.schema_registry.errors import SchemaRegistryError, SchemaUnreadable

# Reading a day of rows takes less time than planning it, starting its job and committing it, so a backfill done one by
# one would mostly wait.
# Windows being staged at once; each holds a connection and a snapshot at the source.
AHEAD = 4
# Errors that every other window would meet too: the rest is not tried.
HOPELESS = (
    BucketMissing, ConfigError, DestinationAuth, DriftRefused, ProvenanceRefused, SchemaRegistryError,
    SchemaUnreadable, SourceAuth, SourceMissing,
    SourcePermission, SourceTls,
    SourceUnreachable, SparkUnavailable, StateError, UnknownColumn, UnknownTable, UnsupportedColumn, WindowConflict,
)  # fmt: skip
# Those of one database alone, where each window is read in another.
OF_ONE_SHARD = (ConfigError, DriftRefused, ProvenanceRefused, SourceError)
MOST_NAMED = 10  # windows in one message


@dataclass(frozen=True)
class RefusedWindow:
    """A window that was not published, and why."""

    window: str
    error: RivetError
    is_of_shard: bool = False  # so that the others are read elsewhere

    @property
    def is_hopeless(self) -> bool:
        """Return whether the windows after it would fail the same way."""
        return isinstance(self.error, HOPELESS) and not (self.is_of_shard and isinstance(self.error, OF_ONE_SHARD))


@dataclass(frozen=True)
class Ready:
    """A window whose turn has come."""

    window: Window
    staging: Future[tuple[ExitStack, Attempt]]

    @contextmanager
    def attempt(self) -> Iterator[Attempt]:
        """Enter the attempt as if it were made here.

        Raises:
            RivetError: whatever staging it raised.
        """
        stack, made = self.staging.result()
        with stack:
            yield made


def stage_ahead(site: Site, windows: Sequence[Window]) -> Generator[Ready, None, None]:
    """Stage windows, `AHEAD` of them at once, and give them in their order; close it to drop those not taken."""
    waiting: deque[Ready] = deque()
    with ThreadPoolExecutor(AHEAD, thread_name_prefix="rivet-window") as pool:
        try:
            for window in windows:
                # Each window waits staged, and invisible, until it is taken: commits come in the order of the windows,
                # so a backfill that stops half-way has published a beginning without holes.
                waiting.append(Ready(window, pool.submit(_stage, site, window)))
                if len(waiting) >= AHEAD:
                    yield waiting.popleft()
            while waiting:
                yield waiting.popleft()
        finally:
            # Left without being taken: a window before them failed for good, or the run was told to end.
            for ready in waiting:
                _drop(ready)


def summary(export: str, refused: Sequence[RefusedWindow], *, of: int, tried: int) -> tuple[RivetError, str]:
    """Return the error that decides the exit code, and one text that names the windows."""
    codes = [each.error.exit_code for each in refused]
    worst = next((code for code in WORST_FIRST if code in codes), codes[0])
    first = next(each for each in refused if each.error.exit_code == worst)
    if of == 1:
        return first.error, str(first.error)
    names = ", ".join(each.window for each in refused[:MOST_NAMED])
    more = f" and {len(refused) - MOST_NAMED} more" if len(refused) > MOST_NAMED else ""
    untried = f" {of - tried} windows after it were not tried." if tried < of else ""
    return first.error, (
        f"Export {export}: {len(refused)} of {of} windows were not published: {names}{more}.{untried} "
        f"The others are. {first.window}: {first.error}"
    )


def _stage(site: Site, window: Window) -> tuple[ExitStack, Attempt]:
    stack = ExitStack()
    return stack, stack.enter_context(attempt(site, window))


def _drop(ready: Ready) -> None:
    """End an attempt that nobody will publish, as interrupted."""
    if ready.staging.cancel():
        return
    try:
        stack, _ = ready.staging.result()
    except RivetError:
        return
    # No `Exception`, so that the run is recorded as interrupted and not as failed.
    stop = GeneratorExit("the run ended before the window was published")
    with suppress(GeneratorExit):
        stack.__exit__(GeneratorExit, stop, None)
