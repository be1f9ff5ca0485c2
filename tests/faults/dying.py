"""A process that runs one export and dies, without a goodbye, at the place named on its command line.

    python -m tests.faults.dying CONFIG PLACE [PARTITION …]

Places: `page` after a page was read (the second, where there are two); `part` after the second part was staged;
and each step of `publish`, just before its effect. Dying is `os._exit`: no cleanup, no `finally`, no `atexit`.
"""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rivet_assets.config.load import load_config
from rivet_assets.launch.run_exports import run_exports
from rivet_resources.commit import publish as commit
from rivet_resources.contracts.extract import Staged
from rivet_resources.dagster import io_manager

DIED = 86
PUBLISH_STEPS = ("parts", "manifest", "success", "cursor", "acknowledge", "metrics")
PLACES = ("page", "part", *PUBLISH_STEPS)


def die_after_pages(source: type, count: int) -> None:
    """End the process once so many pages of this kind of source have been yielded, in whatever chunks."""
    original, seen = source.pages, itertools.count(1)  # type: ignore[attr-defined]

    def pages(self: Any, *args: Any, **kwargs: Any) -> Iterator[Any]:
        for page in original(self, *args, **kwargs):
            if next(seen) > count:
                os._exit(DIED)
            yield page

    source.pages = pages  # type: ignore[attr-defined]


def die_after_parts(root: type, count: int) -> None:
    """End the process once so many parts are staged at this kind of destination."""
    original, seen = root.stage, itertools.count(1)  # type: ignore[attr-defined]

    def stage(self: Any, *args: Any, **kwargs: Any) -> Any:
        staged = original(self, *args, **kwargs)
        if next(seen) >= count:
            os._exit(DIED)
        return staged

    root.stage = stage  # type: ignore[attr-defined]


def die_in_publish(place: str) -> None:
    """End the process just before this effect of `publish`."""
    original = commit.publish

    def publish(staged: Staged, *, step: commit.Step = commit.no_hook, **collaborators: Any) -> Any:
        def before(name: str) -> None:
            step(name)
            if name == place:
                os._exit(DIED)

        return original(staged, step=before, **collaborators)

    io_manager.publish = publish


def main() -> None:
    """Run, and die there."""
    path, place, *partitions = sys.argv[1:]
    config = load_config(Path(path))
    _, source = config.source_of(config.exports[0])
    if place == "page":
        blocks = source.type == "postgres" and config.exports[0].mode == "full"
        die_after_pages(type(source), 0 if blocks else 1)  # a small table read by blocks is one page
    elif place == "part":
        export = config.exports[0]
        die_after_parts(type(export.destination.root(export.name)), 2 if partitions or export.mode == "chunked" else 1)
    else:
        die_in_publish(place)
    (outcome,) = run_exports(config, partitions=tuple(partitions))
    print(outcome.status, outcome.message)


if __name__ == "__main__":
    main()
