"""Position texts and their order: the cases of `connectors.md`, section 14, "Checkpoint", 1 to 4."""

from __future__ import annotations

import pytest

from rivet_resources.state.checkpoints.positions import (
    POSITION_TYPES,
    gtid,
    is_behind,
    mysql_binlog,
    parse_mariadb_gtids,
    parse_mysql_binlog,
    parse_mysql_gtids,
    parse_postgres_lsn,
    postgres_lsn,
    refuse_text,
)

A = "3E11FA47-71CA-11E1-9E33-C80AA9429562"
B = "4e11fa47-71ca-11e1-9e33-c80aa9429562"


@pytest.mark.parametrize(
    ("number", "text"), [(0x112345678, "1/12345678"), (0x1234, "0/1234"), (0, "0/0"), (2**64 - 1, "FFFFFFFF/FFFFFFFF")]
)
def test_lsn_is_spelled_as_postgres_does_and_comes_back(number: int, text: str):
    """Capital hexadecimal, no padding; any spelling of the server's is made that one."""
    assert postgres_lsn(number) == text
    assert parse_postgres_lsn(text) == number
    assert postgres_lsn(text.lower()) == text


def test_lsn_halves_are_hexadecimal():
    """The high half counts 2³²."""
    assert parse_postgres_lsn("0/12345678") == 0x12345678
    assert parse_postgres_lsn("1/0") == 0x100000000


@pytest.mark.parametrize(
    "text", ["invalid", "1/2/3", "", "0/", "/0", "0x1/2", " 0/1", "0/1\n", "0/é", "١/٢", f"{A}:1-5"]
)
def test_text_that_is_no_lsn_is_none(text: str):
    """Nothing is guessed from a text of another form."""
    assert parse_postgres_lsn(text) is None
    with pytest.raises(ValueError, match="is not a log sequence number"):
        postgres_lsn(text)


@pytest.mark.parametrize("text", ["0/1FFFFFFFF", "1FFFFFFFF/0"])
def test_lsn_half_over_32_bits_is_an_error(text: str):
    """An overflow must not be shifted into another place of the log."""
    with pytest.raises(ValueError, match="each half has at most eight digits"):
        parse_postgres_lsn(text)


@pytest.mark.parametrize("number", [-1, 2**64])
def test_number_beyond_64_bits_is_no_lsn(number: int):
    """The log has 64-bit places."""
    with pytest.raises(ValueError, match="is not a log sequence number"):
        postgres_lsn(number)


def test_binlog_place_is_split_at_the_last_colon():
    """A file's name may hold colons and dots."""
    assert mysql_binlog("mysql-bin.000003", 12345) == "mysql-bin.000003:12345"
    assert parse_mysql_binlog("mysql-bin.000003:12345") == ("mysql-bin.000003", 12345)
    assert parse_mysql_binlog("a:1.b.000003:4") == ("a:1.b.000003", 4)


@pytest.mark.parametrize("text", ["mysql-bin.000003", "f:x", "f:1", "", ":1", "000003:1", f"b.1:{2**64}", "b.1:-1"])
def test_text_that_is_no_binlog_place_is_none(text: str):
    """A file needs its number, a place its 64 bits."""
    assert parse_mysql_binlog(text) is None


def test_wrong_binlog_place_is_never_spelled():
    """A negative place or a file without number is refused where it is made."""
    with pytest.raises(ValueError, match="is not a binary log"):
        mysql_binlog("mysql-bin", 4)
    with pytest.raises(ValueError, match="is not a binary log"):
        mysql_binlog("mysql-bin.1", -4)


def test_gtid_is_kept_verbatim_and_belongs_to_its_kind_of_server():
    """`uuid:interval` is MySQL's, `domain-server-seq` MariaDB's, and neither is the other's."""
    assert gtid("mysql", f"{A}:1-5") == f"{A}:1-5"
    assert gtid("mariadb", "0-1-100") == "0-1-100"
    with pytest.raises(ValueError, match="no Gtid of mysql"):
        gtid("mysql", "0-1-100")
    with pytest.raises(ValueError, match="no Gtid of mariadb"):
        gtid("mariadb", f"{A}:1-5")


