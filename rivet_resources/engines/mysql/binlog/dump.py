"""The dump command of MySQL and MariaDB: the events of the binary log, whole and checked, to the end of the log.

Belongs here: announcing ourselves, the command by file or by GTID, packets, checksums, the end packet. Not here: what
an event means (events.py), what happened when the server refuses (errors.py).

The end of the log is the server's end packet and nothing else: a line that closes without it has lost events.
Source: MySQL internals manual, "COM_BINLOG_DUMP", "COM_BINLOG_DUMP_GTID", "Binlog Network Stream"; MariaDB knowledge
base, "COM_BINLOG_DUMP".
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from zlib import crc32

from rivet_resources.engines.mysql.binlog.compression import LARGEST_EVENT
from rivet_resources.engines.mysql.binlog.gtid import MySqlSet
from rivet_resources.errors import LogRefused, SourceLost

if TYPE_CHECKING:
    from pymysql.connections import Connection

COM_BINLOG_DUMP, COM_BINLOG_DUMP_GTID = 0x12, 0x1E
# Do not wait at the end: send the end packet.
NON_BLOCK = 1
BLOCK_BYTES = 1 << 20
# An event of 16 MB or more goes on in the next packet.
CONTINUED = 0xFFFFFF
SHORTEST_LONG_VALUE = 9
ROTATE, FORMAT = 4, 15
CHECKED_ANYHOW = frozenset({ROTATE, FORMAT})
NO_CHECKSUM, CRC32 = 0, 1
# The CRC32 of anything with its own CRC32 behind it.
RESIDUE = 0x2144DF1C
# Behind what was read, so that the first bytes of any packet can be looked at without asking how many there are.
PADDING = bytes(6)
# Files written under another binlog_checksum than today's are readable too, so the literal, not the server's setting.
# Capability 4: GTID events arrive as they are, not rewritten for old replicas. No semi-sync: nobody here acknowledges.
ANNOUNCE = (
    "SET @master_binlog_checksum = 'CRC32', @source_binlog_checksum = 'CRC32', @mariadb_slave_capability = 4, "
    "@rpl_semi_sync_slave = 0"
)


def start_at(connection: Connection[Any], file: str, offset: int, *, server_id: int) -> None:
    """Ask for events from a place of a file; offsets above 4 GiB need `start_after_gtids`."""
    _announce(connection)
    # Offset (4 bytes: hence the 4 GiB), flags (2), server id (4), name of the file to the end of the packet.
    connection._execute_command(COM_BINLOG_DUMP, struct.pack("<IHI", offset, NON_BLOCK, server_id) + file.encode())


def start_after_gtids(connection: Connection[Any], gtids: str, *, server_id: int, is_mariadb: bool) -> None:
    """Ask for the transactions that are not in a GTID set; the server finds the file."""
    _announce(connection)
    if is_mariadb:
        with connection.cursor() as cursor:
            cursor.execute("SET @slave_connect_state = %s, @slave_gtid_strict_mode = 0", (gtids,))
        # Without a file's name the server begins where @slave_connect_state
        # says; 4 is what stands behind a file's magic number.
        connection._execute_command(COM_BINLOG_DUMP, struct.pack("<IHI", 4, NON_BLOCK, server_id))
        return
    known = MySqlSet.parse(gtids).packed()
    # Flags, server id, length of a file's name (none), offset, length of the set.
    head = struct.pack("<HIIQI", NON_BLOCK, server_id, 0, 4, len(known))
    connection._execute_command(COM_BINLOG_DUMP_GTID, head + known)


def _announce(connection: Connection[Any]) -> None:
    with connection.cursor() as cursor:
        cursor.execute(ANNOUNCE)


def events(connection: Connection[Any], *, where: str) -> Iterator[bytes]:
    """Yield events to the end of the log, each with its packet's first byte before it and without its checksum.

    Raises:
        pymysql.err.MySQLError: what the server says instead of an event.
        SourceLost: the line closed before the end packet.
        LogRefused: a checksum is wrong, or of a kind that we do not know.
    """
    # Taken for checked until the first format event says how its file is written.
    has_checksum, buffer, start, parts = True, PADDING, 0, list[bytes]()
    head = struct.Struct("<IB4xB").unpack_from  # length and number of the packet, whether it is an event, its type
    # Packets are cut out of large reads and checked where they lie: a read, or a copy, for each would cost more than
    # decoding it. One loop for all of it, as it runs some five times for a transaction of one row.
    while True:
        end, view = len(buffer) - len(PADDING), memoryview(buffer)
        while end - start >= 4:
            length, status, kind = head(buffer, start)
            size = length & CONTINUED
            behind = start + 4 + size
            if behind > end:
                # The rest of this packet has not arrived: what there is stays, and more is read behind it.
                break
            at, start = start + 4, behind
            if size == CONTINUED or parts:
                parts.append(buffer[at:behind])
                if len(parts) * CONTINUED > LARGEST_EVENT:
                    raise LogRefused(
                        f"An event of the binary log of {where} has more than {LARGEST_EVENT >> 30} GB, which no "
                        f"server writes. The line is damaged, or this is no MySQL server; run again."
                    )
                if size == CONTINUED:
                    continue
                packet = b"".join(parts)
                parts.clear()
                if (event := _check_packet(packet, has_checksum, where)) is None:
                    return
                yield event
            # Their checksums do not follow the file's setting.
            elif status or kind in CHECKED_ANYHOW:
                packet = buffer[at:behind]
                if not status and kind == FORMAT:
                    has_checksum = _is_checked(packet)
                if (event := _check_packet(packet, has_checksum, where)) is None:
                    return
                yield event
            elif has_checksum:
                # Over the checksum too, which makes the sum a constant: nothing has to be cut off or copied first.
                if crc32(view[at + 1 : behind]) != RESIDUE:
                    raise _damage(buffer[at:behind], where)
                yield buffer[at : behind - 4]
            else:
                yield buffer[at:behind]
        view.release()
        rest = buffer[start:end]
        buffer, start = b"".join((rest, _more(connection, rest, where), PADDING)), 0


def _check_packet(packet: bytes, has_checksum: bool, where: str) -> bytes | None:
    """Take one packet's event, whatever it is; None for the end packet."""
    from pymysql import err  # driver

    # An event follows a zero byte; FE in a short packet is the end, FF an error.
    if packet[0] == 0xFE and len(packet) < SHORTEST_LONG_VALUE:
        return None
    if packet[0]:
        err.raise_mysql_exception(packet)
    # It always has room for a checksum, and a byte that says which kind the file has.
    if packet[5] == FORMAT:
        return packet[:-5]
    is_whole = crc32(memoryview(packet)[1:]) == RESIDUE
    # The one that begins a dump is made up, before we know how the file is written.
    if packet[5] == ROTATE:
        return packet[:-4] if is_whole else packet
    if has_checksum and not is_whole:
        raise _damage(packet, where)
    return packet[:-4] if has_checksum else packet


