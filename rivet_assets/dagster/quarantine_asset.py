"""The quarantine of an export as an asset of its own, downstream of it: lineage shows that rows were set aside.

Belongs here: its key, its spec, and what a committed window tells of it. Not here: the check `row_errors` (`specs.py`),
the dead letters themselves (`rivet_resources/write/dead_letters.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import dagster as dg

from rivet_assets.blocks.export import Export
from rivet_assets.modes.partitions import partitions_of
from rivet_assets.run.attempt import Attempt, Site
from rivet_assets.run.judge.quality import MOST_REASONS
from rivet_resources.contracts.addressing import QUARANTINE

DESCRIPTION = (
    "Rows of {name} that a type cannot hold or a step refuses, set aside with their reasons in files of NDJSON. "
    "`rivet quarantine show -e {name}` prints them, `rivet quarantine replay -e {name} --execute` reads them again "
    "after a fix."
)


def quarantine_key(key: dg.AssetKey) -> dg.AssetKey:
    """Return the key of an export's quarantine: `shop/orders_quarantine`."""
    return dg.AssetKey([*key.path[:-1], f"{key.path[-1]}_quarantine"])


def quarantine_specs(exports: Iterable[Export], *, spec_of: Callable[[Export], dg.AssetSpec]) -> list[dg.AssetSpec]:
    """Describe the quarantines of the exports that set rows aside.

    Args:
        spec_of: what the asset of an export shows.
    """
    # An external asset: nobody materialises it by hand, its events come with those of the export's windows.
    made = [(export, spec_of(export)) for export in exports if "dead_letter" in export.row_policies]
    return [
        dg.AssetSpec(
            quarantine_key(spec.key),
            deps=[spec.key],
            description=DESCRIPTION.format(name=export.name),
            group_name=spec.group_name,
            owners=spec.owners,
            kinds={"ndjson"},
            metadata={"dagster/uri": f"{export.destination.root(export.name).uri.rstrip('/')}/{QUARANTINE}"},
            partitions_def=partitions_of(export),
        )
        for export, spec in made
    ]


def quarantine_event(site: Site, made: Attempt, key: dg.AssetKey) -> dg.AssetMaterialization | None:
    """Return what a window that is committed now tells of the quarantine; None where the export has none."""
    if "dead_letter" not in site.export.row_policies:
        return None
    dead = made.staged.measures.dead
    worst = sorted(dead.items(), key=lambda item: -item[1])[:MOST_REASONS]
    count = "dagster/partition_row_count" if site.export.whole.has_partitions else "dagster/row_count"
    return dg.AssetMaterialization(
        quarantine_key(key),
        partition=made.partition if site.export.whole.has_partitions else None,
        description=f"{sum(dead.values())} rows of window {made.window.key} set aside",
        metadata={
            count: sum(dead.values()),
            "Reasons": dg.MetadataValue.md("\n".join(f"- {rows} × {why}" for why, rows in worst) or "none"),
            "Run": made.staged.extract.run_id,
        },
    )
