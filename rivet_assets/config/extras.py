"""Which extras exports need, and what is said where one is not installed.

Belongs here: extras of sources, destinations and languages of schemas. Not here: what an extra is
(`rivet_resources/extras.py`), Java, which only a run needs (`launch/run_exports.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from rivet_resources.errors import ExtraMissing

if TYPE_CHECKING:
    from rivet_assets.blocks.export import Export
    from rivet_assets.config.load import RivetConfig
    from rivet_resources.extras import Extra


def extras_of(config: RivetConfig, export: Export) -> list[Extra]:
    """Return the extras that an export needs: its source's, destination's and steps', its schema's language's."""
    _, source = config.source_of(export)
    of_schema = export.schema_registry.extra if export.schema_registry is not None else None
    of_steps = [getattr(step, "extra", None) for step in export.steps]
    # A source with several drivers says which one it was told to use.
    of_source = getattr(source, "extra", source.facts.extra)
    needed = (of_source, export.destination.extra, of_schema, *of_steps)
    return [extra for extra in needed if extra is not None]


def missing_extras(config: RivetConfig, exports: Iterable[Export]) -> ExtraMissing | None:
    """Return one error that names every missing extra of these exports, a line for each; None when there is none."""
    needed = dict.fromkeys(extra for export in exports for extra in extras_of(config, export))
    texts = [str(extra.error()) for extra in needed if extra.missing()]
    return ExtraMissing("\n".join(texts)) if texts else None