@pytest.mark.parametrize(
    "text", [f"{A}:5-1", f"{A}:0", f"{A}", f"{A}:", f"{A}:a", "x:1", f"{A}:1-5,", f"{A}:1-2-3", f"{A}:Tag 1:1"]
)
def test_text_that_is_no_set_of_mysqls_is_none(text: str):
    """Intervals start at 1 and do not run backwards."""
    assert parse_mysql_gtids(text) is None


@pytest.mark.parametrize(
    "text", ["0-1", "0-1-2-3", "a-b-c", "0-1-2,0-1-3", f"{2**32}-1-1", f"0-{2**32}-1", f"0-1-{2**64}"]
)
def test_text_that_is_no_list_of_mariadbs_is_none(text: str):
    """One member per domain, within its bits."""
    assert parse_mariadb_gtids(text) is None


def test_message_about_a_position_does_not_show_it():
    """A watermark is made of a row's values."""
    with pytest.raises(ValueError) as refused:
        refuse_text("PostgresLsn", "postgres", "jane@example.com")

    assert "jane" not in str(refused.value)


def test_custom_position_is_any_text_but_none():
    """The connector reads it; only nothing at all is no position."""
    refuse_text("Custom", "datagen", "seq:5")
    with pytest.raises(ValueError, match="its position is no Custom of datagen"):
        refuse_text("Custom", "datagen", "")
    with pytest.raises(ValueError, match="position_type is none of"):
        refuse_text("Mongo", "mongo", "x")


# (type, source, stored, new, is behind)
STEPS = [
    ("PostgresLsn", "postgres", "0/100", "0/FF", True),  # as text it would be ahead
    ("PostgresLsn", "postgres", "0/FF", "0/100", False),
    ("PostgresLsn", "postgres", "0/100", "0/100", False),
    ("PostgresLsn", "postgres", "A/0", "9/FFFFFFFF", True),
    ("MysqlBinlog", "mysql", "bin.999999:4", "bin.1000000:4", False),  # as text it would be behind
    ("MysqlBinlog", "mysql", "bin.000002:4", "bin.000001:9999", True),
    ("MysqlBinlog", "mysql", "bin.000002:1000", "bin.000002:999", True),
    ("MysqlBinlog", "mysql", "bin.000002:999", "bin.000002:999", False),
    ("Gtid", "mysql", f"{A}:1-5", f"{A}:1-5", False),
    ("Gtid", "mysql", f"{A}:1-5", f"{A.lower()}:1-6", False),
    ("Gtid", "mysql", f"{A}:1-5", f"{A}:1-4", True),
    ("Gtid", "mysql", f"{A}:1-5", f"{A}:2-9", True),  # 1 is missing
    ("Gtid", "mysql", f"{A}:1-5:9", f"{A}:1-3:4-8:9,\n{B}:1", False),  # ranges that touch are one
    ("Gtid", "mysql", f"{A}:1-5,{B}:1", f"{A}:1-9", True),
    ("Gtid", "mysql", "", f"{A}:1", False),
    ("Gtid", "mysql", f"{A}:tag:1-5", f"{A}:1-9", True),  # a tag counts by itself
    ("Gtid", "mysql", f"{A}:1-2:tag:1-5", f"{A}:1-2:tag:1-6", False),
    ("Gtid", "mariadb", "0-1-100", "0-2-101", False),  # another server of the domain: a failover
    ("Gtid", "mariadb", "0-1-100", "0-1-99", True),
    ("Gtid", "mariadb", "0-1-100,1-1-5", "0-1-101", True),
    ("Gtid", "mariadb", "0-1-100", "0-1-100,1-1-1", False),
    ("Custom", "datagen", "seq:10", "seq:9", None),
]


@pytest.mark.parametrize(("kind", "source", "stored", "new", "expected"), STEPS)
def test_order_is_that_of_the_log_and_never_of_the_text(
    kind: str, source: str, stored: str, new: str, expected: object
):
    """Numbers compare as numbers, sets by what they hold, and Custom has no order of its own."""
    assert is_behind(new, stored, position_type=kind, source_type=source) is expected


def test_every_position_type_has_its_cases():
    """A new type must say how it is ordered."""
    assert {kind for kind, *_ in STEPS} == set(POSITION_TYPES)
