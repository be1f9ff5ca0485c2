"""Faults of MySQL and MariaDB: by code, whether to ask again, and words without values or secrets."""

from __future__ import annotations

import pymysql
import pytest

from rivet_resources.engines.mysql.errors import change_of_relation, clean, connect_fault, fault
from rivet_resources.errors import (
    RivetError,
    SourceAuth,
    SourceChanged,
    SourceError,
    SourceLost,
    SourcePermission,
    SourceUnreachable,
    StatementTimeout,
    UnknownTable,
)

# Code, class, seconds on top of the backoff. `contract.md`, section 6.
CLASSES: list[tuple[int, type[RivetError], float]] = [
    (1213, SourceLost, 1.0),
    (1205, SourceLost, 0.0),
    (3572, SourceLost, 0.0),
    (1040, SourceLost, 15.0),
    (1203, SourceLost, 15.0),
    (1053, SourceLost, 15.0),
    (1047, SourceLost, 15.0),
    (3168, SourceLost, 15.0),
    (9001, SourceLost, 15.0),
    (1042, SourceLost, 5.0),
    (1021, SourceLost, 5.0),
    (2006, SourceLost, 0.0),
    (2013, SourceLost, 0.0),
    (1927, SourceLost, 0.0),
    (1152, SourceLost, 0.0),
    (1158, SourceLost, 0.0),
    (1161, SourceLost, 0.0),
    (4031, SourceLost, 0.0),
    (3024, StatementTimeout, 0.0),
    (1969, StatementTimeout, 0.0),
    (1317, SourceError, 0.0),
    (1044, SourceAuth, 0.0),
    (1045, SourceAuth, 0.0),
    (1698, SourceAuth, 0.0),
    (1142, SourcePermission, 0.0),
    (1143, SourcePermission, 0.0),
    (1146, UnknownTable, 0.0),
    (1049, SourceError, 0.0),
    (1064, SourceError, 0.0),
    (4999, SourceError, 0.0),
]


@pytest.mark.parametrize(("code", "expected", "extra"), CLASSES)
def test_code_decides_the_class(code: int, expected: type[RivetError], extra: float) -> None:
    """What may pass is asked again after its own pause; everything unknown is permanent."""
    found = fault(pymysql.err.OperationalError(code, "said"), doing="reading t")

    assert (expected, extra, expected is SourceLost) == (
        type(found), getattr(found, "extra_seconds", 0.0), found.retry,
    )  # fmt: skip


def test_closed_connection_is_a_lost_line() -> None:
    """PyMySQL says so without a number."""
    assert SourceLost is type(fault(pymysql.err.InterfaceError(0, ""), doing="reading t"))


def test_reset_line_is_a_lost_line() -> None:
    """The socket's own faults have no number either."""
    assert SourceLost is type(fault(ConnectionResetError(104, "Connection reset by peer"), doing="reading t"))


@pytest.mark.parametrize(
    ("code", "is_change"), [(1146, True), (1054, True), (1412, True), (1213, False), (3024, False)]
)
def test_change_under_the_reader_is_told_from_other_faults(code: int, is_change: bool) -> None:
    """A relation that was there when it was planned has changed."""
    cause = pymysql.err.ProgrammingError(code, "said")

    found = change_of_relation(fault(cause, doing="reading t"), cause, relation="t")

    assert is_change == isinstance(found, SourceChanged)


# What a server says, and what of it must not be shown.
TEXTS = [
    ("Duplicate entry 'jo@example.com-7' for key 't.PRIMARY'", "jo@example.com"),
    ("Truncated incorrect DOUBLE value: '4111 1111'", "4111"),
    ("Incorrect datetime value: '1970-13-01' for column 'd' at row 1", "1970-13"),
    ("Incorrect string value: '\\xF0\\x9F' for column 'd' at row 1", "xF0"),
    ("Cannot convert string 'caf\\xE9' from binary to utf8mb4", "caf"),
    ("You have an error in your SQL syntax; the right syntax to use near 'WHERE iban = 'DE12' at line 1", "DE12"),
    ("Access denied for mysql://u:s3cret@h/d", "s3cret"),
    ("the password is s3cret\x07", "s3cret"),
    ("Data truncated: value is out of range in '(`t`.`a` + 12345)'", "12345"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "secret"), TEXTS)
def test_no_value_and_no_secret_is_shown(text: str, secret: str) -> None:
    """Of a server's message only the words remain."""
    shown = clean(pymysql.err.DataError(1, text), secrets=["s3cret"])

    assert secret not in shown
    assert shown.isprintable()


def test_code_of_a_refused_connection_says_what_to_check() -> None:
    """The server may be away, the address may be wrong: it is asked again, and the message says what to check."""
    error = pymysql.err.OperationalError(2003, "Can't connect to MySQL server on 'h' ([Errno 111] Connection refused)")

    found = connect_fault(error, where="h:3306")

    assert (SourceUnreachable, True, 2) == (type(found), found.retry, found.exit_code)
    assert "Check `host`, `port`" in str(found)
