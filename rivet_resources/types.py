"""The type contract: what every source value becomes, in every mode. Facts as tables, one per engine.

Belongs here: Column, the override words of `columns:`, the facts. Not here: how an engine reads its
catalog (`sources/`). Nobody else decides what a type becomes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import pyarrow as pa

Fidelity = Literal["exact", "compatible", "logical_string", "lossy"]
SpecialValue = Literal["fail", "null", "text"]


@dataclass(frozen=True)
class Column:
    """One column of a relation, with the type its cells will have in a part.

    `select` is the SQL that asks for it (quoted, without alias); `wire` the Arrow type in which the driver
    delivers that expression, when it is not `arrow`. `policy` is what happens to a value `arrow` cannot hold.
    """

    name: str
    native: str  # as the engine's catalog spells it: numeric(12,2)
    arrow: pa.DataType
    select: str
    fidelity: Fidelity = "exact"
    logical: str = ""  # json, uuid, enum, interval …; '' for plain
    nullable: bool = True
    policy: SpecialValue = "fail"
    comment: str = ""
    facts: tuple[tuple[str, str], ...] = ()  # engine-private plain facts the decoder needs, e.g. (("kind", "numeric"),)

    @property
    def field(self) -> pa.Field:
        """Describe the column to Arrow and Parquet readers."""
        metadata = {"rivet.native_type": self.native, "rivet.fidelity": self.fidelity}
        if self.logical:
            metadata["rivet.logical_type"] = self.logical
        return pa.field(self.name, self.arrow, nullable=self.nullable, metadata=metadata)
