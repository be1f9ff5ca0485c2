"""A data team's project, as `dg init` makes one; Rivet is a package that it has installed."""

from pathlib import Path

import dagster as dg


@dg.definitions
def defs() -> dg.Definitions:
    """Load everything below `defs/`."""
    return dg.load_from_defs_folder(path_within_project=Path(__file__).parent)
