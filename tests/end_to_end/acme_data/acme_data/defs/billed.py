"""One export from Python, with a function around it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg

from rivet_assets import RivetRun, rivet_assets

CONFIG = Path(__file__).parents[1] / "billing.yaml"


@rivet_assets(config=CONFIG, select=["orders"], required_resource_keys={"rivet"})
def billed_orders(context: dg.AssetExecutionContext, rivet: RivetRun) -> Iterator[Any]:
    """Run the export, and say so."""
    context.log.info(f"before {rivet.export.name}, with the project's own {context.resources.rivet}")
    yield from rivet.run()
