"""GTID sets of MySQL and MariaDB: read as the servers print them, grown by one transaction, printed again.

Belongs here: the arithmetic of sets. Not here: events (events.py), when a set is used (log.py).
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Protocol
from uuid import UUID

INTERVAL = re.compile(r"(\d+)(?:-(\d+))?")
UUID_TEXT = re.compile(r"[0-9a-fA-F]{8}(?:-?[0-9a-fA-F]{4}){3}-?[0-9a-fA-F]{12}")


class GtidSet(Protocol):
    """A set that grows by one transaction after the other."""

    def add(self, source: object, first: int, last: int) -> None:
        """Take transactions in that follow each other, both ends included."""

    def __str__(self) -> str: ...


@dataclass
class MySqlSet:
    """uuid:1-5:7, …; per uuid closed intervals, ascending."""

    intervals: dict[UUID, list[list[int]]] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> MySqlSet:
        """Read a set as `@@gtid_executed` prints it.

        Raises:
            ValueError: a tagged GTID (MySQL 8.3 and later), or no set at all.
        """
        found = cls()
        for entry in "".join(text.split()).split(","):
            if not entry:
                continue
            source, *ranges = entry.split(":")
            matches = [INTERVAL.fullmatch(each) for each in ranges]
            # A tag is a word among the ranges. Passing it over would tell the server that transactions were read
            # which were not.
            if not UUID_TEXT.fullmatch(source) or not ranges or None in matches:
                raise ValueError(f"{entry!r} is not uuid:number-number")
            for match in matches:
                assert match is not None
                first = int(match[1])
                found.intervals.setdefault(UUID(source), []).append([first, int(match[2] or first)])
        return found

    def add(self, source: object, first: int, last: int) -> None:
        """Take transactions in; `source` is the UUID's bytes, and nearly always they follow the last one."""
        assert isinstance(source, bytes)
        uuid = UUID(bytes=source)
        known = sorted([*self.intervals.get(uuid, []), [first, last]])
        merged = [known[0]]
        for low, high in known[1:]:
            # Neighbours are joined, or the set would grow by an interval with each transaction, and be as long as
            # the log.
            if low <= merged[-1][1] + 1:
                merged[-1][1] = max(merged[-1][1], high)
            else:
                merged.append([low, high])
        self.intervals[uuid] = merged

    def packed(self) -> bytes:
        """Write the set as the dump command takes it: 64-bit numbers, ends exclusive."""
        # Source: MySQL, sql/rpl_gtid_set.cc, `Gtid_set::encode`.
        parts = [struct.pack("<Q", len(self.intervals))]
        for source, known in sorted(self.intervals.items()):
            parts.append(source.bytes + struct.pack("<Q", len(known)))
            parts += [struct.pack("<QQ", first, last + 1) for first, last in known]
        return b"".join(parts)

    def __str__(self) -> str:
        def span(first: int, last: int) -> str:
            return str(first) if first == last else f"{first}-{last}"

        return ",".join(
            f"{source}:" + ":".join(span(*each) for each in known) for source, known in sorted(self.intervals.items())
        )


@dataclass
class MariaDbSet:
    """0-1-270,…: per domain the last transaction, and the server that wrote it."""

    last: dict[int, tuple[int, int]] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> MariaDbSet:
        """Read a position as `@@gtid_binlog_pos` prints it.

        Raises:
            ValueError: it is none.
        """
        found = cls()
        for entry in "".join(text.split()).split(","):
            if entry:
                domain, server, number = (int(part) for part in entry.split("-"))
                found.last[domain] = (server, number)
        return found

    def add(self, source: object, first: int, last: int) -> None:
        """Take transactions in; `source` is (domain, server), and only the last one counts."""
        assert isinstance(source, tuple)
        self.last[source[0]] = (source[1], last)

    def __str__(self) -> str:
        return ",".join(f"{domain}-{server}-{number}" for domain, (server, number) in sorted(self.last.items()))


def runs(gtids: Iterable[tuple[object, int] | None]) -> Iterator[tuple[object, int, int]]:
    """Join transactions of one source that follow each other: source, first, last; those without a name are no part."""
    source: object = None
    first = last = -1
    for gtid in gtids:
        if gtid is None:
            continue
        here, number = gtid
        if number == last + 1 and here == source:
            last = number
            continue
        if first >= 0:
            yield source, first, last
        source, first, last = here, number, number
    if first >= 0:
        yield source, first, last


def gtid_set(text: str, *, is_mariadb: bool) -> GtidSet | None:
    """Read a set; None for none, and for one whose form we do not know (tags): then it is no longer recorded."""
    try:
        return (MariaDbSet.parse(text) if is_mariadb else MySqlSet.parse(text)) if text.strip() else None
    except ValueError:
        return None
