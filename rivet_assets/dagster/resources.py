"""The resources of the location, one object each, because definitions that are merged may share only equal objects.

Belongs here: these two. Not here: what they do (`rivet_resources/dagster/resource.py`, `dagster/io_manager.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rivet_resources.dagster.io_manager import Lake
from rivet_resources.dagster.resource import Rivet

RIVET = Rivet()
RESOURCES: Mapping[str, Any] = {"rivet": RIVET, "lake": Lake(rivet=RIVET)}
