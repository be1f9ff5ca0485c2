"""What a polled table tells of its rows: a value that modes make and `shape` reads."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PollShape:
    """Which columns of a row tell what it is; column names, '' for none.

    `fallback` stands in where `updated_at` is NULL. `window` is how many windows of the export came before.
    """

    updated_at: str
    created_at: str = ""
    deleted_at: str = ""
    fallback: str = ""
    window: int = 0
