"""How far a poll has come: the place of the last delivered row, typed, as one text.

Belongs here: the watermark's shape, its JSON, and refusing one that no longer fits the table. Not here: finding places
in a table (`places.py`), keeping the text (`state/cursors.py`).

Values are canonical texts in the source's own precision with the type they have: a key kept as plain text would sort
"10" before "2", and whole seconds would read a row of a fraction for ever.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rivet_resources.contracts.types import Column
from rivet_resources.errors import SourceError, StateError


@dataclass(frozen=True)
class Mark:
    """One value of a place."""

    column: str
    type: str  # as Arrow prints it
    value: str  # canonical


Place = tuple[Mark, ...]  # the stamp, then the key


@dataclass(frozen=True)
class Tie:
    """The keys that had the last stamp, by a digest each, or by one of all where they are many (`ties.py`)."""

    ids: tuple[str, ...] = ()
    digest: str = ""


@dataclass(frozen=True)
class Watermark:
    """The last delivered row of each pass, None before the first; how many full diffs, and windows, had rows.

    `…_tie`: who had its stamp then; None: not known.
    """

    updated: Place | None = None
    deleted: Place | None = None
    diffs: int = 0
    windows: int = 1  # a watermark of before they were counted may stand for any number: none had a `__seq` so high
    updated_tie: Tie | None = None
    deleted_tie: Tie | None = None

    @property
    def text(self) -> str | None:
        """Return the one text of it, None when there is nothing to remember."""
        found: dict[str, Any] = {}
        for name, place in (("updated", self.updated), ("deleted", self.deleted)):
            if place is not None:
                found[name] = [{"column": mark.column, "type": mark.type, "value": mark.value} for mark in place]
        for name, tie in (("updated_tie", self.updated_tie), ("deleted_tie", self.deleted_tie)):
            if tie is not None:
                # A text for one digest of all, a list for one per key: `_tie` tells them apart by that.
                found[name] = tie.digest or list(tie.ids)
        if self.diffs:
            found["diffs"] = self.diffs
        # Left out at 1, or the watermarks of before would be spelled otherwise, and name other windows.
        if self.windows > 1:
            found["windows"] = self.windows
        return json.dumps(found, ensure_ascii=False, separators=(",", ":"), sort_keys=True) if found else None


def parse(text: str | None, *, export: str) -> Watermark:
    """Read a watermark back.

    Raises:
        StateError: it is no text of ours.
    """
    if text is None:
        return Watermark()
    try:
        found = json.loads(text)
        places = {name: tuple(Mark(**mark) for mark in found.get(name, ())) for name in ("updated", "deleted")}
        counts = int(found.get("diffs", 0)), int(found.get("windows", 1))
        ties = [_tie(found.get(name)) for name in ("updated_tie", "deleted_tie")]
        return Watermark(places["updated"] or None, places["deleted"] or None, *counts, *ties)
    except (ValueError, TypeError, AttributeError):
        # Whatever is wrong with it: the cursor of another mode may be any text, also JSON of another shape.
        raise StateError(
            f"The cursor of export {export} is no watermark of mode poll. Was the export of another mode before? "
            f"Run `rivet state reset` for it: the next run then reads the table from its beginning."
        ) from None


def _tie(held: list[str] | str | None) -> Tie | None:
    """Read what is remembered of one stamp: digests of keys, or one of all."""
    if held is None:
        return None
    return Tie((), held) if isinstance(held, str) else Tie(tuple(map(str, held)))


def check_fits(place: Place | None, columns: Sequence[Column], *, export: str) -> None:
    """Refuse to go on from a place in another order than the one asked for now.

    Raises:
        SourceError: naming both orders.
    """
    if place is None:
        return
    held = [(mark.column, mark.type) for mark in place]
    wanted = [(column.name, str(column.arrow)) for column in columns]
    # Types too: places compare by typed literals, and one of an altered key could mean other rows.
    if held != wanted:
        raise SourceError(
            f"Export {export} was polled in the order of {_spell(held)}, and is now to be polled in that of "
            f"{_spell(wanted)}; places of the two cannot be compared. Set it back, or run `rivet state reset`: the "
            f"next run then reads the table from its beginning."
        )


def _spell(order: Sequence[tuple[str, str]]) -> str:
    return ", ".join(f"{column} ({kind})" for column, kind in order)
