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


def human_seconds(seconds: float) -> str:
    """Write a duration as people read it: 0.4 s, 12 s, 5 min, 3 h 20 min, 2 d 4 h."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 90:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    days, hours = divmod(hours, 24)
    return f"{days} d {hours} h" if hours else f"{days} d"


def window_words(windows: Sequence[str]) -> str:
    """Name windows shortly: the one, or first … last and how many."""
    if len(windows) <= 1:
        return "".join(windows)
    return f"{windows[0]} … {windows[-1]} ({len(windows)})"
