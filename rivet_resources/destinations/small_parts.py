"""Parts that one request carries, whatever the store: where they wait.

Belongs here: what the small parts of all object stores have in common. Not here: how large they are and their requests
(`s3_small_parts.py`, `azure_small_parts.py`).
"""

from __future__ import annotations

import uuid

from rivet_resources.contracts.addressing import STAGED
from rivet_resources.contracts.parts import Part


def is_staged_whole(part: Part) -> bool:
    """Return whether a part waits as an object of its own; else in pieces, as all did up to 2026-11."""
    return "object" in part.staged


def staged_name(run_id: str) -> str:
    """Name a new staged object; no glob for files of a format finds it, and no two attempts meet."""
    return f"{STAGED}/{run_id}/{uuid.uuid4().hex}.part"
