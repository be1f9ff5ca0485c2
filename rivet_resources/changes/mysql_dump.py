"""The dump command of MySQL and MariaDB: the events of the binary log, whole and checked, to the end of the log.

Belongs here: announcing ourselves, the command by file or by GTID, packets, checksums, the end packet. Not here: what
an event means (mysql_events.py), what happened when the server refuses (mysql_errors.py).

The end of the log is the server's end packet and nothing else: a line that closes without it has lost events.
Source: MySQL internals manual, "COM_BINLOG_DUMP", "COM_BINLOG_DUMP_GTID", "Binlog Network Stream"; MariaDB knowledge
base, "COM_BINLOG_DUMP".
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from zlib import crc32

from rivet_resources.changes.mysql_gtid import MySqlSet
from rivet_resources.errors import LogRefused, SourceLost

if TYPE_CHECKING:
    from pymysql.connections import Connection

COM_BINLOG_DUMP, COM_BINLOG_DUMP_GTID = 0x12, 0x1E
NON_BLOCK = 1  # do not wait at the end: send the end packet
BLOCK_BYTES = 1 << 20
CONTINUED = 0xFFFFFF  # an event of 16 MB or more goes on in the next packet
SHORTEST_LONG_VALUE = 9
ROTATE, FORMAT = 4, 15
NO_CHECKSUM, CRC32 = 0, 1
# Files written under another binlog_checksum than today's are readable too, so the literal, not the server's setting.
ANNOUNCE = (
    "SET @master_binlog_checksum = 'CRC32', @source_binlog_checksum = 'CRC32', @mariadb_slave_capability = 4, "
    "@rpl_semi_sync_slave = 0"
)


def start_at(connection: Connection[Any], file: str, offset: int, *, server_id: int) -> None:
    """Ask for events from a place of a file; offsets above 4 GiB need `start_after_gtids`."""
    _announce(connection)
    connection._execute_command(COM_BINLOG_DUMP, struct.pack("<IHI", offset, NON_BLOCK, server_id) + file.encode())


def start_after_gtids(connection: Connection[Any], gtids: str, *, server_id: int, is_mariadb: bool) -> None:
    """Ask for the transactions that are not in a GTID set; the server finds the file."""
    _announce(connection)
    if is_mariadb:
        with connection.cursor() as cursor:
            cursor.execute("SET @slave_connect_state = %s, @slave_gtid_strict_mode = 0", (gtids,))
        connection._execute_command(COM_BINLOG_DUMP, struct.pack("<IHI", 4, NON_BLOCK, server_id))
        return
    known = MySqlSet.parse(gtids).packed()
    head = struct.pack("<HIIQI", NON_BLOCK, server_id, 0, 4, len(known))
    connection._execute_command(COM_BINLOG_DUMP_GTID, head + known)


def _announce(connection: Connection[Any]) -> None:
    with connection.cursor() as cursor:
        cursor.execute(ANNOUNCE)


def events(connection: Connection[Any], *, where: str) -> Iterator[bytes]:
    """Give events to the end of the log, each with its packet's first byte before it and without its checksum.

    Raises:
        pymysql.err.MySQLError: what the server says instead of an event.
        SourceLost: the line closed before the end packet.
        LogRefused: a checksum is wrong, or of a kind that we do not know.
    """
    has_checksum, whole = True, struct.Struct("<I").unpack_from
    for packet in packets(connection, where=where):
        kind = packet[5]
        if kind == FORMAT:
            has_checksum, packet = _format(packet)
        elif kind == ROTATE:  # the one that begins a dump is made up, before we know how the file is written
            packet = packet[:-4] if _is_whole(packet) else packet
        elif has_checksum:
            if crc32(memoryview(packet)[1:-4]) != whole(packet, len(packet) - 4)[0]:
                place = int.from_bytes(packet[14:18], "little")
                raise LogRefused(
                    f"The event of type {kind} that ends at {place} of the binary log of {where} has a wrong checksum. "
                    f"The log or the line is damaged: run again, and if it stays, let the server's owner check the log "
                    f"with mysqlbinlog --verify-binlog-checksum."
                )
            packet = packet[:-4]
        yield packet


def _is_whole(packet: bytes) -> bool:
    """Compare the CRC32 behind an event with its bytes."""
    return crc32(memoryview(packet)[1:-4]) == int.from_bytes(packet[-4:], "little")


def _format(packet: bytes) -> tuple[bool, bytes]:
    """Read how the events of a file are checked; the format event itself always has room for a checksum."""
    kind = packet[-5]
    if kind not in (NO_CHECKSUM, CRC32):
        raise LogRefused(
            f"The binary log has checksums of kind {kind}; NONE and CRC32 are known. Set binlog_checksum = CRC32."
        )
    return kind == CRC32, packet[:-5]


def packets(connection: Connection[Any], *, where: str) -> Iterator[bytes]:
    """Cut packets out of large reads: one read per packet would cost more than decoding it.

    Raises:
        pymysql.err.MySQLError, SourceLost
    """
    from pymysql import err

    buffer, start, part = b"", 0, b""
    length = struct.Struct("<I").unpack_from
    while True:
        end = len(buffer)
        while end - start >= 4:
            size = length(buffer, start)[0] & CONTINUED
            behind = start + 4 + size
            if behind > end:
                break
            packet = buffer[start + 4 : behind]
            start = behind
            if size == CONTINUED:
                part += packet
                continue
            if part:
                packet, part = part + packet, b""
            if packet[0] == 0:
                yield packet
            elif packet[0] == 0xFE and len(packet) < SHORTEST_LONG_VALUE:
                return
            else:
                err.raise_mysql_exception(packet)
        buffer = buffer[start:] + _more(connection, length, buffer, start, where)
        start = 0


def _more(connection: Connection[Any], length: Any, buffer: bytes, start: int, where: str) -> bytes:
    """Wait for bytes: whatever is there, or at once as many as a long packet still lacks."""
    rest = len(buffer) - start
    lacking = (length(buffer, start)[0] & CONTINUED) + 4 - rest if rest >= 4 else 0
    try:
        if lacking > BLOCK_BYTES:
            found: bytes = connection._rfile.read(lacking)
        else:
            found = connection._rfile.read1(BLOCK_BYTES)
    except (OSError, ValueError) as error:
        raise _lost(where, f" ({error})") from None
    if not found or len(found) < lacking > BLOCK_BYTES:
        raise _lost(where, "")
    return found


def _lost(where: str, why: str) -> SourceLost:
    return SourceLost(
        f"While reading the binary log: the line to MySQL at {where} closed before the end of the log{why}. "
        f"Nothing behind the last saved position is taken as read; run again."
    )
