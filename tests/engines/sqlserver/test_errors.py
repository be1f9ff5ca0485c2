"""What each error number of SQL Server means, and that no message shows a value or a secret."""

from __future__ import annotations

import pytest

from rivet_resources.engines.sqlserver.driver import DriverRefused
from rivet_resources.engines.sqlserver.errors import PASSING, change_of_relation, clean, connect_fault, fault, number_of
from rivet_resources.errors import (
    RivetError,
    SourceAuth,
    SourceError,
    SourceLost,
    SourcePermission,
    StatementTimeout,
    UnknownTable,
)
from tests.emulators.tds import server as tds
from tests.engines.sqlserver.reads import session

emulated = pytest.mark.skipif(not tds.is_emulated(), reason="a real server fails at no one's demand")

# Number, class, seconds on top of the backoff: `contract.md`, section 16, row 15.
CLASSES = [
    (1205, SourceLost, 1), (1222, SourceLost, 0), (40197, SourceLost, 10), (40501, SourceLost, 10),
    (40613, SourceLost, 10), (49918, SourceLost, 10), (49919, SourceLost, 10), (49920, SourceLost, 10),
    (10928, SourceLost, 10), (10929, SourceLost, 10), (10053, SourceLost, 10), (10054, SourceLost, 10),
    (17187, SourceLost, 10), (17809, SourceLost, 10), (18401, SourceLost, 10), (927, SourceLost, 10),
    (701, SourceLost, 5), (1105, SourceLost, 5),
    (10060, SourceLost, 10), (4060, SourceLost, 10), (233, SourceLost, 10), (3960, SourceLost, 1),
    (-2, StatementTimeout, None), (18456, SourceAuth, None), (208, UnknownTable, None), (229, SourcePermission, None),
    (102, SourceError, None), (207, SourceError, None), (3952, SourceError, None), (8134, SourceError, None),
]  # fmt: skip


@pytest.mark.parametrize(("number", "kind", "extra"), CLASSES)
def test_a_number_decides_the_class_and_the_pause(number, kind, extra):
    """Each number has the class and the extra seconds of the contract."""
    found = fault(DriverRefused("text", number=number), doing="reading t")

    assert (type(found), getattr(found, "extra_seconds", None)) == (kind, extra)


@emulated
@pytest.mark.usefixtures("driver")
@pytest.mark.parametrize(("number", "kind", "extra"), [row for row in CLASSES if row[0] > 0])
def test_a_number_arrives_through_the_driver(sqlserver_url: str, number, kind, extra):
    """The driver's own exceptions carry no number; ours does, over the wire."""
    tds.forget(sqlserver_url)
    with session(sqlserver_url) as opened:
        tds.fault(sqlserver_url, match="SELECT 42", number=number)
        with pytest.raises(RivetError) as raised:
            opened.ask("SELECT 42 AS n", doing="asking")
        alive = opened.ask("SELECT 43 AS n", doing="asking again")

    assert (type(raised.value), alive) == (kind, [(43,)])


TEXTS = [
    ("Login failed for user 'sa'.", SourceAuth),
    ('Cannot open database "x" requested by the login. The login failed.', SourceLost),
    ("Login failed for user 'sa'. Reason: Server is in script upgrade mode. Only administrator can connect at this "
     "time.", SourceLost),
    ("Login failed for user 'sa'. Only administrators may connect at this time.", SourceLost),
    ("Login failed for user 'sa'. Reason: Server is in single user mode. Only one administrator can connect at this "
     "time.", SourceLost),
    ("Login failed due to timeout; the connection has been closed. This error may indicate heavy server load.",
     SourceLost),
    ("SQL Server is not ready to accept new client connections; the connection has been closed. Wait a few minutes "
     "before trying again.", SourceLost),
    ("Could not connect because the maximum number of '5' user connections has already been reached.", SourceLost),
    ("SQL Server service has been paused. No new connections will be allowed.", SourceLost),
    ("SHUTDOWN is in progress.", SourceLost),
    ("Database 'x' is being recovered. Waiting until recovery is finished.", SourceLost),
    ("Database 'x' cannot be opened. It is in the middle of a restore.", SourceLost),
    ("The target database, 'x', is participating in an availability group and is currently not accessible for "
     "queries.", SourceLost),
    ("Unable to access availability database 'x' because the database replica is not in the PRIMARY or SECONDARY role.",
     SourceLost),
    ("Login failed for user 'x'. Reason: The account is disabled.", SourceAuth),
    ("Cannot open server 'x' requested by the login. Client with IP address 'y' is not allowed to access the server.",
     SourceAuth),
    ('Cannot open database "x" requested by the login.', SourceLost),
    ("Database 'x' on server 'y' is not currently available.", SourceLost),
    ("Query timeout expired", StatementTimeout),
    ("something else", SourceError),
]  # fmt: skip


@pytest.mark.parametrize(("text", "kind"), TEXTS)
def test_a_text_decides_where_no_number_is_told(text, kind):
    """Refused log-ins reach us without a number."""
    assert type(connect_fault(DriverRefused(text), where="h:1")) is kind


DIRTY = [
    "Conversion failed when converting the varchar value 'top-secret' to data type int.",
    "Violation of PRIMARY KEY. The duplicate key value is (top-secret, 1).",
    "Driver Error: x; DDBC Error: [Microsoft][SQL Server]PWD=top-secret;x",
    "said top-secret itself",
]


@pytest.mark.parametrize("text", DIRTY)
def test_no_message_shows_a_value_or_a_secret(text):
    """Values of rows, passwords and what we know to be secret are taken out."""
    assert "top-secret" not in clean(text, secrets=["said top-secret"])


def test_control_bytes_do_not_reach_the_log():
    """A driver's text is one printable line."""
    assert clean("a\x1b[31m\nb\x00c") == "a [31m b c"


def test_a_table_that_vanishes_while_it_is_read_is_named_so():
    """208 and 207 in mid-read mean that the table was changed, not that the name is wrong."""
    cause = DriverRefused("Invalid object name", number=208)

    assert type(change_of_relation(fault(cause, doing="x"), cause, relation="dbo.t")).__name__ == "SourceChanged"


def test_every_passing_number_is_retried():
    """What is in the table is retryable, and its pause is not negative."""
    found = {number: fault(DriverRefused("x", number=number), doing="x").retry for number in PASSING}

    assert all(found.values())
    assert number_of(DriverRefused("x", number=1205)) == 1205
