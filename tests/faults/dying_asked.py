"""A process that runs one export as it is asked to, and dies, without a goodbye, at a place on its command line.

    python -m tests.faults.dying_asked CONFIG PLACE [today=DAY] [full_refresh]

Places: those of `dying.py`, and `delete-N`, in place of the N-th time that something is removed at the destination.
`today` is the day that the run takes it to be.
"""

from __future__ import annotations

import itertools
import os
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

from rivet_assets.config.load import load_config
from rivet_assets.definitions import definitions_of
from rivet_assets.run import attempt
from tests.faults.dying import DIED, die_after_pages, die_in_publish


def die_in_delete(root: type, count: int) -> None:
    """End the process in place of the n-th removal; one of nothing does not count."""
    original, seen = root.delete, itertools.count(1)  # type: ignore[attr-defined]

    def delete(self: Any, paths: Any) -> Any:
        paths = list(paths)
        if paths and next(seen) == count:
            os._exit(DIED)
        return original(self, paths)

    root.delete = delete  # type: ignore[attr-defined]


def on(day: str) -> None:
    """Let runs begin at three in the morning of a day."""

    class Clock(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> datetime:  # type: ignore[override]
            return datetime.fromisoformat(f"{day}T03:00:00+00:00")

    attempt.datetime = Clock  # type: ignore[misc]


def main() -> None:
    """Run, and die there."""
    path, place, *asked = sys.argv[1:]
    config = load_config(Path(path))
    (export,) = config.exports
    kind, _, number = place.partition("-")
    if kind == "delete":
        die_in_delete(type(export.destination.root(export.name)), int(number))
    elif kind == "page":
        die_after_pages(type(config.source_of(export)[1]), 1)
    elif place:
        die_in_publish(place)
    day = next((each.partition("=")[2] for each in asked if each.startswith("today=")), "")
    if day:
        on(day)
    run_config = {"ops": {f"sqlite__{export.name}": {"config": {"full_refresh": True}}}}
    result = (
        definitions_of(config)
        .resolve_implicit_global_asset_job_def()
        .execute_in_process(
            partition_key=day or None,
            run_config=run_config if "full_refresh" in asked else {},
            raise_on_error=False,
        )
    )
    print("success" if result.success else "failed")


if __name__ == "__main__":
    main()
