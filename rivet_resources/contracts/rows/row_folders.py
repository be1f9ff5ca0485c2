"""Rows in folders by a column's day, month or year: what is asked for, and how the folders are named.

Belongs here: names, and the number that a row's folder goes by. Not here: writing (`write/row_folders.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc

from rivet_resources.canonical import canonical
from rivet_resources.contracts.rows.value_windows import NULL, spell_column

Granularity = Literal["day", "month", "year"]
MONTHS = 12


@dataclass(frozen=True)
class RowFolders:
    """Which column of the rows as published decides, and how long the time is that one folder covers."""

    column: str
    granularity: Granularity = "day"

    def fits(self, kind: pa.DataType) -> bool:
        """Return whether cells of this type have a day."""
        return bool(pa.types.is_date(kind) or pa.types.is_timestamp(kind))

    def numbers(self, cells: pa.ChunkedArray) -> pa.ChunkedArray:
        """Return for each cell the number of its folder: of days, months or years; NULL for NULL. Days are of UTC."""
        if self.granularity == "day":
            return cells.cast(pa.date32(), safe=False).cast(pa.int32())
        years = pc.year(cells)
        if self.granularity == "year":
            return years
        return pc.add(pc.multiply(years, MONTHS), pc.subtract(pc.month(cells), 1))

    def name(self, number: int | None) -> str:
        """Name a folder as Hive does: `created_at=2026-01-31`, `created_at=2026-01`, `created_at=2026`."""
        return f"{spell_column(self.column)}={NULL if number is None else quote(self._word(number), safe='')}"

    def _word(self, number: int) -> str:
        if self.granularity == "day":
            return canonical(pa.scalar(number, pa.int32()).cast(pa.date32()))
        if self.granularity == "year":
            return f"{number:04}"
        return f"{number // MONTHS:04}-{number % MONTHS + 1:02}"
