"""Connection strings of SQL Server's drivers, and which checks of certificates each one can do.

Belongs here: the words of each driver, as functions over one `WantedLine`. Not here: the YAML block (source.py).

A check that a driver cannot do is refused: it must not look as if it was done.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rivet_resources.contracts.settings import Tls
from rivet_resources.engines.shared.server import Address, system_authorities
from rivet_resources.engines.sqlserver.drivers import freetds_conf
from rivet_resources.engines.sqlserver.drivers.odbc_drivers import OdbcDriver
from rivet_resources.errors import ConfigError


@dataclass(frozen=True)
class WantedLine:
    """What one line is to be: where, as whom, how protected."""

    address: Address
    tls: Tls | None
    is_read_only: bool
    is_kerberos: bool = False
    odbc_driver: OdbcDriver | None = None  # None: the wheel

    @property
    def mode(self) -> str:
        """Return the mode of `tls:`; no block, which is for this machine only, is none."""
        return "disable" if self.tls is None else self.tls.mode

    @property
    def ca_file(self) -> Path | None:
        """Return the file of `tls:`."""
        return None if self.tls is None else self.tls.ca_file


def escape(value: str) -> str:
    """Write one value of a connection string, whatever it holds."""
    return "{" + value.replace("}", "}}") + "}"


def spell(words: Mapping[str, str]) -> str:
    """Write a connection string for Microsoft's drivers; words without a value are left out."""
    return ";".join(f"{key}={escape(value)}" for key, value in words.items() if value)


def spell_freetds(words: Mapping[str, str]) -> str:
    """Write a connection string for FreeTDS; words without a value are left out.

    Up to 1.3 it ends a value at `};` and takes a doubled brace for two, later versions read braces as ODBC has them; a
    word of its configuration that keeps a brace lets 1.3.17 crash. What is written here all versions read alike.
    Source: FreeTDS, `src/odbc/connectparams.c`; 1.3.17 run.

    Raises:
        ConfigError: a value holds marks that the versions read differently.
    """
    return "".join(f"{key}={_escape_freetds(key, value)};" for key, value in words.items() if value)


def _escape_freetds(key: str, value: str) -> str:
    if ";" not in value and not value.startswith("{"):
        return value
    if "}" in value:
        name = {"PWD": "password", "UID": "user"}.get(key, key.lower())
        raise ConfigError(
            f"The {name} of the source holds `}}` beside `;`, or begins with `{{`, which versions of FreeTDS read "
            f"differently. Change it, or use Microsoft's driver."
        )
    return "{" + value + "}"


def _common(line: WantedLine) -> dict[str, str]:
    # Without user and password a driver would sign in by whatever it finds.
    signs_in = (
        {"Trusted_Connection": "yes"}
        if line.is_kerberos
        else {"UID": line.address.user, "PWD": line.address.password or ""}
    )
    intent = "ReadOnly" if line.is_read_only else "ReadWrite"
    return {"Database": line.address.database, **signs_in, "ApplicationIntent": intent}


# --- Microsoft's two -----------------------------------------------------------------------------


def mssql_python(line: WantedLine) -> dict[str, str]:
    """Return the words of the wheel.

    Raises:
        ConfigError: it cannot check a certificate in the way asked for.
    """
    if line.mode.startswith("verify") and (line.mode == "verify-ca" or line.ca_file is not None):
        raise ConfigError(
            "SQL Server's driver checks certificates against the system's authorities, host name included. Use "
            "`tls: {mode: verify-full}` without `ca_file`, and add the authority to the system's store; or use "
            "`driver: odbc`."
        )
    return {**_server(line), **_common(line), **_encryption(line), "ConnectRetryCount": "0"}


def microsoft(line: WantedLine, driver: OdbcDriver) -> dict[str, str]:
    """Return the words of Microsoft's ODBC driver.

    `verify-ca` with a `ca_file` pins that certificate: the keyword compares the server's own with it, byte for byte, in
    place of the check of authority, name and dates, and wants the strict encryption of TDS 8.0.
    Source: Microsoft, "DSN and Connection String Keywords and Attributes", Encrypt and ServerCertificate (18.1).

    Raises:
        ConfigError: it cannot check a certificate in the way asked for.
    """
    words = {"Driver": driver.name, **_server(line), **_common(line)}
    if line.mode == "verify-ca" and line.ca_file is not None and driver.major >= 18:
        transport = {"Encrypt": "strict", "ServerCertificate": str(line.ca_file)}
    elif line.mode == "verify-ca" or (line.mode == "verify-full" and line.ca_file is not None):
        raise ConfigError(
            f"{driver.name} checks certificates against the system's authorities, host name included; from 18.1 on, "
            f"`tls: {{mode: verify-ca, ca_file: …}}` takes the server's own certificate, of SQL Server 2022 and newer. "
            f"Use `tls: {{mode: verify-full}}` without `ca_file` and add the authority to the system's store, or use "
            f"`odbc_driver: FreeTDS`, which takes a file of authorities."
        )
    else:
        transport = _encryption(line)
    return {**words, **transport, "ConnectRetryCount": "0"}


def _server(line: WantedLine) -> dict[str, str]:
    # Of a bare name the driver may try shared memory and named pipes first, on Windows.
    return {"Server": f"tcp:{line.address.host},{line.address.port}"}


def _encryption(line: WantedLine) -> dict[str, str]:
    if line.mode == "disable":
        return {"Encrypt": "no"}
    return {"Encrypt": "yes", "TrustServerCertificate": "yes" if line.mode == "require" else "no"}


# --- FreeTDS -------------------------------------------------------------------------------------


def freetds(line: WantedLine, driver: OdbcDriver) -> dict[str, str]:
    """Return the words of FreeTDS.

    It checks a certificate only where its configuration names a file of authorities, which is no word of a connection
    string: such a line is a section of a file of ours (freetds_conf.py).
    Source: FreeTDS User Guide, "ODBC connection attributes" and "freetds.conf"; `src/odbc/connectparams.c`.

    Raises:
        ConfigError: the file of authorities is not there.
    """
    words = {
        "Driver": driver.name,
        **_place(line),
        **_common(line),
        # Types since SQL Server 2008 (date, time, datetime2) have a form of their own from 7.3 on.
        "TDS_Version": "7.4",
        # Else letters that are not in Latin-1 would become question marks.
        "ClientCharset": "UTF-8",
    }
    if not line.mode.startswith("verify"):
        # `off` would send the password in the clear; Microsoft's drivers protect the log-in always, if they can.
        words["Encryption"] = "require" if line.mode == "require" else "request"
    return words


def _place(line: WantedLine) -> dict[str, str]:
    if not line.mode.startswith("verify"):
        return {"Server": line.address.host, "Port": str(line.address.port)}
    authorities = Path(line.ca_file or system_authorities())
    if not authorities.is_file():
        raise ConfigError(f"`tls.ca_file` {authorities} is no file that is here; FreeTDS needs one to check by.")
    section = freetds_conf.section(
        line.address.host, line.address.port, authorities=authorities.resolve(), checks_name=line.mode == "verify-full"
    )
    return {"Servername": section}