def _is_checked(packet: bytes) -> bool:
    """Read from a format event whether the events of its file have a CRC32."""
    kind = packet[-5]
    if kind not in (NO_CHECKSUM, CRC32):
        raise LogRefused(
            f"The binary log has checksums of kind {kind}; NONE and CRC32 are known. Set binlog_checksum = CRC32."
        )
    return kind == CRC32


def _damage(packet: bytes, where: str) -> LogRefused:
    place = int.from_bytes(packet[14:18], "little")
    return LogRefused(
        f"The event of type {packet[5]} that ends at {place} of the binary log of {where} has a wrong checksum. "
        f"The log or the line is damaged: run again, and if it stays, let the server's owner check the log "
        f"with mysqlbinlog --verify-binlog-checksum."
    )


def _more(connection: Connection[Any], rest: bytes, where: str) -> bytes:
    """Wait for bytes: whatever is there, or at once as many as a long packet still lacks."""
    lacking = int.from_bytes(rest[:3], "little") + 4 - len(rest) if len(rest) >= 4 else 0
    try:
        # At once: with reads of one block, what has arrived of a long packet would be copied again for each of
        # them.
        if lacking > BLOCK_BYTES:
            found: bytes = connection._rfile.read(lacking)
        else:
            found = connection._rfile.read1(BLOCK_BYTES)
    except (OSError, ValueError) as error:
        raise _line_lost(where, f" ({error})") from None
    if not found or len(found) < lacking > BLOCK_BYTES:
        raise _line_lost(where, "")
    return found


def _line_lost(where: str, why: str) -> SourceLost:
    return SourceLost(
        f"While reading the binary log: the line to MySQL at {where} closed before the end of the log{why}. "
        f"Nothing behind the last saved position is taken as read; run again."
    )
