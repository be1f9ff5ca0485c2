"""One answer of `rivet check` for an export with shards, each of which was looked at by itself.

Belongs here: joining. Not here: looking (`check.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING

from rivet_assets.modes.by_shard import kept_as, shards_apart
from rivet_assets.preflight.checked import Checked
from rivet_assets.preflight.verdict import worst

if TYPE_CHECKING:
    from rivet_assets.blocks.export import Export


def looked_at_as(export: Export) -> str:
    """Name an export as it is looked at: one with shards by the only one that is left of them."""
    return kept_as(export, next(iter(export.shards or ("",))))


def join_shards(found: Mapping[str, Checked], exports: Sequence[Export]) -> dict[str, Checked]:
    """Return one answer for each export: of shards the worst decides, and those that cannot be read are named."""
    joined = {}
    for export in exports:
        seen = {shard: found[looked_at_as(alone)] for shard, alone in shards_apart(export)}
        one = next(iter(seen.values())) if export.shards is None else _join(seen)
        joined[export.name] = replace(one, export=export.name)
    return joined


def _join(seen: Mapping[str, Checked]) -> Checked:
    faults = {shard: each for shard, each in seen.items() if each.error is not None}
    if faults:
        told = "; ".join(f"shard {shard}: {each.error}" for shard, each in faults.items())
        decisive = next(iter(faults.values()))
        assert decisive.error is not None
        # A copy: exports of one source that cannot be opened share what it raised.
        error = copy(decisive.error)
        error.args = (told, *error.args[1:])
        return replace(decisive, error=error)
    verdict = worst([each.verdict for each in seen.values() if each.verdict is not None])
    rows = [each.rows_estimate for each in seen.values()]
    return replace(
        next(each for each in seen.values() if each.verdict == verdict),
        findings=tuple(
            replace(finding, text=f"shard {shard}: {finding.text}")
            for shard, each in seen.items()
            for finding in each.findings
        ),
        rows_estimate=None if None in rows else sum(row for row in rows if row is not None),
        read={name: found for each in seen.values() for name, found in each.read.items()},
    )
