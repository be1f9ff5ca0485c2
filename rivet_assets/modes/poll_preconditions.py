"""What a table needs to be polled: stamps that are timestamps, a key that tells rows apart, a clock that goes forward.

Belongs here: refusing what would lose rows in silence. Not here: the YAML keys and the window (`poll.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import pyarrow as pa

from rivet_assets.modes.protocol import Planning, require_column
from rivet_resources.contracts.transform import Transform
from rivet_resources.contracts.types import Column
from rivet_resources.errors import ConfigError, SourceError
from rivet_resources.poll.places import Order
from rivet_resources.poll.watermark import Place
from rivet_resources.shape.shape import planned

# Types whose text leads back to the value's place in the order.
ORDERED = (
    pa.types.is_integer,
    pa.types.is_decimal,
    pa.types.is_string,
    pa.types.is_date,
    pa.types.is_timestamp,
    pa.types.is_binary,
    pa.types.is_fixed_size_binary,
    pa.types.is_boolean,
    lambda kind: isinstance(kind, pa.UuidType),
)


def key_columns(planning: Planning, asked: tuple[str, ...]) -> list[Column]:
    """Find the key's columns.

    Raises:
        SourceError: there is none, or places in it could not be told apart.
    """
    relation = planning.relation
    names = asked or relation.key
    if not names:
        raise SourceError(
            f"Table {relation.name} has no key that can be polled: neither a primary nor a unique one without "
            f"NULLs. Name the columns that no two rows share in `primary_key`, or give the table one."
        )
    columns = [require_column(relation, name, key="primary_key") for name in names]
    is_unique = bool(relation.key) and set(relation.key) <= set(names)
    for column in columns:
        why = _unfit(column, folds=planning.source.facts.folds_texts and not is_unique)
        if why:
            raise SourceError(
                f"{relation.name}.{column.name} cannot be part of the key of a poll: {why}. Name other columns in "
                f"`primary_key`."
            )
    return columns


def refuse_nulls(planning: Planning, order: Order) -> None:
    """Refuse rows that no poll would ever read.

    Raises:
        SourceError
    """
    if not order.columns[0].nullable:
        return
    where = " AND ".join(filter(None, (f"{order.stamp} IS NULL", order.where)))
    nulls = planning.session.count(planning.relation, where=where)
    if nulls:
        raise SourceError(
            f"{planning.relation.name}.{order.columns[0].name} is NULL in {nulls} rows, which a poll would never "
            f"read. Fill the column, or set `null_policy: coalesce` with a created_at_column that is never NULL."
        )


def refuse_hidden_keys(planning: Planning, order: Order, *, steps: Sequence[Transform], export: str) -> None:
    """Refuse to compare keys that transforms change.

    Raises:
        ConfigError
    """
    plan = planned(planning.relation, steps)
    for column in order.columns[1:]:
        name, index = column.name, plan.schema.get_field_index(column.name)
        is_same = index >= 0 and plan.schema.field(index).type == column.arrow and plan.origins[name] == {name}
        if not is_same:
            raise ConfigError(
                f"Export {export}: full_diff compares the key with what is published, and a transform changes "
                f"column {name!r}. Leave the key as it is, or set delete_detection: {{type: soft_delete}}."
            )


def stamp_column(planning: Planning, name: str, *, key: str) -> Column:
    """Find a column of timestamps.

    Raises:
        UnknownColumn, SourceError
    """
    column = require_column(planning.relation, name, key=key)
    if not pa.types.is_timestamp(column.arrow):
        raise SourceError(
            f"{planning.relation.name}.{name} is {column.native}, read as {column.arrow}, and `{key}` must be a "
            f"timestamp. If its cells are times, as SQLite keeps them, write `columns: {{{name}: timestamp}}`; for a "
            f"growing number use mode incremental."
        )
    return column


def refuse_two_clocks(planning: Planning, one: Column, other: Column) -> None:
    """Refuse to compare instants with stamps that have no zone.

    Raises:
        SourceError
    """
    if (one.arrow.tz is None) != (other.arrow.tz is None):
        raise SourceError(
            f"{planning.relation.name}: {one.name} is {one.native} and {other.name} is {other.native}; only one of "
            f"them has a zone, so the two cannot be compared. Give the other one by `columns: {{<name>: {{type: "
            f"timestamp_tz, timezone: <zone>}}}}`."
        )


def _unfit(column: Column, *, folds: bool) -> str:
    """Return why a column cannot tell rows apart in order; '' when it can."""
    kind = column.arrow
    if pa.types.is_floating(kind):
        return f"it is {column.native}, and fractions of two do not compare exactly"
    if column.nullable:
        return "it may be NULL, and NULL has no place in an order"
    if column.native.lower().startswith(("enum", "set")):
        return f"it is {column.native}, which orders by number and compares by text"
    if not any(fits(kind) for fits in ORDERED) or column.logical == "json":
        return f"it is {column.native}, which has no order that leads back to its row"
    if folds and pa.types.is_string(kind):
        return "its collation may call two texts equal, and no unique key of the table says they are one row"
    return ""


def refuse_clock(planning: Planning, low: Place | None) -> None:
    """Refuse to poll when the database's clock is behind what it has stamped already.

    Raises:
        SourceError
    """
    if low is None:
        return
    try:
        reached = datetime.fromisoformat(low[0].value.removesuffix("Z")[:26]).replace(tzinfo=UTC)
    except ValueError:  # a year that Python does not have
        return
    now = planning.session.now()
    if now < reached:
        raise SourceError(
            f"The clock of the database moved back: it says {now:%Y-%m-%d %H:%M:%S} UTC, and {low[0].column} was "
            f"polled up to {reached:%Y-%m-%d %H:%M:%S}. New rows would get stamps below that and be missed. Set the "
            f"clock right, or run `rivet state reset` to read the table from its beginning."
        )
