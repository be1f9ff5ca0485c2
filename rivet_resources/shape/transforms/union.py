"""Every step there is: the union the configuration reads, discriminated by `type`.

Belongs here: one line per step. Not here: the key `transforms:` of an export (`rivet_assets/config/load.py`).
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from rivet_resources.shape.transforms.add import Add
from rivet_resources.shape.transforms.cast import Cast
from rivet_resources.shape.transforms.coalesce import Coalesce
from rivet_resources.shape.transforms.columns import Drop, Keep
from rivet_resources.shape.transforms.compute import Compute
from rivet_resources.shape.transforms.filter import Filter
from rivet_resources.shape.transforms.flatten import Flatten
from rivet_resources.shape.transforms.hash_bucket import HashBucket
from rivet_resources.shape.transforms.mask import Mask
from rivet_resources.shape.transforms.rename import Rename
from rivet_resources.shape.transforms.set_null import SetNull
from rivet_resources.shape.transforms.text import Case, Concat, Replace, Split, Substring, Trim
from rivet_resources.shape.transforms.times import Timestamp, Timezone

STEPS = (
    Filter, Mask, Rename, Drop, Keep, Cast, Add, Compute, Case, Trim, Replace, Substring, Split, Concat, Coalesce,
    SetNull, Timestamp, Timezone, Flatten, HashBucket,
)  # fmt: skip

Step = Annotated[
    Filter | Mask | Rename | Drop | Keep | Cast | Add | Compute | Case | Trim | Replace | Substring | Split | Concat
    | Coalesce | SetNull | Timestamp | Timezone | Flatten | HashBucket,
    Field(discriminator="type"),
]  # fmt: skip
