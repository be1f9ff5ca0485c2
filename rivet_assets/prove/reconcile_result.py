"""What comparing an export's windows with their source says: values, their words, their flat facts.

Belongs here: verdicts and how they are told. Not here: counting and reading (`reconcile.py`), documents and exit
codes (`reconcile_report.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from rivet_resources.contracts.mode_facts import ModeFacts
from rivet_resources.prove.compare_rows import RowDifferences

Depth = Literal["counts", "checksums", "rows"]
Answer = Literal["match", "mismatch", "unknown"]
MOST_NAMED = 10


@dataclass(frozen=True)
class ChunkVerdict:
    """One key range of a window, told where it differs; counts are before filters."""

    chunk: int
    source_count: int
    exported_rows: int
    columns: tuple[str, ...] = ()  # whose cells differ, by their sums
    rows: RowDifferences | None = None


@dataclass(frozen=True)
class WindowVerdict:
    """One committed window against the source as it is now; counts are before filters, None: could not be told."""

    window: str
    run_id: str  # whose commit was compared
    verdict: Answer
    text: str
    committed_at: datetime | None = None
    source_count: int | None = None
    exported_rows: int | None = None
    newer_rows: int = 0  # keys above a chunked window's plan, or of the last cursor value: the next run brings them
    outside_rows: int = 0  # of a chunked window: rows that no chunk covers
    chunks_compared: int = 0
    chunks: tuple[ChunkVerdict, ...] = ()  # those that differ
    columns: tuple[str, ...] = ()
    rows: RowDifferences | None = None

    @property
    def broken_chunks(self) -> tuple[int, ...]:
        """Name the chunks to read again; () where only the whole window helps."""
        return () if self.outside_rows else tuple(each.chunk for each in self.chunks)


@dataclass(frozen=True)
class Reconciled:
    """All compared windows of one export."""

    export: str
    mode: str
    depth: Depth
    windows: tuple[WindowVerdict, ...] = ()
    place: str = ""  # where windows were looked for: with `{date}` in the destination, the folder of today

    @property
    def verdict(self) -> Answer:
        """Return the worst: mismatch, then unknown; an export without windows is unknown."""
        found = {each.verdict for each in self.windows}
        return "mismatch" if "mismatch" in found else "match" if found == {"match"} else "unknown"

    @property
    def source_count(self) -> int | None:
        """Add up what the source has; None when a window could not be counted."""
        return total(each.source_count for each in self.windows)

    @property
    def exported_rows(self) -> int | None:
        """Add up what the windows read; None when one does not say."""
        return total(each.exported_rows for each in self.windows)

    @property
    def text(self) -> str:
        """Return it in one line."""
        if not self.windows:
            return f"nothing is committed yet at {self.place}" if self.place else "nothing is committed yet"
        wrong = [each for each in self.windows if each.verdict == "mismatch"]
        unknown = [each for each in self.windows if each.verdict == "unknown"]
        first = (wrong or unknown or list(self.windows))[0]
        if len(self.windows) == 1:
            return first.text
        if not wrong and not unknown:
            return f"{len(self.windows)} windows match their source"
        told = [f"{len(found)} {word}" for found, word in ((wrong, "differ"), (unknown, "unknown")) if found]
        return f"of {len(self.windows)} windows {', '.join(told)}; {first.window}: {first.text}"


def total(counts: Iterable[int | None]) -> int | None:
    """Add up counts; None when one is missing, or there are none."""
    known = list(counts)
    return sum(each for each in known if each is not None) if known and None not in known else None


def facts_of_reconcile(found: Reconciled) -> dict[str, Any]:
    """Return plain figures for metadata: no key, no value of a row, whatever the depth."""
    wrong = [each.window for each in found.windows if each.verdict == "mismatch"]
    more = f" and {len(wrong) - MOST_NAMED} more" if len(wrong) > MOST_NAMED else ""
    facts = {
        "rivet/verdict": found.verdict,
        "rivet/depth": found.depth,
        "rivet/windows": len(found.windows),
        "rivet/windows_mismatched": len(wrong),
        "rivet/windows_unknown": sum(each.verdict == "unknown" for each in found.windows),
        "rivet/source_count": found.source_count,
        "rivet/exported_rows": found.exported_rows,
        "rivet/mismatched": ", ".join(wrong[:MOST_NAMED]) + more,
        "rivet/columns_differing": ", ".join(sorted({name for each in found.windows for name in columns_of(each)})),
        "rivet/text": found.text,
    }
    return {name: value for name, value in facts.items() if value not in (None, "")}


def columns_of(window: WindowVerdict) -> tuple[str, ...]:
    """Name the columns whose sums differ, in the window or in one of its chunks."""
    names = (*window.columns, *(name for chunk in window.chunks for name in chunk.columns))
    return tuple(dict.fromkeys(names))


# --- words ---------------------------------------------------------------------------------------

REMEDY = "`rivet repair --execute` exports it again"
REMEDY_OF_TOPICS = "`on_rerun: append` and another run add a copy of it"


def word_verdict(window: WindowVerdict, mode: ModeFacts) -> str:
    """Return which way a window differs, why that may be, and what helps; or that it matches."""
    here, there = window.source_count or 0, window.exported_rows or 0
    newer = f"; {_rows(window.newer_rows)} came later and come with the next run" if window.newer_rows else ""
    if window.verdict == "match":
        return f"the source has {_rows(here)}, as exported{newer}"
    parts = []
    if here != there:
        many, why = ("more", mode.more_because) if here > there else ("fewer", mode.fewer_because)
        parts.append(
            f"the source has {_rows(abs(here - there))} {many} than were exported ({here} now, {there} exported "
            f"{stamp(window.committed_at)}): {why or 'it changed since'}"
        )
    if window.outside_rows:
        parts.append(f"{_rows(window.outside_rows)} outside of every key range of the export")
    if window.chunks:
        named = ", ".join(str(each.chunk) for each in window.chunks[:MOST_NAMED])
        more = f" and {len(window.chunks) - MOST_NAMED} more" if len(window.chunks) > MOST_NAMED else ""
        parts.append(f"{len(window.chunks)} of {window.chunks_compared} chunks differ: {named}{more}")
    if names := columns_of(window):
        parts.append(f"cells differ in {', '.join(names)}")
    if window.rows is not None:
        parts.append(rows_text(window.rows))
    return "; ".join(parts) + f"{newer}; {REMEDY}"


def rows_text(found: RowDifferences) -> str:
    """Count the rows that differ."""
    if found.is_unreadable:
        return found.note
    note = f" ({found.note})" if found.note else ""
    return (
        f"missing in the parts: {_rows(found.missing)}, extra there: {_rows(found.extra)}, with other cells: "
        f"{_rows(found.different)}{note}"
    )


def stamp(at: datetime | None) -> str:
    """Write when a window was committed."""
    return "at an unknown time" if at is None else f"{at:%Y-%m-%d %H:%M:%S} UTC"


def _rows(count: int) -> str:
    return "1 row" if count == 1 else f"{count} rows"
