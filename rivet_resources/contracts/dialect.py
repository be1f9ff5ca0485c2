"""How one engine spells what a page needs, for callers that compose a statement without knowing the engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from rivet_resources.contracts.types import Column


class Dialect(Protocol):
    """How one engine writes a page by key; a module of functions will do."""

    def quote(self, name: str) -> str:
        """Return a column as it is compared and ordered."""

    def literal(self, text: str, column: Column) -> str:
        """Return a canonical text as a typed literal."""

    def select(
        self,
        items: Sequence[str],
        *,
        relation: str,
        where: Sequence[str] = (),
        order_by: Sequence[str] = (),
        limit: int | None = None,
    ) -> str:
        """Return a SELECT."""

    def after_key(self, key: Sequence[str], bounds: Sequence[str]) -> str:
        """Return the predicate of the rows whose key stands behind these literals."""
