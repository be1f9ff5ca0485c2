"""Drivers of SQL Server without a server: names, connection strings, records in a fault's text."""

from __future__ import annotations

import os
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from rivet_resources.contracts.settings import Tls
from rivet_resources.engines.shared.server import Address
from rivet_resources.engines.sqlserver.driver import LOST, TIMED_OUT, refusal
from rivet_resources.engines.sqlserver.drivers import odbc, strings
from rivet_resources.engines.sqlserver.drivers.contract import DriverFailed
from rivet_resources.engines.sqlserver.drivers.odbc_drivers import OdbcDriver, named, newest
from rivet_resources.errors import ConfigError

ADDRESS = Address("db", 1433, "rivet", "a;b}c", "shop")
EIGHTEEN = OdbcDriver("ODBC Driver 18 for SQL Server", "microsoft", 18)
SEVENTEEN = OdbcDriver("ODBC Driver 17 for SQL Server", "microsoft", 17)
FREETDS = OdbcDriver("FreeTDS", "freetds")


def line(tls: Tls | None = None, **keys: Any) -> strings.WantedLine:
    """Make a line to one server."""
    return strings.WantedLine(ADDRESS, tls, is_read_only=False, **keys)


# --- names ---------------------------------------------------------------------------------------

NAMES = [
    ("ODBC Driver 18 for SQL Server", "microsoft", 18),
    ("odbc driver 17 for sql server", "microsoft", 17),
    ("/opt/microsoft/msodbcsql18/lib64/libmsodbcsql-18.3.so.2.1", "microsoft", 18),
    ("FreeTDS", "freetds", 0),
    ("/usr/lib/x86_64-linux-gnu/odbc/libtdsodbc.so", "freetds", 0),
]


@pytest.mark.parametrize(("name", "kind", "major"), NAMES)
def test_driver_is_known_by_its_name_or_library(name, kind, major):
    """As odbcinst.ini names it, or by the path of its library."""
    assert OdbcDriver(name, kind, major) == named(name)


@pytest.mark.parametrize("name", ["SQL Server", "Devart ODBC Driver for SQL Server", ""])
def test_driver_that_nobody_looked_at_is_refused_by_name(name):
    """What it makes of types and certificates is not known."""
    with pytest.raises(ValueError, match=f"'{name}' is no ODBC driver that Rivet knows"):
        named(name)


def test_newest_of_microsofts_drivers_is_taken():
    """By number and not by the order of the file; FreeTDS never by itself."""
    assert EIGHTEEN == newest(["FreeTDS", SEVENTEEN.name, EIGHTEEN.name, "ODBC Driver 9 for SQL Server"])
    assert newest(["FreeTDS", "MariaDB"]) is None


# --- connection strings --------------------------------------------------------------------------

OURS = Path(__file__)  # any file that is there
# Driver, `tls:` → words of the connection string.
TRANSPORTS = [
    (EIGHTEEN, None, {"Encrypt": "no"}),
    (EIGHTEEN, Tls(mode="require"), {"Encrypt": "yes", "TrustServerCertificate": "yes"}),
    (EIGHTEEN, Tls(mode="verify-full"), {"Encrypt": "yes", "TrustServerCertificate": "no"}),
    (EIGHTEEN, Tls(mode="verify-ca", ca_file=OURS), {"Encrypt": "strict", "ServerCertificate": str(OURS)}),
    (FREETDS, None, {"Encryption": "request", "Server": "db", "Port": "1433"}),
    (FREETDS, Tls(mode="disable"), {"Encryption": "request"}),
    (FREETDS, Tls(mode="require"), {"Encryption": "require"}),
]


@pytest.mark.parametrize(("driver", "tls", "words"), TRANSPORTS)
def test_each_mode_of_tls_has_the_drivers_words(driver, tls, words):
    """And no line that was to be checked lacks the words that check it."""
    spelled = strings.freetds(line(tls), driver) if driver is FREETDS else strings.microsoft(line(tls), driver)

    assert words.items() <= spelled.items()


CANNOT = [
    (EIGHTEEN, Tls(mode="verify-ca")),
    (EIGHTEEN, Tls(mode="verify-full", ca_file=OURS)),
    (SEVENTEEN, Tls(mode="verify-ca", ca_file=OURS)),
    (SEVENTEEN, Tls(mode="verify-full", ca_file=OURS)),
]


@pytest.mark.parametrize(("driver", "tls"), CANNOT)
def test_check_that_microsofts_driver_cannot_do_is_refused_with_ways_out(driver, tls):
    """The system's authorities, or FreeTDS."""
    with pytest.raises(ConfigError, match=rf"{driver.name} checks .* `odbc_driver: FreeTDS`"):
        strings.microsoft(line(tls), driver)


