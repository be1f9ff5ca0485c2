"""A check of a window that a package brings (`rivet.checks`): one number of its rows, which a contract bounds.

Belongs here: the protocol. Not here: bounds, severity and the verdict (`rivet_assets/blocks/contract.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

if TYPE_CHECKING:
    import pyarrow.dataset as ds


class WindowCheck(Protocol):
    """One `measure:` of `contract.checks`; a block of YAML, frozen and plain."""

    @property
    def type(self) -> str:
        """Name the check, as in YAML."""

    def refuses(self, schema: pa.Schema) -> str:
        """Return why it cannot measure such columns, known before a row is read; '' when it can."""

    def measure(self, rows: ds.Dataset) -> float | None:
        """Return the number over all rows of a staged window, which nobody else sees yet; None where there is none.

        Raises:
            Exception: the window is kept back; the text is not shown, as it may hold a value.
        """
