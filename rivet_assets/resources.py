"""The resources of the location, one object each, because definitions that are merged may share only equal objects.

Belongs here: these two. Not here: what they do (`rivet_resources/dagster_resource.py`, `io_manager.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rivet_resources.dagster_resource import Rivet
from rivet_resources.io_manager import Lake

RIVET = Rivet()
RESOURCES: Mapping[str, Any] = {"rivet": RIVET, "lake": Lake(rivet=RIVET)}
