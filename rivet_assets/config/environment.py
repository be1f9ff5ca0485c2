"""What the code location is told by its environment: $RIVET_CONFIG and $RIVET_PARAMS.

Belongs here: reading these two. Not here: secrets (resolved at connect), $RIVET_STATE_URL (`state/store.py`).
"""

from __future__ import annotations

import os
from pathlib import Path

from rivet_resources.errors import ConfigError


def config_files() -> list[Path]:
    """List the files that $RIVET_CONFIG means: itself, or the YAML files of a folder; [] when it is not set.

    Raises:
        ConfigError: it is set, and there is none.
    """
    configured = os.environ.get("RIVET_CONFIG")
    if not configured:
        return []
    path = Path(configured)
    if path.is_dir():
        found = sorted(file for file in path.iterdir() if file.suffix in (".yaml", ".yml"))
    else:
        found = [path] if path.exists() else []
    if not found:
        raise ConfigError(
            f"RIVET_CONFIG is {path}, where there is no YAML file. Name a rivet.yaml, or a folder of them."
        )
    return found


def params() -> dict[str, str]:
    """Read $RIVET_PARAMS, `name=value` lines or a comma-separated list of them.

    Raises:
        ConfigError: an entry has no `=`; its text is not shown, since it may be a secret.
    """
    given = os.environ.get("RIVET_PARAMS", "")
    entries = [entry.strip() for entry in (given.splitlines() if "\n" in given else given.split(",")) if entry.strip()]
    if any("=" not in entry for entry in entries):
        raise ConfigError(
            "RIVET_PARAMS has an entry without '='. Write name=value, several separated by commas or lines."
        )
    return dict(entry.split("=", 1) for entry in entries)
