"""TLS of the SQL Server emulator: the handshake in packets of TDS, then the packets in TLS.

Belongs here: one protected line. Not here: whether there is to be one (protocol.py). Source: [MS-TDS], 2.2.1 and
3.2.5.1: until the handshake is over its records travel as the content of PRELOGIN packets.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct

PRELOGIN = 18
PIECE = 4096 - 8


def server_context(certificate: str, key: str) -> ssl.SSLContext:
    """Return the server's side; TDS 7.4 knows TLS up to 1.2 only, as 1.3 goes on talking behind its handshake."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(certificate, key)
    return context


class Protected:
    """A line that looks like its socket, as far as the emulator uses one."""

    def __init__(self, line: socket.socket, context: ssl.SSLContext) -> None:
        self._line = line
        self._received, self._to_send = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._received, self._to_send, server_side=True)
        while True:
            try:
                self._tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                self._send_packets()
                self._received.write(self._packet())
            except ssl.SSLError:
                # The client refuses the certificate, or the alert says why it does.
                with contextlib.suppress(OSError):
                    self._send_packets()
                raise ConnectionError from None
        self._send_packets()

    def fileno(self) -> int:
        """Return the socket's number, to wait on."""
        return self._line.fileno()

    def recv(self, size: int) -> bytes:
        """Receive at most so many bytes; none when the line ended."""
        while True:
            try:
                return self._tls.read(size)
            except ssl.SSLWantReadError:
                content = self._line.recv(65_536)
                if not content:
                    return b""
                self._received.write(content)
            except ssl.SSLError:
                return b""

    def sendall(self, content: bytes) -> None:
        """Send all of it."""
        self._tls.write(content)
        self._line.sendall(self._to_send.read())

    def _packet(self) -> bytes:
        head = self._exactly(8)
        return self._exactly(struct.unpack(">H", head[2:4])[0] - 8)

    def _exactly(self, size: int) -> bytes:
        content = b""
        while len(content) < size:
            piece = self._line.recv(size - len(content))
            if not piece:
                raise ConnectionError
            content += piece
        return content

    def _send_packets(self) -> None:
        content = self._to_send.read()
        for start in range(0, len(content), PIECE):
            piece = content[start : start + PIECE]
            is_last = int(start + PIECE >= len(content))
            self._line.sendall(struct.pack(">BBHHBB", PRELOGIN, is_last, len(piece) + 8, 0, 1, 0) + piece)
