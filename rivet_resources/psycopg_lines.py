"""Connections of psycopg on which no wait is without end: a source's, and the state store's.

Belongs here: the class, and what the system is told of a line. Not here: the clock (`deadlines.py`), opening a source
(`engines/postgres/connect.py`), opening the store (`state/database.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from rivet_resources.deadlines import KEEPALIVE, UNACKNOWLEDGED_SECONDS, Silent, deadline, hang_up_file

if TYPE_CHECKING:
    import psycopg
    from psycopg import pq


CONNECT_SECONDS = 10

# A line whose other end is gone is noticed by the system; one whose other end is silent, by the deadlines below.
LIVELINESS: Mapping[str, str] = {
    "connect_timeout": str(CONNECT_SECONDS),
    **{f"keepalives_{name}": str(number) for name, number in KEEPALIVE.items()},
    "tcp_user_timeout": str(UNACKNOWLEDGED_SECONDS * 1000),
}


@cache
def watched() -> type[psycopg.Connection[Any]]:
    """Return the class of psycopg connections; made at the first use, since reading a config needs no driver."""
    import psycopg  # driver

    class Watched(psycopg.Connection[Any]):
        """A connection whose waits all end; its first two values, of `deadline`, may be changed."""

        patience_seconds: float | None = None
        is_at_work: Callable[[], bool] | None = None
        is_shared_by_pooler: bool = False  # what it sets for its session may reach another client's

        def wait(self, *arguments: Any, **options: Any) -> Any:
            with self.bounded():
                return super().wait(*arguments, **options)

        @contextmanager
        def bounded(self) -> Iterator[None]:
            """End what waits in the block when it takes too long.

            Raises:
                psycopg.OperationalError: in place of what the block raised then.
            """
            try:
                end = partial(_hang_up, self.pgconn)
                with deadline(self.patience_seconds, end, is_at_work=self.is_at_work):
                    yield
            except Silent as error:
                raise psycopg.OperationalError(str(error)) from None

    return Watched


def _hang_up(line: pq.abc.PGconn) -> None:
    hang_up_file(line.socket)
