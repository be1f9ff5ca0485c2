"""What every engine with a server promises when that is away: an outage is worth another try, and no row comes twice.

Each check takes a function that makes the source at a port of 127.0.0.1, the port where its server listens there, and
the name of a table as for `ENGINE_PROMISES`. It puts a line of its own before the server, and breaks that.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rivet_resources.conformance.clock import fake_clock
from rivet_resources.conformance.engines import APPLICATION, plain_relation
from rivet_resources.conformance.lines import Proxy
from rivet_resources.conformance.promises import PromiseBroken, hold
from rivet_resources.contracts.settings import Pace, Tuning, pace
from rivet_resources.contracts.source import Source
from rivet_resources.deadlines import patience_seconds
from rivet_resources.errors import RivetError

SourceAt = Callable[[int], Source]

# Short statements, so that a silent server is given up in seconds; small pages, so that a line breaks between two.
SHORT: Pace = pace(Tuning(batch_size=50, throttle_ms=0, statement_timeout_s=1, max_retries=2, adaptive=False), None)
ONCE: Pace = SHORT.model_copy(update={"max_retries": 0})
TRANSIENT = 2  # the exit code by which schedulers try again
SLACK_SECONDS = 15.0  # beside what a silent server is waited for: connecting, and a machine that has other work


@contextmanager
def _line_before(port: int) -> Iterator[Proxy]:
    line = Proxy("127.0.0.1", port)
    line.up()
    try:
        yield line
    finally:
        line.end()


@contextmanager
def _worth_another_try(promise: str) -> Iterator[None]:
    """Expect a fault that the same command may not meet again."""
    try:
        yield
    except RivetError as error:
        hold(error.exit_code == TRANSIENT, f"{promise}; {error.code} has exit code {error.exit_code}")
    except Exception as error:
        raise PromiseBroken(f"{promise}; {type(error).__name__} is not an error of Rivet's") from error
    else:
        raise PromiseBroken(f"{promise}; nothing was raised")


def refused_line_is_transient(source_at: SourceAt, port: int, table: str) -> None:
    """Who listens nowhere is away: a wrong port looks like a server that is being started."""
    with _line_before(port) as line, fake_clock():
        source = source_at(line.front)
        line.down()
        with (
            _worth_another_try("a server that takes no line is told as a transient fault (exit code 2)"),
            source.session(application=APPLICATION, pace=ONCE) as session,
        ):
            plain_relation(session, table)


def broken_line_costs_no_row(source_at: SourceAt, port: int, table: str) -> None:
    """Pages go on behind the last row that came, or end with a transient fault, and the chunk is read anew then."""
    with _line_before(port) as line, fake_clock():
        source = source_at(line.front)
        whole = _rows(source, table, then=lambda: None)
        try:
            broken = _rows(source, table, then=line.reset)
        except RivetError as error:
            hold(error.exit_code == TRANSIENT, f"a line that breaks is a transient fault; {error.code} is none")
            broken = _rows(source, table, then=lambda: None)
    hold(whole == broken, "a line that breaks between two pages costs no row, and none comes twice")


def _rows(source: Source, table: str, *, then: Callable[[], None]) -> Counter[str]:
    """Read a table as one task would; `then` is called behind its first page."""
    rows: Counter[str] = Counter()
    with source.session(application=APPLICATION, pace=SHORT) as session:
        relation = plain_relation(session, table)
        chunks = session.chunks(relation, pieces=1)
    for chunk in chunks:
        pages = source.pages(
            chunk, relation.columns, snapshot=None, application=APPLICATION, pace=SHORT, wait=lambda rows: None
        )
        for number, page in enumerate(pages):
            rows.update(repr(row) for row in page.table.to_pylist())
            if number == 0:
                then()
    return rows


def silent_server_is_given_up(source_at: SourceAt, port: int, table: str) -> None:
    """Who keeps the line and says nothing is waited for as long as a statement may take, and a margin."""
    with _line_before(port) as line, fake_clock():
        source = source_at(line.front)
        began = time.monotonic()
        with (
            _worth_another_try("a silent server is told as a transient fault (exit code 2)"),
            source.session(application=APPLICATION, pace=ONCE) as session,
        ):
            relation = plain_relation(session, table)
            line.silence()
            session.count(relation)
        took, most = time.monotonic() - began, patience_seconds(ONCE.statement_timeout_s) + SLACK_SECONDS
    hold(took < most, f"a silent server is waited for {most:.0f} s at most, and it took {took:.0f} s")


OUTAGE_PROMISES: tuple[Callable[[SourceAt, int, str], None], ...] = (
    refused_line_is_transient,
    broken_line_costs_no_row,
    silent_server_is_given_up,
)
