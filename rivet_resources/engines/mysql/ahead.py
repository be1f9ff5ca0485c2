"""Reading ahead: while a page is decoded and handed on, the server works on the next one.

Belongs here: the walk along a key with one statement under way, and how that one is called off. Not here: the walk
without (shared/key_walk.py), statements and their faults (reader.py).

A page is read in three steps that wait for different things: the server and the line, our decoding, the writing behind
it (read/write_behind.py). Of 5 million narrow rows of MySQL 9.7 the first takes 3.5 s and the second 2.3 (2026-11).
Only where no pause is asked for: with one, the server is to rest.
"""

from __future__ import annotations

import threading
from collections.abc import Generator
from concurrent.futures import Future, wait

from rivet_resources.contracts.source import Page
from rivet_resources.engines.mysql import sql
from rivet_resources.engines.mysql.reader import RawPage, Reader
from rivet_resources.engines.shared.key_walk import NEXT_ROWS, KeyWalk, last_key
from rivet_resources.engines.shared.page_size import Measured, measured

# How long the end of a chunk waits for a statement that was called off: a command must end within ten seconds. What
# still waits then ends with its process.
LAST_ANSWER_SECONDS = 3.0

Received = Future[RawPage | None]


def keyset(reader: Reader) -> Generator[Page]:
    """Walk a chunk along its key; see `KeyWalk`. Pages come in their order, and so do faults."""
    walk, ahead, density = KeyWalk.of(reader, sql), None, 1.0
    try:
        while True:
            answer = _receive(reader, walk) if ahead is None else ahead.result()
            ahead = None
            if answer is None:
                walk.shrink()
                continue
            rows, wire_bytes = len(answer.raw.starts), answer.raw.nbytes
            is_last = walk.is_last(rows)
            key = reader.last_key(answer) if not is_last and _may_go_ahead(reader, walk) else None
            if key is not None:
                # By the page before: this one is not decoded yet.
                about = Measured(rows, int(wire_bytes * density), answer.statement_ms)
                walk.go_on(key, about, reader.wait(rows))
                ahead = _begin(reader, walk)
            page = reader.page(answer)
            density = page.nbytes / max(wire_bytes, 1)
            # Its memory is for the page after the next one.
            del answer
            yield page
            if is_last:
                return
            if key is None:
                walk.go_on(last_key(page.table, walk.columns), measured(page), reader.wait(rows))
    finally:
        if ahead is not None:
            _call_off(reader, ahead)


def _may_go_ahead(reader: Reader, walk: KeyWalk) -> bool:
    """Return whether the next page may be asked for already: no pause is due, no limit, and pages have their size.

    Not at a meeting, whose line other chunks need afterwards. While pages still grow, a reader of few rows may stop at
    any of them, and the next one would be read for nothing.
    """
    pace = reader.pace
    return pace.reads_ahead and not pace.throttle_ms and reader.place is None and walk.is_steady


def _receive(reader: Reader, walk: KeyWalk) -> RawPage | None:
    return reader.receive(walk.statement, what=NEXT_ROWS, can_shrink=walk.can_shrink)


def _begin(reader: Reader, walk: KeyWalk) -> Received:
    """Receive the next page in a thread; nothing else asks by the reader's connection until it is there."""
    reader.begins_ahead()
    received: Received = Future()
    statement, can_shrink = walk.statement, walk.can_shrink

    def receive() -> None:
        try:
            received.set_result(reader.receive(statement, what=NEXT_ROWS, can_shrink=can_shrink))
        except BaseException as error:
            received.set_exception(error)

    threading.Thread(target=receive, name="rivet-reads-ahead", daemon=True).start()
    return received


def _call_off(reader: Reader, ahead: Received) -> None:
    reader.call_off()
    # Whatever it is: nobody wants the answer.
    wait([ahead], LAST_ANSWER_SECONDS)
