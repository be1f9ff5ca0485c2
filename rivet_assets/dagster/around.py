"""A project's own function around the step of an export, as `@rivet_assets` puts it there.

Belongs here: how the function gets to run, and gets at the step. Not here: the decorator (`code_first.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import dagster as dg

if TYPE_CHECKING:
    from rivet_assets.blocks.export import Export

Body = Callable[[dg.AssetExecutionContext], Iterator[Any]]


@dataclass
class RivetRun:
    """One export in a run, as the function around it sees it."""

    export: Export
    _events: Iterator[Any] = field(repr=False)
    began: bool = False

    def run(self) -> Iterator[Any]:
        """Yield the events of the export, which is read, judged and published meanwhile; once a run."""
        self.began = True
        yield from self._events


@dataclass(frozen=True)
class Around:
    """The function, and the resources of the project that it needs."""

    function: Callable[[dg.AssetExecutionContext, RivetRun], Iterator[Any]]
    resource_keys: frozenset[str] = frozenset()

    def body(self, export: Export, events: Body) -> Body:
        """Return the body of a step: the function, with the export's own body inside."""

        def surrounded(context: dg.AssetExecutionContext) -> Iterator[Any]:
            run = RivetRun(export, events(context))
            yield from self.function(context, run)
            if not run.began:
                raise dg.Failure(
                    f"{self.function.__name__} never ran export {export.name}; write `yield from rivet.run()` in it.",
                    allow_retries=False,
                )

        return surrounded


def surround(around: Around | None, export: Export, events: Body) -> Body:
    """Return the body of a step, with the function around it where there is one."""
    return events if around is None else around.body(export, events)
