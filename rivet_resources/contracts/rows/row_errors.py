"""What becomes of a row that cannot be exported, and how such a row is told on its way from a page to the quarantine.

Belongs here: the three policies, and the two shapes. Not here: finding the rows (`shape/transforms/separate.py`,
`engines/shared/cells.py`), writing them down (`write/dead_letters.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

RowPolicy = Literal["stop", "skip", "dead_letter"]
ROW_POLICIES: tuple[RowPolicy, ...] = ("stop", "skip", "dead_letter")
Places = npt.NDArray[np.bool_]  # one per row of a page: whether it is meant


@dataclass(frozen=True)
class RefusedCells:
    """Cells of one column that its type cannot hold, NULL in the page they came with."""

    column: str
    why: str  # what they are, without any value
    rows: Places


@dataclass(frozen=True)
class RefusedRows:
    """Rows taken out of a page for one reason, as the source typed them."""

    rows: pa.Table
    where: str  # who refused: `type`, `step 2 (cast)`, or `contract`
    column: str  # '' where no single one is at fault
    why: str  # without any value
    policy: RowPolicy
    check: str = ""  # of a contract, that they break; '' for none

    @property
    def reason(self) -> str:
        """Name the reason as it is counted: `step 2 (cast), age: cannot become int32`."""
        return f"{', '.join(filter(None, (self.where, self.column)))}: {self.why}"
