"""A window's profile on an asset's page: a table with small pictures, and numbers that Dagster plots.

Belongs here: names of metadata. Not here: what is counted (`rivet_resources/write/profile.py`), words and bars
(`run/judge/profile_text.py`).
"""

from __future__ import annotations

from typing import Any

import dagster as dg

from rivet_assets.dagster.pages.page import plain_text
from rivet_assets.run.judge.profile_text import HEADINGS, profile_rows
from rivet_resources.contracts.rows.profile import WindowProfile

PROFILE = "rivet/profile"
# Columns; each has two or three numbers, and a page shows them all.
MOST_PLOTTED = 20


def profile_facts(profile: WindowProfile | None) -> dict[str, Any]:
    """Return the metadata of a profile; {} without one. Numbers keep their names from run to run, so they plot."""
    if profile is None:
        return {}
    rows = ["| " + " | ".join(map(_cell, row)) + " |" for row in profile_rows(profile)]
    head = ["| " + " | ".join(HEADINGS) + " |", "|---" * len(HEADINGS) + "|"]
    facts: dict[str, Any] = {PROFILE: dg.MarkdownMetadataValue("\n".join([*head, *rows]))}
    for column in profile.columns[:MOST_PLOTTED]:
        facts[f"rivet/null_share/{column.name}"] = round(column.nulls / profile.rows, 6) if profile.rows else 0.0
        facts[f"rivet/distinct/{column.name}"] = column.distinct
        if column.mean is not None:
            facts[f"rivet/mean/{column.name}"] = column.mean
    return facts


def _cell(text: str) -> str:
    return plain_text(text).replace("|", "\\|")
