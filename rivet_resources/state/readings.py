"""How much was read of each source, and when the next page may be: shared by all tasks of all runs of a store.

Belongs here: the tables `source_reading` and `rate_meter`. Not here: limits (`contracts/read_limits.py`), waiting
(`read/meter.py`).

A rate is kept by one number: the instant at which all that was read is paid for. Who reads a page puts it off by the
page's share of a second, and waits until then.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from sqlalchemy import BigInteger, Column, Connection, Double, Table, Text, case, select

from rivet_resources.contracts.read_limits import MonthRead, PageCounted, month_of
from rivet_resources.state.database import METADATA, insert, now

source_reading = Table(
    "source_reading",
    METADATA,
    Column("source", Text, primary_key=True),
    Column("month", Text, primary_key=True),
    Column("total_rows", BigInteger, nullable=False),
    Column("total_bytes", BigInteger, nullable=False),
)
rate_meter = Table(
    "rate_meter",
    METADATA,
    Column("name", Text, primary_key=True),
    Column("paid_at", Double, nullable=False),  # unix seconds
)


def count(
    connection: Connection,
    place: str,
    page: MonthRead,
    *,
    costs: Mapping[str, float],
    at: datetime | None = None,
) -> PageCounted:
    """Add a page to its source's month, and put each meter off by what the page costs it.

    Args:
        page: rows and bytes; of no rows before the first page.
        costs: meter → seconds that the page takes at its rate.
        at: the store's own time, where it is not given.
    """
    at = at or now(connection)
    # In the order of names: two that wait for each other's rows would wait for ever.
    # Each page is counted when it was read, in one transaction with its turn, so that runs that failed or were killed
    # count too; the history of runs has no rows of these.
    paid = [_put_off(connection, name, seconds, at.timestamp()) for name, seconds in sorted(costs.items())]
    return PageCounted(max([0.0, *(each - at.timestamp() for each in paid)]), _add(connection, place, page, at))


def read_in_month(connection: Connection, place: str, at: datetime) -> MonthRead:
    """Return what was read of a source in the month of `at`."""
    table = source_reading.c
    query = select(table.total_rows, table.total_bytes).where(table.source == place, table.month == month_of(at))
    row = connection.execute(query).one_or_none()
    return MonthRead() if row is None else MonthRead(int(row.total_rows), int(row.total_bytes))


def _put_off(connection: Connection, name: str, seconds: float, at: float) -> float:
    statement = insert(connection, rate_meter).values(name=name, paid_at=at + seconds)
    before = rate_meter.c.paid_at
    # What is paid for already is not saved up: after a pause the rate is the rate, with no burst.
    later = case((before > at, before), else_=at) + seconds
    statement = statement.on_conflict_do_update(index_elements=["name"], set_={"paid_at": later})
    return float(connection.execute(statement.returning(rate_meter.c.paid_at)).scalar_one())


def _add(connection: Connection, place: str, page: MonthRead, at: datetime) -> MonthRead:
    values = {"source": place, "month": month_of(at), "total_rows": page.rows, "total_bytes": page.size_bytes}
    table = source_reading.c
    more = {"total_rows": table.total_rows + page.rows, "total_bytes": table.total_bytes + page.size_bytes}
    statement = insert(connection, source_reading).values(**values)
    statement = statement.on_conflict_do_update(index_elements=["source", "month"], set_=more)
    row = connection.execute(statement.returning(table.total_rows, table.total_bytes)).one()
    return MonthRead(int(row.total_rows), int(row.total_bytes))
