"""What an export's mode is like, for those who treat several modes alike: each mode answers for itself.

Belongs here: the questions. Not here: the answers, which stand in `rivet_assets/modes/<mode>.py`; nobody outside of
that room asks for a mode by its name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class ModeFacts:
    """Answers of one mode; a default is what holds for a mode that has nothing of the kind."""

    name: str  # its word in YAML, for messages
    reads: str = ""  # what a run reads, as part of a sentence
    window: Literal["all", "time", "after", "changes"] = "all"  # what a committed window is: all rows, a time, a step
    keeps_cursor: bool = False  # the state store says where the next run begins
    keeps_boundary: bool = False  # and which rows with the cursor's value were read already
    shards_apart: bool = False  # of `shards`, each has a chain of windows, a cursor and a folder of its own
    counts_runs: bool = False  # planning asks how many runs there were
    follows_log: bool = False  # rows come out of the database's log: no JVM, a position instead of a cursor
    holds_changes: bool = False  # not rows: windows are compared with what they amount to, never read again
    cuts: bool = False  # all rows are read in one run, cut into chunks
    by_ranges: bool = False  # and chunks are ranges of a column's values
    refuses_nulls: bool = False  # a NULL in the column that decides refuses the run
    more_because: str = ""  # why a committed window may have more rows at the source by now
    fewer_because: str = ""
    no_refresh: str = ""  # why there is nothing to forget before a run; '': there is
    no_sample: str = ""  # why rows cannot be read without going on from there; '': they can
    no_repair: str = ""  # what helps in place of reading a window again, with {name}; '': it can be

    @property
    def has_windows(self) -> bool:
        """Return whether each window is a partition of its own, named by its time."""
        return self.window == "time"

    @property
    def narrows(self) -> bool:
        """Return whether each chunk or window asks for some of the rows by a column's values."""
        return self.by_ranges or self.has_windows


@dataclass(frozen=True)
class Cautions:
    """What a user did about things that a preflight warns of."""

    is_dense: bool = False  # chunks have equal numbers of rows
    has_fallback: bool = False  # another column stands in for NULLs of the cursor
    fails_on_nulls: bool = False
