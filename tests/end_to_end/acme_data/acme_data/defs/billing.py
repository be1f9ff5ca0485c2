"""Exports from Python: one file with a translator, its sensors and its repair job."""

from pathlib import Path

import dagster as dg

from rivet_assets import ExportData, RivetTranslator, build_rivet_definitions

CONFIG = Path(__file__).parents[1] / "billing.yaml"


class Billing(RivetTranslator):
    """Billing's names."""

    def get_asset_spec(self, data: ExportData) -> dg.AssetSpec:
        """Call an asset billing/<export>."""
        spec = super().get_asset_spec(data)
        return spec.replace_attributes(key=dg.AssetKey(["billing", data.export.name]), group_name="billing")


@dg.definitions
def billing() -> dg.Definitions:
    """Load the invoices."""
    return build_rivet_definitions(CONFIG, select=["invoices"], translator=Billing())
