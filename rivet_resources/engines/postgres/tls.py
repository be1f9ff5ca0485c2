"""Why a PostgreSQL server's certificate was refused: libpq says only that it was.

Belongs here: one handshake by Python's TLS, which tells expired from unknown. Not here: what that means to a user
(`rivet_resources/tls_faults.py`).
"""

from __future__ import annotations

import socket
import ssl
import struct
from collections.abc import Mapping

SECONDS = 5.0
SSL_REQUEST = struct.pack("!ii", 8, 80877103)  # PostgreSQL documentation, "Message Formats", SSLRequest


def refusal(parameters: Mapping[str, str]) -> str:
    """Ask for the certificate once more and give OpenSSL's reason for refusing it; '' when there is none to be had.

    Args:
        parameters: libpq's, with sslmode and sslrootcert. No password is sent.
    """
    host = parameters.get("hostaddr") or parameters.get("host") or ""
    if not host or host.startswith(("/", "@")) or "," in host:
        return ""
    try:
        context = ssl.create_default_context(cafile=parameters.get("sslrootcert"))
        # Python sets it by default from 3.13 on; libpq does not, and its verdict is the one to explain.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        context.check_hostname = False  # libpq names the host itself
        with socket.create_connection((host, int(parameters.get("port", 5432))), SECONDS) as line:
            line.sendall(SSL_REQUEST)
            # The server answers with one byte before any TLS: S it will, N it will not.
            if line.recv(1) == b"S":
                context.wrap_socket(line, server_hostname=parameters.get("host") or host).close()
    except ssl.SSLError as error:
        return str(error)
    except OSError:  # a refinement: libpq's own words stand without it
        return ""
    return ""
