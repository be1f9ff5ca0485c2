"""How a stored position is spelled, and which of two lies behind the other (`connectors.md`, section 10).

Belongs here: the text forms of every position type, reading them, their order. Not here: where records are kept.
No text form sorts as text: `0/FF` is before `0/100`, and `bin.000009` before `bin.000010` only by luck of padding.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from rivet_resources.contracts.change_log import PositionType

POSITION_TYPES: tuple[PositionType, ...] = ("PostgresLsn", "MysqlBinlog", "Gtid", "Custom")

LSN = re.compile(r"([0-9A-Fa-f]+)/([0-9A-Fa-f]+)", re.ASCII)
BINLOG = re.compile(r"(?P<base>.*?)(?P<number>\d+):(?P<at>\d+)", re.ASCII | re.DOTALL)
UUID = re.compile(r"[0-9a-f]{8}-?(?:[0-9a-f]{4}-?){3}[0-9a-f]{12}", re.ASCII)
# A tag may stand between the uuid and its intervals. Source: MySQL 8.4 manual, 19.1.3.1, "GTID Format and Storage".
TAG = re.compile(r"[a-z_][a-z0-9_]{0,31}", re.ASCII)
INTERVAL = re.compile(r"([1-9]\d*)(?:-([1-9]\d*))?", re.ASCII)
# Source: MariaDB knowledge base, "Global Transaction ID", "The MariaDB Global Transaction ID": 32, 32 and 64 bits.
MARIADB_GTID = re.compile(r"(\d+)-(\d+)-(\d+)", re.ASCII)

Intervals = dict[str, list[tuple[int, int]]]  # uuid or uuid:tag → ranges with both ends, apart and sorted


# --- writing -------------------------------------------------------------------------------------


def postgres_lsn(place: int | str) -> str:
    """Spell a place in PostgreSQL's log as it does: two hexadecimal numbers in capitals, without padding.

    Raises:
        ValueError: not a log sequence number, or beyond 64 bits.
    """
    number = parse_postgres_lsn(place) if isinstance(place, str) else place
    if number is None or not 0 <= number < 1 << 64:
        raise ValueError(f"{place!r} is not a log sequence number; write HIGH/LOW in hexadecimal, such as 0/1234ABCD")
    return f"{number >> 32:X}/{number & 0xFFFFFFFF:X}"


def mysql_binlog(file: str, at: int) -> str:
    """Spell a place in a binary log, `mysql-bin.000003:12345`.

    Raises:
        ValueError: the file's name does not end in a number, or the place is no 64-bit number.
    """
    text = f"{file}:{at}"
    if parse_mysql_binlog(text) is None:
        raise ValueError(f"{text!r} is not a binary log and a place in it, such as mysql-bin.000003:12345")
    return text


def gtid(source_type: str, text: str) -> str:
    """Return a set of transaction ids as it came, once it is one of this kind of server.

    Raises:
        ValueError: it is not.
    """
    refuse_text("Gtid", source_type, text)
    return text


# --- reading -------------------------------------------------------------------------------------


def parse_postgres_lsn(text: str) -> int | None:
    """Read `HIGH/LOW`; None: it has not that form.

    Raises:
        ValueError: one half needs more than 32 bits.
    """
    match = LSN.fullmatch(text)
    if match is None:
        return None
    high, low = int(match[1], 16), int(match[2], 16)
    if high > 0xFFFFFFFF or low > 0xFFFFFFFF:
        raise ValueError(f"{text!r} is not a log sequence number: each half has at most eight digits")
    return high << 32 | low


def parse_mysql_binlog(text: str) -> tuple[str, int] | None:
    """Split at the last colon into file and place; None: it has not that form."""
    match = BINLOG.fullmatch(text)
    if match is None or not match["base"] or int(match["at"]) >= 1 << 64:
        return None
    return match["base"] + match["number"], int(match["at"])


def parse_mysql_gtids(text: str) -> Intervals | None:
    """Read `uuid:interval[:…][,…]`; None: it has not that form. The empty set is one."""
    found: Intervals = {}
    for member in text.replace("\n", "").split(",") if text.strip() else ():
        uuid, *rest = (piece.strip().lower() for piece in member.split(":"))
        if not UUID.fullmatch(uuid) or not rest or not INTERVAL.fullmatch(rest[-1]):
            return None
        name = uuid.replace("-", "")
        owner = name
        for piece in rest:
            ends = INTERVAL.fullmatch(piece)
            if ends is not None:
                found.setdefault(owner, []).append((int(ends[1]), int(ends[2] or ends[1])))
            elif TAG.fullmatch(piece):
                owner = f"{name}:{piece}"
            else:
                return None
    if any(first > last for ranges in found.values() for first, last in ranges):
        return None
    return {owner: _merge_ranges(ranges) for owner, ranges in found.items()}


def parse_mariadb_gtids(text: str) -> Mapping[int, int] | None:
    """Read `domain-server-seq[,…]` as {domain: sequence}; None: it has not that form. The empty list is one."""
    found: dict[int, int] = {}
    for member in text.split(",") if text.strip() else ():
        match = MARIADB_GTID.fullmatch(member.strip())
        # A MariaDB position has one sequence per domain; two of them are a list of transactions and no place.
        if match is None or int(match[1]) in found:
            return None
        domain, server, sequence = map(int, match.groups())
        if domain >= 1 << 32 or server >= 1 << 32 or sequence >= 1 << 64:
            return None
        found[domain] = sequence
    return found


def refuse_text(position_type: str, source_type: str, text: str) -> None:
    """Refuse a text that is no position of its type.

    Raises:
        ValueError: it is not, or the type is none of ours; the message holds no position.
    """
    if position_type not in POSITION_TYPES:
        raise ValueError(f"position_type is none of {', '.join(POSITION_TYPES)}")
    try:
        fits = _read(position_type, source_type, text) is not None
    except ValueError:
        fits = False
    if not fits:
        raise ValueError(f"its position is no {position_type} of {source_type or 'its source'}")


# --- order ---------------------------------------------------------------------------------------


def is_behind(new: str, stored: str, *, position_type: str, source_type: str) -> bool | None:
    """Return whether `new` lies behind `stored`, both of one type and one source identity; None: the type has no order.

    A set of transaction ids lies behind when it lacks any that the stored one has.
    """
    if position_type == "Custom":
        return None
    before, after = (_read(position_type, source_type, text) for text in (stored, new))
    # Sets and not numbers: each server counts by itself, so after a failover the set holds the ids of both. Behind
    # means that one is missing.
    if position_type == "Gtid":
        return not (_holds_domains if source_type == "mariadb" else _holds_intervals)(after, before)
    behind: bool = after < before
    return behind


def _read(position_type: str, source_type: str, text: str) -> Any:
    """Read a text into what compares by `<`, or into a set of ids; None: it has not the form."""
    if position_type == "PostgresLsn":
        return parse_postgres_lsn(text)
    if position_type == "MysqlBinlog":
        match = BINLOG.fullmatch(text)
        return None if parse_mysql_binlog(text) is None or match is None else (int(match["number"]), int(match["at"]))
    if position_type == "Gtid":
        parse: Callable[[str], Any] = parse_mariadb_gtids if source_type == "mariadb" else parse_mysql_gtids
        return parse(text)
    return text or None


def _merge_ranges(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Sort ranges, and join those that touch."""
    joined: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        # Touching ranges are one: `1-5:6-9` must hold `4-7`.
        if joined and first <= joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], max(last, joined[-1][1]))
        else:
            joined.append((first, last))
    return joined


def _holds_intervals(whole: Intervals, part: Intervals) -> bool:
    return all(
        any(start <= first and last <= end for start, end in whole.get(owner, ()))
        for owner, ranges in part.items()
        for first, last in ranges
    )


def _holds_domains(whole: Mapping[int, int], part: Mapping[int, int]) -> bool:
    return all(domain in whole and whole[domain] >= sequence for domain, sequence in part.items())
