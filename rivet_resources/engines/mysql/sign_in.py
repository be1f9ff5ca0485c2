"""A PyMySQL connection that trusts a server no further than its line allows.

Belongs here: which ways to prove a password are taken, and where answers end. Not here: parameters and
pinning (connect.py).

PyMySQL does whatever the server asks: it sends the password as it is (`mysql_clear_password`, `dialog`, and over any
TLS `sha256_password`, `caching_sha2_password`), or encrypted for whatever key the server names. Who sits on the line,
or answers in the server's place, then has it. The servers' own clients ask for an opt-in; here that is a certificate
that was verified, or a Unix socket. On a loopback address, where lines are not encrypted either, a password may be
encrypted for the server's key, so that a fresh MySQL on one's own machine can be signed in to. Source: MySQL 9 manual,
"Caching SHA-2 Pluggable Authentication", "Client-Side Cleartext Pluggable Authentication".
"""

from __future__ import annotations

from functools import cache
from typing import Any

from rivet_resources.deadlines import keep_alive

# Of one small statement, such as a look into the catalog; pages of rows are read elsewhere, with limits of their own.
MOST_BYTES, MOST_PACKETS, MOST_COLUMNS = 256 << 20, 2_000_000, 0xFFFF
IN_CLEAR = ("mysql_clear_password", "dialog")
SENDS_PASSWORD = (*IN_CLEAR, "sha256_password", "caching_sha2_password")
# More data: caching_sha2_password wants the password itself.
FULL_PROOF = b"\x01\x04"
# CR_AUTH_PLUGIN_ERR, as the servers' own client says "requires secure connection".
CANNOT_PROVE = 2061


@cache
def connection_class() -> Any:
    """Return the class of connections; made at the first use, since reading a config needs no driver."""
    from pymysql import _auth, err  # driver
    from pymysql.connections import Connection  # driver
    from pymysql.protocol import FieldDescriptorPacket, MysqlPacket  # driver

    def refusal(plugin: str) -> Exception:
        refused: Exception = err.OperationalError(
            CANNOT_PROVE,
            f"the server asks for the password itself ({plugin}), and nothing proves that it is the server: "
            f"the password was not sent. Set `tls: {{mode: verify-full}}` (or verify-ca, with `ca_file`), or connect "
            f"by its Unix socket",
        )
        return refused

    class Refused:
        """A way to prove the password that would give it away."""

        plugin = ""

        def __init__(self, connection: Any) -> None:
            self.connection = connection

        def authenticate(self, packet: Any) -> Any:
            if self.connection.password:
                raise refusal(self.plugin)
            # An empty password gives nothing away.
            self.connection.write_packet(b"\0" if self.plugin != "caching_sha2_password" else b"")
            return self.connection._read_packet()

    class CachingSha2(Refused):
        """The scramble alone, which the server knows when somebody signed in since it started."""

        plugin = "caching_sha2_password"

        def authenticate(self, packet: Any) -> Any:
            connection = self.connection
            if not connection.password:
                return super().authenticate(packet)
            if packet.is_auth_switch_request():
                connection.salt = packet.read_all().removesuffix(b"\0")
                connection.write_packet(_auth.scramble_caching_sha2(connection.password, connection.salt))
                packet = connection._read_packet()
            # The server does not know the scramble, since nobody signed in since it started, and asks for the
            # password itself.
            if packet._data[:2] == FULL_PROOF:
                raise refusal(self.plugin)
            return connection._read_packet() if packet.is_extra_auth_data() else packet

    refused = {name: type("Refused", (Refused,), {"plugin": name}) for name in SENDS_PASSWORD}
    refused["caching_sha2_password"] = CachingSha2

    class Guarded(Connection):  # type: ignore[misc]  # PyMySQL has no types here
        """A connection that ends answers without end, and keeps the password where the server is not verified."""

        _read_timeout: float | None
        _write_timeout: float | None

        def __init__(self, *, is_verified: bool, is_local: bool, **parameters: Any) -> None:
            self._bytes = self._packets = self._columns = 0
            self._takes_any_key = is_verified or is_local
            # A server that has proved itself may ask in any way; one on this machine not for the password in clear;
            # any other for nothing that holds it.
            ways = () if is_verified else IN_CLEAR if is_local else SENDS_PASSWORD
            super().__init__(**parameters, auth_plugin_map={way: refused[way] for way in ways})

        def connect(self, sock: Any = None) -> None:
            """Connect and sign in; each answer within `connect_timeout`, as no statement is at work yet."""
            usual = self._read_timeout, self._write_timeout
            # A server that answers the login for minutes is not at work on anything; the statement's patience is
            # for later.
            self._read_timeout = self._write_timeout = self.connect_timeout
            super().connect(sock)
            self._read_timeout, self._write_timeout = usual
            keep_alive(self._sock)

        def _request_authentication(self) -> None:
            if not self._takes_any_key and str(self._auth_plugin_name) == "sha256_password":
                # Whose first answer would hold the password; the server then names the user's own plugin.
                self._auth_plugin_name: str = "mysql_native_password"
            super()._request_authentication()

        def write_packet(self, payload: bytes) -> None:
            # Counted for one answer at a time.
            self._bytes = self._packets = self._columns = 0
            super().write_packet(payload)

        def _execute_command(self, command: int, sql: Any) -> None:
            self._bytes = self._packets = self._columns = 0
            super()._execute_command(command, sql)

        def _read_packet(self, packet_type: Any = MysqlPacket) -> Any:
            self._packets += 1
            self._columns += packet_type is FieldDescriptorPacket
            if self._packets > MOST_PACKETS or self._columns > MOST_COLUMNS:
                raise self._endless()
            return super()._read_packet(packet_type)

        def _read_bytes(self, num_bytes: int) -> bytes:
            self._bytes += num_bytes
            if self._bytes > MOST_BYTES:
                raise self._endless()
            data: bytes = super()._read_bytes(num_bytes)
            return data

        def _endless(self) -> Exception:
            self._force_close()
            endless: Exception = err.InternalError(
                f"the answer to a small statement has no end: more than {MOST_BYTES >> 20} MB, {MOST_PACKETS:,} rows "
                f"or {MOST_COLUMNS:,} columns"
            )
            return endless

    return Guarded
