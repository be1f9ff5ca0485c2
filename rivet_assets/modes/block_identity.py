"""What of an export's block decides its rows, as one word: rows of two blocks do not stand beside each other.

Belongs here: which keys count, and the keys of hashes, which a dump of the block hides. Not here: what a chunk's range
adds to it (`chunked.py`), what a plan of a run proves (`plan/fingerprint.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import xxhash

from rivet_assets.blocks.export import NOT_OF_THE_ROWS
from rivet_resources.contracts.relation import Relation
from rivet_resources.errors import ConfigError
from rivet_resources.shape.transforms.mask import Mask
from rivet_resources.shape.transforms.mask_tags import TagMasks, tagged_columns

if TYPE_CHECKING:
    from rivet_assets.blocks.export import Export

# What of the block leaves a chunk as it is, beside what leaves rows as they are: how gently it is read, how often it is
# tried, what is judged behind it.
NOT_OF_A_CHUNK = NOT_OF_THE_ROWS | {
    "source", "tuning", "parallel", "chunk_checkpoint", "chunk_max_attempts", "on_schema_drift", "skip_empty",
    "consistency",
}  # fmt: skip
# A window that is published stays where it is, whatever its next run would be judged by.
NOT_OF_A_WINDOW = NOT_OF_A_CHUNK | {"destination", "quality", "max_errors"}


def block_of(export: Export, relation: Relation) -> str:
    """Hash what decides the rows that an export makes of a relation, columns and masks by tag among it."""
    return identity(
        relation.sql,
        export.model_dump_json(exclude=NOT_OF_A_WINDOW | export.unset_later_keys()),
        *mask_keys(export.steps),
        *columns_of(export, relation),
    )


def identity(*parts: str) -> str:
    """Hash texts, each with its length, so that no two lists meet."""
    return xxhash.xxh3_64_hexdigest("".join(f"{len(part)}:{part}" for part in parts).encode())


def columns_of(export: Export, relation: Relation) -> Iterator[str]:
    """Yield what decides the cells: which columns are masked by a tag, and how each is read."""
    for each in tagged_columns(export.steps, relation) or ():
        yield f"{each.name} {each.rule}"
    for c in relation.columns:
        yield f"{c.name} {c.native} {c.arrow} {c.select} {c.policy} {c.facts}"


def mask_keys(transforms: Sequence[object]) -> Iterator[str]:
    """Yield the keys of the hashes, which a dump of the block hides; '' for one that only a task can read."""
    for step in transforms:
        rules = step.rules.values() if isinstance(step, TagMasks) else ()
        for mask in (step, *(rule.mask() for rule in rules)):
            if isinstance(mask, Mask):
                try:
                    yield mask.key_text() or ""
                except ConfigError:
                    yield ""
