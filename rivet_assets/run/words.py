"""Sizes and windows in words, wherever they are told."""

from __future__ import annotations

from collections.abc import Sequence


def human_bytes(count: float) -> str:
    """Write a size as people read it: 512 B, 1.5 KB, 3.2 MB."""
    for unit in ("B", "KB", "MB", "GB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TB"


def window_words(windows: Sequence[str]) -> str:
    """Name windows shortly: the one, or first … last and how many."""
    if len(windows) <= 1:
        return "".join(windows)
    return f"{windows[0]} … {windows[-1]} ({len(windows)})"
