"""Pieces of a SELECT that engines write alike: predicates, the statement of a page, the two forms of `key > last`.

Belongs here: text made of quoted names and rendered literals. Not here: quoting and literals (`engines/*/sql.py`).
"""

from __future__ import annotations

from collections.abc import Sequence


def conjunction(predicates: Sequence[str]) -> str:
    """Join predicates with AND, each in parentheses, leaving out empty ones."""
    # In parentheses each: a user's own predicate may hold an OR.
    return " AND ".join(f"({predicate})" for predicate in predicates if predicate)


def select(
    items: Sequence[str],
    *,
    relation: str,
    where: Sequence[str] = (),
    order_by: Sequence[str] = (),
    limit: int | None = None,
) -> str:
    """Write one SELECT."""
    predicate = conjunction(where)
    return (
        f"SELECT {', '.join(items)} FROM {relation}"
        + (f" WHERE {predicate}" if predicate else "")
        + (f" ORDER BY {', '.join(order_by)}" if order_by else "")
        + (f" LIMIT {limit}" if limit is not None else "")
    )


def derived(query: str) -> str:
    """Wrap a query so that it can stand after FROM."""
    # The newline ends a line comment that the query may end with.
    return f"({query}\n) AS _rivet_q"


def after_row(key: Sequence[str], bounds: Sequence[str]) -> str:
    """Write `key > bounds` as a row comparison, where an index serves that."""
    if len(key) == 1:
        return f"{key[0]} > {bounds[0]}"
    return f"({', '.join(key)}) > ({', '.join(bounds)})"


def after_each(key: Sequence[str], bounds: Sequence[str]) -> str:
    """Write `key > bounds` as a > x OR (a = x AND …), where row comparisons scan the table or do not exist."""
    after = f"{key[-1]} > {bounds[-1]}"
    for name, bound in zip(reversed(key[:-1]), reversed(bounds[:-1]), strict=True):
        after = f"{name} > {bound} OR ({name} = {bound} AND ({after}))"
    # Led by a >= x, which gives the index its range (`connectors.md`, section 11).
    return after if len(key) == 1 else f"{key[0]} >= {bounds[0]} AND ({after})"
