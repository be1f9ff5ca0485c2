"""Why FreeTDS could not open a line: it says `Unable to connect to data source`, whatever the matter was.

Belongs here: one look at the port, one handshake by Python's TLS, which tells expired from unknown. Not here: what that
means to a user (`rivet_resources/tls_faults.py`, errors.py).
"""

from __future__ import annotations

import socket
import ssl
import struct

from rivet_resources.engines.shared.server import system_authorities
from rivet_resources.engines.sqlserver.drivers.strings import WantedLine

SECONDS = 5.0
PRELOGIN = 18
# Source: [MS-TDS], 2.2.6.5, PRELOGIN: options 0 VERSION and 1 ENCRYPTION, then the end of the list; encryption on.
ASK = b"\0\0\x0b\0\x06" + b"\x01\0\x11\0\x01" + b"\xff" + b"\0\0\0\0\0\0" + b"\x01"
ON = frozenset({1, 3})
NO_TICKET = "GSSAPI: FreeTDS has no ticket that this server takes, and says no more"


def reason(line: WantedLine) -> str:
    """Return why a line was refused, in words that `errors.py` sorts; '' where nothing more is known.

    Nothing secret is sent.
    """
    try:
        with socket.create_connection((line.address.host, line.address.port), SECONDS) as opened:
            found = _of_certificate(opened, line) if line.mode not in ("disable", "") else ""
    except ssl.SSLError as error:
        return str(error)
    except (OSError, struct.error, IndexError):  # a refinement: FreeTDS's own words stand without it
        return ""
    return found or (NO_TICKET if line.is_kerberos else "")


def _of_certificate(opened: socket.socket, line: WantedLine) -> str:
    """Shake hands as FreeTDS did; raises what OpenSSL has against the certificate."""
    _send(opened, ASK)
    answer = _packet(opened)
    if _encryption(answer) not in ON:
        return "encryption not supported on the server"
    context = ssl.create_default_context(cafile=str(line.ca_file or system_authorities()))
    # Python sets it by default from 3.13 on; FreeTDS does not, and its verdict is the one to explain.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    context.check_hostname = line.mode == "verify-full"
    if line.mode == "require":
        context.verify_mode = ssl.CERT_NONE
    received, to_send = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(received, to_send, server_hostname=line.address.host)
    while True:
        try:
            tls.do_handshake()
            return ""
        except ssl.SSLWantReadError:
            # Until the handshake is over its records travel in packets of PRELOGIN. Source: [MS-TDS], 3.2.5.1.
            _send(opened, to_send.read())
            received.write(_packet(opened))


def _send(opened: socket.socket, content: bytes) -> None:
    opened.sendall(struct.pack(">BBHHBB", PRELOGIN, 1, len(content) + 8, 0, 1, 0) + content)


def _packet(opened: socket.socket) -> bytes:
    head = _exactly(opened, 8)
    return _exactly(opened, struct.unpack(">H", head[2:4])[0] - 8)


def _exactly(opened: socket.socket, size: int) -> bytes:
    content = b""
    while len(content) < size:
        piece = opened.recv(size - len(content))
        if not piece:
            raise ConnectionError("the line ended")
        content += piece
    return content


def _encryption(answer: bytes) -> int:
    """Return what a server's PRELOGIN says of encryption; 2, not supported, where it says nothing."""
    place = 0
    while answer[place] != 0xFF:
        token, start, length = struct.unpack(">BHH", answer[place : place + 5])
        if token == 1 and length:
            return int(answer[start])
        place += 5
    return 2