@pytest.mark.parametrize("mode", ["verify-ca", "verify-full"])
def test_freetds_checks_by_a_section_of_a_file_of_ours(mode):
    """Its connection string has no word for authorities; without the section it would check nothing."""
    words = strings.freetds(line(Tls(mode=mode, ca_file=OURS)), FREETDS)

    sections = Path(os.environ["FREETDSCONF"]).read_text().split("\n\n")
    (section,) = [text for text in sections if text.startswith(f"[{words['Servername']}]")]
    assert not {"Server", "Port", "Encryption"} & set(words)
    assert {"host = db", "port = 1433", "encryption = require", f"ca file = {OURS}"} <= set(section.splitlines())
    assert f"check certificate hostname = {'yes' if mode == 'verify-full' else 'no'}" in section


@pytest.mark.parametrize("driver", [EIGHTEEN, FREETDS])
def test_ticket_signs_in_without_user_and_password(driver):
    """A password beside it would be tried first."""
    kerberos = line(is_kerberos=True)
    words = strings.freetds(kerberos, driver) if driver is FREETDS else strings.microsoft(kerberos, driver)

    assert ("yes", False) == (words["Trusted_Connection"], bool({"UID", "PWD"} & set(words)))


def test_password_cannot_leave_its_place():
    """Every value stands in braces, and a brace in it is doubled."""
    assert "PWD={a;b}}c};" in strings.spell(strings.microsoft(line(), EIGHTEEN))


@pytest.mark.parametrize(
    ("value", "spelled"), [("plain", "plain"), ("a}b", "a}b"), ("a;b", "{a;b}"), ("{a", "{{a}"), ("a b", "a b")]
)
def test_freetds_gets_what_all_its_versions_read_alike(value, spelled):
    """1.3 takes a doubled brace for two; every value ends at a semicolon, the last one too."""
    assert f"UID=u;PWD={spelled};" == strings.spell_freetds({"UID": "u", "PWD": value, "Database": ""})


# --- faults --------------------------------------------------------------------------------------

M, F = "[Microsoft][ODBC Driver 18 for SQL Server]", "[FreeTDS][SQL Server]"
FAULTS = [
    (f"[42S02] {M}[SQL Server]Invalid object name 'x'. (208) (SQLExecDirectW)", 208),
    (f"[42S02] {F}Invalid object name 'x (1)'. (208) (SQLExecDirectW)", 208),
    (f'[42000] {F}Cannot open database "x". (4060) (SQLDriverConnect); [28000] {F}Login failed. (18456)', 4060),
    (f"[01000] {F}Changed database. (5701) (SQLExecDirectW); [40001] {F}Deadlock. (1205)", 1205),
    (f"[HYT00] {M}Query timeout expired (0) (SQLExecDirectW)", TIMED_OUT),
    (f"[HYT00] {F}Timeout expired (0) (SQLExecDirectW)", TIMED_OUT),
    (f"[08S01] {M}TCP Provider: Error code 0x68 (104) (SQLExecDirectW)", LOST),
    (f"[08S01] {M}Communication link failure (0) (SQLExecDirectW)", LOST),
    (f"[08S01] {F}Read from the server failed (20004) (SQLExecDirectW)", LOST),
    (f"[01000] {F}Unexpected EOF from the server (20017) (SQLExecDirectW)", LOST),
    ("The driver did not supply an error!", 0),
]


@pytest.mark.parametrize(("text", "number"), FAULTS)
def test_number_of_a_fault_is_the_servers_or_what_its_state_means(text, number):
    """pyodbc writes all records of a fault into one text; a number of FreeTDS's own is none of the server's."""
    assert number == refusal(odbc._failed(Exception("HY000", text))).number


# --- rows ----------------------------------------------------------------------------------------


class Rows:
    """A cursor of pyodbc with rows that wait."""

    def __init__(self, description: list[tuple[Any, ...]], rows: list[tuple[Any, ...]]) -> None:
        self.description = description
        self.rows = rows

    def fetchmany(self, rows: int) -> list[tuple[Any, ...]]:
        """Take the next rows."""
        taken, self.rows = self.rows[:rows], self.rows[rows:]
        return taken


def test_columns_are_typed_by_their_description():
    """An answer without rows has the types of one with rows; decimals have all their digits."""
    described = [("d", Decimal, None, 38, 38, 10, True), ("s", str, None, 10, 10, 0, True)]
    value = Decimal("1234567890123456789012345678.0123456789")
    cursor = Rows(described, [(value, "x"), (None, None)])

    full, empty = odbc.batch(cursor, 5), odbc.batch(cursor, 5)

    assert [pa.decimal128(38, 10), pa.large_string()] == full.schema.types == empty.schema.types
    assert ([{"d": value, "s": "x"}, {"d": None, "s": None}], 0) == (full.to_pylist(), empty.num_rows)


def test_cell_beyond_its_description_is_refused_and_not_rounded():
    """Without showing it."""
    cursor = Rows([("d", Decimal, None, 5, 5, 2, True)], [(Decimal("1.2345"),)])
    with pytest.raises(DriverFailed, match="does not fit") as refused:
        odbc.batch(cursor, 5)

    assert "2345" not in str(refused.value)
