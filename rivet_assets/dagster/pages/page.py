"""What leads an asset's page, and what waits one click away: two tables in markdown.

Belongs here: their form. Dagster 1.13 shows markdown below a thousand characters on the page itself, and longer ones
behind a link; tables of its own it always shows whole. Not here: what they say (`metadata.py`, `drain_asset.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import dagster as dg

from rivet_assets.dagster.pages.window_timeline import Load, windows_table
from rivet_assets.run.words import human_bytes
from rivet_resources.contracts.extract import Staged

SUMMARY = "rivet/summary"
DETAILS = "rivet/details"
# Characters; from here on Dagster shows a link instead.
ON_THE_PAGE = 1000
MOST_PARTS = 50  # in the details; all of them are in the manifest
MORE = "… more under `rivet/details`"


def summary(facts: Mapping[str, Any], notes: Iterable[str] = ()) -> dg.MarkdownMetadataValue:
    """Return what matters, short enough to be seen without a click; notes that do not fit are left to the details."""
    text = table(facts)
    for note in notes:
        longer = f"{text}\n* {plain_text(note)}"
        if len(longer) + len(MORE) + 2 >= ON_THE_PAGE:
            return dg.MarkdownMetadataValue(f"{text}\n* {MORE}")
        text = longer
    return dg.MarkdownMetadataValue(text)


def details(
    facts: Mapping[str, Any],
    *,
    cost: Mapping[str, float],
    staged: Staged | None,
    notes: Iterable[str] = (),
    windows: Sequence[Load] = (),
) -> dg.MarkdownMetadataValue:
    """Return everything else that is known of a run: figures, what it cost its source, its parts.

    Args:
        staged: whose parts are listed, as many as people read; None: none.
        windows: the newest loads of an incremental export.
    """
    sections = [f"**Windows**\n\n{windows_table(windows)}"] if windows else []
    sections.append(table(facts))
    if told := "".join(f"\n* {plain_text(note)}" for note in notes):
        sections.append(f"**Notes**\n{told}")
    if cost:
        sections.append("**What it cost the source**\n" + table(cost))
    if staged is not None and staged.parts:
        rows = "\n".join(
            f"| {_cell(part.path)} | {part.rows:,} | {human_bytes(part.size_bytes)} |"
            for part in staged.parts[:MOST_PARTS]
        )
        left = len(staged.parts) - MOST_PARTS
        more = f"\n\nand {left:,} more; the manifest lists all" if left > 0 else ""
        sections.append(f"**Parts**\n\n| path | rows | size |\n|---|---|---|\n{rows}{more}")
    # So that it is a link, always.
    return dg.MarkdownMetadataValue("\n\n".join(sections).ljust(ON_THE_PAGE))


def table(facts: Mapping[str, Any]) -> str:
    """Return facts as a table of two columns; what is None or an empty text is left out."""
    rows = "\n".join(f"| {name} | {_cell(fact)} |" for name, fact in facts.items() if fact not in (None, ""))
    return f"\n| | |\n|---|---|\n{rows}\n"


def _cell(fact: Any) -> str:
    if isinstance(fact, bool) or not isinstance(fact, int | float):
        return plain_text(str(fact)).replace("|", "\\|")
    return f"{fact:,}"


def plain_text(text: str) -> str:
    """Escape a text so that markdown shows it as it is."""
    return "".join(f"\\{letter}" if letter in "\\`*_[]<>!#" else letter for letter in " ".join(text.split()))
