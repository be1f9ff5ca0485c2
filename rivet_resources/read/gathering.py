"""Let all tasks of a stage begin at one instant, where their source has to be locked for it (`contracts/aligning.py`).

Belongs here: when there is a meeting, who comes to it, and whose fault is told. Not here: how connections meet
(`engines/mysql/aligned.py`).
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from rivet_resources.contracts.aligning import Aligns, Meeting
from rivet_resources.contracts.extract import Extract
from rivet_resources.errors import RivetError

Event = Callable[[str, Mapping[str, Any]], None]
log = logging.getLogger(__name__)


@dataclass
class Gathering:
    """The meeting of one stage: each group of chunks is read by one task, over one connection."""

    extract: Extract
    meeting: Meeting
    groups: Sequence[list[int]]
    ended: threading.Event = field(default_factory=threading.Event)
    fault: RivetError | None = None

    def extract_of(self, group: list[int]) -> Extract:
        """Return the extract as the task of a group gets it."""
        return replace(self.extract, snapshot=self.meeting.place(self.groups.index(group)))

    def lead(self, bring_about: Callable[[], float], on_event: Event | None) -> None:
        """Bring the meeting about; the thread's whole life."""
        try:
            seconds = bring_about()
        except RivetError as error:
            self.fault = error
            return
        # Tasks that failed ended the meeting early: the seconds are then not of an alignment that anybody read by.
        if self.ended.is_set():
            return
        log.info("Export %s: writers were held back for %.3f s", self.extract.export, seconds)
        if on_event is not None:
            on_event("SnapshotsAligned", {"tasks": self.meeting.tasks, "locked_seconds": round(seconds, 3)})


def is_aligned(extract: Extract) -> bool:
    """Return whether the tasks of a stage are to begin at one instant, and the plan says that they can."""
    source = extract.source
    return (
        isinstance(source, Aligns)
        and source.is_aligned
        # Without a shared instant in the plan, or with one chunk alone, locking the table would hold writers back
        # for nothing.
        and extract.consistency == "snapshot"
        and extract.has_several_chunks
    )


@contextmanager
def gathered(extract: Extract, groups: Sequence[list[int]], *, on_event: Event | None) -> Iterator[Gathering]:
    """Hold a meeting while the block runs its tasks.

    Raises:
        RivetError: of the meeting, which explains what the tasks met; else what the block raised.
    """
    assert isinstance(extract.source, Aligns)
    relation = extract.relation.sql if extract.relation.is_table else ""
    gathering = Gathering(extract, Meeting(uuid.uuid4().hex[:12], len(groups), relation), groups)
    application = f"rivet:{extract.export}"
    bring_about = extract.source.align(
        gathering.meeting, application=application, pace=extract.pace, ended=gathering.ended
    )
    thread = threading.Thread(target=gathering.lead, args=(bring_about, on_event), name=f"rivet-align-{extract.export}")
    thread.start()
    try:
        yield gathering
    except RivetError:
        # The leader may be waiting for tasks that will not come any more: it is let go before its thread is waited
        # for.
        gathering.ended.set()
        thread.join()
        # What a task met (a connection that was closed, a lock that it waited for) follows from the meeting's
        # fault, so that one is raised.
        if gathering.fault is not None:
            raise gathering.fault from None
        raise
    finally:
        gathering.ended.set()
        thread.join()


def leave(extract: Extract) -> None:
    """End what a task of this process read over, where it came to a meeting."""
    if extract.snapshot is not None and isinstance(extract.source, Aligns):
        extract.source.leave(extract.snapshot)
