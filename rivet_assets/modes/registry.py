"""Every mode there is, by the word that YAML uses for it. One more is one line here, beside its own file."""

from __future__ import annotations

from collections.abc import Mapping

from rivet_assets.blocks.export import Export
from rivet_assets.modes.cdc import Cdc
from rivet_assets.modes.chunked import Chunked
from rivet_assets.modes.full import Full
from rivet_assets.modes.incremental import Incremental
from rivet_assets.modes.poll import Poll
from rivet_assets.modes.time_window import TimeWindow

MODES: Mapping[str, type[Export]] = {
    "full": Full,
    "incremental": Incremental,
    "chunked": Chunked,
    "time_window": TimeWindow,
    "cdc": Cdc,
    "poll": Poll,
}
