"""What a fault of TLS means to a user: one kind per thing to do about it, whoever's driver says it.

Belongs here: the texts of OpenSSL, libpq, PyMySQL, Microsoft's driver and botocore, and the words for each kind. Not
here: which error class it becomes (`engines/*/errors.py`, `destinations/*_client.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Kind = Literal["expired", "early", "authority", "host", "plain", "demanded", "ca_file", "certificate", "handshake"]

# A piece of the lower-cased text → what it means; first match wins. Sources: OpenSSL 3 `X509_verify_cert_error_string`;
# CPython 3.11 `_ssl.c`; libpq 18 `fe-secure-openssl.c`, `fe-secure-common.c`; PyMySQL 1.2 `connections.py`; Microsoft,
# "ODBC Driver for SQL Server: connection encryption troubleshooting".
TEXTS: tuple[tuple[str, Kind], ...] = (
    ("certificate has expired", "expired"),
    ("certificate is not yet valid", "early"),
    ("hostname mismatch", "host"),
    ("ip address mismatch", "host"),
    ("does not match host name", "host"),
    ("doesn't match", "host"),
    ("subject name does not match host name", "host"),
    ("target principal name is incorrect", "host"),
    ("self-signed certificate", "authority"),
    ("self signed certificate", "authority"),
    ("unable to get local issuer certificate", "authority"),
    ("unable to get issuer certificate", "authority"),
    ("certificate chain was issued by an authority that is not trusted", "authority"),
    ("root certificate file", "ca_file"),
    ("could not read root certificate", "ca_file"),
    ("server does not support ssl", "plain"),
    ("ssl is required but the server doesn't support it", "plain"),
    ("encryption not supported on the server", "plain"),
    ("wrong version number", "plain"),
    ("wrong_version_number", "plain"),
    ("insecure transport are prohibited", "demanded"),
    ("server is configured to require encryption", "demanded"),
    ("certificate verify failed", "certificate"),
    ("certificate_verify_failed", "certificate"),
    ("[ssl:", "handshake"),
    ("ssl error:", "handshake"),
    ("ssl provider", "handshake"),
    ("tls connection error", "handshake"),
    ("ssl connection error", "handshake"),
    ("ssl handshake", "handshake"),
    ("ssl validation failed", "certificate"),
)

# A protected line that simply ended: nothing is wrong with its protection, and a new one may last.
ENDED = ("ssl syscall error", "unexpected eof", "unexpected_eof", "eof occurred", "connection reset", "timed out")

# Kind → what is wrong with the server at {where}, and what to do.
WORDS: Mapping[Kind, tuple[str, str]] = {
    "expired": (
        "its certificate has expired",
        "Let the server's administrator renew it; until then `tls: {mode: require}` encrypts without checking who "
        "answers.",
    ),
    "early": (
        "its certificate is not valid yet",
        "Compare this machine's clock with the server's; if it is right, let the administrator issue a new one.",
    ),
    "authority": (
        "its certificate is signed by an authority that is not known here",
        "Name the PEM file of that authority as `tls.ca_file`, or add it to the system's store.",
    ),
    "host": (
        "its certificate is for another host name",
        "Connect by a name that stands in the certificate, or check the authority only: `tls: {mode: verify-ca}`.",
    ),
    "plain": (
        "it does not speak TLS",
        "Let the administrator turn TLS on; on a network that you trust, `tls: {mode: disable}` goes unprotected.",
    ),
    "demanded": (
        "it takes protected lines only",
        "Add `tls: {mode: verify-full}` to the source, with `ca_file` if its authority is your own.",
    ),
    "ca_file": (
        "the file of authorities cannot be read here",
        "Fix `tls.ca_file`: a PEM file that this process may read.",
    ),
    "certificate": (
        "its certificate is not accepted",
        "Look at it with `openssl s_client`, and compare it with `tls.ca_file` and the host name.",
    ),
    "handshake": (
        "the TLS handshake failed",
        "Compare the TLS versions and ciphers that both sides allow; the server's log may say more.",
    ),
}  # fmt: skip


@dataclass(frozen=True)
class TlsFault:
    """One fault of TLS: what is wrong, as a clause about the server, and what to do, as a sentence."""

    kind: Kind
    why: str
    fix: str


def tls_fault(text: object) -> TlsFault | None:
    """Recognise a fault of TLS by its text; None: it is about something else."""
    said = str(text).lower()
    # Looked for first: such texts name SSL too, and a lost line, which another attempt may mend, would be taken for a
    # setting that is wrong.
    if any(piece in said for piece in ENDED):
        return None
    kind = next((kind for piece, kind in TEXTS if piece in said), None)
    return None if kind is None else TlsFault(kind, *WORDS[kind])
