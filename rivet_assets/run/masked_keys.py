"""Columns that tell rows apart, and masks that make different ones equal.

Belongs here: the one refusal. Not here: keys themselves (`table_version.py`, `drain.py`), tags that came or went
(`masked_columns.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from rivet_resources.errors import ConfigError
from rivet_resources.shape.transforms.mask import Mask
from rivet_resources.shape.transforms.mask_tags import TaggedMasks, TagMasks, resolved

if TYPE_CHECKING:
    from rivet_assets.blocks.export import Export
    from rivet_resources.contracts.relation import Relation

LASTING_MASKS = ("hash",)  # equal cells stay equal, different ones different


def is_by_tag(export: Export) -> bool:
    """Return whether only its relation tells what of an export is masked."""
    return any(isinstance(step, TagMasks) for step in export.steps)


def refuse_merging(export: Export, relation: Relation | None, key: Sequence[str]) -> None:
    """Refuse a mask by which different keys become equal: rows would be merged without a word.

    Args:
        relation: needed where masks are by tag.

    Raises:
        ConfigError
        ColumnTagRefused: the tags of a column cannot be read, or no rule is for them.
    """
    steps = export.steps if relation is None else resolved(export.steps, relation)
    masks = [step for step in steps if isinstance(step, Mask)]
    masks += [mask for step in steps if isinstance(step, TaggedMasks) for mask in step.masks]
    fields = [field for mask in masks if mask.method not in LASTING_MASKS for field in mask.fields]
    hidden = [name for name in key if any(fnmatchcase(name, field) for field in fields)]
    if hidden:
        raise ConfigError(
            f"Export {export.name}: key column {hidden[0]!r} is masked by a method that makes different keys equal, so "
            f"rows could not be told apart. Mask it with `method: hash`, or leave it plain."
        )
