"""Tickets at the SQL Server emulator: whose a client's token is, by MIT Kerberos and the keytab in KRB5_KTNAME.

Belongs here: one call of the GSS-API, through the system's library. Not here: the log-in it stands in (protocol.py), a
KDC (`tests/servers/kerberos.py`). Source: RFC 2744, 5.1; [MS-TDS], 2.2.6.4 and 2.2.7.22.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, byref, c_size_t, c_uint32, c_void_p

COMPLETE = 0


class Buffer(ctypes.Structure):
    """gss_buffer_desc."""

    _fields_ = (("length", c_size_t), ("value", c_void_p))

    def content(self) -> bytes:
        """Return what is in it."""
        return ctypes.string_at(self.value, self.length) if self.value and self.length else b""


class TicketRefused(Exception):
    """The token is none, or not for this server."""


def accept(token: bytes) -> tuple[str, bytes]:
    """Return the principal that a token proves, and the token to answer with.

    Raises:
        TicketRefused
    """
    gss = ctypes.CDLL("libgssapi_krb5.so.2")
    held = ctypes.create_string_buffer(token, len(token))
    given = Buffer(len(token), ctypes.cast(held, c_void_p))
    minor, flags, seconds = c_uint32(), c_uint32(), c_uint32()
    context, name, mechanism, delegated = c_void_p(), c_void_p(), c_void_p(), c_void_p()
    answer, shown = Buffer(), Buffer()
    gss.gss_accept_sec_context.restype = c_uint32
    gss.gss_accept_sec_context.argtypes = [POINTER(c_uint32), POINTER(c_void_p), c_void_p, POINTER(Buffer), c_void_p,
                                           POINTER(c_void_p), POINTER(c_void_p), POINTER(Buffer), POINTER(c_uint32),
                                           POINTER(c_uint32), POINTER(c_void_p)]  # fmt: skip
    major = gss.gss_accept_sec_context(
        byref(minor), byref(context), None, byref(given), None, byref(name), byref(mechanism), byref(answer),
        byref(flags), byref(seconds), byref(delegated),
    )  # fmt: skip
    if major != COMPLETE:
        raise TicketRefused(f"GSS-API: {major:08x}, {minor.value}")
    gss.gss_display_name.argtypes = [POINTER(c_uint32), c_void_p, POINTER(Buffer), c_void_p]
    gss.gss_display_name(byref(minor), name, byref(shown), None)
    return shown.content().decode(), answer.content()
